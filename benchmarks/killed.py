"""A small run that can be killed and started again, for benchmarks/faults.py and benchmarks/goodput.py."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

from jaxpose import config as c
from jaxpose.data.synthetic import make_project

# Saves are by steps, so that lost work can be counted in steps.
SAVE_EVERY_STEPS = 25
# More than a line of metrics.jsonl has.
_TAIL_BYTES = 10_000


def make_config(work: Path, name: str, steps: int) -> c.Config:
    """Returns the config of a small network on a small synthetic project in the folder `work`."""
    project = make_project(work / "project", videos=3, labelled_frames=6, video_frames=33, side_px=64)
    return c.Config(
        out=str(work / name),
        data=c.DataConfig(project=str(project), input_height_px=32, input_width_px=32),
        model=c.ModelConfig(backbone="resnet18", width=8, head_width=8),
        train=c.TrainConfig(steps=steps, batch_size=5, val_every_epochs=50, save_every_steps=SAVE_EVERY_STEPS),
        eval=c.EvalConfig(predict_videos="no", batch_size=8),
        log=c.LogConfig(every_steps=1, tensorboard=False, frames=0),
    )


class Start:
    """One start of a run as a process of its own.

    Attributes:
      resumed_from: the step that it reported to resume from, 0 if there was none, None if the run was new or has not
        got this far.
      process: the process.
    """

    def __init__(self, config: c.Config, work: Path):
        file = work / f"{Path(config.out).name}.py"
        text = c.to_json(config)
        file.write_text(f"from jaxpose import config as c\n\n\ndef get_config():\n    return c.from_json({text!r})\n")
        self.resumed_from: int | None = None
        variables = {"JAX_COMPILATION_CACHE_DIR": str(work / "programs"), "JAX_PLATFORMS": "cpu"}
        variables |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2", "PYTHONUNBUFFERED": "1"}
        # It must not train for ever if the benchmark itself is ended.
        command = [sys.executable, "-m", "jaxpose.cluster.die_with_parent", str(os.getpid())]
        self.process = subprocess.Popen(
            [*command, sys.executable, "-m", "jaxpose.train", "--config", str(file)],
            env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def kill_after(self, seconds: float) -> bool:
        """Kills it after a time; returns False if it had ended by itself."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.end()
        return self.process.returncode != 0

    def end(self) -> None:
        """Waits for its end.

        Raises:
          RuntimeError: it failed by itself.
        """
        self.process.wait()
        self._thread.join()
        if self.process.returncode not in (0, -9):
            raise RuntimeError("".join(self._lines))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)
            if found := re.match(r"resumes from step (\d+)|no whole checkpoint", line):
                self.resumed_from = int(found[1] or 0)


def last_step(run: Path) -> int:
    """Returns the last step that a run has logged, 0 before there is one."""
    try:
        with open(run / "metrics.jsonl", "rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = stream.read().splitlines()
    except FileNotFoundError:
        return 0
    for line in reversed(lines):
        try:
            return json.loads(line)["step"]
        except ValueError:
            continue  # cut off by the kill
    return 0
