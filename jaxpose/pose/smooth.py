"""Fills gaps in the predictions of a video and smooths them: numpy, float64, linear in time.

A prediction that is missing, or whose confidence is too low, is not used; its place is filled from the frames around
it. Every keypoint is treated on its own.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from jaxpose.pose.state_space import Posterior, StateSpace, best_in, covariances, posterior

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


@dataclasses.dataclass(frozen=True, eq=False)
class Smoothed:
    """The smoothed keypoints of n frames.

    Attributes:
      keypoints_frame_px: (n, k, 2) x and y in frame pixels; NaN for a keypoint that is seen in no frame.
      is_filled: (n, k) whether a place was filled, because there was no prediction to use.
      var_px2: (n, k, 2) variance of x and y, NaN where it is unknown; None if the smoother has none.
      noise: for each keypoint the estimated variances in px^2, by name; None where nothing was estimated.
    """

    keypoints_frame_px: np.ndarray
    is_filled: np.ndarray
    var_px2: np.ndarray | None
    noise: list[dict[str, float | None]]


def is_used(
    keypoints_frame_px: Float[np.ndarray, "n k 2"], confidence: Float[np.ndarray, "n k"], min_confidence: float
) -> Bool[np.ndarray, "n k"]:
    """Returns which predictions exist and have at least a confidence; a confidence of NaN is too low."""
    return np.isfinite(keypoints_frame_px).all(-1) & (confidence >= min_confidence)


def median(keypoints_frame_px: Float[np.ndarray, "n k 2"], used: Bool[np.ndarray, "n k"], window: int) -> Smoothed:
    """Returns the median of x and of y over the used predictions in a window around each used frame.

    Other frames lie on the straight line between the medians before and after; before the first and after the last
    used frame, they have its median.

    Args:
      keypoints_frame_px: predictions of consecutive frames.
      used: as `is_used` returned it.
      window: frames, an odd number; the window is cut off at both ends of the video.
    """
    smooth = np.full(keypoints_frame_px.shape, np.nan)
    frames = np.arange(len(smooth))
    for point in np.flatnonzero(used.any(0)):
        seen = used[:, point]
        medians = _medians_around(np.where(seen[:, None], keypoints_frame_px[:, point], np.nan), window)
        for axis in range(2):
            smooth[:, point, axis] = np.interp(frames, frames[seen], medians[seen, axis])
    return Smoothed(smooth, ~used & used.any(0), None, [{} for _ in range(used.shape[1])])


def kalman(
    keypoints_frame_px: Float[np.ndarray, "n k 2"],
    confidence: Float[np.ndarray, "n k"],
    used: Bool[np.ndarray, "n k"],
) -> Smoothed:
    """Returns the means and variances of a place that moves on, given predictions with noise (a Kalman smoother).

    The place moves by its velocity. From frame to frame, a share `damping` of the velocity stays, and a random change
    of variance q is added; damping 0 is a random walk. The variance of an observation is r / confidence. The damping, q
    and r, in px^2, have the greatest likelihood; they are the same for x and y and for all frames of a keypoint.

    Args:
      keypoints_frame_px: predictions of consecutive frames.
      confidence: of each prediction, 0 to 1.
      used: as `is_used` returned it.
    """
    smooth, variance = np.full((2, *keypoints_frame_px.shape), np.nan)
    names = ("damping", "velocity_step_var_px2", "observation_var_px2")
    noise: list[dict[str, float | None]] = [dict.fromkeys(names) for _ in used.T]
    for point in np.flatnonzero(used.any(0)):
        seen = used[:, point]
        places = np.where(seen[:, None], keypoints_frame_px[:, point].astype(np.float64), np.nan)
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
    return Smoothed(smooth, ~used & used.any(0), variance, noise)


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
