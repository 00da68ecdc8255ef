"""A run that ended early, was stopped or is finished: what becomes of it with the same command."""

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.weights import load_parameters
from jaxpose.video import decoding as video_range
from tests.small_run import (
    assert_same,
    call,
    checkpoint_of,
    copy_of,
    files_in,
    log_of,
    make_config,
    metrics_of,
    train,
    train_and_stop,
    train_and_stop_when,
)


def test_early_stop_and_best_by_any_metric_and_the_patience_outlives_a_restart(project: Path, tmp_path: Path):
    run = tmp_path / "run"
    options: dict[str, Any] = dict(train__monitor="val_mean_px_error", train__monitor_mode="max",
                                   train__early_stop_patience=3, train__val_every_epochs=0.5,
                                   train__save_every_steps=1)  # fmt: skip
    summary = train(make_config(project, run, **options))
    assert (summary["reason"], summary["exit_code"]) == ("early stop", 0)
    values = [line["val_mean_px_error"] for line in metrics_of(run) if "val_loss" in line]
    # Three in a row without a better one, for the first time at the end; the best one is the third from the last.
    is_best = [value > max([-np.inf, *values[:place]]) for place, value in enumerate(values)]
    assert is_best[-4:] == [True, False, False, False]
    assert not any(is_best[place : place + 3] == [False] * 3 for place in range(len(values) - 3))
    assert summary["steps"] == len(values) and summary["best_step"] == len(values) - 3
    said = f"stopped early at step {len(values)}: 3 validations without a better val_mean_px_error"
    assert log_of(run).count(said) == 1
    weights = load_parameters(run / "best.safetensors")
    # Killed before the last checkpoint, with a patience of one left; and killed after it, before the end.
    for lost in (True, False):
        (run / "finished.json").unlink()
        if lost:
            shutil.rmtree(run / "checkpoints" / str(len(values)))
        again = train(make_config(project, run, **options))
        assert f"resumes from step {len(values) - lost}" in log_of(run)
        assert (again["steps"], again["reason"], again["best_step"]) == (len(values), "early stop", len(values) - 3)
        assert_same(load_parameters(run / "best.safetensors")[0], weights[0])
        assert load_parameters(run / "best.safetensors")[1] == weights[1]
    assert log_of(run).count(said) == 3


@pytest.mark.faults
def test_exit_code_of_a_signal_promises_that_the_state_was_saved(
    stopped: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = copy_of(stopped, tmp_path)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").write_text("in the way")
    (run / "metrics.jsonl").unlink()
    summary = train_and_stop(make_config(project, run), 11)
    assert (summary["exit_code"], summary["reason"]) == (1, "interrupted")
    assert f"no whole checkpoint in {run}/checkpoints: starts again at step 0" in log_of(run)
    assert "could not be saved (see the warning above); the same command resumes from step 0" in log_of(run)
    # Nor is a run finished whose last state could not be saved.
    summary = train(make_config(project, run))
    assert (summary["exit_code"], summary["reason"]) == (1, "not saved")
    assert not (run / "finished.json").exists() and not (run / "best.safetensors").exists()
    assert "was not saved: " in capsys.readouterr().err


def test_a_finished_run_says_so_and_a_changed_one_is_refused(
    whole: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    # A process that opens the run writes its number into the lock; another worker of the tests may have made the run.
    (whole / ".lock").unlink(missing_ok=True)
    before = files_in(whole)
    assert call(make_config(project, whole, log__frames=3), tmp_path) == 0
    assert capsys.readouterr().out == (
        f"{whole} is finished; nothing to do (resume=extend with more train.steps or train.epochs trains "
        "longer, resume=overwrite starts over, jaxpose predict predicts videos)\n"
    )
    assert (
        train(make_config(project, whole))["best_step"]
        == json.loads((whole / "finished.json").read_text())["best_step"]
    )
    assert call(make_config(project, whole, optim__lr=0.1), tmp_path) == 2
    assert "holds another run; differing: optim.lr 0.005 -> 0.1. Choose another out" in capsys.readouterr().err
    assert call(make_config(project, whole, resume="never"), tmp_path) == 2
    (whole / ".lock").unlink(missing_ok=True)
    assert files_in(whole) == before


def test_dry_run_tells_what_would_become_of_the_run_folder(
    whole: Path, stopped: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = copy_of(stopped, tmp_path)
    with Checkpoints(run / "checkpoints") as checkpoints:
        step = checkpoints.steps()[-1]
    before = files_in(run), files_in(whole)
    for out, resume, text in (
        (run, "auto", f"run folder   {run}: would resume from step {step}\n"),
        (run, "overwrite", f"run folder   {run}: would start over and delete what jaxpose wrote there\n"),
        (whole, "must", f"run folder   {whole}: is finished, nothing would be done\n"),
    ):
        assert call(make_config(project, out, resume=resume), tmp_path, "--dry_run") == 0
        assert text in capsys.readouterr().out
    assert call(make_config(project, run, optim__lr=0.1), tmp_path, "--dry_run") == 2
    assert "holds another run; differing: optim.lr 0.005 -> 0.1" in capsys.readouterr().err
    assert (files_in(run), files_in(whole)) == before


def test_must_refuses_to_start_again(stopped: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = copy_of(stopped, tmp_path)
    first, *others = (run / "checkpoints").glob("*/manifest.json")
    first.write_text("{")
    for manifest in others:
        manifest.unlink()
    before = files_in(run)
    assert call(make_config(project, run, resume="must"), tmp_path) == 2
    message = f"resume is must, but there is no whole checkpoint in {run}/checkpoints; use resume=auto to start again"
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[-1]
    damaged = f"jaxpose.train: checkpoint {first.parent} is damaged ("
    assert [line.startswith("jaxpose.train: ") for line in lines] == [True] * len(lines)
    assert sum(line.startswith(damaged) for line in lines) == 1
    after = files_in(run)
    noted = (".lock", "config.json", "status.json")
    assert [name for name in before if name not in noted and before[name] != after[name]] == []


@pytest.mark.slow
def test_goes_on_on_another_number_of_devices_within_the_order_of_sums(
    whole: Path, stopped: Path, project: Path, tmp_path: Path
):
    run = copy_of(stopped, tmp_path)
    at = int(checkpoint_of(run).step)
    summary = train(make_config(project, run, mesh__devices=3))
    assert summary["exit_code"] == 0 and f"resumes from step {at}" in log_of(run)
    ours, theirs = ([line for line in metrics_of(folder) if "loss" in line] for folder in (run, whole))
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    assert ours[:at] == theirs[:at]
    losses = np.array([[line["loss"] for line in lines] for lines in (ours, theirs)])
    apart = np.abs(losses[0] / losses[1] - 1)
    # Measured 3e-7 over these steps; a wrong sum is off by 1e-2 and more. Later, batch norms over 5 values and Adam
    # make of each rounding whatever they like.
    assert apart[at] < 1e-5 and apart[at : at + 5].max() < 1e-4


@pytest.mark.faults
def test_a_signal_ends_the_decoding_that_the_first_step_waits_for(
    project: Path, tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    run, fit = tmp_path / "run", video_range.fit_numbered
    changes: dict[str, Any] = {"losses__temporal__weight": 1e-3, "losses__temporal__epsilon_px": (1.0,)}
    # It compiles faster.
    changes |= {"augment__preset": "none", "augment__flip_p": 0.0, "log__tensorboard": False}
    config = make_config(project, run, **changes, video__sequence_length=7, train__steps=2, train__val_every_epochs=1)

    def fit_slowly(*given: Any) -> np.ndarray:
        time.sleep(0.3)
        return fit(*given)

    def decodes() -> bool:
        return (run / "train.log").exists() and " decodes " in log_of(run)

    with monkeypatch.context() as patch:
        patch.setattr(video_range, "fit_numbered", fit_slowly)
        summary = train_and_stop_when(config, decodes)
        # The signal comes within the first of 33 frames.
        assert (summary["exit_code"], summary["reason"], summary["steps"]) == (85, "interrupted", 0)
        # Other threads may be at a frame of another video.
        while any(entry.suffix == ".tmp" for entry in (cache_folder / "frames").iterdir()):
            time.sleep(0.01)
    # The labelled frames, and nothing of a video.
    (entry,) = (cache_folder / "frames").iterdir()
    assert len(np.load(entry)) == 18
    assert re.search(r" decodes \S+/videos/session0[0-2].mp4, 33 frames, into ", log_of(run))
    assert "stopped by a signal, saved at step 0; the same command resumes from there" in log_of(run)
    assert int(checkpoint_of(run).step) == 0
