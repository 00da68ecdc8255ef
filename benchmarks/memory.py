"""Does the memory of a run grow with its steps and its saves?

    python benchmarks/memory.py --out benchmarks/memory.jsonl
    python benchmarks/memory.py --out benchmarks/memory.jsonl --only_saves 400

Trains a tiny network by `jaxpose.train` for 5,000 steps with 1,000 saves, TensorBoard and validations on, and reads
every 500 steps the resident memory (without the pages of files), what malloc allocated and has not freed, and how many
JAX arrays and Python objects are alive. Appends one JSON line with the readings and the growth from step 1,000 on:
until then, thread pools and caches fill. Keeps the memory of a step, as the verb does, except with --as_library.

--only_saves saves 360 small arrays again and again, without a training, and reads what malloc took from the system: in
its first arena and in all others, which belong to threads. With --trim, it also gives the free pages back at each
reading, and reads the resident memory after that.
"""

import argparse
import ctypes
import gc
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from killed import last_step, make_config

from jaxpose import train
from jaxpose.cluster.devices import keep_memory
from jaxpose.config import MeshConfig
from jaxpose.run.checkpoint import Checkpoints

_SETTLED_STEP = 1000


def main() -> int:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--work", type=Path, default=Path("runs/memory"))
    arguments.add_argument("--steps", type=int, default=5000)
    arguments.add_argument("--save_every", type=int, default=5, help="steps between saves; 0: none")
    arguments.add_argument("--as_library", action="store_true", help="as `train(config)` in a user's program")
    arguments.add_argument("--only_saves", type=int, metavar="N", help="save N times, and do not train")
    arguments.add_argument("--trim", action="store_true", help="with --only_saves: give free pages back")
    given = arguments.parse_args()
    shutil.rmtree(given.work, ignore_errors=True)
    given.work.mkdir(parents=True)
    line = _only_saves(given) if given.only_saves else _training(given)
    line |= {
        "arenas": os.environ.get("MALLOC_ARENA_MAX", "default"), "jax": jax.__version__, "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0],
    }  # fmt: skip
    with given.out.open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    print(json.dumps(line, indent=1))
    return 0


def _training(given: argparse.Namespace) -> dict[str, Any]:
    config = make_config(given.work, "run", given.steps)
    config.train.save_every_steps = given.save_every
    config.train.save_every_minutes = 1000.0
    config.log.tensorboard, config.log.report = True, False
    if not given.as_library:
        keep_memory(config.mesh)
    readings: list[dict[str, float]] = []
    watcher = threading.Thread(target=_watch, args=(Path(config.out), given.steps, readings), daemon=True)
    watcher.start()
    started, cpu_started = time.monotonic(), time.process_time()
    summary = train(config)
    assert summary["exit_code"] == 0, summary
    settled = [reading["mib"] for reading in readings if reading["step"] >= _SETTLED_STEP]
    return {
        "steps": given.steps, "save_every": given.save_every, "as_library": given.as_library,
        "growth_mib": round(settled[-1] - settled[0], 1) if len(settled) > 1 else None, "readings": readings,
        "wall_s": round(time.monotonic() - started), "cpu_s": round(time.process_time() - cpu_started),
    }  # fmt: skip


def _only_saves(given: argparse.Namespace) -> dict[str, Any]:
    if not given.as_library:
        keep_memory(MeshConfig())
    leaves = {
        f"leaf{number:03}": jnp.full((8, 8, 3) if number % 2 else (8,), number, "float32") for number in range(360)
    }
    readings, every = [], max(1, given.only_saves // 10)
    with Checkpoints(given.work / "saves") as checkpoints:
        for number in range(1, given.only_saves + 1):
            checkpoints.save(number, leaves, {}, False)
            assert checkpoints.wait()
            if number % every == 0:
                gc.collect()
                first, others = _taken_mib(given.work)
                found = {"saves": number, "mib": round(_resident_mib(), 1)}
                found |= {"first_arena_mib": first, "other_arenas_mib": others}
                if given.trim:
                    ctypes.CDLL(None).malloc_trim(0)
                    found["trimmed_mib"] = round(_resident_mib(), 1)
                readings.append(found)
                print(json.dumps(readings[-1]), flush=True)
    return {"only_saves": given.only_saves, "as_library": given.as_library, "readings": readings}


def _taken_mib(work: Path) -> tuple[float, float]:
    """Returns what malloc took from the system: in its first arena, and in all others."""
    library = ctypes.CDLL(None)
    library.fopen.restype = ctypes.c_void_p
    with tempfile.NamedTemporaryFile(dir=work) as file:
        stream = ctypes.c_void_p(library.fopen(file.name.encode(), b"w"))
        library.malloc_info(0, stream)
        library.fclose(stream)
        text = Path(file.name).read_text()
    # The last one is the sum over all arenas.
    *sizes, total = map(int, re.findall(r'<system type="current" size="(\d+)"', text))
    return round(sizes[0] / 2**20, 1), round((total - sizes[0]) / 2**20, 1)


def _watch(run: Path, steps: int, readings: list[dict[str, float]]) -> None:
    """Reads the memory of this process once a tenth of the steps has passed since the last reading."""
    due = 1
    while due <= steps:
        if (step := last_step(run)) >= due:
            gc.collect()
            readings.append({
                "step": step, "mib": round(_resident_mib(), 1), "allocated_mib": round(_allocated_mib(), 1),
                "jax_arrays": len(jax.live_arrays()),
                "python_objects": len(gc.get_objects()),
            })  # fmt: skip
            print(json.dumps(readings[-1]), flush=True)
            due = (step // (steps // 10) + 1) * (steps // 10)
        time.sleep(0.05)


def _resident_mib() -> float:
    """Returns the resident memory of this process that is not a file's, whose pages the kernel may drop at any time."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) / 1024


class _Malloc(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    ]


def _allocated_mib() -> float:
    """Returns the memory that malloc allocated and has not freed; other resident memory is free or not malloc's."""
    function = ctypes.CDLL(None).mallinfo2
    function.restype = _Malloc
    found = function()
    return (found.uordblks + found.hblkhd) / 2**20


if __name__ == "__main__":
    sys.exit(main())
