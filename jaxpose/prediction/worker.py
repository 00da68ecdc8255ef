"""Works on a list of videos and image folders that any number of threads, processes and hosts share.

Input: jobs, and the index and claims of the results folder. Output: each job's tables and its row in the index. A video
is predicted in segments (`write_segment`). Once all segments are finished, the worker that claims the joining writes
the tables (`join_segments`).
"""

import concurrent.futures
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.prediction.index import PARTIAL, Claim, Claims, PredictionIndex, Row, remove_smoothed
from jaxpose.prediction.job import Job, Outcomes, folder_of, is_uncut, write_segment
from jaxpose.prediction.predictor import Predictor
from jaxpose.progress import Bar
from jaxpose.run.manifest import find_damage, read_manifest
from jaxpose.terminal import count, draws_bars, duration
from jaxpose.video.index import Stopped
from jaxpose.video.video import Segment, cut

# Joins a job's finished segments into its tables.

_logger = logging.getLogger(__name__)


def join_segments(job: Job, folders: list[Path], claim: Claim, outcomes: Outcomes) -> None:
    """Writes a job's tables from its segments and settles the job.

    Args:
      job: the job.
      folders: of all segments, in order.
      claim: on the joining.
      outcomes: records the outcome.

    Raises:
      OSError: the index cannot be written.
    """
    scratch = job.parts / f".{claim.token}"
    try:
        joined = _join(job, folders, scratch, outcomes)
    except OSError as error:
        # While this process was frozen, another process may have joined the segments, or removed those of other frames.
        if job.parts.is_dir() and not outcomes.is_settled(job):
            outcomes.settle_failed(job, str(error))
        return
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if joined:
        rows, seconds, arithmetic = joined
        outcomes.settle_done(job, rows, seconds, arithmetic)
        noun = "frame" if job.video else "image"
        rows_text = count(rows, noun)
        if job.video and job.video.states_length:
            rows_text = f"{rows:,} of {count(job.row.frames_announced, noun)}"
        elif job.video:
            rows_text += " read (the file does not state how many it had)"
        _logger.info(f"{job.name}: {rows_text}, {rows / seconds:.1f} {noun}s/s, in {job.table}")


def _join(job: Job, folders: list[Path], scratch: Path, outcomes: Outcomes) -> tuple[int, float, str] | None:
    """Returns the number of rows, the seconds spent on them, and everything that affects their last bits.

    Returns None if segments are damaged.
    """
    if problem := next((f"{folder}: {found}" for folder in folders if (found := find_damage(folder))), ""):
        if job.parts.is_dir() and not outcomes.is_settled(job):
            outcomes.settle_lost(job, f"{problem}; {job.parts} is removed, and the same command predicts it again")
        return None
    # The prediction table comes last: once it exists, all tables exist.
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
    # Another command may have smoothed the table that was here.
    remove_smoothed(job.table)
    # Other segments may come from workers on other machines.
    arithmetic = dict.fromkeys(manifest["arithmetic"] for manifest in manifests)
    return rows, sum(manifest["seconds"] for manifest in manifests), " | ".join(arithmetic)


def _tables_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if file.suffix == ".csv"]


# Shows the progress on videos and images: a bar, and one line with the time left.

# Number of frames before the time left is estimated.
_TIMED_FRAMES = 500


class Progress:
    """Counts the frames that this process predicts; threads may share it. As a context manager, it shows the bar.

    Args:
      frames: number of frames to predict.
    """

    def __init__(self, frames: int):
        self._all = frames
        self._done, self._is_timed, self._started = 0, False, 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> "Progress":
        self._started = time.monotonic()
        self._bar = Bar("predicting", self._all, "frame") if draws_bars() else None
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.close()

    def add(self, frames: int) -> None:
        """Counts predicted frames."""
        with self._lock:
            self._done += frames
            if self._bar:
                self._bar.update(min(self._done, self._all))
            done, left = self._done, self._all - self._done
            is_time = done >= _TIMED_FRAMES and not self._is_timed
            self._is_timed |= is_time
        if is_time and left > 0:
            speed = done / (time.monotonic() - self._started)
            _logger.info(
                f"after {count(done, 'frame')}: {speed:.1f} frames/s, about {duration(left / speed)} left if no other "
                "process helps"
            )


# How often the main thread, which handles signals, checks whether the workers have ended.
_LOOK_S = 0.1


class Worker:
    """Predicts the waiting jobs of the index.

    Args:
      predictor: the trained network.
      jobs: each with a row in the index.
      index: of the results folder.
      claims: on the work in that folder.
      stops: called after every batch; True stops.

    Attributes:
      finished_segments: number of segments, or whole inputs, finished in this process.
    """

    def __init__(
        self,
        predictor: Predictor,
        jobs: Sequence[Job],
        index: PredictionIndex,
        claims: Claims,
        stops: Callable[[], bool],
    ):
        self._predictor, self._jobs, self._index, self._claims = predictor, jobs, index, claims
        self._must_stop = stops
        self._outcomes = Outcomes(index, claims)
        self._progress = Progress(sum(job.row.frames_announced for job in jobs))
        self.finished_segments = 0
        self._lock = threading.Lock()
        self._segments: dict[str, list[Segment | None]] = {}
        self._is_ended = False

    def run(self) -> None:
        """Returns once no job is waiting anywhere, or `stops` has returned true.

        Raises:
          OSError: the index or the claims cannot be written.
        """
        threads = self._predictor.config.predict.decoders * self._predictor.runner.device_count
        with self._progress, concurrent.futures.ThreadPoolExecutor(threads, "predict") as pool:
            futures = [pool.submit(self._take_part) for _ in range(threads)]
            # The main thread handles signals, so it must wake up regularly.
            while concurrent.futures.wait(futures, _LOOK_S).not_done:
                pass
            for future in futures:
                future.result()

    @property
    def reported(self) -> set[str]:
        """The logged reasons why jobs failed or are damaged."""
        return self._outcomes.reported

    def rows(self) -> list[Row]:
        """Returns the current row of each job."""
        rows = self._index.rows()
        return [rows.get(job.row.table, job.row) for job in self._jobs]

    def _take_part(self) -> None:
        try:
            while not self._stops() and (jobs := self._waiting()):
                # Jobs that no worker has begun come first, so that workers rarely read the same file.
                did = [self._go_through(jobs, fresh) for fresh in (True, False)]
                if not any(did):
                    time.sleep(self._claims.look_s)
        except BaseException:
            self._is_ended = True
            raise

    def _go_through(self, jobs: list[Job], fresh: bool) -> bool:
        """Works on every job, or every fresh job, that it can claim; returns whether there was one."""
        did = False
        for job in jobs:
            if fresh and job.parts.is_dir():
                continue
            while not self._stops() and not self._outcomes.is_settled(job) and self._advance(job):
                did = True
        return did

    def _advance(self, job: Job) -> bool:
        """Predicts a segment of a job or joins its segments; returns False if others have claimed everything."""
        try:
            segments = self._segments_of(job)
        except (UserError, OSError) as error:
            self._outcomes.settle_damaged(job, str(error))
            return True
        absent = [segment for segment in segments if not folder_of(job, segment).is_dir()]
        for segment in absent:
            if claim := self._claims.take(f"{job.prediction_key}-{folder_of(job, segment).name}"):
                with claim:
                    # Another process may have finished it since.
                    if not folder_of(job, segment).is_dir() and not self._outcomes.is_settled(job):
                        self._predict(job, segment, claim)
                return True
        if not absent and (claim := self._claims.take(f"{job.key}-join")):
            with claim:
                if not self._outcomes.is_settled(job):
                    folders = [folder_of(job, segment) for segment in segments]
                    join_segments(job, folders, claim, self._outcomes)
            return True
        return False

    def _segments_of(self, job: Job) -> Sequence[Segment | None]:
        if job.problem:
            raise UserError(job.problem)
        # The cameras of a session would be cut at the key frames of each.
        if job.video is None or job.views or is_uncut(job):
            return [None]
        with self._lock:
            if job.row.table not in self._segments:
                segments = cut(job.video, self._predictor.config.predict.stretch_minutes)
                self._segments[job.row.table] = list(segments) if segments else [None]
            return self._segments[job.row.table]

    def _predict(self, job: Job, segment: Segment | None, claim: Claim) -> None:
        together = [other for other in self._jobs if job.views and other.prediction_key == job.prediction_key]
        jobs = [
            other for other in together
            if not folder_of(other, segment).is_dir() and not self._outcomes.is_settled(other) and not other.problem
        ]  # fmt: skip
        try:
            is_finished = write_segment(
                self._predictor, jobs or [job], segment, claim, self._outcomes, self._stops, self._progress.add
            )
        except Stopped as error:
            if not claim.is_lost:
                self._is_ended = True
                _logger.info("%s", error)
            return
        with self._lock:
            self.finished_segments += is_finished

    def _waiting(self) -> list[Job]:
        waiting = [job for job in self._jobs if not self._outcomes.is_settled(job)]
        with self._lock:
            # Settled jobs no longer need theirs.
            tables = {job.row.table for job in waiting}
            self._segments = {table: cuts for table, cuts in self._segments.items() if table in tables}
        return waiting

    def _stops(self) -> bool:
        return self._is_ended or self._must_stop()
