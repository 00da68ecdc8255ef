"""Makes the tracks of a review again from its page: `jaxpose track`, with the answers of a person."""

import re
from collections.abc import Sequence
from pathlib import Path

from jaxpose.label.background import Background

# The arguments of the command are $@. The first line serves `stop`; without the last one, the command was stopped.
_SCRIPT = """
echo "process $$"
"$PYTHON" -m jaxpose track "$@"
echo "exit code $?"
"""
_FIRST, _LAST = re.compile(r"process (\d+)"), re.compile(r"exit code (\d+)")


class Tracker:
    """The command that makes tracks again, one at a time."""

    def __init__(self, tracks: Path):
        """Takes the file of the tracks, which the log lies next to."""
        busy = f"{tracks} is being made: wait for its end, or stop it"
        self._background = Background(tracks.with_name(f".{tracks.name}.log"), busy)
        # The end of a command that an earlier page saw is old news.
        self._was_running = False

    def state(self) -> dict[str, str]:
        """Returns as JSON what the page shows: `name` (none, running, done, stopped or failed), and `text` about it."""
        is_running = self.is_running()
        self._was_running |= is_running
        if not self._was_running:
            return {"name": "none", "text": ""}
        lines = self._background.last_lines()
        end = _LAST.fullmatch(lines[-1]) if lines else None
        output = [line for line in lines if not _FIRST.fullmatch(line) and not _LAST.fullmatch(line)]
        text = output[-1] if output else ""
        if is_running:
            return {"name": "running", "text": text or "starts"}
        if end is None:
            return {"name": "stopped", "text": "stopped: the tracks are as before"}
        is_done = end[1] == "0"
        return {"name": "done" if is_done else "failed", "text": text or f"its output is in {self._background.log}"}

    def is_running(self) -> bool:
        """Returns whether the command runs, whichever page started it."""
        return self._background.is_running()

    def start(self, arguments: Sequence[str]) -> None:
        """Starts the command with these arguments.

        Raises:
          UserError: it runs already.
          OSError: the log cannot be written.
        """
        with self._background.claimed() as log:
            self._background.start(log, _SCRIPT, arguments, {})
            self._was_running = True

    def stop(self) -> None:
        """Ends the command; the tracks stay as they are."""
        if self.is_running():
            with open(self._background.log, errors="replace") as stream:
                if first := _FIRST.match(stream.readline()):
                    self._background.stop(int(first[1]))
