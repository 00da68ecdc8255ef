"""Robust triangulation: from the pixels of keypoints in several views to points of the world, with their covariance.

Each pair of views proposes a point, and the one that most of the confidence agrees with is the start. Levenberg's steps
then minimise the distances in pixels, by a loss that is flat for outliers (Geman and McClure's). Nothing is deleted: a
point that two views see gets a place, and its covariance says how sure it is.
"""

import concurrent.futures
import dataclasses
import itertools

import numpy as np

from jaxpose.cameras.cameras import Array, Cameras, Rig
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
# A view whose factor is larger agrees with a point.
AGREEING_WEIGHT = 0.25
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
        return self.weights > AGREEING_WEIGHT

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


def _best_pair(cameras: Rig, normalised: np.ndarray, weights: np.ndarray, noise_px: float) -> np.ndarray:
    """Returns the point (3, n) nearest to the rays of two views that agrees best with all views."""
    rays, count = rays_of(cameras, normalised), weights.shape[1]
    best, lowest = np.full((3, count), np.nan), np.full(count, np.inf)
    for first, second in itertools.combinations(range(len(weights)), 2):
        places, score = proposal(cameras, rays, normalised, weights, noise_px, first, second)
        is_better = score < lowest
        best, lowest = np.where(is_better, places, best), np.where(is_better, score, lowest)
    return best


def rays_of(cameras: Rig, normalised: Array) -> Array:
    """Returns the directions (3, v, n) in the world of places (v, n, 2) without distortion."""
    xp = normalised.__array_namespace__()
    places = xp.pad(normalised, [(0, 0), (0, 0), (0, 1)], constant_values=1)
    return xp.einsum("vji,vnj->ivn", cameras.rotations, places)


def proposal(
    cameras: Rig, rays: Array, normalised: Array, weights: Array, noise_px: Array, first: Array, second: Array
) -> tuple[Array, Array]:
    """Returns the points (3, n) nearest to the rays of two views, and their Cauchy loss (n,); inf if there is none.

    Args:
      cameras: v cameras.
      rays: from `rays_of`.
      normalised: places (v, n, 2) without distortion.
      weights: (v, n), 0 where a view has no place.
      noise_px: as in `triangulate`, or one for each view (v, 1).
      first, second: the views.
    """
    xp = weights.__array_namespace__()
    one, other = rays[:, first], rays[:, second]
    centre, other_centre = (cameras.centres[view][:, None] for view in (first, second))
    apart = centre - other_centre
    along, between, across = (one * one).sum(0), (one * other).sum(0), (other * other).sum(0)
    on_one, on_other = (one * apart).sum(0), (other * apart).sum(0)
    determinant = along * across - between * between
    depth = (between * on_other - across * on_one) / determinant
    other_depth = (along * on_other - between * on_one) / determinant
    places = (centre + other_centre + one * depth[None] + other * other_depth[None]) / 2
    is_pair = (weights[first] > 0) & (weights[second] > 0) & (depth > 0) & (other_depth > 0)
    x, y, z = cameras.camera_places(places.T)
    # In pixels of images without distortion.
    off_x, off_y = cameras.fx * (x / z - normalised[..., 0]), cameras.fy * (y / z - normalised[..., 1])
    squares = xp.where(z > 0, off_x * off_x + off_y * off_y, _BEHIND_PX2)
    score = (weights * xp.log1p(squares / (2 * noise_px) ** 2)).sum(axis=0)
    return places, xp.where(is_pair, score, xp.inf)


def _refined(
    cameras: Cameras, points_px: np.ndarray, weights: np.ndarray, noise_px: float, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns points (3, n) that minimise the loss, its curvature (6, n), the errors and the factors (v, n)."""
    state = Fit(cameras, points_px, weights, noise_px, start)
    moved, damping = np.arange(start.shape[1]), np.full(start.shape[1], 1e-4)
    places, hessian, gradient, loss = start.copy(), state.hessian, state.gradient, state.loss
    errors_px, factors = state.errors_px, state.factors
    for _ in range(_STEPS):
        if not len(moved):
            break
        step = solved(hessian[:, moved], gradient[:, moved], damping[moved])
        trial = Fit(cameras, points_px[:, moved], weights[:, moved], noise_px, places[:, moved] - step)
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


class Fit:
    """The loss of points (3, n) and its slopes, of numpy or of jax: hessian (6, n) and gradient (3, n).

    Args:
      cameras, weights, noise_px: as in `proposal`.
      points_px: (v, n, 2), finite.
      places: (3, n).

    Attributes:
      loss: (n,).
      hessian, gradient: as above, sums over the views.
      errors_px: (v, n), distances between the reprojections and the pixels; 0 where a view has none.
      factors: (v, n), how much the loss trusts each view.
    """

    def __init__(self, cameras: Rig, points_px: Array, weights: Array, noise_px: Array, places: Array) -> None:
        xp = places.__array_namespace__()
        self.places = places
        x, y, z = cameras.camera_places(places.T)
        inverse = 1 / z
        x, y = x * inverse, y * inverse
        u, v, ux, uy, vx, vy = cameras.pixels_and_slopes(x, y)
        off_u, off_v = u - points_px[..., 0], v - points_px[..., 1]
        squares = xp.where(weights > 0, xp.where(z > 0, off_u * off_u + off_v * off_v, _BEHIND_PX2), 0.0)
        scale = (OUTLIER * noise_px) ** 2
        self.errors_px, self.factors = xp.sqrt(squares), 1 / (1 + squares / scale) ** 2
        self.loss = (weights * squares / (squares + scale)).sum(axis=0)
        trust = xp.where(weights > 0, weights * self.factors, 0.0)
        # From the place in the camera to the place in the world.
        uz, vz = -(ux * x + uy * y), -(vx * x + vy * y)
        turned = cameras.rotations.transpose(1, 2, 0)[..., None]
        in_u = [(ux * turned[0, axis] + uy * turned[1, axis] + uz * turned[2, axis]) * inverse for axis in range(3)]
        in_v = [(vx * turned[0, axis] + vy * turned[1, axis] + vz * turned[2, axis]) * inverse for axis in range(3)]
        self.gradient = xp.stack([(trust * (in_u[a] * off_u + in_v[a] * off_v)).sum(axis=0) for a in range(3)])
        pairs = [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
        self.hessian = xp.stack([(trust * (in_u[a] * in_u[b] + in_v[a] * in_v[b])).sum(axis=0) for a, b in pairs])


def solved(hessian: Array, gradient: Array, damping: Array) -> Array:
    """Returns the step (3, n) of Levenberg for points with this curvature (6, n) and gradient (3, n)."""
    a, b, c, d, e, f = hessian
    more = 1 + damping
    return _product(_inverse((a * more, b, c, d * more, e, f * more)), gradient)


def _inverse(matrix: Array | tuple[Array, ...]) -> Array:
    """Returns the inverse (6, n) of symmetric matrices, each as its upper triangle (6, n)."""
    a, b, c, d, e, f = matrix
    first, second, third = d * f - e * e, c * e - b * f, b * e - c * d
    determinant = a * first + b * second + c * third
    xp = a.__array_namespace__()
    return xp.stack([first, second, third, a * f - c * c, b * c - a * e, a * d - b * b]) / determinant[None]


def _product(matrix: Array, vector: Array) -> Array:
    a, b, c, d, e, f = matrix
    x, y, z = vector
    xp = vector.__array_namespace__()
    return xp.stack([a * x + b * y + c * z, b * x + d * y + e * z, c * x + e * y + f * z])


def _matrix(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, e: np.ndarray, f: np.ndarray) -> np.ndarray:
    return np.stack([np.stack([a, b, c], -1), np.stack([b, d, e], -1), np.stack([c, e, f], -1)], axis=-2)
