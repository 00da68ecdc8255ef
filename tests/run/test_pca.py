"""The subspaces of poses that a run fits to its labels and measures predictions against: against scikit-learn."""

import dataclasses
from pathlib import Path

import cv2
import jax
import numpy as np
import pytest
from sklearn.decomposition import PCA

from jaxpose import config as c
from jaxpose.cluster.mesh import make_mesh
from jaxpose.data import dataset
from jaxpose.run.pca import load_subspaces, pose_errors_px, save_subspaces
from jaxpose.training.setup import fit_subspaces, make_setup

NAMES = ("nose", "ear", "tail")
MOMENTS = 40
Config = c.Config


def poses(views: int, seed: int = 0) -> np.ndarray:
    """Labels (views, moments, 3, 2) in pixels: points in space that every camera sees in its own way, and noise."""
    rng = np.random.default_rng(seed)
    space = rng.normal(size=(MOMENTS, len(NAMES), 3))
    cameras = rng.normal(size=(views, 3, 2))
    seen = np.einsum("mki,vij->vmkj", space, cameras)
    return 100 + 6 * seen + rng.normal(size=seen.shape) * 0.2


def make_project(
    folder: Path, labels_px: np.ndarray, views: tuple[str, ...], **losses
) -> tuple[Config, dataset.Dataset]:
    """A project of black frames with these labels, 32 of 40 of them for training, and what a run knows of it."""
    for view, of_view in zip(views or ("",), labels_px, strict=True):
        ending = f"_{view}" if view else ""
        images = folder / "labeled-data" / f"s{ending}"
        images.mkdir(parents=True)
        rows = [",".join(["scorer", *["me"] * 6])]
        rows.append(",".join(["bodyparts", *(name for name in NAMES for _ in "xy")]))
        rows.append(",".join(["coords", *["x", "y"] * 3]))
        for number, pose in enumerate(of_view):
            path = images / f"img{number:03d}.png"
            cv2.imwrite(str(path), np.zeros((200, 200, 3), np.uint8))
            rows.append(",".join([str(path.relative_to(folder)), *(repr(float(value)) for value in pose.ravel())]))
        (folder / f"CollectedData{ending}.csv").write_text("\n".join(rows) + "\n")
    config = Config(
        data=c.DataConfig(project=str(folder), views=views, input_width_px=32, input_height_px=32, train_share=0.8),
        augment=c.AugmentConfig(preset="none"),
        model=c.ModelConfig(backbone="resnet10", width=8, head_width=8),
        losses=c.LossesConfig(**losses),
    )
    config, project = dataset.prepare(c.resolve(config))
    return config, dataset.load(project, config)


def distances(fitted: PCA, samples: np.ndarray) -> np.ndarray:
    """How far each point (n, m) of samples (n, 2 m) lies from where the projection has it."""
    residual = samples - fitted.inverse_transform(fitted.transform(samples))
    return np.linalg.norm(residual.reshape(len(samples), -1, 2), axis=-1)


def test_one_camera(tmp_path: Path) -> None:
    labels = poses(1)
    losses = {"pca_singleview": c.PcaSingleviewConfig(weight=1.0, keypoints=("tail", "nose"), components=2)}
    config, data = make_project(tmp_path, labels, (), **losses)
    subspaces, messages = fit_subspaces(config, data)
    assert list(subspaces) == ["pca_singleview"] and not messages
    train = labels[0][data.rows("train")][:, [2, 0]].reshape(-1, 4)
    assert len(train) == 32
    wanted = PCA(2).fit(train)
    np.testing.assert_allclose(np.abs(subspaces["pca_singleview"].components), np.abs(wanted.components_), rtol=1e-6)
    save_subspaces(tmp_path, subspaces)
    predicted = poses(1, seed=5)[0]
    found = pose_errors_px(load_subspaces(tmp_path, config), predicted, None)["pca_singleview"]
    np.testing.assert_allclose(found[:, [2, 0]], distances(wanted, predicted[:, [2, 0]].reshape(-1, 4)), rtol=1e-6)
    assert np.isnan(found[:, 1]).all()


def test_a_lost_file_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    measured = c.LossesConfig(pca_singleview=c.PcaSingleviewConfig(keypoints=("nose", "tail")))
    for losses, told in ((measured, 1), (c.LossesConfig(), 0)):
        caplog.clear()
        assert load_subspaces(tmp_path, c.Config(losses=losses)) == {}
        assert caplog.text.count(f"{tmp_path}/pca.json is absent: no errors of poses are computed") == told


def test_several_cameras(tmp_path: Path) -> None:
    """A sample is a body part of a moment as all cameras see it, and its errors lie where the camera's rows lie."""
    labels = poses(3)
    views = ("top", "left", "right")
    losses = {"pca_multiview": c.PcaMultiviewConfig(weight=1.0, epsilon_percentile=50.0, epsilon_multiplier=2.0)}
    config, data = make_project(tmp_path, labels, views, **losses)
    subspaces, messages = fit_subspaces(config, data)
    assert list(subspaces) == ["pca_multiview"] and not messages
    moments = data.rows("train")[:32]
    assert moments.max() < MOMENTS and len(data.rows("train")) == 96

    def samples(poses_px: np.ndarray) -> np.ndarray:
        return poses_px.transpose(1, 2, 0, 3).reshape(-1, 6)

    wanted = PCA(3).fit(samples(labels[:, moments]))
    pca = subspaces["pca_multiview"]
    np.testing.assert_allclose(np.abs(pca.components), np.abs(wanted.components_), rtol=1e-6)
    np.testing.assert_allclose(pca.epsilon_px, 2 * np.median(distances(wanted, samples(labels[:, moments]))), rtol=1e-6)
    predicted = poses(3, seed=5)
    rows = np.arange(3 * MOMENTS).reshape(3, MOMENTS).T
    found = pose_errors_px(subspaces, predicted.reshape(-1, 3, 2), rows)["pca_multiview"]
    by_sample = distances(wanted, samples(predicted)).reshape(MOMENTS, 3, 3)
    np.testing.assert_allclose(found.reshape(3, MOMENTS, 3), by_sample.transpose(2, 0, 1), rtol=1e-6)
    # A moment without one view has no errors, and the errors of the others stay.
    rows[4, 1] = -1
    fewer = pose_errors_px(subspaces, predicted.reshape(-1, 3, 2), rows)["pca_multiview"]
    lacking = np.isin(np.arange(len(fewer)), [4, MOMENTS + 4, 2 * MOMENTS + 4])
    assert np.isnan(fewer[lacking]).all()
    np.testing.assert_array_equal(fewer[~lacking], found[~lacking])


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_labels_that_are_too_few_stop_a_loss_and_nothing_else(tmp_path: Path, weight: float) -> None:
    losses = {
        "pca_singleview": c.PcaSingleviewConfig(weight=weight, keypoints=NAMES),
        "pca_multiview": c.PcaMultiviewConfig(views=("nose", "ear")),
    }
    config, data = make_project(tmp_path, poses(1), (), **losses)
    data = dataclasses.replace(data, sets=np.where(np.arange(MOMENTS) < 5, "train", "test"))
    said = "5 labelled poses of 6 coordinates; a PCA needs at least as many"
    if weight:
        with pytest.raises(ValueError, match=f"losses.pca_singleview: {said}"):
            fit_subspaces(config, data)
    else:
        setup = make_setup(config, make_mesh(jax.devices()[:1]), data)
        assert list(setup.subspaces) == ["pca_multiview"] and setup.clips == {}
        (message,) = [message for message in setup.messages if "pca_singleview" in message]
        assert message.startswith(f"pca_singleview is not measured: losses.pca_singleview: {said}")
    config.losses.pca_singleview.components = 2
    for keypoints, views, said in (
        (("nose", "tail", "nose"), ("nose", "ear"), "losses.pca_singleview.keypoints: nose is named more than once"),
        ((), ("nose,ear", "tail,nose"), "losses.pca_multiview.views: nose is named more than once"),
    ):
        config.losses.pca_singleview.keypoints, config.losses.pca_multiview.views = keypoints, views
        with pytest.raises(ValueError, match=said):
            fit_subspaces(config, dataclasses.replace(data, sets=np.full(MOMENTS, "train")))
    config.losses.pca_singleview.keypoints = ("nose", "paw")
    with pytest.raises(ValueError, match="losses.pca_singleview.keypoints: no keypoint paw; there are nose, ear, tail"):
        fit_subspaces(config, data)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_pca_that_keeps_everything_is_of_no_use(tmp_path: Path, weight: float) -> None:
    losses = {"pca_multiview": c.PcaMultiviewConfig(weight=weight, views=("nose", "ear"), components=4)}
    config, data = make_project(tmp_path, poses(1), (), **losses)
    said = "losses.pca_multiview: components = 4 keeps all 4 components of a pose of 2 points, so the error of every "
    if weight:
        with pytest.raises(ValueError, match=said):
            fit_subspaces(config, data)
    else:
        subspaces, (message,) = fit_subspaces(config, data)
        assert not subspaces and message.startswith(f"pca_multiview is not measured: {said}")


def test_the_poses_of_several_cameras_are_never_mixed(tmp_path: Path) -> None:
    losses = {"pca_singleview": c.PcaSingleviewConfig(keypoints=NAMES)}
    config, data = make_project(tmp_path, poses(2), ("top", "left"), **losses)
    subspaces, messages = fit_subspaces(config, data)
    assert not subspaces and messages == ["pca_singleview is not measured: data.views names several cameras"]
