"""Detected animals as flat arrays, in an order that does not depend on the order of the animals within a frame."""

import dataclasses
import itertools

import numpy as np

from jaxpose.poses import Poses

# Poses are measured by at most twice so many pairs of keypoints.
_PAIRS = 64


@dataclasses.dataclass(frozen=True)
class Detections:
    """The m detected animals of a video, ordered by frame, then by position.

    Attributes:
      frame_count: number of frames of the video.
      frames: (m,) frame of each detection.
      places: (m,) its number within the frame, in the poses that they are from.
      poses_px: (m, k, 2), NaN for a missing keypoint.
      centres_px: (m, 2) the median of the keypoints; of a part, that of its animal.
      quality: (m,) the score, 1 for a typical detection of the video; at most 1.
      table: (frame_count, a) numbers of the detections of each frame, -1 where there are fewer.
      joined: (s, 2) pairs of detections that a person says follow each other in a track.
      parted: (d, 2) pairs that a person says do not.
      barred: (b,) detections that no track may use.
      parts: (q,) detections that are parts of a pose which mixes two animals: they show where the animals are, but no
        track shows them.
    """

    frame_count: int
    frames: np.ndarray
    places: np.ndarray
    poses_px: np.ndarray
    centres_px: np.ndarray
    quality: np.ndarray
    table: np.ndarray
    joined: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 2), int))
    parted: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 2), int))
    barred: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, int))
    parts: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, int))

    def __len__(self) -> int:
        return len(self.frames)


def find_detections(poses: Poses) -> Detections:
    """Returns the animals of all frames that have a keypoint."""
    frames, places = np.nonzero(np.isfinite(poses.points_px[..., 0]).any(axis=2))
    points = poses.points_px[frames, places]
    centres, score = medians(points), _score(poses)
    # Animals that agree in all coordinates and in the score are interchangeable.
    keys = np.concatenate(
        [centres, points.reshape(len(points), 2 * points.shape[1]), score[frames, places, None]], axis=1
    )
    order = np.lexsort((*np.nan_to_num(keys, nan=-1e9).T[::-1], frames))
    frames, places, points, centres = frames[order], places[order], points[order], centres[order]
    quality = _quality(score)[frames, places]
    return Detections(len(poses.frames), frames, places, points, centres, quality, _table(frames, len(poses.frames)))


def in_parts(found: Detections, mixed: np.ndarray, is_second: np.ndarray, centres_px: np.ndarray) -> Detections:
    """Returns the detections after some were split in two.

    Args:
      found: m detections, without corrections.
      mixed: (q,) those that are split.
      is_second: (q, k) the keypoints of the second part.
      centres_px: (q, 2, 2) the centres of the animals of both parts.
    """
    sides = np.where(np.stack([is_second, ~is_second])[..., None], np.nan, found.poses_px[mixed])
    whole = np.setdiff1d(np.arange(len(found)), mixed)
    rows = np.concatenate([whole, mixed, mixed])
    points = np.concatenate([found.poses_px[whole], *sides])
    centres = np.concatenate([found.centres_px[whole], centres_px[:, 0], centres_px[:, 1]])
    # Stable: those that agree in their places keep their order.
    order = np.lexsort((centres[:, 1], centres[:, 0], found.frames[rows]))
    frames = found.frames[rows][order]
    return Detections(
        found.frame_count,
        frames,
        found.places[rows][order],
        points[order],
        centres[order],
        found.quality[rows][order],
        _table(frames, found.frame_count),
        parts=np.flatnonzero(order >= len(whole)),
    )


def _table(frames: np.ndarray, frame_count: int) -> np.ndarray:
    """Returns the detections of each frame; `frames` (m,) are in order."""
    slots = np.arange(len(frames)) - np.searchsorted(frames, frames)
    table = np.full((frame_count, int(slots.max(initial=-1)) + 1), -1)
    table[frames, slots] = np.arange(len(frames))
    return table


def keypoint_pairs(keypoints: int) -> np.ndarray:
    """Returns the pairs (p, 2) of keypoints by which poses are measured: all, or some of them if there are many."""
    pairs = np.array(list(itertools.combinations(range(keypoints), 2)), int).reshape(-1, 2)
    return pairs[:: max(len(pairs) // _PAIRS, 1)]


def medians(points_px: np.ndarray) -> np.ndarray:
    """Returns the medians (m, 2) of keypoints (m, k, 2), each of which has one; faster than `np.nanmedian`."""
    ordered = np.sort(points_px, axis=1)
    known = np.isfinite(points_px[..., 0]).sum(axis=1)
    rows = np.arange(len(points_px))
    return (ordered[rows, (known - 1) // 2] + ordered[rows, known // 2]) / 2


def _score(poses: Poses) -> np.ndarray:
    """Returns the score (f, a) of each animal, or the mean confidence of its keypoints; NaN if unknown."""
    if poses.score is not None:
        return poses.score
    if poses.confidence is None:
        return np.full(poses.points_px.shape[:2], np.nan)
    known = np.isfinite(poses.confidence) & np.isfinite(poses.points_px[..., 0])
    total = np.where(known, poses.confidence, 0).sum(axis=2)
    return np.where(known.any(axis=2), total / np.maximum(known.sum(axis=2), 1), np.nan)


def _quality(score: np.ndarray) -> np.ndarray:
    if not np.isfinite(score).any() or not (typical := float(np.nanmedian(score))) > 0:
        return np.ones(score.shape)
    return np.clip(np.where(np.isfinite(score), score / typical, 1.0), 0.0, 1.0)
