"""Shows the progress of long work: bars on a terminal or in a notebook, lines in a pipe."""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jaxpose import terminal

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live


# Bars, drawn below the lines of a terminal or in a notebook; several are stacked.
#
# See `terminal.draws_bars` for where they can be drawn. rich draws them from its own thread; it is imported with the
# first bar.

_REFRESHES_PER_S = 5
# The time left is estimated from this many seconds; a single item may take long.
_SPEED_S = 300.0
# Characters of a short title, of the bar with its figures, and of a terminal with room for units and percentages.
_LEAST_TITLE, _FIGURES, _WIDE = 10, 48, 60
_lock = threading.RLock()
_drawn: list["Bar"] = []
_live: "Live | None" = None


def percent(done: int, total: int) -> str:
    """Returns the finished share, rounded down, so 100% means all; "" for an unknown total of 0."""
    return f"{100 * min(done, total) // total}%" if total else ""


class Bar:
    """A bar, drawn until it is closed: how much is done and the time left; without a total, a spinner and the time.

    Args:
      title: a phrase such as "compiling the training step".
      total: number of items; 0 = unknown.
      unit: name of an item, such as "frame".
      done: number of items that are finished already.
      spent_s: seconds since the work began.

    Attributes:
      note: a line below the bar, "" for none.
    """

    def __init__(self, title: str, total: int = 0, unit: str = "", done: int = 0, spent_s: float = 0.0) -> None:
        self.note = ""
        self._total = total
        self._progress = _columns(total, unit)
        self._task = self._progress.add_task(title, total=total or None, completed=done, share=percent(done, total))
        task = self._progress.tasks[0]
        task.start_time = (task.start_time or 0.0) - spent_s
        _draw(self)

    def update(self, done: int) -> None:
        """Sets the number of finished items."""
        self._progress.update(self._task, completed=done, share=percent(done, self._total))

    def close(self) -> None:
        """Wipes the bar."""
        _wipe(self)

    def lines(self) -> list[Any]:
        """Returns the lines that rich draws."""
        from rich.text import Text

        note = [Text(self.note, "dim", no_wrap=True, overflow="ellipsis")] if self.note else []
        return [self._progress.get_renderable(), *note]


def _columns(total: int, unit: str) -> Any:
    """Returns the columns of a bar; they cut a long title, and a narrow terminal gets no unit or percentage."""
    from rich import progress
    from rich.table import Column

    width = shutil.get_terminal_size().columns
    title_width = max(_LEAST_TITLE, width - (_FIGURES if total else len("-  0:00:00")))
    column = Column(no_wrap=True, max_width=title_width)
    title = progress.TextColumn("{task.description}", markup=False, table_column=column)
    if not total:
        return progress.Progress(progress.SpinnerColumn("line"), title, progress.TimeElapsedColumn())
    counts = "{task.completed:,.0f}/{task.total:,.0f}"
    if width >= _WIDE:
        counts += (f" {unit}s" if unit else "") + " {task.fields[share]}"
    return progress.Progress(
        title,
        progress.BarColumn(None),
        progress.TextColumn(counts, markup=False),
        progress.TextColumn("ETA"),
        progress.TimeRemainingColumn(compact=True),
        expand=True,
        speed_estimate_period=_SPEED_S,
    )


def _draw(bar: Bar) -> None:
    global _live
    with _lock:
        _drawn.append(bar)
        if _live is None:
            from rich.live import Live

            console = _notebook_console() if terminal.is_notebook() else terminal.console_of(sys.stderr)
            _live = Live(
                get_renderable=lambda: _lines(console),
                console=console,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                refresh_per_second=_REFRESHES_PER_S,
            )
            _live.start(refresh=True)
            # rich hides the cursor, and a process that is killed would leave it hidden.
            console.show_cursor(True)


def _wipe(bar: Bar) -> None:
    global _live
    with _lock:
        _drawn.remove(bar)
        if not _drawn and _live is not None:
            _live.stop()
            _live = None
            terminal.set_bars(None)


def _lines(console: "Console") -> "Group":
    from rich.console import Group

    lines = [line for bar in [*_drawn] for line in bar.lines()]
    if not console.is_jupyter:
        terminal.set_bars(console, len(lines))
    return Group(*lines)


def _notebook_console() -> "Console":
    from rich.console import Console

    return Console(force_jupyter=True, markup=False, emoji=False, highlight=False)


# Phases of a verb: a spinner or a bar on a terminal, otherwise occasional lines.
#
# A notebook with ipywidgets also has spinners and bars. A short phase shows nothing. Lines appear only after `speak`,
# which the verbs call; a program that imports jaxpose does not. With several processes, only the first one of a run
# prints.

# Seconds before the first line of a phase, and between two lines of one phase.
FIRST_S, AGAIN_S = 3.0, 30.0
SHOWN_ON_TERMINAL_S = 1.0
TICK_S = 0.25

_phases_lock = threading.Lock()
_under_way: list["Phase"] = []
_thread: threading.Thread | None = None
# In a program that imports jaxpose; in a verb; in a process of a run other than the first.
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
    """A context for work that may take long. Only the innermost phase is shown.

    Args:
      title: a phrase such as "compiling the training step".
      total: number of items, which `Phase.update` counts; 0 = unknown.
      unit: name of an item.
    """
    mine = Phase(title, total, unit)
    with _phases_lock:
        for outer in _under_way:
            outer.close()
        _under_way.append(mine)
        _start_thread()
    try:
        yield mine
    finally:
        with _phases_lock:
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
        with _phases_lock:
            if not _under_way:
                _thread = None
                return
            if draws or _shows == _LINES or (terminal.is_notebook() and _shows == _BARS):
                _under_way[-1].tick(draws)
