"""The same training over two real processes, which talk over sockets, with one device each."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy

from jaxpose import config as c
from jaxpose.cluster.signals import Interrupt
from jaxpose.data.synthetic import make_project
from jaxpose.model import vit
from tests.parallel import distance
from tests.process_pair import OURS, ROOT, STEPS, TEACHER, TORCHRUN, Pair, losses_of, small, weights_of
from tests.published_resnets import backbone, torch_shapes
from tests.small_run import assert_same, checkpoint_of, environment, figures_of, make_config, metrics_of, train

OPTIONS_OF_RIG: dict[str, Any] = {
    "data__split": "frame", "data__calibration": "calibrations", "augment__flip_p": 0.0, "train__shards": 2,
    "losses__reprojection__weight": 0.5, "losses__multiview_consistency__weight": 1e-3, "losses__anneal_init": 1.0,
    "video__clips_per_step": 3, "video__sequence_length": 4,
}  # fmt: skip


def predictions_of(run: Path) -> np.ndarray:
    table = pd.read_csv(run / "predictions.csv", header=[0, 1, 2], index_col=0)
    assert len(table) == 18 and table.index.is_unique
    return table.select_dtypes("number").to_numpy()


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.full)])
def test_two_processes_give_the_numbers_of_one(folder: Path, uninterrupted: Path, devices: int) -> None:
    config = small(folder, f"one-process-{devices}", mesh__devices=devices)
    assert train(config)["exit_code"] == 0
    alone = Path(config.out)
    np.testing.assert_allclose(losses_of(uninterrupted), losses_of(alone), rtol=1e-5)
    np.testing.assert_allclose(predictions_of(uninterrupted), predictions_of(alone), atol=1e-3)
    if devices == 2:
        assert distance(weights_of(uninterrupted), weights_of(alone)) < 1e-4
    assert {file.name for file in uninterrupted.iterdir()} == {file.name for file in alone.iterdir()}


@pytest.mark.slow
def test_a_script_without_a_guard_trains_on_several_devices_and_is_run_once(folder: Path) -> None:
    # Its step is that of test_replicas.
    changes = {"augment__preset": "none", "train__steps": 2, "train__val_every_epochs": 1, "log__tensorboard": False}
    config = make_config(folder / "project", folder / "script", mesh__devices=3, **changes)
    (folder / "config.json").write_text(c.to_json(config))
    (folder / "script.py").write_text(
        "import pathlib\nfrom jaxpose import config, train\nprint('begins')\n"
        "print(train.train(config.from_json(pathlib.Path('config.json').read_text()))['steps'])\n"
    )
    variables = environment() | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "script.py"], cwd=folder, env=variables, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines.count("begins") == 1 and lines[-1] == "2" and "3 x cpu: cpu:0, cpu:1, cpu:2" in ended.stdout


@pytest.mark.parametrize(
    "kind", [pytest.param("heatmap", marks=pytest.mark.full), pytest.param("heatmap_context", marks=pytest.mark.slow)]
)
def test_two_processes_with_augmentation_three_clips_and_micro_batches(folder: Path, kind: str) -> None:
    options = {"model__kind": kind, "train__microbatch_size": 3, "augment__preset": "dlc", "augment__flip_p": 0.5}
    options |= TEACHER | {"video__clips_per_step": 3, "video__context_sequence_length": 9}
    options |= {"losses__pca_singleview__weight": 1e-3, "losses__pca_singleview__epsilon_px": 0.1}
    options |= {"losses__pca_singleview__keypoints": ("nose", "neck", "tail_base")}
    config = small(folder, f"{kind}-two", **options)
    with Pair(config, folder / f"{kind}-two-logs") as pair:
        assert pair.codes() == [0, 0], pair.logs()
    alone = small(folder, f"{kind}-one", **options, mesh__devices=1)
    assert train(alone)["exit_code"] == 0
    lines, lines_alone = ([line for line in metrics_of(Path(one.out)) if "loss" in line] for one in (config, alone))
    for name in ("supervised_loss", "temporal", "pca_singleview", "pca_multiview"):
        found, expected = (np.array([line[name] for line in of]) for of in (lines, lines_alone))
        assert (expected > 0).any(), name
        # Half the run: in the other one a threshold (of a ReLU, a confidence) turns rounding into another course.
        np.testing.assert_allclose(found[: STEPS // 2], expected[: STEPS // 2], rtol=1e-5, err_msg=name)


@pytest.mark.slow
def test_two_machines_which_each_add_their_own_shards_first_have_the_bits_of_one_device(folder: Path) -> None:
    options = {"train__shards": 4, "train__batch_size": 8, "train__steps": 6, "train__val_every_epochs": 6}
    config = small(folder, "two-machines", **options)
    variables = OURS | {"SLURMD_NODENAME": "node{index}"}
    with Pair(config, folder / "two-machines-logs", variables=variables, devices=2) as pair:
        assert pair.codes() == [0, 0], pair.logs()
        assert re.search(r"processes +2 on 2 machines\n", pair.text(0)), pair.logs()
    alone = small(folder, "one-machine", **options, mesh__devices=1)
    assert train(alone)["exit_code"] == 0
    assert_same(weights_of(Path(config.out)), weights_of(Path(alone.out)))
    assert [line["loss"] for line in metrics_of(Path(config.out)) if "loss" in line] == [
        line["loss"] for line in metrics_of(Path(alone.out)) if "loss" in line
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["heatmap", "multiview"])
def test_calibrated_cameras_give_the_same_bits_on_two_processes(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of separate views and of a network that sees them together, with the losses between cameras."""
    form = dataclasses.replace(vit.FORMS["vit_small"], channels=24, depth=3)
    monkeypatch.setitem(vit.FORMS, "vit_small", form)
    views = ("c1", "c2", "c3")
    project = make_project(folder / f"rig-{kind}", videos=2, labelled_frames=5, video_frames=12, side_px=64, cameras=3)
    options = OPTIONS_OF_RIG | {"data__views": views, "model__kind": kind, "train__steps": 4, "log__tensorboard": False}
    if kind == "multiview":
        options |= {"model__backbone": "vit_small", "model__width": 64, "model__joint_layers": 2}
        options |= {"augment__mask_share": 0.5, "augment__mask_start_epochs": 0.0, "augment__mask_end_epochs": 1.0}
    two, one = (make_config(project, folder / f"{kind}-of-{name}", **options) for name in ("two", "one"))
    two.mesh.devices = "auto"
    with Pair(two, folder / f"{kind}-of-two-logs", variables=OURS | {"SMALL_VIT": "1"}) as pair:
        assert pair.codes() == [0, 0], pair.logs()
    assert train(one)["exit_code"] == 0
    runs = Path(two.out), Path(one.out)
    steps = [line for line in figures_of(runs[1]) if "multiview_consistency" in line]
    assert [line["multiview_consistency"] > 0 and line["reprojection"] > 0 for line in steps] == [True] * 4
    assert figures_of(runs[0]) == figures_of(runs[1])
    assert_same(*(checkpoint_of(run) for run in runs))
    for view in views:
        assert (runs[0] / f"predictions_{view}.csv").read_bytes() == (runs[1] / f"predictions_{view}.csv").read_bytes()


@pytest.mark.slow
def test_one_process_reads_the_weights_for_both(folder: Path) -> None:
    """The other one has no such file; a file that does not fit is told by both."""
    shapes = torch_shapes(*backbone("resnet10", 8)[1:])
    rng = np.random.default_rng(0)
    tensors = {name: rng.uniform(0.01, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    options = {"model__weights": str(folder / "model.safetensors"), "train__steps": 2, "train__val_every_epochs": 1}
    config = small(folder, "weights", **options, optim__unfreeze_epoch=0)
    more = ("model.weights=/nowhere/model.safetensors",)
    with Pair(config, folder / "weights-logs", more=more) as pair:
        assert pair.codes() == [0, 0], pair.logs()
    alone = small(folder, "weights-alone", **options, optim__unfreeze_epoch=0, mesh__devices=1)
    assert train(alone)["exit_code"] == 0
    runs = (Path(config.out), Path(alone.out))
    found, expected = ([line["loss"] for line in metrics_of(run) if "loss" in line] for run in runs)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    safetensors.numpy.save_file({"conv1.weight": np.ones(2)}, folder / "model.safetensors")
    with Pair(small(folder, "misfit", **options), folder / "misfit-logs", more=more) as pair:
        assert pair.codes() == [2, 2], pair.logs()
        for index in range(2):
            assert "does not fit model.backbone" in pair.text(index) and "Traceback" not in pair.text(index)


@pytest.mark.slow
def test_a_mistake_is_told_by_both_and_nothing_is_written(folder: Path) -> None:
    config = small(folder, "foreign")
    out = Path(config.out)
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with Pair(config, folder / "foreign-logs") as pair:
        assert pair.codes() == [2, 2], pair.logs()
        for index in range(2):
            assert f"jaxpose.train: {out} holds files, but no run of jaxpose (notes.txt)" in pair.text(index)
            assert "Traceback" not in pair.text(index), pair.logs()
    assert os.listdir(out) == ["notes.txt"]


def test_processes_that_torchrun_starts_find_each_other_and_another_seed_is_told_by_both(folder: Path) -> None:
    """Each hears of the other's value over JAX. `uninterrupted` is started as Kubernetes does."""
    config = small(folder, "torchrun")
    with Pair(config, folder / "torchrun-logs", more=("train.seed=7",), variables=TORCHRUN) as pair:
        assert pair.codes() == [2, 2], pair.logs()
        assert re.search(r"process 1 on \S+: train.seed is 7 here and 0 on process 0", pair.text(0)), pair.logs()
        for index in range(2):
            expected = "train.seed is 7 here and 0 on process 0; start all processes with the same command"
            assert expected in pair.text(index) and "Traceback" not in pair.text(index), pair.logs()
    assert not Path(config.out).exists()


@pytest.mark.slow
def test_another_version_is_refused_with_both(folder: Path) -> None:
    with Pair(small(folder, "version"), folder / "version-logs", "another version") as pair:
        assert pair.codes() == [2, 2], pair.logs()
        for index in range(2):
            assert re.search(
                r"jaxpose.train: optax is 0.0.1 for process 1 on \S+ and [\d.]+ for process 0", pair.text(index)
            )


@pytest.mark.parametrize(
    ("present", "coordinator", "code", "message"),
    [
        (0, "localhost:{port}", 1, "process 1 of 2 did not connect to localhost:"),
        pytest.param(1, "localhost:{port}", 1, "process 0 did not answer at localhost:", marks=pytest.mark.slow),
        pytest.param(
            1,
            "no-such-host.invalid:5",
            2,
            "the coordinator's name 'no-such-host.invalid' (of no-such-host.invalid:5)",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_one_that_waits_in_vain_says_for_whom(
    folder: Path, present: int, coordinator: str, code: int, message: str
) -> None:
    config = small(folder, "alone", mesh__start_s=1.0)
    variables = OURS | {"JAXPOSE_COORDINATOR": coordinator}
    with Pair(config, folder / "alone-logs", variables=variables, present=(present,)) as pair:
        assert pair.codes() == [code], pair.logs()
        last = pair.text(present).splitlines()[-1]
        assert last.startswith(f"jaxpose.train: {message}"), pair.logs()


def test_ctrl_c_is_passed_on_to_the_other_processes_as_sigterm() -> None:
    caught = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    try:
        with Interrupt(processes=2) as interrupt:
            signal.raise_signal(signal.SIGINT)
            assert caught == [signal.SIGTERM] and interrupt.exit_code == 130
    finally:
        signal.signal(signal.SIGTERM, before)
