"""How long is it from the start of `jaxpose train` to its first step, without and with kept programs?"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_parts.figures import versions

from jaxpose.data.synthetic import make_project

CONFIG_FILE = Path(__file__).resolve().parents[2] / "configs" / "pose.py"


def train_command(project: Path, out: Path, given: argparse.Namespace, *more: str) -> list[str]:
    """Returns the command that trains the network of a cell on the synthetic project."""
    options = [f"data.input_{axis}_px={given.size_px}" for axis in ("width", "height")]
    options += [f"model.backbone={given.backbone}", f"model.width={given.width}", f"train.batch_size={given.batch}"]
    options += [f"train.precision={given.precision}", f"mesh.platform={given.platform}", "mesh.devices=1"]
    options += ["data.split=frame", "log.every_steps=1", "log.report=false", "eval.predict_videos=no", f"out={out}"]
    return [sys.executable, "-m", "jaxpose.train", "--config", f"{CONFIG_FILE}:{project}", *options, *more]


def measure_first_step(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the seconds from the command to its first logged step, with empty caches and then with filled ones."""
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project = make_project(folder / "project", videos=4, labelled_frames=24, video_frames=48, side_px=given.size_px)
        for number in range(3):
            command = train_command(project, folder / f"run{number}", given, "train.steps=1000")
            seconds.append(_first_step_s(command, folder / f"run{number}", folder))
    line = {"framework": "jaxpose", **versions()}
    line |= {name: getattr(given, name) for name in ("backbone", "width", "size_px", "batch", "precision")}
    # The second start still makes programs that the first did not reach.
    return line | {"first_step_s": {"cold": seconds[0], "second": seconds[1], "warm": seconds[2]}}


def _first_step_s(command: list[str], run: Path, folder: Path) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment |= {"JAXPOSE_CACHE": str(folder / "cache"), "CUDA_CACHE_PATH": str(folder / "cuda")}
    log, metrics = folder / "log.txt", run / "metrics.jsonl"
    started = time.monotonic()
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
                time.sleep(0.005)
            seconds = time.monotonic() - started
            if process.poll() is not None:
                raise RuntimeError(f"the training ended before its first step: {log.read_text()[-500:]}")
        finally:
            process.kill()
            process.wait()
    return seconds
