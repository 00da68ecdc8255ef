"""The processes of one run on this machine: starts them, logs their output, forwards signals, stops all if one fails.

Input: a command, and the environment variables of each process. Output: a log for each process, and an exit status.
"""

import contextlib
import dataclasses
import random
import selectors
import signal
import socket
import time
from pathlib import Path
from types import FrameType
from typing import Any

from jaxpose.cluster.child_process import ChildProcess
from jaxpose.cluster.process_info import FIRST_PORT, PORTS
from jaxpose.early_signals import EXIT_CODES
from jaxpose.errors import UserError

# Exit codes of an orderly end. After one of these, the other processes end without help.
STOPPED = tuple(EXIT_CODES.values())
ORDERLY = (0, 3, 4, *STOPPED)
_TICK_S = 0.1
# If a signal stops one process, the others normally stop within this time; after it they get SIGTERM.
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
