"""Turns of a job that SLURM starts again by itself and that get nowhere: after some of them the next one is refused."""

import logging
from collections.abc import Mapping
from pathlib import Path

from jaxpose.files import DamagedFile, read_json, write_json
from jaxpose.training.run_folder import RESTARTS_FILE

# Turns from one and the same step.
_MOST = 3

_logger = logging.getLogger(__name__)


def refuse_standstill(run: Path, step: int, environment: Mapping[str, str]) -> None:
    """Notes at which step a turn of a SLURM job goes on; a job that a person submitted anew may always start.

    Args:
      run: the run folder.
      step: of the newest whole checkpoint, 0 without one.
      environment: the variables of this process.

    Raises:
      ValueError: SLURM started the job again and again at this step.
    """
    job, file = environment.get("SLURM_JOB_ID", ""), run / RESTARTS_FILE
    if not job or environment.get("SLURM_RESTART_COUNT", "0") == "0":
        file.unlink(missing_ok=True)
        return
    turns = 1
    if file.exists():
        try:
            noted = read_json(file, "the turns are counted from 1 again")
            turns += noted["turns"] if (noted["job"], noted["step"]) == (job, step) else 0
        except DamagedFile as error:
            # A night of training is worth more than three turns in vain.
            _logger.warning("%s", error)
    if turns > _MOST:
        raise ValueError(
            f"SLURM has started job {job} {_MOST} times from step {step}, and no later step was saved: look at how "
            "each turn ended in the job's log (a time limit shorter than a start and a save?), then submit it anew"
        )
    write_json(file, {"job": job, "step": step, "turns": turns})


def is_idle_turn(pieces: int, environment: Mapping[str, str]) -> bool:
    """Returns whether a turn of a worker that was stopped is one to end with: SLURM had started it before, and again.

    Args:
      pieces: of work that it finished in this turn.
      environment: the variables of this process.
    """
    return not pieces and int(environment.get("SLURM_RESTART_COUNT") or 0) >= _MOST
