"""Sends a run's metrics, config and report to a tracker (`log.tracker`), through a separate process.

The training only puts records into a queue. A thread writes them into a pipe, at whose end `worker` calls the tracker's
library. So a tracker that fails, crashes or hangs costs the run only a warning and, at its end, a few seconds.
"""

import contextlib
import json
import logging
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxpose.checksums import DamagedFile, read_json, write_json
from jaxpose.config import Config
from jaxpose.config.option import flat_options
from jaxpose.files import open_new
from jaxpose.run.paths import TRACKER_FILE, TRACKER_LOG_FILE

# Maximum number of records that wait for the tracker; later ones are lost. This many take about 5 MB.
MOST_WAITING = 10_000
# How long the end of a run waits for the tracker: after a successful run, and after a signal or a failure.
ENDS_S, STOPS_S = 60.0, 10.0
_ASKS_EVERY_S = 0.05

_logger = logging.getLogger(__name__)


class Tracker:
    """The run in a tracker; finish it, or use it as a context. Does nothing if `log.tracker` is none.

    Args:
      folder: the run folder; None on all processes except the first, which track nothing.
      config: the resolved config.
    """

    def __init__(self, folder: Path | None, config: Config):
        self._name = config.log.tracker
        self._process: subprocess.Popen[bytes] | None = None
        self._has_warned = False
        self._lost = 0
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(MOST_WAITING)
        self._is_gone = threading.Event()
        if folder is None or self._name == "none":
            return
        self._folder = folder
        self._waiting.put(_opening(folder, config, self._known_id()))
        try:
            self._process = _start(folder / TRACKER_LOG_FILE)
        except OSError as error:
            self._warn(f"its process cannot be started ({error})")
            return
        threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)]
        for thread in threads:
            thread.start()
        self._threads = threads

    def record(self, step: int, numbers: Mapping[str, float]) -> None:
        """Passes the finite numbers, by tag, to the tracker; never waits."""
        if self._process is None or self._is_gone.is_set():
            return
        finite = {tag: float(number) for tag, number in numbers.items() if math.isfinite(number)}
        if finite and not self._offer({"step": step, "numbers": finite}):
            self._lost += 1

    def finish(self, outcome: str, report: Path | None = None, hurries: Callable[[], bool] = lambda: False) -> None:
        """Ends the run in the tracker, and waits briefly until it has everything.

        Args:
          outcome: "done", "interrupted" or "failed".
          report: the file of the report, if there is one.
          hurries: whether a signal asks to leave soon.
        """
        if self._process is None:
            return
        messages = [*([{"report": str(report.absolute())}] if report else []), {"end": outcome}, None]
        limit_s = ENDS_S if outcome == "done" else STOPS_S
        started = time.monotonic()
        while not self._is_gone.wait(_ASKS_EVERY_S):
            while messages and self._offer(messages[0]):
                messages.pop(0)
            limit_s = min(limit_s, STOPS_S) if hurries() else limit_s
            if time.monotonic() - started > limit_s:
                self._warn(f"it did not accept all records within {limit_s:g} s after training")
                break
        if self._lost:
            self._warn(f"it is too slow: {self._lost} records were not sent")
        self._leave()

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, *error: Any) -> None:
        self.finish("failed")

    def _offer(self, message: dict[str, Any] | None) -> bool:
        """Returns whether there was room for a message."""
        try:
            self._waiting.put_nowait(message)
        except queue.Full:
            return False
        return True

    def _send(self) -> None:
        process = self._process
        assert process and process.stdin
        # The pipe breaks when the process ends, which the other thread reports.
        with contextlib.suppress(OSError), process.stdin as stream:
            while (message := self._waiting.get()) is not None:
                stream.write(json.dumps(message).encode() + b"\n")
                stream.flush()

    def _receive(self) -> None:
        process = self._process
        assert process and process.stdout
        for line in process.stdout:
            # A killed process may leave part of a line.
            with contextlib.suppress(ValueError):
                self._note(json.loads(line))
        code = process.wait()
        if code:
            self._warn(f"its process ended with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}")
        self._is_gone.set()

    def _note(self, answer: dict[str, str]) -> None:
        """Handles an answer of the process."""
        if reason := answer.get("failed") or answer.get("problem"):
            self._warn(reason)
            return
        try:
            write_json(self._folder / TRACKER_FILE, {"tracker": self._name} | answer)
        except OSError as error:
            self._warn(
                f"{TRACKER_FILE} cannot be written ({error}): after a resume, the tracker would start another run"
            )
        _logger.info(f"{self._name} tracks this run as {answer['url'] or answer['id']}")

    def _known_id(self) -> str:
        """Returns the tracker's name for this run, "" if it does not know the run yet."""
        file = self._folder / TRACKER_FILE
        if not file.exists():
            return ""
        try:
            known = read_json(file, keys=("id", "tracker"))
        except (DamagedFile, OSError) as error:
            self._warn(f"the tracker starts a new run: {error}")
            return ""
        return known["id"] if known["tracker"] == self._name else ""

    def _leave(self) -> None:
        """Ends the process and its children, and both threads."""
        process, self._process = self._process, None
        assert process and process.stdout
        if not self._is_gone.is_set():
            self._has_warned = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        # If it ended early, its thread still waits for records.
        while not self._offer(None) and self._threads[0].is_alive():
            self._waiting.get_nowait()
        for thread in self._threads:
            thread.join()
        process.stdout.close()

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                f"log.tracker={self._name}: {reason}; the run continues, but the tracker may miss part of it (see "
                f"{TRACKER_LOG_FILE} in the run folder)"
            )


def _start(log: Path) -> subprocess.Popen[bytes]:
    """Starts the process in a session of its own: Ctrl-C is the training's. It dies with this one."""
    command = [sys.executable, "-m", "jaxpose.trackers.worker"]
    # Nothing about the run goes to the libraries' makers.
    silent = {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}
    # MLflow waits 2, 4, 8, 16 s for a server: it gives its reason before the run stops waiting.
    patient = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4"}
    with open_new(log) as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "jaxpose.cluster.die_with_parent", str(os.getpid()), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            env=silent | patient | os.environ,
            start_new_session=True,
        )


def _opening(folder: Path, config: Config, run_id: str) -> dict[str, Any]:
    """Returns the fields of an `Opening`."""
    return {
        "tracker": config.log.tracker,
        "project": Path(config.data.project).name or "jaxpose",
        "name": folder.absolute().name,
        "folder": str(folder.absolute()),
        "id": run_id,
        "options": {name: value for name, (_, value) in flat_options(config).items()},
    }
