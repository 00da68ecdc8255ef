"""What points that are marked as not visible would change in the errors of compared runs."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class NotVisible:
    """The points of a run that are marked as not visible, on the compared frames and keypoints.

    Attributes:
      points: their number.
      counted: whether the errors of the comparison have counted them.
      mean_px: the mean error over all keypoints if they were treated the other way, NaN without a number.
    """

    points: int
    counted: bool
    mean_px: float


def measure_not_visible(errors_px: list[np.ndarray], otherwise_px: list[np.ndarray]) -> list[NotVisible]:
    """Returns the figures of each run, [] if no run has such points.

    Args:
      errors_px: (n, k) of each run.
      otherwise_px: (n, k) of each run, as `RunErrors.otherwise_px`.
    """
    found = []
    for errors, otherwise in zip(errors_px, otherwise_px, strict=True):
        left_out = np.isnan(errors) & np.isfinite(otherwise)
        counted = np.isfinite(errors) & np.isnan(otherwise)
        known = otherwise[np.isfinite(otherwise)]
        mean_px = float(known.mean()) if known.size else float("nan")
        found.append(NotVisible(int((left_out | counted).sum()), bool(counted.any()), mean_px))
    return found if any(one.points for one in found) else []
