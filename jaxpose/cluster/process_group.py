"""The processes of one run on this machine: starts them, logs their output, forwards signals, stops all if one fails.

Input: a command, and the environment variables of each process. Output: a log for each process, and an exit status.
"""

import contextlib
import dataclasses
import os
import random
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from jaxpose.cluster.process_info import FIRST_PORT, PORTS
from jaxpose.config.arguments import LOST
from jaxpose.early_signals import EXIT_CODES
from jaxpose.errors import UserError
from jaxpose.files import open_shared

# One started process: its output and its exit.

# More than a pipe can hold, so that one read returns all output of a process that has ended.
_READ_BYTES = 1 << 20
# Exit codes of a process that lost another one: JAX aborted it, or `PeerMonitor` ended it with a message.
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
      console: a text stream that also gets every line, or None.
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


# Exit codes of an orderly end. After one of these, the other processes end by themselves.
STOPPED = tuple(EXIT_CODES.values())
ORDERLY = (0, 3, 4, *STOPPED)
_TICK_S = 0.1
# If a signal stops one process, the others normally stop within this time; then they get SIGTERM.
_FOLLOW_S = 10.0


@dataclasses.dataclass(frozen=True)
class ExitStatus:
    """How a group of processes ended.

    Attributes:
      code: exit code of the process that failed first (128 plus the signal number if a signal killed it). If none
        failed, the first code other than 0.
      cause: a sentence about that process; "" if all processes ended in order.
    """

    code: int
    cause: str


class ProcessGroup:
    """Processes of one run on this machine; a context that leaves no process behind, even if it is killed itself.

    Each process has its own process group, so it receives the terminal's Ctrl-C only once, from here. The output of
    each process is appended to <log_folder>/process-<index>.log. The console shows all output of process 0, and the
    stderr of the others with the prefix "[1] ". Create it in the main thread: the processes die with the thread that
    started them.

    Args:
      command: program and arguments, the same for all processes; no shell interprets them.
      variables: for each process, environment variables to add to those of this process, or to replace.
      log_folder: an existing folder.
      patience_s: if a process fails, the others get SIGTERM, and SIGKILL this many seconds later.
    """

    def __init__(
        self, command: list[str], variables: list[dict[str, str]], log_folder: Path, patience_s: float = 3.0
    ) -> None:
        self._patience_s = patience_s
        self._selector = selectors.DefaultSelector()
        self._members: list[ChildProcess] = []
        self._signals: list[int] = []
        self._forwarded = 0
        self._old_handlers = {number: signal.signal(number, self._caught) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            for index, own in enumerate(variables):
                member = ChildProcess(index, command, own, log_folder / f"process-{index}.log")
                self._members.append(member)
                for stream in member.streams:
                    self._selector.register(stream.pipe, selectors.EVENT_READ, stream)
        except BaseException:
            self._leave()
            raise

    @property
    def was_asked_to_stop(self) -> bool:
        """Whether SIGTERM or Ctrl-C was received."""
        return bool(self._signals)

    def wait(self) -> ExitStatus:
        """Waits until all processes have ended, and returns how."""
        ended: list[ChildProcess] = []
        stopped: list[ChildProcess] = []
        kill_at = stop_at = float("inf")
        while len(ended) < len(self._members):
            self._forward_output()
            self._forward_signals()
            now = time.monotonic()
            if kill_at <= now:
                self._send(signal.SIGKILL)
            for member in [member for member in self._members if member not in ended and member.has_ended()]:
                ended.append(member)
                ours = (-signal.SIGKILL,) if kill_at <= now else (-signal.SIGTERM,) if kill_at < float("inf") else ()
                if member.code in ours:
                    stopped.append(member)
            if kill_at == float("inf") and any(member.code not in ORDERLY for member in ended):
                kill_at = now + self._patience_s
                self._send(signal.SIGTERM)
            if stop_at == float("inf") and not self._signals and any(member.code in STOPPED for member in ended):
                stop_at = now + _FOLLOW_S
            elif stop_at <= now:
                # A signal stopped one process before the rendezvous, and the others still wait for it.
                stop_at = float("nan")
                self._send(signal.SIGTERM)
        return self._exit_status(ended, stopped)

    def __enter__(self) -> "ProcessGroup":
        return self

    def __exit__(self, *error: Any) -> None:
        self._leave()

    def _leave(self) -> None:
        self._send(signal.SIGKILL)
        self._selector.close()
        for member in self._members:
            member.close()
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        # The signal may arrive while a process is being started, so it is forwarded later.
        self._signals.append(number)

    def _forward_signals(self) -> None:
        """Forwards the first SIGTERM and the first Ctrl-C; a second Ctrl-C kills."""
        while self._forwarded < len(self._signals):
            number = self._signals[self._forwarded]
            if number not in self._signals[: self._forwarded]:
                self._send(number)
            elif number == signal.SIGINT:
                self._send(signal.SIGKILL)
            self._forwarded += 1

    def _send(self, number: int) -> None:
        for member in self._members:
            member.send(number)

    def _forward_output(self) -> None:
        """Waits briefly for output of the processes and forwards it."""
        if not self._selector.get_map():
            time.sleep(_TICK_S)
        for key, _ in self._selector.select(_TICK_S) if self._selector.get_map() else ():
            if not key.data.forward():
                self._selector.unregister(key.fileobj)

    def _exit_status(self, ended: list[ChildProcess], stopped: list[ChildProcess]) -> ExitStatus:
        if self._signals.count(signal.SIGINT) > 1:
            return ExitStatus(EXIT_CODES[signal.SIGINT], "")
        failed = [member for member in ended if member.code not in ORDERLY and member not in stopped]
        causes = [member for member in failed if not member.is_survivor()]
        if causes:
            return ExitStatus(_exit_code(causes[0]), causes[0].describe())
        if failed and (asked := [member.code for member in ended if member.code in STOPPED]):
            # A signal stopped one process, and the others failed because it was gone.
            return ExitStatus(asked[0], "")
        if failed:
            silent = "".join(f"; process {member.index} did not answer and was killed" for member in stopped)
            return ExitStatus(_exit_code(failed[0]), failed[0].describe() + silent)
        return ExitStatus(next((member.code for member in ended if member.code), 0), "")


def _exit_code(member: ChildProcess) -> int:
    code = member.code or 0
    return code if code >= 0 else 128 - code


def process_variables(shares: list[dict[str, str]]) -> list[dict[str, str]]:
    """Returns the variables of each process: its devices, its number, and the address of process 0.

    Args:
      shares: for each process, the variables that assign its devices.

    Raises:
      UserError: no port is free for process 0.
    """
    port = _free_port()
    return [
        share
        | {
            "JAXPOSE_COORDINATOR": f"localhost:{port}",
            "JAXPOSE_NUM_PROCESSES": str(len(shares)),
            "JAXPOSE_PROCESS_ID": str(index),
        }
        for index, share in enumerate(shares)
    ]


def _free_port() -> int:
    """Returns an unused port, from a range that the system does not assign to other programs in the meantime."""
    for port in random.sample(range(FIRST_PORT, FIRST_PORT + PORTS), PORTS):
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    raise UserError(f"no port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1} is free on this machine")
