"""The cells of each part, one process after another, until the time is over; then the bars."""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from gpu_parts.bars import bars_of

OPTIONS = (
    "xla_gpu_enable_latency_hiding_scheduler=true",
    "xla_gpu_enable_command_buffer=",
    "xla_gpu_enable_triton_gemm=false",
    "xla_gpu_autotune_level=0",
    "xla_gpu_exhaustive_tiling_search=true",
    "xla_gpu_all_reduce_combine_threshold_bytes=134217728",
    "xla_gpu_force_conv_nhwc=true",
    "xla_gpu_cudnn_gemm_fusion_level=2",
    "xla_gpu_experimental_enable_fusion_autotuner=false",
    "xla_gpu_graph_min_graph_size=1",
    "jax_optimization_level=O1",
)
Read = Callable[[list[str]], argparse.Namespace]


def _both(cell: str) -> Iterator[str]:
    for framework in ("jaxpose", "torch"):
        yield f"{cell} --framework {framework}"


def _core() -> Iterator[str]:
    yield from _both("--precision bf16")
    yield "--measure agreement --batch 16"
    yield from _both("--precision tf32")
    for number in (1, 2):
        yield f"--deterministic --turn {number}"
    yield "--measure first_step"


def _sizes() -> Iterator[str]:
    # The larger networks and batches first, in case the time runs out.
    for precision, backbone, batch, size_px in product(
        ("bf16", "tf32"), ("resnet50", "resnet18"), (64, 16), (256, 384)
    ):
        yield from _both(f"--precision {precision} --backbone {backbone} --batch {batch} --size_px {size_px}")


def _vit() -> Iterator[str]:
    for backbone, batch, size_px in product(("vit_base", "vit_small"), (64, 16), (256, 384)):
        yield from _both(f"--backbone {backbone} --batch {batch} --size_px {size_px}")


def _loader() -> Iterator[str]:
    for preset, backbone in product(("none", "dlc"), ("resnet50", "resnet18")):
        yield f"--measure loader --backbone {backbone} --preset {preset}"


def _xla() -> Iterator[str]:
    for option in OPTIONS:
        yield f"--measure option --compile_option {option}"


def _predict() -> Iterator[str]:
    yield "--measure videos"
    for backbone in ("resnet50", "resnet18", "vit_base"):
        yield from _both(f"--measure predict --backbone {backbone}")
    yield "--measure videos --backbone resnet18"
    yield "--measure videos --decoders 16"


PARTS = {"core": _core, "sizes": _sizes, "vit": _vit, "loader": _loader, "xla": _xla, "predict": _predict}


def run_part(given: argparse.Namespace, argv: list[str], program: Path, read: Read) -> int:
    """Runs the cells of a part that the file does not have yet, then prints and appends the bars.

    A cell's own process appends its line. The command line's values replace the part's.

    Args:
      given: the arguments.
      argv: the same, as text.
      program: the file that runs a cell.
      read: reads the arguments of a cell.
    """
    until = time.monotonic() + 60 * given.minutes
    cells = {}
    for cell in PARTS[given.part]():
        # If a flag is given twice, the last one counts.
        words = [*_jaxpose_alone(shlex.split(cell)), *argv]
        cells.setdefault(name_of(read(words), read), words)
    longest_s, left = 20.0, []
    with tempfile.TemporaryDirectory() as programs:
        # Cells of compile options share the program without any.
        cache = {"JAX_COMPILATION_CACHE_DIR": programs, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        environment = os.environ | (cache if given.part == "xla" else {})
        for name, words in cells.items():
            if name in _lines_of(given.out):
                print(f"already in {given.out}: {name}", flush=True)
            elif until - time.monotonic() < longest_s or not (
                spent_s := _run_cell([sys.executable, str(program), *words, "--cell", name], until, environment)
            ):
                left.append(name)
            else:
                longest_s = max(longest_s, spent_s)
                if name not in _lines_of(given.out):
                    append(given.out, {"cell": name, "error": "its process ended without a line"})
    bars = bars_of([line for name, line in _lines_of(given.out).items() if name in cells])
    append(given.out, {"part": given.part, "bars": bars, "cells_left": left})
    for text, bar in bars.items():
        verdict = {True: "met", False: "NOT MET", None: "measured"}[bar["is_met"]]
        print(f"{verdict}: {text}: {bar['value']:.4g}" + (f" (bar {bar['bar']:g})" if bar["bar"] is not None else ""))
    if left:
        print(f"no time left for {len(left)} of {len(cells)} cells: run the same command again")
    return 0


def name_of(given: argparse.Namespace, read: Read) -> str:
    """Returns the arguments of a cell that are not the defaults."""
    usual = vars(read(["--out", str(given.out)]))
    words = []
    for name, value in vars(given).items():
        if name in ("part", "minutes", "out", "cell") or value == usual[name]:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(words)


def append(out: Path, line: dict[str, Any]) -> None:
    """Appends a line to the file, where it stays even if the process is killed."""
    with out.open("a") as stream:
        stream.write(json.dumps(line) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def _jaxpose_alone(words: list[str]) -> list[str]:
    return words if "--framework" in words else [*words, "--framework", "jaxpose"]


def _lines_of(out: Path) -> dict[str, dict[str, Any]]:
    """Returns the last line of each cell in the file."""
    lines = [json.loads(text) for text in out.read_text().splitlines()] if out.exists() else []
    return {line["cell"]: line for line in lines if "cell" in line}


def _run_cell(command: list[str], until: float, environment: dict[str, str]) -> float:
    """Returns the seconds that a cell took, 0 if the time was over before it ended."""
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        process.wait(max(1.0, until - began))
    except subprocess.TimeoutExpired:
        return 0.0
    finally:
        if process.poll() is None:
            # With the processes that it has started.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return time.monotonic() - began
