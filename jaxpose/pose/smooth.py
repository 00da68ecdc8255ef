"""Fills gaps in the predictions of a video and smooths them: numpy, float64, linear in time.

A missing prediction, or one with too low a confidence, is replaced by a position from the frames around it. Single runs
are smoothed keypoint by keypoint, ensembles body part by body part.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float

from jaxpose.config import PredictConfig
from jaxpose.errors import UserError
from jaxpose.pose.pca import principal_axes
from jaxpose.poses import Poses

# The exact smoother of a linear state observed with noise: linear in time and memory, numpy, float64.
#
# The model, for frames t = 0, 1, ...:
#
#     x_0 ~ N(0, first_cov)
#     x_t = transition x_(t-1) + N(0, step_cov)
#     y_t = loadings_t x_t + N(0, diag(1 / precision_t))
#
# Given all observations, the states have a normal distribution whose inverse covariance is block tridiagonal, so one
# banded Cholesky factor holds the mean, the variances and the likelihood. The result is that of a Kalman filter and its
# backward pass, but LAPACK does the steps in time.


@dataclasses.dataclass(frozen=True, eq=False)
class StateSpace:
    """The model: d coordinates of the state, o coordinates of an observation.

    Attributes:
      first_cov: (d, d) covariance of the first state, whose mean is 0.
      step_cov: (d, d) covariance of the change of the state per frame.
      loadings: (o, d) an observation's mean for each unit of the state; (n, o, d) if frames differ.
      transition: (d, d) from a frame to the next; the identity makes a random walk.
    """

    first_cov: np.ndarray
    step_cov: np.ndarray
    loadings: np.ndarray
    transition: np.ndarray

    def observations(self, states: np.ndarray) -> np.ndarray:
        """Returns the means (n, o) of the observations of states (n, d)."""
        return states @ self.loadings.T if self.loadings.ndim == 2 else np.einsum("nod,nd->no", self.loadings, states)

    def onto_states(self, values: np.ndarray) -> np.ndarray:
        """Returns the transpose of `observations`, (n, d), applied to values (n, o)."""
        return values @ self.loadings if self.loadings.ndim == 2 else np.einsum("nod,no->nd", self.loadings, values)


@dataclasses.dataclass(frozen=True, eq=False)
class Posterior:
    """The states of n frames, given all observations.

    Attributes:
      mean: (n, d).
      log_likelihood: the observations'.
      misfit: the sum of the squares of all errors and steps, each in units of its standard deviation.
      observed: number of observed coordinates.
    """

    mean: np.ndarray
    log_likelihood: float
    misfit: float
    observed: int


def posterior(model: StateSpace, observed: Float[np.ndarray, "n o"], precision: Float[np.ndarray, "n o"]) -> Posterior:
    """Returns the means of the states and the likelihood of the observations.

    Args:
      model: the model.
      observed: for n > 0 frames; any number, even NaN, where the precision is 0.
      precision: 1 / variance of the noise of each observed coordinate; 0 where nothing is observed.
    """
    count, size = len(observed), len(model.step_cov)
    seen = precision > 0
    observed = np.where(seen, observed, 0.0)
    factor = _factor(_blocks(model, precision), _coupling(model))
    weighted = model.onto_states(observed * precision)
    # Imported where used, here and below: every training imports this module, and SciPy takes a tenth of the start.
    import scipy.linalg

    solved = scipy.linalg.cho_solve_banded((factor, True), weighted.ravel(), check_finite=False)
    mean = solved.reshape(count, size)
    # Errors and steps are summed as squares: a difference of two large sums would lose digits.
    misfit = float((precision * np.square(observed - model.observations(mean))).sum())
    misfit += _squares(mean[:1], model.first_cov) + _squares(mean[1:] - mean[:-1] @ model.transition.T, model.step_cov)
    log_determinants = 2 * np.log(factor[0]).sum() - np.log(precision[seen]).sum()
    log_determinants += _log_determinant(model.first_cov) + (count - 1) * _log_determinant(model.step_cov)
    known = int(seen.sum())
    return Posterior(mean, -0.5 * float(known * np.log(2 * np.pi) + log_determinants + misfit), misfit, known)


def covariances(model: StateSpace, precision: Float[np.ndarray, "n o"]) -> Float[np.ndarray, "n d d"]:
    """Returns the covariance of each state given all observations; arguments are those of `posterior`."""
    blocks = _blocks(model, precision)
    # The evidence of earlier frames about a state, and that of later ones; both count its own observation.
    before = _pivots(_factor(blocks, _coupling(model)), len(model.step_cov))
    after = _pivots(_factor(blocks[::-1], _coupling(model).T), len(model.step_cov))[::-1]
    return np.linalg.inv(before + after - blocks)


def best_in(cost: Callable[[float], float], low: float, high: float) -> float:
    """Returns where a smooth function is lowest between two bounds: the best of nine places, then Brent's method."""
    import scipy.optimize

    places = np.linspace(low, high, 9)
    costs = [cost(float(place)) for place in places]
    best = int(np.argmin(costs))
    bounds = float(places[max(best - 1, 0)]), float(places[min(best + 1, 8)])
    found = scipy.optimize.minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    return float(found.x) if found.fun <= costs[best] else float(places[best])


def _blocks(model: StateSpace, precision: np.ndarray) -> np.ndarray:
    """Returns the blocks (n, d, d) on the diagonal of the inverse covariance of all states."""
    step = np.linalg.inv(model.step_cov)
    loadings = "oi,oj" if model.loadings.ndim == 2 else "noi,noj"
    blocks = np.einsum(f"no,{loadings}->nij", precision, model.loadings, model.loadings)
    blocks[1:] += step
    blocks[:-1] += model.transition.T @ step @ model.transition
    blocks[0] += np.linalg.inv(model.first_cov)
    return blocks


def _coupling(model: StateSpace) -> np.ndarray:
    """Returns the blocks (d, d) below the diagonal: rows are the coordinates of the later frame."""
    return -np.linalg.inv(model.step_cov) @ model.transition


def _factor(blocks: np.ndarray, coupling: np.ndarray) -> np.ndarray:
    """Returns the Cholesky factor (2 d, n d) of a block tridiagonal matrix, in LAPACK's lower band form."""
    import scipy.linalg

    count, size = blocks.shape[:2]
    band = np.zeros((2 * size, count * size))
    for row in range(size):
        for column in range(size):
            if row >= column:
                band[row - column, column::size] = blocks[:, row, column]
            band[size + row - column, column : (count - 1) * size : size] = coupling[row, column]
    return scipy.linalg.cholesky_banded(band, overwrite_ab=True, lower=True, check_finite=False)


def _pivots(factor: np.ndarray, size: int) -> np.ndarray:
    """Returns the blocks (n, d, d) that are left on the diagonal once all earlier states are eliminated."""
    lower = np.zeros((factor.shape[1] // size, size, size))
    for row in range(size):
        for column in range(row + 1):
            lower[:, row, column] = factor[row - column, column::size]
    return lower @ lower.swapaxes(1, 2)


def _squares(steps: np.ndarray, covariance: np.ndarray) -> float:
    return float(np.einsum("ni,ij,nj->", steps, np.linalg.inv(covariance), steps))


def _log_determinant(covariance: np.ndarray) -> float:
    return float(np.linalg.slogdet(covariance)[1])


# For each keypoint the estimated variances in px^2, by name; None where nothing was estimated.
Noise = list[dict[str, float | None]]
# Columns of smoothed poses: the variances of x and y in px^2, NaN where unknown; and 1 where no prediction could be
# used. Tables use the same names.
POSTERIOR_VAR, FILLED = ("x_posterior_var", "y_posterior_var"), "filled"
# Number of frames whose windows are sorted together; the result does not depend on it.
_BLOCK = 2**16
# The variance of the first position relative to that of an observation; large, because the position is unknown.
_UNKNOWN = 1e12
# Shares of the velocity that may remain from frame to frame; the likelihood chooses one. Near 1, a filled gap would
# swing far beyond the positions before and after it.
_DAMPINGS = (0.0, 0.6, 0.9)
# Bounds of the logarithm of q / r. For fast movements, the likelihood alone would often find no noise.
_LOG_RATIOS = (-12.0, 3.0)
# The variance of movements not by the velocity, relative to q: not 0, so that the covariance can be inverted.
_PLACE_STEP = 1e-2
# Maximum number of frames of a keypoint from which the noise is estimated.
_SEARCHED = 20_000
_LEAST_CONFIDENCE = 1e-5
_LEAST_VAR_PX2 = 1e-8
# With fewer observations, no variance can be estimated.
_FEWEST = 3


def is_used(poses: Poses, min_confidence: float) -> Bool[np.ndarray, "n k"]:
    """Returns which predictions exist and have at least this confidence; NaN is too low."""
    points_px, confidence = poses.one_animal()
    return np.isfinite(points_px).all(-1) & (confidence >= min_confidence)


def smoothed(
    poses: Poses,
    points_px: Float[np.ndarray, "n k 2"],
    is_filled: Bool[np.ndarray, "n k"],
    var_px2: Float[np.ndarray, "n k 2"] | None = None,
) -> Poses:
    """Returns smoothed poses with more information: the columns `POSTERIOR_VAR`, if given, and `FILLED`."""
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
    """Returns the means and variances of a moving place, given noisy predictions (a Kalman smoother).

    The place moves by its velocity. From frame to frame, a share `damping` of the velocity stays, and a random change
    of variance q is added; damping 0 is a random walk. The variance of an observation is r / confidence. The damping, q
    and r, in px^2, maximise the likelihood; they are the same for x and y and for all frames of a keypoint.

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


def smooth_poses(poses: Poses, options: PredictConfig) -> tuple[Poses, Noise]:
    """Returns what `median` or `kalman` returns, as `options.smooth` says, from predictions that are sure enough."""
    used = is_used(poses, options.smooth_min_confidence)
    return median(poses, used, options.smooth_window) if options.smooth == "median" else kalman(poses, used)


def median_of_known(values: Float[np.ndarray, "*rest m"]) -> Float[np.ndarray, "*rest"]:
    """Returns the median over the last axis of the values that are not NaN; NaN where all are."""
    # NaN is sorted to the end.
    ordered, known = np.sort(values, axis=-1), np.isfinite(values).sum(-1)
    middle = np.stack([np.maximum(known - 1, 0) // 2, np.minimum(known // 2, values.shape[-1] - 1)], axis=-1)
    return np.take_along_axis(ordered, middle, axis=-1).mean(-1)


def busiest(used: Bool[np.ndarray, " n"]) -> slice:
    """Returns the stretch of at most `_SEARCHED` frames with the most used ones."""
    if len(used) <= _SEARCHED:
        return slice(None)
    before = np.concatenate([[0], np.cumsum(used)])
    first = int(np.argmax(before[_SEARCHED:] - before[:-_SEARCHED]))
    return slice(first, first + _SEARCHED)


@dataclasses.dataclass(frozen=True, eq=False)
class _Track:
    """The places (n, 2) of a keypoint around its mean, and their precision (n, 1) in units of 1 / r; 0 is unused."""

    places: np.ndarray
    precision: np.ndarray

    def busiest(self) -> "_Track":
        """Returns the stretch with the most used frames; its length bounds the time of the search for the noise."""
        part = busiest(self.precision[:, 0] > 0)
        return _Track(self.places[part], self.precision[part])

    def noise(self) -> tuple[float, float, float]:
        """Returns the damping, the ratio q / r and the variance r with the greatest likelihood."""
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


# Inflates the variances of views that contradict the others: numpy, float64.

# A view is far from the others above this squared Mahalanobis distance; its variance is then multiplied repeatedly
# until it is near. This many times raises even the smallest variance beyond the size of any image.
_FAR, _FACTOR, _MOST = 5.0, 10.0, 40
# In px^2, so that a view on which all networks agree does not decide alone.
_LEAST_INFLATION_VAR = 1e-6


def inflated(
    centred_px: Float[np.ndarray, "n o"], var_px2: Float[np.ndarray, "n o"], loadings: Float[np.ndarray, "o d"]
) -> Float[np.ndarray, "n o"]:
    """Returns the variances, larger where a view is far from the body part's place according to all views.

    The place is the point of the subspace with the least squared errors, in units of their standard deviations. With
    two views nothing says which of them is wrong, so both variances grow.

    Args:
      centred_px: x and y of each view relative to the mean; NaN where a view is unseen.
      var_px2: variances.
      loadings: the axes of the subspace as columns.
    """
    result, views = np.maximum(var_px2, _LEAST_INFLATION_VAR), centred_px.shape[1] // 2
    # With no more coordinates than the subspace has axes, the views cannot contradict each other.
    rows = np.flatnonzero(np.isfinite(centred_px).sum(1) > loadings.shape[1])
    for _ in range(_MOST):
        is_far = _distances(centred_px[rows], result[rows], loadings) > _FAR
        if views == 2:
            is_far |= is_far.any(1, keepdims=True)
        if not is_far.any():
            break
        rows, is_far = rows[is_far.any(1)], is_far[is_far.any(1)]
        result[rows] *= np.where(np.repeat(is_far, 2, axis=1), _FACTOR, 1.0)
    return result


def _distances(centred_px: np.ndarray, var_px2: np.ndarray, loadings: np.ndarray) -> np.ndarray:
    """Returns the squared Mahalanobis distance (n, v) of each view from the place of all views, 0 where unseen."""
    seen = np.isfinite(centred_px)
    places, variance = np.where(seen, centred_px, 0.0), np.where(seen, var_px2, 1.0)
    precision = np.where(seen, 1 / variance, 0.0)
    state_cov = np.linalg.inv(np.einsum("no,oi,oj->nij", precision, loadings, loadings))
    states = np.einsum("nij,nj->ni", state_cov, (precision * places) @ loadings)
    errors = (places - states @ loadings.T).reshape(len(places), -1, 2)
    of_view = loadings.reshape(-1, 2, loadings.shape[1])
    error_cov = np.einsum("vai,nij,vbj->nvab", of_view, state_cov, of_view)
    error_cov += variance.reshape(errors.shape)[..., None] * np.eye(2)
    distances = np.einsum("nva,nva->nv", errors, np.linalg.solve(error_cov, errors[..., None])[..., 0])
    return np.where(seen.reshape(errors.shape).all(-1), distances, 0.0)


# The Ensemble Kalman Smoother for linear models, of one view and of several: numpy, float64, linear in time.
#
# The position of a body part is a random walk. Its observation is the median over the networks of an ensemble, and the
# variance of that observation is the variance over them (Biderman, Whiteway et al. 2024). With one view the state is
# (x, y). With several, it is a point of the subspace that a PCA of the body part's positions in all views finds, so the
# views correct each other. The likelihood chooses the variance of a step. `docs/predict.md` lists the differences from
# the published program.

# Columns of the poses of an ensemble, as tables name them.
MEDIAN, VARIANCE = ("x_ens_median", "y_ens_median"), ("x_ens_var", "y_ens_var")
# Components of the PCA: the positions of a body part are points in space.
_LATENTS = 3
# The PCA is fitted to this percentage of the frames, those with the smallest variance over the ensemble.
_PERCENT_FITTED = 95.0
# Bounds of the logarithm of the variance of a step.
_LOG_STEPS = (-8.0, 8.0)
# Observation variances in px^2: the least where only one network has a position, and the least where the likelihood
# chooses the variance of a step.
_VAR_OF_ONE, _LEAST_VAR, _LEAST_TYPICAL_VAR = 1000.0, 1e-12, 1e-4
# The smallest eigenvalue of a covariance over its largest.
_LEAST_SHARE = 1e-6


def combine(tables: Sequence[Poses]) -> Poses:
    """Returns the predictions of several networks for the same frames as one: medians, and the mean confidence.

    A network without a place does not count in median and variance; without a confidence, it counts as 0 in the mean.
    The columns `MEDIAN` have the medians again, and `VARIANCE` the variances over the networks, divided by the mean
    confidence.
    """
    points_px, confidence = map(np.stack, zip(*(table.one_animal() for table in tables), strict=True))
    last = np.moveaxis(points_px.astype(np.float64), 0, -1)
    known = np.isfinite(last)
    count = known.sum(-1)
    mean = np.where(known, last, 0).sum(-1) / np.maximum(count, 1)
    squares = np.square(np.where(known, last - mean[..., None], 0)).sum(-1)
    is_known = np.isfinite(confidence).any(0)
    mean_confidence = np.where(is_known, np.nan_to_num(confidence.astype(np.float64)).mean(0), np.nan)
    # Not maximum: the larger of NaN and a number is that number here.
    variance = squares / np.maximum(count, 1) / np.fmax(mean_confidence, _LEAST_CONFIDENCE)[..., None]
    median, variance = median_of_known(last), np.where(count > 1, variance, _VAR_OF_ONE)
    columns = {**_columns(MEDIAN, median), **_columns(VARIANCE, variance)}
    return Poses.of_one_animal(tables[0].keypoint_names, tables[0].frames, median, mean_confidence, columns=columns)


def _columns(names: Sequence[str], values: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[..., axis] for axis, name in enumerate(names)}


def variance_px2(ensemble: Poses) -> Float[np.ndarray, "n k 2"]:
    """Returns the columns `VARIANCE`."""
    return np.stack([ensemble.columns[name][:, 0] for name in VARIANCE], axis=-1)


def smooth(ensemble: Poses, bodyparts: Sequence[Sequence[int]], min_confidence: float) -> tuple[Poses, Noise]:
    """Returns the smoothed keypoints, with the variances of the observations in px^2, inflated ones included.

    If a body part has too few places in several views for a PCA, each view is smoothed on its own, and the noise of its
    keypoints has `views` 1.

    Args:
      ensemble: as `combine` returned it; with several cameras, the keypoints of all views side by side.
      bodyparts: for each body part its keypoints, one for each view; each keypoint once.
      min_confidence: a median with less mean confidence is not an observation.
    """
    used = is_used(ensemble, min_confidence)
    medians_px, observed_var = ensemble.points_px[:, 0], variance_px2(ensemble)
    means, variances = np.full((2, *medians_px.shape), np.nan)
    given = medians_px, observed_var.copy()
    noise: Noise = [{"step_var_px2": None} for _ in used.T]
    for bodypart in bodyparts:
        for columns, model in _models(given, used, list(bodypart)):
            places, variance = _of_bodypart(given, used, columns)
            if len(columns) > 1:
                variance = inflated(places - model.centre, variance, model.loadings)
            step_var = _step_var(model, places, variance)
            mean, of_mean = _smooth(model, step_var, places, variance)
            shape = (len(used), len(columns), 2)
            means[:, columns], variances[:, columns] = mean.reshape(shape), of_mean.reshape(shape)
            observed_var[:, columns] = variance.reshape(shape)
            for column in columns:
                noise[column] = {"step_var_px2": step_var, "views": float(len(columns))}
    observed = {**ensemble.columns, **_columns(VARIANCE, observed_var[:, None])}
    ensemble = dataclasses.replace(ensemble, columns=observed)
    return smoothed(ensemble, means, ~used & np.isfinite(means[..., 0]), variances), noise


@dataclasses.dataclass(frozen=True, eq=False)
class _Model:
    """The model of the places of a body part, o coordinates, without the variance of a step.

    Attributes:
      centre: (o,) in frame pixels.
      loadings: (o, d) frame pixels for each unit of the state.
      first_cov: (d, d) of the first state.
      step_cov: (d, d) of a step, up to its factor.
    """

    centre: np.ndarray
    loadings: np.ndarray
    first_cov: np.ndarray
    step_cov: np.ndarray

    def walk(self, step_var: float) -> StateSpace:
        return StateSpace(self.first_cov, step_var * self.step_cov, self.loadings, np.eye(len(self.step_cov)))


def _models(
    given: tuple[np.ndarray, np.ndarray], used: np.ndarray, columns: list[int]
) -> list[tuple[list[int], _Model]]:
    """Returns a model of all views of a body part, or one of each view ever seen, with the keypoints of each."""
    if len(columns) > 1:
        try:
            return [(columns, _model_of_views(*_of_bodypart(given, used, columns)))]
        except UserError:
            pass  # too few places that all views see, or places that are all the same
    seen = [column for column in columns if used[:, column].any()]
    return [([column], _model_of_view(_of_bodypart(given, used, [column])[0])) for column in seen]


def _of_bodypart(
    given: tuple[np.ndarray, np.ndarray], used: np.ndarray, columns: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the places (n, o) of keypoints, NaN where they are not used, and their variances (n, o).

    `given` are the medians and variances (n, k, 2) of all keypoints.
    """
    medians_px, var_px2 = (values[:, columns] for values in given)
    shape = (len(used), 2 * len(columns))
    return np.where(used[:, columns, None], medians_px, np.nan).reshape(shape), var_px2.reshape(shape)


def _model_of_view(places: np.ndarray) -> _Model:
    known = places[np.isfinite(places).all(1)]
    return _Model(known.mean(0), np.eye(2), np.diag(np.maximum(known.var(0), _LEAST_TYPICAL_VAR)), np.eye(2))


def _model_of_views(places: np.ndarray, variance: np.ndarray) -> _Model:
    """Returns a model whose states are points of a PCA subspace.

    Raises:
      UserError: too few frames are seen in all views, or they are all the same.
    """
    complete, worst = np.isfinite(places).all(1), variance.max(1)
    if not complete.any():
        raise UserError("no frame is seen in all views")
    fitted = complete & (worst <= np.percentile(worst[complete], _PERCENT_FITTED))
    centre, axes, _ = principal_axes(places[fitted])
    loadings = axes[:_LATENTS].T
    states = (places - centre) @ loadings
    steps = np.diff(states, axis=0)[fitted[1:] & fitted[:-1]]
    step_cov = np.cov(steps.T) if len(steps) > 1 else np.eye(_LATENTS)
    values, vectors = np.linalg.eigh(step_cov)
    # The walk needs a covariance that can be inverted.
    values = np.maximum(values, _LEAST_SHARE * values.max()) if values.max() > 0 else np.ones(_LATENTS)
    step_cov = (vectors * values) @ vectors.T
    first_cov = np.diag(np.maximum(states[fitted].var(0), _LEAST_TYPICAL_VAR))
    return _Model(centre, loadings, first_cov, step_cov / np.abs(step_cov).max())


def _step_var(model: _Model, places: np.ndarray, variance: np.ndarray) -> float:
    """Returns the factor of the covariance of a step that has the greatest likelihood.

    The likelihood takes the median variance of each coordinate for all frames: the variance over a few networks is
    near 0 in many frames by chance, and such frames would demand large steps.
    """
    seen = np.isfinite(places)
    if seen.any(1).sum() < 2:
        return 1.0
    typical = median_of_known(np.where(seen, variance, np.nan).T)
    precision = np.where(seen, 1 / np.maximum(typical, _LEAST_TYPICAL_VAR), 0.0)
    centred = places - model.centre

    def cost(log_step: float) -> float:
        return -posterior(model.walk(float(np.exp(log_step))), centred, precision).log_likelihood

    return float(np.exp(best_in(cost, *_LOG_STEPS)))


def _smooth(model: _Model, step_var: float, places: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the means (n, o) and the variances (n, o) of the places in frame pixels."""
    precision = np.where(np.isfinite(places), 1 / np.maximum(variance, _LEAST_VAR), 0.0)
    walk = model.walk(step_var)
    mean = posterior(walk, places - model.centre, precision).mean @ model.loadings.T + model.centre
    of_states = covariances(walk, precision)
    return mean, np.einsum("oi,nij,oj->no", model.loadings, of_states, model.loadings)
