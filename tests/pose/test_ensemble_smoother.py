"""The Ensemble Kalman Smoother against the same model in statsmodels, its PCA against scikit-learn's."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from jaxpose.pose.smooth import VARIANCE, StateSpace, combine, inflated, smooth, variance_px2
from jaxpose.poses import Poses
from tests.pose.smoothed_arrays import arrays
from tests.pose.test_state_space import reference


def networks(truth: np.ndarray, seed: int = 0, count: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Predictions (m, n, k, 2) of networks that differ, in some frames much, and their confidence (m, n, k)."""
    rng = np.random.default_rng(seed)
    spread = np.where(rng.random(truth.shape[:2]) < 0.2, 12.0, 1.0)[..., None]
    confidence = rng.uniform(0.6, 1, (count, *truth.shape[:2]))
    return truth + rng.normal(0, 1, (count, *truth.shape)) * spread, confidence


def ensemble_of(places: np.ndarray, confidence: np.ndarray) -> Poses:
    names, frames = list("abcd")[: places.shape[2]], range(places.shape[1])
    pairs = zip(places, confidence, strict=True)
    return combine([Poses.of_one_animal(names, frames, of_network, sure) for of_network, sure in pairs])


def medians_of(ensemble: Poses) -> tuple[np.ndarray, np.ndarray]:
    """The places (n, k, 2) and the confidence (n, k), which a test may change."""
    return ensemble.one_animal()


def walking(count: int, keypoints: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 150 + np.cumsum(rng.normal(0, 1.2, (count, keypoints, 2)), axis=0)


def seen_by(cameras: int, count: int) -> np.ndarray:
    """A body part that walks through a room, (n, cameras, 2) in the pixels of cameras without perspective."""
    rng = np.random.default_rng(cameras)
    room = np.cumsum(rng.normal(0, 1.5, (count, 3)), axis=0)
    return np.einsum("vax,nx->nva", rng.normal(0, 1, (cameras, 2, 3)), room) + 200


def test_networks_are_combined_as_numpy_does() -> None:
    places, confidence = networks(walking(60, 2))
    found = ensemble_of(places, confidence)
    median_px, mean_confidence = found.one_animal()
    np.testing.assert_allclose(median_px, np.median(places, axis=0), rtol=1e-12)
    np.testing.assert_allclose(variance_px2(found), places.var(axis=0) / confidence.mean(0)[..., None], rtol=1e-10)
    np.testing.assert_allclose(mean_confidence, confidence.mean(0), rtol=1e-12)
    # One network has no place, then all but one, then all.
    places[0, 0], places[1:, 1], places[:, 2] = np.nan, np.nan, np.nan
    found = ensemble_of(places, confidence)
    median_px, _ = found.one_animal()
    np.testing.assert_allclose(median_px[0], np.median(places[1:, 0], axis=0))
    assert (median_px[1] == places[0, 1]).all() and (variance_px2(found)[1:3] == 1000).all()
    assert np.isnan(median_px[2]).all()
    # Without a confidence, a network counts as 0; a point that no network is sure of has a variance as well.
    confidence[0, 0], confidence[:, 3] = np.nan, np.nan
    found = ensemble_of(places, confidence)
    np.testing.assert_allclose(found.one_animal()[1][0], confidence[1:, 0].sum(0) / len(confidence), rtol=1e-12)
    np.testing.assert_allclose(
        variance_px2(found)[0], places[1:, 0].var(axis=0) / found.one_animal()[1][0, :, None], rtol=1e-10
    )
    assert np.isnan(found.one_animal()[1][3]).all() and np.isfinite(variance_px2(found)).all()


def test_one_view_is_the_model_of_statsmodels() -> None:
    truth = walking(300, 3)
    ensemble = ensemble_of(*networks(truth))
    medians_px, confidence = medians_of(ensemble)
    confidence[100:130, 0] = 0.1
    medians_px[:6, 1] = np.nan
    for name in VARIANCE:
        ensemble.columns[name][50, 0, 2] = 0  # all networks agree
    smoothed = smooth(ensemble, [(0,), (1,), (2,)], 0.5)
    found, var_px2 = arrays(smoothed), variance_px2(ensemble)
    assert found.var_px2 is not None
    np.testing.assert_array_equal(variance_px2(smoothed[0]), var_px2)
    used = np.isfinite(medians_px[..., 0]) & (confidence >= 0.5)
    np.testing.assert_array_equal(found.is_filled, ~used)
    for point in range(3):
        seen, step = used[:, point], found.noise[point]["step_var_px2"]
        assert step
        places, variance = medians_px[:, point], var_px2[:, point]
        centre = places[seen].mean(0)
        first = np.diag(places[seen].var(0))

        def model(
            step: float, noise: np.ndarray, first=first, places=places, centre=centre, seen=seen
        ) -> tuple[np.ndarray, np.ndarray, float]:
            walk = StateSpace(first, step * np.eye(2), np.eye(2), np.eye(2))
            return reference(walk, places - centre, np.where(seen[:, None], 1 / noise, 0))

        means, variances, _ = model(step, np.maximum(variance, 1e-12))
        np.testing.assert_allclose(found.keypoints_frame_px[:, point], means + centre, rtol=0, atol=1e-8)
        wanted = np.diagonal(variances, axis1=1, axis2=2)
        np.testing.assert_allclose(found.var_px2[:, point], wanted, rtol=1e-8, atol=1e-10)
        typical = np.broadcast_to(np.median(variance[seen], axis=0), variance.shape)
        best = model(step, typical)[2]
        assert best > model(step * 1.02, typical)[2] and best > model(step / 1.02, typical)[2]
    errors = [np.linalg.norm(places - truth, axis=-1)[used] for places in (medians_px, found.keypoints_frame_px)]
    assert errors[1].mean() < 0.9 * errors[0].mean()


@pytest.mark.parametrize("cameras", [2, 3])
def test_several_views_are_the_pca_and_the_model_of_others(cameras: int) -> None:
    truth = seen_by(cameras, 400)
    ensemble = ensemble_of(*networks(truth, count=4))
    smoothed = smooth(ensemble, [tuple(range(cameras))], 0.5)
    found, observed_var, (medians_px, _) = arrays(smoothed), variance_px2(smoothed[0]), medians_of(ensemble)
    assert found.var_px2 is not None and not found.is_filled.any()
    # The frames of the smallest variance decide on the subspace.
    places, worst = medians_px.reshape(400, -1), variance_px2(ensemble).max((1, 2))
    good = worst <= np.percentile(worst, 95)
    pca = PCA(3).fit(places[good])
    states = pca.transform(places)
    steps = np.cov(np.diff(states, axis=0)[good[1:] & good[:-1]].T)
    step = found.noise[0]["step_var_px2"]
    assert step and found.noise[-1] == {"step_var_px2": step, "views": cameras}
    walk = StateSpace(np.diag(states[good].var(0)), step * steps / np.abs(steps).max(), pca.components_.T, np.eye(3))
    means, variances, _ = reference(walk, places - pca.mean_, 1 / observed_var.reshape(400, -1))
    wanted = means @ pca.components_ + pca.mean_
    np.testing.assert_allclose(found.keypoints_frame_px.reshape(400, -1), wanted, rtol=0, atol=1e-8)
    spread = np.einsum("do,nde,eo->no", pca.components_, variances, pca.components_)
    np.testing.assert_allclose(found.var_px2.reshape(400, -1), spread, rtol=1e-7)
    errors = [np.linalg.norm(places - truth, axis=-1).mean() for places in (medians_px, found.keypoints_frame_px)]
    assert errors[1] < 0.9 * errors[0]


def test_a_view_that_sees_nothing_is_filled_from_the_others() -> None:
    truth = seen_by(3, 300)
    ensemble = ensemble_of(*networks(truth))
    medians_px, confidence = medians_of(ensemble)
    confidence[100:160, 1] = 0.1
    medians_px[100:160, 1] += 90
    found, alone = (arrays(smooth(ensemble, parts, 0.5)) for parts in ([(0, 1, 2)], [(0,), (1,), (2,)]))
    hidden = np.zeros((300, 3), bool)
    hidden[100:160, 1] = True
    np.testing.assert_array_equal(found.is_filled, hidden)
    error, of_alone = (np.linalg.norm(each.keypoints_frame_px - truth, axis=-1)[hidden] for each in (found, alone))
    assert error.max() < 6 and error.mean() < 0.5 * of_alone.mean()


def test_views_without_common_frames_are_smoothed_alone() -> None:
    for lacking in (np.s_[:, 1], np.s_[::2, 1]):
        some = ensemble_of(*networks(seen_by(2, 50)))
        medians_px, _ = medians_of(some)
        medians_px[lacking] = np.nan
        if lacking == np.s_[::2, 1]:
            medians_px[1::2, 0] = np.nan
        smoothed = smooth(some, [(0, 1)], 0.5)
        found, alone = arrays(smoothed), arrays(smooth(some, [(0,), (1,)], 0.5))
        np.testing.assert_array_equal(found.keypoints_frame_px, alone.keypoints_frame_px)
        np.testing.assert_array_equal(variance_px2(smoothed[0]), variance_px2(some))
        assert found.noise[0]["views"] == 1


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_short_videos_and_points_that_never_move(count: int) -> None:
    still = np.full((3, count, 4, 2), 20.0)
    still[:, :, 3] = np.nan
    found = arrays(smooth(ensemble_of(still, np.full((3, count, 4), 0.9)), [(0, 1), (2,), (3,)], 0.5))
    assert found.var_px2 is not None
    np.testing.assert_allclose(found.keypoints_frame_px[:, :3], 20, atol=1e-6)
    assert np.isnan(found.keypoints_frame_px[:, 3]).all() and (found.var_px2[:, :3] >= 0).all()


def test_variances_grow_until_a_view_is_near_the_others() -> None:
    rng = np.random.default_rng(3)
    loadings = np.linalg.qr(rng.normal(size=(6, 3)))[0]
    places = rng.normal(0, 30, (40, 3)) @ loadings.T + rng.normal(0, 0.5, (40, 6))
    variance = np.full((40, 6), 1.0)
    places[7, 2:4] += 60
    places[9, 0:2] = np.nan
    found = inflated(places, variance, loadings)
    changed = found != variance
    assert changed[7, 2:4].all() and (found[7, 2:4] >= 100).all() and not np.delete(changed, 7, 0).any()
    # With two views, nothing says which is wrong.
    two = np.linalg.qr(rng.normal(size=(4, 3)))[0]
    places = rng.normal(0, 30, (40, 3)) @ two.T
    places[5, 0:2] += 60
    found = inflated(places, np.zeros((40, 4)), two)
    assert (found[5] > 1e-3).all() and (np.delete(found, 5, 0) <= 1e-6).all()


def test_the_distance_that_inflates_is_that_of_mahalanobis() -> None:
    rng = np.random.default_rng(4)
    loadings, places, variance = rng.normal(size=(6, 3)), rng.normal(0, 9, (30, 6)), rng.uniform(0.5, 20, (30, 6))
    is_far = np.zeros((30, 3), bool)
    for frame in range(30):
        precision = np.diag(1 / variance[frame])
        state_cov = np.linalg.inv(loadings.T @ precision @ loadings)
        error = places[frame] - loadings @ state_cov @ loadings.T @ precision @ places[frame]
        for view in range(3):
            part = slice(2 * view, 2 * view + 2)
            cov = np.diag(variance[frame, part]) + loadings[part] @ state_cov @ loadings[part].T
            is_far[frame, view] = error[part] @ np.linalg.solve(cov, error[part]) > 5
    assert is_far.any() and not is_far.all()
    first = inflated(places, variance, loadings) > variance
    # Every view that is far is inflated; once it is, another may become far.
    assert first[np.repeat(is_far, 2, axis=1)].all() and not first[~is_far.any(1)].any()
