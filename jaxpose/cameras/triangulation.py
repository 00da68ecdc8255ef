"""Robust triangulation: from the pixels of keypoints in several views to points of the world, with their covariance.

Each pair of views proposes a point, and the one that most of the confidence agrees with is the start. Levenberg's steps
then minimise the distances in pixels, by a loss that is flat for outliers (Geman and McClure's). Nothing is deleted: a
point that two views see gets a place, and its covariance says how sure it is.
"""

import concurrent.futures
import dataclasses
import itertools

import numpy as np

from jaxpose.cameras.cameras import Cameras
from jaxpose.threads import allowed_cores

# Weight of a view whose confidence is 0 or unknown, so that two such views still give a point.
LEAST_CONFIDENCE = 1e-3
_STEPS = 20
# The search ends where a step changes no pixel by more than this.
_STILL_PX = 1e-5
# Points at once: their arrays fit into the cache of a core.
_POINTS_AT_ONCE = 4096
# An error of this many standard deviations has a quarter of the weight of a small one.
OUTLIER = 5.0
# Predictions are not more exact than this, even if those of a calibration agree.
_LEAST_NOISE_PX = 0.05
_MOST_MEASURED = 20_000
_AGREEING_WEIGHT = 0.25
_BEHIND_PX2 = 1e12


@dataclasses.dataclass(frozen=True)
class Points:
    """n points of the world, seen by v cameras.

    Attributes:
      places: (n, 3), NaN where fewer than two views have pixels.
      covariance: (n, 3, 3), NaN as places.
      errors_px: (v, n), distances between the reprojections and the pixels; NaN where a view has none.
      weights: (v, n), how much the loss trusts each view, 0 to 1, without its confidence; 0 where a view has none.
    """

    places: np.ndarray
    covariance: np.ndarray
    errors_px: np.ndarray
    weights: np.ndarray

    @property
    def sd(self) -> np.ndarray:
        """The standard deviation (n,) of a point: the root of the mean squared distance to its true place."""
        return np.sqrt(np.trace(self.covariance, axis1=1, axis2=2))

    @property
    def agree(self) -> np.ndarray:
        """Whether (v, n) a view's error is below `OUTLIER` standard deviations of a good prediction."""
        return self.weights > _AGREEING_WEIGHT

    @property
    def views(self) -> np.ndarray:
        """The number (n,) of views that agree with a point."""
        return self.agree.sum(axis=0)

    @property
    def error_px(self) -> np.ndarray:
        """The root of the mean squared reprojection error (n,) of the views that have pixels; NaN without any."""
        is_seen = np.isfinite(self.errors_px)
        total = np.where(is_seen, self.errors_px, 0) ** 2
        return np.where(is_seen.any(axis=0), np.sqrt(total.sum(axis=0) / np.maximum(is_seen.sum(axis=0), 1)), np.nan)


def triangulate(cameras: Cameras, points_px: np.ndarray, confidence: np.ndarray, noise_px: float) -> Points:
    """Returns the points of the world that the pixels of several views show.

    Args:
      cameras: v cameras.
      points_px: (v, n, 2); NaN where a view has no pixels.
      confidence: (v, n), 0 to 1; NaN counts as 0. It weighs the views of a point.
      noise_px: standard deviation of x and of y of a good prediction; see `measure_noise_px`.
    """
    weights = np.maximum(np.nan_to_num(confidence), LEAST_CONFIDENCE)
    firsts = range(0, max(points_px.shape[1], 1), _POINTS_AT_ONCE)
    cut = [slice(first, first + _POINTS_AT_ONCE) for first in firsts]
    # numpy releases Python's lock.
    with concurrent.futures.ThreadPoolExecutor(allowed_cores()) as pool:
        parts = list(pool.map(lambda part: _triangulated(cameras, points_px[:, part], weights[:, part], noise_px), cut))
    joined = [np.concatenate(arrays, axis) for arrays, axis in zip(zip(*parts, strict=True), (0, 0, 1, 1), strict=True)]
    return Points(*joined)


def measure_noise_px(cameras: Cameras, points_px: np.ndarray, confidence: np.ndarray) -> float:
    """Returns the standard deviation of x and of y of the pixels, from how well the views agree; NaN if unknown.

    The median keeps outliers from counting. Evenly spaced points stand for a long recording.
    """
    seen = np.isfinite(points_px[..., 0]).sum(axis=0)
    chosen = np.flatnonzero(seen >= 2)
    chosen = chosen[:: max(1, len(chosen) // _MOST_MEASURED)]
    noise_px = 2.0
    for _ in range(2):
        errors_px = triangulate(cameras, points_px[:, chosen], confidence[:, chosen], noise_px).errors_px
        # A point takes 3 of the 2 m numbers of m views, so its errors are smaller than the noise by this factor.
        freedom = np.maximum(2 * np.isfinite(errors_px).sum(axis=0), 4)
        squares = errors_px**2 * freedom / (freedom - 3)
        if not np.isfinite(squares).any():
            return np.nan
        noise_px = max(float(np.sqrt(np.nanmedian(squares) / (2 * np.log(2)))), _LEAST_NOISE_PX)
    return noise_px


def _triangulated(cameras: Cameras, points_px: np.ndarray, confidence: np.ndarray, noise_px: float) -> tuple:
    normalised = cameras.undistort(points_px)
    is_seen = np.isfinite(normalised[..., 0])
    weights = np.where(is_seen, confidence, 0.0)
    with np.errstate(all="ignore"):
        start = _best_pair(cameras, np.where(is_seen[..., None], normalised, 0.0), weights, noise_px)
        places, hessian, errors_px, factors = _refined(
            cameras, np.where(is_seen[..., None], points_px, 0.0), weights, noise_px, start
        )
        covariance = noise_px**2 * _matrix(*_inverse(hessian))
    has_place = (is_seen.sum(axis=0) >= 2) & np.isfinite(places[0])
    errors_px = np.where(is_seen & has_place, errors_px, np.nan)
    places = np.where(has_place, places, np.nan).T
    covariance = np.where(has_place[:, None, None], covariance, np.nan)
    return places, covariance, errors_px, np.where(is_seen & has_place, factors, 0.0)


def _best_pair(cameras: Cameras, normalised: np.ndarray, weights: np.ndarray, noise_px: float) -> np.ndarray:
    """Returns the point (3, n) nearest to the rays of two views that agrees best with all views."""
    rays = np.einsum("vji,vnj->ivn", cameras.rotations, np.pad(normalised, [(0, 0)] * 2 + [(0, 1)], constant_values=1))
    count = weights.shape[1]
    best, lowest = np.full((3, count), np.nan), np.full(count, np.inf)
    for first, second in itertools.combinations(range(len(weights)), 2):
        one, other = rays[:, first], rays[:, second]
        apart = (cameras.centres[first] - cameras.centres[second])[:, None]
        along, between, across = (one * one).sum(0), (one * other).sum(0), (other * other).sum(0)
        on_one, on_other = (one * apart).sum(0), (other * apart).sum(0)
        determinant = along * across - between * between
        depth = (between * on_other - across * on_one) / determinant
        other_depth = (along * on_other - between * on_one) / determinant
        middle = cameras.centres[first] + cameras.centres[second]
        places = (middle[:, None] + one * depth + other * other_depth) / 2
        is_pair = (weights[first] > 0) & (weights[second] > 0) & (depth > 0) & (other_depth > 0)
        score = _score(cameras, places, normalised, weights, noise_px)
        is_better = is_pair & (score < lowest)
        best, lowest = np.where(is_better, places, best), np.where(is_better, score, lowest)
    return best


def _score(
    cameras: Cameras, places: np.ndarray, normalised: np.ndarray, weights: np.ndarray, noise_px: float
) -> np.ndarray:
    """Returns Cauchy's loss (n,) of points (3, n), in pixels of images without distortion."""
    x, y, z = cameras.camera_places(places.T)
    off_x, off_y = cameras.fx * (x / z - normalised[..., 0]), cameras.fy * (y / z - normalised[..., 1])
    squares = np.where(z > 0, off_x * off_x + off_y * off_y, _BEHIND_PX2)
    return (weights * np.log1p(squares / (2 * noise_px) ** 2)).sum(axis=0)


def _refined(
    cameras: Cameras, points_px: np.ndarray, weights: np.ndarray, noise_px: float, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns points (3, n) that minimise the loss, its curvature (6, n), the errors and the factors (v, n)."""
    state = _Fit(cameras, points_px, weights, noise_px, start)
    moved, damping = np.arange(start.shape[1]), np.full(start.shape[1], 1e-4)
    places, hessian, gradient, loss = start.copy(), state.hessian, state.gradient, state.loss
    errors_px, factors = state.errors_px, state.factors
    for _ in range(_STEPS):
        if not len(moved):
            break
        step = _solved(hessian[:, moved], gradient[:, moved], damping[moved])
        trial = _Fit(cameras, points_px[:, moved], weights[:, moved], noise_px, places[:, moved] - step)
        is_better = trial.loss <= loss[moved]
        # How far the step moves the pixels, by the curvature.
        travelled = np.einsum("in,in->n", step, _product(hessian[:, moved], step))
        kept = moved[is_better]
        places[:, kept], loss[kept] = trial.places[:, is_better], trial.loss[is_better]
        hessian[:, kept], gradient[:, kept] = trial.hessian[:, is_better], trial.gradient[:, is_better]
        errors_px[:, kept], factors[:, kept] = trial.errors_px[:, is_better], trial.factors[:, is_better]
        damping[moved] *= np.where(is_better, 0.1, 10)
        moved = moved[travelled > _STILL_PX**2]
    return places, hessian, errors_px, factors


class _Fit:
    """The loss of points (3, n) and its slopes. A sum over the views: hessian (6, n) and gradient (3, n)."""

    def __init__(
        self, cameras: Cameras, points_px: np.ndarray, weights: np.ndarray, noise_px: float, places: np.ndarray
    ) -> None:
        self.places = places
        x, y, z = cameras.camera_places(places.T)
        inverse = 1 / z
        x, y = x * inverse, y * inverse
        u, v, ux, uy, vx, vy = cameras.pixels_and_slopes(x, y)
        off_u, off_v = u - points_px[..., 0], v - points_px[..., 1]
        squares = np.where(weights > 0, np.where(z > 0, off_u * off_u + off_v * off_v, _BEHIND_PX2), 0.0)
        scale = (OUTLIER * noise_px) ** 2
        self.errors_px, self.factors = np.sqrt(squares), 1 / (1 + squares / scale) ** 2
        self.loss = (weights * squares / (squares + scale)).sum(axis=0)
        trust = np.where(weights > 0, weights * self.factors, 0.0)
        # From the place in the camera to the place in the world.
        uz, vz = -(ux * x + uy * y), -(vx * x + vy * y)
        turned = cameras.rotations.transpose(1, 2, 0)[..., None]
        in_u = [(ux * turned[0, axis] + uy * turned[1, axis] + uz * turned[2, axis]) * inverse for axis in range(3)]
        in_v = [(vx * turned[0, axis] + vy * turned[1, axis] + vz * turned[2, axis]) * inverse for axis in range(3)]
        self.gradient = np.stack([(trust * (in_u[a] * off_u + in_v[a] * off_v)).sum(axis=0) for a in range(3)])
        pairs = [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
        self.hessian = np.stack([(trust * (in_u[a] * in_u[b] + in_v[a] * in_v[b])).sum(axis=0) for a, b in pairs])


def _solved(hessian: np.ndarray, gradient: np.ndarray, damping: np.ndarray) -> np.ndarray:
    damped = hessian.copy()
    damped[[0, 3, 5]] *= 1 + damping
    return _product(_inverse(damped), gradient)


def _inverse(matrix: np.ndarray) -> np.ndarray:
    """Returns the inverse (6, n) of symmetric matrices, each as its upper triangle (6, n)."""
    a, b, c, d, e, f = matrix
    first, second, third = d * f - e * e, c * e - b * f, b * e - c * d
    determinant = a * first + b * second + c * third
    return np.stack([first, second, third, a * f - c * c, b * c - a * e, a * d - b * b]) / determinant


def _product(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    a, b, c, d, e, f = matrix
    x, y, z = vector
    return np.stack([a * x + b * y + c * z, b * x + d * y + e * z, c * x + e * y + f * z])


def _matrix(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, e: np.ndarray, f: np.ndarray) -> np.ndarray:
    return np.stack([np.stack([a, b, c], -1), np.stack([b, d, e], -1), np.stack([c, e, f], -1)], axis=-2)
