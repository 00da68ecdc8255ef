"""How long does a start take, to its first line and to its first step, with and without kept programs?

    python benchmarks/start.py --out benchmarks/start.jsonl

Starts the same training (resnet18, 128 px, batches of 16) repeatedly, first with an empty cache folder, and ends it
after its first step. Seconds are counted from the start of the command; CPU seconds are those of all its threads.
Appends one JSON line a start.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from jaxpose.data.synthetic import make_project


def main() -> int:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--work", type=Path, default=Path("runs/start"))
    arguments.add_argument("--warm", type=int, default=5, help="starts with kept programs")
    arguments.add_argument("--side_px", type=int, default=128, help="input")
    arguments.add_argument("--width", type=int, default=64, help="of the network")
    given = arguments.parse_args()
    shutil.rmtree(given.work, ignore_errors=True)
    project = make_project(given.work / "project", videos=4, labelled_frames=24, video_frames=48, side_px=256)
    for number in range(1 + given.warm):
        found = {"programs": "kept" if number else "none", **_start(project, given)}
        found |= {"load": os.getloadavg()[0], "cores": len(os.sched_getaffinity(0)), "machine": platform.machine()}
        print(json.dumps(found), flush=True)
        with open(given.out, "a") as file:
            file.write(json.dumps(found) + "\n")
    return 0


def _start(project: Path, given: argparse.Namespace) -> dict[str, float]:
    """Returns seconds, and CPU seconds, to the first line and to the end of the first step."""
    run = given.work / "run"
    shutil.rmtree(run, ignore_errors=True)
    side = [f"data.input_{axis}_px={given.side_px}" for axis in ("width", "height")]
    options = ["model.backbone=resnet18", f"model.width={given.width}", "train.batch_size=16"]
    # On a CPU, a longer run writes the line of a step only after the next one.
    options += ["train.steps=1", "log.every_steps=1", "data.split=frame", f"out={run}"]
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxpose.train", "--config", f"configs/pose.py:{project}",
         *options, *side],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment | {"JAXPOSE_CACHE": str(given.work / "cache"), "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert process.stdout is not None
    first_line = process.stdout.readline()
    assert first_line.startswith("jaxpose"), first_line
    found = {"first_line_s": time.monotonic() - started, "first_line_cpu_s": cpu_s(process.pid)}
    # Its other output must not fill the pipe.
    threading.Thread(target=process.stdout.read, daemon=True).start()
    metrics = run / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.005)
    found |= {"first_step_s": time.monotonic() - started, "first_step_cpu_s": cpu_s(process.pid)}
    assert process.poll() is None, "the run ended before its first step"
    process.kill()
    process.wait()
    return {name: round(value, 2) for name, value in found.items()}


def cpu_s(process: int) -> float:
    """Returns the CPU seconds of a process so far; only Linux has the file."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
