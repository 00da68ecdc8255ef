"""The log of a run: lines on the console and in train.log, metrics.jsonl, TensorBoard, and the progress bar.

A file that cannot be written does not stop a run: it gives one warning, and the next record tries again.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxpose.checksums import json_text
from jaxpose.config import LogConfig
from jaxpose.console import RESULT, log_again, only_handler
from jaxpose.files import GrowingFile
from jaxpose.run.metrics_file import keep_until
from jaxpose.run.paths import LOG_FILE, METRICS_FILE, TENSORBOARD_FOLDER
from jaxpose.run.speed import SpeedWindow
from jaxpose.run.step_progress import StepProgress, shown
from jaxpose.run.tags import tag_of
from jaxpose.terminal import WARNING, draws_bars, is_quiet, is_terminal, print_block, print_lines
from jaxpose.text_table import block_lines

if TYPE_CHECKING:
    from jaxpose.run.tensorboard import EventFile


class RunLog:
    """The log of one process; close it, or use it as a context.

    While it is open, all records of the logger "jaxpose" go through it to the console and train.log, so that they do
    not break the progress bar. It drops metrics of steps after `first_step`, which a killed run had written, and begins
    with the warnings in `earlier`.

    Args:
      folder: the run folder, or None.
      config: options of the log.
      total_steps: length of the training.
      first_step: steps taken before.
      earlier: records of warnings.
      prints: False writes the files alone, and leaves the records to the log that prints.

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
        *,
        prints: bool = True,
    ):
        self.folder = folder
        self._every_steps = config.every_steps
        self._total_steps = total_steps
        self._prints = prints
        self._progress = StepProgress(total_steps, self.text, self._write, prints and draws_bars())
        self._recorded: SpeedWindow | None = None
        self._followers: list[Callable[[int, dict[str, float]], None]] = []
        self._failed: set[str] = set()
        self._handling = contextlib.ExitStack()
        self._events: EventFile | None = None
        if folder is None:
            log_again(earlier)
            return
        self._text_file = GrowingFile(folder / LOG_FILE)
        self._metrics_file = GrowingFile(folder / METRICS_FILE)
        if prints:
            self._handling.enter_context(only_handler(_Records(self._emit)))
        log_again(earlier)
        spent_s = self._try(METRICS_FILE, keep_until, folder / METRICS_FILE, first_step)
        self._started_at = time.monotonic() - (spent_s or 0.0)
        if config.tensorboard:
            self._events = self._try(TENSORBOARD_FOLDER, _event_file, folder / TENSORBOARD_FOLDER, first_step)

    def text(self, message: str) -> None:
        """Prints a message and writes it to train.log with the time; --quiet leaves it to the file."""
        self._log(message, logging.INFO)

    def alert(self, message: str) -> None:
        """Does as `text`; the log of an ensemble's member passes it on to the ensemble's."""
        self.text(message)

    def result(self, message: str) -> None:
        """Does as `text`, also with --quiet."""
        self._log(message, RESULT)

    def block(self, title: str, rows: Mapping[str, str]) -> None:
        """Prints a title, and below it aligned rows of name and value; writes them to train.log."""
        if self.folder is not None and self._prints and not is_quiet():
            self._try("the console", print_block, title, rows)
        self._write("\n".join(block_lines(title, rows)))

    def end_steps(self) -> None:
        """Wipes the bar of the training."""
        self._progress.close()

    def end(self, title: str, rows: Mapping[str, str], lines: Sequence[str]) -> None:
        """Reports the end of a training: a terminal shows rows of name and value, a pipe and
        train.log have lines, also with --quiet."""
        shows_block = self._prints and is_terminal(sys.stdout) and not is_quiet()
        if self.folder is not None and shows_block:
            self._try("the console", print_block, title, rows)
        for line in lines:
            if shows_block:
                self._write(line)
            else:
                self._log(line, RESULT)

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
        self._progress.step(step, metrics, images, wait_s, losses)

    def event(self, step: int, metrics: Mapping[str, Any], prefix: str = "") -> None:
        """Records and prints metrics that belong to a step, such as those of a validation."""
        if self.folder is None:
            return
        values = {prefix + name: float(value) for name, value in metrics.items()}
        self.record(step, values)
        self.text(f"step {step}  {shown(values)}")

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

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """A context in which this log, and no other, gets the records of the logger "jaxpose"."""
        with only_handler(_Records(self._emit)):
            yield

    def close(self) -> None:
        """Ends the progress bar, closes the files and restores the logger."""
        self._progress.close()
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

    def _log(self, message: str, level: int) -> None:
        """Prints a message, unless --quiet is given and the level is below RESULT, and writes it to train.log."""
        if self.folder is None:
            return
        if self._prints and level >= (RESULT if is_quiet() else logging.INFO):
            stream, style = (sys.stderr, WARNING) if level >= logging.WARNING else (sys.stdout, "")
            self._try("the console", print_lines, message, stream, style)
        self._write(message)

    def _write(self, message: str) -> None:
        if self.folder is not None:
            line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n"
            self._try(LOG_FILE, self._text_file.append, line.encode())

    def _emit(self, message: str, level: int) -> None:
        is_warning = level >= logging.WARNING
        self._log(f"warning: {message}" if is_warning else message, level)

    def _try(self, name: str, function: Callable, *arguments: Any) -> Any:
        """Calls a function that writes. The first OSError for a name is a warning; later ones are silent."""
        try:
            return function(*arguments)
        except OSError as error:
            if name not in self._failed:
                self._failed.add(name)
                missing = f"{name} cannot be written ({error}); the run continues, and that part is missing there"
                self._emit(missing, logging.WARNING)


class _Records(logging.Handler):
    """Passes the package's log records to a function, each as a message and its level."""

    def __init__(self, log: Callable[[str, int], None]):
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log(record.getMessage(), record.levelno)


def _event_file(folder: Path, first_step: int) -> "EventFile":
    # Imported only when needed: it takes as long as the rest of this file.
    from jaxpose.run.tensorboard import EventFile

    return EventFile(folder, first_step)
