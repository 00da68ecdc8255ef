"""Two trackers that learn almost nothing; their errors are printed beside those of the network."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from jaxpose.codes import TEST, TRAIN
from jaxpose.errors import UserError

_DIFFERENT_GREY_LEVELS = 30


def mean_position_errors_px(keypoints_frame_px: np.ndarray, sets: Sequence[str]) -> np.ndarray:
    """Returns the errors (n_test, k) of predicting each keypoint at its mean place in the training frames.

    Args:
      keypoints_frame_px: labels (n, k, 2), NaN where absent; their errors are NaN.
      sets: the set of each row; rows of "train" are learned from, rows of "test" are predicted.

    Raises:
      ValueError: there is no row of "train" or of "test".
    """
    train, test = _rows(sets, TRAIN), _rows(sets, TEST)
    predicted_px = _mean(keypoints_frame_px[train])
    return np.linalg.norm(keypoints_frame_px[test] - predicted_px, axis=-1)


def blob_errors_px(
    paths: Sequence[Path], videos: Sequence[str], keypoints_frame_px: np.ndarray, sets: Sequence[str]
) -> np.ndarray:
    """Returns the errors (n_test, k) of the animal's centroid plus each keypoint's mean offset from it.

    The animal is what differs from the background, and the background is the median of the labelled frames of the
    same video. The centroid of a frame without a difference is the frame's centre.

    Args:
      paths: the image of each row; the images of one video have one size.
      videos: the video of each row.
      keypoints_frame_px: labels (n, k, 2), NaN where absent; their errors are NaN.
      sets: the set of each row; rows of "train" are learned from, rows of "test" are predicted.

    Raises:
      ValueError: there is no row of "train" or of "test".
      UserError: an image is missing or does not decode.
    """
    train, test = _rows(sets, TRAIN), _rows(sets, TEST)
    centroids_px = np.empty((len(paths), 2))
    for video in sorted(set(videos)):
        rows = [row for row, name in enumerate(videos) if name == video]
        frames = np.stack([_read(paths[row]) for row in rows]).astype(np.float32)
        background = np.median(frames, axis=0)
        for row, frame in zip(rows, frames, strict=True):
            centroids_px[row] = _centroid(np.abs(frame - background).max(axis=-1) > _DIFFERENT_GREY_LEVELS)
    offsets_px = keypoints_frame_px - centroids_px[:, None]
    return np.linalg.norm(offsets_px[test] - _mean(offsets_px[train]), axis=-1)


def _rows(sets: Sequence[str], name: str) -> np.ndarray:
    rows = np.flatnonzero(np.array(sets) == name)
    if not len(rows):
        raise ValueError(f"no row is of the set {name!r}; the sets are {sorted(set(sets))}")
    return rows


def _mean(points_px: np.ndarray) -> np.ndarray:
    """Returns the mean (k, 2) of the points (n, k, 2) that are not NaN, NaN for a keypoint without any."""
    count = np.isfinite(points_px).sum(axis=0)
    return np.where(count > 0, np.nansum(points_px, axis=0) / np.maximum(count, 1), np.nan)


def _read(path: Path) -> np.ndarray:
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise UserError(f"{path} is missing or is no image")
    return image


def _centroid(mask: np.ndarray) -> np.ndarray:
    y, x = np.nonzero(mask if mask.any() else np.ones_like(mask))
    return np.array([x.mean(), y.mean()])
