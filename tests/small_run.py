"""Small runs through the verb, with what is compiled shared by all of them and by the processes that they start."""

import contextlib
import dataclasses
import functools
import json
import logging
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from jaxpose import config as c
from jaxpose import train as verb
from jaxpose.cluster.mesh import DeviceProgram
from jaxpose.config import command_line
from jaxpose.config.model import views_at_once
from jaxpose.data.synthetic import make_project
from jaxpose.model.pose_net import make_network
from jaxpose.prediction import worker
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.load import read_run_config
from jaxpose.run.weights import load_parameters
from jaxpose.steps.predict_step import build_evaluate, build_predict
from jaxpose.steps.sharded_step import ShardedStep
from jaxpose.steps.state import State, initial_state
from jaxpose.steps.terms import DataFacts
from jaxpose.threads import allowed_cores, arithmetic_threads

# Everything that moves is on: flips and the other warps, clipping, moving averages. 6 frames train (2 steps an epoch),
# and 6 validate, in batches of 5 and 1.
OPTIONS = {
    "data.split": "video",
    "data.train_share": 0.4,
    "data.val_share": 0.3,
    "data.input_width_px": 32,
    "data.input_height_px": 32,
    "augment.flip_p": 0.5,
    "model.backbone": "resnet10",
    "model.width": 8,
    "model.head_width": 8,
    "optim.lr": 5e-3,
    "optim.ema_decay": 0.9,
    "optim.clip_norm": 1.0,
    "train.steps": 40,
    "train.batch_size": 5,
    "train.val_every_epochs": 5.0,
    "train.max_skipped_steps": 3,
    "mesh.devices": 1,
    "eval.batch_size": 4,
    "eval.predict_videos": "no",
    "log.every_steps": 1,
    "log.report": False,
}


def small_project(folder: Path) -> Path:
    """The synthetic project of every small run: 3 videos with 6 labelled frames of 64 px each."""
    return make_project(folder, videos=3, labelled_frames=6, video_frames=33, side_px=64)


def make_config(project: Path, out: Path, **changes: Any) -> c.Config:
    """The config of a small run; a change is written train__steps=3."""
    config = c.Config()
    options = {"data.project": str(project), "out": str(out)} | OPTIONS
    for name, value in (options | {name.replace("__", "."): value for name, value in changes.items()}).items():
        *sections, option = name.split(".")
        setattr(functools.reduce(getattr, sections, config), option, value)
    return config


def train(config: c.Config) -> dict[str, Any]:
    """jaxpose.train.train."""
    return verb.train(config)


def command(config: c.Config, folder: Path, *more: str) -> list[str]:
    """The arguments of python -m jaxpose.train for a config, by way of a config file in a folder."""
    file = folder / "experiment.py"
    file.write_text(
        f"from jaxpose import config as c\n\n\ndef get_config():\n    return c.from_json({c.to_json(config)!r})\n"
    )
    return ["--config", str(file), *more]


def call(config: c.Config, folder: Path, *more: str) -> int:
    """The exit code of the verb in this process."""
    return command_line.run(verb.main, command(config, folder, *more), verb="jaxpose.train", description="")


@contextlib.contextmanager
def kept_programs(folder: Path) -> Iterator[None]:
    """Within it JAX keeps what it compiles in a folder, as it does for a user who sets JAX_COMPILATION_CACHE_DIR."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    for name, value in zip(names, (str(folder), 0.2), strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in zip(names, before, strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()


class SharedSteps:
    """Makes the compiled steps of the runs of this process; runs whose steps are made of the same share one.

    To trace and lower a step takes longer than to train a small run. `forget` makes the next one anew.
    """

    # They choose the frames, or when something happens to a run. No program has them; all other options are compared.
    APART = {
        "": ("out", "resume", "log", "eval"),
        "data": ("project", "split", "train_share", "val_share", "on_bad_frame", "missing", "crop_px", "resize"),
        "train": (
            "seed", "steps", "epochs", "monitor", "monitor_mode", "val_every_epochs", "save_every_steps",
            "early_stop_patience",
        ),
    }  # fmt: skip
    MOST = 6

    def __init__(self) -> None:
        self._steps: dict[Any, ShardedStep] = {}

    def __call__(
        self, config: c.Config, graphdef: nnx.GraphDef, mesh: Mesh, facts: DataFacts, state: State, *more: Any
    ) -> ShardedStep:
        """ShardedStep, as jaxpose.training.compiled_run calls it."""
        if facts.pca or facts.views:
            return ShardedStep(config, graphdef, mesh, facts, state, *more)
        options = json.loads(c.to_json(config))
        for section, names in self.APART.items():
            for name in names:
                del (options[section] if section else options)[name]
        leaves, structure = jax.tree.flatten((state, more))
        shapes = tuple((leaf.shape, leaf.dtype) if hasattr(leaf, "shape") else leaf for leaf in leaves)
        process = allowed_cores(), arithmetic_threads(), jax.config.jax_enable_x64  # pyright: ignore
        # No other schedule depends on the length.
        length = facts.total_steps if config.optim.schedule == "cosine" else 0
        others = repr(dataclasses.replace(facts, teacher=None, total_steps=length))
        made_of = json.dumps(options), graphdef, facts.teacher, others
        key = *made_of, tuple(mesh.devices.flat), structure, shapes, process
        if key not in self._steps:
            self._steps[key] = ShardedStep(config, graphdef, mesh, facts, state, *more)
            if len(self._steps) > self.MOST:
                del self._steps[next(iter(self._steps))]
        return self._steps[key]

    def forget(self) -> None:
        """Lets the next run compile its step."""
        self._steps.clear()


class SharedForwards:
    """Makes the compiled forward passes of this process; networks of one definition share them, whatever their weights.

    `forget` makes the next ones anew.
    """

    MOST = 12

    def __init__(self) -> None:
        self._functions: dict[Any, Any] = {}
        self._programs: dict[Any, DeviceProgram] = {}

    def build(self, make: Callable) -> Callable:
        """Returns `build_evaluate` or `build_predict` that gives one function for one network."""

        def shared(config: c.Config, graphdef: nnx.GraphDef, views: Any = None) -> Callable:
            if views is not None:
                return make(config, graphdef, views)
            model = json.dumps(json.loads(c.to_json(config))["model"])
            key = make, model, config.train.precision, config.data.animals, graphdef
            return self._functions.setdefault(key, make(config, graphdef))

        return shared

    def __call__(
        self, function: Callable, devices: Sequence[Any], arguments: Sequence[Any], **options: Any
    ) -> DeviceProgram:
        """DeviceProgram, as jaxpose.prediction.batch_runner calls it."""
        leaves, structure = jax.tree.flatten(tuple(arguments))
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        key = function, tuple(devices), structure, shapes, repr(options), allowed_cores(), arithmetic_threads()
        if key not in self._programs:
            self._programs[key] = DeviceProgram(function, devices, arguments, **options)
            if len(self._programs) > self.MOST:
                del self._programs[next(iter(self._programs))]
        return self._programs[key]

    def forget(self) -> None:
        """Lets the next network compile its passes."""
        self._functions.clear()
        self._programs.clear()


SHARED_STEPS = SharedSteps()
SHARED_FORWARDS = SharedForwards()


def share_programs(patch: pytest.MonkeyPatch) -> None:
    """Lets the runs of this process share what they compile, until the patch is undone."""
    patch.setattr("jaxpose.training.compiled_run.ShardedStep", SHARED_STEPS)
    patch.setattr("jaxpose.prediction.batch_runner.DeviceProgram", SHARED_FORWARDS)
    for make in (build_evaluate, build_predict):
        patch.setattr(f"jaxpose.prediction.batch_runner.{make.__name__}", SHARED_FORWARDS.build(make))


def forget_programs() -> None:
    """Lets the next run compile all that it needs."""
    SHARED_STEPS.forget()
    SHARED_FORWARDS.forget()


def environment() -> dict[str, str]:
    """The environment of a process that shares `kept_programs` and has as many devices as the tests."""
    return os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),  # pyright: ignore
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        "JAX_NUM_CPU_DEVICES": "8",
        "JAX_PLATFORMS": "cpu",
    }


def copy_of(run: Path, folder: Path) -> Path:
    """A copy of a run, to be changed."""
    return shutil.copytree(run, folder / "run")


def log_of(run: Path) -> str:
    """The text of train.log."""
    return (run / "train.log").read_text()


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without their times."""
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name != "time_s"} for line in lines]


def figures_of(run: Path) -> list[dict[str, Any]]:
    """The lines of `metrics_of` without the times of processes that wait for each other."""
    lines = [
        {name: value for name, value in line.items() if not re.fullmatch(r"process\d+_\w+_s", name)}
        for line in metrics_of(run)
    ]
    return [line for line in lines if line.keys() > {"step"}]


def last_step(run: Path) -> int:
    """The last step in metrics.jsonl, 0 before there is one."""
    try:
        return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    except (FileNotFoundError, IndexError, ValueError):
        return 0


def wait_for_step(run: Path, step: int, is_alive: Any = lambda: True) -> None:
    """Returns once a run has logged a step, or has ended."""
    while is_alive() and last_step(run) < step:
        time.sleep(0.002)


def train_and_stop(config: c.Config, after_step: int) -> dict[str, Any]:
    """Trains in this process, which gets a real SIGTERM after a step of a run that has no metrics yet."""
    return train_and_stop_when(config, lambda: last_step(Path(config.out)) >= after_step)


def train_and_stop_when(config: c.Config, is_time: Callable[[], bool]) -> dict[str, Any]:
    """Trains in this process, which gets a real SIGTERM once it is time."""
    ended = threading.Event()

    def stop() -> None:
        while not ended.is_set() and not is_time():
            time.sleep(0.002)
        # Without a handler it would end the tests.
        if not ended.is_set() and callable(signal.getsignal(signal.SIGTERM)):
            os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=stop)
    watcher.start()
    try:
        return train(config)
    finally:
        ended.set()
        watcher.join()


def train_and_stop_at(config: c.Config, text: str) -> dict[str, Any]:
    """Trains in this process, which gets a real SIGTERM at the moment it logs that a video with this text is done."""

    class Stop(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                os.kill(os.getpid(), signal.SIGTERM)

    logger, stop = logging.getLogger(worker.__name__), Stop()
    logger.addHandler(stop)
    try:
        return train(config)
    finally:
        logger.removeHandler(stop)


@functools.lru_cache(maxsize=4)
def _state_like(text: str) -> State:
    """A state of a run's config, as JSON, with numpy arrays."""
    config = c.from_json(text)
    views = views_at_once(config.model, config.data.views)
    _, params, statistics = make_network(
        config.model, len(config.data.keypoint_names), config.train.precision, 0, views
    )
    return jax.tree.map(np.asarray, initial_state(params, statistics, config))


def checkpoint_of(run: Path, which: str = "newest") -> State:
    """The state of a checkpoint of a run, as numpy arrays."""
    config = read_run_config(run)
    like = _state_like(c.to_json(dataclasses.replace(config, out="", resume="auto")))
    with Checkpoints(run / "checkpoints") as checkpoints:
        found = checkpoints.restore(like, which)
    assert found is not None
    return found[1]


def assert_same(a: Any, b: Any) -> None:
    """Two trees of arrays are equal bit for bit."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(a), jax.tree_util.tree_leaves_with_path(b), strict=True)
    for (path, x), (_, y) in pairs:
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y), err_msg=jax.tree_util.keystr(path))


def assert_same_run(run: Path, other: Path) -> None:
    """Two runs are equal to the last bit, in all that they leave behind."""
    assert figures_of(run) == figures_of(other)
    assert_same(checkpoint_of(run), checkpoint_of(other))
    parameters, metadata = load_parameters(run / "best.safetensors")
    expected, expected_metadata = load_parameters(other / "best.safetensors")
    assert_same(parameters, expected)
    assert metadata == expected_metadata
    for name in ("predictions.csv", "predictions_pixel_error.csv", "split.csv"):
        assert (run / name).read_bytes() == (other / name).read_bytes()


def files_in(folder: Path) -> Mapping[str, bytes]:
    """The content of every file below a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
