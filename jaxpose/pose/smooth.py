"""Fills gaps in the predictions of a video and smooths them: numpy, float64, linear in time.

A prediction that is missing, or whose confidence is too low, is not used; its place is filled from the frames around
it. Every keypoint is treated on its own.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from jaxpose.pose.state_space import Posterior, StateSpace, best_in, covariances, posterior
from jaxpose.poses import Poses

# For each keypoint the estimated variances in px^2, by name; None where nothing was estimated.
Noise = list[dict[str, float | None]]
# Columns of smoothed poses: the variances of x and y in px^2, NaN where unknown; and 1 where there was no prediction to
# use. Their names are those in tables.
POSTERIOR_VAR, FILLED = ("x_posterior_var", "y_posterior_var"), "filled"
# Frames whose windows are sorted together; the result does not depend on it.
_BLOCK = 2**16
# The variance of the first place over that of an observation: it is unknown.
_UNKNOWN = 1e12
# Shares of the velocity that stay from frame to frame, of which the likelihood chooses one. Near 1, a filled stretch
# would swing out far beyond the places before and after it.
_DAMPINGS = (0.0, 0.6, 0.9)
# Bounds of the logarithm of q / r. Of fast movements, the likelihood alone would often say that there is no noise.
_LOG_RATIOS = (-12.0, 3.0)
# The variance of what a place moves besides its velocity, over q: not 0, so that the covariance can be inverted.
_PLACE_STEP = 1e-2
# Frames of a keypoint that the noise is estimated from, at most.
_SEARCHED = 20_000
_LEAST_CONFIDENCE = 1e-5
_LEAST_VAR_PX2 = 1e-8
# With fewer observations, no variance can be estimated.
_FEWEST = 3


def is_used(poses: Poses, min_confidence: float) -> Bool[np.ndarray, "n k"]:
    """Returns which predictions exist and have at least a confidence; a confidence of NaN is too low."""
    points_px, confidence = poses.one_animal()
    return np.isfinite(points_px).all(-1) & (confidence >= min_confidence)


def smoothed(
    poses: Poses,
    points_px: Float[np.ndarray, "n k 2"],
    is_filled: Bool[np.ndarray, "n k"],
    var_px2: Float[np.ndarray, "n k 2"] | None = None,
) -> Poses:
    """Returns smoothed poses with what they were made of: further columns `POSTERIOR_VAR`, if given, and `FILLED`."""
    variances = {} if var_px2 is None else {name: var_px2[:, None, :, axis] for axis, name in enumerate(POSTERIOR_VAR)}
    columns = {**poses.columns, **variances, FILLED: is_filled[:, None].astype(np.int64)}
    return dataclasses.replace(poses, points_px=points_px[:, None], columns=columns)


def median(poses: Poses, used: Bool[np.ndarray, "n k"], window: int) -> tuple[Poses, Noise]:
    """Returns the median of x and of y over the used predictions in a window around each used frame.

    Other frames lie on the straight line between the medians before and after; before the first and after the last
    used frame, they have its median.

    Args:
      poses: predictions of consecutive frames.
      used: as `is_used` returned it.
      window: frames, an odd number; the window is cut off at both ends of the video.

    Returns:
      What `smoothed` returns, and no noise of any keypoint.
    """
    points_px, _ = poses.one_animal()
    smooth = np.full(points_px.shape, np.nan)
    frames = np.arange(len(smooth))
    for point in np.flatnonzero(used.any(0)):
        seen = used[:, point]
        medians = _medians_around(np.where(seen[:, None], points_px[:, point], np.nan), window)
        for axis in range(2):
            smooth[:, point, axis] = np.interp(frames, frames[seen], medians[seen, axis])
    return smoothed(poses, smooth, ~used & used.any(0)), [{} for _ in range(used.shape[1])]


def kalman(poses: Poses, used: Bool[np.ndarray, "n k"]) -> tuple[Poses, Noise]:
    """Returns the means and variances of a place that moves on, given predictions with noise (a Kalman smoother).

    The place moves by its velocity. From frame to frame, a share `damping` of the velocity stays, and a random change
    of variance q is added; damping 0 is a random walk. The variance of an observation is r / confidence. The damping, q
    and r, in px^2, have the greatest likelihood; they are the same for x and y and for all frames of a keypoint.

    Args:
      poses: predictions of consecutive frames, with their confidence.
      used: as `is_used` returned it.

    Returns:
      What `smoothed` returns, and the noise of each keypoint, None where nothing was estimated.
    """
    points_px, confidence = poses.one_animal()
    smooth, variance = np.full((2, *points_px.shape), np.nan)
    names = ("damping", "velocity_step_var_px2", "observation_var_px2")
    noise: Noise = [dict.fromkeys(names) for _ in used.T]
    for point in np.flatnonzero(used.any(0)):
        seen = used[:, point]
        places = np.where(seen[:, None], points_px[:, point].astype(np.float64), np.nan)
        centre = places[seen].mean(0)
        precision = np.where(seen, np.maximum(confidence[:, point].astype(np.float64), _LEAST_CONFIDENCE), 0.0)
        track = _Track(places - centre, precision[:, None])
        is_known = seen.sum() >= _FEWEST
        damping, ratio, observation_var = track.busiest().noise() if is_known else (0.0, 1.0, np.nan)
        smooth[:, point] = track.mean(damping, ratio) + centre
        if is_known:
            of_places = covariances(_model(damping, ratio), track.precision)[:, :1, 0]
            variance[:, point] = observation_var * of_places
            noise[point] = dict(zip(names, (damping, ratio * observation_var, observation_var), strict=True))
    return smoothed(poses, smooth, ~used & used.any(0), variance), noise


def median_of_known(values: Float[np.ndarray, "*rest m"]) -> Float[np.ndarray, "*rest"]:
    """Returns the median over the last axis of the values that are not NaN; NaN where all are."""
    # NaN is sorted to the end.
    ordered, known = np.sort(values, axis=-1), np.isfinite(values).sum(-1)
    middle = np.stack([np.maximum(known - 1, 0) // 2, np.minimum(known // 2, values.shape[-1] - 1)], axis=-1)
    return np.take_along_axis(ordered, middle, axis=-1).mean(-1)


@dataclasses.dataclass(frozen=True, eq=False)
class _Track:
    """The places (n, 2) of a keypoint around its mean, and their precision (n, 1) in units of 1 / r; 0 is unused."""

    places: np.ndarray
    precision: np.ndarray

    def busiest(self) -> "_Track":
        """Returns the stretch with most used frames, of a length that bounds the time of the search for the noise."""
        if len(self.places) <= _SEARCHED:
            return self
        used = np.concatenate([[0], np.cumsum(self.precision[:, 0] > 0)])
        first = int(np.argmax(used[_SEARCHED:] - used[:-_SEARCHED]))
        return _Track(self.places[first : first + _SEARCHED], self.precision[first : first + _SEARCHED])

    def noise(self) -> tuple[float, float, float]:
        """Returns the damping, the ratio q / r and the variance r of the greatest likelihood."""
        found = []
        for damping in _DAMPINGS:
            log_ratio = best_in(lambda at, damping=damping: self._cost(damping, float(np.exp(at))), *_LOG_RATIOS)
            found.append((self._cost(damping, float(np.exp(log_ratio))), damping, float(np.exp(log_ratio))))
        _, damping, ratio = min(found)
        return damping, ratio, _observation_var(self._axes(damping, ratio))

    def mean(self, damping: float, ratio: float) -> np.ndarray:
        """Returns the smoothed places (n, 2)."""
        return np.stack([axis.mean[:, 0] for axis in self._axes(damping, ratio)], axis=1)

    def _cost(self, damping: float, ratio: float) -> float:
        """Returns minus the log likelihood with the best variance of an observation."""
        axes = self._axes(damping, ratio)
        known, misfit, r = (
            sum(axis.observed for axis in axes),
            sum(axis.misfit for axis in axes),
            _observation_var(axes),
        )
        # The likelihoods of the axes are those of r = 1.
        of_one = sum(axis.log_likelihood for axis in axes)
        return float(-of_one + known / 2 * np.log(r) + misfit / 2 * (1 / r - 1))

    def _axes(self, damping: float, ratio: float) -> list[Posterior]:
        model = _model(damping, ratio)
        return [posterior(model, self.places[:, axis : axis + 1], self.precision) for axis in range(2)]


def _observation_var(axes: Sequence[Posterior]) -> float:
    return max(sum(axis.misfit for axis in axes) / sum(axis.observed for axis in axes), _LEAST_VAR_PX2)


def _model(damping: float, ratio: float) -> StateSpace:
    """Returns the model of a place and its velocity, in units in which the variance of an observation is 1."""
    return StateSpace(
        first_cov=np.diag([_UNKNOWN, ratio / (1 - damping**2)]),
        step_cov=np.diag([_PLACE_STEP * ratio, ratio]),
        loadings=np.array([[1.0, 0.0]]),
        transition=np.array([[1.0, 1.0], [0.0, damping]]),
    )


def _medians_around(places: np.ndarray, window: int) -> np.ndarray:
    """Returns the median (n, 2) of the known places (n, 2) in a window around each frame."""
    half, medians = window // 2, np.empty_like(places, dtype=np.float64)
    padded = np.pad(places.astype(np.float64), ((half, half), (0, 0)), constant_values=np.nan)
    for first in range(0, len(places), _BLOCK):
        part = padded[first : first + _BLOCK + 2 * half]
        windows = np.lib.stride_tricks.sliding_window_view(part, window, axis=0)
        medians[first : first + _BLOCK] = median_of_known(windows)
    return medians
