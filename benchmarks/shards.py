"""What does it cost to have the same bits on any number of devices?

    python benchmarks/shards.py --out benchmarks/shards.jsonl
    python benchmarks/shards.py --out benchmarks/shards.jsonl --backbone resnet50 --size_px 256 --batch 8 --shards 2

Times the train step with `train.shards` and the step without, with batches already on the device, in turns in one
process. `norm=shard` is compared with `sync`, with the same number of threads (`mesh.cpu_threads`).
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose import config as c


def main() -> None:
    """Measures, prints and appends one line for each number of shards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--size_px", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--shards", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--threads", type=int, default=8, help="mesh.cpu_threads")
    parser.add_argument("--turns", type=int, default=12, help="after 2 to warm up")
    given = parser.parse_args()
    works = {count: train_step(given, count) for count in (0, *given.shards)}
    taken: dict[int, list[float]] = {count: [] for count in works}
    for turn in range(given.turns + 2):
        for count, take_step in works.items():
            started = time.perf_counter()
            take_step()
            if turn >= 2:
                taken[count].append(1000 * (time.perf_counter() - started))
    import jax

    for count in given.shards:
        ratios = [ms / whole for ms, whole in zip(taken[count], taken[0], strict=True)]
        line = {
            "command": f"python benchmarks/shards.py {' '.join(sys.argv[1:])}",
            "shards": count,
            "ms": spread(taken[count]),
            "ms_without": spread(taken[0]),
            "ratio": spread(ratios),
            "jax": jax.__version__,
            "cores": len(os.sched_getaffinity(0)),
            "load": os.getloadavg()[0],
        }
        print(json.dumps(line))
        with given.out.open("a") as stream:
            stream.write(json.dumps(line) + "\n")


def spread(values: list[float]) -> list[float]:
    """Returns the median, the least and the most."""
    return [round(value, 3) for value in (statistics.median(values), min(values), max(values))]


def train_step(given: argparse.Namespace, shards: int) -> Callable[[], None]:
    """Returns a function that takes one step of a config with so many shards, 0 for one program."""
    import jax

    from jaxpose.cluster.devices import compile_options, keep_memory, start_backend
    from jaxpose.cluster.mesh import make_mesh, put_batch, replicate
    from jaxpose.data.loader import Samples
    from jaxpose.model.pose_net import make_network
    from jaxpose.poses import Poses
    from jaxpose.steps.sharded_step import ShardedStep
    from jaxpose.steps.state import initial_state
    from jaxpose.steps.terms import DataFacts
    from jaxpose.steps.train_step import build_train_step
    from jaxpose.training.run_step import OneProgram, RunStep, ShardPrograms

    keypoints, side = 17, given.size_px
    config = c.Config(
        model=c.ModelConfig(backbone=given.backbone, norm="shard" if shards else "sync"),
        train=c.TrainConfig(batch_size=given.batch, shards=shards),
        mesh=c.MeshConfig(platform="cpu", devices=1, cpu_threads=given.threads),
        data=c.DataConfig(keypoint_names=tuple(f"keypoint{number}" for number in range(keypoints))),
    )
    config = dataclasses.replace(config, augment=c.resolve(c.Config(augment=c.AugmentConfig(preset="none"))).augment)
    keep_memory(config.mesh)
    mesh = make_mesh(start_backend(config.mesh))
    graphdef, params, statistics_ = make_network(config.model, keypoints, "f32", 0)
    state = initial_state(params, statistics_, config)
    facts = DataFacts(size_px=(side, side), passes=1, steps_per_epoch=100, total_steps=100_000)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (given.batch, 1, side, side, 3), np.uint8)
    poses = Poses.of_one_animal(
        [str(place) for place in range(keypoints)],
        range(given.batch),
        rng.uniform(8, side - 8, (given.batch, keypoints, 2)).astype(np.float32),
        visibility=np.full((given.batch, keypoints), 2, np.int8),
        pixels="input",
    )
    samples = Samples(
        pixels,
        poses,
        np.tile(np.eye(2, 3, dtype=np.float32), (given.batch, 1, 1)),
    )
    batch = samples.batch(np.arange(given.batch), np.arange(given.batch))
    options = compile_options(config.mesh, list(mesh.devices.flat))
    on_mesh = replicate(mesh, state)

    def compiled() -> RunStep:
        if shards:
            shard = jax.tree.map(lambda x: jax.ShapeDtypeStruct((len(x) // shards, *x.shape[1:]), x.dtype), batch)
            return ShardPrograms(ShardedStep(config, graphdef, mesh, facts, state, shard, options), mesh, shards, 0)
        lowered = build_train_step(config, graphdef, mesh, facts).lower(
            on_mesh, put_batch(mesh, batch), replicate(mesh, np.uint32(0))
        )
        return OneProgram(lowered.compile(options), mesh, 0)

    step = compiled()
    held: dict[str, Any] = {"state": step.hold(on_mesh)}
    rows = step.put(batch)

    def take_step() -> None:
        held["state"], metrics = step(held["state"], rows)
        jax.block_until_ready((held["state"], metrics))

    return take_step


if __name__ == "__main__":
    main()
