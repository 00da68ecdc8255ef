"""Prediction files with the names, headers and columns of Lightning Pose, which its tools can read.

A file of predictions has three header rows (scorer, bodyparts, coords), a row for each frame (image path or frame
number, then x, y, likelihood of each keypoint) and, for labelled frames, a last column `set`. A file of errors has one
header row and a column for each keypoint. Coordinates and errors are in frame pixels; an empty cell is NaN.
"""

import array
import contextlib
import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.codes import SETS
from jaxpose.data.cells import parse_number, path_cell, path_of_cell
from jaxpose.data.label_header import named
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.table_header import header_rows, keypoint_columns, read_header
from jaxpose.formats.lightning_pose.table_rows import write_rows
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.poses import Poses
from jaxpose.text_file import open_unicode, save_as_utf_8

# Lightning Pose's name of each kind of network in the first header row, by model.kind.
SCORERS = {
    "heatmap": "heatmap_tracker",
    "heatmap_context": "heatmap_mhcrnn_tracker",
    "regression": "regression_tracker",
}


class PredictionWriter:
    """Writes predictions row by row; a context manager. The file gets its name when it is complete.

    Args:
      file: the table.
      keypoint_names: k names.
      scorer: the name of the network, for the first row of the header.
      with_sets: whether each row names the set of its frame.
      keeps_rows: after an error, the rows stay in `<name>.partial`. Only for a folder that this process made.
    """

    def __init__(
        self,
        file: Path,
        keypoint_names: Sequence[str],
        scorer: str = "heatmap_tracker",
        *,
        with_sets: bool = False,
        keeps_rows: bool = False,
    ) -> None:
        self._file, self._keypoint_names, self._scorer, self._with_sets = file, keypoint_names, scorer, with_sets
        self._keeps_rows = keeps_rows
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> "PredictionWriter":
        self._rows = self._opened.enter_context(write_rows(self._file, self._keeps_rows))
        header = header_rows(self._scorer, self._keypoint_names)
        for cells, last in zip(header, ("set", "", ""), strict=True):
            self._rows.writerow([*cells, last] if self._with_sets else cells)
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
          keypoints_frame_px: (n, k, 2), x and y in frame pixels.
          confidence: (n, k), 0 to 1.
          sets: the set of each frame, if and only if the file has that column.

        Raises:
          ValueError: the lengths do not agree, or a set is none of train, validation, test and unused.
        """
        if (sets is not None) != self._with_sets:
            raise ValueError(f"{self._file}: sets are {sets!r}, but the file has {'a' if self._with_sets else 'no'} "
                             "column for them")  # fmt: skip
        if keypoints_frame_px.shape[-1:] != (2,):
            raise ValueError(f"{self._file}: keypoints have shape {keypoints_frame_px.shape}; it must be (n, k, 2)")
        cells = np.concatenate([keypoints_frame_px, confidence[..., None]], axis=-1)
        _write_cells(self._rows, self._file, index, cells, (len(self._keypoint_names), 3), sets)


def write_predictions(
    file: Path,
    index: Sequence[str | int],
    keypoint_names: Sequence[str],
    keypoints_frame_px: np.ndarray,
    confidence: np.ndarray,
    scorer: str = "heatmap_tracker",
    sets: Sequence[str] | None = None,
) -> None:
    """Writes a whole file of predictions; arguments and errors are those of `PredictionWriter`."""
    with PredictionWriter(file, keypoint_names, scorer, with_sets=sets is not None) as writer:
        writer.append(index, keypoints_frame_px, confidence, sets)


class ErrorWriter:
    """Writes a number for each frame and keypoint, row by row; a context manager like `PredictionWriter`."""

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
          ValueError: the lengths do not agree, or a set is none of train, validation, test and unused.
        """
        _write_cells(self._rows, self._file, index, errors, (len(self._keypoint_names),), sets)


def write_errors(
    file: Path,
    index: Sequence[str | int],
    keypoint_names: Sequence[str],
    errors: np.ndarray,
    sets: Sequence[str] | None = None,
) -> None:
    """Writes a whole file of errors; arguments and errors are those of `ErrorWriter`."""
    with ErrorWriter(file, keypoint_names, with_sets=sets is not None) as writer:
        writer.append(index, errors, sets)


def read_predictions(file: Path) -> PredictionTable:
    """Reads a file of predictions of jaxpose, Lightning Pose, DeepLabCut or the Ensemble Kalman Smoother.

    Columns of a keypoint behind x, y and likelihood, such as those of a smoothed table, are left out.

    Raises:
      UserError: the file does not exist or is not a prediction file; the message names the row.
    """
    if not file.is_file():
        raise UserError(f"{file}: there is no such prediction file")
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


def first_row(file: Path) -> int:
    """Returns the number of the first row below the header of a file that `read_predictions` reads, counted from 1."""
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
    """Returns the rows behind the header; a cell takes 8 bytes, so that a long video fits into the memory."""
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
