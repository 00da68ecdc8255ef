"""Follows a run in a terminal: `python -m jaxpose.watch RUN_OR_URL`.

What comes in: a run folder, or its copy at `log.remote_url`; it is only read. What goes out: one screen that is drawn
anew, or lines where there is no terminal, until the run is finished.
"""

import argparse
import dataclasses
import json
import sys
import time
from typing import Any

from tqdm import tqdm

from jaxpose.config.arguments import DONE, Arguments, Mistake
from jaxpose.config.train import total_steps
from jaxpose.data.split import count_training_frames
from jaxpose.files import DamagedFile, parse_csv
from jaxpose.training.remote_folder import RemoteFolder
from jaxpose.training.run_folder import FINISHED_FILE, parse_summary
from jaxpose.training.run_identity import CONFIG_FILE, SPLIT_FILE, parse_config

_METRICS_FILE, _LOG_FILE = "metrics.jsonl", "train.log"
# Lines of metrics over which the speed is averaged.
_LINES = 20
_BAR_CHARACTERS = 40


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 (the run is finished), 1, 2 (a mistake of the user) or 130."""
    arguments = Arguments("jaxpose.watch", "Follows a run, or its copy at log.remote_url, until it is finished.")
    arguments.add_argument("run", metavar="RUN_OR_URL", help="run folder, or such as s3://bucket/runs/0a1b2c3d")
    arguments.add_argument("--every_s", type=float, default=5.0, metavar="S", help="seconds between two looks")
    arguments.add_argument(
        "--silent_s", type=float, default=180.0, metavar="S", help="seconds without news that are told"
    )
    return arguments.run(_watch, argv)


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a run has told so far.

    Attributes:
      step: steps taken.
      total_steps: length of the training.
      training: the newest metrics of training by name.
      validation: the newest metrics of a validation by name, with its "step"; empty before the first.
      steps_per_s: speed over the last lines of metrics, 0 where it is not known yet.
      last_line: of train.log.
      summary: of a finished run, None before its end.
    """

    step: int
    total_steps: int
    training: dict[str, Any]
    validation: dict[str, Any]
    steps_per_s: float
    last_line: str
    summary: dict[str, Any] | None

    def rows(self) -> dict[str, str]:
        """Returns what is shown of it, by name."""
        share = min(self.step / self.total_steps, 1.0) if self.total_steps else 0.0
        bar = f"{'#' * int(share * _BAR_CHARACTERS):-<{_BAR_CHARACTERS}}"
        left_s = (self.total_steps - self.step) / self.steps_per_s if self.steps_per_s else None
        rows = {"step": f"{self.step} of {self.total_steps}  {share:.0%}  {bar}"}
        rows |= {name: _number(value) for name, value in self.training.items()}
        if self.validation:
            rows["validation"] = f"step {self.validation['step']}  {_shown(self.validation)}"
        if left_s is not None:
            rows |= {"speed": f"{self.steps_per_s:.3g} steps/s", "ETA": tqdm.format_interval(left_s)}
        return rows | {"last line": self.last_line}

    def line(self) -> str:
        """Returns the same in one line."""
        parts = [f"step {self.step}/{self.total_steps}", _shown(self.training), _shown(self.validation)]
        if self.steps_per_s:
            left_s = (self.total_steps - self.step) / self.steps_per_s
            parts.append(f"{self.steps_per_s:.3g} steps/s, ETA {tqdm.format_interval(left_s)}")
        return "  ".join(part for part in parts if part)


class Watched:
    """A run that is looked at now and then; files that have not grown are not read again."""

    def __init__(self, where: str):
        try:
            self._remote = RemoteFolder(where)
        except (ValueError, ImportError) as error:
            raise ValueError(f"{where} cannot be opened: {error}") from None
        self._seen: dict[str, tuple[int, bytes]] = {}
        try:
            self._config = parse_config(self._remote.read(CONFIG_FILE), f"{where}/{CONFIG_FILE}")
        except FileNotFoundError:
            names = self._remote.names()
            there = f"; there is {', '.join(names[:5])}" if names else ""
            raise ValueError(f"{where} is no run: it has no {CONFIG_FILE}{there}") from None
        except PermissionError as error:
            raise ValueError(f"{where}/{CONFIG_FILE} cannot be read: {error.strerror}") from None
        self._where = where
        ages_s = [self._remote.age_s(path) for path in (_METRICS_FILE, _LOG_FILE)]
        self.silent_at_first_s = min((age_s for age_s in ages_s if age_s is not None), default=0.0)

    def look(self) -> Progress:
        """Returns what the run has told so far.

        Raises:
          Exception: the file system's own, where it fails.
        """
        entries = _entries(self._read(_METRICS_FILE))
        validations = [entry for entry in entries if any(name.startswith("val_") for name in entry)]
        trainings = [entry for entry in entries if "loss" in entry]
        last = trainings[-1] if trainings else {}
        summary = self._read(FINISHED_FILE)
        lines = self._read(_LOG_FILE).decode(errors="replace").splitlines()
        return Progress(
            step=max((entry["step"] for entry in entries), default=0),
            total_steps=self._total_steps(),
            training={name: value for name, value in last.items() if name in ("loss", "learning_rate")},
            validation=validations[-1] if validations else {},
            steps_per_s=_speed(trainings[-_LINES:]),
            last_line=lines[-1] if lines else "",
            summary=parse_summary(summary, f"{self._where}/{FINISHED_FILE}") if summary else None,
        )

    def _read(self, path: str) -> bytes:
        try:
            size = self._remote.size(path)
            if self._seen.get(path, (-1, b""))[0] != size:
                self._seen[path] = size, self._remote.read(path)
        except FileNotFoundError:
            return b""
        return self._seen[path][1]

    def _total_steps(self) -> int:
        split = self._read(SPLIT_FILE)
        rows = parse_csv(split, f"{self._where}/{SPLIT_FILE}", "put the original file back") if split else []
        return total_steps(self._config.train, count_training_frames(rows))


def _watch(given: argparse.Namespace) -> int:
    for name in ("every_s", "silent_s"):
        if not getattr(given, name) > 0:
            raise Mistake(f"--{name} is {getattr(given, name)}; it must be above 0")
    watched = Watched(given.run)
    told, progress, news_at = "", None, time.monotonic() - watched.silent_at_first_s
    while True:
        try:
            found, problem = watched.look(), ""
        except DamagedFile:
            raise
        # Each kind of store has exceptions of its own.
        except Exception as error:
            found, problem = progress, f"cannot be read ({error})"
        if found != progress:
            news_at = time.monotonic() if progress else news_at
            progress = found
        silent_s = time.monotonic() - news_at
        silent = f"silent for {tqdm.format_interval(silent_s)}" if silent_s >= given.silent_s else ""
        is_finished = progress is not None and progress.summary is not None
        state = "finished" if is_finished else problem or silent or "running"
        told = _show(given.run, state, progress, told)
        if is_finished:
            return DONE
        time.sleep(given.every_s)


def _show(where: str, state: str, progress: Progress | None, told: str) -> str:
    """Draws the screen, or prints a line where it is news; returns what was told, without how long nothing came."""
    if sys.stdout.isatty():
        rows = progress.rows() if progress else {}
        width = max(map(len, rows), default=0)
        print("\x1b[H\x1b[J" + "\n".join([f"{where}: {state}", *(f"  {k:<{width}}  {v}" for k, v in rows.items())]))
    else:
        line = f"{progress.line()}  " if progress else ""
        if (news := line + state.partition(" for ")[0]) != told:
            print(line + state, flush=True)
        told = news
    if state == "finished" and progress and progress.summary:
        for name, figures in progress.summary.get("sets", {}).items():
            print(f"{name}: mean error {_number(figures['mean_px_error'])} px")
    return told


def _entries(text: bytes) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl, without one that is cut off."""
    found = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            found.append({**entry, "step": int(entry["step"]), "time_s": float(entry["time_s"])})
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return found


def _speed(entries: list[dict[str, Any]]) -> float:
    if len(entries) < 2 or entries[-1]["time_s"] <= entries[0]["time_s"]:
        return 0.0
    return (entries[-1]["step"] - entries[0]["step"]) / (entries[-1]["time_s"] - entries[0]["time_s"])


def _shown(metrics: dict[str, Any]) -> str:
    return "  ".join(f"{name} {_number(value)}" for name, value in metrics.items() if name not in ("step", "time_s"))


def _number(value: float | None) -> str:
    # NaN and the infinities are null in JSON.
    return "nan" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
