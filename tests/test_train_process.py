"""`python -m jaxpose.train` as processes that get real signals: what the exit code says, and where the run goes on."""

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.small_run import assert_same_run, checkpoint_of, make_config, train
from tests.train_process import Process

STEPS = 150
LENGTH: dict[str, Any] = {"train__steps": STEPS, "train__val_every_epochs": 25, "log__frames": 0}
# It traces faster; tests/remote/test_remote_train.py has processes that go on with augmentation.
LENGTH |= {"augment__preset": "none", "augment__flip_p": 0.0}
# A teacher, whose thresholds and moving average must come back.
LENGTH |= {"losses__consistency__weight": 1.0, "losses__consistency__frames_per_step": 3}
LENGTH |= {"losses__consistency__start_steps": 10, "losses__consistency__ramp_steps": 20}


@pytest.fixture(scope="module")
def undisturbed(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the tests below, from Python and without an interruption."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    assert train(make_config(project, run, **LENGTH))["steps"] == STEPS
    return run


@pytest.mark.faults
def test_a_clock_that_is_set_back_changes_no_bit(
    undisturbed: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a day, after the first steps."""
    run, real = tmp_path / "run", time.time
    metrics = run / "metrics.jsonl"
    told = []

    def read_clock() -> float:
        is_back = metrics.exists() and metrics.stat().st_size > 0
        told.append(is_back)
        return real() - 86_400 * is_back

    monkeypatch.setattr(time, "time", read_clock)
    train(make_config(project, run, **LENGTH, mesh__heartbeat_s=1.0))
    assert {*told} == {False, True}
    assert_same_run(run, undisturbed)


@pytest.mark.faults
def test_stopped_by_sigterm_by_ctrl_c_and_by_kill_it_goes_on_bit_for_bit(
    undisturbed: Path, project: Path, tmp_path: Path
):
    """And when it is only frozen for longer than others would wait for it, nothing happens at all."""
    run, heartbeat_s = tmp_path / "run", 1.0
    config = make_config(project, run, **LENGTH, mesh__heartbeat_s=heartbeat_s)
    at = 0
    for number, code in ((signal.SIGTERM, 85), (signal.SIGINT, 130)):
        process = Process(config, tmp_path)
        process.send_after(at + 7, number)
        found, out, err = process.end()
        assert found == code, err
        before, at = at, int(checkpoint_of(run).step)
        assert before + 7 <= at < STEPS
        assert out.endswith(f"stopped by a signal, saved at step {at}; the same command resumes from there\n")
        times = {signal.SIGTERM: "twice", signal.SIGINT: "again"}[number]
        assert f"{number.name}: saving at the next step, press Ctrl-C {times} to leave at once" in err
        assert "Traceback" not in err and (f"resumes from step {before}\n" in out) == (before > 0)
    process = Process(config, tmp_path)
    process.send_after(at + 11, signal.SIGKILL)
    assert process.end()[0] == -signal.SIGKILL
    assert not (run / "finished.json").exists()
    process = Process(config, tmp_path)
    process.send_after(at + 20, signal.SIGSTOP)
    time.sleep(2 * heartbeat_s)
    process.child.send_signal(signal.SIGCONT)
    found, out, err = process.end()
    assert (found, err) == (0, "")
    assert "resumes from step " in out and out.endswith(f"everything is in {run}\n")
    assert_same_run(run, undisturbed)


@pytest.mark.faults
def test_killed_at_any_moment_it_goes_on_bit_for_bit(undisturbed: Path, project: Path, tmp_path: Path):
    """While it starts, compiles, steps, validates, saves and evaluates; its log holds every step once."""
    run, rng = tmp_path / "run", np.random.default_rng()
    config = make_config(project, run, **LENGTH, train__save_every_steps=3)
    for after_s in 2 * (np.arange(4) + rng.uniform(0, 1, 4)):
        process = Process(config, tmp_path)
        time.sleep(after_s)
        process.child.kill()
        code, _, err = process.end()
        assert code in (0, -signal.SIGKILL) and "Traceback" not in err, (after_s, err)
    code, out, err = Process(config, tmp_path).end()
    assert code == 0, err
    assert_same_run(run, undisturbed)


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_first_step_ends_the_start_at_once_and_loses_nothing(
    undisturbed: Path, project: Path, tmp_path: Path, number: signal.Signals
):
    run = tmp_path / "run"
    config = make_config(project, run, **LENGTH)
    process = Process(config, tmp_path)
    # The lock is taken just before the signals are.
    while not (run / "split.csv").exists():
        time.sleep(0.01)
    time.sleep(0.2)
    process.child.send_signal(number)
    code, out, err = process.end()
    assert code == {signal.SIGTERM: 85, signal.SIGINT: 130}[number], err
    assert err.startswith(f"jaxpose.train: stopped by {number.name}") and err.count("\n") == 1
    assert not list(run.glob("checkpoints/*/manifest.json")) and not (run / "finished.json").exists()
    if number == signal.SIGTERM:  # what either signal leaves is the same
        assert Process(config, tmp_path).end()[0] == 0
        assert_same_run(run, undisturbed)
