"""How many labelled images per second does the loader deliver from frames in memory?

    taskset -c 1 python benchmarks/loader.py --out benchmarks/loader.jsonl

Takes batches of 64 frames of 128 px from `training_batches`, as a training without clips does, with one thread and with
two. Appends one JSON line for each: images per second by the clock and per CPU second of all threads, median of the
turns, and the least and the most.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

import jax
import numpy as np

from jaxpose.config import AugmentConfig
from jaxpose.data.loader import Samples, training_batches
from jaxpose.poses import Poses

FRAMES, SIDE_PX, BATCH, POINTS = 2_000, 128, 64, 17
WARMUP = 20


def main() -> int:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--batches", type=int, default=400, help="of a turn")
    arguments.add_argument("--turns", type=int, default=5)
    given = arguments.parse_args()
    rng = np.random.default_rng(0)
    samples = Samples(
        pixels=rng.integers(0, 256, (FRAMES, 1, SIDE_PX, SIDE_PX, 3), np.uint8),
        poses=Poses.of_one_animal(
            [str(place) for place in range(POINTS)],
            range(FRAMES),
            rng.uniform(0, SIDE_PX - 1, (FRAMES, POINTS, 2)).astype(np.float32),
            visibility=np.full((FRAMES, POINTS), 2, np.int8),
            pixels="input",
        ),
        frame_from_input=np.tile(np.eye(2, 3, dtype=np.float32), (FRAMES, 1, 1)),
    )
    for threads in (1, 2):
        turns = np.array([_turn(samples, threads, given.batches) for _ in range(given.turns)])
        names = ("images_per_s", "images_per_cpu_s")
        found = {name: _spread(column) for name, column in zip(names, turns.T, strict=True)}
        line = {"threads": threads, "batch": BATCH, "side_px": SIDE_PX} | found
        line |= {"jax": jax.__version__, "numpy": np.__version__, "machine": platform.machine()}
        line |= {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
        print(json.dumps(line), flush=True)
        with open(given.out, "a") as file:
            file.write(json.dumps(line) + "\n")
    return 0


def _turn(samples: Samples, threads: int, count: int) -> tuple[float, float]:
    """Returns images per second by the clock and per CPU second of all threads."""
    batches = training_batches(
        samples, np.arange(FRAMES), lambda step: np.arange(step * BATCH, (step + 1) * BATCH),
        first_step=0, total_steps=WARMUP + count, data_seed=0, train_seed=0, augment=AugmentConfig(preset="none"),
        threads=threads, read_ahead=2,
    )  # fmt: skip
    for _ in range(WARMUP):
        next(batches)
    clock, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        frames = next(batches)["frames"]
        assert frames.flags.c_contiguous and frames.dtype == np.uint8, "not one contiguous uint8 batch"
    return BATCH * count / (time.perf_counter() - clock), BATCH * count / (time.process_time() - cpu)


def _spread(values: np.ndarray) -> dict[str, int]:
    return {"median": round(np.median(values)), "least": round(values.min()), "most": round(values.max())}


if __name__ == "__main__":
    sys.exit(main())
