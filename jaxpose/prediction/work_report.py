"""What `jaxpose predict` says about its work: how much there is, what exists already, and how it ended."""

import logging
import os
import shutil
from pathlib import Path

from jaxpose.config.arguments import DONE as ALL_DONE
from jaxpose.config.arguments import FAILED, SOME_FAILED
from jaxpose.console import RESULT
from jaxpose.errors import UserError
from jaxpose.prediction.index_row import DONE, Row
from jaxpose.prediction.job import Job
from jaxpose.prediction.listing import OutputFiles, needed_bytes
from jaxpose.prediction.predictor import Predictor
from jaxpose.quantities import count, size
from jaxpose.run.requeue import is_stuck_requeue

_LISTED = 20

_logger = logging.getLogger(__name__)


def announce(predictor: Predictor, jobs: list[Job], out: Path) -> None:
    """Reports the amount of work.

    Raises:
      UserError: the disk is too small for the tables.
    """
    videos = [job for job in jobs if job.video or job.problem]
    frames = sum(job.row.frames_announced for job in jobs)
    of_video = sum(job.row.frames_announced for job in videos)
    needed, free = needed_bytes(predictor, jobs), shutil.disk_usage(out).free
    _logger.info(
        f"to do: {count(len(videos), 'video')} with {count(of_video, 'frame')}, {count(frames - of_video, 'image')}; "
        f"disk: at most {size(needed)} needed, {size(free)} free"
    )
    if needed > free:
        raise UserError(
            f"{out} has {size(free)} left, but the predictions need up to {size(needed)}: free some space, or choose "
            "another --out"
        )


def report_existing(tables: list[Path], outputs: OutputFiles) -> None:
    """Names inputs whose tables exist already."""
    for table in tables[:_LISTED]:
        source = outputs[table]
        first = source if isinstance(source, Path) else source[0]
        _logger.info(f"{first}: {table} exists already (--overwrite predicts it again)")
    if len(tables) > _LISTED:
        _logger.info(f"and {len(tables) - _LISTED:,} more exist already")


def report_stop(finished_segments: int, exit_code: int) -> int:
    """Reports that a signal stopped the command, and returns the exit code."""
    if is_stuck_requeue(finished_segments, os.environ):
        _logger.error(
            "SLURM has restarted this job several times, and this restart completed no segment: submit the job again "
            "with more time, or with a smaller --stretch_minutes"
        )
        return FAILED
    _logger.log(RESULT, "stopped by a signal; the same command continues")
    return exit_code


def report_end(ended: list[Row], inputs: int, reported: set[str]) -> int:
    """Reports which inputs failed, those in `reported` excepted, and returns the exit code."""
    for row in ended:
        if row.state != DONE and row.reason and row.reason not in reported:
            reported.add(row.reason)
            _logger.warning(row.reason)
    failed = inputs - sum(row.state == DONE for row in ended)
    if failed:
        others = ", the others are done" * (failed < inputs)
        _logger.error(f"{failed} of {count(inputs, 'input')} failed{others}")
    return SOME_FAILED if failed else ALL_DONE
