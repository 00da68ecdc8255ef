"""Reads the state and progress of a watched run. Input: a run folder or its copy, which is only read."""

import dataclasses
import json
import posixpath
import time
from pathlib import Path
from typing import Any

from jaxpose.checksums import DamagedFile, parse_csv, parse_json
from jaxpose.config import Config
from jaxpose.config.arguments import DONE, did_you_mean
from jaxpose.config.train import total_steps
from jaxpose.data.split import count_training_frames
from jaxpose.early_signals import EXIT_CODES
from jaxpose.errors import UserError
from jaxpose.files import NotRegularFile
from jaxpose.progress import percent
from jaxpose.remote.restore import COPIED_FILE
from jaxpose.remote.store import RemoteFolder
from jaxpose.run.identity import SPLIT_COLUMNS, parse_config
from jaxpose.run.paths import (
    CONFIG_FILE,
    EVALUATED_FILE,
    EVALUATION_FILE,
    FINDER_FOLDER,
    FINISHED_FILE,
    LOG_FILE,
    METRICS_FILE,
    SPLIT_FILE,
    STATUS_FILE,
    foreign_names,
)
from jaxpose.run.status import Status, digest_of, is_held, parse_status, parse_summary
from jaxpose.terminal import clock, listed

FINISHED, SILENT = "finished", "silent"
_NO_LOG = "and has not written train.log yet: it is reading its data or compiling"
# The speed is averaged over this many lines of metrics.
_LINES = 20
_BAR_CHARACTERS = 40
# A damaged or forged file must not fill the memory.
_MOST_BYTES = 2**28
# How many names of a folder to show.
_LISTED = 5


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a run has recorded so far.

    Attributes:
      network: the network in training, if a run trains several; else "".
      step: steps taken.
      total_steps: length of the training.
      training: the newest metrics of training by name.
      validation: the newest metrics of a validation by name, with its "step"; empty before the first.
      steps_per_s: speed over the last lines of metrics, 0 while it is unknown.
      last_line: the last line of train.log.
      summary: a finished run's, None before its end.
      errors: {set: figures} of a finished run from its last evaluation, {} before its end.
      end: how the run ended, None while it continues.
    """

    network: str
    step: int
    total_steps: int
    training: dict[str, Any]
    validation: dict[str, Any]
    steps_per_s: float
    last_line: str
    summary: dict[str, Any] | None
    errors: dict[str, Any]
    end: Status | None

    def rows(self) -> dict[str, str]:
        """Returns the rows of the screen, by name."""
        share = min(self.step / self.total_steps, 1.0) if self.total_steps else 0.0
        bar = f"{'#' * int(share * _BAR_CHARACTERS):-<{_BAR_CHARACTERS}}"
        left_s = (self.total_steps - self.step) / self.steps_per_s if self.steps_per_s else None
        rows = {"network": self.network} if self.network else {}
        rows |= {"step": f"{self.step} of {self.total_steps}  {percent(self.step, self.total_steps)}  {bar}"}
        rows |= {name: number(value) for name, value in self.training.items()}
        # A finished run's errors are those of its best weights; the last validation used others.
        if self.validation and not self.errors:
            rows["validation"] = f"step {self.validation['step']}  {_shown(self.validation)}"
        if left_s is not None:
            rows |= {"speed": f"{self.steps_per_s:.3g} steps/s", "ETA": clock(left_s)}
        return rows | {"last line": self.last_line}

    def line(self) -> str:
        """Returns the same in one line."""
        network = f"{self.network}: " if self.network else ""
        parts = [f"{network}step {self.step}/{self.total_steps}", _shown(self.training)]
        parts += [] if self.errors else [_shown(self.validation)]
        if self.steps_per_s:
            left_s = (self.total_steps - self.step) / self.steps_per_s
            parts.append(f"{self.steps_per_s:.3g} steps/s, ETA {clock(left_s)}")
        return "  ".join(part for part in parts if part)


@dataclasses.dataclass(frozen=True)
class RunState:
    """The displayed state of a run.

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


class Watched:
    """A run that is read repeatedly, except files that have not grown.

    Args:
      where: the run folder, or the URL of its copy.
      silent_s: seconds without a change after which the run is silent.
    """

    def __init__(self, where: str, silent_s: float | int):
        try:
            self._remote = RemoteFolder(where)
            self._parent = RemoteFolder(
                str(self._remote.path.parent if self._remote.path else posixpath.dirname(where))
            )
        except (ValueError, ImportError) as error:
            raise UserError(f"{where} cannot be opened: {error}") from None
        self._where, self._silent_s = where, silent_s
        self._seen: dict[str, tuple[int, bytes]] = {}
        self._config: Config | None = None
        self._progress: Progress | None = None
        self._changed_at = 0.0

    def missing(self) -> str:
        """Returns what a starting run has not written yet, "" once the run can be read.

        Raises:
          UserError: no run can start here: the folder holds other files, or its parent does not exist.
          OSError: the file system cannot be read.
        """
        names = self._remote.names()
        if CONFIG_FILE in names:
            try:
                self._config = parse_config(self._remote.read(CONFIG_FILE, _MOST_BYTES), f"{self._where}/{CONFIG_FILE}")
            except PermissionError as error:
                raise UserError(f"{self._where}/{CONFIG_FILE} cannot be read: {error.strerror}") from None
            return ""
        if FINDER_FOLDER in names:
            # A copy of a run begins after that of its finder.
            where = posixpath.join(self._where, FINDER_FOLDER)
            return f"{CONFIG_FILE}: its finder trains first, see jaxpose watch {where}"
        if foreign := foreign_names({*names} - {COPIED_FILE}):
            raise UserError(
                f"{self._where} is not a run folder: it has no {CONFIG_FILE}, but {listed(foreign, _LISTED)}; give a "
                "run folder"
            )
        path = self._remote.path
        if names or (path and path.is_dir()):
            return CONFIG_FILE + "; no process writes in the folder now" * (path is not None and is_held(path) is False)
        beside = self._parent.names()
        if not beside and not (self._parent.path and self._parent.path.is_dir()):
            hint = did_you_mean(self._parent.url, _folders_beside(self._parent.path)) if self._parent.path else ""
            raise UserError(f"{self._where} is not a run folder: {self._parent.url} does not exist{hint}")
        hint = did_you_mean(self._where, [posixpath.join(posixpath.dirname(self._where), name) for name in beside])
        return f"the folder{hint or f'; {self._parent.url} holds {listed(beside, _LISTED)}' * bool(beside)}"

    def state(self) -> RunState:
        """Returns the present state of a run that can be read.

        Raises:
          DamagedFile: a file of the run is damaged.
        """
        now, problem = time.monotonic(), ""
        if not self._changed_at:
            folder = self._folder()
            ages_s = [self._remote.age_s(folder + path) for path in (METRICS_FILE, LOG_FILE)]
            self._changed_at = now - min((age_s for age_s in ages_s if age_s is not None), default=0.0)
        try:
            found = self.look()
        except DamagedFile:
            raise
        # Each kind of store has its own exceptions.
        except Exception as error:
            found, problem = self._progress, f"cannot be read ({error})"
        if found != self._progress:
            self._changed_at = now if self._progress else self._changed_at
            self._progress = found
        if found and found.end:
            return RunState(*_ended(found.end), found)
        if problem:
            return RunState(problem, "", found)
        if now - self._changed_at >= self._silent_s:
            return RunState(SILENT, f"for {clock(now - self._changed_at)}", found)
        return RunState("running", "", found) if found and found.last_line else RunState("starting", _NO_LOG, found)

    def look(self) -> Progress:
        """Returns the progress that the run has recorded so far.

        Raises:
          DamagedFile: a file of the run is damaged.
          Exception: the exceptions of the store's file system, which differ from store to store.
        """
        # Before the files, to see everything that a process writes before it releases the lock.
        held = is_held(self._remote.path) if self._remote.path else None
        folder = self._folder()
        entries = _entries(self._read(folder + METRICS_FILE))
        validations = [entry for entry in entries if any(name.startswith("val_") for name in entry)]
        trainings = [entry for entry in entries if "loss" in entry]
        last = trainings[-1] if trainings else {}
        finished = self._read_signed(FINISHED_FILE)
        summary = parse_summary(finished, f"{self._where}/{FINISHED_FILE}") if finished else None
        lines = self._read(folder + LOG_FILE).decode(errors="replace").splitlines()
        return Progress(
            network="" if not self._has_finder() else "finder" if folder else "pose network",
            step=max((entry["step"] for entry in entries), default=0),
            total_steps=self._total_steps(folder),
            training={name: value for name, value in last.items() if name in ("loss", "learning_rate")},
            validation=validations[-1] if validations else {},
            steps_per_s=_speed(trainings[-_LINES:]),
            last_line=lines[-1] if lines else "",
            summary=summary,
            errors=self._errors(summary) if summary else {},
            end=_end(bool(summary), held, parse_status(self._read_signed(STATUS_FILE), f"{self._where}/{STATUS_FILE}")),
        )

    def _errors(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Returns the errors of a finished run: jaxpose evaluate may have measured it again since its end.

        Until its record is whole, those of the end count.
        """
        try:
            content = self._read(EVALUATION_FILE)
            files = parse_json(self._read(EVALUATED_FILE), EVALUATED_FILE)["files"]
            is_whole = files[EVALUATION_FILE] == digest_of(content)
            return json.loads(content)["sets"] if is_whole else summary.get("sets", {})
        except (DamagedFile, KeyError, NotRegularFile):
            return summary.get("sets", {})

    def _read_signed(self, path: str) -> bytes:
        """Returns a file as `_read`; a pipe or folder in its place is damage, not a temporary failure."""
        try:
            return self._read(path)
        except NotRegularFile as error:
            raise DamagedFile(str(error)) from None

    def _read(self, path: str) -> bytes:
        try:
            size = self._remote.size(path)
            if self._seen.get(path, (-1, b""))[0] != size:
                self._seen[path] = size, self._remote.read(path, _MOST_BYTES)
        except FileNotFoundError:
            return b""
        return self._seen[path][1]

    def _has_finder(self) -> bool:
        """Returns whether the run trains a finder before its own network."""
        assert self._config is not None
        return self._config.data.animals > 1 and self._config.model.kind != "finder"

    def _folder(self) -> str:
        """Returns the folder of the network in training, relative to the run: the finder's until that is finished."""
        finder = f"{FINDER_FOLDER}/"
        is_training = self._has_finder() and self._read(finder + STATUS_FILE) and not self._read(finder + FINISHED_FILE)
        return finder if is_training else ""

    def _total_steps(self, folder: str) -> int:
        assert self._config is not None
        split = self._read_signed(folder + SPLIT_FILE)
        where = f"{self._where}/{folder}{SPLIT_FILE}"
        rows = parse_csv(split, where, "put the original file back", SPLIT_COLUMNS) if split else []
        kind = "finder" if folder else self._config.model.kind
        return total_steps(self._config.train, count_training_frames(rows, kind))


def _ended(end: Status) -> tuple[str, str]:
    """Returns the state of a run that has ended, and its details."""
    if end.exit_code == DONE:
        return FINISHED, ""
    if end.exit_code is None:
        return "ended", "without a message: it was killed, or its machine failed; the same command continues it"
    if end.exit_code in EXIT_CODES.values():
        return "stopped", f"by a signal (exit code {end.exit_code}); the same command continues it"
    return "failed", f"with exit code {end.exit_code}: {end.reason}"


def _end(is_finished: bool, is_held: bool | None, status: Status) -> Status | None:
    """Returns how a run ended, None while it continues.

    Args:
      is_finished: the run recorded that it is finished.
      is_held: whether a process holds the lock of its folder; None if unknown.
      status: as the run recorded it last; after a restart, it may be that of an earlier end.
    """
    if is_finished:
        return Status(DONE)
    if is_held or (is_held is None and status.exit_code is None):
        return None
    return status


def _folders_beside(path: Path) -> list[str]:
    """Returns the folders in the nearest existing folder above a path."""
    folder = next(folder for folder in path.parents if folder.is_dir())
    return [str(entry) for entry in sorted(folder.iterdir()) if entry.is_dir()]


def _entries(text: bytes) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl, except an incomplete one."""
    found = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            values = {name: None if value is None else float(value) for name, value in entry.items()}
            found.append({**values, "step": int(entry["step"]), "time_s": float(entry["time_s"])})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            continue
    return found


def _speed(entries: list[dict[str, Any]]) -> float:
    if len(entries) < 2 or entries[-1]["time_s"] <= entries[0]["time_s"]:
        return 0.0
    return (entries[-1]["step"] - entries[0]["step"]) / (entries[-1]["time_s"] - entries[0]["time_s"])


def _shown(metrics: dict[str, Any]) -> str:
    return "  ".join(f"{name} {number(value)}" for name, value in metrics.items() if name not in ("step", "time_s"))


def number(value: float | None) -> str:
    """Returns a metric as text."""
    # NaN and the infinities are null in JSON.
    return "nan" if value is None else f"{value:.4g}"
