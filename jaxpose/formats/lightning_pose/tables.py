"""Reads and writes tables with Lightning Pose's names, headers and columns, so that its tools can read them.

A prediction file has three header rows (scorer, bodyparts, coords), a row for each frame (image path or frame number,
then x, y, likelihood of each keypoint) and, for labelled frames, a last column `set`. An error file has one header row
and a column for each keypoint. Coordinates and errors are in frame pixels; an empty cell is NaN.
"""

import array
import contextlib
import csv
import io
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from jaxpose.config.option import excerpt
from jaxpose.data.cells import parse_number, path_cell, path_of_cell
from jaxpose.data.label_table import LabelTable
from jaxpose.data.labels import is_coords_row, named, names_of, refuse_several
from jaxpose.errors import UserError
from jaxpose.files import naming_errors, open_atomic, open_new, write_atomic
from jaxpose.formats.prediction_table import (
    PredictionTable,
    check_individuals,
    each_individual,
    individual_columns,
    refuse_labels,
)
from jaxpose.poses import NOT_USED, SETS, VISIBLE, Poses
from jaxpose.text_file import open_unicode, save_as_utf_8

# The three header rows of a prediction table: the network, keypoint and coordinate of each column.

COORDS = ["x", "y", "likelihood"]
_ROWS = ("scorer", "bodyparts", "coords")
_MOST_SHOWN = 40  # characters of a wrong cell


def header_rows(
    scorer: str, keypoint_names: Sequence[str], coords: Sequence[str] = COORDS, individuals: Sequence[str] = ()
) -> list[list[str]]:
    """Returns the header, with columns `coords` for each keypoint, or for each of each individual."""
    each = list(itertools.product(individuals or ("",), keypoint_names, coords))
    rows = [["scorer", *[scorer] * len(each)]]
    rows += [["individuals", *(one for one, _, _ in each)]] if individuals else []
    return [*rows, ["bodyparts", *(name for _, name, _ in each)], ["coords", *(coord for *_, coord in each)]]


def read_header(file: Path, lines: Iterator[list[str]]) -> tuple[list[list[str]], int]:
    """Reads a table's header; returns its rows scorer, bodyparts, coords, and its number of rows.

    DeepLabCut and napari may add an individuals row and leave the first cells unnamed.

    Args:
      file: for the messages.
      lines: the rows of the table; consumes the header rows.

    Raises:
      UserError: there are several animals.
    """
    rows: list[list[str]] = []
    while len(rows) < 4 and not (rows and is_coords_row(rows[-1])) and (row := next(lines, None)) is not None:
        rows.append(row)
    count = len(rows)
    if count < 3 or not is_coords_row(rows[-1]) or not all(rows):
        return rows[:3], count
    if count == 4 and named(rows[1][0]) in ("individuals", ""):
        refuse_several(file, [cell for cell in rows[1][1:] if cell != "set"])
        rows = [rows[0], *rows[2:]]
    return [[named(row[0]) or name, *row[1:]] for row, name in zip(rows, _ROWS, strict=False)], count


def keypoint_columns(file: Path, header: Sequence[Sequence[str]]) -> tuple[list[str], list[int]]:
    """Returns the keypoint names, and the column numbers of x, y and likelihood of each.

    Each keypoint may have the same additional columns after these, such as its variance.

    Args:
      file: for the messages.
      header: the three rows.

    Raises:
      UserError: it is not such a header.
    """
    starts = [row[0] for row in header if row]
    if not starts:
        raise UserError(f"{file} is empty; a table of predictions has three rows of header, and a row for each frame")
    if any("\0" in start for start in starts):
        raise UserError(f"{file} is not a CSV file")
    if starts != list(_ROWS):
        found = "; ".join(excerpt(start, quoted=False, longest=_MOST_SHOWN) for start in starts)
        has_semicolons = starts[0].startswith("scorer;")
        why = "separate its cells by commas" if has_semicolons else "is it a table of predictions?"
        raise UserError(
            f"{file}: the first three rows must start with scorer, bodyparts, coords, not with {found}: {why}"
        )
    columns = len(header[0]) - (header[0][-1] == "set")
    names, coords = list(header[1][1:columns]), list(header[2][1:columns])
    refuse_labels(file, coords)
    first = [place for place, coord in enumerate(coords) if coord == "x"]
    each = len(coords) // max(len(first), 1)
    is_regular = coords == coords[:each] * len(first) and coords[: len(COORDS)] in ([], COORDS)
    if not is_regular or len(names) != len(coords) or names != [names[at] for at in first for _ in range(each)]:
        raise UserError(f"{file}: every keypoint must have the columns x, y, likelihood in this order")
    return [names[place] for place in first], [1 + place + after for place in first for after in range(len(COORDS))]


# Writes table rows as CSV; the file gets its name when complete.


def join_tables(parts: Sequence[Path], file: Path, header_rows: int) -> int:
    """Writes the rows of tables of one kind into one file, in order; returns their number.

    Args:
      parts: at least one table; all have the same header.
      file: the file to write.
      header_rows: number of header lines; the header is written once.
    """
    count = 0
    with open_atomic(file, sync=False) as joined:
        for number, part in enumerate(parts):
            with part.open("rb") as stream:
                header = b"".join(stream.readline() for _ in range(header_rows))
                joined.write(b"" if number else header)
                for line in stream:
                    joined.write(line)
                    count += 1
    return count


@contextlib.contextmanager
def write_rows(file: Path, keeps_rows: bool = False) -> Iterator[Any]:
    """Yields a CSV writer; names the file at the end.

    Args:
      file: the table; creates its folder.
      keeps_rows: as in `PredictionWriter`.

    Raises:
      OSError: the file cannot be written; the error names it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    if not keeps_rows:
        with open_atomic(file) as stream:
            yield csv.writer(_Utf8(stream), lineterminator="\n")
        return
    partial = file.with_name(file.name + ".partial")
    with naming_errors(file):
        with open_new(partial) as stream:
            yield csv.writer(_Utf8(stream), lineterminator="\n")
        os.replace(partial, file)


class _Utf8:
    """A target for `csv.writer`: a binary file that gets UTF-8."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        self._stream.write(text.encode())


# The network names in the first header row, by model.kind: those of Lightning Pose, which has no finder.
SCORERS = {
    "heatmap": "heatmap_tracker",
    "heatmap_context": "heatmap_mhcrnn_tracker",
    "multiview": "heatmap_multiview_transformer",
    "regression": "regression_tracker",
    "finder": "finder_tracker",
}


class PredictionWriter:
    """A context manager that writes predictions row by row. The file gets its name when complete.

    Args:
      file: the table.
      keypoint_names: k names.
      scorer: the network's name, for the first header row.
      with_sets: whether each row names its frame's set.
      keeps_rows: keeps the rows in `<name>.partial` after an error. Only for a folder that this process created.
      individuals: a names of the animals of a frame, if there are several; a row of the header.
    """

    def __init__(
        self,
        file: Path,
        keypoint_names: Sequence[str],
        scorer: str = "heatmap_tracker",
        *,
        with_sets: bool = False,
        keeps_rows: bool = False,
        individuals: Sequence[str] = (),
    ) -> None:
        self._file, self._keypoint_names, self._scorer, self._with_sets = file, keypoint_names, scorer, with_sets
        self._keeps_rows, self._individuals = keeps_rows, individuals
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> "PredictionWriter":
        self._rows = self._opened.enter_context(write_rows(self._file, self._keeps_rows))
        header = header_rows(self._scorer, self._keypoint_names, individuals=self._individuals)
        for number, cells in enumerate(header):
            self._rows.writerow([*cells, "" if number else "set"] if self._with_sets else cells)
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)

    def append(
        self,
        index: Sequence[str | int],
        keypoints_frame_px: np.ndarray,
        confidence: np.ndarray,
        sets: Sequence[str] | None = None,
    ) -> None:
        """Writes a row for each frame.

        Args:
          index: n image paths or frame numbers.
          keypoints_frame_px: (n, k, 2), x and y in frame pixels; (n, a, k, 2) of individuals.
          confidence: (n, k), 0 to 1; (n, a, k) of individuals.
          sets: the set of each frame, if and only if the file has that column.

        Raises:
          ValueError: the lengths do not agree, or a set is not train, validation, test or unused.
        """
        if (sets is not None) != self._with_sets:
            raise ValueError(f"{self._file}: sets are {sets!r}, but the file has {'a' if self._with_sets else 'no'} "
                             "column for them")  # fmt: skip
        if keypoints_frame_px.shape[-1:] != (2,):
            raise ValueError(f"{self._file}: keypoints have shape {keypoints_frame_px.shape}; it must be (n, k, 2)")
        cells = np.concatenate([keypoints_frame_px, confidence[..., None]], axis=-1)
        animals = (len(self._individuals),) if self._individuals else ()
        _write_cells(self._rows, self._file, index, cells, (*animals, len(self._keypoint_names), 3), sets)


def write_predictions(
    file: Path,
    index: Sequence[str | int],
    keypoint_names: Sequence[str],
    keypoints_frame_px: np.ndarray,
    confidence: np.ndarray,
    scorer: str = "heatmap_tracker",
    sets: Sequence[str] | None = None,
) -> None:
    """Writes a whole prediction file; arguments and errors as in `PredictionWriter`."""
    with PredictionWriter(file, keypoint_names, scorer, with_sets=sets is not None) as writer:
        writer.append(index, keypoints_frame_px, confidence, sets)


class ErrorWriter:
    """Writes a number for each frame and keypoint by row; a context manager like `PredictionWriter`."""

    def __init__(
        self, file: Path, keypoint_names: Sequence[str], *, with_sets: bool = False, keeps_rows: bool = False
    ) -> None:
        self._file, self._keypoint_names, self._with_sets = file, keypoint_names, with_sets
        self._keeps_rows = keeps_rows
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> "ErrorWriter":
        self._rows = self._opened.enter_context(write_rows(self._file, self._keeps_rows))
        self._rows.writerow(["", *self._keypoint_names, *(["set"] if self._with_sets else [])])
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)

    def append(self, index: Sequence[str | int], errors: np.ndarray, sets: Sequence[str] | None = None) -> None:
        """Writes a row for each frame: errors (n, k), in frame pixels, NaN as an empty cell.

        Raises:
          ValueError: the lengths do not agree, or a set is not train, validation, test or unused.
        """
        _write_cells(self._rows, self._file, index, errors, (len(self._keypoint_names),), sets)


def write_errors(
    file: Path,
    index: Sequence[str | int],
    keypoint_names: Sequence[str],
    errors: np.ndarray,
    sets: Sequence[str] | None = None,
) -> None:
    """Writes a whole error file; arguments and errors as in `ErrorWriter`."""
    with ErrorWriter(file, keypoint_names, with_sets=sets is not None) as writer:
        writer.append(index, errors, sets)


def read_predictions(file: Path) -> PredictionTable:
    """Reads a prediction file of jaxpose, Lightning Pose, DeepLabCut or the Ensemble Kalman Smoother.

    Ignores a keypoint's columns after x, y and likelihood, such as those of smoothed tables.

    Raises:
      UserError: the file does not exist or is not a prediction file; the message names the row.
    """
    if not file.is_file():
        raise UserError(f"the prediction file {file} does not exist")
    try:
        with open_unicode(file) as stream:
            lines = csv.reader(stream)
            header, row_count = read_header(file, lines)
            names, places = keypoint_columns(file, header)
            return _read_rows(file, enumerate(lines, row_count + 1), header, names, places)
    except UnicodeError as error:
        raise UserError(f"{file} is not text in UTF-8 or UTF-16 ({error}): {save_as_utf_8(file)}") from None
    except csv.Error as error:
        raise UserError(f"{file} is not a CSV file: {error}") from None


def write_individuals(file: Path, table: PredictionTable) -> None:
    """Writes a prediction file of several animals, with DeepLabCut's header row `individuals`.

    Args:
      file: the file to write.
      table: predictions with a place for each individual, see `PredictionTable.placed`.
    """
    columns, cells = individual_columns(table)
    header = [
        ["scorer", *[table.scorer] * 3 * len(columns)],
        ["individuals", *(one for one, _ in columns for _ in COORDS)],
        ["bodyparts", *(name for _, name in columns for _ in COORDS)],
        ["coords", *COORDS * len(columns)],
    ]
    with write_rows(file) as rows:
        rows.writerows(header)
        _write_cells(rows, file, table.poses.frames, cells, (len(columns), 3), None)


def read_individuals(file: Path) -> PredictionTable | None:
    """Reads a prediction file of a video with several animals in DeepLabCut's layout; returns None for another file.

    Raises:
      UserError: the rows cannot be understood; the message names the row.
    """
    if (read := _read_individuals(file)) is None:
        return None
    columns, cells, found = read
    return check_individuals(file, found.scorer, found.poses.frames, columns, cells, 5)


def read_image_predictions(file: Path) -> Poses:
    """Reads the predictions of images, of one animal or several; `frames` are the paths of the images.

    Raises:
      UserError: as `read_predictions`.
    """
    if not file.is_file() or (read := _read_individuals(file)) is None:
        return read_predictions(file).poses
    columns, cells, found = read
    individuals, names, content = each_individual(file, columns, cells)
    return Poses(names, found.poses.frames, content[..., :2], content[..., 2], individuals=individuals)


def _read_individuals(file: Path) -> tuple[list[tuple[str, str]], np.ndarray, PredictionTable] | None:
    """Returns the m pairs (individual, keypoint), the cells (n, m, 3) and the rows; None for another layout."""
    try:
        with open_unicode(file) as stream:
            lines = csv.reader(stream)
            header = [row for _, row in zip(range(4), lines, strict=False)]
            if len(header) < 4 or not all(header) or not is_coords_row(header[3]) or header[1][0] != "individuals":
                return None
            if len(dict.fromkeys(filter(None, map(named, header[1][1:])))) < 2:
                return None
            refuse_labels(file, header[3][1:])
            columns = list(dict.fromkeys(zip(header[1][1:], header[2][1:], strict=False)))
            if header[3][1:] != COORDS * len(columns) or len(header[1]) != len(header[3]):
                raise UserError(f"{file}: every keypoint must have the columns x, y, likelihood in this order")
            places = list(range(1, len(header[3])))
            flat = [f"{one} {part}" for one, part in columns]
            found = _read_rows(file, enumerate(lines, 5), [header[0], *header[2:]], flat, places)
    except UnicodeError as error:
        raise UserError(f"{file} is not text in UTF-8 or UTF-16 ({error}): {save_as_utf_8(file)}") from None
    except csv.Error as error:
        raise UserError(f"{file} is not a CSV file: {error}") from None
    points_px, confidence = found.poses.one_animal()
    return columns, np.concatenate([points_px, confidence[..., None]], axis=2), found


def only_individual(file: Path) -> str:
    """Returns the name in a readable prediction file of one individual, which its reader leaves out; "" without one."""
    names = individuals_in(file)
    return names[0] if len(names) == 1 else ""


def individuals_in(file: Path) -> tuple[str, ...]:
    """Returns the names in the individuals row of a prediction file, () without one."""
    with open_unicode(file) as stream:
        header = [row for _, row in zip(range(4), csv.reader(stream), strict=False)]
    if len(header) < 4 or not all(header) or header[1][0] != "individuals":
        return ()
    return tuple(names_of(header[1][1:]))


def first_row(file: Path) -> int:
    """Returns the number, from 1, of the first row below the header of a file for `read_predictions`."""
    with open_unicode(file) as stream:
        return read_header(file, csv.reader(stream))[1] + 1


def _write_cells(
    rows: Any,
    file: Path,
    index: Sequence[str | int],
    cells: np.ndarray,
    row_shape: tuple[int, ...],
    sets: Sequence[str] | None,
) -> None:
    if cells.shape != (len(index), *row_shape) or (sets is not None and len(sets) != len(index)):
        raise ValueError(f"{file}: values of shape {cells.shape} and {'no' if sets is None else len(sets)} sets do not "
                         f"fit {len(index)} frames with {row_shape[0]} keypoints")  # fmt: skip
    wrong = sorted(set(sets or ()) - set(SETS))
    if wrong:
        raise ValueError(f"{file}: {wrong[0]!r} is not a set; the sets are {', '.join(SETS)}")
    numbers = cells.astype(np.float64).reshape(len(index), math.prod(row_shape)).tolist()
    for position, (name, row) in enumerate(zip(index, numbers, strict=True)):
        last = [] if sets is None else [sets[position]]
        rows.writerow([path_cell(str(name)), *("" if math.isnan(value) else value for value in row), *last])


def _read_rows(
    file: Path, lines: Iterable[tuple[int, list[str]]], header: list[list[str]], names: list[str], places: list[int]
) -> PredictionTable:
    """Returns the rows after the header; each cell takes 8 bytes, so that a long video fits into memory."""
    index: list[str] = []
    sets: list[str] | None = [] if header[0][-1] == "set" else None
    values = array.array("d")
    for number, row in lines:
        if len(row) != len(header[0]):
            raise UserError(f"{file}, row {number}: {len(row)} cells instead of {len(header[0])}")
        for place in places:
            try:
                values.append(parse_number(row[place]) if row[place] else math.nan)
            except ValueError as error:
                column = f"{header[2][place]} of {header[1][place]}"
                raise UserError(f"{file}, row {number}, {column}: {error}; correct the cell, or empty it") from None
        index.append(path_of_cell(row[0]))
        if sets is not None:
            sets.append(row[-1])
    cells = np.frombuffer(values) if values else np.empty(0)
    cells = cells.reshape(len(index), len(names), 3)
    poses = Poses.of_one_animal(names, index, cells[..., :2], cells[..., 2])
    return PredictionTable(file, poses, named(header[0][1]) if names else "", sets)


# Writes tables of smoothed predictions: a prediction table's header, with more columns for each keypoint.
#
# Columns are named as in the Ensemble Kalman Smoother's tables, plus `filled`, which is 1 where no prediction was
# usable.

# Number of rows converted to text at once.
_ROWS_AT_ONCE = 8192


def write_smoothed(file: Path, poses: Poses, scorer: str) -> None:
    """Writes a table of smoothed predictions; the file gets its name when complete.

    Args:
      file: the file to write; its folder is created.
      poses: x, y and confidence, then their columns; NaN becomes an empty cell.
      scorer: the first row of the header.

    Raises:
      OSError: the file cannot be written.
    """
    points_px, confidence = poses.one_animal()
    more = {name: values[:, 0] for name, values in poses.columns.items()}
    columns = {"x": points_px[..., 0], "y": points_px[..., 1], "likelihood": confidence, **more}
    with write_rows(file) as rows:
        rows.writerows(header_rows(scorer, poses.keypoint_names, list(columns)))
        for first in range(0, len(poses.frames), _ROWS_AT_ONCE):
            names = poses.frames[first : first + _ROWS_AT_ONCE]
            parts = [_cells(values[first : first + _ROWS_AT_ONCE]) for values in columns.values()]
            cells = np.stack(parts, axis=-1).reshape(len(names), -1).tolist()
            rows.writerows([path_cell(str(name)), *row] for name, row in zip(names, cells, strict=True))


def _cells(values: np.ndarray) -> np.ndarray:
    # Python numbers are written with enough digits to restore the same number.
    cells = values.astype(object)
    cells[np.isnan(values.astype(np.float64))] = ""
    return cells


# Reads error files: one header row, then a number for each frame and keypoint, as written by `ErrorWriter`.


class ErrorTable(NamedTuple):
    """The content of an error file: n frames, k keypoints."""

    index: list[str]
    """Image path, or frame number as text."""
    keypoint_names: list[str]
    errors_px: np.ndarray
    """(n, k) float64, NaN where the cell is empty."""
    sets: list[str] | None
    """The set of each frame, if the file has that column."""


def read_errors(file: Path) -> ErrorTable:
    """Reads an error file of jaxpose or Lightning Pose.

    Raises:
      UserError: the file does not exist or is not such a file; the message names the line.
    """
    if not file.is_file():
        raise UserError(f"the error file {file} does not exist")
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            header, *rows = csv.reader(stream) if file.stat().st_size else [[]]
    except UnicodeDecodeError:
        raise UserError(f"{file} is not a UTF-8 CSV file") from None
    except csv.Error as error:
        raise UserError(f"{file} is not a CSV file: {error}") from None
    has_sets = header[-1:] == ["set"]
    names = header[1 : len(header) - has_sets]
    if header[:1] != [""] or not names or len(set(names)) < len(names):
        raise UserError(f"{file}: the first row must be an empty cell, then the name of each keypoint once")
    errors = np.empty((len(rows), len(names)))
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise UserError(f"{file}:{number + 2}: {len(row)} cells instead of {len(header)}")
        try:
            errors[number] = [parse_number(cell) if cell else math.nan for cell in row[1 : 1 + len(names)]]
        except ValueError as error:
            raise UserError(f"{file}:{number + 2}: {error}") from None
    sets = [row[-1] for row in rows] if has_sets else None
    return ErrorTable([path_of_cell(row[0]) for row in rows], names, errors, sets)


# Writes a label file in Lightning Pose's layout; `jaxpose.data.labels` reads it.


def write_labels(file: Path, labels: LabelTable) -> None:
    """Writes a row for each image, with columns `visible` only if positions do not show the visibility."""
    (points_px, visibility), keypoint_names = labels.poses.labels(), labels.poses.keypoint_names
    told = np.where(np.isfinite(points_px[..., 0]), VISIBLE, NOT_USED)
    coords = ["x", "y"] if np.array_equal(told, visibility) else ["x", "y", "visible"]
    names = [name for name in keypoint_names for _ in coords]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["scorer", *[labels.scorer] * len(names)])
    rows.writerow(["bodyparts", *names])
    rows.writerow(["coords", *coords * len(keypoint_names)])
    for image, points, marks in zip(labels.poses.frames, points_px.tolist(), visibility.tolist(), strict=True):
        cells = [[x, y, mark][: len(coords)] for (x, y), mark in zip(points, marks, strict=True)]
        rows.writerow([image, *("" if cell != cell else cell for of_keypoint in cells for cell in of_keypoint)])
    write_atomic(file, text.getvalue().encode())
