"""ONNX files: of a trained run by the verb, of each kind of network, and of layers and mistakes that no run has yet."""

import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import openvino
import pytest
from jax import lax
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from jaxpose import load
from jaxpose.convert import main as convert
from jaxpose.errors import UserError
from jaxpose.export.__main__ import main
from jaxpose.export.command import COUNT, check_file, random_frames
from jaxpose.export.frame_fit import FrameFit, make_fit
from jaxpose.export.onnx_file import load_onnx, to_onnx
from jaxpose.export.program import frame_shape, in_precision, make_leads, make_program
from jaxpose.model import vit
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.pose.pca import Pca
from jaxpose.prediction.predictor import Found
from jaxpose.run.identity import read_config, write_config
from jaxpose.run.load import LoadedNetwork
from tests.export.test_export import PAGE, assert_same
from tests.export.test_programs import network_of, predictor_of
from tests.small_run import environment

RESIZED = make_fit((96, 72), (32, 32), "pad")
AXES = ("NHWC", "HWIO", "NHWC")


@pytest.fixture(scope="module")
def folder(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mouse.onnx of the run."""
    folder = tmp_path_factory.mktemp("onnx")
    assert main(["--run", str(trained_run), "--out", str(folder / "mouse.onnx")]) == 0
    return folder


@pytest.fixture(scope="module")
def frames(trained_run: Path) -> np.ndarray:
    """The labelled images of the run, RGB."""
    images = sorted((trained_run.parent / "project" / "labeled-data").rglob("*.png"))[:6]
    return np.stack([cv2.imread(str(image))[..., ::-1] for image in images])


def onnx_of(network: LoadedNetwork, views: Pca | None = None, fit: FrameFit = RESIZED) -> bytes:
    with pinned_settings("f32"):
        shape = frame_shape(network.config.model.kind, fit.frame_size_px)
        return to_onnx(make_program(network, fit, views), shape, None, {})


def test_a_file_gives_the_keypoints_of_the_run(folder: Path, frames: np.ndarray, trained_run: Path) -> None:
    predictor = load(trained_run, devices=1, batch_size=6)
    assert_same(load_onnx((folder / "mouse.onnx").read_bytes()), frames, predictor, 1e-4)


def test_a_file_describes_itself(folder: Path) -> None:
    model = onnx.load(folder / "mouse.onnx")
    onnx.checker.check_model(model, full_check=True)
    # TensorRT takes bytes only where they become floats at once.
    assert (model.graph.node[0].op_type, list(model.graph.node[0].input)) == ("Cast", ["frames"])
    # Maps lie in the order of ONNX's convolutions from the first to the last one.
    assert [node.op_type for node in model.graph.node].count("Transpose") <= 2
    notes = json.loads((folder / "mouse.onnx.json").read_text())
    within = {one.key: one.value for one in model.metadata_props}
    assert json.loads(within.pop("keypoint_names")) == notes["keypoint_names"]
    assert within["weights_sha256"] == notes["weights_sha256"] and json.loads(within["frames"]) == notes["frames"]
    assert (notes["format"], notes["opset"], notes["precision"]) == ("ONNX", 18, "f32")
    assert notes["frames"]["shape"] == ["batch", 64, 64, 3] and "platforms" not in notes
    assert notes["check"]["keypoints_px"] < 1e-4


def test_the_example_runs_the_file_without_jaxpose(folder: Path, frames: np.ndarray, trained_run: Path) -> None:
    (code,) = re.findall(r"```python\n([^`]*onnxruntime[^`]+?)```", PAGE.read_text())
    cv2.imwrite(str(folder / "frame.png"), frames[2][..., ::-1])
    without = f"import sys; sys.modules['jaxpose'] = sys.modules['jax'] = None\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", without], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    predictor = load(trained_run, devices=1)
    keypoints, confidence = predictor.predict(frames[2])
    rows = zip(predictor.keypoint_names, keypoints.tolist(), confidence.tolist(), strict=True)
    assert done.stdout.splitlines() == [f"{name}: {x:.1f}, {y:.1f} ({sure:.2f})" for name, (x, y), sure in rows]


def test_a_file_in_float16_for_two_frames_at_once(trained_run: Path, frames: np.ndarray, tmp_path: Path) -> None:
    out = tmp_path / "mouse.onnx"
    assert main(["--run", str(trained_run), "--out", str(out), "--batch", "2", "--fp16"]) == 0
    model, notes = onnx.load(out), json.loads((tmp_path / "mouse.onnx.json").read_text())
    assert notes["frames"]["shape"] == [2, 64, 64, 3] and notes["precision"] == "f16"
    assert [side.dim_value for side in model.graph.input[0].type.tensor_type.shape.dim] == [2, 64, 64, 3]
    kernels = {node.input[1] for node in model.graph.node if node.op_type == "Conv"}
    types = [one.data_type for one in model.graph.initializer if one.name in kernels and len(one.dims) == 4]
    assert types and set(types) == {onnx.TensorProto.FLOAT16}
    expected, sure = load(trained_run, devices=1).predict(frames[:5])
    keypoints, confidence = load_onnx(out.read_bytes())(frames[:5])
    assert keypoints.dtype == confidence.dtype == np.float32 and sure.max() > 0.5
    assert np.abs(keypoints - expected)[sure >= 0.5].max() < 0.3
    np.testing.assert_allclose(confidence, sure, rtol=0, atol=0.05)
    # On a CPU, onnxruntime computes such a file in float32. Here, each result is rounded to float16.
    found = ReferenceEvaluator(model, new_ops=[GatherElements]).run(None, {"frames": frames[:2]}, intermediate=True)
    rounded = {found[node.output[0]].dtype for node in model.graph.node if node.op_type in ("Conv", "Relu")}
    assert rounded == {np.dtype(np.float16)}
    keypoints, confidence = found["keypoints"], found["confidence"]
    assert sure[:2].max() > 0.5 and np.abs(keypoints - expected[:2])[sure[:2] >= 0.5].max() < 0.3
    np.testing.assert_allclose(confidence, sure[:2], rtol=0, atol=0.05)


def test_a_comparison_with_another_precision_than_the_runs_is_named(
    trained_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_run, run)
    config = read_config(run / "config.json")
    write_config(
        run / "config.json", dataclasses.replace(config, train=dataclasses.replace(config.train, precision="bf16"))
    )
    assert main(["--run", str(run), "--out", str(tmp_path / "mouse.onnx")]) == 0
    said = capsys.readouterr().out + caplog.text
    assert "train.precision is bf16: above, the file was compared with the run's network in f32;" in said


class GatherElements(OpRun):
    """The operation without the limit of `ReferenceEvaluator`'s own, which takes at most 64 numbers along the axis."""

    op_domain = ""

    def _run(self, data: np.ndarray, places: np.ndarray, axis: int = 0) -> tuple[np.ndarray]:
        return (np.take_along_axis(data, places, axis),)


def in_openvino(content: bytes) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(io.BytesIO(content)), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda frames: tuple(compiled({"frames": frames})[name] for name in ("keypoints", "confidence"))


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "heatmap_context"},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"kind": "regression"}, marks=pytest.mark.slow),
        pytest.param({"head": "lightning_pose"}, marks=pytest.mark.slow),
        pytest.param({"head": "deconv", "output_stride": 16}, marks=pytest.mark.slow),
        pytest.param({"head": "deconv", "decoding": "deeplabcut", "output_stride": 16}, marks=pytest.mark.slow),
        pytest.param({"decoding": "lightning_pose"}, marks=pytest.mark.slow),
        pytest.param({"norm": "group"}, marks=pytest.mark.slow),
        pytest.param({"backbone": "vit_small", "heatmap_stride": 4}, marks=pytest.mark.slow),
        pytest.param({"backbone": "dinov2_small", "heatmap_stride": 4}, marks=pytest.mark.slow),
        pytest.param({"backbone": "dinov3_small", "heatmap_stride": 4}, marks=pytest.mark.slow),
        pytest.param({"backbone": "resnet50", "width": 4}, marks=pytest.mark.slow),
        pytest.param({"backbone": "mobilenet_v2", "width": 8}, marks=pytest.mark.slow),
    ],
)
def test_each_kind_of_network(model: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vit_small", "dinov2_small", "dinov3_small"):
        small = dataclasses.replace(vit.FORMS[name], channels=16, heads=2, depth=1, grid=min(vit.FORMS[name].grid, 3))
        monkeypatch.setitem(vit.FORMS, name, small)
    network = network_of(**model)
    predictor = predictor_of(network)
    content = onnx_of(network)
    for run in (load_onnx(content), in_openvino(content)):
        check = check_file(run, predictor, RESIZED, "x.onnx")
        assert check.keypoints_px < 1e-3 and check.confidence < 1e-5
    half = load_onnx(onnx_of(in_precision(network, "f16")))
    check_file(half, predictor, RESIZED, "x.onnx", precision="f16")


@pytest.mark.parametrize("frame_size_px", [(99, 101), pytest.param((80, 50), marks=pytest.mark.slow)])
def test_frames_of_many_sizes(frame_size_px: tuple[int, int]) -> None:
    """Blocks with a repeated edge, a blur, fixed point; openvino joins products of matrices with what follows."""
    network, fit = network_of(), make_fit(frame_size_px, (32, 32), "stretch")
    content, predictor = onnx_of(network, fit=fit), predictor_of(network)
    assert [node.op_type for node in onnx.load_from_string(content).graph.node][0] == "Cast"
    for run in (load_onnx(content), in_openvino(content)):
        check = check_file(run, predictor, fit, "x.onnx")
        assert check.keypoints_px < 1e-3 and check.grey_levels <= 1


@pytest.mark.slow
def test_views_that_agree() -> None:
    rng, network = np.random.default_rng(0), network_of(views_agree=True)
    axes = np.linalg.qr(rng.normal(size=(4, 3)))[0].T
    views = Pca(((0, 2),), "none", np.full(4, 16.0), axes, np.full(4, 0.25), 1.0)
    frames = random_frames(3, RESIZED.frame_size_px)
    with pinned_settings("f32"):
        expected, confidence = jax.jit(make_program(network, RESIZED, views))(frames)
        alone, _ = jax.jit(make_program(network, RESIZED))(frames)
    keypoints, sure = load_onnx(onnx_of(network, views))(frames)
    np.testing.assert_allclose(keypoints, expected, rtol=0, atol=1e-3)
    np.testing.assert_allclose(sure, confidence, rtol=0, atol=1e-5)
    assert np.abs(alone - expected).max() > 0.1


def test_layers_are_whole_operations() -> None:
    """Runtimes compute a depthwise convolution and a ReLU6 fast, but not the products and maxima in them."""
    for model, count, clips in (({"backbone": "mobilenet_v2", "width": 8}, 17, 35), ({}, 0, 0)):
        nodes = onnx.load_from_string(onnx_of(network_of(**model))).graph.node
        grouped = [node for node in nodes if any(one.name == "group" and one.i > 1 for one in node.attribute)]
        kinds = [node.op_type for node in nodes]
        assert (len(grouped), kinds.count("Clip")) == (count, clips)
        # Only the decoding compares numbers.
        assert kinds.count("Relu") > 3 and kinds.count("Max") < 25


def mobile(frames: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Layers of small networks: grouped and dilated convolutions, a depthwise one as nine products, and a ReLU6."""
    rng = np.random.default_rng(0)
    kernels = [jnp.asarray(rng.normal(size=(3, 3, *shape)), jnp.float32) for shape in ((1, 12), (3, 8), (1, 8))]
    x = frames.astype(jnp.float32) / 255
    x = lax.conv_general_dilated(x, kernels[0], (2, 2), ((1, 1), (1, 1)), None, None, AXES, feature_group_count=3)
    x = jnp.clip(x, 0, 6)
    x = lax.conv_general_dilated(x, kernels[1], (1, 1), ((2, 2), (2, 2)), None, (2, 2), AXES, feature_group_count=4)
    padded, (height, width) = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), x.shape[1:3]
    parts = [
        padded[:, row : row + height, column : column + width] * kernels[2][row, column][None, None]
        for row in range(3)
        for column in range(3)
    ]
    x = sum(parts[1:], start=parts[0])
    return x.mean((1, 2)).reshape(-1, 4, 2), x.max((1, 2))[:, :4]


def test_layers_of_small_networks() -> None:
    frames = random_frames(3, (32, 24))
    expected = mobile(jnp.asarray(frames))
    for batch in (None, 2):
        found = load_onnx(to_onnx(mobile, (24, 32, 3), batch, {}))(frames)
        for got, like in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, like, rtol=1e-5, atol=1e-5)


def test_an_operation_without_a_rule_is_named() -> None:
    def program(frames: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jnp.sin(frames.astype(jnp.float32))
        return x[:, 0, :, :2], x[:, 0, :, 0]

    with pytest.raises(UserError, match="cannot hold the operation sin as this network uses it: write a .stablehlo"):
        to_onnx(program, (4, 4, 3), None, {})


def test_only_keypoints_of_tied_maps_may_differ() -> None:
    network = network_of()
    head = network.params["head"]["layers"]
    # The first map is the same everywhere: each of its cells is the highest.
    last = head[max(head)]["kernel"].copy()
    last[..., 0] = 0
    layers = head | {max(head): head[max(head)] | {"kernel": last}}
    network = dataclasses.replace(network, params=network.params | {"head": {"layers": layers}})
    predictor, leads = predictor_of(network), make_leads(network, RESIZED)
    run_file = load_onnx(onnx_of(network))
    shares = np.asarray(jax.jit(leads)(random_frames(COUNT, RESIZED.frame_size_px)))
    assert np.all(shares[:, 0] < 1e-6) and np.any(shares[:, 2] > 1e-3)

    def moved(frames: np.ndarray, keypoint: int) -> Found:
        keypoints, confidence = run_file(frames)
        keypoints[:, keypoint] += 9
        return keypoints, confidence

    check = check_file(lambda frames: moved(frames, 0), predictor, RESIZED, "x.onnx", leads=leads)
    assert check.keypoints_px < 1e-3
    for keypoint, given in ((2, leads), (0, None)):
        with pytest.raises(UserError, match="keypoints differ by 12.7 px"):
            check_file(lambda frames, at=keypoint: moved(frames, at), predictor, RESIZED, "x.onnx", leads=given)


@pytest.mark.slow
def test_a_network_that_lightning_pose_trained_on_its_frames(real_data: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "runs" / "mouse", tmp_path / "mouse.onnx"
    project, checkpoint = real_data / "mirror-mouse-example", real_data / "lightning-pose-run" / "model.ckpt"
    assert convert(["lightning-pose", str(checkpoint), "--out", str(run), "--project", str(project)]) == 0
    assert main(["--run", str(run), "--out", str(out)]) == 0
    images = sorted((project / "labeled-data").rglob("*.png"))[:12]
    frames = np.stack([cv2.imread(str(image))[..., ::-1] for image in images])
    expected, confidence = load(run, devices=1, batch_size=4).predict(frames)
    keypoints, sure = load_onnx(out.read_bytes())(frames)
    np.testing.assert_allclose(keypoints, expected, rtol=0, atol=0.05)
    np.testing.assert_allclose(sure, confidence, rtol=0, atol=0.005)
