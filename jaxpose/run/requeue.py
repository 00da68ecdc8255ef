"""Refuses another requeue of a SLURM job after three turns without progress."""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

from jaxpose.checksums import DamagedFile, read_json, write_json
from jaxpose.errors import UserError
from jaxpose.run.paths import RESTARTS_FILE, VIDEO_TABLES_FOLDER

# Maximum number of turns that start from the same place.
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
            last = read_json(file, "turns are counted from 1 again")
            turns += last["turns"] if place.items() <= last.items() else 0
        except DamagedFile as error:
            # Three more useless turns cost less than a night of training that does not start.
            _logger.warning("%s", error)
    if turns > _MAX_TURNS:
        raise UserError(
            f"SLURM has started job {job} {_MAX_TURNS} times from step {step}, but no later step was saved and no "
            "segment of video finished: see in the job's log how each turn ended (is the time limit too short for a "
            "start and a save?), then submit the job again"
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
