"""Rows of labels that a training refuses, with the image and the points that can still be read from them."""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.config import DataConfig, project_folder
from jaxpose.data.cells import parse_number
from jaxpose.data.label_files import find_folder, find_labels
from jaxpose.data.label_table import LabelTable, read_table
from jaxpose.data.label_text import read_rows
from jaxpose.data.labelled_image import OUTSIDE_OF_IT, name_place
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.formats.project import read_label_table
from jaxpose.labelling.label_layout import read_header


@dataclasses.dataclass(frozen=True)
class RefusedRow:
    """A row that a training refuses.

    Attributes:
      place: FILE:LINE, or FILE: and the entry of the file.
      reason: for the user.
      image: its name, "" if it is unknown.
      path: the image; None if it is unknown. It may not exist.
      keypoints_image_px: (k, 2) the points that have both coordinates, NaN for the others.
      outside: the keypoints outside of the image, if that is the reason.
    """

    place: str
    reason: str
    image: str
    path: Path | None
    keypoints_image_px: np.ndarray
    outside: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _LabelCsv:
    """A label file, read once for all its refused rows.

    Attributes:
      index_columns: 1 (the image's path) or 3 (labeled-data, folder, image).
      columns: (keypoint, coordinate) of the others, each once.
      cells: {line in which a row begins, counted from 1: its cells}.
    """

    index_columns: int
    columns: list[tuple[str, str]]
    cells: dict[int, list[str]]


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


def refused_rows(project: Project, tables: Sequence[LabelTable], names: tuple[str, ...]) -> list[RefusedRow]:
    """Returns a row for each problem of a project, in their order.

    Args:
      project: with its problems.
      tables: the tables that it was made of.
      names: k keypoints of the result.
    """
    places = {source: (table, row) for table in tables for row, source in enumerate(table.sources)}
    rows: list[RefusedRow] = []
    read_csv = functools.cache(_read_csv)
    for problem in project.problems:
        # A name of a file may contain what separates the place from the reason.
        ends = [match.start() for match in re.finditer(": ", problem)]
        known = next((end for end in ends if problem[:end] in places), None)
        if known is not None:
            table, row = places[problem[:known]]
            points, reason = table.keypoints_image_px[row], problem[known + 2 :]
            places_outside = reason.partition(OUTSIDE_OF_IT)[2]
            named = zip(table.keypoint_names, points, strict=True)
            outside = tuple(name for name, point in named if name_place(name, point) in places_outside)
            of_image = table.images[row], table.paths[row], in_order(table.keypoint_names, points, names)
            rows.append(RefusedRow(problem[:known], reason, *of_image, outside))
        else:
            rows.append(_from_csv(problem, project.folder, names, read_csv))
    return rows


def _from_csv(problem: str, folder: Path, names: tuple[str, ...], read_csv: Callable[[Path], _LabelCsv]) -> RefusedRow:
    """Returns the row of a problem, "FILE.csv:LINE: reason", as far as it can be read; others name no image."""
    unknown = np.full((len(names), 2), np.nan)
    match = re.match(r"(.+?\.csv):(\d{1,9}): (.*)", problem, re.DOTALL)
    if not match or not Path(match[1]).is_file():
        place, _, reason = problem.partition(": ")
        return RefusedRow(place, reason, "", None, unknown)
    file, line, reason = Path(match[1]), int(match[2]), match[3]
    table = read_csv(file)
    cells = table.cells.get(line, [])
    index, values = cells[: table.index_columns], cells[table.index_columns :]
    image = PurePosixPath("/".join(index).replace("\\", "/")).as_posix()
    found = {name: np.full(2, np.nan) for name, _ in table.columns}
    for (name, coord), cell in zip(table.columns, values, strict=False):
        if coord in "xy":
            found[name]["xy".index(coord)] = _number(cell)
    points = np.array(list(found.values())).reshape(-1, 2)
    points[~np.isfinite(points).all(axis=1)] = np.nan
    # DeepLabCut finds an image by its name next to the label file.
    near, inside = file.parent / PurePosixPath(image).name, folder / image
    path = inside if inside.is_file() or not near.is_file() else near
    points = in_order(tuple(found), points, names)
    return RefusedRow(f"{file}:{line}", reason, image, path if any(index) else None, points)


def _read_csv(file: Path) -> _LabelCsv:
    header, index_columns = read_header(file)
    columns = list(dict.fromkeys(zip(header[-2][index_columns:], header[-1][index_columns:], strict=True)))
    return _LabelCsv(index_columns, columns, dict(read_rows(file)[0]))


def _number(cell: str) -> float:
    try:
        return parse_number(cell)
    except (ValueError, UserError):
        return np.nan


def in_order(names: Sequence[str], points: np.ndarray, wanted: Sequence[str]) -> np.ndarray:
    """Returns the points (..., k, 2) of the wanted keypoints, NaN for those that the names lack."""
    found = np.full((*points.shape[:-2], len(wanted), 2), np.nan)
    for place, name in enumerate(wanted):
        if name in names:
            found[..., place, :] = points[..., names.index(name), :]
    return found
