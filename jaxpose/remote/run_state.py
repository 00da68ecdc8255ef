"""The state of a watched run: starting, running, silent, or how it ended."""

import dataclasses
import time

from jaxpose.checksums import DamagedFile
from jaxpose.config.arguments import DONE
from jaxpose.early_signals import EXIT_CODES
from jaxpose.quantities import clock
from jaxpose.remote.watched import Progress, Watched
from jaxpose.run.status import Status

FINISHED, SILENT = "finished", "silent"
_NO_LOG = "and has not written train.log yet: it reads its data or compiles"


@dataclasses.dataclass(frozen=True)
class RunState:
    """What is shown of a run.

    Attributes:
      name: starting, running, silent, finished, stopped, failed, ended, or why the run cannot be read.
      more: details for people, or "".
      progress: how far the run has come, None before it could be read.
    """

    name: str
    more: str
    progress: Progress | None

    def text(self) -> str:
        """Returns the state with its details."""
        return f"{self.name} {self.more}".rstrip()


class RunStates:
    """Reads the state of a run that has started.

    Args:
      watched: the run.
      silent_s: seconds without a change after which the run is silent.
    """

    def __init__(self, watched: Watched, silent_s: float | int):
        self._watched, self._silent_s = watched, silent_s
        self._progress: Progress | None = None
        self._changed_at = time.monotonic() - watched.silent_s()

    def read(self) -> RunState:
        """Returns the present state.

        Raises:
          DamagedFile: a file of the run is damaged.
        """
        try:
            found, problem = self._watched.look(), ""
        except DamagedFile:
            raise
        # Each kind of store has exceptions of its own.
        except Exception as error:
            found, problem = self._progress, f"cannot be read ({error})"
        if found != self._progress:
            self._changed_at = time.monotonic() if self._progress else self._changed_at
            self._progress = found
        silent_s = time.monotonic() - self._changed_at
        if found and found.end:
            return RunState(*_ended(found.end), found)
        if problem:
            return RunState(problem, "", found)
        if silent_s >= self._silent_s:
            return RunState(SILENT, f"for {clock(silent_s)}", found)
        return RunState("running", "", found) if found and found.last_line else RunState("starting", _NO_LOG, found)


def _ended(end: Status) -> tuple[str, str]:
    """Returns the state of a run that has ended, and its details."""
    if end.exit_code == DONE:
        return FINISHED, ""
    if end.exit_code is None:
        return "ended", "without a word: it was killed, or its machine failed; the same command continues it"
    if end.exit_code in EXIT_CODES.values():
        return "stopped", f"by a signal (exit code {end.exit_code}); the same command continues it"
    return "failed", f"with exit code {end.exit_code}: {end.reason}"
