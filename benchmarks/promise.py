"""How far apart are the numbers of one run on different layouts, after 10, 100 and 1,000 steps?

    python benchmarks/promise.py --out benchmarks/promise.jsonl
    python benchmarks/promise.py --out benchmarks/promise.jsonl --width 16 --input_px 64 --steps 10 100 --seeds 0

The reference of a seed is the run on one device in one process. The same config is then trained with SIGTERM in the
middle and the same command again, on one CPU thread, on 2 and 8 devices of one process, and in 2 processes. Each run is
a process of its own on the CPU, and is compared with the reference of the same precision, seed and number of steps.
Adam, constant rate, all weights trained from the first step. Appends one JSON line for each run, and skips runs that
the file has; the last lines are the table.
"""

import argparse
import itertools
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from json_lines import append_line, read_lines
from killed import last_step

from jaxpose import config as c
from jaxpose.data.synthetic import make_project
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.pose.metrics import pixel_errors
from jaxpose.run.weights import load_parameters
from jaxpose.threads import allowed_cores

FRAME_PX = 64
STEPS = (10, 100, 1000)
PRECISIONS = ("f32", "f64")
COMPARED = ("parameters", "loss", "mean_px", "largest_px")
# Devices of each process, processes, and whether the run is stopped half-way or has one CPU thread.
LAYOUTS: dict[str, dict[str, Any]] = {
    "interrupted": {"is_stopped": True},
    "1-thread": {"threads": 1},
    "2-devices": {"devices": 2},
    "8-devices": {"devices": 8},
    "2-processes": {"processes": 2},
}


def make_config(work: Path, run: Path, width: int, input_px: int, precision: str, seed: int, steps: int) -> c.Config:
    """Returns the config of a run; it is the same one on every layout."""
    project = make_project(work / "project", videos=4, labelled_frames=16, video_frames=33, side_px=FRAME_PX)
    config = c.Config(
        out=str(run),
        data=c.DataConfig(project=str(project), split="video", train_share=0.5, val_share=0.5, seed=seed),
        # With other norms, all layouts give the same bits.
        model=c.ModelConfig(backbone="resnet18", width=width, head_width=width, norm="sync"),
        optim=c.OptimConfig(schedule="constant"),
        # Validated once, at the end: the best weights are the last.
        train=c.TrainConfig(steps=steps, batch_size=16, val_every_epochs=steps, precision=precision, seed=seed),
        eval=c.EvalConfig(predict_videos="no", batch_size=32),
        log=c.LogConfig(every_steps=1, tensorboard=False, frames=0),
    )
    config.data.input_width_px = config.data.input_height_px = input_px
    return config


def train(
    config: c.Config, file: Path, devices: int = 1, processes: int = 1, threads: int = 0, is_stopped: bool = False
) -> None:
    """Trains a config in processes of their own.

    Args:
      config: the run's.
      file: the config file that is written.
      devices: per process.
      processes: how many.
      threads: CPU threads; 0 is one per core.
      is_stopped: stop it half-way with SIGTERM, and start it again.

    Raises:
      RuntimeError: it failed.
    """
    text = c.to_json(config)
    file.write_text(f"from jaxpose import config as c\n\n\ndef get_config():\n    return c.from_json({text!r})\n")
    variables = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONUNBUFFERED": "1"}
    variables |= {"JAX_ENABLE_X64": "1"} if config.train.precision == "f64" else {}
    verb = [sys.executable, "-m", "jaxpose.train", "--config", str(file)]
    if processes > 1:
        flags = [
            "--processes",
            str(processes),
            "--devices_per_process",
            str(devices),
            "--log_dir",
            f"{config.out}-logs",
        ]
        verb = [sys.executable, "-m", "jaxpose.launch", *flags, "--", *verb[3:]]
    cores = sorted(os.sched_getaffinity(0))[: threads or None]
    for stops in (True, False) if is_stopped else (False,):
        process = subprocess.Popen(
            verb, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
        if stops:
            while process.poll() is None and last_step(Path(config.out)) < config.train.steps // 2:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
        said, _ = process.communicate()
        if process.returncode != (85 if stops else 0):
            raise RuntimeError(f"{config.out} ended with exit code {process.returncode}:\n{said}")


def results(run: Path) -> dict[str, Any]:
    """Returns the results of a run: parameters (one vector), training loss, predictions of the validation frames."""
    parameters, _ = load_parameters(run / "best.safetensors")
    leaves = [np.ravel(leaf).astype(np.float64) for leaf in jax.tree.leaves(parameters["params"])]
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = read_predictions(run / "predictions.csv")
    rows = np.array(found.sets) == "validation"
    return {
        "parameters": np.concatenate(leaves),
        "loss": next(line["loss"] for line in reversed(last) if "loss" in line),
        "predicted": found.poses.points_px[rows, 0].astype(np.float64),
        "error_px": next(line["val_mean_px_error"] for line in reversed(last) if "val_mean_px_error" in line),
    }


def compare(run: Path, reference: Path) -> dict[str, float]:
    """Returns how far a run is from another one: relative differences, and pixels of the frames."""
    a, b = results(run), results(reference)
    moved_px = pixel_errors(a["predicted"], b["predicted"])
    return {
        "parameters": float(np.linalg.norm(a["parameters"] - b["parameters"]) / np.linalg.norm(b["parameters"])),
        "loss": abs(a["loss"] - b["loss"]) / abs(b["loss"]),
        "mean_px": float(moved_px.mean()),
        "largest_px": float(moved_px.max()),
        "error_px": a["error_px"],
        "reference_error_px": b["error_px"],
    }


def measure(work: Path, layout: str, **options: Any) -> dict[str, Any]:
    """Trains a run on a layout, and returns how far it is from the reference; options are those of `make_config`."""
    name = "-".join(map(str, options.values()))
    run, reference = work / f"{name}-{layout}", work / f"{name}-reference"
    for folder, on in ((reference, {}), (run, LAYOUTS[layout])):
        if not (folder / "finished.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            train(make_config(work, folder, **options), work / f"{folder.name}.py", **on)
    return compare(run, reference)


def show(lines: list[dict[str, Any]]) -> None:
    """Prints the median over the seeds, and the least and the largest, of each layout."""
    keys = ("width", "input_px", "precision", "layout", "steps")
    for key in dict.fromkeys(tuple(line[name] for name in keys) for line in lines):
        rows = [line for line in lines if tuple(line[name] for name in keys) == key]
        if rows:
            cells = "; ".join(f"{name} {_spread([row[name] for row in rows])}" for name in COMPARED)
            errors = ", ".join(f"{row['error_px']:.2f} / {row['reference_error_px']:.2f}" for row in rows)
            print(f"{dict(zip(keys, key, strict=True))}, {len(rows)} seeds: {cells}; errors in px {errors}")


def _spread(values: list[float]) -> str:
    return f"{np.median(values):.1e} ({min(values):.1e} to {max(values):.1e})"


def main() -> int:
    """Runs the missing measurements and prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--work", type=Path, default=Path("runs/promise"), help="project and run folders")
    arguments.add_argument("--width", type=int, default=8, help="channels of the network's first layer")
    arguments.add_argument("--input_px", type=int, default=32, help="width and height of its input")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--steps", type=int, nargs="+", default=list(STEPS))
    arguments.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    arguments.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS))
    given = arguments.parse_args()
    wanted = itertools.product(given.seeds, given.precisions, given.steps, given.layouts)
    for seed, precision, steps, layout in wanted:
        key = {"width": given.width, "input_px": given.input_px, "precision": precision, "seed": seed, "steps": steps}
        key["layout"] = layout
        if any(line | key == line for line in read_lines(given.out)):
            continue
        line = key | measure(given.work.resolve(), **key)
        line |= {"jax": jax.__version__, "numpy": np.__version__, "machine": _processor(), "cores": allowed_cores()}
        append_line(given.out, line)
    show(read_lines(given.out))
    return 0


def _processor() -> str:
    """Returns the name of the processor."""
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
