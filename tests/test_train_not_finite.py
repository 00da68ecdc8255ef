"""Steps of a training that are not finite: they are not taken, they are named, and too many of them end the run."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

from jaxpose import predict
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.identity import read_config, write_config
from tests.small_run import assert_same, call, checkpoint_of, copy_of, log_of, make_config, metrics_of

pytestmark = pytest.mark.faults


def test_an_update_that_overflows_is_not_taken(
    stopped: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Loss and gradient are finite: Adam's mean divided by its deviation is not."""
    run = copy_of(stopped, tmp_path)
    state = checkpoint_of(run)
    at, adam = int(state.step), next(part for part in state.optimizer if hasattr(part, "mu"))
    last = max(adam.mu["head"]["layers"])
    adam.mu["head"]["layers"][last]["kernel"][0, 0, 0, 0] = 3e38
    adam.nu["head"]["layers"][last]["kernel"][0, 0, 0, 0] = 0.0
    with Checkpoints(run / "checkpoints") as checkpoints:
        checkpoints.save(at, state, {}, False)
    config = make_config(project, run, log__profile_steps="2:400")
    assert call(config, tmp_path) == 1
    assert f"3 steps in a row were not finite, up to step {at + 3}: stopped" in capsys.readouterr().err
    lines = [line for line in log_of(run).splitlines() if " skipped: loss " in line]
    assert len(lines) == 3
    for line in lines:
        assert re.search(r"loss [\d.]+, gradient norm [\d.e-]+; not finite: the new parameters, .* rate 0.005\)$", line)
    # The state of before stands.
    assert_same(checkpoint_of(run), state)


def test_too_many_such_steps_end_the_run_and_leave_a_good_checkpoint(
    stopped: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = copy_of(stopped, tmp_path)
    state = checkpoint_of(run)
    at = int(state.step)
    state.params["backbone"]["conv1"]["kernel"][0, 0, 0, 0] = np.inf
    with Checkpoints(run / "checkpoints") as checkpoints:
        checkpoints.save(at, state, {}, False)
    kept = {path.name for path in (run / "checkpoints").iterdir()}
    assert "10" in kept
    capsys.readouterr()
    config = make_config(project, run, train__save_every_steps=1, log__profile_steps="1:400")
    assert call(config, tmp_path) == 1
    err = capsys.readouterr().err
    assert f"3 steps in a row were not finite, up to step {at + 3}: stopped; the last checkpoint is of step {at}" in err
    assert "Traceback" not in err
    lines = [line for line in log_of(run).splitlines() if " skipped: loss " in line]
    assert [line.split()[3] for line in lines] == [str(at + n) for n in (1, 2, 3)]
    table = pd.read_csv(run / "split.csv")
    training = set(table["path"][table["set"] == "train"])
    for line in lines:
        frames = line.split("the loss of ")[1].split(", ")
        assert len(frames) == 5 and set(frames) <= training
    # The checkpoints before the trouble were not pushed out by later ones, and the best one predicts.
    assert {path.name for path in (run / "checkpoints").iterdir()} == kept
    keypoints, confidence = predict.load(run, devices=1).predict(np.zeros((1, 64, 64, 3), np.uint8))
    assert np.isfinite(keypoints).all() and np.isfinite(confidence).all()
    # The profiler was stopped on this way out too.
    jax.profiler.start_trace(str(tmp_path / "trace"))
    jax.profiler.stop_trace()


def test_a_run_without_any_finite_step_fails_each_time(
    stopped: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = copy_of(stopped, tmp_path)
    state = checkpoint_of(run)
    state.params["backbone"]["conv1"]["kernel"][0, 0, 0, 0] = np.inf
    state = dataclasses.replace(state, step=np.int32(38), skipped_in_row=np.int32(38))
    with Checkpoints(run / "checkpoints") as checkpoints:
        checkpoints.save(38, state, {}, False)
    stored = read_config(run / "config.json")
    stored.train.max_skipped_steps = 100
    write_config(run / "config.json", stored)
    config = make_config(project, run, log__profile_steps="2:400", train__max_skipped_steps=100)
    for _ in range(2):
        assert call(config, tmp_path) == 1
        err = capsys.readouterr().err
        assert "jaxpose.train: none of the 40 steps was finite, so nothing was trained. Try a new run" in err
        assert not (run / "finished.json").exists()


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_rate_above_float32_trains_nothing_and_says_so(
    project: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    config = make_config(project, run, optim__name=name, optim__lr=1e39, train__steps=1)
    assert call(config, tmp_path) == 1
    assert "none of the 1 steps was finite, so nothing was trained" in capsys.readouterr().err
    assert "not finite: the new parameters" in log_of(run)
    assert not (run / "finished.json").exists() and not (run / "best.safetensors").exists()


def test_a_loss_on_clips_that_is_not_finite_is_named(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The largest weight that there may be makes a loss of more than 1 px infinite."""
    run = tmp_path / "run"
    changes: dict[str, Any] = {"losses__temporal__weight": 3e38, "losses__temporal__epsilon_px": (0.0,)}
    changes |= {"losses__temporal__confidence_min": 0.0, "losses__anneal_init": 1.0, "video__sequence_length": 7}
    changes |= {"augment__preset": "none", "augment__flip_p": 0.0, "log__tensorboard": False}
    config = make_config(project, run, **changes, train__steps=3, train__max_skipped_steps=4)
    assert call(config, tmp_path) == 1
    assert "none of the 3 steps was finite" in capsys.readouterr().err
    lines = metrics_of(run)
    for step in (1, 2, 3):
        (line,) = [line for line in log_of(run).splitlines() if f" step {step} skipped: loss inf" in line]
        mean = next(line["temporal"] for line in lines if line["step"] == step)
        assert f"not finite: losses.temporal (mean {mean:g}, times 3e+38) of session0" in line
        assert "labeled-data" not in line and re.search(r"frames \d+ to \d+$", line)
    (line,) = [line for line in log_of(run).splitlines() if " step 3/3 " in line]
    assert f"loss inf  supervised_loss {lines[2]['supervised_loss']:.4g}  temporal {mean:.4g}  " in line


def test_a_learning_rate_that_is_too_high_ends_the_run(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    config = make_config(project, tmp_path / "run", optim__name="sgd", optim__milestones_epochs=(3,),
                         optim__gamma=1e30, optim__clip_norm=0.0, train__save_every_steps=2)  # fmt: skip
    assert call(config, tmp_path) == 1
    text = capsys.readouterr()
    assert "3 steps in a row were not finite" in text.err and text.out.count(" skipped: loss ") == 3
    steps = sorted(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert steps[-1] <= 8
    state = checkpoint_of(tmp_path / "run", "best")
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
