"""Jobs (a table to make and its work folder), their outcomes, and the prediction of their segments."""

import contextlib
import dataclasses
import functools
import glob
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpose.errors import UserError
from jaxpose.files import sha256_of, write_atomic
from jaxpose.formats.lightning_pose.tables import join_tables
from jaxpose.prediction.index import (
    CHECKSUM_DIGITS,
    DAMAGED,
    DONE,
    FAILED,
    PARTIAL,
    WAITING,
    Claim,
    Claims,
    PredictionIndex,
    Row,
    identity_of,
    remove_tables,
)
from jaxpose.prediction.video_tables import Incomplete, predict_images, predict_segment, predict_views
from jaxpose.run.manifest import write_manifest
from jaxpose.terminal import count
from jaxpose.video.index import ends_checksum, read_index
from jaxpose.video.video import Segment, Video

if TYPE_CHECKING:
    from jaxpose.prediction.predictor import Predictor

# Header lines of a prediction table, of several animals, and of an error table.
_HEADER_ROWS, _ANIMALS_HEADER_ROWS, _ERROR_HEADER_ROWS = 3, 4, 1


@dataclasses.dataclass(frozen=True)
class Job:
    """A table to make.

    Attributes:
      row: its row in the index.
      table: the prediction table; the others are next to it.
      sources: a video, or the images of a folder.
      video: from `scan`, None for images.
      problem: why the video cannot be read at all, or "".
      more_files: decide the table as well: the video's box file, and the videos of the other cameras of `views`.
      views: the videos of all cameras of a session, None where there is none, if the network sees them together.
      has_animals: whether the tables are of several animals.
    """

    row: Row
    table: Path
    sources: list[Path]
    video: Video | None = None
    problem: str = ""
    more_files: tuple[Path, ...] = ()
    views: tuple[Video | None, ...] = ()
    has_animals: bool = False

    @property
    def name(self) -> Path:
        """The video, or the image folder."""
        return self.sources[0] if self.video else self.sources[0].parent

    @functools.cached_property
    def key(self) -> str:
        """The name prefix of the claims on its work."""
        return key_of(self.row.table)

    @functools.cached_property
    def prediction_key(self) -> str:
        """The same of the predictions, which the cameras of a session share."""
        if not self.views:
            return self.key
        names = [video.path.name for video in self.views if video]
        return key_of("/".join([*Path(self.row.table).parent.parts, *names]))

    @functools.cached_property
    def parts(self) -> Path:
        """The folder of its segments; it differs for other frames or another network."""
        decides = (self.row.size, self.row.mtime, self.row.files, self.row.model, self.row.run)
        return self.table.with_name(f"{self.table.name}.{hashlib.sha256(repr(decides).encode()).hexdigest()[:8]}.parts")

    def is_settled_by(self, row: Row | None) -> bool:
        """Returns whether an index row is the result of this job."""
        return row is not None and row.is_of_same(self.row) and row.state != WAITING

    def state_without_frames(self) -> str:
        """Returns the state of a job whose frames do not decode: DAMAGED if files are readable, else FAILED."""
        try:
            for source in self.sources:
                ends_checksum(source)
        except OSError:
            return FAILED
        return DAMAGED

    def join(self, parts: Sequence[Path], name: str, file: Path) -> int:
        """Joins one table from all segments into a file; returns its row count."""
        return join_tables([part / name for part in parts], file, self._header_rows(name))

    def rescue(self, scratch: Path) -> int:
        """Copies rows of an interrupted prediction to a file next to the table; returns their number."""
        rows = 0
        for partial in scratch.glob(f"*.csv{PARTIAL}"):
            name = partial.name.removesuffix(PARTIAL)
            count = join_tables([partial], self.table.with_name(partial.name), self._header_rows(name))
            rows = count if name == self.table.name else rows
        return rows

    def change(self) -> str:
        """Returns a message if the files differ from the row, else ""."""
        try:
            now = identity_of(self.sources, self.more_files)
        except OSError:
            return ""  # the reader of a missing file reports it
        is_same = now == (self.row.size, self.row.mtime, self.row.files)
        return "" if is_same else f"{self.name} changed while it was read; the same command predicts it again"

    def dropped_frames(self) -> str:
        """Returns a message about lost frames according to a video's timestamps, "" without any."""
        try:
            index = read_index(self.video.path) if self.video else None
        except (UserError, OSError):
            return ""
        if not index or not index.leaps:
            return ""
        return (
            f"{self.name}: its timestamps have gaps, because the camera dropped frames or they were lost later: "
            f"{index.gaps}; rows count the frames in the file"
        )

    def unknown_length(self, rows: int) -> str:
        """Returns a remark on a video that does not state its length, or ""."""
        if not self.video or self.video.states_length:
            return ""
        return (
            f"{count(rows, 'frame')} of {self.name} {'was' if rows == 1 else 'were'} read; the file states neither a "
            "number of frames nor a duration, so frames that it lost may not show"
        )

    def _header_rows(self, name: str) -> int:
        of_predictions = _ANIMALS_HEADER_ROWS if self.has_animals else _HEADER_ROWS
        return of_predictions if name == self.table.name else _ERROR_HEADER_ROWS


def remove_leftovers(table: Path, claims: Claims) -> None:
    """Removes the segments of a finished table and the claims on them, including those of killed processes."""
    for folder in table.parent.glob(f"{glob.escape(table.name)}.*.parts"):
        shutil.rmtree(folder, ignore_errors=True)
    claims.forget(f"{key_of(table.relative_to(claims.out).as_posix())}-")


def taken_over(row: Row) -> str:
    """Returns the reason why an input is not done that another command has begun with other frames or weights."""
    return f"{row.path}: another command predicts it into the same table with other weights, or other frames of it"


def key_of(table: str) -> str:
    """Returns the key of a file, a path below the results folder, for claim names."""
    return hashlib.sha256(table.encode()).hexdigest()[:16]


# Writes the outcomes of jobs to the index, reports them, and removes leftovers of the work.

_logger = logging.getLogger(__name__)


class Outcomes:
    """The outcomes of jobs in this and other processes.

    Args:
      index: of the results folder.
      claims: on the work in that folder.

    Attributes:
      reported: the reasons logged in this process.
    """

    def __init__(self, index: PredictionIndex, claims: Claims):
        self._index, self._claims = index, claims
        self.reported: set[str] = set()
        self._failed: set[str] = set()

    def is_settled(self, job: Job) -> bool:
        """Returns whether a job is finished: done or damaged, failed in this process, or left to another command."""
        row = self._index.rows().get(job.row.table)
        if row is not None and not row.is_of_same(job.row) and job.row.table not in self._failed:
            self._leave(job)
        return job.row.table in self._failed or job.is_settled_by(row)

    def _leave(self, job: Job) -> None:
        """Leaves a table to another command, which has begun it with other frames or weights."""
        self._failed.add(job.row.table)
        self.reported.add(reason := job.change() or taken_over(job.row))
        _logger.warning(reason)
        shutil.rmtree(job.parts, ignore_errors=True)

    def settle_done(self, job: Job, rows: int, seconds: float, arithmetic: str) -> None:
        """Records that a job's tables are written, and everything that affects their last bits."""
        dropped = job.dropped_frames()
        reason = "; ".join(filter(None, [dropped, job.unknown_length(rows)]))
        self._settle(job, DONE, reason, rows, seconds, arithmetic, warning=dropped)

    def settle_failed(self, job: Job, reason: str) -> None:
        """Records why a job cannot be finished now; keeps finished segments for the next command."""
        self._settle(job, FAILED, reason)

    def settle_lost(self, job: Job, reason: str) -> None:
        """Records why a job must start again, and removes its segments."""
        shutil.rmtree(job.parts, ignore_errors=True)
        self._settle(job, FAILED, reason)

    def settle_damaged(self, job: Job, reason: str, scratch: Path | None = None) -> None:
        """Records that an input cannot be fully predicted; keeps the rows in the folder `scratch`."""
        state, rows = job.state_without_frames(), 0
        if state == DAMAGED:
            # Tables with this name are from earlier frames.
            remove_tables(job.table)
        if scratch:
            rows, of = job.rescue(scratch), len(job.sources)
            verb = "is" if rows == 1 else "are"
            some = f"; its {count(rows, 'row')}" if job.video else f"\n{count(rows, 'row')} of {count(of, 'image')}"
            reason += f"{some} {verb} in {job.table}{PARTIAL}"
        self._settle(job, state, reason, rows)

    def _settle(
        self,
        job: Job,
        state: str,
        reason: str,
        rows: int = 0,
        seconds: float = 0.0,
        arithmetic: str = "",
        warning: str | None = None,
    ) -> None:
        """Records an outcome and logs the warning, by default the reason."""
        outcome = dataclasses.replace(
            job.row,
            state=state,
            reason=reason,
            frames_delivered=rows,
            seconds=round(seconds, 3),
            table_size=self._index.bytes_of(job.table) if state == DONE else 0,
            table_sha256=sha256_of(job.table)[:CHECKSUM_DIGITS] if state == DONE else "",
            arithmetic=arithmetic,
        )
        if not self._index.note(outcome):
            self._leave(job)
            return
        warning = reason if warning is None else warning
        if warning:
            self.reported.add(warning)
            _logger.warning(warning)
        if state == FAILED:
            self._failed.add(job.row.table)
        else:
            remove_leftovers(job.table, self._claims)
            self._claims.forget(f"{job.prediction_key}-")


# Predicts a segment of a video, a whole video or a folder of images into a folder in <table>.<hash>.parts.
#
# The folder gets its name when its tables and manifest are complete. A video that turns out to be damaged is marked as
# uncut and predicted again as a whole, so that its rows do not depend on the cuts.

# A file next to the segments that marks a video that must not be cut.
_UNCUT_FILE = "uncut"


def is_uncut(job: Job) -> bool:
    """Returns whether a job's video must be predicted as a whole."""
    return (job.parts / _UNCUT_FILE).exists()


def folder_of(job: Job, segment: Segment | None) -> Path:
    """Returns the folder of a segment (None: the whole input); it exists once the segment is finished."""
    return job.parts / (f"{segment.first:09}-{segment.end:09}" if segment else "whole")


def write_segment(
    predictor: "Predictor",
    jobs: Sequence[Job],
    segment: Segment | None,
    claim: Claim,
    outcomes: Outcomes,
    stops: Callable[[], bool],
    count: Callable[[int], object],
) -> bool:
    """Predicts a segment into its folder; returns whether it is finished. Records any failure.

    Args:
      predictor: the trained network.
      jobs: the table that the segment belongs to, or those of the cameras of a session.
      segment: from `cut`; None means the whole video, or all images.
      claim: on this segment.
      outcomes: records failures.
      stops: called after every batch; True stops.
      count: called with the number of rows of every batch.

    Raises:
      Stopped: `stops` returned true, or the claim is lost.
      OSError: the index cannot be written.
    """
    # A unique name: if the claim is lost, two processes may write the same segment.
    scratches = [job.parts / f".{claim.token}" for job in jobs]
    try:
        return _write(predictor, jobs, segment, scratches, outcomes, lambda: stops() or claim.is_lost, count)
    except (Incomplete, UserError, OSError) as error:
        for job, scratch in zip(jobs, scratches, strict=True):
            _settle_error(job, segment, scratch, error, outcomes)
    finally:
        for scratch in scratches:
            shutil.rmtree(scratch, ignore_errors=True)
    return False


def _settle_error(
    job: Job, segment: Segment | None, scratch: Path, error: Incomplete | UserError | OSError, outcomes: Outcomes
) -> None:
    """Records why a segment is not finished."""
    if isinstance(error, OSError):
        # While this process was frozen, another process may have finished the segment or job, or removed its folder.
        is_removed = isinstance(error, FileNotFoundError) and not scratch.is_dir()
        if not is_removed and not folder_of(job, segment).is_dir() and not outcomes.is_settled(job):
            outcomes.settle_failed(job, str(error))
    elif change := job.change():
        outcomes.settle_lost(job, change)
    elif isinstance(error, UserError):
        outcomes.settle_damaged(job, str(error))
    elif segment:
        # A process that found other frames with the same name may have removed the folder.
        with contextlib.suppress(FileNotFoundError):
            write_atomic(job.parts / _UNCUT_FILE, b"")
    else:
        outcomes.settle_damaged(job, str(error), scratch)


def _write(
    predictor: "Predictor",
    jobs: Sequence[Job],
    segment: Segment | None,
    scratches: Sequence[Path],
    outcomes: Outcomes,
    stops: Callable[[], bool],
    count: Callable[[int], object],
) -> bool:
    started, first = time.monotonic(), jobs[0]
    for scratch in scratches:
        scratch.mkdir(parents=True)
    files = [scratch / job.table.name for job, scratch in zip(jobs, scratches, strict=True)]
    if first.views:
        of_videos = {job.sources[0]: file for job, file in zip(jobs, files, strict=True)}
        rows = predict_views(predictor, first.views, of_videos, stops, count)
    elif first.video:
        rows = predict_segment(predictor, first.video, segment, files[0], stops, count)
    else:
        rows = predict_images(predictor, first.sources, files[0], stops, count)
    seconds = (time.monotonic() - started) / len(jobs)
    changes = [job.change() for job in jobs]
    for job, scratch, change in zip(jobs, scratches, changes, strict=True):
        if change:
            outcomes.settle_lost(job, change)
            continue
        folder = folder_of(job, segment)
        made = {"frames": rows, "seconds": seconds, "arithmetic": predictor.runner.arithmetic}
        write_manifest(scratch, made, folder.name)
        os.rename(scratch, folder)
    return not any(changes)
