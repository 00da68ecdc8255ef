"""The form of a project's label files (.csv).

Lightning Pose has one label file, or one for each view; DeepLabCut has CollectedData_<scorer>.csv in each folder of
images. New files get the header of the existing ones, so that the same tools read them.
"""

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxpose.data.label_text import read_rows
from jaxpose.data.views import label_file_of_view
from jaxpose.text_file import read_text

IMAGES_FOLDER = "labeled-data"
_HEADER = ("scorer", "bodyparts", "coords")


@dataclasses.dataclass(frozen=True)
class LabelLayout:
    """How a label file is written.

    Attributes:
      name: of the file; with one file for the project, relative to it and without the view.
      is_per_video: each folder of images has its own file.
      header: its rows.
      index_columns: 1 (the image's path) or 3 (labeled-data, folder, image).
    """

    name: str
    is_per_video: bool
    header: tuple[tuple[str, ...], ...]
    index_columns: int

    @property
    def scorer(self) -> str:
        """The name in the scorer row, "" without this row."""
        return next(filter(None, self.header[0][self.index_columns :]), "") if len(self.header) == 3 else ""

    def columns(self) -> list[tuple[str, str]]:
        """Returns (keypoint, x or y or visible) of each column after those of the image."""
        first = self.index_columns
        return list(zip(self.header[-2][first:], self.header[-1][first:], strict=True))

    def file(self, view: str, video: str) -> str:
        """Returns the path of the label file of a video, relative to the project."""
        if self.is_per_video:
            return f"{IMAGES_FOLDER}/{video}/{self.name}"
        return label_file_of_view(self.name, view)

    def cells(self, image: str, keypoints_px: Mapping[str, np.ndarray]) -> list[str]:
        """Returns the row of an image.

        Args:
          image: labeled-data/<video>/<name>.
          keypoints_px: {keypoint: (x, y, ...)} in pixels of the image; without one or with NaN, cells are empty.
        """
        index = [image] if self.index_columns == 1 else image.split("/")
        cells = []
        for name, coord in self.columns():
            value = keypoints_px[name]["xy".index(coord)] if coord in "xy" and name in keypoints_px else np.nan
            cells.append(f"{value:.3f}" if np.isfinite(value) else "")
        return [*index, *cells]


def plain_header(scorer: str, keypoint_names: Sequence[str], index_columns: int) -> tuple[tuple[str, ...], ...]:
    """Returns the header rows of a new label file."""
    cells = [(scorer, name, coord) for name in keypoint_names for coord in "xy"]
    fill = ("",) * (index_columns - 1)
    return tuple((row, *fill, *of_row) for row, of_row in zip(_HEADER, zip(*cells, strict=True), strict=True))


def read_header(file: Path) -> tuple[tuple[tuple[str, ...], ...], int]:
    """Returns the header rows of a label file, which `read_labels` has read, and the number of its index columns."""
    rows: list[tuple[str, ...]] = []
    for row in csv.reader(io.StringIO(read_text(file)[0], newline="")):
        rows.append(tuple(cell.strip(" \t") for cell in row))
        if row[0] == "coords" or {"x", "y"} <= set(rows[-1][1:]):
            break
    index_columns = next(column for column, cell in enumerate(rows[-1]) if column and cell)
    return tuple(rows), index_columns


def read_cells(file: Path) -> dict[str, tuple[list[str], dict[tuple[str, str], str]]]:
    """Returns {FILE:LINE: (cells that name the image, {(keypoint, coordinate): cell})} of the rows of a label file."""
    layout = LabelLayout(file.name, False, *read_header(file))
    first, columns = layout.index_columns, layout.columns()
    rows = read_rows(file)[0]
    return {f"{file}:{line}": (row[:first], dict(zip(columns, row[first:], strict=False))) for line, row in rows}
