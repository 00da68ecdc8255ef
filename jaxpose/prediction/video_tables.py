"""Predictions of a video in files: keypoints, how far they step from frame to frame, how far from poses that occur.

What comes in: a trained network and a video. What goes out: <video>.csv, <video>_temporal_norm.csv and, where the run
knows subspaces of poses, <video>_pca_singleview_error.csv and _pca_multiview_error.csv, a row for each frame.
"""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tqdm

from jaxpose.data.views import view_of_video
from jaxpose.files import sha256_of
from jaxpose.formats.lightning_pose.tables import SCORERS, ErrorWriter, PredictionWriter, read_predictions, write_errors
from jaxpose.pose.metrics import step_lengths_px
from jaxpose.pose.pca import Pca, errors_px
from jaxpose.prediction.predictor import Predictor
from jaxpose.run.pca import pose_errors_px, within_a_view
from jaxpose.video.key_frames import Stopped
from jaxpose.video.segments import Segment
from jaxpose.video.video import Video

# A number of the tables has this many digits, signs and commas, at most; the number of a frame too.
_CELL_BYTES, _INDEX_BYTES = 24, 12


class Incomplete(Exception):
    """A video or images could not be predicted to the end; the text says why, `.rows` how many rows could.

    These are in the files whose names end in `.partial`.
    """

    def __init__(self, why: str, rows: int):
        super().__init__(why)
        self.rows = rows


def predict_video(predictor: Predictor, video: Video, file: Path, stops: Callable[[], bool] = lambda: False) -> int:
    """Writes the predictions of a whole video and what is measured of them; returns the number of rows.

    Args:
      predictor: the trained network.
      video: as `scan` returned it.
      file: the table of predictions; the others lie beside it.
      stops: is asked after every batch whether to leave.

    Raises:
      ValueError: the frames are smaller than the run's crop.
      Incomplete: the file is damaged.
      Stopped: `stops` returned true.
    """
    announced = video.announced_frames
    with tqdm.tqdm(total=announced, desc=video.path.name, unit="frame", disable=None, leave=False) as bar:
        return predict_segment(predictor, video, None, file, stops, bar.update)


def predict_segment(
    predictor: Predictor,
    video: Video,
    segment: Segment | None,
    file: Path,
    stops: Callable[[], bool],
    count: Callable[[int], object],
) -> int:
    """Writes the rows of a segment of a video (None: of all of it), as `predict_video` does.

    The rows are, byte for byte, those that `predict_video` writes for the same frames.

    Args:
      predictor, video, file, stops: as in `predict_video`.
      segment: one of those that `cut` returned.
      count: is called with the number of rows of every batch.

    Raises:
      ValueError, Incomplete, Stopped: as `predict_video` does.
    """
    reader, found = predictor.stream(video, segment)
    names = predictor.keypoint_names
    first = done = segment.first if segment else 0
    before: np.ndarray | None = None
    with contextlib.ExitStack() as opened:
        opened.enter_context(contextlib.closing(reader))
        rows = opened.enter_context(PredictionWriter(file, names, SCORERS[predictor.config.model.kind]))
        steps = opened.enter_context(ErrorWriter(file.with_name(f"{file.stem}_temporal_norm.csv"), names))
        errors = open_pose_errors(opened, predictor, file)
        for keypoints, confidence in found:
            if first and before is None:
                # Of the frame before the segment only the step to the next one is wanted.
                before, keypoints, confidence = keypoints[0], keypoints[1:], confidence[1:]
            if len(keypoints):
                index = range(done, done + len(keypoints))
                rows.append(index, keypoints, confidence)
                steps.append(index, step_lengths_px(keypoints, before))
                for pca, writer in errors:
                    writer.append(index, errors_px(pca, keypoints))
                before, done = keypoints[-1], done + len(keypoints)
                count(len(keypoints))
            if stops():
                raise Stopped(f"{video.path}: stopped after {done} of {video.announced_frames} frames")
        if reader.problem:
            raise Incomplete(reader.problem, done - first)
    return done - first


def bytes_a_frame(predictor: Predictor) -> int:
    """Returns how large the rows of a frame are in all tables together, at most."""
    tables = len(within_a_view(predictor.subspaces, len(_views(predictor)))) + ("pca_multiview" in predictor.subspaces)
    # x, y, confidence and step of each keypoint, and its errors.
    cells = len(predictor.keypoint_names) * (4 + tables)
    return cells * _CELL_BYTES + (2 + tables) * _INDEX_BYTES


def tables_beside(predictor: Predictor) -> tuple[str, ...]:
    """Returns what the names of the tables that `predict_video` writes beside that of predictions have more."""
    subspaces = within_a_view(predictor.subspaces, len(_views(predictor)))
    return ("_temporal_norm", *(f"_{name}_error" for name in subspaces))


def open_pose_errors(opened: contextlib.ExitStack, predictor: Predictor, file: Path) -> list[tuple[Pca, ErrorWriter]]:
    """Opens a table beside `file` for each subspace that the predictions of one camera can be measured against alone.

    Over several cameras the poses are known only once all views are predicted: see `write_moment_errors`.
    """
    subspaces = within_a_view(predictor.subspaces, len(_views(predictor)))
    return [
        (
            pca,
            opened.enter_context(
                ErrorWriter(file.with_name(f"{file.stem}_{name}_error.csv"), predictor.keypoint_names)
            ),
        )
        for name, pca in subspaces.items()
    ]


def write_moment_errors(predictor: Predictor, predictions: Mapping[Path, str]) -> list[str]:
    """Writes the multi-view PCA errors of videos of several cameras, once all views of a session are predicted.

    Where they cannot be written, those of earlier predictions are removed.

    Args:
      predictor: the trained network.
      predictions: tables of predictions, <session>_<view>.csv, that are whole, and their `table_sha256` of the index;
        other tables are left alone.

    Returns:
      A line for each session that has none, with the reason.
    """
    pca, views = predictor.subspaces.get("pca_multiview"), _views(predictor)
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
        newest = max(file.stat().st_mtime_ns for file in files.values())
        if not absent and all(target.is_file() and target.stat().st_mtime_ns >= newest for target in targets):
            continue
        changed = [file for file in files.values() if not sha256_of(file).startswith(predictions[file])]
        tables = [] if changed else [read_predictions(files[view]) for view in views if view in files]
        lengths = [len(table.index) for table in tables]
        if not absent and not changed and len(set(lengths)) == 1:
            rows = np.concatenate([table.keypoints_frame_px for table in tables])
            errors = pose_errors_px({"pca_multiview": pca}, rows, len(views))["pca_multiview"]
            for table, target, of_view in zip(tables, targets, np.split(errors, len(views)), strict=True):
                write_errors(target, table.index, table.keypoint_names, of_view)
            continue
        shown = ", ".join(f"{view} {count}" for view, count in zip(views, lengths, strict=False))
        reason = f"the view {', '.join(absent)} is not predicted" if absent else f"its views differ in frames: {shown}"
        if changed:
            reason = f"{changed[0]} was damaged or changed by hand; --overwrite predicts it again"
        messages.append(f"warning: session {session.name} has no pca_multiview errors: {reason}")
        for target in targets:
            if target.is_file() and target.stat().st_mtime_ns < newest:
                target.unlink()
    return messages


def _views(predictor: Predictor) -> tuple[str, ...]:
    return predictor.config.data.views
