"""The claim of train.shards on whole runs: they leave the same bits on any devices and processes, after any kills.

Everything that moves is on: Adam, moving averages, preset dlc, two passes a step, labelled frames and clips with
temporal and PCA losses, predicted videos. The mark `slow` has a run of 40 steps that is killed and moves, the mark
`full` a table of runs of 200.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxpose import config as c
from jaxpose.data.synthetic import make_project
from tests.process_pair import ROOT, small
from tests.small_run import assert_same_run, command, environment, files_in, log_of, small_project, wait_for_step

STEPS = 200
OPTIONS: dict[str, Any] = {
    "train__shards": 4,
    "train__batch_size": 6,
    "train__microbatch_size": 4,
    "train__steps": STEPS,
    "train__val_every_epochs": 50,
    "train__save_every_steps": 10,
    "optim__name": "adam",
    "augment__preset": "dlc",
    "augment__move_p": 0.5,
    "eval__predict_videos": "yes",
}
# Processes and the devices of each.
ALONE = (1, 1)
LAYOUTS = [(1, 2), (1, 3), (1, 4), (1, 8), (2, 1), (3, 1), (2, 2)]
NETWORKS = {norm: {"model__norm": norm} for norm in ("group", "frozen", "shard")}
NETWORKS["mobilenet_v2"] = {"model__norm": "shard", "model__backbone": "mobilenet_v2"}
NETWORKS["context"] = {"model__norm": "group", "model__kind": "heatmap_context"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("layouts")
    small_project(path / "project")
    return path


def started(config: c.Config, layout: tuple[int, int]) -> subprocess.Popen[str]:
    """The run in processes of their own; they are one process group."""
    processes, devices = layout
    folder = Path(f"{config.out}-{processes}x{devices}-logs")
    folder.mkdir()
    verb = ["jaxpose.train"]
    if processes > 1:
        options = [f"--processes={processes}", f"--devices_per_process={devices}", f"--log_dir={folder / 'logs'}"]
        verb = ["jaxpose.launch", *options, "--"]
    variables = environment() | {"JAX_NUM_CPU_DEVICES": str(devices)}
    return subprocess.Popen(
        [sys.executable, "-m", *verb, *command(config, folder)],
        cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def end(config: c.Config, layout: tuple[int, int]) -> Path:
    """The run's folder, after it has ended on this layout."""
    process = started(config, layout)
    text, _ = process.communicate()
    assert process.returncode == 0, text
    run = Path(config.out)
    if layout[0] > 1 and "the videos are not predicted by several processes" in text:
        predict = [sys.executable, "-m", "jaxpose.predict", "--run", str(run), f"{config.data.project}/videos"]
        subprocess.run(predict, cwd=ROOT, env=environment() | {"JAX_NUM_CPU_DEVICES": "1"}, check=True)
    return run


def kill(config: c.Config, layout: tuple[int, int], step: int) -> None:
    """Takes a run up to a step on this layout, and kills all its processes."""
    process = started(config, layout)
    wait_for_step(Path(config.out), step, lambda: process.poll() is None)
    os.killpg(process.pid, signal.SIGKILL)
    text, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, text


def assert_same_files(run: Path, other: Path) -> None:
    assert_same_run(run, other)
    tables = [{name: data for name, data in files_in(folder / "video_preds").items()} for folder in (run, other)]
    assert len(tables[0]) >= 3 and tables[0] == tables[1]


@pytest.mark.slow
def test_a_run_killed_on_two_layouts_and_ended_on_a_third_is_equal_bit_for_bit(folder: Path) -> None:
    options = OPTIONS | NETWORKS["shard"] | {"train__steps": 40}
    alone = end(small(folder, "alone", **options), ALONE)
    config = small(folder, "moved", **options)
    kill(config, (2, 1), 12)
    kill(config, (1, 3), 25)
    moved = end(config, (1, 8))
    assert_same_files(moved, alone)
    text = log_of(moved)
    assert text.count("resumes from step") == 2 and "up to rounding" not in text
    assert "4 shards, 4 of 8 devices have none" in text


@pytest.mark.slow
def test_several_animals_with_clips_of_those_that_were_found_are_equal_bit_for_bit(tmp_path: Path) -> None:
    """Two processes find the boxes; a run that moves goes on with them."""
    make_project(tmp_path / "project", videos=2, labelled_frames=8, video_frames=16, side_px=64, animals=3)
    options = OPTIONS | {"data__split": "frame", "eval__predict_videos": "no", "video__sequence_length": 3}
    options |= {"optim__lr": 1e-2, "train__steps": 40, "train__save_every_steps": 10, "augment__preset": "none"}
    alone = end(small(tmp_path, "alone", **options), ALONE)
    config = small(tmp_path, "moved", **options)
    kill(config, (2, 1), 12)
    moved = end(config, (1, 4))
    for part in ("finder", ""):
        assert_same_run(moved / part, alone / part)
    assert (moved / "clip_boxes.csv").read_bytes() == (alone / "clip_boxes.csv").read_bytes()


@pytest.mark.full
def test_an_ensemble_killed_on_one_layout_and_ended_on_another_is_equal_bit_for_bit(folder: Path) -> None:
    options = OPTIONS | NETWORKS["shard"] | {"train__members": 2, "train__steps": 60, "eval__predict_videos": "no"}
    alone = end(small(folder, "ensemble", **options), ALONE)
    config = small(folder, "ensemble-moved", **options)
    kill(config, (2, 1), 20)
    kill(config, (1, 3), 40)
    moved = end(config, (1, 2))
    for member in ("members/0", "members/1"):
        assert_same_run(moved / member, alone / member)
    for name in ("predictions.csv", "predictions_ensemble.csv", "calibration.json"):
        assert (moved / name).read_bytes() == (alone / name).read_bytes()


@pytest.mark.full
@pytest.mark.parametrize("network", NETWORKS)
def test_a_run_on_any_layout_is_equal_bit_for_bit(folder: Path, network: str) -> None:
    options = OPTIONS | NETWORKS[network]
    if network == "frozen":
        # It needs the statistics of an earlier run.
        first = {"train__steps": 10, "train__val_every_epochs": 10, "eval__predict_videos": "no"}
        earlier = end(small(folder, "earlier", **(OPTIONS | NETWORKS["shard"] | first)), ALONE)
        options["train__init_from"] = str(earlier)
    alone = end(small(folder, f"{network}-1", **options), ALONE)
    for layout in LAYOUTS:
        run = end(small(folder, f"{network}-{layout[0]}-{layout[1]}", **options), layout)
        assert_same_files(run, alone)
    config = small(folder, f"{network}-moved", **options)
    kill(config, (3, 1), 60)
    kill(config, (1, 2), 130)
    assert_same_files(end(config, (2, 2)), alone)
