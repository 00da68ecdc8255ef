"""Means of errors with bootstrap intervals: frames are drawn again with replacement, a frame with all its keypoints."""

import dataclasses

import numpy as np

RESAMPLES = 10_000
PERCENT = 95
# Frames without which a mean has no interval: draws of fewer frames hardly differ, whatever other frames would show.
LEAST_FRAMES = 5
# Bounds the memory of the draws.
_AT_ONCE = 500


@dataclasses.dataclass(frozen=True)
class Means:
    """Means of errors by column: each keypoint, then all keypoints together.

    Attributes:
      means_px: (k + 1,) NaN in a column without a number.
      frames: (k + 1,) frames that have a number in each column; in the last one, frames with any.
      resampled_px: (resamples, k + 1) the means of drawn frames; NaN where no drawn frame has a number.
    """

    means_px: np.ndarray
    frames: np.ndarray
    resampled_px: np.ndarray


def bootstrap_means(errors_px: np.ndarray, seed: int, resamples: int = RESAMPLES) -> Means:
    """Returns the mean of each keypoint over frames and of all numbers, with the means of resampled frames.

    Args:
      errors_px: (n, k), NaN where there is no number.
      seed: decides which frames are drawn. With one seed, arrays of the same n are resampled by the same frames, so
        differences of their resampled means are paired.
      resamples: number of draws of n frames.
    """
    count = len(errors_px)
    present = np.isfinite(errors_px)
    columns = np.where(present, errors_px, 0), present.astype(np.float64)
    sums, numbers = (np.concatenate([part, part.sum(axis=1, keepdims=True)], axis=1) for part in columns)
    rng = np.random.default_rng(seed)
    parts = []
    for first in range(0, resamples, _AT_ONCE):
        times = np.zeros((min(_AT_ONCE, resamples - first), count))
        if count:
            drawn = rng.integers(count, size=times.shape)
            np.add.at(times, (np.arange(len(times))[:, None], drawn), 1)
        parts.append(_ratio(times @ sums, times @ numbers))
    return Means(_ratio(sums.sum(axis=0), numbers.sum(axis=0)), (numbers > 0).sum(axis=0), np.concatenate(parts))


def interval_px(resampled_px: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Returns the percentile intervals (2, m) of resampled means; NaN below LEAST_FRAMES frames.

    Args:
      resampled_px: (resamples, m).
      frames: (m,) frames behind each mean.
    """
    edges = np.full((2, resampled_px.shape[1]), np.nan)
    tail = (100 - PERCENT) / 2
    for column in np.flatnonzero(frames >= LEAST_FRAMES).tolist():
        edges[:, column] = np.nanpercentile(resampled_px[:, column], [tail, 100 - tail])
    return edges


def _ratio(sums: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    return np.divide(sums, numbers, out=np.full(sums.shape, np.nan), where=numbers > 0)
