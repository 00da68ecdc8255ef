"""Shows long work of a verb: a spinner or a bar on a terminal, otherwise a line now and then.

A notebook with ipywidgets has spinners and bars, too. A short phase shows nothing. Lines appear only after `speak`,
which the verbs call; a program that imports jaxpose does not. With several processes, only the first one of a run
prints.
"""

import contextlib
import threading
import time
from collections.abc import Iterator

from jaxpose import terminal
from jaxpose.bars import Bar

# Seconds before the first line of a phase, and between two lines of one phase.
FIRST_S, AGAIN_S = 3.0, 30.0
SHOWN_ON_TERMINAL_S = 1.0
TICK_S = 0.25

_lock = threading.Lock()
_under_way: list["Phase"] = []
_thread: threading.Thread | None = None
# In a program that imports jaxpose; in a verb; in a process of a run that is not the first.
_BARS, _LINES, _NOTHING = "bars", "bars and lines", "nothing"
_shows = _BARS
_said_at = 0.0


class Phase:
    """Long work, while it lasts.

    Attributes:
      title: a phrase such as "compiling the training step".
      total: number of items; 0 = unknown, or a single item.
      done: number of finished items.
    """

    def __init__(self, title: str, total: int, unit: str) -> None:
        self.title = title
        self.total = total
        self.done = 0
        self._unit = unit
        self._started_at = time.monotonic()
        self._lines = 0
        self._bar: Bar | None = None

    def update(self, done: int = 1) -> None:
        """Adds to the number of finished items."""
        self.done += done

    def tick(self, draws: bool) -> None:
        """Updates the bar, or the lines where none can be drawn; called a few times a second."""
        now = time.monotonic()
        if draws:
            if now - self._started_at >= SHOWN_ON_TERMINAL_S:
                self._draw()
        elif now - max(self._started_at, _said_at) >= (AGAIN_S if self._lines else FIRST_S):
            self._lines += 1
            counts = f": {self.done:,} of {self.total:,}" if self.total else ""
            seconds = f" ({now - self._started_at:.0f} s so far)" if self._lines > 1 else " ..."
            _say(f"{self.title}{counts}{seconds}")

    def close(self) -> None:
        """Wipes the spinner or bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _draw(self) -> None:
        if self._bar is None:
            self._bar = Bar(self.title, self.total, self._unit, spent_s=time.monotonic() - self._started_at)
        self._bar.update(min(self.done, self.total))


@contextlib.contextmanager
def phase(title: str, total: int = 0, unit: str = "") -> Iterator[Phase]:
    """A context for work that may take long. Of nested phases, the innermost is shown.

    Args:
      title: a phrase such as "compiling the training step".
      total: number of items, which `Phase.update` counts; 0 = unknown.
      unit: name of an item.
    """
    mine = Phase(title, total, unit)
    with _lock:
        for outer in _under_way:
            outer.close()
        _under_way.append(mine)
        _start_thread()
    try:
        yield mine
    finally:
        with _lock:
            _under_way.remove(mine)
            mine.close()


def speak(first_line: str, is_first: bool = True) -> None:
    """Prints the first line of a verb; from then on, phases print lines too.

    Args:
      first_line: the line.
      is_first: whether this is the run's first process; the others print nothing.
    """
    global _shows
    _shows = _LINES if is_first else _NOTHING
    if is_first:
        _say(first_line)


def say(line: str) -> None:
    """Prints a line of a verb, on the run's first process."""
    if _shows == _LINES:
        _say(line)


def current() -> str:
    """Returns the title of the innermost phase, "" if there is none."""
    under_way = list(_under_way)
    return under_way[-1].title if under_way else ""


def _say(line: str) -> None:
    global _said_at
    _said_at = time.monotonic()
    # If the reader is gone, the verb's own next print fails.
    with contextlib.suppress(OSError):
        terminal.say(line)


def _start_thread() -> None:
    global _thread
    if _thread is None and _shows != _NOTHING:
        _thread = threading.Thread(target=_show, name="phases", daemon=True)
        _thread.start()


def _show() -> None:
    global _thread
    while True:
        time.sleep(TICK_S)
        draws = terminal.draws_bars()
        with _lock:
            if not _under_way:
                _thread = None
                return
            if draws or _shows == _LINES or (terminal.is_notebook() and _shows == _BARS):
                _under_way[-1].tick(draws)
