"""What a step, a run and a prediction do, counted without a clock: a change that makes them slower fails here.

The compilations of a run are counted in tests/test_train.py, what crosses devices in a loop in
tests/steps/test_parallel.py.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax._src.array import ArrayImpl

from benchmarks.collectives import collectives
from benchmarks.gpu import forward_flops
from benchmarks.host_cost import lower_step
from jaxpose import config as c
from jaxpose import predict
from jaxpose.cluster import mesh
from jaxpose.model.pose_net import make_network
from jaxpose.prediction import batch_runner
from jaxpose.steps.predict_step import build_predict
from jaxpose.video import video as reading
from tests import small_run
from tests.painted_videos import write
from tests.parallel import CLIP, Trainer, make_config
from tests.test_entry import HEAVY, verb_without

SIDE_PX, BATCH = 128, 8
MIB = 2**20


@pytest.mark.slow
def test_a_step_computes_no_more_than_its_convolutions_and_keeps_little() -> None:
    network = make_network(c.ModelConfig(backbone="resnet18", norm="sync"), 17, "f32", 0)
    # Adam of optax takes a power of mixed types.
    with jax.numpy_dtype_promotion("standard"):
        lowered = lower_step(network, "resnet18", "sync", 1, 1, SIDE_PX, BATCH)
    step = lowered.compile({"xla_backend_optimization_level": 0})
    analytic = 3 * BATCH * forward_flops(network[1], SIDE_PX)
    # Counted: 0.87. The analytic count has the products with the zeros around the maps and a gradient of the frames;
    # one more forward pass would be 0.3.
    for stage in (lowered, step):
        assert 0.8 < stage.cost_analysis()["flops"] / analytic < 1
    # Counted: 212 MiB, with the transposed factors of gradients, and 2.51 GB with one pass; parameters and both moments
    # of Adam are 129 MiB, and stay in place.
    memory = step.memory_analysis()
    assert memory.temp_size_in_bytes < 225 * MIB
    assert memory.argument_size_in_bytes - memory.alias_size_in_bytes < MIB
    assert step.cost_analysis()["bytes accessed"] < 2.8e9


@pytest.mark.slow
def test_large_gradients_are_reduced_in_parts_of_which_xla_joins_no_two_on_a_gpu() -> None:
    network = make_network(c.ModelConfig(backbone="resnet18", norm="group"), 17, "f32", 0)
    with jax.numpy_dtype_promotion("standard"):
        program = lower_step(network, "resnet18", "group", 2, 1).as_text()
    sizes_bytes = [4 * int(size) for size in re.findall(r"\}\) : \(tensor<(\d+)xf32>\) -> tensor", program)]
    counts, *buckets = sorted(sizes_bytes)
    assert counts == 8 and len(buckets) == 2
    # XLA's limit on GPU, in xla/service/gpu/gpu_compiler.cc.
    assert sum(buckets) > 30 * MIB
    parameters_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(network[1]))
    assert parameters_bytes <= sum(buckets) < parameters_bytes + 16


@pytest.mark.parametrize(
    "norm", [pytest.param("group", marks=pytest.mark.slow), pytest.param("sync", marks=pytest.mark.full)]
)
def test_what_crosses_devices_is_the_same_for_any_number_of_them_and_of_passes(norm: str) -> None:
    def crossing(devices: int, microbatch: int) -> list[tuple[str, int]]:
        layout = Trainer(make_config(norm=norm, microbatch=microbatch, preset="none")).on(devices)
        return sorted(each[:2] for each in collectives(layout.step.compiled.as_text()))

    whole = crossing(2, 0)
    assert whole == crossing(8, 0)
    if norm == "group":
        in_passes = crossing(8, 3)
        assert [kind for kind, _ in in_passes] == [kind for kind, _ in whole] == ["all-reduce"] * 2
        # The counts have one number for each pass.
        assert in_passes[1] == whole[1] and in_passes[0][1] <= whole[0][1] + 4 * 4


@pytest.mark.slow
def test_windows_of_neighbouring_frames_share_the_backbone() -> None:
    def flop(kind: str, batch: int, clips: int = 0) -> float:
        config = make_config(kind=kind, batch=batch, clips=clips, preset="none")
        # The heads are small beside it.
        config.model.width = 32
        return Trainer(config).lower(mesh.make_mesh(jax.devices()[:1])).cost_analysis()["flops"]

    context = "heatmap_context"
    # Differences leave out the rest, such as the optimizer.
    frame = (flop("heatmap", 15) - flop("heatmap", 5)) / 10
    window = (flop(context, 15) - flop(context, 5)) / 10
    clip = flop(context, 5, clips=1) - flop(context, 5)
    assert 5 < window / frame < 5.3
    # Its windows without a shared frame would be 5 (CLIP - 4).
    assert CLIP < clip / frame < 1.1 * CLIP


@pytest.mark.slow
def test_a_predicted_frame_goes_through_the_backbone_once_but_where_batches_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sequences: list[tuple[int, ...]] = []

    def put(batch: dict[str, np.ndarray], place: Any, put: Callable = jax.device_put) -> dict[str, jax.Array]:
        sequences.append(batch["frames"].shape[:2])
        return put(batch, place)

    def predict_video(kind: str, devices: int) -> float:
        """Predicts 64 frames in batches of 32; returns the FLOP of a step."""
        config = make_config(kind=kind)
        config.model.width = 32
        graphdef, *weights = make_network(config.model, 3, "f32", seed=0)
        on = mesh.make_mesh(jax.devices()[:devices])
        runner, pixels = batch_runner.BatchRunner(config, graphdef, on, 32), np.zeros((32, 32, 32, 3), np.uint8)
        sequences.clear()
        folded = runner.fold(*weights)
        with monkeypatch.context() as patch:
            patch.setattr(jax, "device_put", put)
            assert sum(len(part["confidence"]) for part in runner.video(*folded, [pixels, pixels], np.eye(2, 3))) == 64
        frames = jax.ShapeDtypeStruct((*sequences[0], 32, 32, 3), np.uint8)
        given = {"frames": frames, "frame_from_input": jax.ShapeDtypeStruct((sequences[0][0], 2, 3), np.float32)}
        return jax.jit(build_predict(config, graphdef)).lower(*folded, given).cost_analysis()["flops"]

    single = predict_video("heatmap", 1)
    assert sequences == [(32, 1)] * 2
    # A batch is a sequence on each device, with the two frames before it and the two after it.
    several = predict_video("heatmap_context", 1)
    assert sequences == [(1, 36)] * 2
    # The rest is the recurrent head.
    assert 1 < several / single / (36 / 32) < 1.03
    predict_video("heatmap_context", 2)
    assert sequences == [(1, 36)] * 2


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts the arrays that go to the devices as batches and states, and those that come back."""
    counts = {"to": 0, "from": 0}

    def put(*arguments: Any, make: Callable = jax.make_array_from_process_local_data) -> jax.Array:
        counts["to"] += 1
        return make(*arguments)

    def put_tree(tree: Any, *arguments: Any, put: Callable = jax.device_put) -> Any:
        counts["to"] += len(jax.tree.leaves(tree))
        return put(tree, *arguments)

    fetched = ArrayImpl._value

    def fetch(array: Any) -> np.ndarray:
        counts["from"] += 1
        return fetched.fget(array)  # pyright: ignore

    monkeypatch.setattr(mesh.jax, "make_array_from_process_local_data", put)
    monkeypatch.setattr(jax, "device_put", put_tree)
    monkeypatch.setattr(ArrayImpl, "_value", property(fetch))
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["shard", "sync"])
def test_a_step_copies_its_batch_to_the_devices_and_its_metrics_back(
    project: Path, tmp_path: Path, copies: dict[str, int], norm: str
) -> None:
    def counted(steps: int, every_steps: int) -> dict[str, int]:
        before = dict(copies)
        # One validation, at the end.
        changes = {"train__steps": steps, "train__val_every_epochs": 1e3, "log__every_steps": every_steps}
        out = tmp_path / f"{steps}-{every_steps}"
        config = small_run.make_config(project, out, model__norm=norm, **changes)
        assert small_run.train(config)["exit_code"] == 0
        return {name: copies[name] - before[name] for name in copies}

    few, many = counted(4, 1), counted(12, 1)
    # The fields of a labelled batch; the scalars of the log: loss, targets, norm of the gradient, two rates, skips.
    assert {name: (many[name] - few[name]) / 8 for name in few} == {"to": 6, "from": 6}
    # A step that is not logged is only asked whether it was skipped.
    few, many = counted(4, 100), counted(12, 100)
    # Each has ten progress lines at most: one every tenth of the steps, of three numbers.
    assert 8 <= many["from"] - few["from"] <= 8 + 3 * 10


def test_a_video_is_decoded_once_and_its_segments_share_few_frames(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []

    class Counted(reading.Decoding):
        def _numbered(self) -> Iterator:
            for item in super()._numbered():
                decoded.append(1)
                yield item

    monkeypatch.setattr(reading, "Decoding", Counted)
    video = write(tmp_path / "video.mp4", 96)
    arguments = ["--run", str(trained_run), "--devices", "1", "--batch_size", "8", str(video)]
    assert predict.main([*arguments, "--out", str(tmp_path / "whole")]) == 0
    assert len(decoded) == 96
    decoded.clear()
    # Segments of 24 frames at 25 a second, each from a key frame (one in 12).
    assert predict.main([*arguments, "--out", str(tmp_path / "cut"), "--stretch_minutes", str(24 / 25 / 60)]) == 0
    # A segment begins with the frame before it, at a multiple of 8: the last key frame before that is 12 frames ahead.
    assert len(decoded) == 96 + 3 * 12
    for name in ("whole", "cut"):
        assert len((tmp_path / name / "video_preds" / "video.csv").read_text().splitlines()) == 3 + 96


def test_the_first_line_needs_no_package_that_takes_long(project: Path, trained_run: Path, tmp_path: Path) -> None:
    config = small_run.make_config(project, tmp_path / "run")
    for arguments in (
        ["jaxpose.train", *small_run.command(config, tmp_path)],
        ["jaxpose.predict", "--run", str(trained_run), str(tmp_path)],
        ["jaxpose.evaluate", "--run", str(trained_run)],
        ["jaxpose.track", "detections.csv", "--out", "tracks.csv"],
    ):
        _, out, err = verb_without(HEAVY, *arguments)
        first, imported = out.splitlines()
        assert first.startswith("jaxpose ") and imported.startswith("IMPORTED "), err


def test_a_training_begins_without_packages_that_only_other_work_needs() -> None:
    needless = ("scipy.optimize", "scipy.linalg", "pandas", "matplotlib", "plotly")
    code = "import jaxpose.train, grain, sys; print(*sys.modules, sep='\\n')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = ended.stdout.splitlines()
    assert "jax" in imported and not {*needless} & {*imported}


def test_help_of_every_verb_imports_no_package_that_takes_long() -> None:
    code = """
import contextlib, io, sys
from jaxpose.__main__ import VERBS, run

for verb in ("", *VERBS):
    sys.argv = ["jaxpose", *verb.split(), "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        run()
    assert shown.getvalue().startswith("usage: jaxpose"), verb
print(*sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert not {*HEAVY} & {*ended.stdout.split()}


def test_verbs_that_read_only_tables_import_no_jax() -> None:
    """They print their first line after their work, so an import of jax would delay it by more than a second."""
    modules = [
        "jaxpose.calibrate.command", "jaxpose.compare.__main__", "jaxpose.drawing.draw_command",
        "jaxpose.labelling.crop_command", "jaxpose.labelling.suggest_command", "jaxpose.tracking.smooth_command",
        "jaxpose.tracking.track_command", "jaxpose.triangulate.command",
    ]  # fmt: skip
    code = f"import {', '.join(modules)}, sys; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"jax", "flax", "orbax", "pandas", "matplotlib", "scipy.optimize", "rich"} & {*ended.stdout.split()}


def test_an_event_file_needs_no_torch_and_leaves_the_package_whole() -> None:
    code = """
import sys
import jaxpose.run.tensorboard
print(*sys.modules)
import tensorboardX
tensorboardX.SummaryWriter, tensorboardX.proto
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert not {"torch", "tensorboardX"} & {*ended.stdout.split()}
