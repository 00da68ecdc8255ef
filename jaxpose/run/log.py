"""The log of a run: lines on the console and in train.log, metrics.jsonl, TensorBoard, and the progress bar.

A file that cannot be written does not stop a run: it gives one warning, and the next record tries again.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tqdm

from jaxpose.checksums import json_text
from jaxpose.config import LogConfig
from jaxpose.console import log_again, only_handler, print_above_bars
from jaxpose.files import GrowingFile
from jaxpose.phases import draws_bars, make_bar
from jaxpose.run.metrics_file import keep_until
from jaxpose.run.paths import LOG_FILE, METRICS_FILE, TENSORBOARD_FOLDER
from jaxpose.run.speed import SpeedWindow
from jaxpose.run.tags import tag_of

if TYPE_CHECKING:
    from jaxpose.run.tensorboard import EventFile

_WINDOW_S = 1.0  # speeds are averaged over this time on a terminal
_LINE_S = 30.0  # between two lines of progress without a terminal


class RunLog:
    """The log of one process; close it, or use it as a context.

    While it is open, all records of the logger "jaxpose" go through it to the console and train.log, so that they do
    not break the progress bar. It drops metrics of steps after `first_step`, which a killed run had written, and begins
    with the warnings in `earlier`.

    Attributes:
      folder: the run folder; None on all processes but the first, which write and print nothing.
    """

    def __init__(
        self,
        folder: Path | None,
        config: LogConfig,
        total_steps: int,
        first_step: int,
        earlier: Sequence[logging.LogRecord] = (),
    ):
        self.folder = folder
        self._every_steps = config.every_steps
        self._total_steps = total_steps
        self._bar: Any = None
        self._window: SpeedWindow | None = None
        self._recorded: SpeedWindow | None = None
        self._followers: list[Callable[[int, dict[str, float]], None]] = []
        self._speed = ""
        self._failed: set[str] = set()
        self._handling = contextlib.ExitStack()
        self._terminal = draws_bars()
        self._events: EventFile | None = None
        if folder is None:
            log_again(earlier)
            return
        self._text_file = GrowingFile(folder / LOG_FILE)
        self._metrics_file = GrowingFile(folder / METRICS_FILE)
        self._handling.enter_context(only_handler(_Records(self.text, self._warn)))
        log_again(earlier)
        spent_s = self._try(METRICS_FILE, keep_until, folder / METRICS_FILE, first_step)
        self._started_at = time.monotonic() - (spent_s or 0.0)
        if config.tensorboard:
            self._events = self._try(TENSORBOARD_FOLDER, _event_file, folder / TENSORBOARD_FOLDER, first_step)

    def text(self, message: str) -> None:
        """Prints a message and writes it to train.log with the time."""
        self._say(message, sys.stdout)

    def block(self, title: str, rows: Mapping[str, str]) -> None:
        """Prints a title, and below it aligned rows of name and value."""
        width = max((len(name) for name in rows), default=0)
        self.text("\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows.items())]))

    def step(self, step: int, metrics: Mapping[str, Any], images: int, wait_s: float, losses: int = 1) -> None:
        """Advances the progress bar, and records the metrics of every `log.every_steps`-th step and of the last one.

        Args:
          step: the number of the step that ended, from 1.
          metrics: numbers or scalar arrays by name; read only when they are shown.
          images: labelled frames of this step, over all devices.
          wait_s: seconds that the devices waited for its data.
          losses: number of losses, which are the first metrics: a terminal shows these, a line of progress at least
            three.
        """
        if self.folder is None:
            return
        if self._recorded:
            self._recorded.add(images, wait_s)
        is_due = step % self._every_steps == 0 or step == self._total_steps
        if is_due:
            self.record(step, {name: float(value) for name, value in metrics.items()})
            # Not in metrics.jsonl, which is the same for every run of a config.
            self.show(step, self._recorded.figures() if self._recorded else {})
        if is_due or self._recorded is None:
            self._recorded = SpeedWindow()
        if self._terminal:
            self._move_bar(step, _first(metrics, losses), images, wait_s)
        else:
            self._print_line(step, _first(metrics, max(losses, 3)), images, wait_s)

    def event(self, step: int, metrics: Mapping[str, Any], prefix: str = "") -> None:
        """Records and prints metrics that belong to a step, such as those of a validation."""
        if self.folder is None:
            return
        values = {prefix + name: float(value) for name, value in metrics.items()}
        self.record(step, values)
        self.text(f"step {step}  {_shown(values)}")

    def follow(self, follower: Callable[[int, dict[str, float]], None]) -> None:
        """Calls a function, which must be quick, with the step and the numbers by tag of every later record."""
        self._followers.append(follower)

    def page(self, tag: str, markdown: str) -> None:
        """Writes a text to TensorBoard, if it is on."""
        if self._events is not None:
            self._try(TENSORBOARD_FOLDER, self._events.page, tag, markdown)

    def images(self, step: int, tag: str, images: np.ndarray) -> None:
        """Writes images (n, h, w, 3, uint8, RGB) to TensorBoard, if it is on."""
        if self._events is not None:
            self._try(TENSORBOARD_FOLDER, self._events.images, step, tag, images)

    def close(self) -> None:
        """Ends the progress bar, closes the files and restores the logger."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._events is not None:
            self._events.close()
        self._handling.close()
        if self.folder is not None:
            self._text_file.close()
            self._metrics_file.close()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def record(self, step: int, values: dict[str, float]) -> None:
        """Writes metrics that belong to a step to the files, but not to the console."""
        if self.folder is None:
            return
        spent_s = round(time.monotonic() - self._started_at, 3)
        line = json_text({"step": step, "time_s": spent_s, **values}) + "\n"
        self._try(METRICS_FILE, self._metrics_file.append, line.encode())
        self.show(step, {tag_of(name): value for name, value in values.items()})

    def show(self, step: int, numbers: dict[str, float]) -> None:
        """Writes numbers by tag to TensorBoard and to the followers, but not to metrics.jsonl."""
        if self._events is not None and numbers:
            self._try(TENSORBOARD_FOLDER, self._events.scalars, step, numbers)
        for follower in self._followers:
            follower(step, numbers)

    def _move_bar(self, step: int, metrics: Mapping[str, Any], images: int, wait_s: float) -> None:
        if self._bar is None:
            self._bar = make_bar(total=self._total_steps, initial=step - 1, unit="step", dynamic_ncols=True)
        if self._count(step, images, wait_s, _WINDOW_S):
            self._bar.set_postfix_str(f"{_shown(metrics)}, {self._speed}", refresh=False)
        self._bar.update(step - self._bar.n)

    def _print_line(self, step: int, metrics: Mapping[str, Any], images: int, wait_s: float) -> None:
        window = self._count(step, images, wait_s, _LINE_S, at_tenths_of=self._total_steps)
        if window is None:
            return
        left_s = (self._total_steps - step) / window.steps_per_s()
        self.text(
            f"step {step}/{self._total_steps}  {100 * step // self._total_steps}%  {_shown(metrics)}  "
            f"{window.steps_per_s():.3g} steps/s, {self._speed}, ETA {tqdm.tqdm.format_interval(left_s)}"
        )

    def _count(
        self, step: int, images: int, wait_s: float, length_s: float, at_tenths_of: int = 0
    ) -> SpeedWindow | None:
        """Adds a step to the window over which speeds are averaged; returns the window if it ends here."""
        if self._window is None:
            # Speeds are measured from the end of the first step, which is slower than the others.
            self._window = SpeedWindow()
            return None
        self._window.add(images, wait_s)
        is_tenth = at_tenths_of > 0 and 10 * step // at_tenths_of > 10 * (step - 1) // at_tenths_of
        if not is_tenth and self._window.length_s() < length_s:
            return None
        ended, self._window = self._window, SpeedWindow()
        self._speed = ended.text()
        return ended

    def _say(self, message: str, stream: Any) -> None:
        if self.folder is None:
            return
        self._try("the console", print_above_bars, message, stream)
        self._try(LOG_FILE, self._text_file.append, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n".encode())

    def _warn(self, message: str) -> None:
        self._say(f"warning: {message}", sys.stderr)

    def _try(self, name: str, function: Callable, *arguments: Any) -> Any:
        """Calls a function that writes. The first OSError for a name is a warning; later ones are silent."""
        try:
            return function(*arguments)
        except OSError as error:
            if name not in self._failed:
                self._failed.add(name)
                self._warn(f"{name} cannot be written ({error}); the run continues, and that part is missing there")


class _Records(logging.Handler):
    """Passes the package's log records to one function, and its warnings to another."""

    def __init__(self, tell: Callable[[str], None], warn: Callable[[str], None]):
        super().__init__(logging.INFO)
        self._tell, self._warn = tell, warn

    def emit(self, record: logging.LogRecord) -> None:
        (self._warn if record.levelno >= logging.WARNING else self._tell)(record.getMessage())


def _event_file(folder: Path, first_step: int) -> "EventFile":
    # Imported only when needed: it takes as long as the rest of this file.
    from jaxpose.run.tensorboard import EventFile

    return EventFile(folder, first_step)


def _shown(values: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {float(value):.4g}" for name, value in values.items())


def _first(metrics: Mapping[str, Any], count: int) -> dict[str, Any]:
    return dict(list(metrics.items())[:count])
