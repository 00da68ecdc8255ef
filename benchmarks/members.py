"""What do the members of an ensemble cost, and what do they gain?

    python benchmarks/members.py cost --out benchmarks/members.jsonl
    python benchmarks/members.py vmap --out benchmarks/members.jsonl
    python benchmarks/members.py training --out benchmarks/members.jsonl --members 5 --steps 300
    python benchmarks/members.py gain --project PATH/mirror-mouse-example --out benchmarks/members.jsonl

`cost` takes steps of one network and of K members, turn by turn, with the compiled step, one batch on the device and
the threads of a real training, or `--threads`. A line has the ratio to K times one network, of the wall clock and of
CPU time: the median of the turns, the least and the most. `vmap` has the same of one convolution with K kernels in one
program, as a vmap over weights makes it.
`training` runs the command that trains one network, K members and one network again, each from its start to its last
file, with programs that an earlier run has compiled: its ratio includes what K trainings one after another share.
`gain` trains five members on 40 labels of a mouse and its mirror image, with 10 frames to validate and 40 to test: the
error of the median next to that of the mean member, with the standard error of the paired difference over test frames,
and how well spread and confidence find errors above 10 px.
Appends a JSON line for each measurement, and skips those that the file has; an interrupted training resumes.
"""

import argparse
import csv
import dataclasses
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpose import config as c
from jaxpose.cluster.devices import keep_memory
from jaxpose.data.labels import read_labels
from jaxpose.data.synthetic import make_project
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.pose.metrics import pixel_errors
from jaxpose.train import train
from jaxpose.training.batches import batches_on_devices, host_batches
from jaxpose.training.compiled_run import CompiledRun, compile_step, put_on_devices
from jaxpose.training.loop import members_at_once
from jaxpose.training.setup import make_setup
from jaxpose.training.start import read_data, start_devices

MEMBERS = 5
# Calls of a small program that are timed together.
_CALLS = 20


def config_of(project: Path, size_px: int) -> c.Config:
    """Returns the config of `benchmarks/few_labels.py` for the mouse."""
    return c.Config(
        data=c.DataConfig(project=str(project), input_width_px=size_px, input_height_px=size_px, resize="stretch"),
        augment=c.AugmentConfig(preset="dlc"),
        model=c.ModelConfig(backbone="resnet18", width=16),
        optim=c.OptimConfig(lr=2e-3, schedule="cosine"),
        train=c.TrainConfig(batch_size=16),
        eval=c.EvalConfig(predict_videos="no"),
        log=c.LogConfig(tensorboard=False, report=False),
    )


class StepOfMembers:
    """Steps of several members, as the loop takes them, with one batch.

    Args:
      run: a compiled training.
      count: number of members.
    """

    def __init__(self, run: CompiledRun, count: int):
        assert run.step is not None
        copies = [dataclasses.replace(run, state=jax.tree.map(jnp.copy, run.state)) for _ in range(count)]
        self._steps = [run.step.with_seed(seed) for seed in range(count)]
        self._held = [step.hold(copy.state) for step, copy in zip(self._steps, copies, strict=True)]
        self._batch = next(batches_on_devices(run.step, host_batches(run.setup, 0)))[1][0]
        at_once = members_at_once(run.setup.mesh, count)
        self._workers = ThreadPoolExecutor(at_once) if at_once > 1 else None

    def __call__(self) -> None:
        """Takes a step of each member, and waits for it."""

        def take(number: int) -> None:
            self._held[number], _ = self._steps[number](self._held[number], self._batch)

        numbers = range(len(self._steps))
        list(self._workers.map(take, numbers) if self._workers else map(take, numbers))
        jax.block_until_ready(self._held)


def measure_cost(given: argparse.Namespace, count: int) -> dict[str, Any]:
    """Returns the line of the cost of several members compared with one network."""
    config = config_of(_project(given), 128)
    config.train.steps, config.mesh.cpu_threads = 100_000, given.threads
    config, mesh = start_devices(config)
    config, data = read_data(config, shows=False)
    run = compile_step(put_on_devices(make_setup(config, mesh, data)))
    one, several = StepOfMembers(run, 1), StepOfMembers(run, count)
    return {"members": count, **_compared(several, one, given.turns, count)}


def measure_training(given: argparse.Namespace, count: int) -> dict[str, Any]:
    """Returns the line of whole trainings: several members compared with one network."""
    project = _project(given)

    def spent(name: str, members: int, steps: int) -> tuple[float, float]:
        options = {
            "out": given.work / f"training-{name}", "train.members": members, "train.steps": steps,
            "model.backbone": "resnet18", "model.width": 16, "data.input_width_px": 128, "data.input_height_px": 128,
            "data.resize": "stretch", "augment.preset": "dlc", "train.batch_size": 16, "eval.predict_videos": "no",
            "resume": "overwrite", "mesh.cpu_threads": given.threads,
        }  # fmt: skip
        command = [
            sys.executable,
            "-m",
            "jaxpose.train",
            project,
            *(f"{key}={value}" for key, value in options.items()),
        ]
        started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.monotonic() - started, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    spent("first", 1, 20)
    one = spent("one", 1, given.steps)
    several = spent("members", count, given.steps)
    again = spent("one", 1, given.steps)
    line: dict[str, Any] = {"members": count}
    for clock, name in enumerate(("wall", "cpu")):
        line[f"{name}_of_k"] = round(2 * several[clock] / (one[clock] + again[clock]) / count, 3)
        line[f"{name}_s"] = [round(times[clock], 1) for times in (one, several, again)]
    return line


def _project(given: argparse.Namespace) -> Path:
    project = given.work / "project"
    if not project.exists():
        make_project(project, videos=4, labelled_frames=16, video_frames=33, side_px=128)
    return project


def measure_vmap(given: argparse.Namespace, count: int) -> dict[str, Any]:
    """Returns the line of a convolution and its gradient for K kernels in one program, compared with one."""
    rng = np.random.default_rng(0)
    # After its first layer, every network has its own features.
    features = jnp.asarray(rng.standard_normal((count, 8, 16, 16, 64)), jnp.float32)
    kernels = jnp.asarray(rng.standard_normal((count, 3, 3, 64, 64)), jnp.float32)

    def loss(kernel: jax.Array, features: jax.Array) -> jax.Array:
        axes = ("NHWC", "HWIO", "NHWC")
        return jnp.sum(jax.lax.conv_general_dilated(features, kernel, (1, 1), "SAME", dimension_numbers=axes) ** 2)

    gradients = jax.grad(loss, argnums=(0, 1))
    alone, together = jax.jit(gradients), jax.jit(jax.vmap(gradients))

    def one() -> None:
        for _ in range(_CALLS):
            jax.block_until_ready(alone(kernels[0], features[0]))

    def at_once() -> None:
        for _ in range(_CALLS):
            jax.block_until_ready(together(kernels, features))

    compared = _compared(at_once, one, given.turns, count)
    return {"members": count, **compared, "conv": "8 x 16 x 16 x 64, 3 x 3 kernels to 64, gradient"}


def measure_gain(given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Returns the line of five members on 40 labels drawn by a seed."""
    order = np.random.default_rng([1, seed]).permutation(90)
    sets = np.full(90, "test", object)
    sets[order[:10]], sets[order[10:50]] = "validation", "train"
    labels = read_labels(given.project / "CollectedData.csv", "ignore")
    split = given.work / f"gain-{seed}.csv"
    with split.open("w", newline="") as stream:
        csv.writer(stream).writerows([("path", "set"), *zip(labels.poses.frames, sets, strict=True)])
    config = config_of(given.project, 128)
    config.out, config.data.split = str(given.work / f"gain-{seed}-{given.steps}"), str(split.resolve())
    # Members of different draws have different seeds.
    config.train.seed, config.train.steps, config.train.members = MEMBERS * seed, given.steps, MEMBERS
    started, cpu = time.monotonic(), time.process_time()
    summary = train(config)
    if summary["exit_code"]:
        sys.exit(summary["exit_code"])
    wall_s, cpu_s = time.monotonic() - started, time.process_time() - cpu
    tables = [Path(config.out), *(Path(config.out) / "members" / str(number) for number in range(MEMBERS))]
    median, *members = (
        np.nanmean(
            pixel_errors(read_predictions(table / "predictions.csv").poses.points_px[:, 0], labels.keypoints_image_px)[
                sets == "test"
            ],
            axis=1,
        )
        for table in tables
    )
    gain = np.mean(members, axis=0) - median
    areas = json.loads((Path(config.out) / "calibration.json").read_text())["auroc"]["test"]
    return {
        "members": MEMBERS,
        "seed": seed,
        "steps": given.steps,
        "test_frames": len(gain),
        "member_px": [round(float(np.nanmean(errors)), 3) for errors in members],
        "median_px": round(float(np.nanmean(median)), 3),
        "gain_px": round(float(np.nanmean(gain)), 3),
        "standard_error_px": round(float(np.nanstd(gain, ddof=1) / np.sqrt(np.isfinite(gain).sum())), 3),
        "above_10_px": areas,
        "wall_s": round(wall_s, 1),
        "cpu_s": round(cpu_s, 1),
    }


def _compared(several: Callable[[], None], one: Callable[[], None], turns: int, count: int) -> dict[str, Any]:
    """Returns the seconds of one, and the ratios of K to one over K: of the wall clock and of CPU time."""
    wall, cpu, one_s = [], [], []
    for _ in range(turns + 1):  # the first warms up
        spent = []
        for work in (one, several, one):
            started, cpu_started = time.perf_counter(), time.process_time()
            work()
            spent.append((time.perf_counter() - started, time.process_time() - cpu_started))
        one_s.append((spent[0][0] + spent[2][0]) / 2)
        wall.append(spent[1][0] / one_s[-1] / count)
        cpu.append(2 * spent[1][1] / (spent[0][1] + spent[2][1]) / count)
    return {"wall_of_k": _spread(wall[1:]), "cpu_of_k": _spread(cpu[1:]), "one_s": _spread(one_s[1:])}


def _spread(values: list[float]) -> list[float]:
    """Returns the median, the least and the most."""
    return [round(value, 3) for value in (statistics.median(values), min(values), max(values))]


def main() -> None:
    """Runs the measurements that the file lacks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("cost", "training", "vmap", "gain"))
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")
    parser.add_argument("--work", type=Path, default=Path("members-work"), help="folder for runs")
    parser.add_argument("--project", type=Path, help="of gain")
    parser.add_argument("--members", type=int, nargs="+", default=[2, 5], help="of all but gain")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of gain")
    parser.add_argument("--steps", type=int, default=600, help="of gain and training")
    parser.add_argument("--turns", type=int, default=10, help="of cost and vmap")
    parser.add_argument("--threads", type=int, default=0, help="mesh.cpu_threads, of cost and training")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    # As the command line does.
    keep_memory(c.MeshConfig(cpu_threads=given.threads))
    known = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    name, values = ("seed", given.seeds) if given.what == "gain" else ("members", given.members)
    measures = {"cost": measure_cost, "training": measure_training, "vmap": measure_vmap, "gain": measure_gain}
    threads, steps = {"threads": given.threads}, {"steps": given.steps}
    others = {"gain": steps, "cost": threads, "training": steps | threads, "vmap": {}}
    for value in values:
        asked = {"what": given.what, name: value} | others[given.what]
        if any(asked.items() <= line.items() for line in known):
            continue
        line = asked | measures[given.what](given, value)
        line |= {"jax": jax.__version__, "machine": platform.processor() or platform.machine()}
        with given.out.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
