"""The work on a list of videos and folders of images, which any number of threads, processes and hosts share.

What comes in: jobs, and the index and the claims of the folder of results. What goes out: the table of each job, and
its row in the index. A video is predicted in segments; each is a folder in <table>.<hash>.parts that has its name only
when it is whole. Who claims the joining of a video whose segments are all there makes the table of them. A video that
turns out to be damaged is predicted again without a cut, so that what is left of it depends on the video alone.
"""

import concurrent.futures
import contextlib
import dataclasses
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import tqdm

from jaxpose.files import sha256_of
from jaxpose.prediction.claims import Claim, Claims
from jaxpose.prediction.image_tables import predict_images
from jaxpose.prediction.index import CHECKSUM_DIGITS, DAMAGED, DONE, FAILED, PredictionIndex, Row
from jaxpose.prediction.job import Job, remove_parts
from jaxpose.prediction.predictor import Predictor
from jaxpose.prediction.video_tables import Incomplete, predict_segment
from jaxpose.run.manifest import find_damage, read_manifest, write_manifest
from jaxpose.video.key_frames import Stopped
from jaxpose.video.segments import Segment, cut

# After so many frames it is told how long the others will take.
_TIMED_FRAMES = 500
# How often it is looked whether others have left something to do.
_LOOK_S = 1.0
# Beside the segments: the video is not to be cut.
_UNCUT_FILE = "uncut"


class Work:
    """The work on jobs that the index says are waiting.

    Args:
      predictor: the trained network.
      jobs: each with a row in the index.
      index: of the folder of results.
      claims: those on the work in that folder.
      stops: is asked after every batch whether to leave.
      say: is called with a line for each job that is done here.
      warn: is called with a line, or several, for each that cannot be.

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
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ):
        self._predictor, self._jobs, self._index, self._claims = predictor, jobs, index, claims
        self._is_told_to_stop, self._say, self._warn = stops, say, warn
        self.finished_segments = 0
        self._lock = threading.Lock()
        self._cuts: dict[str, list[Segment | None]] = {}
        self._failed: set[str] = set()
        self._is_ended = False
        self._frames, self._is_timed, self._started = 0, False, 0.0
        self._all_frames = sum(job.row.frames_announced for job in jobs)

    def run(self) -> None:
        """Returns once no job waits any more, here or elsewhere, or it was told to stop.

        Raises:
          OSError: the index or the claims cannot be written.
        """
        self._started = time.monotonic()
        threads = self._predictor.config.predict.decoders * self._predictor.runner.device_count
        with (
            tqdm.tqdm(total=self._all_frames, unit="frame", disable=None, leave=False) as self._bar,
            concurrent.futures.ThreadPoolExecutor(threads, "predict") as pool,
        ):
            futures = [pool.submit(self._take_part) for _ in range(threads)]
            # Signals are handled by the main thread: it must not sleep for good.
            while concurrent.futures.wait(futures, _LOOK_S).not_done:
                pass
            for future in futures:
                future.result()

    def rows(self) -> list[Row]:
        """Returns the row of each job as it is now."""
        known = self._index.rows()
        return [known.get(job.row.table, job.row) for job in self._jobs]

    def _take_part(self) -> None:
        try:
            while not self._stops() and (jobs := self._waiting()):
                # First what nobody has begun, so that all rarely read the same file.
                did = [self._go_through(jobs, fresh) for fresh in (True, False)]
                if not any(did):
                    time.sleep(min(_LOOK_S, self._claims.beat_s))
        except BaseException:
            self._is_ended = True
            raise

    def _go_through(self, jobs: list[Job], fresh: bool) -> bool:
        """Does what can be claimed of jobs, of the fresh ones or of all; returns whether there was something."""
        did = False
        for job in jobs:
            if fresh and job.parts.is_dir():
                continue
            while not self._stops() and not self._is_settled(job) and self._advance(job):
                did = True
        return did

    def _advance(self, job: Job) -> bool:
        """Does one piece of a job; returns False where others have all of it in hand."""
        try:
            segments = self._segments(job)
        except (ValueError, OSError) as error:
            self._settle_damaged(job, str(error))
            return True
        parts = [job.parts / _part_name(segment) for segment in segments]
        absent = [place for place, part in enumerate(parts) if not part.is_dir()]
        for place in absent:
            if claim := self._claims.take(f"{job.key}-{parts[place].name}"):
                with claim:
                    # It may have been done since.
                    if not parts[place].is_dir() and not self._is_settled(job):
                        self._predict(job, segments[place], parts[place], claim)
                return True
        if not absent and (claim := self._claims.take(f"{job.key}-join")):
            with claim:
                if not self._is_settled(job):
                    self._join(job, parts, claim)
            return True
        return False

    def _segments(self, job: Job) -> Sequence[Segment | None]:
        if job.problem:
            raise ValueError(job.problem)
        if job.video is None or (job.parts / _UNCUT_FILE).exists():
            return [None]
        with self._lock:
            if job.row.table not in self._cuts:
                segments = cut(job.video, self._predictor.config.predict.stretch_minutes)
                self._cuts[job.row.table] = list(segments) if segments else [None]
            return self._cuts[job.row.table]

    def _predict(self, job: Job, segment: Segment | None, part: Path, claim: Claim) -> None:
        # A name of its own: should the claim be lost, and the other be as fast, both write.
        scratch, started = job.parts / f".{claim.token}", time.monotonic()

        def stops() -> bool:
            return self._stops() or claim.is_lost

        try:
            scratch.mkdir(parents=True)
            file = scratch / job.table.name
            if job.video:
                rows = predict_segment(self._predictor, job.video, segment, file, stops, self._count)
            else:
                rows = predict_images(self._predictor, job.sources, file, stops, self._count)
            if change := job.change():
                self._settle_changed(job, change)
                return
            write_manifest(scratch, {"frames": rows, "seconds": time.monotonic() - started}, part.name)
            os.rename(scratch, part)
            with self._lock:
                self.finished_segments += 1
        except Stopped as error:
            if not claim.is_lost:
                self._is_ended = True
                self._say(str(error))
        except Incomplete as error:
            if change := job.change():
                self._settle_changed(job, change)
            elif segment:
                # One that found other frames under the same name may have removed the folder.
                with contextlib.suppress(FileNotFoundError):
                    (job.parts / _UNCUT_FILE).touch()
            else:
                self._settle_damaged(job, str(error), scratch)
        except ValueError as error:
            if change := job.change():
                self._settle_changed(job, change)
            else:
                self._settle_damaged(job, str(error))
        except OSError as error:
            # Another may have finished the piece, or the whole job, while this process was frozen, or removed it.
            is_removed = isinstance(error, FileNotFoundError) and not scratch.is_dir()
            if not is_removed and not part.is_dir() and not self._is_settled(job):
                self._settle(job, FAILED, str(error))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _join(self, job: Job, parts: list[Path], claim: Claim) -> None:
        scratch = job.parts / f".{claim.token}"
        rows = 0
        try:
            problem = next((f"{part}: {found}" for part in parts if (found := find_damage(part))), "")
            if problem and job.parts.is_dir() and not self._is_settled(job):
                self._settle_lost(job, f"{problem}; {job.parts} is removed, and the same command predicts it again")
            if problem:
                return
            # The table of predictions last: where it is, all are.
            names = sorted(_tables_in(parts[0]), key=lambda name: name == job.table.name)
            done = [read_manifest(part) for part in parts]
            scratch.mkdir()
            for name in names:
                rows = job.join(parts, name, scratch / name)
            frames = sum(part["frames"] for part in done)
            if rows != frames:
                lost = f"{job.parts} has {rows} rows of {frames}, as if a disk had lost some; it is removed"
                self._settle_lost(job, lost)
                return
            for name in names:
                os.replace(scratch / name, job.table.with_name(name))
                job.table.with_name(f"{name}.partial").unlink(missing_ok=True)
        except OSError as error:
            # Another may have joined them while this process was frozen, or removed them as those of other frames.
            if job.parts.is_dir() and not self._is_settled(job):
                self._settle(job, FAILED, str(error))
            return
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        seconds = sum(part["seconds"] for part in done)
        self._settle(job, DONE, job.holes(), rows, seconds)
        what, per = ("frames", "frames/s") if job.video else ("images", "images/s")
        of = f" of {job.row.frames_announced} announced" if job.video else ""
        self._say(f"{job.name}: {rows} {what}{of}, {rows / seconds:.1f} {per}, in {job.table}")

    def _settle_changed(self, job: Job, change: str) -> None:
        """Notes that there are other frames under the name of a job; the work on the former ones is of no use."""
        self._settle_lost(job, change)

    def _settle_lost(self, job: Job, reason: str) -> None:
        """Notes why the work on a job has to begin again."""
        shutil.rmtree(job.parts, ignore_errors=True)
        self._settle(job, FAILED, reason)

    def _settle_damaged(self, job: Job, reason: str, scratch: Path | None = None) -> None:
        """Notes that an input cannot be predicted; what `scratch` has of it is rescued."""
        state, rows = job.state_without_frames(), 0
        if state == DAMAGED:
            job.remove_tables()
        if scratch:
            rows, of = job.rescue(scratch), len(job.sources)
            some = f"; its {rows} rows are" if job.video else f"\n{rows} rows of {of} images are"
            reason += f"{some} in {job.table}.partial"
        self._settle(job, state, reason, rows)

    def _settle(self, job: Job, state: str, reason: str, rows: int = 0, seconds: float = 0.0) -> None:
        """Notes what became of a job; what is left of the work on it is removed, where that cannot go on."""
        self._index.note(
            dataclasses.replace(
                job.row,
                state=state,
                reason=reason,
                frames_delivered=rows,
                seconds=round(seconds, 3),
                table_size=self._index.bytes_of(job.table) if state == DONE else 0,
                table_sha256=sha256_of(job.table)[:CHECKSUM_DIGITS] if state == DONE else "",
            )
        )
        if reason:
            self._warn(reason)
        if state == FAILED:
            self._failed.add(job.row.table)
        else:
            remove_parts(job.table)
            self._claims.forget(f"{job.key}-")
        with self._lock:
            self._cuts.pop(job.row.table, None)

    def _is_settled(self, job: Job) -> bool:
        return job.row.table in self._failed or job.is_settled_by(self._index.rows().get(job.row.table))

    def _waiting(self) -> list[Job]:
        return [job for job in self._jobs if not self._is_settled(job)]

    def _stops(self) -> bool:
        return self._is_ended or self._is_told_to_stop()

    def _count(self, frames: int) -> None:
        with self._lock:
            self._bar.update(frames)
            self._frames += frames
            done, left = self._frames, self._all_frames - self._frames
            is_time = done >= _TIMED_FRAMES and not self._is_timed
            self._is_timed |= is_time
        if is_time and left > 0:
            speed = done / (time.monotonic() - self._started)
            hours = f"{left / speed / 3600:.1f} hours"
            self._say(f"after {done} frames: {speed:.1f} frames/s, about {hours} left for this process alone")


def _part_name(segment: Segment | None) -> str:
    return f"{segment.first:09}-{segment.end:09}" if segment else "whole"


def _tables_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if file.suffix == ".csv"]
