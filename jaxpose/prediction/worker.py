"""Works on a list of videos and folders of images, which any number of threads, processes and hosts share.

Input: jobs, and the index and the claims of the folder of results. Output: the tables of each job, and its row in the
index. A video is predicted in segments (`segment_folder`). Once all segments of a video are finished, the worker that
claims the joining writes its tables (`joining`).
"""

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Sequence

from jaxpose.errors import UserError
from jaxpose.prediction.claims import Claim, Claims
from jaxpose.prediction.index import PredictionIndex
from jaxpose.prediction.index_row import Row
from jaxpose.prediction.job import Job
from jaxpose.prediction.joining import join_segments
from jaxpose.prediction.outcomes import Outcomes
from jaxpose.prediction.predictor import Predictor
from jaxpose.prediction.progress import Progress
from jaxpose.prediction.segment_folder import folder_of, is_uncut, write_segment
from jaxpose.video.key_frames import Stopped
from jaxpose.video.segments import Segment, cut

# How often the main thread, which handles signals, looks whether the workers have ended.
_LOOK_S = 1.0

_logger = logging.getLogger(__name__)


class Worker:
    """Predicts the jobs that the index lists as waiting.

    Args:
      predictor: the trained network.
      jobs: each with a row in the index.
      index: of the folder of results.
      claims: those on the work in that folder.
      stops: called after every batch; True stops.

    Attributes:
      finished_segments: segments, or whole inputs, that were finished here.
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
        """Returns once no job waits, here or elsewhere, or `stops` has returned true.

        Raises:
          OSError: the index or the claims cannot be written.
        """
        threads = self._predictor.config.predict.decoders * self._predictor.runner.device_count
        with self._progress, concurrent.futures.ThreadPoolExecutor(threads, "predict") as pool:
            futures = [pool.submit(self._take_part) for _ in range(threads)]
            # The main thread handles signals, so it must wake up now and then.
            while concurrent.futures.wait(futures, _LOOK_S).not_done:
                pass
            for future in futures:
                future.result()

    @property
    def reported(self) -> set[str]:
        """The reasons for which jobs failed, or are damaged, that were logged here."""
        return self._outcomes.reported

    def rows(self) -> list[Row]:
        """Returns the present row of each job."""
        rows = self._index.rows()
        return [rows.get(job.row.table, job.row) for job in self._jobs]

    def _take_part(self) -> None:
        try:
            while not self._stops() and (jobs := self._waiting()):
                # Jobs that nobody has begun come first, so that workers rarely read the same file.
                did = [self._go_through(jobs, fresh) for fresh in (True, False)]
                if not any(did):
                    time.sleep(self._claims.look_s)
        except BaseException:
            self._is_ended = True
            raise

    def _go_through(self, jobs: list[Job], fresh: bool) -> bool:
        """Works on every job, or every fresh job, that can be claimed; returns whether there was one."""
        did = False
        for job in jobs:
            if fresh and job.parts.is_dir():
                continue
            while not self._stops() and not self._outcomes.is_settled(job) and self._advance(job):
                did = True
        return did

    def _advance(self, job: Job) -> bool:
        """Predicts a segment of a job or joins its segments; returns False where others have claimed all of it."""
        try:
            segments = self._segments_of(job)
        except (UserError, OSError) as error:
            self._outcomes.settle_damaged(job, str(error))
            return True
        absent = [segment for segment in segments if not folder_of(job, segment).is_dir()]
        for segment in absent:
            if claim := self._claims.take(f"{job.key}-{folder_of(job, segment).name}"):
                with claim:
                    # Another may have finished it since.
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
        if job.video is None or is_uncut(job):
            return [None]
        with self._lock:
            if job.row.table not in self._segments:
                segments = cut(job.video, self._predictor.config.predict.stretch_minutes)
                self._segments[job.row.table] = list(segments) if segments else [None]
            return self._segments[job.row.table]

    def _predict(self, job: Job, segment: Segment | None, claim: Claim) -> None:
        try:
            is_finished = write_segment(
                self._predictor, job, segment, claim, self._outcomes, self._stops, self._progress.add
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
            # Those of settled jobs are not needed any more.
            tables = {job.row.table for job in waiting}
            self._segments = {table: cuts for table, cuts in self._segments.items() if table in tables}
        return waiting

    def _stops(self) -> bool:
        return self._is_ended or self._must_stop()
