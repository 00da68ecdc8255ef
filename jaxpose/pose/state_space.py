"""The exact smoother of a linear state that is observed with noise: linear in time and memory, numpy, float64.

The model, for frames t = 0, 1, ...:

    x_0 ~ N(0, first_cov)
    x_t = transition x_(t-1) + N(0, step_cov)
    y_t = loadings x_t + N(0, diag(1 / precision_t))

Given all observations, the states have a normal distribution whose inverse covariance is block tridiagonal, so one
banded Cholesky factor holds the mean, the variances and the likelihood. This gives what a Kalman filter and its
backward pass give, but LAPACK does the steps in time.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float


@dataclasses.dataclass(frozen=True, eq=False)
class StateSpace:
    """The model: d coordinates of the state, o coordinates of an observation.

    Attributes:
      first_cov: (d, d) covariance of the first state, whose mean is 0.
      step_cov: (d, d) covariance of what a frame adds to the state.
      loadings: (o, d) an observation's mean for each unit of the state.
      transition: (d, d) from a frame to the next; the identity makes a random walk.
    """

    first_cov: np.ndarray
    step_cov: np.ndarray
    loadings: np.ndarray
    transition: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Posterior:
    """The states of n frames, given all observations.

    Attributes:
      mean: (n, d).
      log_likelihood: of the observations.
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
      observed: of n > 0 frames; any number, NaN too, where the precision is 0.
      precision: 1 / variance of the noise of each observed coordinate; 0 where nothing is observed.
    """
    count, size = len(observed), len(model.step_cov)
    seen = precision > 0
    observed = np.where(seen, observed, 0.0)
    factor = _factor(_blocks(model, precision), _coupling(model))
    weighted = (observed * precision) @ model.loadings
    # Imported where it is used, here and below: every training imports this module, and SciPy takes a tenth of a start.
    import scipy.linalg

    solved = scipy.linalg.cho_solve_banded((factor, True), weighted.ravel(), check_finite=False)
    mean = solved.reshape(count, size)
    # Errors and steps are summed as squares: a difference of two large sums would lose digits.
    misfit = float((precision * np.square(observed - mean @ model.loadings.T)).sum())
    misfit += _squares(mean[:1], model.first_cov) + _squares(mean[1:] - mean[:-1] @ model.transition.T, model.step_cov)
    log_determinants = 2 * np.log(factor[0]).sum() - np.log(precision[seen]).sum()
    log_determinants += _log_determinant(model.first_cov) + (count - 1) * _log_determinant(model.step_cov)
    known = int(seen.sum())
    return Posterior(mean, -0.5 * float(known * np.log(2 * np.pi) + log_determinants + misfit), misfit, known)


def covariances(model: StateSpace, precision: Float[np.ndarray, "n o"]) -> Float[np.ndarray, "n d d"]:
    """Returns the covariance of each state given all observations; arguments are those of `posterior`."""
    blocks = _blocks(model, precision)
    # What the frames before say of a state, and what those after it say; both count its own observation.
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
    blocks = np.einsum("no,oi,oj->nij", precision, model.loadings, model.loadings)
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
