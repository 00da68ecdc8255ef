"""Bounding boxes of frames, in pixels of the frame: the network sees the part of each frame that lies in its box.

Input: CSV files in the layout of Lightning Pose, with a row for each labelled image or for each frame of a video: its
path or its number, then x, y (the top left pixel), h and w. Output: boxes (x, y, width, height) inside of frames.
"""

import csv
import dataclasses
import hashlib
import io
import math
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.config import DataConfig, project_folder
from jaxpose.data.cells import parse_number, path_cell, path_of_cell
from jaxpose.data.labels import EMPTY
from jaxpose.data.views import ENDINGS, label_file_of_view
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.text_file import read_unicode

# In the order in which they are written; h comes before w.
_COLUMNS = ("x", "y", "h", "w")
# Rows and columns of a frame that a box must show; images of one pixel are refused, too.
LEAST_PX = 2


@dataclasses.dataclass(frozen=True)
class BoxTable:
    """The rows of a file of boxes.

    Attributes:
      file: the CSV.
      names: n cells of the first column: paths of images, or numbers of frames.
      lines: n line numbers in the file, counted from 1.
      boxes_px: (n, 4) int64 (x, y, width, height), rounded to whole pixels; width 0 without a box.
    """

    file: Path
    names: tuple[str, ...]
    lines: tuple[int, ...]
    boxes_px: np.ndarray

    def inside(self, row: int, frame_size_px: tuple[int, int]) -> tuple[int, ...]:
        """Returns the part of a box that lies in its frame of (width, height), as (x, y, width, height).

        Raises:
          UserError: the row has no box, or it lies outside of the frame.
        """
        place = f"{self.file}:{self.lines[row]}"
        if not self.boxes_px[row, 2]:
            raise UserError(f"{place} has no box for {self.names[row]}")
        (box,) = clamp_boxes(self.boxes_px[row : row + 1], frame_size_px).tolist()
        if min(box[2:]) < LEAST_PX:
            raise UserError(f"{place}: {describe_outside(self.boxes_px[row], frame_size_px)}")
        return tuple(box)


def clamp_boxes(boxes_px: np.ndarray, frame_size_px: tuple[int, int]) -> np.ndarray:
    """Returns the parts of boxes (n, 4) that lie in a frame of (width, height); a side is 0 where none does."""
    low = np.clip(boxes_px[:, :2], 0, frame_size_px)
    high = np.clip(boxes_px[:, :2] + boxes_px[:, 2:], 0, frame_size_px)
    return np.concatenate([low, high - low], axis=1)


def describe_outside(box_px: np.ndarray, frame_size_px: tuple[int, int]) -> str:
    """Returns a clause about a box that has less than two pixels in a row or column of its frame."""
    x, y, width, height = box_px.tolist()
    return (
        f"the box x = {x}, y = {y}, w = {width}, h = {height} lies outside of the frame of {frame_size_px[0]} x "
        f"{frame_size_px[1]} px, or has less than {LEAST_PX} of its rows or columns in it"
    )


def box_file_of_labels(data: DataConfig, labels: str, view: str) -> Path:
    """Returns the file with the boxes of a label file.

    Beside bbox.csv, bbox_new.csv has the boxes of CollectedData_new.csv, if it exists.

    Args:
      data: names the file in `boxes`.
      labels: name of the label file, with the name of the view.
      view: of the labels, "" with only one camera.
    """
    folder, file = project_folder(data.project), PurePosixPath(data.boxes)
    stem = PurePosixPath(labels).stem
    for ending in ENDINGS:
        extra = label_file_of_view(file.with_name(f"{file.stem}{ending}{file.suffix}").as_posix(), view)
        if stem.endswith(ending) and (folder / extra).is_file():
            return folder / extra
    return folder / label_file_of_view(data.boxes, view)


def read_boxes(file: Path) -> BoxTable:
    """Reads a file of boxes. Numbers with a fraction are rounded; a row with four empty cells has no box.

    Raises:
      UserError: the file does not exist or is not such a CSV; the message names the line.
    """
    try:
        reader = csv.reader(
            io.StringIO(read_unicode(file, "CSV file", "boxes have the columns x, y, h and w"), newline="")
        )
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise UserError(f"there is no file of boxes {file}; jaxpose crop makes one") from None
    except csv.Error as error:
        raise UserError(f"{file} is not a CSV file: {error}") from None
    header = rows[0][1] if rows else []
    if sorted(header[1:]) != sorted(_COLUMNS):
        rule = "it must be a column without a name, then x, y, h and w"
        raise UserError(f"{file} has the header {','.join(header)!r}; {rule}")
    columns = [header.index(name, 1) for name in ("x", "y", "w", "h")]
    boxes = [_read_box(file, line, row, columns, len(header)) for line, row in rows[1:]]
    return BoxTable(
        file,
        tuple(path_of_cell(row[0]) for _, row in rows[1:]),
        tuple(line for line, _ in rows[1:]),
        np.array(boxes, np.int64).reshape(-1, 4),
    )


def read_image_boxes(file: Path) -> tuple[BoxTable, dict[str, int]]:
    """Returns the boxes of images, and the row of each by its path, with forward slashes.

    Raises:
      UserError: as `read_boxes`, or an image has two rows.
    """
    table, rows = read_boxes(file), dict[str, int]()
    for row, name in enumerate(table.names):
        path = PurePosixPath(name.replace("\\", "/")).as_posix()
        if path in rows:
            raise UserError(f"{file}:{table.lines[row]}: {path} has a box in line {table.lines[rows[path]]} already")
        rows[path] = row
    return table, rows


def write_boxes(file: Path, names: Sequence[str], boxes_px: np.ndarray) -> None:
    """Writes a file that `read_boxes` reads.

    Args:
      file: the CSV.
      names: n paths of images, or numbers of frames.
      boxes_px: (n, 4) whole numbers (x, y, width, height).
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["", *_COLUMNS])
    for name, (x, y, width, height) in zip(names, boxes_px.tolist(), strict=True):
        writer.writerow([path_cell(name), x, y, height, width])
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, text.getvalue().encode())


def boxes_checksum(boxes_px: Sequence[Sequence[int]] | np.ndarray, *of_videos: np.ndarray) -> str:
    """Returns the SHA-256 of boxes, hexadecimal, "" without boxes.

    Args:
      boxes_px: n boxes (x, y, width, height) of the labelled frames, in their order.
      of_videos: (m, 4) the boxes of each video of clips, in their order.
    """
    if not len(boxes_px):
        return ""
    parts = [np.asarray(part, "<i8") for part in (boxes_px, *of_videos)]
    digest = hashlib.sha256(repr([part.shape for part in parts]).encode())
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


def _read_box(file: Path, line: int, row: list[str], columns: list[int], width: int) -> list[int]:
    """Returns x, y, width and height of a row, zeros without a box.

    Raises:
      UserError: the row is no box.
    """
    if len(row) != width:
        raise UserError(f"{file}:{line}: {len(row)} cells instead of {width}")
    cells = [row[column] for column in columns]
    is_empty = [cell.lower() in EMPTY for cell in cells]
    if all(is_empty):
        return [0, 0, 0, 0]
    try:
        # With a fraction of one half, upwards: Python would round to the even number.
        box = [math.floor(parse_number(cell) + 0.5) for cell in cells]
    except (ValueError, OverflowError):
        raise UserError(
            f"{file}:{line}: x, y, w, h are {', '.join(cells)}; they must be numbers, or all empty"
        ) from None
    if min(box[2:]) < 1 or max(map(abs, box)) > 2**31:
        raise UserError(f"{file}:{line}: w and h are {cells[2]} and {cells[3]}; both must be at least 1 pixel")
    return box
