"""PCA of poses: against scikit-learn, the figures of the real set, and the reference trainer's own tests and files."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes
from sklearn.decomposition import PCA

from jaxpose.config.losses import PcaMultiviewConfig, PcaSingleviewConfig
from jaxpose.pose.pca import (
    Pca,
    choose_components,
    columns_of,
    empirical_epsilon_px,
    errors_px,
    fit_multiview,
    fit_singleview,
    from_json,
    poses_of,
    principal_axes,
    residuals_px,
    scores,
    to_json,
)

TOP, BOTTOM = (0, 1, 2, 3, 4, 5, 6), (8, 9, 10, 11, 12, 13, 14)
SINGLE, MULTI = PcaSingleviewConfig(), PcaMultiviewConfig()
LABELS = "mirror-mouse-example/CollectedData.csv"


def read_points(file):
    table = pd.read_csv(file, header=[0, 1, 2], index_col=0)
    numbers = table.loc[:, table.columns.get_level_values(2).isin(["x", "y"])].to_numpy(np.float64)
    return numbers.reshape(len(table), -1, 2)


def random_poses(frames=60, keypoints=6, rank=3, noise=0.5, seed=0):
    """Poses (frames, keypoints, 2) near a flat subspace."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(frames, rank)) * [40, 20, 10][:rank]
    poses = latent @ rng.normal(size=(rank, 2 * keypoints)) + rng.uniform(0, 300, 2 * keypoints)
    return (poses + noise * rng.normal(size=poses.shape)).reshape(frames, keypoints, 2)


def diabetes_axes(spoil=()):
    data = load_diabetes().data.copy()
    for row, column in spoil:
        data[row, column] = np.nan
    return data, *principal_axes(data)


def as_pca(mean, axes, explained):
    return Pca(((0, 1, 2, 3, 4),), "none", mean, axes, explained, 0.0)


def test_without_missing_values_it_is_scikit_learns():
    data, mean, axes, explained = diabetes_axes()
    assert data.shape == (442, 10)
    theirs = PCA(svd_solver="full").fit(data)
    np.testing.assert_allclose(mean, theirs.mean_, atol=1e-16)
    np.testing.assert_allclose(axes, theirs.components_, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(explained, theirs.explained_variance_ratio_, rtol=1e-10)
    ours = scores(as_pca(mean, axes, explained), data[:, None])[:, 0]
    np.testing.assert_allclose(ours, theirs.transform(data), rtol=1e-10, atol=1e-12)


def test_a_row_without_any_value_changes_nothing_and_has_scores_of_zero():
    data, mean, axes, explained = diabetes_axes([(0, column) for column in range(10)])
    without = principal_axes(data[1:])
    for ours, wanted in zip((mean, axes, explained), without, strict=True):
        np.testing.assert_array_equal(ours, wanted)
    ours = scores(as_pca(mean, axes, explained), data[:, None])[:, 0]
    np.testing.assert_array_equal(ours[0], np.zeros(10))
    theirs = PCA(svd_solver="full").fit_transform(load_diabetes().data)
    np.testing.assert_allclose(ours[1:], theirs[1:], atol=1e-2)


@pytest.mark.parametrize("missing", [1, 13])
def test_few_missing_values_change_little(missing):
    """The tolerances of Lightning Pose's own tests; axes of small coordinates turn more."""
    cells = list(zip(range(13), [*range(10), 8, 7, 6], strict=True))[:missing]
    data, _, axes, explained = diabetes_axes(cells)
    theirs = PCA(svd_solver="full").fit(load_diabetes().data)
    large = np.abs(theirs.components_) > 0.05
    np.testing.assert_allclose(axes[large], theirs.components_[large], rtol=0.1 if missing == 1 else 1)
    assert not np.allclose(explained, theirs.explained_variance_ratio_, rtol=1e-10)
    np.testing.assert_allclose(explained[:7], theirs.explained_variance_ratio_[:7], rtol=1e-2)


def test_the_covariance_is_numpys_of_masked_arrays():
    poses = random_poses().reshape(60, -1)
    poses[np.random.default_rng(1).random(poses.shape) < 0.2] = np.nan
    mean, axes, explained = principal_axes(poses)
    covariance = np.ma.cov(np.ma.masked_invalid(poses), rowvar=False).data
    variances = np.linalg.eigvalsh(covariance)[::-1]
    assert variances.min() < 0
    variances = np.maximum(variances, 0)
    np.testing.assert_allclose(explained, variances / variances.sum(), rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(mean, np.nanmean(poses, 0), rtol=1e-14)
    found = axes @ covariance @ axes.T
    np.testing.assert_allclose(np.maximum(np.diag(found), 0), variances, rtol=1e-9, atol=1e-9)


def test_the_figures_of_the_real_set(real_data):
    labels = read_points(real_data / LABELS)
    single = fit_singleview(labels, TOP + BOTTOM, SINGLE)
    assert single.components.shape == (14, 28)
    errors = errors_px(single, labels)
    assert f"{np.nanmean(errors):.3f}" == "3.172"
    assert f"{single.epsilon_px:.3f}" == f"{np.nanpercentile(errors, 99):.3f}" == "11.772"
    two = fit_multiview(labels, (TOP, BOTTOM), MULTI)
    assert two.components.shape == (3, 4)
    np.testing.assert_allclose(two.explained_variance, [0.898, 0.061, 0.038, 0.003], atol=5e-4)
    errors = errors_px(two, labels)
    assert f"{np.nanmean(errors):.3f}" == "2.901"
    assert f"{two.epsilon_px:.3f}" == f"{np.nanpercentile(errors, 99):.3f}" == "10.925"


def test_the_reference_trainers_errors_are_found_with_its_pixels_and_better_ones_with_frame_pixels(real_data):
    """Lightning Pose fits in pixels of its 128 x 128 input and measures in frame pixels: its files are met so."""
    run = real_data / "lightning-pose-run"
    predicted = read_points(run / "predictions.csv")
    train = (pd.read_csv(run / "predictions.csv", header=[0, 1, 2], index_col=0).iloc[:, -1] == "train").to_numpy()
    labels = read_points(real_data / LABELS)[train]
    assert len(labels) == 72
    for name, pca_of in (
        ("singleview", lambda points: fit_singleview(points, TOP + BOTTOM, SINGLE)),
        ("multiview", lambda points: fit_multiview(points, (TOP, BOTTOM), MULTI)),
    ):
        theirs = pd.read_csv(run / f"predictions_pca_{name}_error.csv", index_col=0).iloc[:, :-1].to_numpy()
        ours = errors_px(pca_of(labels * [128 / 396, 128 / 406]), predicted)
        # float32 there.
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3)
        if name == "singleview":
            assert f"{np.nanmean(ours[train]):.1f}" == "74.2"
            assert f"{np.nanmean(errors_px(pca_of(labels), predicted)):.1f}" == "4.7"


@pytest.mark.parametrize(
    ("centering", "pose", "wanted"),
    [
        ("median", [0, 1, 1, 2, 2, 3], [-1, -1, 0, 0, 1, 1]),
        ("median", [2, -100, 3, 4, 4, 100], [-1, -104, 0, 0, 1, 96]),
        ("mean", [2, -100, 3, 6, 4, 100], [-1, -102, 0, 4, 1, 98]),
        ("none", [2, -100, 3, 6, 4, 100], [2, -100, 3, 6, 4, 100]),
    ],
)
def test_centering(centering, pose, wanted):
    points = np.array(pose, np.float64).reshape(1, 3, 2)
    np.testing.assert_array_equal(poses_of(points, ((0, 1, 2),), centering)[0, 0], wanted)
    on_device = poses_of(jnp.asarray(points, jnp.float32), ((0, 1, 2),), centering)
    assert on_device.dtype == jnp.float32
    np.testing.assert_array_equal(on_device[0, 0], wanted)


@pytest.mark.parametrize("centering", ["mean", "median"])
def test_a_centred_pose_has_no_error_that_depends_on_its_place(centering):
    labels = random_poses()
    options = dataclasses.replace(SINGLE, centering=centering, components=3)
    pca = fit_singleview(labels, range(6), options)
    moved = labels + np.random.default_rng(1).normal(size=(60, 1, 2)) * 100
    np.testing.assert_allclose(errors_px(pca, moved), errors_px(pca, labels), atol=1e-10)
    labels[3, 2] = np.nan
    np.testing.assert_array_equal(np.isnan(errors_px(pca, labels)).all(1), np.arange(60) == 3)
    spoilt, without = (fit_singleview(points, range(6), options) for points in (labels, np.delete(labels, 3, 0)))
    np.testing.assert_allclose(spoilt.components, without.components, atol=1e-12)


@pytest.mark.parametrize("views", [2, 3])
def test_each_body_part_in_all_views_is_a_sample(views):
    points = np.random.default_rng(0).random((12, 20, 2))
    columns = [[4 * view + part for part in range(4)] for view in range(views)]
    poses = poses_of(points, tuple(zip(*columns, strict=True)), "none")
    samples = poses.reshape(-1, poses.shape[-1])
    assert samples.shape == (48, 2 * views)
    np.testing.assert_array_equal(samples[4 * 5 + 2], points[5, [view[2] for view in columns]].ravel())


def test_views_of_several_cameras_lie_side_by_side():
    """Three views of one point in space: three components explain all, and an error shows in the view that has it."""
    rng = np.random.default_rng(0)
    space = rng.normal(size=(20, 4, 3)) * 50
    cameras = rng.normal(size=(3, 3, 2))
    labels = np.einsum("npi,vij->nvpj", space, cameras).reshape(20, 12, 2)
    views = [range(4 * view, 4 * view + 4) for view in range(3)]
    pca = fit_multiview(labels, views, MULTI)
    assert pca.components.shape == (3, 6) and pca.epsilon_px < 1e-9
    wrong = labels.copy()
    wrong[7, 5] += [30, 0]
    errors = errors_px(pca, wrong).reshape(20, 3, 4)
    touched = np.zeros((20, 3, 4), bool)
    touched[7, :, 1] = True
    assert errors[touched].min() > 0.1 and errors[~touched].max() < 1e-9
    assert errors[7, :, 1].argmax() == 1


def test_the_number_of_components():
    explained = PCA(svd_solver="full").fit(load_diabetes().data).explained_variance_ratio_
    assert [choose_components(explained, n, 0.99) for n in (2, 3, 4, 10)] == [2, 3, 4, 10]
    assert choose_components(explained, 0, 1.0) == 10
    assert choose_components(explained, 0, 0.95) == 8 == int((explained.cumsum() < 0.95).sum()) + 1
    assert choose_components(explained, 0, 0.2) == 1 < choose_components(explained, 0, 0.9)
    assert choose_components(np.array([0.5, 0.5, 0.0, 0.0]), 0, 1.0) == 4
    for components, share in ((11, 0.5), (-1, 0.5), (0, 1.04), (0, -0.2)):
        with pytest.raises(ValueError, match="explained_variance is|components is"):
            choose_components(explained, components, share)


def test_epsilon_is_a_percentile_of_the_errors():
    errors = np.arange(101, dtype=np.float64)
    assert empirical_epsilon_px(errors, 90.0, 1.0) == 90
    errors[1::2] = np.nan
    assert empirical_epsilon_px(errors, 90.0, 1.0) == 90
    assert empirical_epsilon_px(errors, 90.0, 1.5) == 135
    labels = random_poses()
    pca = fit_singleview(labels, range(6), dataclasses.replace(SINGLE, epsilon_percentile=50.0, components=3))
    np.testing.assert_allclose(pca.epsilon_px, np.median(errors_px(pca, labels)))
    given = fit_singleview(labels, range(6), dataclasses.replace(SINGLE, epsilon_px=0.25))
    assert given.epsilon_px == 0.25


def test_errors_are_those_of_scikit_learns_reconstruction():
    labels = random_poses(seed=2)
    pca = fit_singleview(labels, (5, 1, 3), dataclasses.replace(SINGLE, components=2))
    flat = labels[:, [5, 1, 3]].reshape(60, 6)
    theirs = PCA(2, svd_solver="full").fit(flat)
    other = random_poses(seed=3).astype(np.float32)
    flat = other[:, [5, 1, 3]].reshape(60, 6).astype(np.float64)
    wanted = (flat - theirs.inverse_transform(theirs.transform(flat))).reshape(60, 3, 2)
    errors = errors_px(pca, other)
    assert errors.dtype == np.float64
    np.testing.assert_allclose(errors[:, [5, 1, 3]], np.linalg.norm(wanted, axis=-1), rtol=1e-9)
    assert np.isnan(errors[:, [0, 2, 4]]).all()
    on_device = jax.jit(lambda points: residuals_px(pca, points))(jnp.asarray(other))
    assert on_device.dtype == jnp.float32
    np.testing.assert_allclose(on_device[:, 0], wanted, atol=2e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_pose_with_a_missing_point_has_no_error(value):
    labels = random_poses()
    single = fit_singleview(labels, range(5), dataclasses.replace(SINGLE, components=2))
    two = fit_multiview(labels, ((0, 1, 2), (3, 4, 5)), MULTI)
    labels[3, 1, 0] = value
    missing = np.isnan(errors_px(single, labels))
    np.testing.assert_array_equal(missing[:, :5].all(1), np.arange(60) == 3)
    assert missing[:, 5].all() and missing.sum() == 60 + 5
    np.testing.assert_array_equal(np.argwhere(np.isnan(errors_px(two, labels))), [[3, 1], [3, 4]])


def test_it_is_kept_as_json_exactly():
    labels = random_poses()
    for pca in (fit_singleview(labels, range(6), SINGLE), fit_multiview(labels, ((0, 1), (4, 5)), MULTI)):
        again = from_json(json.loads(json.dumps(to_json(pca), allow_nan=False)))
        assert (again.columns, again.centering, again.epsilon_px) == (pca.columns, pca.centering, pca.epsilon_px)
        for name in ("mean_px", "components", "explained_variance"):
            np.testing.assert_array_equal(getattr(again, name), getattr(pca, name))
        np.testing.assert_array_equal(errors_px(again, labels), errors_px(pca, labels))


def test_what_cannot_be_fitted_is_refused_with_the_reason():
    labels = random_poses()
    few = labels.copy()
    few[11:] = np.nan
    with pytest.raises(ValueError, match=r"losses.pca_singleview: 11 labelled poses of 12 coordinates; a PCA needs"):
        fit_singleview(few, range(6), SINGLE)
    apart = labels.copy()
    apart[:30, 1] = np.nan
    apart[31:, 4] = np.nan
    with pytest.raises(ValueError, match=r"points 1 and 4 of the pose \(counted from 0\) are labelled together in 1"):
        fit_singleview(apart, range(6), SINGLE)
    never = labels.copy()
    never[np.arange(60), np.arange(60) % 6] = np.nan
    with pytest.raises(ValueError, match="no labelled pose is complete.*epsilon_px"):
        fit_singleview(never, range(6), SINGLE)
    assert fit_singleview(never, range(6), dataclasses.replace(SINGLE, epsilon_px=2.0)).epsilon_px == 2
    with pytest.raises(ValueError, match="20 labelled poses are all the same"):
        fit_singleview(np.ones((20, 3, 2)), range(3), SINGLE)
    with pytest.raises(ValueError, match=r"components is 13; a pose of 12 coordinates has 1 to 12"):
        fit_singleview(labels, range(6), dataclasses.replace(SINGLE, components=13))
    for views in (((0, 1, 2), (3, 4)), ((0, 1, 2),), ()):
        with pytest.raises(ValueError, match=r"losses.pca_multiview.views: the views have .* two or more views"):
            fit_multiview(labels, views, MULTI)
    assert len(fit_singleview(labels, range(6), dataclasses.replace(SINGLE, components=11)).components) == 11
    median = dataclasses.replace(SINGLE, centering="median", components=10)
    assert len(fit_singleview(labels, range(6), median).components) == 10
    with pytest.raises(
        ValueError, match=r"pca_singleview: components = 2 keeps all 2 components of a pose of 2 points"
    ):
        fit_singleview(labels, range(2), dataclasses.replace(median, components=2))
    with pytest.raises(
        ValueError, match=r"pca_multiview: components = 4 keeps all 4 .* 2 points, .* or name more views"
    ):
        fit_multiview(labels, ((0, 1), (2, 3)), dataclasses.replace(MULTI, components=4))
    with pytest.raises(ValueError, match="each once"):
        fit_multiview(labels, ((0, 1), (1, 2)), MULTI)
    with pytest.raises(ValueError, match="each once"):
        fit_singleview(labels, (), SINGLE)


@pytest.mark.parametrize(
    ("name", "value", "centering", "size"),
    [
        ("components", 12, "none", 12), ("explained_variance", 1.0, "none", 12), ("components", 10, "mean", 10),
        ("explained_variance", 1.0, "mean", 10), ("components", 12, "median", 12),
    ],
)  # fmt: skip
def test_a_pca_that_keeps_all_components_is_refused(name: str, value: float, centering: str, size: int):
    said = rf"losses.pca_singleview: {name} = {value:g} keeps all {size} components of a pose of 6 points"
    options = dataclasses.replace(SINGLE, centering=centering, **{name: value})
    with pytest.raises(ValueError, match=f"{said}.*, so the error of every pose would be 0; .* name more key"):
        fit_singleview(random_poses(), range(6), options)


def test_keypoints_are_found_by_name():
    names = ("nose", "ear", "paw")
    assert columns_of(("paw", "nose"), names, "losses.pca_singleview.keypoints") == (2, 0)
    with pytest.raises(
        ValueError, match="losses.pca_multiview.views: ear, paw is named more than once; a keypoint has"
    ):
        columns_of(("paw", "ear", "nose", "paw", "ear"), names, "losses.pca_multiview.views")
    with pytest.raises(ValueError, match="losses.pca_singleview.keypoints: no keypoint tail; there are nose, ear, paw"):
        columns_of(("paw", "tail"), names, "losses.pca_singleview.keypoints")
