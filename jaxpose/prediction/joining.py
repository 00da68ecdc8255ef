"""Joins the finished segments of a job into its tables."""

import logging
import os
import shutil
from pathlib import Path

from jaxpose.prediction.claims import Claim
from jaxpose.prediction.job import Job
from jaxpose.prediction.outcomes import Outcomes
from jaxpose.prediction.table_files import PARTIAL, remove_smoothed
from jaxpose.quantities import count
from jaxpose.run.manifest import find_damage, read_manifest

_logger = logging.getLogger(__name__)


def join_segments(job: Job, folders: list[Path], claim: Claim, outcomes: Outcomes) -> None:
    """Writes the tables of a job from its segments and settles the job.

    Args:
      job: the job.
      folders: of all its segments, in order.
      claim: on the joining.
      outcomes: where the outcome is recorded.

    Raises:
      OSError: the index cannot be written.
    """
    scratch = job.parts / f".{claim.token}"
    try:
        joined = _join(job, folders, scratch, outcomes)
    except OSError as error:
        # While this process was frozen, another may have joined the segments, or removed those of other frames.
        if job.parts.is_dir() and not outcomes.is_settled(job):
            outcomes.settle_failed(job, str(error))
        return
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if joined:
        rows, seconds, arithmetic = joined
        outcomes.settle_done(job, rows, seconds, arithmetic)
        noun = "frame" if job.video else "image"
        announced = f" of {job.row.frames_announced} announced" if job.video else ""
        if job.video and not job.video.states_length:
            announced = " read (the file does not state how many it had)"
        rows_text = f"{rows} {noun if rows == 1 else f'{noun}s'}{announced}"
        _logger.info(f"{job.name}: {rows_text}, {rows / seconds:.1f} {noun}s/s, in {job.table}")


def _join(job: Job, folders: list[Path], scratch: Path, outcomes: Outcomes) -> tuple[int, float, str] | None:
    """Returns the number of rows, the seconds that predicting them took, and what their last bits depend on.

    None if segments are damaged.
    """
    if problem := next((f"{folder}: {found}" for folder in folders if (found := find_damage(folder))), ""):
        if job.parts.is_dir() and not outcomes.is_settled(job):
            outcomes.settle_lost(job, f"{problem}; {job.parts} is removed, and the same command predicts it again")
        return None
    # The table of predictions comes last: once it exists, all tables do.
    names = sorted(_tables_in(folders[0]), key=lambda name: name == job.table.name)
    manifests = [read_manifest(folder) for folder in folders]
    scratch.mkdir()
    rows = 0
    for name in names:
        rows = job.join(folders, name, scratch / name)
    frames = sum(manifest["frames"] for manifest in manifests)
    if rows != frames:
        reason = f"{job.parts} has {count(rows, 'row')} instead of {frames:,}: a disk may have lost some; it is removed"
        outcomes.settle_lost(job, reason)
        return None
    remove_smoothed(job.table)
    for name in names:
        os.replace(scratch / name, job.table.with_name(name))
        job.table.with_name(f"{name}{PARTIAL}").unlink(missing_ok=True)
    # Workers on other machines may have made other segments.
    arithmetic = dict.fromkeys(manifest["arithmetic"] for manifest in manifests)
    return rows, sum(manifest["seconds"] for manifest in manifests), " | ".join(arithmetic)


def _tables_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if file.suffix == ".csv"]
