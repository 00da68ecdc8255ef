"""Records the status of a run, its summary and its errors, and refuses requeues of a job without progress."""

import dataclasses
import fcntl
import hashlib
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jaxpose.checksums import DamagedFile, parse_json, read_json, write_json
from jaxpose.config.arguments import FAILED, INTERRUPTED, USERS_MISTAKE
from jaxpose.errors import UserError
from jaxpose.files import read_bytes, try_lock
from jaxpose.outputs import OUTPUT_LOCK_FILE, read_unchanged, stamps
from jaxpose.pose.metrics import row_noun
from jaxpose.run.paths import (
    EVALUATED_FILE,
    EVALUATION_FILE,
    FINISHED_FILE,
    LOCK_FILE,
    RESTARTS_FILE,
    STATUS_FILE,
    VIDEO_TABLES_FOLDER,
)
from jaxpose.terminal import count

# The status of a run, for `jaxpose watch`: status.json in the run folder, and whether a process still writes there.
#
# A run writes the status when it opens the folder and when it ends. A killed run writes nothing; then the lock reveals
# its end, on the machine of the run.


@dataclasses.dataclass(frozen=True)
class Status:
    """The last status that a run wrote.

    Attributes:
      exit_code: None while the run is active.
      reason: why it ended, as text.
    """

    exit_code: int | None = None
    reason: str = ""


def write_status(run: Path, status: Status) -> None:
    """Writes status.json.

    Raises:
      OSError: the file cannot be written.
    """
    write_json(run / STATUS_FILE, dataclasses.asdict(status))


def parse_status(data: bytes, name: str) -> Status:
    """Returns the status in the content of a status.json; b"" is the status of an active run.

    Args:
      data: the content.
      name: the file's, for the message.

    Raises:
      DamagedFile: it is not as jaxpose wrote it.
    """
    if not data:
        return Status()
    mend = "remove the file; the next start of the run writes it again"
    try:
        return Status(**parse_json(data, name, mend))
    except TypeError:
        raise DamagedFile(f"{name} does not hold the status of a run; {mend}") from None


def status_of(error: BaseException) -> Status:
    """Returns the status of a run that ends with an exception; its exit code is that of `arguments.exit_code_of`."""
    first_line = (str(error).splitlines() or [""])[0]
    if isinstance(error, KeyboardInterrupt):
        return Status(INTERRUPTED, "interrupted")
    if isinstance(error, UserError):
        return Status(USERS_MISTAKE, first_line)
    return Status(FAILED, f"{type(error).__name__}: {first_line}".removesuffix(": "))


def is_held(run: Path) -> bool | None:
    """Returns whether a process writes in a run folder; None if this machine cannot know.

    This machine may not see the lock of another one, so a free lock proves something only on the machine that held it.
    """
    try:
        lock = os.open(run / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return None
    try:
        owner = os.pread(lock, 200, 0).decode(errors="replace").strip()
        is_free = try_lock(lock, fcntl.LOCK_SH)
    except OSError:
        return None
    finally:
        os.close(lock)
    if is_free is None:
        return None
    if not is_free:
        return True
    return False if owner.endswith(f" on {socket.gethostname()}") else None


# The summary of a finished run, in its finished.json.

# The `reason` of a run that was not trained here but converted from another tool: it has no checkpoints.
CONVERTED = "converted"


def read_summary(run: Path) -> dict[str, Any]:
    """Returns the summary of a finished run.

    Raises:
      UserError: the run is not finished, or its summary cannot be read.
    """
    file = run / FINISHED_FILE
    try:
        return parse_summary(read_bytes(file), file)
    except FileNotFoundError:
        raise UserError(f"the run in {run} is not finished: it has no {FINISHED_FILE}") from None


def parse_summary(data: bytes, name: str | Path) -> dict[str, Any]:
    """Returns the summary in the content of a finished.json; `name` is the file's, for the message.

    Raises:
      DamagedFile: it is not as jaxpose wrote it.
    """
    return parse_json(data, name, "remove the file, and the training command evaluates the run again", ("steps",))


# The mean error of a set as text, the same wherever it is shown: its figures are those of evaluation.json.


def error_text(figures: Mapping[str, Any]) -> str:
    """Returns a set's mean error, its number of frames or animals, and the error with or without points not visible."""
    error_px, frames = figures["mean_px_error"], count(figures["frames"], row_noun(figures))
    other = not_visible_text(figures)
    if found := animals_text(figures):
        # The rows are animals, and the mean leaves out those that were missed.
        return found if error_px is None else f"{error_px:.2f} px; {found}"
    if error_px is None:
        return f"unknown: {frames} without labels{f'; {other}' if other else ''}"
    return f"{error_px:.2f} px (mean over {frames}{f'; {other}' if other else ''})"


def animals_text(figures: Mapping[str, Any]) -> str:
    """Returns how many animals of a set a finder found, and its false ones and AP; "" of other networks."""
    if not (about := figures.get("animals")):
        return ""
    found = f"{about['animals'] - about['missed']} of {count(about['animals'], 'animal')} found"
    false = f"{about['false']} false in {count(about['frames'], 'image')}"
    ap = about["oks_ap"]["0.1"]
    return f"{found}, {false}" + (f", AP {ap:.3f} (sigma 0.1)" if ap is not None else "")


def not_visible_text(figures: Mapping[str, Any]) -> str:
    """Returns the effect of points marked as not visible on the mean error of a set; "" without such points."""
    if not (about := figures.get("not_visible")):
        return ""
    points = count(about["points"], "point")
    other_px = about["otherwise"]["mean_px_error"]
    shown = "unknown" if other_px is None else f"{other_px:.2f} px"
    return f"{shown} {'without' if about['counted'] else 'with'} {points} marked as not visible"


# evaluated.json in a run folder: the files that an evaluation wrote, and the labels that it measured from.
#
# The tables keep the columns of Lightning Pose, so their checksums are here. A later command thus notices a manual
# change, and knows from which labels the errors were measured, even if somebody has corrected labels since the
# training.

# The suffix of the table with the errors of points that are marked as not visible; only projects with such points have
# it.
NOT_VISIBLE_ERROR = "not_visible_pixel_error"

_Found = TypeVar("_Found")


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """What an evaluation recorded.

    Attributes:
      run: the folder.
      files: {name: SHA-256} of the files that it wrote.
      images: {image: SHA-256} of the labelled images.
      labels: {image: SHA-256} of their labels.
    """

    run: Path
    files: Mapping[str, str]
    images: Mapping[str, str]
    labels: Mapping[str, str]

    def refuse_changed(self, name: str) -> None:
        """Raises DamagedFile if a file is not as the evaluation wrote it."""
        if self.files.get(name) != _digest(self.run / name):
            raise DamagedFile(
                f"{self.run / name} was damaged or changed by hand: its SHA-256 is not that in {EVALUATED_FILE}; "
                f"{_mend(self.run)}"
            )


def write_evaluated(
    run: Path, names: Sequence[str], images: Sequence[str], checksums: Sequence[str], labels_checksums: Sequence[str]
) -> None:
    """Records the files that an evaluation wrote.

    Args:
      run: the folder.
      names: the files in it.
      images: n labelled images.
      checksums: n SHA-256 of them.
      labels_checksums: n SHA-256 of their labels.

    Raises:
      OSError: a file cannot be read or written.
    """
    content = {
        "files": {name: _digest(run / name) for name in names},
        "images": dict(zip(images, checksums, strict=True)),
        "labels": dict(zip(images, labels_checksums, strict=True)),
    }
    write_json(run / EVALUATED_FILE, content)


def read_evaluated(run: Path) -> Evaluated:
    """Returns the record of the last evaluation of a run.

    Raises:
      DamagedFile: the file is absent, or not as jaxpose wrote it.
    """
    file = run / EVALUATED_FILE
    try:
        return Evaluated(run, **read_json(file, _mend(run)))
    except TypeError:
        raise DamagedFile(f"{file} does not hold the record of an evaluation; {_mend(run)}") from None


def read_of_one_evaluation(run: Path, read: Callable[[], _Found]) -> _Found:
    """Returns what `read` returns, of files that one evaluation wrote; reads again if another one replaced them.

    Raises:
      UserError, OSError: as `read`.
    """
    others = run / EVALUATION_FILE, run / EVALUATED_FILE
    return read_unchanged(run / OUTPUT_LOCK_FILE, lambda: stamps([*run.glob("predictions*.csv"), *others]), read)


def _mend(run: Path) -> str:
    return f"write it again with jaxpose evaluate --run {run}"


def _digest(file: Path) -> str:
    return digest_of(read_bytes(file, most_bytes=None))


def digest_of(content: bytes) -> str:
    """Returns the SHA-256 of a file's content in `Evaluated.files`."""
    # Another program may have changed the line ends.
    return hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()


# Refuses another requeue of a SLURM job after three turns without progress.

# Maximum number of turns that start from the same point.
_MAX_TURNS = 3

_logger = logging.getLogger(__name__)


def refuse_stuck_requeue(run: Path, step: int, environment: Mapping[str, str]) -> None:
    """Records from where a turn of a SLURM job resumes. A newly submitted job may always start.

    Progress is a later step or, after the end of training, another finished segment of the project's videos.

    Args:
      run: the run folder.
      step: step of the newest complete checkpoint, 0 if there is none.
      environment: the variables of this process.

    Raises:
      UserError: SLURM restarted the job repeatedly without progress.
    """
    job, file = environment.get("SLURM_JOB_ID", ""), run / RESTARTS_FILE
    if not job or environment.get("SLURM_RESTART_COUNT", "0") == "0":
        file.unlink(missing_ok=True)
        return
    place = {"job": job, "step": step, "videos": _finished_segments(run)}
    turns = 1
    if file.exists():
        try:
            last = read_json(file, "attempts are counted from 1 again", [*place, "turns"])
            turns += last["turns"] if place.items() <= last.items() else 0
        except DamagedFile as error:
            # Three more useless turns cost less than a night of training that does not start.
            _logger.warning("%s", error)
    if turns > _MAX_TURNS:
        raise UserError(
            f"SLURM has started job {job} {_MAX_TURNS} times from step {step}, but no later step was saved and no "
            "segment of video finished: see in the job's log how each attempt ended (is the time limit too short for "
            "a start and a save?), then submit the job again"
        )
    write_json(file, place | {"turns": turns})


def _finished_segments(run: Path) -> str:
    """Returns a checksum of the names of finished video tables and of finished segments of other videos."""
    files = [file for pattern in ("*.csv", "*.parts/[!.]*") for file in (run / VIDEO_TABLES_FOLDER).glob(pattern)]
    names = sorted(file.relative_to(run).as_posix() for file in files)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def is_stuck_requeue(segments: int, environment: Mapping[str, str]) -> bool:
    """Returns whether a stopped worker should fail instead of asking for another requeue.

    Args:
      segments: number of segments that it finished in this turn.
      environment: the variables of this process.
    """
    return not segments and int(environment.get("SLURM_RESTART_COUNT") or 0) >= _MAX_TURNS
