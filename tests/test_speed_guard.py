"""What a step, a run and a prediction do, counted without a clock: a change that makes them slower fails here.

The compilations of a run are counted in tests/test_train.py, what crosses devices in a loop in
tests/steps/test_collectives.py.
"""

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
from jaxpose.video import video as reading
from tests import small_run
from tests.painted_videos import write
from tests.parallel import Trainer, make_config
from tests.test_entry import HEAVY, verb_without

SIDE_PX, BATCH = 128, 8
MIB = 2**20


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
    # Counted: 191 MiB and 2.51 GB with one pass; parameters and both moments of Adam are 129 MiB, and stay in place.
    memory = step.memory_analysis()
    assert memory.temp_size_in_bytes < 210 * MIB
    assert memory.argument_size_in_bytes - memory.alias_size_in_bytes < MIB
    assert step.cost_analysis()["bytes accessed"] < 2.8e9


@pytest.mark.parametrize("norm", ["group", pytest.param("sync", marks=pytest.mark.slow)])
def test_what_crosses_devices_is_the_same_for_any_number_of_them_and_of_passes(norm: str) -> None:
    def crossing(devices: int, microbatch: int) -> list[tuple[str, int]]:
        layout = Trainer(make_config(norm=norm, microbatch=microbatch, preset="none")).on(devices)
        return sorted(each[:2] for each in collectives(layout.compiled.as_text()))

    whole = crossing(2, 0)
    assert whole == crossing(8, 0)
    if norm == "group":
        in_passes = crossing(8, 3)
        assert [kind for kind, _ in in_passes] == [kind for kind, _ in whole] == ["all-reduce"] * 2
        # The counts have one number for each pass.
        assert in_passes[1] == whole[1] and in_passes[0][1] <= whole[0][1] + 4 * 4


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts the arrays that go to the devices as batches and states, and those that come back."""
    counts = {"to": 0, "from": 0}

    def put(*arguments: Any, make: Callable = jax.make_array_from_process_local_data) -> jax.Array:
        counts["to"] += 1
        return make(*arguments)

    fetched = ArrayImpl._value

    def fetch(array: Any) -> np.ndarray:
        counts["from"] += 1
        return fetched.fget(array)  # pyright: ignore

    monkeypatch.setattr(mesh.jax, "make_array_from_process_local_data", put)
    monkeypatch.setattr(ArrayImpl, "_value", property(fetch))
    return counts


def test_a_step_copies_its_batch_to_the_devices_and_its_metrics_back(
    project: Path, tmp_path: Path, copies: dict[str, int]
) -> None:
    def counted(steps: int) -> dict[str, int]:
        before = dict(copies)
        # One validation, at the end.
        config = small_run.make_config(project, tmp_path / str(steps), train__steps=steps, train__val_every_epochs=1e3)
        assert small_run.train(config)["exit_code"] == 0
        return {name: copies[name] - before[name] for name in copies}

    few, many = counted(4), counted(12)
    # The fields of a labelled batch; the scalars of the log: loss, targets, norm of the gradient, two rates, skips.
    assert {name: (many[name] - few[name]) / 8 for name in few} == {"to": 6, "from": 6}


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
    ):
        _, out, err = verb_without(HEAVY, *arguments)
        first, imported = out.splitlines()
        assert first.startswith("jaxpose ") and imported.startswith("IMPORTED "), err


def test_a_training_begins_without_packages_that_only_other_work_needs() -> None:
    needless = ("torch", "tensorboardX", "scipy.optimize", "scipy.linalg", "pandas", "matplotlib", "plotly")
    code = "import jaxpose.train, jaxpose.run.tensorboard, grain, sys; print(*sys.modules, sep='\\n')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = ended.stdout.splitlines()
    assert "jax" in imported and not {*needless} & {*imported}
