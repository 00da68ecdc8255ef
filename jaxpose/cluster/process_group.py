"""Processes of one run on this machine: started together, heard, told of signals, and ended when one of them fails.

What comes in: a command, and the variables of each process. What goes out: a log for each, and how they ended.
"""

import dataclasses
import selectors
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

from jaxpose.cluster.child_process import ChildProcess
from jaxpose.early_signals import EXIT_CODES

# Exit codes with which a process leaves in good order: the others end by themselves.
STOPPED = tuple(EXIT_CODES.values())
ORDERLY = (0, 3, 4, *STOPPED)
_TICK_S = 0.1
# Where a signal stops one process, the others follow by themselves within this time, or are told to.
_FOLLOW_S = 10.0


@dataclasses.dataclass(frozen=True)
class ExitStatus:
    """How a group ended.

    Attributes:
      code: the exit code of the process that failed first (128 and the number of the signal where one killed it); where
        none failed, the first code that is not 0.
      cause: a sentence about that process, "" where all left in good order.
    """

    code: int
    cause: str


class ProcessGroup:
    """Processes of one run on this machine; a context that leaves none of them behind, even if it is killed itself.

    Each is in a process group of its own: a Ctrl-C of the terminal comes from here, once. What they say is added to
    <log_folder>/process-<index>.log. On the console is all that the first one says, and what the others write to
    stderr, each line with "[1] " before it. To be made in the main thread: they die with the thread that made them.

    Args:
      command: program and arguments, the same for all; no shell reads them.
      variables: for each process, what its environment has beside or in place of this one's.
      log_folder: is there already.
      patience_s: when one fails, the others are told to stop, and killed so many seconds later.
    """

    def __init__(
        self, command: list[str], variables: list[dict[str, str]], log_folder: Path, patience_s: float = 3.0
    ) -> None:
        self._patience_s = patience_s
        self._selector = selectors.DefaultSelector()
        self._members: list[ChildProcess] = []
        self._signals: list[int] = []
        self._told = 0
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
        """Whether a SIGTERM or Ctrl-C came."""
        return bool(self._signals)

    def wait(self) -> ExitStatus:
        """Returns how the processes ended, once all have."""
        ended: list[ChildProcess] = []
        stopped: list[ChildProcess] = []
        kill_at = stop_at = float("inf")
        while len(ended) < len(self._members):
            self._pass_on_lines()
            self._pass_on_signals()
            now = time.monotonic()
            if kill_at <= now:
                self._tell(signal.SIGKILL)
            for member in [member for member in self._members if member not in ended and member.look()]:
                ended.append(member)
                by_us = (-signal.SIGKILL,) if kill_at <= now else (-signal.SIGTERM,) if kill_at < float("inf") else ()
                if member.code in by_us:
                    stopped.append(member)
            if kill_at == float("inf") and any(member.code not in ORDERLY for member in ended):
                kill_at = now + self._patience_s
                self._tell(signal.SIGTERM)
            if stop_at == float("inf") and not self._signals and any(member.code in STOPPED for member in ended):
                stop_at = now + _FOLLOW_S
            elif stop_at <= now:
                # A signal stopped one alone, before it met the others, and they wait for it.
                stop_at = float("nan")
                self._tell(signal.SIGTERM)
        return self._ending(ended, stopped)

    def __enter__(self) -> "ProcessGroup":
        return self

    def __exit__(self, *error: Any) -> None:
        self._leave()

    def _leave(self) -> None:
        self._tell(signal.SIGKILL)
        self._selector.close()
        for member in self._members:
            member.close()
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        # Only noted: it may come while a process is being started.
        self._signals.append(number)

    def _pass_on_signals(self) -> None:
        """Passes on the first SIGTERM and the first Ctrl-C; the second Ctrl-C kills."""
        while self._told < len(self._signals):
            number = self._signals[self._told]
            if number not in self._signals[: self._told]:
                self._tell(number)
            elif number == signal.SIGINT:
                self._tell(signal.SIGKILL)
            self._told += 1

    def _tell(self, number: int) -> None:
        for member in self._members:
            member.tell(number)

    def _pass_on_lines(self) -> None:
        """Passes on what the processes say, after waiting a moment for it."""
        if not self._selector.get_map():
            time.sleep(_TICK_S)
        for key, _ in self._selector.select(_TICK_S) if self._selector.get_map() else ():
            if not key.data.pass_on():
                self._selector.unregister(key.fileobj)

    def _ending(self, ended: list[ChildProcess], stopped: list[ChildProcess]) -> ExitStatus:
        if self._signals.count(signal.SIGINT) > 1:
            return ExitStatus(130, "")
        failed = [member for member in ended if member.code not in ORDERLY and member not in stopped]
        causes = [member for member in failed if not member.is_survivor()]
        if causes:
            return ExitStatus(_exit_code(causes[0]), causes[0].describe())
        if failed and (asked := [member.code for member in ended if member.code in STOPPED]):
            # A signal stopped one process, and the others lost it.
            return ExitStatus(asked[0], "")
        if failed:
            silent = "".join(f"; process {member.index} did not answer and was killed" for member in stopped)
            return ExitStatus(_exit_code(failed[0]), failed[0].describe() + silent)
        return ExitStatus(next((member.code for member in ended if member.code), 0), "")


def _exit_code(member: ChildProcess) -> int:
    code = member.code or 0
    return code if code >= 0 else 128 - code
