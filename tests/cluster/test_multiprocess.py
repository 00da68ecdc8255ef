"""The same training over two real processes, which talk over sockets, with one device each."""

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose.cluster.signals import Interrupt
from jaxpose.run.folder import PARAMETERS_FILE
from jaxpose.run.weights import load_parameters
from jaxpose.video.clip_order import place
from tests.painted_videos import write
from tests.parallel import distance
from tests.process_pair import KUBERNETES, LIMIT_S, OURS, ROOT, STEPS, TORCHRUN, Pair, small
from tests.small_run import (
    assert_same,
    environment,
    files_in,
    last_step,
    make_config,
    metrics_of,
    small_project,
    train,
    wait_for_step,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the project; what is compiled is kept in it."""
    path = tmp_path_factory.mktemp("processes")
    small_project(path / "project")
    return path


@pytest.fixture(scope="module")
def uninterrupted(folder: Path) -> Path:
    """The run folder of two processes that nothing happens to, started as Kubernetes does.

    The second one finds the project at another mount point.
    """
    config = small(folder, "uninterrupted")
    project = Path(config.data.project)
    mount = shutil.copytree(project, folder / "mount" / project.name)
    more = (f"--config.data.project={mount}",)
    with Pair(config, folder / "uninterrupted-logs", more=more, variables=KUBERNETES) as pair:
        assert pair.codes() == [0, 0], pair.logs()
        assert re.search(r"processes +2\n", pair.text(0)) and "everything is in" in pair.text(0), pair.logs()
        # The second one says what it waits for; the rest is JAX's own.
        assert len(pair.text(1).splitlines()) <= 3, pair.logs()
    return Path(config.out)


def weights_of(run: Path) -> dict[str, Any]:
    return load_parameters(run / PARAMETERS_FILE)[0]


def losses_of(run: Path) -> np.ndarray:
    lines = [line for line in metrics_of(run) if "loss" in line]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    return np.array([line["loss"] for line in lines])


def predictions_of(run: Path) -> np.ndarray:
    table = pd.read_csv(run / "predictions.csv", header=[0, 1, 2], index_col=0)
    assert len(table) == 18 and table.index.is_unique
    return table.select_dtypes("number").to_numpy()


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_two_processes_give_the_numbers_of_one(folder: Path, uninterrupted: Path, devices: int) -> None:
    config = small(folder, f"one-process-{devices}", mesh__devices=devices)
    assert train(config)["exit_code"] == 0
    alone = Path(config.out)
    np.testing.assert_allclose(losses_of(uninterrupted), losses_of(alone), rtol=1e-5)
    np.testing.assert_allclose(predictions_of(uninterrupted), predictions_of(alone), atol=1e-3)
    if devices == 2:
        assert distance(weights_of(uninterrupted), weights_of(alone)) < 1e-4
    assert {file.name for file in uninterrupted.iterdir()} == {file.name for file in alone.iterdir()}


def test_a_script_without_a_guard_trains_on_several_devices_and_is_run_once(folder: Path) -> None:
    # Its step is that of test_replicas.
    changes = {"augment__preset": "none", "train__steps": 2, "train__val_every_steps": 2, "log__tensorboard": False}
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["heatmap", "heatmap_context"])
def test_two_processes_with_augmentation_three_clips_and_micro_batches(folder: Path, kind: str) -> None:
    options = {"model__kind": kind, "train__microbatch_size": 3, "augment__preset": "dlc", "augment__flip_p": 0.5}
    options |= {"video__clips_per_step": 3, "video__context_sequence_length": 9}
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
def test_the_log_names_clips_that_do_not_decode_on_any_process(folder: Path) -> None:
    videos = folder / "holes-videos"
    videos.mkdir()
    # A frame is lost before frame 10.
    write(videos / "holes.mkv", 60, "ffv1", "gray", {}, [40 * (i + (i >= 10)) for i in range(60)])
    changes = {"video__folder": str(videos), "video__clips_per_step": 2, "video__cache": "off"}
    config = small(folder, "holes", **changes, log__every_steps=3)
    config.train.steps = config.train.val_every_steps = 5
    # The even draws are the first process's.
    assert [draw % 2 for draw in range(10) if place(draw, (60,), 7, config.data.seed)[1] == 7] == [1]
    with Pair(config, folder / "holes-logs") as pair:
        assert pair.codes() == [0, 0], pair.logs()
        text = pair.text(0)
    assert text.count("frames 7 to 13 are not used: frames are lost before frame 10") == 1, text
    # Each of them decodes the 60 frames once, for 5 clips of 7.
    assert "1.71 frames decoded for each one used" in text, text


@pytest.mark.faults
def test_sigterm_to_one_process_stops_both_at_one_step_and_the_run_goes_on(folder: Path, uninterrupted: Path) -> None:
    config = small(folder, "stopped")
    run = Path(config.out)
    with Pair(config, folder / "stopped-logs", "stop at step 3") as pair:
        assert pair.codes() == [85, 85], pair.logs()
        step = last_step(run)
        assert 3 < step < STEPS and f"saved at step {step}" in pair.text(0), pair.logs()
    with Pair(config, folder / "stopped-again-logs", "stop before the first step") as pair:
        assert pair.codes() == [85, 85], pair.logs()
        assert f"goes on from step {step}" in pair.text(0) and f"saved at step {step + 1}" in pair.text(0), pair.logs()
    # To the end in one process, on as many devices.
    assert train(dataclasses.replace(config, mesh=c.MeshConfig(devices=2)))["exit_code"] == 0
    np.testing.assert_allclose(losses_of(run), losses_of(uninterrupted), rtol=1e-5)
    assert distance(weights_of(run), weights_of(uninterrupted)) < 1e-4


@pytest.mark.faults
@pytest.mark.parametrize("event", ["raise", "raise while JAX starts"])
def test_an_exception_on_one_process_ends_both_and_its_traceback_is_the_only_one(folder: Path, event: str) -> None:
    name = event.replace(" ", "-")
    with Pair(small(folder, name), folder / f"{name}-logs", event) as pair:
        pair.wait_for(1, "RuntimeError: broken on purpose")
        assert pair.codes(limit_s=15) == [1, 1], pair.logs()
        assert pair.text(1).rstrip().endswith("RuntimeError: broken on purpose"), pair.logs()
        assert "Traceback" not in pair.text(0), pair.logs()
        assert re.search(r"process 1 on \S+ failed: RuntimeError: broken on purpose", pair.text(0)), pair.logs()


@pytest.mark.faults
def test_a_process_that_is_lost_while_jax_starts_ends_the_other(folder: Path) -> None:
    with Pair(small(folder, "gap"), folder / "gap-logs", "killed while JAX starts") as pair:
        assert pair.code(1, LIMIT_S) == -signal.SIGKILL, pair.logs()
        # JAX itself would wait for two minutes.
        assert pair.code(0, 30) == 75, pair.logs()
        assert re.search(r"jaxpose.train: process 1 on \S+ is gone", pair.text(0)), pair.logs()


def test_a_mistake_is_told_by_both_and_nothing_is_written(folder: Path) -> None:
    config = small(folder, "foreign")
    out = Path(config.out)
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with Pair(config, folder / "foreign-logs") as pair:
        assert pair.codes() == [2, 2], pair.logs()
        for index in range(2):
            assert f"jaxpose.train: {out} holds files that are no run of jaxpose (notes.txt)" in pair.text(index)
            assert "Traceback" not in pair.text(index), pair.logs()
    assert os.listdir(out) == ["notes.txt"]


def test_processes_that_torchrun_starts_find_each_other_and_another_seed_is_told_by_both(folder: Path) -> None:
    """Each hears of the other's value over JAX. `uninterrupted` is started as Kubernetes does."""
    config = small(folder, "torchrun")
    with Pair(config, folder / "torchrun-logs", more=("--config.train.seed=7",), variables=TORCHRUN) as pair:
        assert pair.codes() == [2, 2], pair.logs()
        assert re.search(r"process 1 on \S+: train.seed is 7 here and 0 on process 0", pair.text(0)), pair.logs()
        for index in range(2):
            expected = "train.seed is 7 here and 0 on process 0; start all processes with the same command"
            assert expected in pair.text(index) and "Traceback" not in pair.text(index), pair.logs()
    assert not Path(config.out).exists()


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
        (0, "localhost:{port}", 1, "process 1 of 2 did not arrive at localhost:"),
        (1, "localhost:{port}", 1, "process 0 did not answer at localhost:"),
        (1, "no-such-host.invalid:5", 2, "the coordinator's name 'no-such-host.invalid' (of no-such-host.invalid:5)"),
    ],
)
def test_one_that_waits_in_vain_says_for_whom(
    folder: Path, present: int, coordinator: str, code: int, message: str
) -> None:
    config = small(folder, "alone", mesh__start_s=2.0)
    variables = OURS | {"JAXPOSE_COORDINATOR": coordinator}
    with Pair(config, folder / "alone-logs", variables=variables, present=(present,)) as pair:
        assert pair.codes() == [code], pair.logs()
        last = pair.text(present).splitlines()[-1]
        assert last.startswith(f"jaxpose.train: {message}"), pair.logs()


@pytest.mark.faults
def test_a_run_folder_that_is_not_shared_is_refused(folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    with Pair(small(folder, "elsewhere/run"), folder / "unshared-logs", f"another disk at {elsewhere}") as pair:
        assert pair.codes() == [2, 2], pair.logs()
        for index in range(2):
            assert re.search(r"the folder \S+ of process 0 on \S+ is not the one on \S+ choose one", pair.text(index))
    assert sorted(os.listdir(elsewhere / "run")) == [".lock", "config.json", "split.csv", "status.json"]


@pytest.mark.slow
def test_the_slower_process_is_named_with_its_times(folder: Path) -> None:
    config = small(folder, "slow", log__pace_s=0.0, log__every_steps=10)
    with Pair(config, folder / "slow-logs", "slow") as pair:
        assert pair.codes() == [0, 0], pair.logs()
        said = re.findall(r"warning: process (\d) on \S+ holds up the others: its host needs (\d+) ms", pair.text(0))
    assert [index for index, _ in said] == ["1"] and float(said[0][1]) >= 100, pair.logs()
    figures = [line for line in metrics_of(Path(config.out)) if "process1_own_s" in line]
    assert len(figures) >= 3
    for line in figures:
        # Of the 0.1 s: on a CPU the other process waits a part of it while it hands over its next step.
        assert line["process1_own_s"] - line["process0_own_s"] > 0.05


@pytest.mark.faults
def test_killed_and_frozen_processes_take_the_other_along_and_the_run_ends_as_if_nothing_had_been(
    folder: Path, uninterrupted: Path
) -> None:
    heartbeat_s = 4.0
    config = small(folder, "killed", train__save_every_steps=4, mesh__heartbeat_s=heartbeat_s)
    run = Path(config.out)
    kinds = ((signal.SIGKILL, "is gone"), (signal.SIGSTOP, "has been silent for"))
    faults = [(lost, kind, reason) for kind, reason in kinds for lost in (1, 0)]
    for number, (lost, kind, reason) in enumerate(faults):
        with Pair(config, folder / f"killed-{number}-logs") as pair:
            wait_for_step(run, 7 * (number + 1), pair.is_alive)
            pair.send(lost, kind)
            # JAX itself may be the first to see that process 0 is gone; then it aborts.
            code = pair.code(1 - lost, heartbeat_s + 5)
            assert code == 75 or (lost == 0 and code == -signal.SIGABRT), pair.logs()
            if code == 75:
                assert re.search(rf"jaxpose.train: process {lost} on \S+ {reason}", pair.text(1 - lost)), pair.logs()
    with Pair(config, folder / "killed-last-logs") as pair:
        assert pair.codes() == [0, 0], pair.logs()
    assert_same(weights_of(run), weights_of(uninterrupted))


def test_ctrl_c_is_passed_on_to_the_other_processes_as_sigterm() -> None:
    caught = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    try:
        with Interrupt(processes=2) as interrupt:
            signal.raise_signal(signal.SIGINT)
            assert caught == [signal.SIGTERM] and interrupt.exit_code == 130
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_lost_machines_go_on_from_the_copy_that_process_0_made(folder: Path, uninterrupted: Path) -> None:
    remote = {"log__remote_url": str(folder / "copies"), "log__remote_every_s": 0.1}
    config = small(folder, "copied", **remote)
    with Pair(config, folder / "copied-logs", "stop at step 3") as pair:
        assert pair.codes() == [85, 85], pair.logs()
        assert f"everything is copied to {folder}/copies/copied\n" in pair.text(0), pair.logs()
        assert "copied to" not in pair.text(1)
    shutil.rmtree(config.out)
    with Pair(config, folder / "copied-logs") as pair:
        assert pair.codes() == [0, 0], pair.logs()
        assert f"downloaded from {folder}/copies/copied: checkpoints " in pair.text(0), pair.logs()
        assert "goes on from step " in pair.text(0) and "downloaded" not in pair.text(1)
    assert distance(weights_of(Path(config.out)), weights_of(uninterrupted)) == 0
    copied = files_in(folder / "copies" / "copied")
    assert {path: data for path, data in copied.items() if path != "copied.json"} == {
        path: data for path, data in files_in(Path(config.out)).items() if path != ".lock"
    }
