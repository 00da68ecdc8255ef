"""Runs that one worker makes and all workers of a test session read."""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose.run.identity import read_config, write_config
from tests.small_run import forget_programs, make_config, small_project, train, train_and_stop


def session_folder(factory: pytest.TempPathFactory) -> Path:
    """The temporary folder of the whole session, which its workers share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Returns a folder of the session's; the first worker that asks for it fills it, the others wait.

    What a worker leaves that failed is made anew by the next one. Tests copy what they change.

    Args:
      factory: pytest's.
      name: of the folder.
      make: fills the folder, which exists and is empty.
    """
    folder = session_folder(factory) / name
    done = folder.with_name(f"{name}.done")
    with open(folder.with_name(f"{name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def make_trained(folder: Path) -> None:
    """Makes `run` beside its `project`: see the fixture `trained_run`."""
    project = small_project(folder / "project")
    labels = pd.read_csv(project / "CollectedData.csv", header=[0, 1, 2], index_col=0)
    new = labels.iloc[[1, 7, 13]][["synthetic"]].loc[:, (slice(None), ["tail_base", "nose"], slice(None))]
    new = new.rename(columns={"nose": "snout"})
    new.to_csv(project / "CollectedData_new.csv")
    config = c.Config(
        out=str(folder / "run"),
        data=c.DataConfig(project=str(project), split="video", train_share=0.4, val_share=0.3),
        augment=c.AugmentConfig(preset="none"),
        model=c.ModelConfig(backbone="resnet10", width=8),
        optim=c.OptimConfig(lr=5e-3),
        train=c.TrainConfig(steps=40, batch_size=6, val_every_epochs=40),
        mesh=c.MeshConfig(devices=1),
        log=c.LogConfig(tensorboard=False),
        eval=c.EvalConfig(predict_videos="no"),
    )
    config.data.input_width_px = config.data.input_height_px = 64
    assert train(config)["exit_code"] == 0


def move_run(made: Path, folder: Path) -> Path:
    """Copies `run` and its `project` into a folder, as if it had been trained there; returns the run."""
    for name in ("project", "run"):
        shutil.copytree(made / name, folder / name)
    run = folder / "run"
    config = read_config(run / "config.json")
    config.data.project, config.out = str(folder / "project"), str(run)
    write_config(run / "config.json", config)
    return run


def make_whole(project: Path, folder: Path) -> None:
    """Trains 40 steps; the profiler's window ends after the last one. compilations.json names what was compiled."""
    compilations: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("Finished XLA compilation of "):
                compilations.append(record.getMessage().split()[4])

    forget_programs()
    run, listener, logger = folder / "run", Listener(), logging.getLogger("jax._src.dispatch")
    logger.addHandler(listener)
    with jax.log_compiles():
        summary = train(make_config(project, run, log__profile_steps="40:400", log__frames=3))
    logger.removeHandler(listener)
    assert summary["out"] == str(run) and summary["exit_code"] == 0
    assert (summary["steps"], summary["reason"]) == (40, "done")
    (folder / "compilations.json").write_text(json.dumps(compilations))


def make_stopped(project: Path, folder: Path) -> None:
    """Trains as `make_whole` does, but for a SIGTERM soon after the first validation."""
    run = folder / "run"
    summary = train_and_stop(make_config(project, run, log__profile_steps="10:400"), 11)
    assert summary["exit_code"] == 85 and summary["reason"] == "interrupted"
    assert 11 <= summary["steps"] < 40
    assert f"saved at step {summary['steps']}; the same command resumes from there" in (run / "train.log").read_text()
