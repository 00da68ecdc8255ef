"""One process that was started here: its output, and how it ended."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from jaxpose.config.arguments import LOST
from jaxpose.early_signals import EXIT_CODES
from jaxpose.files import open_shared

# More than a pipe can hold, so that one read returns all output of a process that has ended.
_READ_BYTES = 1 << 20
# Exit codes of a process that lost another one: JAX aborted it, or `peers` ended it with a message.
_SURVIVED = (-signal.SIGABRT, 128 + signal.SIGABRT, LOST)
_PEER_LOST = re.compile(rb": process \d+ on \S+ (failed|ended|is gone|has been silent)")


class ChildProcess:
    """One process of a group, which dies with the thread that creates this object.

    Args:
      index: number of the process in the group. The console shows all output of process 0, and the stderr of others.
      command: program and arguments.
      variables: environment variables to add to those of this process, or to replace.
      log_file: all output is appended to it.

    Attributes:
      code: None while the process runs, then its exit code, or -N if signal number N killed it.
      streams: its stdout and stderr.
    """

    def __init__(self, index: int, command: list[str], variables: dict[str, str], log_file: Path) -> None:
        self.index = index
        self.code: int | None = None
        self._log_file = log_file
        self._log = os.fdopen(open_shared(log_file, os.O_WRONLY | os.O_APPEND), "ab", buffering=0)
        # A signal that is forwarded before the new process can handle it stays pending; see `die_with_parent`.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, EXIT_CODES)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jaxpose.cluster.die_with_parent", str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | variables,
                process_group=0,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        name = f"[{index}] " if index else ""
        self.streams = [
            Stream(self._process.stdout, self._log, sys.stdout if index == 0 else None, name),
            Stream(self._process.stderr, self._log, sys.stderr, name),
        ]

    def has_ended(self) -> bool:
        """Returns whether the process has ended; if so, sets `code` and forwards the rest of its output."""
        if self.code is None and self._process.poll() is not None:
            for stream in self.streams:
                stream.forward()
                stream.end_line()
            self.code = self._process.returncode
        return self.code is not None

    def send(self, number: int) -> None:
        """Sends a signal to the process; SIGKILL also goes to the processes that it started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    os.killpg(self._process.pid, number)
                else:
                    self._process.send_signal(number)

    def is_survivor(self) -> bool:
        """Returns whether the process failed only because another process of the run was lost."""
        return self.code in _SURVIVED or any(stream.reports_lost_peer for stream in self.streams)

    def describe(self) -> str:
        """Returns a sentence that says how the process ended, and where its log is."""
        code = self.code or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"process {self.index} {how}; see {self._log_file}"

    def close(self) -> None:
        """Waits for the end of the process and closes its log and pipes."""
        self._process.wait()
        for stream in self.streams:
            stream.pipe.close()
        self._log.close()


class Stream:
    """The stdout or stderr of a process, forwarded line by line.

    Args:
      pipe: the reading end of the pipe.
      log: a binary file that gets every line.
      console: a text stream that gets every line too, or None.
      name: prefix of the lines on the console.

    Attributes:
      reports_lost_peer: whether a line reported that another process failed or was lost.
    """

    def __init__(self, pipe: Any, log: Any, console: Any, name: str) -> None:
        self.pipe = pipe
        self.reports_lost_peer = False
        self._log = log
        self._console = console
        self._name = name
        self._unfinished = b""
        os.set_blocking(pipe.fileno(), False)

    def forward(self) -> bool:
        """Forwards the output that can be read now; returns False at the end of the stream."""
        try:
            read = os.read(self.pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return True
        *lines, self._unfinished = (self._unfinished + read).split(b"\n")
        for line in lines:
            self._write(line + b"\n")
        return bool(read)

    def end_line(self) -> None:
        """Forwards a last line that has no newline."""
        if self._unfinished:
            self._write(self._unfinished + b"\n")
            self._unfinished = b""

    def _write(self, line: bytes) -> None:
        self.reports_lost_peer |= _PEER_LOST.search(line) is not None
        # A full disk or a closed terminal must not end a training.
        with contextlib.suppress(OSError):
            self._log.write(line)
        if self._console is not None:
            with contextlib.suppress(OSError):
                print(self._name + line.decode(errors="replace"), end="", file=self._console, flush=True)
