"""Predicts one segment of a video, a whole video or the images of a folder, into a folder in <table>.<hash>.parts.

The folder gets its name when its tables and its manifest are complete. A video that turns out to be damaged is marked
as uncut and predicted again as a whole, so that its rows do not depend on where it was cut.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.prediction.claims import Claim
from jaxpose.prediction.image_tables import predict_images
from jaxpose.prediction.job import Job
from jaxpose.prediction.outcomes import Outcomes
from jaxpose.prediction.predictor import Predictor
from jaxpose.prediction.video_tables import Incomplete, predict_segment
from jaxpose.run.manifest import write_manifest
from jaxpose.video.segments import Segment

# A file beside the segments that says that the video must not be cut.
_UNCUT_FILE = "uncut"


def is_uncut(job: Job) -> bool:
    """Returns whether the video of a job must be predicted as a whole."""
    return (job.parts / _UNCUT_FILE).exists()


def folder_of(job: Job, segment: Segment | None) -> Path:
    """Returns the folder of a segment (None: of the whole input); it exists once the segment is finished."""
    return job.parts / (f"{segment.first:09}-{segment.end:09}" if segment else "whole")


def write_segment(
    predictor: Predictor,
    job: Job,
    segment: Segment | None,
    claim: Claim,
    outcomes: Outcomes,
    stops: Callable[[], bool],
    count: Callable[[int], object],
) -> bool:
    """Predicts a segment into its folder; returns whether it is finished. What is in the way is settled.

    Args:
      predictor: the trained network.
      job: the table that the segment is a part of.
      segment: as `cut` returned it; None is the whole video, or all images.
      claim: on this segment.
      outcomes: where failures are recorded.
      stops: called after every batch; True stops.
      count: called with the number of rows of every batch.

    Raises:
      Stopped: `stops` returned true, or the claim is lost.
      OSError: the index cannot be written.
    """
    # A name of its own: if the claim is lost, two processes may write the same segment.
    scratch, folder = job.parts / f".{claim.token}", folder_of(job, segment)
    try:
        return _write(predictor, job, segment, scratch, outcomes, lambda: stops() or claim.is_lost, count)
    except Incomplete as error:
        if change := job.change():
            outcomes.settle_lost(job, change)
        elif segment:
            # A process that found other frames under the same name may have removed the folder.
            with contextlib.suppress(FileNotFoundError):
                write_atomic(job.parts / _UNCUT_FILE, b"")
        else:
            outcomes.settle_damaged(job, str(error), scratch)
    except UserError as error:
        if change := job.change():
            outcomes.settle_lost(job, change)
        else:
            outcomes.settle_damaged(job, str(error))
    except OSError as error:
        # While this process was frozen, another may have finished the segment or the job, or removed its folder.
        is_removed = isinstance(error, FileNotFoundError) and not scratch.is_dir()
        if not is_removed and not folder.is_dir() and not outcomes.is_settled(job):
            outcomes.settle_failed(job, str(error))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return False


def _write(
    predictor: Predictor,
    job: Job,
    segment: Segment | None,
    scratch: Path,
    outcomes: Outcomes,
    stops: Callable[[], bool],
    count: Callable[[int], object],
) -> bool:
    started, folder = time.monotonic(), folder_of(job, segment)
    scratch.mkdir(parents=True)
    file = scratch / job.table.name
    if job.video:
        rows = predict_segment(predictor, job.video, segment, file, stops, count)
    else:
        rows = predict_images(predictor, job.sources, file, stops, count)
    if change := job.change():
        outcomes.settle_lost(job, change)
        return False
    made = {"frames": rows, "seconds": time.monotonic() - started, "arithmetic": predictor.runner.arithmetic}
    write_manifest(scratch, made, folder.name)
    os.rename(scratch, folder)
    return True
