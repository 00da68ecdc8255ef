"""The log of a run: lines on the console and in train.log, metrics.jsonl, TensorBoard, and the progress bar.

A file that cannot be written does not stop a run: it causes one warning, and the next record tries again.
"""

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxpose.checksums import json_text
from jaxpose.config import LogConfig
from jaxpose.config.losses import NAMES
from jaxpose.files import GrowingFile, read_bytes, write_atomic
from jaxpose.run.paths import LOG_FILE, METRICS_FILE, TENSORBOARD_FOLDER
from jaxpose.run.step_progress import SpeedWindow, StepProgress, shown
from jaxpose.terminal import (
    RESULT,
    WARNING,
    block_lines,
    count,
    draws_bars,
    is_quiet,
    is_terminal,
    log_again,
    only_handler,
    print_block,
    print_lines,
)

if TYPE_CHECKING:
    from jaxpose.run.tensorboard import EventFile


# metrics.jsonl: keeps the lines that a resumed run continues, and writes the means over the members of an ensemble.


def keep_until(file: Path, step: int) -> float:
    """Drops incomplete lines and the lines after a step (0: all lines); returns time_s of the last line, or 0."""
    try:
        before = file.read_bytes()
    except FileNotFoundError:
        return 0.0
    kept, spent_s = [], 0.0
    for line in before.split(b"\n"):
        try:
            entry = json.loads(line)
            if 0 < step >= entry["step"]:
                spent_s = float(entry["time_s"])
                kept.append(line + b"\n")
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            continue  # cut off when the process was killed
    if b"".join(kept) != before:
        write_atomic(file, b"".join(kept))
    return spent_s


# A record of metrics.jsonl is known by its step and its names.
_RecordKey = tuple[int, tuple[str, ...]]


def write_means(run: Path, members: Mapping[Path, int]) -> list[str]:
    """Rewrites metrics.jsonl of an ensemble: each record of a step is the mean over the members that have it.

    While the ensemble trains, a stretch that some members repeat after a kill is logged only for these.

    Args:
      run: the run folder of the ensemble.
      members: {run folder of a finished member: its number of steps}.

    Returns:
      Sentences about lines that are no records of a member's training, and records that a member lacks. A member that
      stopped early has none after its end.

    Raises:
      OSError: a file cannot be read or written.
    """
    read = {member: _read_records(member / METRICS_FILE, steps) for member, steps in members.items()}
    found: dict[_RecordKey, list[dict[str, float]]] = {}
    for records, _ in read.values():
        for key, record in records.items():
            found.setdefault(key, []).append(record)
    lines = []
    for (step, names), records in sorted(found.items(), key=lambda item: item[0][0]):
        means = {name: float(np.mean([record[name] for record in records])) for name in names}
        means |= {"step": step, "time_s": max(record["time_s"] for record in records)}
        lines.append(json_text(means) + "\n")
    write_atomic(run / METRICS_FILE, "".join(lines).encode())
    # Members report slow processes at steps of their own.
    common = [key for key in found if not key[1][-1].startswith(PROCESS)]
    problems = []
    for (member, steps), (records, wrong) in zip(members.items(), read.values(), strict=True):
        file = member / METRICS_FILE
        if wrong:
            problems.append(f"{file} has {count(wrong, 'line')} that this run did not write: left out")
        if lacks := sum(key[0] <= steps and key not in records for key in common):
            shown = count(lacks, "record")
            problems.append(f"{file} lacks {shown} of its member, so the means there are of the other members")
    return problems


def _read_records(file: Path, steps: int) -> tuple[dict[_RecordKey, dict[str, float]], int]:
    """Returns the records of metrics.jsonl, with NaN for null, and the number of lines that are none.

    A training of so many steps writes each record once.
    """
    found: dict[_RecordKey, dict[str, float]] = {}
    wrong = 0
    for line in read_bytes(file, most_bytes=None).splitlines() if file.is_file() else ():
        is_record = False
        try:
            entry = json.loads(line)
            are_numbers = all(value is None or type(value) in (int, float) for value in entry.values())
            values = {name: float("nan" if value is None else value) for name, value in entry.items()}
            key = entry["step"], tuple(entry)
            is_whole = are_numbers and type(key[0]) is int and values["time_s"] >= 0
            if is_record := is_whole and 0 <= key[0] <= steps and key not in found:
                found[key] = values
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            pass  # cut off, or not a record
        wrong += not is_record
    return found, wrong


# The names of metrics in TensorBoard and in trackers: GROUP/NAME, so that a viewer shows them in groups.

# The group of the errors of a finished run.
RESULTS = "result/"
# Names of metrics about single processes begin with this.
PROCESS = "process"
_RATES = {"learning_rate": "learning_rate/head", "backbone_learning_rate": "learning_rate/backbone"}


def tag_of(name: str) -> str:
    """Returns the tag of a metric of metrics.jsonl: val_loss is validation/loss, loss is train/loss."""
    if name in _RATES:
        return _RATES[name]
    if name.startswith("val_"):
        return f"validation/{name.removeprefix('val_')}"
    if name.startswith(PROCESS):
        return f"speed/{name}"
    of_clips = name == "clip_factor" or name.removesuffix("_count") in NAMES
    return f"{'clips' if of_clips or name.startswith('consistency') else 'train'}/{name}"


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
      prints: False writes only the files, and leaves the records to the log that prints.

    Attributes:
      folder: the run folder; None on all processes except the first, which write and print nothing.
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
        """Prints a message and writes it to train.log with the time; --quiet only writes it."""
        self._log(message, logging.INFO)

    def alert(self, message: str) -> None:
        """Does as `text`; the log of an ensemble's member passes it on to the ensemble's."""
        self.text(message)

    def result(self, message: str) -> None:
        """Does as `text`, even with --quiet."""
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
        train.log have lines, even with --quiet."""
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
          losses: number of losses, which are the first metrics: a terminal shows these, a progress line at least three.
        """
        if self.folder is None:
            return
        if self._recorded:
            self._recorded.add(images, wait_s)
        is_due = step % self._every_steps == 0 or step == self._total_steps
        if is_due:
            # Each is read from its device once.
            metrics = {name: float(value) for name, value in metrics.items()}
            self.record(step, metrics)
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


# The logs of an ensemble: each member writes its own files, and the ensemble logs their means.


class MeanLog:
    """Logs the mean of the members' records about a step, once all have logged theirs.

    Args:
      log: the ensemble's.
    """

    def __init__(self, log: RunLog):
        self._log = log
        self._number = 0
        self._steps: list[tuple[Mapping[str, Any], tuple]] = []
        self._events: list[Mapping[str, Any]] = []

    def step(self, step: int, metrics: Mapping[str, Any], *rest: Any) -> None:
        """Takes the step of a member; arguments as those of `RunLog.step`."""
        self._begin(step)
        self._steps.append((metrics, rest))

    def event(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Takes the metrics of a member that belong to a step, such as those of a validation."""
        self._begin(step)
        self._events.append(metrics)

    def alert(self, message: str) -> None:
        """Passes a message on to the log of the ensemble."""
        self._log.alert(message)

    def flush(self) -> None:
        """Logs everything that has not been logged yet."""
        steps, events, self._steps, self._events = self._steps, self._events, [], []
        if steps:
            self._log.step(self._number, _means([metrics for metrics, _ in steps]), *steps[0][1])
        if events:
            self._log.event(self._number, _means(events))

    def _begin(self, step: int) -> None:
        if step != self._number:
            self.flush()
            self._number = step


class MemberLog(RunLog):
    """The log of a member: it writes its own files, prints nothing, and passes its steps on to the ensemble's log.

    Args:
      folder: the run folder of the member; None on all processes except the first.
      config: options of the log.
      total_steps: length of the training.
      first_step: steps taken before.
      name: the member's, in messages.
      means: gets the steps.
    """

    def __init__(
        self, folder: Path | None, config: LogConfig, total_steps: int, first_step: int, name: str, means: MeanLog
    ):
        super().__init__(folder, config, total_steps, first_step, prints=False)
        self._name, self._means = name, means

    def step(self, step: int, metrics: Mapping[str, Any], images: int, wait_s: float, losses: int = 1) -> None:
        super().step(step, metrics, images, wait_s, losses)
        self._means.step(step, metrics, images, wait_s, losses)

    def event(self, step: int, metrics: Mapping[str, Any], prefix: str = "") -> None:
        super().event(step, metrics, prefix)
        self._means.event(step, {prefix + name: value for name, value in metrics.items()})

    def alert(self, message: str) -> None:
        super().alert(message)
        self._means.alert(f"{self._name}: {message}")

    def _emit(self, message: str, level: int) -> None:
        super()._emit(message, level)
        if level >= logging.WARNING:
            self._means.alert(f"{self._name}: warning: {message}")


def _means(values: list[Mapping[str, Any]]) -> dict[str, float]:
    return {name: float(np.mean([float(of_member[name]) for of_member in values])) for name in values[0]}
