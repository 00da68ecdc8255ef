"""The spread of an ensemble's predictions as a measure of their error."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

# Errors above this are failures, for the area under the curve.
WRONG_PX = 10.0
# Thresholds of the reliability table.
THRESHOLDS_PX = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
# A calibration has two parameters; from fewer points it would say little.
LEAST_POINTS = 20
# Points that enter the fit, evenly over their spread; the cost of the fit does not grow beyond.
_MOST_POINTS = 2000
_GRID, _ROUNDS, _ZOOM = 33, 4, 6.0
# Smaller numbers are rounding.
_LEAST_PX = 1e-3


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The typical error of a point with a spread s: sqrt(floor_px^2 + (slope s)^2).

    The error of the median has a part that the members share, which the spread cannot show, and a part that differs
    between them, which it does. The two are independent, so their squares are added. The curve is monotone: it keeps
    the order of the points.

    Attributes:
      floor_px: typical error of a point in which all members agree.
      slope: typical error over spread of points with a large spread.
    """

    floor_px: float
    slope: float

    def predicted_px(self, spread_px: Float[np.ndarray, "*points"]) -> Float[np.ndarray, "*points"]:
        """Returns the predicted error of points: half of the points with such a spread err by less."""
        return np.hypot(self.floor_px, self.slope * spread_px)


def spread_px(members_px: Float[np.ndarray, "m n k 2"]) -> Float[np.ndarray, "n k"]:
    """Returns sqrt((var x + var y) / 2) over the members of each point, with m in the denominator, in pixels."""
    return np.sqrt(members_px.astype(np.float64).var(axis=0).mean(axis=-1))


def fit_calibration(spread: Float[np.ndarray, "p"], error_px: Float[np.ndarray, "p"]) -> Calibration | None:
    """Returns the calibration whose predicted errors are nearest to the errors, None for fewer than `LEAST_POINTS`.

    It minimises the mean of |log(error) - log(predicted)|: half of the errors are then below the prediction, and a few
    large errors, or tiny ones, do not bend the curve. Found on a grid that is made finer around its best point.

    Args:
      spread: of labelled points, px.
      error_px: of their median.
    """
    if len(spread) < LEAST_POINTS:
        return None
    order = np.argsort(spread, kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, min(len(order), _MOST_POINTS)).astype(int)]
    log_error, square = np.log(np.maximum(error_px[chosen], _LEAST_PX)), np.square(spread[chosen])
    middle = np.array([0.0, 0.0])  # log of floor and of slope
    reach = np.log(1e3)
    for _ in range(_ROUNDS):
        offsets = np.linspace(-reach, reach, _GRID)
        floors, slopes = (np.exp(2 * (centre + offsets)) for centre in middle)
        predicted = np.log(floors[:, None, None] + slopes[:, None] * square) / 2
        cost = np.abs(predicted - log_error).mean(axis=-1)
        best = np.unravel_index(np.argmin(cost), cost.shape)
        middle = middle + offsets[list(best)]
        reach /= _ZOOM
    floor, slope = np.exp(middle).tolist()
    return Calibration(floor, slope)


def auroc(score: Float[np.ndarray, "p"], is_wrong: Bool[np.ndarray, "p"]) -> float | None:
    """Returns the area under the ROC curve: how often a wrong point has a larger score than a right one.

    A tie counts half. None if all points are right, or all are wrong.
    """
    wrong, right = int(is_wrong.sum()), int((~is_wrong).sum())
    if not wrong or not right:
        return None
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[inverse.reshape(-1)]
    return float((ranks[is_wrong].sum() - wrong * (wrong + 1) / 2) / (wrong * right))


def reliability(
    predicted_px: Float[np.ndarray, "p"],
    error_px: Float[np.ndarray, "p"],
    thresholds_px: Sequence[float] = THRESHOLDS_PX,
) -> list[dict[str, Any]]:
    """Returns for each threshold the points whose predicted error is smaller, and the share of them that err by less.

    The share is None without such points.
    """
    rows = []
    for threshold in thresholds_px:
        among = predicted_px < threshold
        share = float((error_px[among] < threshold).mean()) if among.any() else None
        rows.append({"threshold_px": threshold, "points": int(among.sum()), "share_below": share})
    return rows
