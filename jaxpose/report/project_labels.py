"""The labels and images of a run's project, matched to the rows of the run's tables."""

from pathlib import Path

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.data.dataset import match_keypoints
from jaxpose.data.image_file import decode_image
from jaxpose.data.project import Project
from jaxpose.data.skeleton import edges_given
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.formats.project import read_project


def read_labels(data: DataConfig, project: Project | None) -> Project:
    """Returns the project of a run, with the run's keypoints.

    Args:
      data: of the run.
      project: the run's, if the caller has read it.

    Raises:
      UserError: the project does not exist any more, or cannot be used.
    """
    if not data.project:
        raise UserError("the run names no project, so there are no pictures")
    if not Path(data.project).exists():
        raise UserError(f"the project {data.project} is not there, so there are no pictures")
    return match_keypoints(project or read_project(data), data.keypoint_names)


def rows_in_project(project: Project, frames: PredictionTable) -> np.ndarray:
    """Returns the row (n,) of each frame of a run in its project, -1 for frames that it lacks."""
    places = {image: row for row, image in enumerate(project.poses.frames)}
    return np.array([places.get(image, -1) for image in frames.poses.frames], int)


def labelled_frame_px(project: Project, frames: PredictionTable) -> np.ndarray:
    """Returns the labels (n, k, 2) of the frames of a run in frame pixels, NaN without a label."""
    rows = rows_in_project(project, frames)
    return np.where((rows >= 0)[:, None, None], project.labelled_frame_px()[rows], np.nan)


def read_image(project: Project, row: int, white: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the image (h, w, 3) of a row of a project, and the frame pixel (2,) of its first pixel.

    Args:
      project: where it is.
      row: of the project.
      white: `data.white` of the run.

    Raises:
      UserError: it does not decode.
      OSError: it cannot be read.
    """
    content = read_bytes(project.paths[row], most_bytes=None)
    image = decode_image(content, project.pixel_rule(white), is_known=True)
    return image, np.array((project.crop_px(row) or (0, 0))[:2], float)


def edges_of_run(data: DataConfig) -> tuple[tuple[int, int], ...]:
    """Returns the edges of a run's skeleton, pairs of numbers of keypoints."""
    names = data.keypoint_names
    return tuple((names.index(a), names.index(b)) for a, b in edges_given("data.skeleton", data.skeleton, names))
