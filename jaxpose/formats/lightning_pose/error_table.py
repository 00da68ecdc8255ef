"""Reads files of errors: one header row, then a number for each frame and keypoint, as `tables.ErrorWriter` writes."""

import csv
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxpose.data.cells import parse_number, path_of_cell
from jaxpose.errors import UserError


class ErrorTable(NamedTuple):
    """The content of a file of errors: n frames, k keypoints."""

    index: list[str]
    """Image path, or frame number as text."""
    keypoint_names: list[str]
    errors_px: np.ndarray
    """(n, k) float64, NaN where the cell is empty."""
    sets: list[str] | None
    """The set of each frame, if the file has that column."""


def read_errors(file: Path) -> ErrorTable:
    """Reads a file of errors of jaxpose or Lightning Pose.

    Raises:
      UserError: the file does not exist or is not such a file; the message names the line.
    """
    if not file.is_file():
        raise UserError(f"{file}: there is no such file of errors")
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
