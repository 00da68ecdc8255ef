"""Rows of labels that a training refuses, with the image and the points that can still be read from them."""

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from jaxpose.config import DataConfig, project_folder
from jaxpose.data.cells import parse_number
from jaxpose.data.label_files import find_folder, find_labels
from jaxpose.data.label_table import LabelTable
from jaxpose.data.labelled_image import OUTSIDE_OF_IT, name_place
from jaxpose.data.labels import read_table
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.formats.project import read_label_table
from jaxpose.labelling.label_layout import read_cells
from jaxpose.poses import Poses, join_poses


def read_tables(data: DataConfig, labels: str = "") -> list[LabelTable]:
    """Returns the tables of all views, whose images are not opened.

    Args:
      data: the project.
      labels: a label file to read in place of the project's own, as in `jaxpose.formats.project.read_project`.

    Raises:
      UserError: as `jaxpose.formats.project.read_label_table`.
    """
    if not labels and not data.views:
        return [read_label_table(data)]
    folder = find_folder(str(project_folder(data.project)))
    return [read_table(folder, find_labels(folder, labels or data.labels, view), data) for view in data.views or ("",)]


def refused_rows(project: Project, tables: Sequence[LabelTable], names: tuple[str, ...]) -> LabelTable:
    """Returns a row for each problem of a project, in their order, with that problem.

    Points are those that have both coordinates. Where the image is unknown, its name is "". Visibility is not read.

    Args:
      project: with its problems.
      tables: the tables that it was made of.
      names: k keypoints of the result; those that only the tables have follow.
    """
    places = {source: (table, row) for table in tables for row, source in enumerate(table.sources)}
    names = tuple(dict.fromkeys([*names, *(name for table in tables for name in table.poses.keypoint_names)]))
    parts, paths, sources = [_poses("", (), np.empty((0, 2)), names).at([])], list[Path](), list[str]()
    rows_of = functools.cache(read_cells)
    for problem in project.problems:
        # A name of a file may contain what separates the place from the reason.
        ends = [match.start() for match in re.finditer(": ", problem)]
        known = next((end for end in ends if problem[:end] in places), None)
        if known is not None:
            table, row = places[problem[:known]]
            of_table, points = table.poses, table.poses.points_px[row, 0]
            place, path = problem[:known], table.paths[row]
            poses = _poses(of_table.frames[row], of_table.keypoint_names, points, names)
        else:
            place, path, poses = _from_csv(problem, project.folder, names, rows_of)
        parts.append(poses)
        paths.append(path)
        sources.append(place)
    return LabelTable(
        project.label_file, join_poses(parts), tuple(paths), sources=tuple(sources), problems=project.problems
    )


def outside_of(refused: LabelTable, row: int) -> tuple[str, ...]:
    """Returns the keypoints outside of the image of a refused row, if that is the reason."""
    outside, poses = refused.problems[row].partition(OUTSIDE_OF_IT)[2], refused.poses
    named = zip(poses.keypoint_names, poses.points_px[row, 0], strict=True)
    return tuple(name for name, point in named if name_place(name, point) in outside)


def reason_of(refused: LabelTable, row: int) -> str:
    """Returns the problem of a refused row, without its place."""
    return refused.problems[row].removeprefix(f"{refused.sources[row]}: ")


def _poses(image: str, given: Sequence[str], points: np.ndarray, names: Sequence[str]) -> Poses:
    """Returns the pose of an image from the points (k, 2) of the given keypoints."""
    return Poses.of_one_animal(given, (image,), points[None], pixels="image").with_keypoints(names)


def _from_csv(
    problem: str, folder: Path, names: tuple[str, ...], rows_of: Callable[[Path], dict[str, Any]]
) -> tuple[str, Path, Poses]:
    """Returns the place, image and pose of a problem, "FILE.csv:LINE: reason", as far as they can be read."""
    match = re.match(r"(.+?\.csv):(\d{1,9}): ", problem, re.DOTALL)
    if not match or not Path(match[1]).is_file():
        return problem.partition(": ")[0], Path(), _poses("", (), np.empty((0, 2)), names)
    file, place = Path(match[1]), f"{match[1]}:{int(match[2])}"
    index, cells = rows_of(file).get(place, ([], {}))
    image = PurePosixPath("/".join(index).replace("\\", "/")).as_posix() if any(index) else ""
    given = list(dict.fromkeys(name for name, _ in cells))
    points = np.array([[_number(cells.get((name, coord), "")) for coord in "xy"] for name in given]).reshape(-1, 2)
    points = np.where(np.isfinite(points).all(axis=1, keepdims=True), points, np.nan)
    # DeepLabCut finds an image by its name next to the label file.
    near, inside = file.parent / PurePosixPath(image).name, folder / image
    path = inside if inside.is_file() or not near.is_file() else near
    return place, path if image else Path(), _poses(image, given, points, names)


def _number(cell: str) -> float:
    try:
        return parse_number(cell)
    except (ValueError, UserError):
        return np.nan
