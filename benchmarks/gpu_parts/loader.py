"""How much slower is a training whose batches come from the loader than one whose batch is on the device already?"""

import argparse
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from gpu_parts.figures import spread, versions
from gpu_parts.jaxpose_step import config_of

from jaxpose import config as c
from jaxpose.data.synthetic import make_project
from jaxpose.training.batches import batches_on_devices, host_batches
from jaxpose.training.compiled_run import CompiledRun, compile_step, put_on_devices
from jaxpose.training.setup import make_setup
from jaxpose.training.start import read_data, start_devices


def measure_loader(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the speeds of both ways, measured in turns with the compiled step and the loader of a real training."""
    with tempfile.TemporaryDirectory() as name:
        run = _compiled(given, Path(name))
        assert run.step is not None  # `_compiled` compiles it
        batches = batches_on_devices(run.step, host_batches(run.setup, 0))
        fixed = itertools.repeat(next(batches))
        loop = _Loop(run)
        loop.take_steps(fixed, given.warmup)
        loop.take_steps(batches, given.warmup)
        found: dict[str, list[tuple[float, float]]] = {"device": [], "loader": []}
        for _ in range(given.repeats):
            for way, source in (("device", fixed), ("loader", batches)):
                found[way].append(loop.take_steps(source, given.steps))
    device = run.setup.mesh.devices.flat[0]
    line = {"framework": "jaxpose", "device": device.device_kind, "platform": device.platform, **versions()}
    names = ("backbone", "width", "size_px", "batch", "precision", "preset", "steps", "repeats")
    line |= {name: getattr(given, name) for name in names} | {"loader_threads": run.threads[0]}
    seconds, waited = (np.array([[turn[i] for turn in turns] for turns in found.values()]) for i in (0, 1))
    speeds = given.batch * given.steps / seconds
    line |= {"device_fed_images_per_s": spread(speeds[0]), "loader_fed_images_per_s": spread(speeds[1])}
    return line | {"relative": spread(speeds[1] / speeds[0]), "waiting_share": spread(waited[1] / seconds[1])}


class _Loop:
    """Takes steps as the training's own loop does: each waits for the metrics of the one before.

    Args:
      run: a training with its step compiled.
    """

    def __init__(self, run: CompiledRun):
        assert run.step is not None
        self._step, self._state = run.step, run.state

    def take_steps(self, batches: Iterator[tuple[np.ndarray, Any]], count: int) -> tuple[float, float]:
        """Returns the seconds of a number of steps, and those of them that were spent waiting for batches."""
        began, waited, pending = time.perf_counter(), 0.0, None
        for _ in range(count):
            asked = time.perf_counter()
            _, (batch,) = next(batches)
            waited += time.perf_counter() - asked
            self._state, metrics = self._step(self._state, batch)
            if pending is not None:
                jax.device_get(pending)
            pending = metrics
        jax.block_until_ready(self._state)
        return time.perf_counter() - began, waited


def _compiled(given: argparse.Namespace, folder: Path) -> CompiledRun:
    project = make_project(
        folder / "project", videos=8, labelled_frames=32, video_frames=32, side_px=max(32, given.size_px)
    )
    config = config_of(given)
    data = c.DataConfig(
        project=str(project), input_width_px=given.size_px, input_height_px=given.size_px, split="frame"
    )
    total_steps = given.repeats * given.steps + given.warmup + 2
    config = dataclasses.replace(
        config,
        data=data,
        out=str(folder / "run"),
        train=dataclasses.replace(config.train, steps=total_steps),
        eval=c.EvalConfig(predict_videos="no"),
    )
    config, mesh = start_devices(config)
    config, dataset = read_data(config, shows=False)
    return compile_step(put_on_devices(make_setup(config, mesh, dataset)))
