"""A process of a run that is lost, stopped, slow or reads what is damaged: what becomes of the others."""

import dataclasses
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from jaxpose import config as c
from jaxpose.video.clips import place
from tests.painted_videos import write
from tests.parallel import distance
from tests.process_pair import LIMIT_S, STEPS, Pair, losses_of, small, weights_of
from tests.small_run import assert_same, files_in, last_step, metrics_of, train, wait_for_step

pytestmark = pytest.mark.faults


def test_the_log_names_clips_that_do_not_decode_on_any_process(folder: Path) -> None:
    videos = folder / "holes-videos"
    videos.mkdir()
    # A frame is lost before frame 10.
    write(videos / "holes.mkv", 60, "ffv1", "gray", {}, [40 * (i + (i >= 10)) for i in range(60)])
    changes = {"video__folder": str(videos), "video__clips_per_step": 2, "video__cache": "off"}
    config = small(folder, "holes", **changes, log__every_steps=3)
    config.train.steps = config.train.val_every_epochs = 5
    # The even draws are the first process's.
    assert [draw % 2 for draw in range(10) if place(draw, (60,), 7, config.data.seed)[1] == 7] == [1]
    with Pair(config, folder / "holes-logs") as pair:
        assert pair.codes() == [0, 0], pair.logs()
        text = pair.text(0)
    assert text.count("frames 7 to 13 are not used: frames are lost before frame 10") == 1, text
    # Each of them decodes the 60 frames once, for 5 clips of 7.
    assert "1.71 frames decoded for each one used" in text, text


def test_the_slower_process_is_named_with_its_times(folder: Path) -> None:
    config = small(folder, "slow", log__pace_s=0.0, log__every_steps=10)
    with Pair(config, folder / "slow-logs", "slow") as pair:
        assert pair.codes() == [0, 0], pair.logs()
        said = re.findall(r"warning: process (\d) on \S+ holds up the others: its host needs (\d+) ms", pair.text(0))
    # The mean of ten steps, in nine of which it sleeps 120 ms: the first has no step before it to log.
    assert [index for index, _ in said] == ["1"] and float(said[0][1]) >= 100, pair.logs()
    figures = [line for line in metrics_of(Path(config.out)) if "process1_own_s" in line]
    assert len(figures) >= 3
    for line in figures:
        # Of the 0.12 s: on a CPU the other process waits a part of it while it hands over its next step.
        assert line["process1_own_s"] - line["process0_own_s"] > 0.05


def test_sigterm_to_one_process_stops_both_at_one_step_and_the_run_goes_on(folder: Path, uninterrupted: Path) -> None:
    config = small(folder, "stopped")
    run = Path(config.out)
    with Pair(config, folder / "stopped-logs", "stop at step 3") as pair:
        assert pair.codes() == [85, 85], pair.logs()
        step = last_step(run)
        assert 3 < step < STEPS and f"saved at step {step}" in pair.text(0), pair.logs()
    with Pair(config, folder / "stopped-again-logs", "stop before the first step") as pair:
        assert pair.codes() == [85, 85], pair.logs()
        assert f"resumes from step {step}" in pair.text(0) and f"saved at step {step + 1}" in pair.text(0), pair.logs()
    # To the end in one process, on as many devices.
    assert train(dataclasses.replace(config, mesh=c.MeshConfig(devices=2)))["exit_code"] == 0
    np.testing.assert_allclose(losses_of(run), losses_of(uninterrupted), rtol=1e-5)
    assert distance(weights_of(run), weights_of(uninterrupted)) < 1e-4


@pytest.mark.parametrize("event", ["raise", "raise while JAX starts"])
def test_an_exception_on_one_process_ends_both_and_its_traceback_is_the_only_one(folder: Path, event: str) -> None:
    name = event.replace(" ", "-")
    with Pair(small(folder, name), folder / f"{name}-logs", event) as pair:
        pair.wait_for(1, "RuntimeError: broken on purpose")
        assert pair.codes(limit_s=15) == [1, 1], pair.logs()
        assert pair.text(1).rstrip().endswith("RuntimeError: broken on purpose"), pair.logs()
        assert "Traceback" not in pair.text(0), pair.logs()
        assert re.search(r"process 1 on \S+ failed: RuntimeError: broken on purpose", pair.text(0)), pair.logs()


def test_a_process_that_is_lost_while_jax_starts_ends_the_other(folder: Path) -> None:
    with Pair(small(folder, "gap"), folder / "gap-logs", "killed while JAX starts") as pair:
        assert pair.code(1, LIMIT_S) == -signal.SIGKILL, pair.logs()
        # JAX itself would wait for two minutes.
        assert pair.code(0, 30) == 75, pair.logs()
        assert re.search(r"jaxpose.train: process 1 on \S+ is gone", pair.text(0)), pair.logs()


def test_killed_and_frozen_processes_take_the_other_along_and_the_run_ends_as_if_nothing_had_been(
    folder: Path, uninterrupted: Path
) -> None:
    heartbeat_s = 4.0
    config = small(folder, "killed", train__save_every_steps=4, mesh__heartbeat_s=heartbeat_s)
    run = Path(config.out)
    # tests/cluster/test_peers.py has all pairs of a process and its end.
    faults = ((1, signal.SIGSTOP, "has been silent for"), (0, signal.SIGKILL, "is gone"))
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
        assert "resumes from step " in pair.text(0) and "downloaded" not in pair.text(1)
    assert distance(weights_of(Path(config.out)), weights_of(uninterrupted)) == 0
    copied = files_in(folder / "copies" / "copied")
    assert {path: data for path, data in copied.items() if path != "copied.json"} == {
        path: data for path, data in files_in(Path(config.out)).items() if path != ".lock"
    }


def test_a_run_folder_that_is_not_shared_is_refused(folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    with Pair(small(folder, "elsewhere/run"), folder / "unshared-logs", f"another disk at {elsewhere}") as pair:
        assert pair.codes() == [2, 2], pair.logs()
        for index in range(2):
            assert re.search(r"the folder \S+ of process 0 on \S+ is not the one on \S+ choose one", pair.text(index))
    assert sorted(os.listdir(elsewhere / "run")) == [".lock", "config.json", "split.csv", "status.json"]
