"""Smooths the points of each keypoint over time: the exact smoother of a random walk, with linearised projections.

The place of a keypoint is a random walk in the world. Each prediction of a view is its projection with noise. The
projections are linearised at the current path, the path is smoothed, and so on; predictions far from the path lose
weight as in `triangulate`. The likelihood chooses the variance of a step.
"""

import concurrent.futures
import dataclasses

import numpy as np

from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.triangulation import LEAST_CONFIDENCE, OUTLIER, Points
from jaxpose.pose.smooth import StateSpace, best_in, busiest, covariances, posterior
from jaxpose.threads import allowed_cores
from jaxpose.triangulate.views import Views

_ROUNDS = 6
# In these rounds, the likelihood chooses the variance of a step; the first path is too rough for it.
_SEARCHED = (1, 2, 3)
# Bounds of its logarithm, relative to the variance of a triangulated point.
_LOG_RATIOS = (-14.0, 14.0)
# With fewer triangulated frames, a keypoint is not smoothed.
_FEWEST = 3
# The median of a squared step in three dimensions, in units of its variance.
_MEDIAN_OF_SQUARES = 2.366
# The standard deviation of the first place, relative to the extent of the path: it is unknown.
_UNKNOWN = 1e3


def smooth_points(views: Views, points: Points, noise_px: float) -> tuple[Points, np.ndarray]:
    """Returns smoothed points, and the standard deviation (k,) of a step; NaN for keypoints that are not smoothed.

    A smoothed keypoint has a place in every frame, also in frames that fewer than two views show.

    Args:
      views: t frames with k keypoints.
      points: n = t k points, as `triangulate` returned them.
      noise_px: the standard deviation of a good prediction.
    """
    shape = views.predicted_px.shape[1:3]
    trust = np.maximum(np.nan_to_num(views.confidence), LEAST_CONFIDENCE)
    var_px2 = noise_px**2 / trust[..., None] + views.var_px2
    normalised = views.cameras.undistort(views.flat[0]).reshape(views.predicted_px.shape)
    points_px = np.where(np.isfinite(normalised), views.predicted_px, np.nan)
    places = points.places.reshape(*shape, 3)
    # A third of the squared standard deviation is that of a coordinate.
    unit = np.nanmedian(points.sd) ** 2 / 3

    def of_keypoint(at: int) -> tuple[Points, float] | None:
        if np.isfinite(places[:, at, 0]).sum() < _FEWEST:
            return None
        return _Keypoint(views.cameras, points_px[:, :, at], var_px2[:, :, at]).smoothed(places[:, at], unit)

    # LAPACK releases Python's lock.
    with concurrent.futures.ThreadPoolExecutor(allowed_cores()) as pool:
        found = list(pool.map(of_keypoint, range(shape[1])))
    arrays = {field.name: getattr(points, field.name).copy() for field in dataclasses.fields(points)}
    steps = np.full(shape[1], np.nan)
    for at, one in enumerate(found):
        if one is None:
            continue
        of_one, steps[at] = one
        of_one.covariance[:] += _missed(of_one, points, slice(at, None, shape[1]))
        for name in ("places", "covariance"):
            arrays[name][at :: shape[1]] = getattr(of_one, name)
        for name in ("errors_px", "weights"):
            arrays[name][:, at :: shape[1]] = getattr(of_one, name)
    return Points(**arrays), steps


def _missed(path: Points, points: Points, frames: slice) -> np.ndarray:
    """Returns what the covariance (t, 3, 3) of a path lacks where the views agree on another place: its square.

    These are jumps far beyond the usual movement, which the path does not follow.

    Args:
      path: of a keypoint.
      points: as triangulated.
      frames: its points there.
    """
    agree = points.agree[:, frames]
    is_missed = (agree.sum(axis=0) >= 2) & ~(path.agree & agree).any(axis=0)
    off = np.where(is_missed[:, None], points.places[frames] - path.places, 0.0)
    return off[:, :, None] * off[:, None]


@dataclasses.dataclass(frozen=True, eq=False)
class _Keypoint:
    """What v cameras predict of a keypoint in t frames: pixels (v, t, 2) with their variances (v, t, 2)."""

    cameras: Cameras
    predicted_px: np.ndarray
    var_px2: np.ndarray

    def smoothed(self, places: np.ndarray, unit: float) -> tuple[Points, float]:
        """Returns the points, and the standard deviation of a step.

        Args:
          places: (t, 3), where the path starts; NaN where it is unknown.
          unit: the variance of a coordinate of a place.
        """
        known = np.flatnonzero(np.isfinite(places[:, 0]))
        frames = np.arange(len(places))
        path = np.stack([np.interp(frames, known, places[known, axis]) for axis in range(3)], axis=1)
        first_cov = (_UNKNOWN**2 * max(float(np.square(np.ptp(path, axis=0)).sum()), unit)) * np.eye(3)
        squares = np.square(np.diff(places[known], axis=0)).sum(axis=1) / np.diff(known)
        step_var = max(float(np.median(squares)) / _MEDIAN_OF_SQUARES, unit * np.exp(_LOG_RATIOS[0]))
        for round_ in range(_ROUNDS):
            centre = path.mean(axis=0)
            observed, precision, loadings = self._linearised(path, centre)
            if round_ in _SEARCHED:
                step_var = _step_var(first_cov, observed, precision, loadings, unit)
            walk = StateSpace(first_cov, step_var * np.eye(3), loadings, np.eye(3))
            path = posterior(walk, observed, precision).mean + centre
        errors_px, factors = self._errors(path)
        covariance = covariances(walk, precision)
        return Points(path, covariance, errors_px, factors), float(np.sqrt(step_var))

    def _errors(self, path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the errors (v, t) of a path (t, 3) in px, NaN where a view has no pixels, and the factors."""
        pixels, _, depth = self.cameras.linearised(path)
        off_px = self.predicted_px - pixels
        return np.linalg.norm(off_px, axis=-1), self._factors(off_px, depth)

    def _factors(self, off_px: np.ndarray, depth: np.ndarray) -> np.ndarray:
        """Returns how much (v, t) errors (v, t, 2) are trusted: 1 if small, 0 where a view has no pixels."""
        squares = (off_px**2 / self.var_px2).sum(axis=-1)
        return np.where((depth > 0) & np.isfinite(squares), 1 / (1 + squares / OUTLIER**2) ** 2, 0.0)

    def _linearised(self, path: np.ndarray, centre: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the observations, their precision (t, 2 v) and the loadings (t, 2 v, 3) at a path, from a centre."""
        pixels, slopes, depth = self.cameras.linearised(path)
        off_px = self.predicted_px - pixels
        factors = self._factors(off_px, depth)
        precision = factors[..., None] / self.var_px2
        observed = off_px + np.einsum("vtij,tj->vti", slopes, path - centre)
        slopes = np.where(factors[..., None, None] > 0, slopes, 0.0)
        count = len(path)
        observed, precision = (np.moveaxis(values, 0, 1).reshape(count, -1) for values in (observed, precision))
        return observed, precision, np.moveaxis(slopes, 0, 1).reshape(count, -1, 3)


def _step_var(
    first_cov: np.ndarray, observed: np.ndarray, precision: np.ndarray, loadings: np.ndarray, unit: float
) -> float:
    """Returns the variance of a step in one dimension that has the greatest likelihood."""
    part = busiest(np.any(precision > 0, axis=1))
    observed, precision, loadings = observed[part], precision[part], loadings[part]

    def cost(log_ratio: float) -> float:
        walk = StateSpace(first_cov, unit * np.exp(log_ratio) * np.eye(3), loadings, np.eye(3))
        return -posterior(walk, observed, precision).log_likelihood

    return unit * float(np.exp(best_in(cost, *_LOG_RATIOS)))
