"""The labelled frames of a run with their predictions and errors, read from its tables."""

import dataclasses
from pathlib import Path

import numpy as np

from jaxpose.codes import UNUSED
from jaxpose.config import Config
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.error_table import read_errors
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.run.evaluated import read_evaluated


@dataclasses.dataclass(frozen=True)
class LabelledFrames:
    """Labelled frames; with several cameras, each view of a moment is one.

    Attributes:
      images: n names, as in the label file.
      sets: (n,) names of their sets.
      keypoint_names: k names.
      predicted_px: (n, k, 2) in frame pixels.
      confidence: (n, k).
      errors_px: (n, k) NaN where a keypoint is not labelled, or is marked as not visible and not counted.
    """

    images: list[str]
    sets: np.ndarray
    keypoint_names: tuple[str, ...]
    predicted_px: np.ndarray
    confidence: np.ndarray
    errors_px: np.ndarray

    def rows(self, name: str) -> np.ndarray:
        """Returns the row numbers (m,) of a set."""
        return np.flatnonzero(self.sets == name)


def read_labelled(run: Path, config: Config) -> LabelledFrames | None:
    """Reads predictions[_VIEW].csv and predictions[_VIEW]_pixel_error.csv; None if the run has none yet.

    Raises:
      UserError: a table is damaged, or two of them are not of the same frames and keypoints.
    """
    names, parts = tuple(config.data.keypoint_names), []
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
        sets = predicted.sets or [UNUSED] * len(poses.frames)
        parts.append((poses.frames, sets, *poses.one_animal(), measured.errors_px))
    images, sets, *arrays = zip(*parts, strict=True)
    joined = [np.concatenate(of_views) for of_views in arrays]
    return LabelledFrames(sum(images, []), np.array(sum(sets, []), "<U10"), names, *joined)
