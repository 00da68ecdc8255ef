"""Trains networks from the page: `jaxpose train`, then `jaxpose predict` on the images without labels.

Both run as processes of their own, which outlive the page; their log is next to the runs of the project.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxpose.checksums import DamagedFile
from jaxpose.config import Config, DataConfig
from jaxpose.config.arguments import SOME_FAILED, program
from jaxpose.early_signals import EXIT_CODES
from jaxpose.errors import UserError
from jaxpose.files import read_bytes, write_atomic
from jaxpose.label.background import Background
from jaxpose.label.predictions import LINKS_FOLDER, find_predictions
from jaxpose.label.store import Store
from jaxpose.remote.watched import Watched
from jaxpose.run.paths import CONFIG_FILE, FINISHED_FILE, INDEX_FILE, default_path
from jaxpose.run.status import read_summary
from jaxpose.terminal import clock, count

_LOG_FILE, _RECORD_FILE, _LIST_FILE = ".label.log", ".label.json", ".label.txt"
_RUN_NAME = "label_{:03}"
_VERB = "jaxpose.train"
# The arguments of the training are $@; without them, only the prediction follows.
_SCRIPT = """
if [ $# -gt 0 ]; then "$PYTHON" -m jaxpose train "$@" || exit; fi
if [ -s "$IMAGES" ]; then "$PYTHON" -m jaxpose predict --run "$RUN" --out "$RUN" "@$IMAGES" || echo "exit code $?"; fi
"""
# Of a prediction, but for SOME_FAILED: the others are predicted.
_FAILED = re.compile(rf"exit code (?!{SOME_FAILED}$)\d+")


class Training:
    """The trainings of a project, one at a time."""

    def __init__(self, store: Store, project: str, arguments: Sequence[str] = ()):
        """Takes the project as given to the command, and the arguments of `jaxpose train` that follow it."""
        self._store, self._project, self._arguments = store, project, list(arguments)
        # Another project with this name has the same folder of runs.
        self._path = str(store.project.path.resolve())
        self._runs = default_path(Config(data=DataConfig(project=project))).parent.absolute()
        self._record = self._runs / _RECORD_FILE
        self._background = Background(
            self._runs / _LOG_FILE,
            f"a run of a project named {self._runs.name} is being trained: wait for its end, or stop it on the page "
            "that started it",
        )
        self._lock = threading.Lock()
        self._watched: tuple[str, Watched] | None = None
        self._taken = self._ended(self._read_record())

    @property
    def command(self) -> str:
        """What the user would type."""
        return f"{program(_VERB)} {shlex.join([self._project, *self._arguments])}"

    def state(self) -> dict[str, Any]:
        """Returns as JSON what the page shows: `name` (none, training, predicting, done, stopped or failed), and more.

        Takes over the predictions of a run that has ended.
        """
        with self._lock:
            if not (record := self._read_record()):
                return {"name": "none", "text": "", "share": 0.0, "command": self.command}
            name, text, share = self._look(record, Path(record["run"]))
            return {"name": name, "text": text, "share": share, "command": self.command, "run": record["run"]}

    def start(self) -> None:
        """Starts a training, or continues a stopped one if neither a label nor the --config file has changed since.

        Raises:
          UserError: one runs already, or no image has labels.
          OSError: a file cannot be written.
        """
        if not any(number > 0 for number in self._store.counts()):
            raise UserError("no image has labels: label some images, then train")
        self._store.flush()
        with self._lock:
            self._runs.mkdir(parents=True, exist_ok=True)
            with self._background.claimed() as log:
                run, is_finished = self._choose_run(labels := self._checksum())
                arguments = [] if is_finished else [self._project, *self._arguments, f"out={run}"]
                places = {"RUN": str(run), "IMAGES": str(self._list_images(run))}
                group = self._background.start(log, _SCRIPT, arguments, places)
                record = {"project": self._path, "run": str(run), "group": group, "labels": labels}
                write_atomic(self._record, json.dumps(record | {"arguments": self._arguments}).encode())
                self._taken = ""

    def stop(self) -> None:
        """Ends the processes as Ctrl-C would: a training saves its state."""
        with self._lock:
            record = self._read_record()
            if record and self._background.is_running():
                write_atomic(self._record, json.dumps(record | {"stopped": True}).encode())
                self._background.stop(int(record["group"]))

    def _read_record(self) -> dict[str, Any]:
        try:
            found = json.loads(read_bytes(self._record))
            is_whole = {"project", "run", "group", "labels", "arguments"} <= found.keys()
            return found if is_whole and found["project"] == self._path else {}
        except (OSError, ValueError, AttributeError, RecursionError):
            return {}

    def _checksum(self) -> str:
        """Returns a checksum of the label files, and of the --config file."""
        digest = hashlib.sha256()
        config = [Path(self._arguments[1])] if self._arguments[:1] == ["--config"] else []
        for file in [*self._store.label_files(), *config]:
            digest.update(hashlib.sha256(read_bytes(file, most_bytes=None)).digest())
        return digest.hexdigest()

    def _choose_run(self, labels: str) -> tuple[Path, bool]:
        """Returns the run folder, and whether it has a finished run of these labels, which only predicts."""
        record = self._read_record()
        if record and record["labels"] == labels and record["arguments"] == self._arguments:
            run = Path(record["run"])
            if (run / CONFIG_FILE).is_file():
                return run, (run / FINISHED_FILE).is_file()
        number = 1
        while os.path.lexists(self._runs / _RUN_NAME.format(number)):
            number += 1
        return self._runs / _RUN_NAME.format(number), False

    def _list_images(self, run: Path) -> Path:
        """Writes the list of the images without labels, and returns it."""
        images = []
        for number, labelled in enumerate(self._store.counts()):
            if labelled == 0:
                with contextlib.suppress(UserError):
                    images.append((self._store.images[number], self._store.path_of(number)))
        if self._store.project.is_one_file:
            # Their files may have other names.
            links = self._runs / f".{run.name}" / LINKS_FOLDER
            images = [(image, _link(links / image, path)) for image, path in images if ".." not in Path(image).parts]
        file = self._runs / _LIST_FILE
        write_atomic(file, "".join(f"{path.absolute()}\n" for _, path in images).encode())
        return file

    def _look(self, record: dict[str, Any], run: Path) -> tuple[str, str, float]:
        """Returns the name of the state, a text about it, and the share of the training that is done."""
        is_finished = (run / FINISHED_FILE).is_file()
        if self._background.is_running():
            return ("predicting", "predicts the images without labels", 1.0) if is_finished else self._progress(run)
        lines, log = self._background.last_lines(), self._background.log
        if is_finished and record.get("stopped"):
            return "stopped", f"{run.name} is trained, and its predictions are stopped: Train makes them", 0.0
        if is_finished and lines and _FAILED.fullmatch(lines[-1]):
            reason = lines[-2] if len(lines) > 1 else f"the output is in {log}"
            return "failed", f"{run.name} is trained, but did not predict the images without labels: {reason}", 0.0
        if is_finished:
            self._take(record, run)
            return "done", f"{run.name}: {_error(run)}", 1.0
        found = self._watch(run)
        end = found.progress.end if found and found.progress else None
        if record.get("stopped") or (end and end.exit_code in EXIT_CODES.values()):
            return "stopped", f"{run.name} is stopped: Train continues it if no label changes", 0.0
        return "failed", lines[-1] if lines else f"{run.name} has ended; its output is in {log}", 0.0

    def _progress(self, run: Path) -> tuple[str, str, float]:
        found = self._watch(run)
        if not found or not (progress := found.progress) or not progress.step:
            return "training", "reads the data and compiles", 0.0
        parts = [f"step {progress.step} of {progress.total_steps}"]
        if (error_px := progress.validation.get("val_mean_px_error")) is not None:
            parts.append(f"validation error {error_px:.2f} px")
        if progress.step >= progress.total_steps:
            parts.append("evaluates, and predicts the videos")
        elif progress.steps_per_s:
            parts.append(f"{clock((progress.total_steps - progress.step) / progress.steps_per_s)} left")
        return "training", ", ".join(parts), min(1.0, progress.step / max(1, progress.total_steps))

    def _watch(self, run: Path) -> Any:
        """Returns the state of a run, None before it can be read."""
        if not self._watched or self._watched[0] != str(run):
            self._watched = str(run), Watched(str(run), math.inf)
        try:
            return None if self._watched[1].missing() else self._watched[1].state()
        except (UserError, DamagedFile, OSError):
            return None

    def _ended(self, record: dict[str, Any]) -> str:
        """Returns a text that differs between two ends of runs, "" before one."""
        if not record or not (Path(record["run"]) / FINISHED_FILE).is_file() or self._background.is_running():
            return ""
        index = Path(record["run"]) / INDEX_FILE
        return f"{record['run']} {index.stat().st_mtime_ns if index.is_file() else ''}"

    def _take(self, record: dict[str, Any], run: Path) -> None:
        if (ended := self._ended(record)) == self._taken:
            return
        self._taken = ended
        # Without a prediction that fits, the earlier ones stay.
        with contextlib.suppress(UserError):
            self._store.take(find_predictions(str(run), self._store.project, self._project))


def _link(file: Path, target: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.symlink_to(target.absolute())
    return file


def _error(run: Path) -> str:
    """Returns the error of a finished run, for the page."""
    try:
        sets = read_summary(run)["sets"]
    except (UserError, KeyError):
        return "trained"
    for name in ("test", "validation"):
        figures = sets.get(name)
        if figures and figures.get("mean_px_error") is not None:
            return f"{figures['mean_px_error']:.2f} px on {count(figures['frames'], name + ' frame')}"
    return "trained"
