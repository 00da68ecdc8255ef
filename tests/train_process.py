"""`python -m jaxpose.train` in a process of its own, which gets real signals."""

import signal
import subprocess
import sys
from pathlib import Path

from jaxpose import config as c
from tests.small_run import command, environment, wait_for_step


class Process:
    """python -m jaxpose.train, or another verb that trains, in a process of its own."""

    def __init__(self, config: c.Config, folder: Path, verb: str = "jaxpose.train"):
        self.run = Path(config.out)
        self.child = subprocess.Popen(
            [sys.executable, "-m", verb, *command(config, folder)],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def send_after(self, step: int, number: signal.Signals) -> None:
        wait_for_step(self.run, step, lambda: self.child.poll() is None)
        self.child.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Returns (exit code, stdout, stderr)."""
        out, err = self.child.communicate(timeout=300)
        return self.child.returncode, out, err
