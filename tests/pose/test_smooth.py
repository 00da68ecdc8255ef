"""Smoothing the predictions of one run: against pandas and statsmodels, and what a video can lack."""

import warnings

import numpy as np
import pandas as pd
import pytest

from jaxpose.pose.smooth import StateSpace, is_used, kalman, median, median_of_known
from jaxpose.poses import Poses
from tests.pose.smoothed_arrays import arrays
from tests.pose.test_state_space import reference


def tracks(count: int, seed: int = 0, keypoints: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True places (n, k, 2), predictions with noise, and confidences: a quarter is low, with wild places."""
    rng = np.random.default_rng(seed)
    truth = 200 + np.cumsum(rng.normal(0, 0.3, (count, keypoints, 2)), axis=0)
    confidence = np.where(rng.random((count, keypoints)) < 0.25, 0.1, rng.uniform(0.6, 1, (count, keypoints)))
    noise = rng.normal(0, 1.5, truth.shape) + (confidence < 0.5)[..., None] * rng.normal(0, 80, truth.shape)
    return truth, truth + noise, confidence


def poses_of(predicted: np.ndarray, confidence: np.ndarray) -> Poses:
    return Poses.of_one_animal(list("abcd")[: predicted.shape[1]], range(len(predicted)), predicted, confidence)


def test_the_median_is_that_of_pandas_and_gaps_are_straight_lines() -> None:
    _, predicted, confidence = tracks(200)
    confidence[:9, 0] = confidence[-4:, 0] = confidence[50:70, 0] = 0.1
    predicted[30:33] = np.nan
    used = is_used(poses_of(predicted, confidence), 0.5)
    for window in (1, 5, 9):
        found = arrays(median(poses_of(predicted, confidence), used, window))
        for point in range(3):
            for axis in range(2):
                values = pd.Series(predicted[:, point, axis]).where(used[:, point])
                rolled = values.rolling(window, center=True, min_periods=1).median().where(used[:, point])
                wanted = rolled.interpolate("linear", limit_direction="both")
                np.testing.assert_allclose(found.keypoints_frame_px[:, point, axis], wanted, rtol=1e-12)
        assert (found.is_filled == ~used).all() and found.var_px2 is None


def test_blocks_do_not_change_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    _, predicted, confidence = tracks(200)
    used = is_used(poses_of(predicted, confidence), 0.5)
    whole = arrays(median(poses_of(predicted, confidence), used, 7)).keypoints_frame_px
    monkeypatch.setattr("jaxpose.pose.smooth._BLOCK", 13)
    assert (arrays(median(poses_of(predicted, confidence), used, 7)).keypoints_frame_px == whole).all()


@pytest.mark.parametrize("moves", ["by chance", "on"])
def test_kalman_has_the_greatest_likelihood_and_the_means_of_statsmodels(moves: str) -> None:
    truth, predicted, confidence = tracks(400)
    if moves == "on":
        path = 60 * np.sin(np.arange(400)[:, None, None] / np.array([[[9.0, 14.0], [11.0, 7.0], [17.0, 12.0]]]))
        truth, predicted = truth + path, predicted + path
    used = is_used(poses_of(predicted, confidence), 0.5)
    found = arrays(kalman(poses_of(predicted, confidence), used))
    assert found.var_px2 is not None
    for point in range(3):
        damping, step, noise = found.noise[point].values()
        assert damping is not None and step and noise and (damping > 0.5 if moves == "on" else damping < 0.8)
        centre = predicted[used[:, point], point].mean(0)

        def model(step: float, noise: float, point: int = point, centre=centre, damping=damping) -> list[tuple]:
            transition = np.array([[1, 1], [0, damping]])
            # With the 1e12 of the smoother, a filter that goes frame by frame loses digits at the start.
            first, steps = np.diag([1e8 * noise, step / (1 - damping**2)]), np.diag([step / 100, step])
            space = StateSpace(first, steps, np.array([[1.0, 0.0]]), transition)
            precision = np.where(used[:, point], confidence[:, point] / noise, 0)[:, None]
            return [reference(space, (predicted[:, point] - centre)[:, axis, None], precision) for axis in range(2)]

        def likelihood(step: float, noise: float, model=model) -> float:
            return sum(found[2] for found in model(step, noise))

        best = likelihood(step, noise)
        for factor in (0.98, 1.02):
            assert likelihood(step * factor, noise) < best > likelihood(step, noise * factor)
        for axis, (means, variances, _) in enumerate(model(step, noise)):
            moved = found.keypoints_frame_px[:, point, axis] - centre[axis]
            np.testing.assert_allclose(moved, means[:, 0], rtol=0, atol=1e-6)
            np.testing.assert_allclose(found.var_px2[:, point, axis], variances[:, 0, 0], rtol=1e-6)
    errors = [np.linalg.norm(places - truth, axis=-1) for places in (predicted, found.keypoints_frame_px)]
    assert errors[1][used].mean() < 0.75 * errors[0][used].mean()
    assert errors[1][~used].mean() < 3
    # The variance says how wrong the places are.
    share = np.square(found.keypoints_frame_px - truth) / found.var_px2
    assert 0.7 < share.mean() < 1.4


def test_fast_movements_do_not_make_predictions_certain() -> None:
    rng = np.random.default_rng(1)
    truth = np.cumsum(rng.normal(0, 4, (400, 1, 2)).cumsum(0) * 0.3, axis=0)
    predicted, confidence = truth + rng.normal(0, 0.6, truth.shape), np.full((400, 1), 0.9)
    found = arrays(kalman(poses_of(predicted, confidence), is_used(poses_of(predicted, confidence), 0.5)))
    assert found.var_px2 is not None
    assert 0.2 < (np.square(found.keypoints_frame_px - truth) / found.var_px2).mean() < 5


def test_a_long_gap_is_nearly_a_straight_line() -> None:
    rng = np.random.default_rng(0)
    predicted = 5 * np.cumsum(rng.normal(0, 1, (30_000, 1, 2)), axis=0)
    predicted[25_000:] += np.arange(5_000)[:, None, None]
    confidence = np.full((30_000, 1), 0.9)
    confidence[100:25_000] = 0
    used = is_used(poses_of(predicted, confidence), 0.5)
    found = arrays(kalman(poses_of(predicted, confidence), used))
    ends = found.keypoints_frame_px[[99, 25_000], 0]
    line = np.linspace(*ends, 24_902)
    assert np.abs(found.keypoints_frame_px[99:25_001, 0] - line).max() < 10 * 5
    assert found.var_px2 is not None and (found.var_px2 > 0).all()
    assert found.var_px2[12_000, 0, 0] > 1000 * found.var_px2[50, 0, 0]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 40])
@pytest.mark.parametrize("method", ["median", "kalman"])
def test_short_videos_unseen_keypoints_and_still_ones(method: str, count: int) -> None:
    predicted, confidence = np.full((count, 4, 2), 7.5), np.full((count, 4), 0.9)
    predicted[:, 1] = np.nan  # never predicted
    confidence[:, 2] = 0.2  # never sure
    confidence[1:, 3] = np.nan  # once
    poses = poses_of(predicted, confidence)
    used = is_used(poses, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = arrays(median(poses, used, 5) if method == "median" else kalman(poses, used))
    assert np.isnan(found.keypoints_frame_px[:, [1, 2]]).all() and not found.is_filled[:, [1, 2]].any()
    np.testing.assert_allclose(found.keypoints_frame_px[:, [0, 3]], 7.5, atol=1e-6)
    assert not found.is_filled[:1].any() and not found.is_filled[:, 0].any() and found.is_filled[1:, 3].all()


def test_all_that_is_known_counts_in_a_median() -> None:
    values = np.array([[3.0, np.nan, 1.0, 2.0], [np.nan, 5.0, np.nan, 7.0], [np.nan] * 4])
    np.testing.assert_array_equal(median_of_known(values), [2.0, 6.0, np.nan])
