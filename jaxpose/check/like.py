"""Poses of another project, to which the labels of a project are compared."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.data.label_files import refuse_absent_project
from jaxpose.errors import UserError
from jaxpose.formats.project import without_config_file
from jaxpose.labelling.project_labels import frame_keypoints_px, read_project_labels


def read_poses_px(data: DataConfig, like: str, names: tuple[str, ...]) -> Mapping[str, np.ndarray]:
    """Returns {view: poses (n, k, 2) in frame pixels} of all label files of a project.

    Args:
      data: the options, as the user gave them, with which it is read.
      like: the project.
      names: k keypoints; NaN where the project lacks one.

    Raises:
      UserError: it does not exist, is the checked project, has none of the keypoints, or cannot be read.
    """
    refuse_absent_project(like, "--like")
    wanted = dataclasses.replace(data, project=like)
    if _place(wanted) == _place(data):
        raise UserError(f"--like is {like!r}, the project that is checked; its own poses are compared without --like")
    project = read_project_labels(wanted)
    of_views = {
        view: np.concatenate([frame_keypoints_px(project, table, names) for table in tables])
        for view, tables in project.tables.items()
    }
    if not any(np.isfinite(poses_px).any() for poses_px in of_views.values()):
        raise UserError(f"--like is {like!r}, which has no label of {', '.join(names)}")
    return of_views


def _place(data: DataConfig) -> Path:
    """Returns the folder or the file of a project, also of its config file."""
    return Path(without_config_file(data).project).expanduser().resolve()
