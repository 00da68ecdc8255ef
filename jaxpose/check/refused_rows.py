"""Rows of labels that a training refuses, with the image and the points that can still be read from them."""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.data.cells import parse_number
from jaxpose.data.label_files import find_folder, find_labels
from jaxpose.data.label_table import LabelTable, read_table
from jaxpose.data.label_text import read_rows
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.formats.project import read_label_table
from jaxpose.labelling.label_layout import read_header


@dataclasses.dataclass(frozen=True)
class RefusedRow:
    """A row that a training refuses.

    Attributes:
      place: FILE:LINE, or FILE: and the entry of the file; files of the project are named from its folder.
      reason: for the user, likewise.
      image: its name, "" if it is unknown.
      path: the image; None if it is unknown. It may not exist.
      keypoints_image_px: (k, 2) the points that have both coordinates, NaN for the others.
    """

    place: str
    reason: str
    image: str
    path: Path | None
    keypoints_image_px: np.ndarray


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


def read_tables(data: DataConfig) -> list[LabelTable]:
    """Returns the tables of all views, whose images are not opened.

    Raises:
      UserError: as `jaxpose.formats.project.read_label_table`.
    """
    if not data.views:
        return [read_label_table(data)]
    folder = find_folder(data.project)
    return [read_table(folder, find_labels(folder, data.labels, view), data) for view in data.views]


def refused_rows(project: Project, tables: Sequence[LabelTable]) -> list[RefusedRow]:
    """Returns a row for each problem of a project, in their order.

    Args:
      project: with its problems and the keypoints of the result.
      tables: the tables that it was made of.
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
            points = _in_order(table.keypoint_names, table.keypoints_image_px[row], project.keypoint_names)
            rows.append(RefusedRow(problem[:known], problem[known + 2 :], table.images[row], table.paths[row], points))
        else:
            rows.append(_from_csv(problem, project, read_csv))
    # The page names the folder once.
    inside = f"{project.folder}/"
    return [
        dataclasses.replace(row, place=row.place.removeprefix(inside), reason=row.reason.replace(inside, ""))
        for row in rows
    ]


def _from_csv(problem: str, project: Project, read_csv: Callable[[Path], _LabelCsv]) -> RefusedRow:
    """Returns the row of a problem, "FILE.csv:LINE: reason", as far as it can be read; others name no image."""
    unknown = np.full((len(project.keypoint_names), 2), np.nan)
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
    # DeepLabCut finds an image by its name beside the label file.
    beside, inside = file.parent / PurePosixPath(image).name, project.folder / image
    path = inside if inside.is_file() or not beside.is_file() else beside
    points = _in_order(tuple(found), points, project.keypoint_names)
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


def _in_order(names: Sequence[str], points: np.ndarray, wanted: Sequence[str]) -> np.ndarray:
    """Returns the points (k, 2) of the wanted keypoints, NaN for those that the names lack."""
    places = {name: place for place, name in enumerate(names)}
    return np.array([points[places[name]] if name in places else (np.nan, np.nan) for name in wanted]).reshape(-1, 2)
