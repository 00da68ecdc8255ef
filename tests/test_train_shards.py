"""Trainings with train.shards: on any devices, and after a move to others, every file has the same bits."""

from pathlib import Path
from typing import Any

import pytest

from jaxpose.checksums import read_json
from jaxpose.errors import UserError
from tests.small_run import assert_same_run, checkpoint_of, log_of, make_config, train, train_and_stop_when
from tests.training.setups import begin

# 3 shards of a batch of 5: the last one has an empty slot. 4 steps, 2 of them before the first validation. It compiles
# faster without warps, which test_sharded_step.py has.
SHARDS: dict[str, Any] = {
    "augment__preset": "none",
    "model__norm": "shard",
    "train__shards": 3,
    "train__steps": 4,
    "train__val_every_epochs": 1.0,
    "log__tensorboard": False,
}


@pytest.fixture(scope="module")
def run_on_one(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("shards") / "one"
    assert train(make_config(project, run, **SHARDS))["exit_code"] == 0
    return run


@pytest.mark.full
def test_a_run_on_other_devices_is_equal_bit_for_bit(project: Path, tmp_path: Path, run_on_one: Path) -> None:
    """Of the mark `slow`, tests/test_shard_layouts.py has a run on three layouts."""
    run = tmp_path / "run"
    assert train(make_config(project, run, **SHARDS, mesh__devices=2))["exit_code"] == 0
    assert_same_run(run, run_on_one)
    assert "3 shards" in log_of(run)


@pytest.mark.full
def test_without_shards_a_move_is_said(project: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    changes: dict[str, Any] = SHARDS | {"model__norm": "group", "train__shards": -1}
    config = make_config(project, run, **changes)
    assert train_and_stop_when(config, lambda: (run / "checkpoints").exists() and "step" in log_of(run))["exit_code"]
    step = int(checkpoint_of(run).step)
    if step == 0:
        pytest.fail("the signal came before the first step")
    assert train(make_config(project, run, **changes, mesh__devices=2))["exit_code"] == 0
    assert f"from step {step} on, numbers are equal up to rounding, not bit for bit: parts 1 -> 2" in log_of(run)
    assert [entry["parts"] for entry in read_json(run / "arithmetic.json")["stretches"]] == [1, 2]


def test_a_jax_that_was_started_before_with_other_threads_is_told_of(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook that has used JAX. XLA has read the variable long ago."""
    monkeypatch.setenv("PJRT_NPROC", "12")
    setup = begin(make_config(project, tmp_path / "run", model__norm="shard"))
    said = "JAX was started before with 12 threads, not 8: the last bits are those of 12 threads"
    assert any(said in message for message in setup.messages)


def test_threads_that_jax_does_not_have_are_refused(project: Path, tmp_path: Path) -> None:
    config = make_config(project, tmp_path / "run", **SHARDS, mesh__cpu_threads=5)
    with pytest.raises(UserError, match="mesh.cpu_threads is 5, but JAX runs with 8 threads"):
        train(config)
