"""The spread of an ensemble as a measure of its error."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from jaxpose.pose.metrics import LEAST_POINTS, Calibration, auroc, fit_calibration, reliability, spread_px


def test_the_spread_is_the_root_of_the_mean_variance() -> None:
    members = np.random.default_rng(0).normal(size=(5, 4, 3, 2)).astype(np.float32)
    expected = np.sqrt((np.var(members[..., 0].astype(float), 0) + np.var(members[..., 1].astype(float), 0)) / 2)
    np.testing.assert_allclose(spread_px(members), expected, rtol=1e-12)


def test_the_fit_finds_the_curve_that_the_errors_follow() -> None:
    """Of errors around a curve, half below it: the fit is that curve, though one point in ten fails altogether."""
    rng, true = np.random.default_rng(0), Calibration(2.0, 1.5)
    spread = np.exp(rng.normal(0.5, 1.5, 4000))
    errors = true.predicted_px(spread) * np.exp(rng.normal(0, 0.6, 4000))
    # Failures in both directions leave the median where it was.
    errors[:200], errors[200:400] = 500.0, 0.0
    found = fit_calibration(spread, errors)
    assert found is not None
    assert found.floor_px == pytest.approx(2.0, rel=0.1) and found.slope == pytest.approx(1.5, rel=0.1)
    assert (errors < found.predicted_px(spread)).mean() == pytest.approx(0.5, abs=0.03)


def test_the_fit_is_as_good_as_a_general_optimizer() -> None:
    from scipy.optimize import minimize

    rng = np.random.default_rng(1)
    spread = np.exp(rng.normal(0, 1, 300))
    errors = np.hypot(1.0, 3.0 * spread) * np.exp(rng.normal(0, 0.5, 300))

    def cost(logs: np.ndarray) -> float:
        return float(np.abs(np.log(errors) - np.log(np.hypot(np.exp(logs[0]), np.exp(logs[1]) * spread))).mean())

    found = fit_calibration(spread, errors)
    assert found is not None
    best = minimize(cost, np.zeros(2), method="Nelder-Mead", options={"maxiter": 4000})
    assert cost(np.log([found.floor_px, found.slope])) <= best.fun + 2e-3


def test_few_points_give_no_calibration() -> None:
    assert fit_calibration(np.ones(LEAST_POINTS - 1), np.ones(LEAST_POINTS - 1)) is None
    equal = fit_calibration(np.zeros(LEAST_POINTS), np.full(LEAST_POINTS, 3.0))
    assert equal is not None and equal.predicted_px(np.zeros(1)) == pytest.approx(3.0, rel=0.02)


def test_the_area_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    score, is_wrong = rng.integers(0, 20, 200).astype(float), rng.random(200) < 0.3
    assert auroc(score, is_wrong) == pytest.approx(roc_auc_score(is_wrong, score), abs=1e-12)
    assert auroc(score, np.zeros(200, bool)) is None and auroc(score, np.ones(200, bool)) is None


def test_reliability_counts_points_below_a_threshold() -> None:
    rows = reliability(np.array([0.5, 1.5, 1.9, 30.0]), np.array([0.4, 3.0, 1.0, 1.0]), (0.1, 2.0))
    assert rows == [
        {"threshold_px": 0.1, "points": 0, "share_below": None},
        {"threshold_px": 2.0, "points": 3, "share_below": pytest.approx(2 / 3)},
    ]
