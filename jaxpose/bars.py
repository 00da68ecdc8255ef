"""Bars of long work, below the lines of a terminal or in a notebook; several are drawn below each other.

See `terminal.draws_bars` for where they can be drawn. rich draws them, from a thread of its own; it is imported with
the first bar.
"""

import shutil
import sys
import threading
from typing import TYPE_CHECKING, Any

from jaxpose import terminal

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live

_REFRESHES_PER_S = 5
# The time left is estimated from as many seconds; an item may take long.
_SPEED_S = 300.0
# Characters of a short title, of the bar with its figures, and of a terminal that has place for units and percentages.
_LEAST_TITLE, _FIGURES, _WIDE = 10, 48, 60
_lock = threading.RLock()
_drawn: list["Bar"] = []
_live: "Live | None" = None


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
        self._progress = _columns(total, unit)
        self._task = self._progress.add_task(title, total=total or None, completed=done)
        task = self._progress.tasks[0]
        task.start_time = (task.start_time or 0.0) - spent_s
        _draw(self)

    def update(self, done: int) -> None:
        """Sets the number of finished items."""
        self._progress.update(self._task, completed=done)

    def close(self) -> None:
        """Wipes the bar."""
        _wipe(self)

    def lines(self) -> list[Any]:
        """Returns what rich draws: each a line."""
        from rich.text import Text

        note = [Text(self.note, "dim", no_wrap=True, overflow="ellipsis")] if self.note else []
        return [self._progress.get_renderable(), *note]


def _columns(total: int, unit: str) -> Any:
    """Returns the columns of a bar; a long title gives way to the other ones, and so do unit and percentage on a
    narrow terminal."""
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
        counts += (f" {unit}s" if unit else "") + " {task.percentage:.0f}%"
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
