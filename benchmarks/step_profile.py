"""What does the train step on a CPU spend its time on?

    taskset -c 0 python benchmarks/step_profile.py --out benchmarks/step_profile.jsonl

Takes some steps with JAX's profiler and adds up the time of the compiled operations by their kind, in milliseconds of a
step: convolutions (with their rate in GFLOP/s, zeros of the padding included), matrix products, sums, copies (with
transpositions, slices and flips) and the rest. Several threads may work at once, so the parts may sum up to more than
the step by the clock. Appends one JSON line.
"""

import argparse
import collections
import gzip
import json
import math
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
from gpu_parts.jaxpose_step import make_bench

_STEPS = 3
_RESULT = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (\w+)\[([\d,]*)\]\S* ([\w\-]+)\((.*)")
_COPIES = ("copy", "slice", "reverse", "transpose")


def main() -> int:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--backbone", default="resnet18", choices=("resnet18", "resnet50"))
    arguments.add_argument("--size_px", type=int, default=128)
    arguments.add_argument("--batch", type=int, default=16)
    given = arguments.parse_args()
    rest = {"width": 64, "norm": "sync", "preset": "none", "precision": "f32", "platform": "cpu", "keypoints": 17}
    bench = make_bench(argparse.Namespace(**vars(given), **rest, deterministic=False))
    step = bench.lowered.compile()
    bench.take_steps(step, _STEPS)
    clock_ms, cpu_ms = [], []
    for _ in range(10):
        began, cpu_began = time.perf_counter(), time.process_time()
        bench.take_steps(step, 1)
        clock_ms.append(1000 * (time.perf_counter() - began))
        cpu_ms.append(1000 * (time.process_time() - cpu_began))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            bench.take_steps(step, _STEPS)
        (trace,) = Path(folder).rglob("*.trace.json.gz")
        spent_ms = _spent_ms(trace)
    line: dict[str, Any] = {name: getattr(given, name) for name in ("backbone", "size_px", "batch")}
    line |= {"clock_ms": round(statistics.median(clock_ms), 1), "cpu_ms": round(statistics.median(cpu_ms), 1)}
    line |= _by_kind(spent_ms, step.as_text() or "")
    line |= {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], "machine": platform.machine()}
    line |= {"jax": jax.__version__}
    print(json.dumps(line))
    with given.out.open("a") as file:
        file.write(json.dumps(line) + "\n")
    return 0


def _spent_ms(trace: Path) -> dict[str, float]:
    """Returns the milliseconds of each operation in a step; those that only call others are left out."""
    spent: dict[str, float] = collections.defaultdict(float)
    for event in json.loads(gzip.open(trace).read())["traceEvents"]:
        if event.get("ph") == "X" and "hlo_op" in event.get("args", {}):
            spent[event["args"]["hlo_op"]] += event["dur"] / 1000 / _STEPS
    return {name: value for name, value in spent.items() if not re.match(r"cond|while|call", name)}


def _by_kind(spent_ms: dict[str, float], program: str) -> dict[str, float]:
    kinds: dict[str, float] = collections.defaultdict(float)
    flop = 0.0
    made = _contents(program)
    for name, value in spent_ms.items():
        operations = made.get(name, [])
        kind = "rest"
        if any(operation == "convolution" for operation, _ in operations):
            kind, flop = "convolutions", flop + sum(count for _, count in operations)
        elif any(operation == "dot" for operation, _ in operations):
            kind = "matrix products"
        elif name.startswith(("ynn", "wrapped_reduce")):
            kind = "sums"
        elif re.match("|".join(f"(wrapped_)?{word}" for word in _COPIES), name):
            kind = "copies"
        kinds[kind] += value
    found = {f"{kind}_ms": round(value, 1) for kind, value in kinds.items()}
    return found | {"convolutions_gflop_per_s": round(flop / 1e6 / kinds["convolutions"], 1)}


def _contents(program: str) -> dict[str, list[tuple[str, float]]]:
    """Returns, for each operation of a program, itself or the content of its fusion: (operation, FLOP)."""
    inside: dict[str, list[tuple[str, float]]] = collections.defaultdict(list)
    shapes: dict[str, list[int]] = {}
    fused, alone, computation = {}, {}, ""
    for line in program.splitlines():
        if head := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            computation = head[1]
        elif part := _RESULT.match(line):
            name, _, sides, operation, after = part.groups()
            shapes[name] = [int(side) for side in sides.split(",") if side]
            count = _convolution_flop(shapes, shapes[name], after) if operation == "convolution" else 0.0
            inside[computation].append((operation, count))
            alone[name] = [(operation, count)]
            if calls := re.search(r"calls=%([\w.\-]+)", after):
                fused[name] = calls[1]
    return {name: inside[fused[name]] if name in fused else own for name, own in alone.items()}


def _convolution_flop(shapes: dict[str, list[int]], result: list[int], after: str) -> float:
    """Returns two FLOP for each multiplication: the kernel's numbers times the places of the result."""
    kernel = shapes[re.findall(r"%([\w.\-]+)", after)[1]]
    return 2.0 * math.prod(kernel) * math.prod(result[:-1])


if __name__ == "__main__":
    sys.exit(main())
