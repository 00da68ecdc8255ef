"""The tables of a video: its keypoints, their steps from frame to frame, and their distance from plausible poses.

Input: a trained network and a video. Output: <video>.csv, <video>_temporal_norm.csv and, where the run has subspaces of
poses, <video>_pca_singleview_error.csv and _pca_multiview_error.csv, with a row for each frame.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jaxpose.formats.lightning_pose.tables import SCORERS, ErrorWriter, PredictionWriter
from jaxpose.pose.metrics import step_lengths_px
from jaxpose.pose.pca import Pca, errors_px
from jaxpose.prediction.predictor import Predictor
from jaxpose.prediction.table_files import TEMPORAL_NORM, beside, error_suffix, subspaces_of_a_view
from jaxpose.video.key_frames import Stopped
from jaxpose.video.segments import Segment
from jaxpose.video.video import Video

# Digits, sign and comma of a number in the tables, at most; and of a frame's number.
_CELL_BYTES, _INDEX_BYTES = 24, 12


class Incomplete(Exception):
    """A video or images could not be predicted to the end; the message is the reason.

    Attributes:
      rows: how many rows were written, into the files whose names end in `.partial`.
    """

    def __init__(self, why: str, rows: int):
        super().__init__(why)
        self.rows = rows


def predict_segment(
    predictor: Predictor,
    video: Video,
    segment: Segment | None,
    file: Path,
    stops: Callable[[], bool] = lambda: False,
    count: Callable[[int], object] = lambda rows: None,
) -> int:
    """Writes the predictions of a segment of a video, and the tables beside them; returns the number of rows.

    The rows are equal, byte for byte, to the rows of the whole video for the same frames.

    Args:
      predictor: the trained network.
      video: as `scan` returned it.
      segment: as `cut` returned it; None is the whole video.
      file: the table of predictions; the others lie beside it, in a folder that this process made.
      stops: called after every batch; True stops.
      count: called with the number of rows of every batch.

    Raises:
      UserError: the frames are smaller than the run's crop.
      Incomplete: the file is damaged.
      Stopped: `stops` returned true.
    """
    reader, found = predictor.stream(video, segment)
    names, scorer = predictor.keypoint_names, SCORERS[predictor.config.model.kind]
    first = done = segment.first if segment else 0
    before: np.ndarray | None = None
    with contextlib.ExitStack() as opened:
        opened.enter_context(contextlib.closing(reader))
        rows = opened.enter_context(PredictionWriter(file, names, scorer, keeps_rows=True))
        steps = opened.enter_context(ErrorWriter(beside(file, TEMPORAL_NORM), names, keeps_rows=True))
        errors = open_pose_errors(opened, predictor, file)
        for keypoints, confidence in found:
            if first and before is None:
                # The frame before the segment serves only for the step to the first one.
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
                raise Stopped(f"{video.path}: stopped after {done} of {video.expected_frames} frames")
        if reader.problem:
            raise Incomplete(reader.problem, done - first)
    return done - first


def bytes_a_frame(predictor: Predictor) -> int:
    """Returns how many bytes the rows of a frame have in all tables together, at most."""
    tables = len(subspaces_of_a_view(predictor)) + ("pca_multiview" in predictor.subspaces)
    # x, y, confidence and step of each keypoint, and its errors; smoothed, two variances and a mark as well.
    is_smoothed = predictor.config.predict.smooth != "none"
    cells = len(predictor.keypoint_names) * (4 + tables + 6 * is_smoothed)
    return cells * _CELL_BYTES + (2 + tables + is_smoothed) * _INDEX_BYTES


def open_pose_errors(opened: contextlib.ExitStack, predictor: Predictor, file: Path) -> list[tuple[Pca, ErrorWriter]]:
    """Opens a table beside `file` for each subspace that the predictions of one camera can be compared with alone."""
    names = predictor.keypoint_names
    return [
        (pca, opened.enter_context(ErrorWriter(beside(file, error_suffix(name)), names, keeps_rows=True)))
        for name, pca in subspaces_of_a_view(predictor).items()
    ]
