"""What does the training loop cost on top of its compiled step, and what do saves and microbatches cost?

    taskset -c 1 python benchmarks/loop.py --out benchmarks/loop.jsonl

Three lines of JSON, each with the median, least and most of the turns, by the clock and in CPU time of all threads:

- loop: a tiny network in the real loop (loader, log, TensorBoard; no save, no validation), less the same compiled step
  in a bare loop with one batch, in turns; microseconds a step.
- save: milliseconds that `Checkpoints.save` holds up the caller, for a state of 100 MB.
- microbatches: a step of 10 passes over 10 times a step of one pass, and the MiB that a device needs for both, and for
  the whole batch in one pass.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from killed import make_config

from jaxpose import config as c
from jaxpose.cluster.agreement import StragglerMonitor
from jaxpose.cluster.devices import keep_memory
from jaxpose.cluster.signals import Interrupt
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.log import RunLog
from jaxpose.training.batches import batches_on_devices, host_batches
from jaxpose.training.compiled_run import CompiledRun, compile_step, put_on_devices
from jaxpose.training.loop import Loop
from jaxpose.training.network_training import NetworkTraining
from jaxpose.training.setup import make_setup
from jaxpose.training.start import read_data, start_devices

_MIB, _EVERY_STEPS = 2**20, 10


def main() -> int:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--work", type=Path, default=Path("runs/loop"))
    arguments.add_argument("--turns", type=int, default=7)
    arguments.add_argument("--steps", type=int, default=500, help="of a turn")
    measures = {"loop": _loop, "save": _saves, "microbatches": _microbatches}
    arguments.add_argument("--measure", nargs="+", choices=list(measures), default=list(measures))
    given = arguments.parse_args()
    if given.steps % _EVERY_STEPS:
        arguments.error(
            f"--steps is {given.steps}; it must be a multiple of {_EVERY_STEPS}, the steps of a line of the log"
        )
    shutil.rmtree(given.work, ignore_errors=True)
    given.work.mkdir(parents=True)
    for name in given.measure:
        line = {
            "what": name,
            **measures[name](given),
            "turns": given.turns,
            "jax": jax.__version__,
        }
        line |= {"machine": platform.machine(), "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
        with given.out.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
    return 0


def _loop(given: argparse.Namespace) -> dict[str, Any]:
    config = make_config(given.work, "loop", 1_000_000)
    config.train.val_every_epochs = 100_000.0
    config.train.save_every_steps, config.train.save_every_minutes = 0, 1000.0
    config.log.every_steps, config.log.tensorboard = _EVERY_STEPS, True
    run = _compiled(config)
    assert run.step is not None  # `_compiled` compiles it
    _, (batch,) = next(batches_on_devices(run.step, host_batches(run.setup, 0)))
    spent = []
    for turn in range(given.turns):
        bare = _timed(lambda: _bare(run, batch, given.steps), given.steps)
        real = _real(run, given.work / f"turn{turn}", given.steps)
        spent.append([1e6 * (of_loop - of_step) for of_loop, of_step in zip(real, bare, strict=True)])
    return {"steps": given.steps, **_spreads("us", spent)}


def _real(run: CompiledRun, folder: Path, steps: int) -> tuple[float, float]:
    """Returns seconds and CPU seconds a step of the real loop, from its 100th step on."""
    folder.mkdir()
    interrupt, marks = Interrupt(), []

    def mark(step: int, numbers: dict[str, float]) -> None:
        if step in (100, 100 + steps) and len(marks) < 2 and (step > 100) == bool(marks):
            marks.append((time.perf_counter(), time.process_time()))
            if len(marks) == 2:
                interrupt.signal = int(signal.SIGTERM)

    config = run.setup.config
    runner = BatchRunner(config, run.setup.graphdef, run.setup.mesh, config.eval.batch_size)
    of_turn = CompiledRun(run.setup, jax.tree.map(jnp.copy, run.state), run.threads, run.machines, run.step)
    with Checkpoints(folder / "checkpoints") as checkpoints, RunLog(folder, config.log, 1_000_000, 0) as log:
        log.follow(mark)
        stragglers = StragglerMonitor(config.log.pace_s)
        network = NetworkTraining(of_turn, runner, checkpoints, log, stragglers)
        Loop([network], run.step, log, stragglers, interrupt).run()
    (wall, cpu), (wall_end, cpu_end) = marks
    return (wall_end - wall) / steps, (cpu_end - cpu) / steps


def _saves(given: argparse.Namespace) -> dict[str, Any]:
    # As many arrays as a resnet18 with Adam has, 100 MB in all.
    leaves = {f"leaf{number:03}": jnp.full(25_000_000 // 200, number, jnp.float32) for number in range(200)}
    spent = []
    with Checkpoints(given.work / "saves") as checkpoints:
        for turn in range(given.turns):
            checkpoints.wait()
            started, cpu_started = time.perf_counter(), time.thread_time()
            checkpoints.save(turn, leaves, {}, False)
            spent.append([1e3 * (time.perf_counter() - started), 1e3 * (time.thread_time() - cpu_started)])
            assert checkpoints.wait()
    return {"mb": sum(leaf.nbytes for leaf in leaves.values()) / 1e6, **_spreads("ms", spent)}


def _microbatches(given: argparse.Namespace) -> dict[str, Any]:
    runs = []
    for batch, microbatch in ((4, 0), (40, 4), (40, 0)):
        config = make_config(given.work, "microbatches", 1000)
        config.model.width, config.data.input_width_px, config.data.input_height_px = 16, 64, 64
        config.train.batch_size, config.train.microbatch_size = batch, microbatch
        runs.append(_compiled(config))
    batches = [next(batches_on_devices(run.step, host_batches(run.setup, 0)))[1][0] for run in runs[:2]]
    spent = []
    for _ in range(given.turns):
        one, ten = (
            _timed(lambda run=run, batch=batch, steps=steps: _bare(run, batch, steps), steps)
            for run, batch, steps in zip(runs, batches, (100, 10), strict=False)
        )
        spent.append([ten[0] / (10 * one[0]), ten[1] / (10 * one[1])])
    mib = [round(run.step.needed_bytes / _MIB, 1) for run in runs]
    return {**_spreads("ratio", spent, 3), "mib_of_one_pass": mib[0], "mib_of_ten_passes": mib[1], "mib_in_one": mib[2]}


def _compiled(config: c.Config) -> CompiledRun:
    keep_memory(config.mesh)
    config, mesh = start_devices(config)
    config, data = read_data(config, shows=False)
    return compile_step(put_on_devices(make_setup(config, mesh, data)))


def _bare(run: CompiledRun, batch: dict[str, Any], steps: int) -> None:
    assert run.step is not None
    # A step donates its arguments.
    held = run.step.hold(jax.tree.map(jnp.copy, run.state))
    for _ in range(steps):
        held, metrics = run.step(held, batch)
    jax.block_until_ready((held, metrics))


def _timed(work: Callable[[], None], steps: int) -> tuple[float, float]:
    """Returns seconds and CPU seconds a step; a first call warms up."""
    work()
    started, cpu_started = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - started) / steps, (time.process_time() - cpu_started) / steps


def _spreads(unit: str, spent: Sequence[Sequence[float]], digits: int = 1) -> dict[str, list[float]]:
    """Returns the median, least and most of pairs of (by the clock, in CPU time)."""
    return {
        f"{name}_{unit}": [round(float(value), digits) for value in (statistics.median(of), np.min(of), np.max(of))]
        for name, of in zip(("wall", "cpu"), zip(*spent, strict=True), strict=True)
    }


if __name__ == "__main__":
    sys.exit(main())
