"""The labelled frames of a run with their predictions and errors, read from its tables."""

import dataclasses
from pathlib import Path

import numpy as np

from jaxpose.codes import UNUSED
from jaxpose.config import Config
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.error_table import read_errors
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.poses import join_poses
from jaxpose.run.evaluated import read_evaluated

# The column of errors: NaN where a keypoint is not labelled, or is marked as not visible and not counted.
_ERROR_PX = "error_px"


def read_labelled(run: Path, config: Config) -> PredictionTable | None:
    """Reads predictions[_VIEW].csv and predictions[_VIEW]_pixel_error.csv; None if the run has none yet.

    With several cameras, each view of a moment is a frame. Every frame has a set, and `measured_px` returns its errors.

    Raises:
      UserError: a table is damaged, or two of them are not of the same frames and keypoints.
    """
    names, parts, sets = tuple(config.data.keypoint_names), [], list[str]()
    for view in config.data.views or ("",):
        stem = "_".join(part for part in ("predictions", view) if part)
        files = run / f"{stem}.csv", run / f"{stem}_pixel_error.csv"
        if not all(file.is_file() for file in files):
            return None
        evaluated = read_evaluated(run)
        for file in files:
            evaluated.refuse_changed(file.name)
        predicted, measured = read_predictions(files[0]), read_errors(files[1])
        poses = predicted.poses
        if (poses.keypoint_names, poses.frames) != (tuple(measured.keypoint_names), measured.index):
            raise UserError(f"{files[0]} and {files[1].name} are not of the same frames: run jaxpose evaluate again")
        if poses.keypoint_names != names:
            raise UserError(f"{files[0]} is not of this run: its keypoints are not {', '.join(names)}")
        parts.append(dataclasses.replace(poses, columns={_ERROR_PX: measured.errors_px[:, None]}))
        sets += predicted.sets or [UNUSED] * len(poses.frames)
    return PredictionTable(run, join_poses(parts), sets=sets)


def errors_of_frames(frames: PredictionTable) -> np.ndarray:
    """Returns the errors (n, k) of the table that `read_labelled` returned."""
    return frames.poses.columns[_ERROR_PX][:, 0]


def rows_of_set(frames: PredictionTable, name: str) -> np.ndarray:
    """Returns the row numbers (m,) of a set."""
    return np.flatnonzero(np.array(frames.sets) == name)
