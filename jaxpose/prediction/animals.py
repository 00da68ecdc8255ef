"""Predicts all animals of frames: a finder finds them, and the pose network sees each in a box of its own.

Frames, boxes and duplicates are handled on the host; both networks run in batches of fixed shape, so nothing is
compiled again when the number of animals changes.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from jaxpose import geometry
from jaxpose.config import DataConfig
from jaxpose.data.animals import boxes_around
from jaxpose.geometry import fit_image
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.video.decoding import RangeReader
from jaxpose.video.index import VideoIndex

# Of two animals with at least this OKS to each other, the surer one counts.
_SAME_OKS, _OKS_SIGMA = 0.7, 0.1


@dataclasses.dataclass(frozen=True)
class Network:
    """A network that predicts frames.

    Attributes:
      data: the options of its run.
      runner: the network.
      weights: its parameters and batch statistics from `BatchRunner.fold`.
    """

    data: DataConfig
    runner: BatchRunner
    weights: tuple[dict, dict]

    @property
    def size_px(self) -> tuple[int, int]:
        """(width, height) of its input."""
        return self.data.input_width_px, self.data.input_height_px


def predict_animals(finder: Network, pose: Network, frames: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the animals of frames: keypoints (n, a, k, 2) in frame pixels and confidence (n, a, k).

    The surest animal of a frame is first; where a frame has fewer animals than `data.animals`, both are NaN.

    Args:
      finder: finds the centres.
      pose: predicts the keypoints of the animal in the middle of a box.
      frames: n arrays (h, w, 3) uint8 of any sizes. Results depend on the place of a frame among n only by its
        remainder modulo `frames_at_once` of the runners.
    """
    centres_px, score = _find(finder, frames)
    keypoints_px, confidence = _predict_boxes(pose, frames, centres_px)
    found = [
        _distinct(keypoints_px[row], confidence[row], score[row], pose.data) for row in range(len(frames))
    ]  # fmt: skip
    return np.stack([points for points, _ in found]), np.stack([sure for _, sure in found])


def find_in_video(
    finder: Network, index: VideoIndex, stretches: Sequence[tuple[int, int]]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields what a finder finds in each stretch of a video, without a pose network.

    Args:
      finder: the network.
      index: the video, rotated as the labelled images.
      stretches: the frames [first, end) of each.

    Yields:
      The rough positions of the keypoints and, last, the centre, (n, a, k + 1, 2) in frame pixels, and the scores
      (n, a) of the animals of each frame of the stretch, the surest first; NaN where there are fewer than
      `data.animals`, and in frames that do not decode. The number of devices changes no bit.
    """
    data, frame_px = finder.data, (index.width_px, index.height_px)
    affine = geometry.input_from_frame(frame_px, finder.size_px, data.resize)
    for first, end in stretches:
        reader = RangeReader(index, first, end, affine, finder.size_px)
        inputs = np.zeros((end - first, finder.size_px[1], finder.size_px[0], 3), np.uint8)
        is_shown = np.zeros(end - first, bool)
        for number, image in reader:
            inputs[number - first], is_shown[number - first] = image, True
        for damage in reader.damage:
            is_shown[max(damage.first - first, 0) : max(damage.last + 1 - first, 0)] = False
        frame_from_input = np.tile(geometry.invert(affine), (len(inputs), 1, 1))
        parts = list(finder.runner.frames(*finder.weights, _chunks(finder.runner, inputs, frame_from_input)))
        centres_px, score = (np.concatenate([part[name] for part in parts]) for name in ("centres_px", "score"))
        rough_px = np.concatenate([part["keypoints_px"] for part in parts])
        placed_px = np.concatenate([rough_px, centres_px[:, :, None]], axis=2).astype(np.float64)
        placed_px = geometry.apply(geometry.invert(affine), placed_px)
        is_inside = ((placed_px[:, :, -1] >= -0.5) & (placed_px[:, :, -1] < np.array(frame_px) - 0.5)).all(axis=-1)
        placed_px[~(is_inside & is_shown[:, None])] = np.nan
        sure = np.where(np.isfinite(placed_px[..., 0]), score[..., None], np.nan)
        found = [_distinct(placed_px[row], sure[row], np.ones(len(sure[row])), data) for row in range(len(inputs))]
        points_px, sure = np.stack([points for points, _ in found]), np.stack([of_points for _, of_points in found])
        yield points_px, sure[..., -1]


def _find(finder: Network, frames: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns centres (n, m, 2) in frame pixels, NaN where there is none, and their scores (n, m)."""
    sizes_px = np.array([(frame.shape[1], frame.shape[0]) for frame in frames])
    affines = np.stack(
        [geometry.input_from_frame(tuple(size.tolist()), finder.size_px, finder.data.resize) for size in sizes_px]
    )
    inputs = np.stack([fit_image(frame, affine, finder.size_px) for frame, affine in zip(frames, affines, strict=True)])
    found = list(finder.runner.frames(*finder.weights, _chunks(finder.runner, inputs, geometry.invert(affines))))
    centres_px = np.concatenate([part["centres_px"] for part in found]).astype(np.float64)
    centres_px = geometry.apply(geometry.invert(affines), centres_px)
    # The input is wider or higher than some frames.
    is_inside = ((centres_px >= -0.5) & (centres_px < sizes_px[:, None] - 0.5)).all(axis=-1)
    return np.where(is_inside[..., None], centres_px, np.nan), np.concatenate([part["score"] for part in found])


def _predict_boxes(
    pose: Network, frames: Sequence[np.ndarray], centres_px: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns keypoints (n, m, k, 2) in frame pixels and confidence (n, m, k) of the animals at centres (n, m, 2)."""
    at_once = pose.runner.frames_at_once
    rows, places = np.nonzero(np.isfinite(centres_px[..., 0]))
    boxes_px = boxes_around(centres_px[rows, places], pose.data.body_size_px)
    affines = geometry.input_from_boxes(boxes_px, pose.size_px, pose.data.resize)
    # The last bits may depend on the place in a batch, so the boxes of the frames that a device sees at once begin a
    # batch: their places do not depend on the other frames, and thus not on the number of devices.
    group = rows // at_once
    within = np.arange(len(rows)) - np.searchsorted(group, group)
    batches = -(-np.bincount(group, minlength=1) // at_once)
    slots = (np.cumsum(batches) - batches)[group] * at_once + within
    total = int(batches.sum()) * at_once
    inputs = np.zeros((total, pose.size_px[1], pose.size_px[0], 3), np.uint8)
    frame_from_input = np.tile(np.eye(2, 3), (total, 1, 1))
    frame_from_input[slots] = geometry.invert(affines)
    for slot, row, affine, box in zip(slots.tolist(), rows.tolist(), affines, boxes_px.tolist(), strict=True):
        inputs[slot] = fit_image(frames[row], affine, pose.size_px, tuple(box))
    found = list(pose.runner.frames(*pose.weights, _chunks(pose.runner, inputs, frame_from_input)))
    shape = (*centres_px.shape[:2], len(pose.data.keypoint_names))
    keypoints_px, confidence = np.full((*shape, 2), np.nan, np.float32), np.full(shape, np.nan, np.float32)
    if found:
        keypoints_px[rows, places] = np.concatenate([part["keypoints_frame_px"] for part in found])[slots]
        confidence[rows, places] = np.concatenate([part["confidence"] for part in found])[slots]
    return keypoints_px, confidence


def _chunks(
    runner: BatchRunner, inputs: np.ndarray, frame_from_input: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for first in range(0, len(inputs), runner.frames_per_step):
        rows = slice(first, first + runner.frames_per_step)
        yield inputs[rows], frame_from_input[rows]


def _distinct(
    keypoints_px: np.ndarray, confidence: np.ndarray, score: np.ndarray, data: DataConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the surest `data.animals` animals of a frame, each once: keypoints (a, k, 2) and confidence (a, k).

    Args:
      keypoints_px: (m, k, 2), NaN where there is no animal.
      confidence: (m, k).
      score: (m,), the finder's.
      data: the options of the run.
    """
    sure = np.where(np.isfinite(confidence[:, 0]), score * confidence.mean(axis=1), -1)
    kept: list[int] = []
    for place in np.argsort(-sure, kind="stable").tolist():
        if sure[place] < 0 or len(kept) == data.animals:
            break
        squares = np.square(keypoints_px[kept].astype(np.float64) - keypoints_px[place]).sum(axis=-1)
        oks = np.exp(-squares / (2 * (2 * _OKS_SIGMA * data.body_size_px) ** 2)).mean(axis=1)
        if not (oks >= _SAME_OKS).any():
            kept.append(place)
    points = np.full((data.animals, *keypoints_px.shape[1:]), np.nan, keypoints_px.dtype)
    found = np.full((data.animals, *confidence.shape[1:]), np.nan, confidence.dtype)
    points[: len(kept)], found[: len(kept)] = keypoints_px[kept], confidence[kept]
    return points, found
