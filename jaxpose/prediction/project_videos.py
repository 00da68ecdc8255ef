"""Predicts a run's project videos after training."""

import contextlib
import dataclasses
import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from jaxpose.config import Config
from jaxpose.data.inputs import sessions, video_files
from jaxpose.data.label_files import view_of_video, without_view
from jaxpose.errors import UserError
from jaxpose.files import sha256_of
from jaxpose.formats.lightning_pose.tables import read_predictions, write_errors
from jaxpose.outputs import stamps
from jaxpose.pose.pca import Pca
from jaxpose.prediction.index import (
    DONE,
    WAITING,
    Claims,
    PredictionIndex,
    beside,
    boxes_of,
    error_suffix,
    suffixes_beside,
)
from jaxpose.prediction.job import Job, remove_leftovers
from jaxpose.prediction.listing import list_jobs
from jaxpose.prediction.predictor import Predictor
from jaxpose.prediction.smoothing import smooth_tables
from jaxpose.prediction.worker import Worker
from jaxpose.run.paths import CONFIG_FILE, FINDER_FOLDER, VIDEO_TABLES_FOLDER
from jaxpose.run.pca import pose_errors_px
from jaxpose.terminal import count, duration
from jaxpose.video.index import Stopped
from jaxpose.video.video import Video, scan

# Multi-view PCA errors for several cameras; they need the predictions of all views of a session.

_NAME = "pca_multiview"

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Session:
    """The prediction tables of a session.

    Attributes:
      name: of the session.
      files: existing tables by view.
      targets: the error table of each view.
    """

    name: str
    files: dict[str, Path]
    targets: dict[str, Path]

    def newest_ns(self) -> int:
        """Returns when the newest prediction table was written."""
        return max(file.stat().st_mtime_ns for file in self.files.values())

    def is_done(self) -> bool:
        """Returns whether the errors belong to the newest predictions."""
        newest_ns = self.newest_ns()
        return self.files.keys() == self.targets.keys() and all(
            target.is_file() and target.stat().st_mtime_ns >= newest_ns for target in self.targets.values()
        )

    def remove_stale(self) -> None:
        """Removes the errors of earlier predictions."""
        newest_ns = self.newest_ns()
        for target in self.targets.values():
            if target.is_file() and target.stat().st_mtime_ns < newest_ns:
                target.unlink()


def write_moment_errors(predictor: Predictor, predictions: Mapping[Path, str]) -> None:
    """Writes the multi-view PCA errors of each session with all views predicted.

    If they cannot be written, it removes the errors of earlier predictions and logs the reason as a warning.

    Args:
      predictor: the trained network.
      predictions: {whole prediction table <session>_<view>.csv: its `table_sha256` in the index}; ignores other tables.
    """
    pca, views = predictor.subspaces.get(_NAME), predictor.config.data.views
    if pca is None or not views:
        return
    for session in _sessions(predictions, views):
        if session.is_done():
            continue
        if problem := _write(session, pca, predictions):
            _logger.warning(f"session {session.name} has no {_NAME} errors: {problem}")
            session.remove_stale()


def _sessions(predictions: Mapping[Path, str], views: tuple[str, ...]) -> list[_Session]:
    found: dict[Path, dict[str, Path]] = {}
    for file in predictions:
        view = view_of_video(file.stem, views)
        if view and file.is_file():
            found.setdefault(file.with_name(without_view(file.stem, view)), {})[view] = file
    sessions = []
    for place, files in found.items():
        targets = {view: beside(place.with_name(f"{place.name}_{view}.csv"), error_suffix(_NAME)) for view in views}
        sessions.append(_Session(place.name, files, targets))
    return sessions


def _write(session: _Session, pca: Pca, predictions: Mapping[Path, str]) -> str:
    """Writes a session's errors; returns why it could not, or ""."""
    before = stamps(session.files.values())
    for file in session.files.values():
        if not sha256_of(file).startswith(predictions[file]):
            return f"{file} was damaged or changed by hand; --overwrite predicts it again"
    if absent := [view for view in session.targets if view not in session.files]:
        return f"the view {', '.join(absent)} is not predicted"
    tables = {view: read_predictions(session.files[view]).poses for view in session.targets}
    if len({len(table.frames) for table in tables.values()}) > 1:
        shown = ", ".join(f"{view} {len(table.frames)}" for view, table in tables.items())
        return f"its views differ in length: {shown}"
    rows = np.concatenate([table.points_px[:, 0] for table in tables.values()])
    moments = np.arange(len(rows)).reshape(len(tables), -1).T
    errors = pose_errors_px({_NAME: pca}, rows, moments)[_NAME]
    for (view, table), of_view in zip(tables.items(), np.split(errors, len(tables)), strict=True):
        write_errors(session.targets[view], table.frames, table.keypoint_names, of_view)
    if stamps(session.files.values()) != before:
        for target in session.targets.values():
            target.unlink(missing_ok=True)
        return "another command has predicted a view meanwhile"
    return ""


# The longest prediction, in seconds, that training starts automatically.
AUTO_S = 600.0
# Number of frames timed to estimate the whole.
_TIMED_FRAMES = 128


def _command(run: Path, files: Sequence[Path]) -> str:
    return f"jaxpose predict --run {shlex.quote(str(run))} " + " ".join(shlex.quote(str(file)) for file in files)


def _suggest_tracks(config: Config, folder: Path, files: Sequence[Path]) -> None:
    """Logs the command that tracks several animals: that of the pose network, whose run folder holds the finder."""
    if config.model.kind == "finder":
        if folder.name != FINDER_FOLDER or not (folder.parent / CONFIG_FILE).is_file():
            return
        folder = folder.parent
    animals = f"--animals {config.data.animals}"
    _logger.info(f"to predict the videos and track their animals: {_command(folder, files)} {animals}")


def predict_project(predictor: Predictor, folder: Path, stops: Callable[[], bool]) -> None:
    """Predicts the run's project videos into <folder>/video_preds if eval.predict_videos asks for it.

    After a stop or a kill, another call keeps finished tables and segments and predicts the rest. Logs the videos that
    it does not predict, with the command to predict them later.

    Args:
      predictor: the trained network.
      folder: the run folder.
      stops: called after every batch; True stops.

    Raises:
      Stopped: `stops` returned true before all videos were done.
    """
    config = predictor.config
    if config.eval.predict_videos == "no":
        return
    try:
        files = [file for session in sessions(config.data, config.video) for file in session]
    except UserError as error:
        # User errors were refused before training; later changes must not make it fail.
        _logger.warning(f"the videos are not predicted: {error}")
        return
    if not files:
        return
    if config.data.animals > 1:
        _suggest_tracks(config, folder, files)
        return
    command = _command(folder, files)
    if jax.process_count() > 1:
        _logger.info(f"the videos are not predicted by several processes; to predict them: {command}")
        return
    videos = []
    for file in files:
        try:
            boxes_of(predictor, file)
            videos.append(scan(file))
        except UserError as error:
            _logger.warning(f"not predicted: {error}")
    try:
        with Claims(folder, config.mesh.heartbeat_s) as claims:
            index = PredictionIndex(folder, claims, suffixes_beside(predictor))
            names = {file: name for name, file in video_files(config.data, config.video).items()}
            tables = {folder / VIDEO_TABLES_FOLDER / f"{names[video.path]}.csv": video.path for video in videos}
            listing = list_jobs(predictor, dict(tables), folder, index, overwrite=True)
            for problem in listing.refused:
                _logger.warning(problem)
            jobs = listing.jobs
            if config.eval.predict_videos == "auto" and jobs and not _is_begun(index, jobs):
                needed_s = _seconds(predictor, jobs, stops)
                if needed_s > AUTO_S:
                    frames = count(sum(video.expected_frames for video in videos), "frame")
                    _logger.info(
                        f"the {frames} of video would take about {duration(needed_s)}; to predict them: {command}"
                    )
                    return
            if not _predict(predictor, jobs, index, claims, stops):
                _logger.warning(f"some videos are not predicted (see above); to try them again: {command}")
    except (UserError, OSError) as error:
        _logger.warning(f"the videos are not predicted: {error}; to predict them: {command}")


def _is_begun(index: PredictionIndex, jobs: list[Job]) -> bool:
    """Returns whether this run has already begun to predict its videos."""
    rows = index.rows()
    return all(job.row.table in rows and rows[job.row.table].is_of_same(job.row) for job in jobs)


def _predict(
    predictor: Predictor,
    jobs: list[Job],
    index: PredictionIndex,
    claims: Claims,
    stops: Callable[[], bool],
) -> bool:
    """Predicts the videos without a finished table; returns whether all tables are now finished.

    Raises:
      Stopped: `stops` returned true before that.
    """
    waiting = []
    for job in jobs:
        if _is_kept(index, job):
            remove_leftovers(job.table, claims)
            _logger.info(f"{job.name}: {job.table} already exists")
        else:
            waiting.append(job)
    # Existing tables are from other weights.
    index.set_aside_edited(job.row for job in waiting)
    index.begin([job.row for job in waiting], overwrite=True)
    worker = Worker(predictor, waiting, index, claims, stops)
    worker.run()
    if stops() and any(row.state == WAITING for row in worker.rows()):
        raise Stopped
    rows = index.rows()
    ended = {job.table: rows[job.row.table] for job in jobs if job.is_settled_by(rows[job.row.table])}
    done = {table: row.table_sha256 for table, row in ended.items() if row.state == DONE}
    with claims.waited_for("moments"):
        write_moment_errors(predictor, done)
    with claims.waited_for("smooth"):
        smooth_tables(predictor.config.predict, done, stops)
    return len(done) == len(jobs)


def _is_kept(index: PredictionIndex, job: Job) -> bool:
    """Returns whether a video's table is finished, undamaged, and from the same frames and weights."""
    row = index.rows().get(job.row.table)
    try:
        return row is not None and row.state == DONE and index.is_there(job.row)
    except UserError:
        return False


def _seconds(predictor: Predictor, jobs: list[Job], stops: Callable[[], bool]) -> float:
    """Returns the seconds that videos will take, measured on the largest one's first frames."""
    videos = [(job.video, job) for job in jobs if job.video]
    frames = sum(video.expected_frames for video, _ in videos)
    largest, job = max(videos, key=lambda pair: pair[0].expected_frames * pair[0].width_px * pair[0].height_px)
    return frames * _seconds_a_frame(predictor, largest, job.views, stops)


def _seconds_a_frame(
    predictor: Predictor, video: Video, views: Sequence[Video | None], stops: Callable[[], bool]
) -> float:
    """Returns the seconds per frame, measured on the first frames of a video, or of the cameras of its session.

    Raises:
      Stopped: `stops` returned true.
    """
    needed_s = 0.0
    # The first chunk compiles. The video is then opened again, so that the time includes decoding all timed frames.
    for most in (1, _TIMED_FRAMES):
        started, done = time.monotonic(), 0
        with contextlib.ExitStack() as opened:
            if views:
                readers, found = predictor.stream_views(views)
            else:
                reader, found = predictor.stream(video)
                readers = [reader]
            for reader in readers:
                opened.enter_context(contextlib.closing(reader))
            for keypoints, _ in found:
                done += len(keypoints) * len(readers)
                if stops():
                    raise Stopped
                if done >= most:
                    break
            needed_s = (time.monotonic() - started) / done if done else 0.0
    return needed_s
