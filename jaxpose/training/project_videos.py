"""The videos of a run's project, predicted when the training is done."""

import contextlib
import dataclasses
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import jax

from jaxpose.data.sessions import sessions
from jaxpose.data.video import Video, scan
from jaxpose.training.claims import Claims
from jaxpose.training.estimator import Estimator
from jaxpose.training.prediction_index import DONE, PredictionIndex, row_of
from jaxpose.training.prediction_job import Job
from jaxpose.training.prediction_work import Work
from jaxpose.training.video_tables import tables_beside, write_moment_errors

# The videos are predicted at once if that takes no longer.
_AUTO_S = 600.0
# Frames that are timed to know how long all of them will take.
_TIMED_FRAMES = 128


def predict_project(estimator: Estimator, folder: Path, stops: Callable[[], bool], say: Callable[[str], None]) -> None:
    """Predicts the videos of the run's project into <folder>/video_preds, as eval.predict_videos has it.

    Args:
      estimator: the trained network.
      folder: the run folder.
      stops: is asked after every batch whether to leave.
      say: is called with a line for each video, or one that says how to do it later.
    """
    config = estimator.config
    if config.eval.predict_videos == "no":
        return
    try:
        files = [file for session in sessions(config.data, config.video) for file in session]
    except ValueError as error:
        # What was in the way at the start is refused there; the training is not to fail over what came since.
        say(f"warning: the videos are not predicted: {error}")
        return
    if not files:
        return
    command = f"python -m jaxpose.predict --run {shlex.quote(str(folder))} " + " ".join(
        shlex.quote(str(file)) for file in files
    )
    if jax.process_count() > 1:
        say(f"the videos are not predicted by several processes; predict them by {command}")
        return
    videos = []
    for file in files:
        try:
            videos.append(scan(file))
        except ValueError as error:
            say(f"warning: not predicted: {error}")
    if config.eval.predict_videos == "auto" and videos:
        frames = sum(video.announced_frames for video in videos)
        largest = max(videos, key=lambda video: video.announced_frames * video.width_px * video.height_px)
        needed_s = frames * _seconds_a_frame(estimator, largest)
        if needed_s > _AUTO_S:
            minutes = f"{needed_s / 60:,.0f} minutes"
            say(f"the {frames:,} frames of video would take about {minutes}; predict them by {command}")
            return
    try:
        done = _predict(estimator, folder, videos, stops, say)
        if stops():
            say(f"stopped by a signal; the training is done, predict the videos by {command}")
            return
        for line in write_moment_errors(estimator, done):
            say(line)
    except (ValueError, OSError) as error:
        say(f"warning: the videos are not predicted: {error}; predict them by {command}")


def _predict(
    estimator: Estimator, folder: Path, videos: list[Video], stops: Callable[[], bool], say: Callable[[str], None]
) -> dict[Path, str]:
    """Predicts videos, whatever is there already, and returns the tables of those that are done, with checksums."""
    jobs = []
    for video in videos:
        table = folder / "video_preds" / f"{video.path.stem}.csv"
        row = row_of(folder, table, video.path, [video.path], estimator)
        jobs.append(Job(dataclasses.replace(row, frames_announced=video.announced_frames), table, [video.path], video))
    with Claims(folder, estimator.config.mesh.heartbeat_s) as claims:
        index = PredictionIndex(folder, claims, tables_beside(estimator))
        index.begin([job.row for job in jobs], overwrite=True)
        work = Work(estimator, jobs, index, claims, stops, say, lambda line: say(f"warning: {line}"))
        work.run()
        rows = zip(jobs, work.rows(), strict=True)
        return {job.table: row.table_sha256 for job, row in rows if row.state == DONE}


def _seconds_a_frame(estimator: Estimator, video: Video) -> float:
    """Returns the time that a frame takes, measured on the first frames of a video."""
    needed_s = 0.0
    # The first chunk compiles; then the video is opened again, so that all frames that count are decoded in that time.
    for most in (1, _TIMED_FRAMES):
        started, done = time.monotonic(), 0
        reader, found = estimator.stream(video)
        with contextlib.closing(reader):
            for keypoints, _ in found:
                done += len(keypoints)
                if done >= most:
                    break
            needed_s = (time.monotonic() - started) / done if done else 0.0
    return needed_s
