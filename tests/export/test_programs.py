"""The program of each kind of network, through a file, beside the predictor of the same network."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxpose import config as c
from jaxpose.cluster.mesh import make_mesh, replicate
from jaxpose.errors import UserError
from jaxpose.export.command import COUNT, check_file, random_frames
from jaxpose.export.frame_fit import FrameFit, make_fit
from jaxpose.export.program import (
    frame_shape,
    in_precision,
    load_stablehlo,
    make_program,
    to_stablehlo,
)
from jaxpose.model import vit
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.model.pose_net import make_network
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.prediction.predictor import Found, Predictor
from jaxpose.run.load import LoadedNetwork
from tests.lively import lively

NAMES = ("nose", "ear", "tail")
SAME_SIZE = make_fit((32, 32), (32, 32), "pad")


def network_of(precision: str = "f32", boxes: str = "", **model: object) -> LoadedNetwork:
    """A network with weights that nobody trained, whose maps differ much from frame to frame."""
    config = c.Config(
        data=c.DataConfig(project="p", input_height_px=32, input_width_px=32, keypoint_names=NAMES, boxes=boxes),
        model=c.ModelConfig(**{"backbone": "resnet10", "width": 8, "head_width": 4} | model),
        train=c.TrainConfig(precision=precision),
    )
    graphdef, params, statistics = make_network(config.model, len(NAMES), precision, seed=0)
    if config.model.kind != "regression":
        params = lively(params)
    params, statistics = jax.tree.map(np.asarray, (params, statistics))
    return LoadedNetwork(config, graphdef, params, statistics, "random")


def predictor_of(network: LoadedNetwork) -> Predictor:
    mesh = make_mesh(jax.devices()[:1])
    runner = BatchRunner(network.config, network.graphdef, mesh, COUNT)
    return Predictor(network.config, runner, replicate(mesh, (network.params, network.statistics)), ["cpu"], {}, "")


def through_a_file(network: LoadedNetwork, fit: FrameFit) -> tuple:
    shape = frame_shape(network.config.model.kind, fit.frame_size_px)
    return load_stablehlo(to_stablehlo(make_program(network, fit), shape)), predictor_of(network)


@pytest.fixture(scope="module")
def plain() -> tuple:
    """The file of a network with heatmaps, and its predictor."""
    return through_a_file(network_of(), SAME_SIZE)


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        ({"kind": "regression"}, "f32"),
        ({"backbone": "dinov3_small", "heatmap_stride": 4}, "f32"),
        pytest.param({}, "bf16", marks=pytest.mark.slow),
        pytest.param({"backbone": "mobilenet_v2"}, "f32", marks=pytest.mark.slow),
        pytest.param({"decoding": "lightning_pose"}, "f32", marks=pytest.mark.slow),
        pytest.param({"kind": "heatmap_context"}, "f32", marks=pytest.mark.full),
        pytest.param({"backbone": "dinov2_small", "heatmap_stride": 4}, "f32", marks=pytest.mark.slow),
    ],
)
def test_a_file_gives_the_keypoints_of_the_run(model: dict, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dinov2_small", "dinov3_small"):
        small = dataclasses.replace(vit.FORMS[name], channels=16, heads=2, depth=1, grid=min(vit.FORMS[name].grid, 3))
        monkeypatch.setitem(vit.FORMS, name, small)
    network = network_of(precision, **model)
    run_file, predictor = through_a_file(network, SAME_SIZE)
    check = check_file(run_file, predictor, SAME_SIZE, "x.stablehlo")
    assert check.keypoints_px < (1e-4 if precision == "f32" else 0.1)
    assert check.grey_levels == 0 and check.resized_median_px <= check.keypoints_px


@pytest.mark.slow
def test_a_context_network_sees_five_consecutive_frames() -> None:
    network = network_of(kind="heatmap_context")
    run_file, predictor = through_a_file(network, SAME_SIZE)
    frames = random_frames(7, (32, 32))
    chunks = predictor.runner.video(*predictor.folded_weights, [frames[:4], frames[4:]], np.eye(2, 3))
    video = np.concatenate([part["keypoints_frame_px"] for part in chunks])
    windows = np.stack([frames[start : start + 5] for start in range(3)])
    keypoints, _ = run_file(windows)
    np.testing.assert_allclose(keypoints, video[2:5], rtol=0, atol=1e-4)
    # The neighbours matter.
    repeated, _ = run_file(np.repeat(frames[2:3, None], 5, axis=1))
    assert np.abs(repeated[0] - video[2]).max() > 1e-3


@pytest.mark.slow
def test_resized_frames_and_crops_give_nearly_the_same_keypoints() -> None:
    network = network_of()
    network.config.data.crop_px = (10, 4, 70, 60)
    fit = make_fit((96, 72), (32, 32), "pad", network.config.data.crop_px)
    run_file, predictor = through_a_file(network, fit)
    check = check_file(run_file, predictor, fit, "x.stablehlo")
    assert check.keypoints_px < 1e-3 and check.mean_grey_levels < 1e-3
    frames = random_frames(3, (96, 72))
    assert np.median(np.abs(run_file(frames)[0] - predictor.predict(frames)[0])) < 1e-3


def test_a_file_of_a_run_with_boxes_takes_what_lies_in_the_box(plain: tuple) -> None:
    run_file, predictor = plain[0], predictor_of(network_of(boxes="boxes/bbox.csv"))
    frame = random_frames(1, (80, 60))[0]
    expected, sure = predictor.predict(frame, (17, 9, 32, 32))
    keypoints, confidence = run_file(frame[None, 9:41, 17:49])
    np.testing.assert_allclose(keypoints[0] + (17, 9), expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(confidence[0], sure, rtol=0, atol=1e-5)


def test_a_file_with_other_keypoints_is_refused(plain: tuple) -> None:
    run_file, predictor = plain
    assert check_file(run_file, predictor, SAME_SIZE, "x.stablehlo").keypoints_px < 1e-4

    def moved(frames: np.ndarray) -> Found:
        keypoints, confidence = run_file(frames)
        return keypoints + 0.1, confidence

    def without_a_number(frames: np.ndarray) -> Found:
        keypoints, confidence = run_file(frames)
        return keypoints * np.nan, confidence

    with pytest.raises(UserError, match=r"x\.stablehlo is not written: .* keypoints differ by 0\.14"):
        check_file(moved, predictor, SAME_SIZE, "x.stablehlo")
    with pytest.raises(UserError, match="keypoints differ by nan px"):
        check_file(without_a_number, predictor, SAME_SIZE, "x.stablehlo")


def test_a_file_that_resizes_otherwise_is_refused() -> None:
    network = network_of()
    right = make_fit((64, 64), (32, 32), "pad")
    rows, columns = right.sampling
    fit = dataclasses.replace(right, sampling=(np.roll(rows, 1, axis=1), columns))
    run_file, predictor = through_a_file(network, fit)
    with pytest.raises(UserError, match="resized frames differ by [0-9.]+ grey levels on average"):
        check_file(run_file, predictor, fit, "x.stablehlo")


def test_a_network_in_another_precision_keeps_its_weights() -> None:
    with pinned_settings("f64"):
        network = in_precision(network_of("f64"), "f32")
    expected = network_of("f32")
    assert (network.config.train.precision, network.graphdef) == ("f32", expected.graphdef)
    for got, like in zip(*map(jax.tree.leaves, (network.params, expected.params)), strict=True):
        assert got.dtype == like.dtype
        np.testing.assert_allclose(got, like, rtol=1e-6)
