"""Predictions of a video in files: keypoints, how far they step from frame to frame, how far from poses that occur.

What comes in: a trained network and a video. What goes out: <video>.csv, <video>_temporal_norm.csv and, where the run
knows subspaces of poses, <video>_pca_singleview_error.csv and _pca_multiview_error.csv, a row for each frame.
"""

import contextlib
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
import tqdm

from jaxpose.data.sessions import sessions
from jaxpose.data.video import Video, scan
from jaxpose.data.views import view_of_video
from jaxpose.formats.lightning_pose import SCORERS, ErrorWriter, PredictionWriter, read_predictions, write_errors
from jaxpose.pose.metrics import step_lengths_px
from jaxpose.pose.pca import Pca, errors_px
from jaxpose.training.estimator import Estimator
from jaxpose.training.predicted import note
from jaxpose.training.subspaces import pose_errors_px, within_a_view

# After training, the videos of the project are predicted at once if that takes no longer.
_AUTO_S = 600.0
# Frames that are timed to know how long all of them will take.
_TIMED_FRAMES = 128


class Incomplete(Exception):
    """A video or images could not be predicted to the end; the text says why and where the rows are that could."""


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
    tables = []
    for video in videos:
        table = folder / "video_preds" / f"{video.path.stem}.csv"
        try:
            say(predict_video(estimator, video, table, stops))
            note(table, estimator.origin([video.path]))
            tables.append(table)
        except (ValueError, OSError, Incomplete) as error:
            say(f"warning: {error}")
        if stops():
            say(f"stopped by a signal; the training is done, predict the videos by {command}")
            return
    for line in write_moment_errors(estimator, tables):
        say(line)


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


def predict_video(estimator: Estimator, video: Video, file: Path, stops: Callable[[], bool] = lambda: False) -> str:
    """Writes the predictions of a video and what is measured of them; returns a line that says what was done.

    Args:
      estimator: the trained network.
      video: as `scan` returned it.
      file: the table of predictions; the others lie beside it.
      stops: is asked after every batch whether to leave.

    Raises:
      ValueError: the frames are smaller than the run's crop.
      Incomplete: the file is damaged, or `stops` said so.
    """
    reader, found = estimator.stream(video)
    names, announced = estimator.keypoint_names, video.announced_frames
    done, started = 0, time.monotonic()
    before: np.ndarray | None = None
    with contextlib.ExitStack() as opened:
        opened.enter_context(contextlib.closing(reader))
        rows = opened.enter_context(PredictionWriter(file, names, SCORERS[estimator.config.model.kind]))
        steps = opened.enter_context(ErrorWriter(file.with_name(f"{file.stem}_temporal_norm.csv"), names))
        errors = open_pose_errors(opened, estimator, file)
        bar = opened.enter_context(
            tqdm.tqdm(total=announced, desc=video.path.name, unit="frame", disable=None, leave=False)
        )
        for keypoints, confidence in found:
            index = range(done, done + len(keypoints))
            rows.append(index, keypoints, confidence)
            steps.append(index, step_lengths_px(keypoints, before))
            for pca, writer in errors:
                writer.append(index, errors_px(pca, keypoints))
            before, done = keypoints[-1], done + len(keypoints)
            bar.update(len(keypoints))
            if stops():
                raise Incomplete(f"{video.path}: stopped after {done} of {announced} frames")
        if reader.problem:
            raise Incomplete(f"{reader.problem}; its {done} rows are in {file}.partial")
    speed = done / (time.monotonic() - started)
    return f"{video.path}: {done} frames of {announced} announced, {speed:.1f} frames/s, in {file}"


def open_pose_errors(opened: contextlib.ExitStack, estimator: Estimator, file: Path) -> list[tuple[Pca, ErrorWriter]]:
    """Opens a table beside `file` for each subspace that the predictions of one camera can be measured against alone.

    Over several cameras the poses are known only once all views are predicted: see `write_moment_errors`.
    """
    subspaces = within_a_view(estimator.subspaces, len(_views(estimator)))
    return [
        (
            pca,
            opened.enter_context(
                ErrorWriter(file.with_name(f"{file.stem}_{name}_error.csv"), estimator.keypoint_names)
            ),
        )
        for name, pca in subspaces.items()
    ]


def write_moment_errors(estimator: Estimator, predictions: Sequence[Path]) -> list[str]:
    """Writes the multi-view PCA errors of videos of several cameras, once all views of a session are predicted.

    Where they cannot be written, those of earlier predictions are removed.

    Args:
      estimator: the trained network.
      predictions: tables of predictions, <session>_<view>.csv, that are whole; others are left alone.

    Returns:
      A line for each session that has none, with the reason.
    """
    pca, views = estimator.subspaces.get("pca_multiview"), _views(estimator)
    if pca is None or not views:
        return []
    found: dict[Path, dict[str, Path]] = {}
    for file in predictions:
        view = view_of_video(file.stem, views)
        if view and file.is_file():
            found.setdefault(file.with_name(file.stem.removesuffix(f"_{view}")), {})[view] = file
    messages = []
    for session, files in found.items():
        targets = [session.with_name(f"{session.name}_{view}_pca_multiview_error.csv") for view in views]
        absent = [view for view in views if view not in files]
        tables = [read_predictions(files[view]) for view in views if view in files]
        lengths = [len(table.index) for table in tables]
        if not absent and len(set(lengths)) == 1:
            rows = np.concatenate([table.keypoints_frame_px for table in tables])
            errors = pose_errors_px({"pca_multiview": pca}, rows, len(views))["pca_multiview"]
            for table, target, of_view in zip(tables, targets, np.split(errors, len(views)), strict=True):
                write_errors(target, table.index, table.keypoint_names, of_view)
            continue
        shown = ", ".join(f"{view} {count}" for view, count in zip(views, lengths, strict=False))
        reason = f"the view {', '.join(absent)} is not predicted" if absent else f"its views differ in frames: {shown}"
        messages.append(f"warning: session {session.name} has no pca_multiview errors: {reason}")
        newest = max(file.stat().st_mtime_ns for file in files.values())
        for target in targets:
            if target.is_file() and target.stat().st_mtime_ns < newest:
                target.unlink()
    return messages


def _views(estimator: Estimator) -> tuple[str, ...]:
    return estimator.config.data.views
