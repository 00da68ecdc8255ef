"""Label files: keypoints by row, as Lightning Pose and DeepLabCut write them.

Input: a CSV with the header rows scorer (optional), bodyparts and coords, and a row for each frame. Output: a
`LabelTable`, with a sentence for every row that cannot be used.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.codes import NOT_USED, NOT_VISIBLE, VISIBLE
from jaxpose.config import DataConfig
from jaxpose.data.cells import parse_number, refuse_unprintable
from jaxpose.data.label_header import LabelHeader, read_header
from jaxpose.data.label_table import LabelTable, normalised, with_files
from jaxpose.data.label_text import read_rows
from jaxpose.errors import UserError
from jaxpose.poses import Poses
from jaxpose.text_file import GUESS, SAVE_AS_UTF_8

# Cells that count as empty in pandas, which usually writes and reads these files.
EMPTY = ("", "nan", "na", "n/a", "null", "none")


def read_table(folder: Path, file: Path, data: DataConfig) -> LabelTable:
    """Reads a label file, in the layout of Lightning Pose, that is a project of its own.

    Args:
      folder: the project, from which the file names its images.
      file: the CSV.
      data: what counts as a missing label.

    Raises:
      UserError, OSError: as `read_labels`.
    """
    return normalised(read_csv_table(folder, file, data.missing), data)


def read_csv_table(folder: Path, file: Path, missing: str) -> LabelTable:
    """Reads a label file as it is: the reader of several joins them and calls `normalised`.

    Args:
      folder: the project, from which the file names its images.
      file: the CSV.
      missing: as in `read_labels`.

    Raises:
      UserError, OSError: as `read_labels`.
    """
    table = with_files(folder, read_labels(file, missing))
    # The only note is about a guessed encoding.
    named = table.poses.frames if table.notes else ()
    if absent := [name for name in named if not name.isascii() and not (folder / name).is_file()]:
        raise UserError(f"{file} is not a UTF-8 CSV file, and there is no image {absent[0]!r}: {SAVE_AS_UTF_8}")
    return table


def read_labels(file: Path, missing: str) -> LabelTable:
    """Reads the rows of a label file, with images named as it has them, and looks for no image.

    Args:
      file: the CSV.
      missing: the meaning of an empty pair of cells: "ignore" = visibility 0, "not_visible" = visibility 1.

    Raises:
      UserError: the file is not a CSV, its header rows are wrong, no row follows them, or the name of a keypoint
        cannot be written to a table (it has a line break, or spreadsheets would read it as a formula).
      OSError: the file cannot be read.
    """
    rows, encoding = read_rows(file)
    header = read_header(file, rows)
    if encoding == GUESS and not all(name.isascii() for name in header.keypoint_names):
        raise UserError(f"{file} is not a UTF-8 CSV file, so letters in its keypoints are unknown: {SAVE_AS_UTF_8}")
    images: list[str] = []
    sources: list[str] = []
    keypoints: list[np.ndarray] = []
    visibility: list[np.ndarray] = []
    problems: list[str] = []
    first_line: dict[str, int] = {}
    for line, row in rows[header.rows :]:
        try:
            image = _read_image(row, header)
            if image in first_line:
                raise UserError(f"{image} is labelled in line {first_line[image]} already")
            first_line[image] = line
            row_keypoints, row_visibility = _read_keypoints(row, header, missing)
        except UserError as error:
            problems.append(f"{file}:{line}: {error}")
            continue
        images.append(image)
        sources.append(f"{file}:{line}")
        keypoints.append(row_keypoints)
        visibility.append(row_visibility)
    names = header.keypoint_names
    points = np.array(keypoints, np.float64).reshape(-1, len(names), 2)
    marks = np.array(visibility, np.int8).reshape(-1, len(names))
    guessed = f"{file.name} is not UTF-8, and was read as {GUESS}: {SAVE_AS_UTF_8}"
    return LabelTable(
        file=file,
        poses=Poses.of_one_animal(names, tuple(images), points, visibility=marks, pixels="image"),
        sources=tuple(sources),
        problems=tuple(problems),
        notes=(guessed,) if encoding == GUESS else (),
        scorer=header.scorer,
    )


def labels_checksum(keypoint_names: Sequence[str], keypoints_frame_px: np.ndarray, visibility: np.ndarray) -> str:
    """Returns the SHA-256 of the labels of a frame, hexadecimal; it does not depend on the order of the keypoints.

    Args:
      keypoint_names: k names.
      keypoints_frame_px: (k, 2) (x, y) in pixels of the original frame; ignored for keypoints that are not used.
      visibility: (k,): 0 not used, 1 not visible, 2 visible.
    """
    cells = []
    for name, (x, y), use in zip(keypoint_names, keypoints_frame_px.tolist(), visibility.tolist(), strict=True):
        # The sum turns -0.0 into 0.0.
        cells.append([name, use, x + 0.0, y + 0.0] if use != NOT_USED and math.isfinite(x) else [name, use])
    return hashlib.sha256(json.dumps(sorted(cells)).encode()).hexdigest()


def _read_image(row: list[str], header: LabelHeader) -> str:
    if not any(row):
        raise UserError("the row is empty")
    if len(row) < header.width or any(row[header.width :]):
        raise UserError(f"the row has {len(row)} cells, the header {header.width}")
    parts = row[: header.index_columns]
    if not all(parts):
        raise UserError("the image's name is empty")
    for part in parts:
        refuse_unprintable(part)
    return PurePosixPath("/".join(parts).replace("\\", "/")).as_posix()


def _read_keypoints(row: list[str], header: LabelHeader, missing: str) -> tuple[np.ndarray, np.ndarray]:
    names = header.keypoint_names
    keypoints = np.full((len(names), 2), np.nan)
    visibility = np.zeros(len(names), np.int8)
    for index, name in enumerate(names):
        x, y = (_read_number(row[header.columns[name, coord]], name, coord) for coord in ("x", "y"))
        if math.isnan(x) != math.isnan(y):
            raise UserError(f"{name} has only one of x and y")
        keypoints[index] = x, y
        absent = NOT_VISIBLE if missing == "not_visible" else NOT_USED
        visibility[index] = absent if math.isnan(x) else VISIBLE
        column = header.columns.get((name, "visible"))
        flag = math.nan if column is None else _read_number(row[column], name, "visible")
        if not math.isnan(flag):
            if flag not in (NOT_USED, NOT_VISIBLE, VISIBLE):
                raise UserError(f"visible of {name} is {row[header.columns[name, 'visible']]!r}; it must be 0, 1 or 2")
            # A point that is visible but has no position has no target.
            visibility[index] = NOT_USED if flag == VISIBLE and math.isnan(x) else int(flag)
    return keypoints, visibility


def _read_number(cell: str, name: str, coord: str) -> float:
    if cell.lower() in EMPTY:
        return math.nan
    try:
        number = parse_number(cell)
    except ValueError:
        raise UserError(f"{coord} of {name} is {cell!r}, not a number") from None
    if not math.isfinite(number):
        raise UserError(f"{coord} of {name} is {cell!r}; it must be finite")
    return number
