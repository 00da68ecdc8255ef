"""Chooses frames that look different, by k-means over small copies of the frames; no network is needed."""

import math

import cv2
import numpy as np

from jaxpose import geometry
from jaxpose.errors import UserError
from jaxpose.labelling.recordings import Recording
from jaxpose.labelling.selection import Choice
from jaxpose.phases import phase
from jaxpose.terminal import print_lines
from jaxpose.video.video import Video, read_chunks, scan

_SIDE_PX = 32
_CHUNK_FRAMES = 64
# Of a longer video, every second frame, every third and so on.
_MOST_FRAMES = 20_000
_ATTEMPTS, _ITERATIONS = 3, 100
_SEED = 0
REASON = "looks different"


def choose_different(recordings: list[Recording], skipped: list[set[int]], count: int, apart: int) -> list[Choice]:
    """Returns up to `count` frames, shared out among the recordings by their lengths.

    Args:
      recordings: of several cameras, the first view decides.
      skipped: frames of each recording that are labelled already.
      count: how many.
      apart: two frames of one recording have more than this distance.

    A video that breaks off gives frames from before, which is printed.

    Raises:
      UserError: a video has no frame that can be read.
    """
    videos = [scan(next(iter(recording.videos.values()))) for recording in recordings]
    shares = _shares(np.array([video.expected_frames for video in videos]), count)
    chosen = []
    for place, (video, share) in enumerate(zip(videos, shares, strict=True)):
        if share:
            step = -(-video.expected_frames // _MOST_FRAMES)
            frames = _centres(_small_copies(video, recordings[place].crop_px, step), share, step, skipped[place], apart)
            chosen += [Choice(place, frame, math.nan, REASON) for frame in frames]
    return chosen


def _shares(lengths: np.ndarray, count: int) -> list[int]:
    """Returns how many of `count` frames each video gives: one each, or the longest alone; the rest by length."""
    shares = np.zeros(len(lengths), int)
    shares[np.argsort(-lengths, kind="stable")[:count]] = 1
    rest = lengths / lengths.sum() * (count - shares.sum())
    shares += np.floor(rest).astype(int)
    shares[np.argsort(np.floor(rest) - rest, kind="stable")[: count - shares.sum()]] += 1
    return shares.tolist()


def _small_copies(video: Video, crop_px: tuple[int, ...], step: int) -> np.ndarray:
    """Returns every `step`-th frame of a video, cropped to (x, y, width, height), as grey values (m, d) float32."""
    size_px = (_SIDE_PX, _SIDE_PX)
    affine = geometry.input_from_frame((video.width_px, video.height_px), size_px, "stretch", crop_px)
    reader = read_chunks(video, affine, size_px, _CHUNK_FRAMES)
    parts, done = [], 0
    with phase(f"looking at {video.path.name}", video.expected_frames, "frame") as progress:
        for chunk in reader:
            kept = chunk[-done % step :: step]
            parts.append(kept.mean(axis=-1).reshape(len(kept), -1).astype(np.float32))
            done += len(chunk)
            progress.update(len(chunk))
    if not done:
        raise UserError(reader.problem or f"{video.path} has no frames")
    if reader.problem:
        print_lines(reader.problem)
    return np.concatenate(parts)


def _centres(pixels: np.ndarray, count: int, step: int, skipped: set[int], apart: int) -> list[int]:
    """Returns the frame nearest to the centre of each cluster, in the order of the clusters' sizes."""
    clusters = min(count, len(pixels))
    cv2.setRNGSeed(_SEED)
    criteria = (cv2.TERM_CRITERIA_EPS + cv2.TERM_CRITERIA_MAX_ITER, _ITERATIONS, 1e-3)
    labels = np.zeros((len(pixels), 1), np.int32)
    _, labels, centres = cv2.kmeans(pixels, clusters, labels, criteria, _ATTEMPTS, cv2.KMEANS_PP_CENTERS)
    frames = np.arange(len(pixels)) * step
    is_free = np.array([frame not in skipped for frame in frames.tolist()])
    chosen = []
    for cluster in np.argsort(-np.bincount(labels[:, 0], minlength=clusters), kind="stable").tolist():
        distances = np.linalg.norm(pixels - centres[cluster], axis=1)
        # A frame of the cluster, if one is far enough from those that are chosen.
        distances[labels[:, 0] != cluster] += distances.max() + 1
        if is_free.any():
            frame = int(frames[np.where(is_free, distances, np.inf).argmin()])
            chosen.append(frame)
            is_free &= np.abs(frames - frame) > apart
    return chosen
