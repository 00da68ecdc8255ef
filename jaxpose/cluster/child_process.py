"""One process that was started here: what it says, and how it ended."""

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

# More than a pipe holds: what a process said before it ended is read at once.
_READ_BYTES = 1 << 20
# How a process leaves when another one is lost: ended by JAX, or by itself, with a sentence of `peers`.
_SURVIVED = (-signal.SIGABRT, 128 + signal.SIGABRT, LOST)
_TOLD = re.compile(rb": process \d+ on \S+ (failed|ended|is gone|has been silent)")


class ChildProcess:
    """One process of a group, which dies with the thread that makes this object.

    Args:
      index: its number in the group; all that number 0 says is shown on the console, of others what goes to stderr.
      command: program and arguments.
      variables: what its environment has beside, or in place of, this one's.
      log_file: grows by all that it says.

    Attributes:
      code: None, or how it ended: its exit code, or -N where signal number N killed it.
      streams: its stdout and stderr.
    """

    def __init__(self, index: int, command: list[str], variables: dict[str, str], log_file: Path) -> None:
        self.index = index
        self.code: int | None = None
        self._log_file = log_file
        self._log = open(log_file, "ab", buffering=0)
        # A signal that is passed on before the process can catch it waits until it does; see `die_with_parent`.
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

    def look(self) -> bool:
        """Returns whether it has ended; if so, `code` is set and all that it said was passed on."""
        if self.code is None and self._process.poll() is not None:
            for stream in self.streams:
                stream.pass_on()
                stream.end_line()
            self.code = self._process.returncode
        return self.code is not None

    def tell(self, number: int) -> None:
        """Sends a signal; SIGKILL also to what it started itself."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    os.killpg(self._process.pid, number)
                else:
                    self._process.send_signal(number)

    def is_survivor(self) -> bool:
        """Tells whether it only failed because another process of the run was lost."""
        return self.code in _SURVIVED or any(stream.tells_of_a_lost_one for stream in self.streams)

    def describe(self) -> str:
        """Returns how it ended, and where it says more."""
        code = self.code or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"process {self.index} {how}; see {self._log_file}"

    def close(self) -> None:
        """Waits for its end and closes its log and pipes."""
        self._process.wait()
        for stream in self.streams:
            stream.pipe.close()
        self._log.close()


class Stream:
    """What a process writes to stdout or stderr, passed on line by line.

    Args:
      pipe: its reading end.
      log: gets every line.
      console: a text stream that gets every line too, or None.
      name: what lines on the console begin with.

    Attributes:
      tells_of_a_lost_one: whether a line said that another process failed or is lost.
    """

    def __init__(self, pipe: Any, log: Any, console: Any, name: str) -> None:
        self.pipe = pipe
        self.tells_of_a_lost_one = False
        self._log = log
        self._console = console
        self._name = name
        self._unfinished = b""
        os.set_blocking(pipe.fileno(), False)

    def pass_on(self) -> bool:
        """Passes on what can be read now; returns False once nothing more can come."""
        try:
            read = os.read(self.pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return True
        *lines, self._unfinished = (self._unfinished + read).split(b"\n")
        for line in lines:
            self._line(line + b"\n")
        return bool(read)

    def end_line(self) -> None:
        """Passes on a last line without its end."""
        if self._unfinished:
            self._line(self._unfinished + b"\n")
            self._unfinished = b""

    def _line(self, line: bytes) -> None:
        self.tells_of_a_lost_one |= _TOLD.search(line) is not None
        # A full disk or a closed terminal must not end a training.
        with contextlib.suppress(OSError):
            self._log.write(line)
        if self._console is not None:
            with contextlib.suppress(OSError):
                print(self._name + line.decode(errors="replace"), end="", file=self._console, flush=True)
