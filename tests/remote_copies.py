"""Run folders of noise with a copy away from the machine, and what that copy holds."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from fsspec.implementations.memory import MemoryFileSystem

from jaxpose import config as c
from jaxpose.cluster.signals import Interrupt
from jaxpose.files import write_atomic
from jaxpose.remote.copy import Mirror, RemoteCopy
from jaxpose.remote.restore import restore
from jaxpose.remote.store import RemoteFolder
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.folder import RunFolder, open_run
from tests.remote_stores import EveryThird, Switched
from tests.small_run import files_in

SPLIT = "path,bytes,sha256,set\na.png,1,aa,train\n"


def config_of(out: Path, url: str, **changes: Any) -> c.Config:
    config = c.Config(out=str(out), log=c.LogConfig(remote_url=url, remote_every_s=0.1))
    config.data.project = "/nowhere"
    for name, value in changes.items():
        section, _, option = name.rpartition("__")
        setattr(getattr(config, section) if section else config, option, value)
    return config


def opened(config: c.Config) -> RunFolder:
    return open_run(config, SPLIT, lambda path: restore(config, path))


def save(run: Path, *steps: int, best: int = -1) -> None:
    with Checkpoints(run / "checkpoints") as checkpoints:
        for step in steps:
            noise = np.random.default_rng(step).normal(size=(40, 30))
            checkpoints.save(step, {"w": noise, "step": np.int32(step)}, {}, is_best=step == best)
            assert checkpoints.wait()


def save_and_upload(run: Path, url: str, steps: list[int]) -> None:
    """A run that saves some steps; its exit code is that of the run."""
    config = config_of(run, url)
    with opened(config) as folder, RemoteCopy(folder, config.log) as copy:
        write_atomic(run / "predictions.csv", bytes(30_000_000))
        print("ready", flush=True)
        for step in steps:
            save(run, step)
            with open(run / "metrics.jsonl", "a") as stream:
                stream.write(f'{{"step": {step}, "time_s": 0}}\n')
        sys.exit(copy.finish({"exit_code": 0}, Interrupt())["exit_code"])


def save_endlessly(folder: Path) -> None:
    """Prints each step once its checkpoint is acknowledged."""
    jax.config.update("jax_platforms", "cpu")
    checkpoints = Checkpoints(folder)
    for step in range(1, 1000):
        checkpoints.save(step, {"w": np.full((600, 600), float(step)), "step": np.int32(step)}, {"note": step}, False)
        checkpoints.wait()
        print(step, flush=True)


def restored_step(run: Path, which: str = "newest") -> int | None:
    with Checkpoints(run / "checkpoints") as checkpoints:
        found = checkpoints.restore({"w": np.zeros((40, 30)), "step": np.int32(0)}, which)
    if found is None:
        return None
    np.testing.assert_array_equal(found[1]["w"], np.random.default_rng(found[0]).normal(size=(40, 30)))
    return found[0]


def synced(folder: RunFolder, url: str) -> Mirror:
    mirror = Mirror(folder.path, RemoteFolder(url, folder.path.name), folder.action == "start")
    mirror.sync()
    return mirror


def files_at(url: str, name: str = "run") -> dict[str, bytes]:
    """Every file of a copy, without the code under test."""
    stores: dict[str, type[MemoryFileSystem]] = {
        "memory": MemoryFileSystem,
        "everythird": EveryThird,
        "switched": Switched,
    }
    protocol, separator, folder = url.partition("://")
    if not separator:
        return dict(files_in(Path(url) / name))
    prefix = f"/{folder}/{name}/"
    entries = list(stores[protocol].store.items())
    return {path.removeprefix(prefix): file.getvalue() for path, file in entries if path.startswith(prefix)}


def assert_whole(url: str, run: Path) -> None:
    """The copy has what the run folder has, checksums included, and nothing else."""
    here = {path: data for path, data in files_in(run).items() if path != ".lock"}
    there = files_at(url, run.name)
    record = json.loads(there.pop("copied.json"))["files"]
    assert there == here
    assert record == {path: [len(data), hashlib.sha256(data).hexdigest()] for path, data in here.items()}
