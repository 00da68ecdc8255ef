"""The Ensemble Kalman Smoother for linear models, of one view and of several: numpy, float64, linear in time.

The place of a body part is a random walk. The median over the networks of an ensemble observes it, and the variance
over them is the variance of that observation (Biderman, Whiteway et al. 2024). With one view the state is (x, y). With
several, it is a point of the subspace that a PCA of the body part's places in all views finds: the views correct each
other. The variance of a step is chosen by the likelihood. `docs/predict.md` lists where the published program differs.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from jaxpose.errors import UserError
from jaxpose.pose.inflation import inflated
from jaxpose.pose.pca_fit import principal_axes
from jaxpose.pose.smooth import Noise, is_used, median_of_known, smoothed
from jaxpose.pose.state_space import StateSpace, best_in, covariances, posterior
from jaxpose.poses import Poses

# Columns of the poses of an ensemble, as tables name them.
MEDIAN, VARIANCE = ("x_ens_median", "y_ens_median"), ("x_ens_var", "y_ens_var")
# Components of the PCA: the places of a body part are a point in space.
_LATENTS = 3
# The share of the frames, those of the smallest variance over the ensemble, that the PCA is fitted to, in percent.
_PERCENT_FITTED = 95.0
# Bounds of the logarithm of the variance of a step.
_LOG_STEPS = (-8.0, 8.0)
# Observation variances in px^2: where one network alone has a place, the least, and the least where the likelihood
# chooses the variance of a step.
_VAR_OF_ONE, _LEAST_VAR, _LEAST_TYPICAL_VAR = 1000.0, 1e-12, 1e-4
_LEAST_CONFIDENCE = 1e-5
# The smallest eigenvalue of a covariance over its largest.
_LEAST_SHARE = 1e-6


def combine(tables: Sequence[Poses]) -> Poses:
    """Returns the predictions of several networks for the same frames as one: medians, and the mean confidence.

    A network without a place does not count in median and variance. The columns `MEDIAN` have the medians again, and
    `VARIANCE` the variances over the networks, divided by the mean confidence.
    """
    points_px, confidence = map(np.stack, zip(*(table.one_animal() for table in tables), strict=True))
    last = np.moveaxis(points_px.astype(np.float64), 0, -1)
    known = np.isfinite(last)
    count = known.sum(-1)
    mean = np.where(known, last, 0).sum(-1) / np.maximum(count, 1)
    squares = np.square(np.where(known, last - mean[..., None], 0)).sum(-1)
    mean_confidence = confidence.astype(np.float64).mean(0)
    variance = squares / np.maximum(count, 1) / np.maximum(mean_confidence, _LEAST_CONFIDENCE)[..., None]
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

    Where the places of a body part in several views are too few for a PCA, each view is smoothed on its own; then the
    noise of its keypoints has `views` 1.

    Args:
      ensemble: as `combine` returned it; with several cameras, the keypoints of all views side by side.
      bodyparts: for each body part its keypoints, one for each view; each keypoint once.
      min_confidence: a median of less mean confidence is no observation.
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
    """The model of the places of a body part, o coordinates, but for the variance of a step.

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
