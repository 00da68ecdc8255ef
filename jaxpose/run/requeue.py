"""Turns of a job that SLURM starts again by itself and that get nowhere: after some of them the next one is refused."""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

from jaxpose.checksums import DamagedFile, read_json, write_json
from jaxpose.run.folder import RESTARTS_FILE

# Turns from one and the same step.
_MOST = 3

_logger = logging.getLogger(__name__)


def refuse_standstill(run: Path, step: int, environment: Mapping[str, str]) -> None:
    """Notes where a turn of a SLURM job goes on; a job that a person submitted anew may always start.

    Once the training is done, the step stays the same, and segments of the project's videos are what is finished.

    Args:
      run: the run folder.
      step: of the newest whole checkpoint, 0 without one.
      environment: the variables of this process.

    Raises:
      ValueError: SLURM started the job again and again at this step, with the same segments finished.
    """
    job, file = environment.get("SLURM_JOB_ID", ""), run / RESTARTS_FILE
    if not job or environment.get("SLURM_RESTART_COUNT", "0") == "0":
        file.unlink(missing_ok=True)
        return
    place = {"job": job, "step": step, "videos": _finished_segments(run)}
    turns = 1
    if file.exists():
        try:
            noted = read_json(file, "the turns are counted from 1 again")
            turns += noted["turns"] if place.items() <= noted.items() else 0
        except DamagedFile as error:
            # A night of training is worth more than three turns in vain.
            _logger.warning("%s", error)
    if turns > _MOST:
        raise ValueError(
            f"SLURM has started job {job} {_MOST} times from step {step}, and no later step was saved and no segment "
            "of video finished: look at how each turn ended in the job's log (a time limit shorter than a start and a "
            "save?), then submit it anew"
        )
    write_json(file, place | {"turns": turns})


def _finished_segments(run: Path) -> str:
    """Returns a checksum of which tables of videos, and which segments of others, are there."""
    found = [file for pattern in ("*.csv", "*.parts/[!.]*") for file in (run / "video_preds").glob(pattern)]
    names = sorted(file.relative_to(run).as_posix() for file in found)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def is_idle_turn(pieces: int, environment: Mapping[str, str]) -> bool:
    """Returns whether a turn of a worker that was stopped is one to end with: SLURM had started it before, and again.

    Args:
      pieces: of work that it finished in this turn.
      environment: the variables of this process.
    """
    return not pieces and int(environment.get("SLURM_RESTART_COUNT") or 0) >= _MOST
