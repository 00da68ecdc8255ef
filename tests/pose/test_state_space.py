"""The smoother of random walks against statsmodels' Kalman filter and smoother, which go frame by frame."""

import numpy as np
import pytest
from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother

from jaxpose.pose.smooth import StateSpace, best_in, covariances, posterior


def reference(walk: StateSpace, observed: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Means (n, d), covariances (n, d, d) and log likelihood of the same model."""
    count, size = observed.shape
    states = len(walk.step_cov)
    model = KalmanSmoother(k_endog=size, k_states=states, k_posdef=states)
    model.bind(np.ascontiguousarray(np.where(precision > 0, observed, np.nan)))
    noise = np.zeros((size, size, count))
    noise[range(size), range(size)] = np.where(precision > 0, 1 / np.where(precision > 0, precision, 1), 1.0).T
    model["design"], model["obs_cov"] = walk.loadings, noise
    model["transition"], model["selection"] = walk.transition, np.eye(states)
    model["state_cov"] = walk.step_cov
    model.initialize_known(np.zeros(states), walk.first_cov)
    found = model.smooth()
    return found.smoothed_state.T, np.moveaxis(found.smoothed_state_cov, -1, 0), float(found.llf)


def walk_of(rng: np.random.Generator, size: int, observed: int) -> StateSpace:
    roots = rng.normal(size=(2, size, size))
    first, step = roots @ roots.swapaxes(1, 2) + 0.1 * np.eye(size)
    transition = np.eye(size) if size == 1 else np.linalg.qr(rng.normal(size=(size, size)))[0] * 0.95
    return StateSpace(40 * first, step, rng.normal(size=(observed, size)), transition)


@pytest.mark.parametrize(("size", "observed", "count"), [(1, 1, 400), (2, 2, 100), (3, 4, 300), (3, 8, 50), (3, 4, 1)])
def test_means_variances_and_likelihood_are_those_of_statsmodels(size: int, observed: int, count: int) -> None:
    rng = np.random.default_rng(size)
    walk = walk_of(rng, size, observed)
    values = rng.normal(0, 20, (count, observed))
    precision = np.exp(rng.normal(0, 2, (count, observed)))
    # Single coordinates, and whole stretches at both ends and between, are not observed.
    precision[rng.random(precision.shape) < 0.2] = 0
    if count > 1:
        precision[:7] = precision[-5:] = precision[20:40] = 0
    found = posterior(walk, np.where(precision > 0, values, np.nan), precision)
    means, variances, likelihood = reference(walk, values, precision)
    np.testing.assert_allclose(found.mean, means, rtol=0, atol=1e-8)
    np.testing.assert_allclose(covariances(walk, precision), variances, rtol=1e-8, atol=1e-8)
    assert found.log_likelihood == pytest.approx(likelihood, rel=1e-10, abs=1e-8)
    assert found.observed == (precision > 0).sum()


def test_a_long_gap_is_a_straight_line_whose_variance_is_that_of_a_bridge() -> None:
    count, step = 100_001, 0.25
    precision = np.zeros((count, 1))
    precision[[0, -1]] = 1e12
    walk = StateSpace(np.array([[1e6]]), np.array([[step]]), np.eye(1), np.eye(1))
    values = np.linspace(3, 400, count)[:, None]
    found, frames = posterior(walk, values, precision), np.arange(count)
    np.testing.assert_allclose(found.mean, values, rtol=0, atol=1e-4)
    bridge = step * frames * (count - 1 - frames) / (count - 1)
    np.testing.assert_allclose(covariances(walk, precision)[:, 0, 0], bridge, rtol=1e-4, atol=1e-9)


def test_the_best_place_is_found_beside_a_worse_valley_and_at_a_bound() -> None:
    assert best_in(lambda x: (x - 3.3) ** 2 * ((x + 6) ** 2 + 1), -8.0, 8.0) == pytest.approx(3.3, abs=1e-3)
    assert best_in(lambda x: x, -8.0, 8.0) == pytest.approx(-8, abs=1e-3)
    assert best_in(lambda x: -x, -8.0, 8.0) == pytest.approx(8, abs=1e-3)
