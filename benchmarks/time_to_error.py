"""How long does a training take, from its command to a given error?

    python benchmarks/time_to_error.py --set mouse --project PATH/mirror-mouse-example --weights mobilenet_v2=FILE \
      --rows resnet18 mobilenet_v2+atonce --labels 20 72 --out benchmarks/time_to_error.jsonl
    python benchmarks/time_to_error.py --out benchmarks/time_to_error.jsonl

Starts a training as a process of its own, as a user does, without kept programs, and reads at each validation what it
has cost since its start: seconds, and CPU seconds of all its threads. The frames that validate are some that were not
drawn (mouse), or of speakers without labels (lips). They choose no weights: the last ones count. Sets, rows and what a
seed decides are those of pretrained.py. Appends one JSON line for each run, and skips those that the file has.
Without --set, prints the table: how long each row takes to 1.1 times its own last error, and to 1.1 times that of
resnet18.
"""

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import few_labels_sets
import jax
import numpy as np
from few_labels import drawn_rows, set_option
from json_lines import append_line, read_lines
from pretrained import make_arguments, read_weights, row_options
from start import cpu_s

from jaxpose import config as c
from jaxpose.data.labels import read_labels
from jaxpose.errors import UserError

VALIDATED, EVERY_STEPS = 40, 25
REFERENCE = "resnet18"
# How much above an error counts as there.
NEAR = 1.1


def measure(given: argparse.Namespace, row: str, count: int, seed: int) -> dict[str, Any]:
    """Trains a row's network on some labels; returns its JSON line.

    Raises:
      UserError: a row is unknown, or its weights were not given.
    """
    found = few_labels_sets.SETS[given.set](given, seed)
    name = f"{given.set}-{count}-{seed}-{row}"
    rows = drawn_rows(found, count, seed)
    held_out = np.random.default_rng([2, seed]).permutation(np.setdiff1d(found.test, rows))[:VALIDATED]
    frames = read_labels(found.project / "CollectedData.csv", "ignore").poses.frames
    set_of = dict.fromkeys(rows, "train") | dict.fromkeys(held_out, "validation")
    split = given.work / f"{name}.csv"
    with split.open("w", newline="") as stream:
        csv.writer(stream).writerows(
            [("path", "set"), *((path, set_of.get(i, "unused")) for i, path in enumerate(frames))]
        )
    config = found.base
    config.out, config.data.split, config.mesh.cpu_threads = str(given.work / name), str(split), given.threads
    config.train.seed, config.train.steps, config.train.monitor = seed, given.steps, "none"
    config.train.val_every_epochs = EVERY_STEPS * few_labels_sets.BATCH / count
    for text in row_options(given.set, row, read_weights(given.weights)):
        set_option(config, text)
    curve = _curve(config, given.work / f"{name}.py")
    if curve[-1]["step"] != given.steps:
        sys.exit(f"{config.out} ended after step {curve[-1]['step']}; see its train.log")
    line = {"set": given.set, "labels": count, "seed": seed, "row": row, "threads": given.threads, "curve": curve}
    return line | {"load": os.getloadavg()[0], "jax": jax.__version__, "machine": platform.machine()}


def _curve(config: c.Config, file: Path) -> list[dict[str, float]]:
    """Runs a training to its end; returns its validations: step, error in frame pixels, seconds, CPU seconds."""
    text = c.to_json(config)
    file.write_text(f"from jaxpose import config as c\n\n\ndef get_config():\n    return c.from_json({text!r})\n")
    metrics, curve = Path(config.out) / "metrics.jsonl", []
    # Without kept programs: a first training compiles.
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment["JAXPOSE_CACHE"] = tempfile.mkdtemp(dir=file.parent)
    command = [sys.executable, "-m", "jaxpose.train", "--config", str(file)]
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    spent = 0.0
    while process.poll() is None:
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        values = [json.loads(line) for line in lines if '"val_mean_px_error"' in line and line.endswith("}")]
        for value in values[len(curve) :]:
            curve.append({
                "step": value["step"], "px": round(value["val_mean_px_error"], 3),
                "wall_s": round(time.monotonic() - started, 2), "cpu_s": round(spent, 2),
            })  # fmt: skip
        # A validation is seen this much late at most.
        time.sleep(0.1)
        spent = cpu_s(process.pid)
    return curve


def seconds_to(curve: list[dict[str, float]], px: float, clock: str) -> float:
    """Returns when the error of a curve is at most `px` for good, NaN if it is not at its end."""
    above = [place for place, one in enumerate(curve) if one["px"] > px]
    first = above[-1] + 1 if above else 0
    return curve[first][clock] if first < len(curve) else np.nan


def show(lines: list[dict[str, Any]], clock: str) -> None:
    """Prints a Markdown table, means over the seeds."""
    of = {(line["set"], line["labels"], line["row"], line["seed"]): line["curve"] for line in lines}
    names = (
        "set",
        "labels",
        "row",
        "seeds",
        "last px",
        "s in all",
        "s to 1.1 x its last",
        f"s to 1.1 x {REFERENCE}'s",
        "share",
    )
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for data, labels, row in sorted({key[:3] for key in of}):
        seeds = [key[3] for key in of if key[:3] == (data, labels, row) and (data, labels, REFERENCE, key[3]) in of]
        values = []
        for seed in seeds:
            curve, other = of[data, labels, row, seed], of[data, labels, REFERENCE, seed]
            goal = NEAR * other[-1]["px"]
            ours, theirs = seconds_to(curve, goal, clock), seconds_to(other, goal, clock)
            own = seconds_to(curve, NEAR * curve[-1]["px"], clock)
            values.append((curve[-1]["px"], curve[-1][clock], own, ours, theirs))
        if values:
            last, total, own, ours, theirs = np.mean(values, 0)
            cells = (f"{last:.2f}", f"{total:.0f}", f"{own:.0f}", f"{ours:.0f}", f"{ours / theirs:.2f}")
            print(f"| {data} | {labels} | `{row}` | {len(seeds)} | {' | '.join(cells)} |")


def main() -> int:
    """Runs the missing measurements, or prints the table."""
    arguments = make_arguments(__doc__ or "", "runs/time_to_error")
    arguments.add_argument("--labels", type=int, nargs="+", default=[20])
    arguments.add_argument("--rows", nargs="+", default=[REFERENCE, "mobilenet_v2+atonce"])
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments.add_argument("--threads", type=int, default=1, help="of the arithmetic; 0: all cores")
    arguments.add_argument("--clock", choices=["cpu_s", "wall_s"], default="cpu_s", help="of the table")
    given = arguments.parse_args()
    if given.set and not given.project:
        arguments.error(f"--set {given.set}: give the folder of its project with --project")
    given.work = given.work.resolve()
    if given.set:
        given.work.mkdir(parents=True, exist_ok=True)
    for seed in given.seeds if given.set else ():
        for count in given.labels:
            for row in given.rows:
                done = {
                    tuple(line[name] for name in ("set", "labels", "seed", "row")) for line in read_lines(given.out)
                }
                if (given.set, count, seed, row) in done:
                    continue
                try:
                    line = measure(given, row, count, seed)
                except (UserError, FileNotFoundError) as error:
                    arguments.error(str(error))
                append_line(given.out, line)
    show(read_lines(given.out), given.clock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
