"""A thread that follows a run: it looks for changes in the run folder again and again, until the run has ended."""

import logging
import threading
from collections.abc import Callable

_LONGEST_WAIT_S = 600.0
# After the end of the run, as many rounds in a row may fail.
_LAST_ROUNDS = 3

# What failed, and how.
Failure = tuple[str, BaseException]

_logger = logging.getLogger(__name__)


class Follower:
    """A thread for one kind of work; its first failure is a warning.

    Args:
      name: of the thread.
      work: does one round, given whether the run is at its end; returns what failed.
      every_s: seconds between two rounds; more after a failure.
      ending: is set when the run is at its end.
      leaving: is set when the thread must stop.
      last: once it is set, nothing changes any more.

    Attributes:
      done: is set when the thread ends.
      reason: why the last round failed, "" if it did not.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[bool], list[Failure]],
        every_s: float,
        ending: threading.Event,
        leaving: threading.Event,
        last: threading.Event,
    ):
        self._work, self._every_s = work, every_s
        self._ending, self._leaving, self._last = ending, leaving, last
        self._has_warned = False
        self.done = threading.Event()
        self.reason = ""
        # A daemon: a file system or a hook that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """Returns whether the thread still works."""
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        """Waits until the thread ends, for a limited number of seconds."""
        self._thread.join(seconds)

    def _run(self) -> None:
        failures = 0
        while not self._leaving.is_set():
            is_ending, is_last = self._ending.is_set(), self._last.is_set()
            failures = 0 if self._succeeds(is_ending) else failures + 1
            if not is_ending:
                self._ending.wait(min(self._every_s * 2**failures, max(self._every_s, _LONGEST_WAIT_S)))
            elif failures >= _LAST_ROUNDS or (is_last and not failures):
                break
            elif failures:
                self._leaving.wait(2 ** (failures - 1))
            else:
                self._last.wait()
        self.done.set()

    def _succeeds(self, is_ending: bool) -> bool:
        self.reason = ""
        for what, error in self._work(is_ending):
            self.reason = (str(error).splitlines() or [""])[0] or type(error).__name__
            if not self._has_warned:
                self._has_warned = True
                _logger.warning("%s: %s; the run continues, and jaxpose tries again", what, self.reason)
        return not self.reason
