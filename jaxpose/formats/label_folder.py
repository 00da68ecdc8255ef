"""Reads all label files of a folder together: CSV files in the layout of Lightning Pose, under any names."""

import csv
import dataclasses
import io
from pathlib import Path, PurePosixPath

from jaxpose.config import DataConfig
from jaxpose.data.inputs import natural_key
from jaxpose.data.label_header import coords_of
from jaxpose.data.label_table import LabelTable, join_tables, normalised
from jaxpose.data.labels import read_csv_table
from jaxpose.data.views import ENDINGS
from jaxpose.errors import UserError
from jaxpose.files import is_regular
from jaxpose.quantities import count
from jaxpose.text_file import read_text

_HEADER_CHARACTERS = 2**20
_PREFIX = "CollectedData_"


def label_files(folder: Path) -> list[Path]:
    """Returns the CSV files of a folder with a header of labels, in natural order.

    Tables of predictions have other columns. Files that end in _new or _test are evaluated after training.
    """
    files = sorted(folder.glob("*.csv"), key=lambda file: natural_key(file.name))
    return [file for file in files if is_regular(file) and not file.stem.endswith(ENDINGS) and _has_labels(file)]


def read_labels(folder: Path, data: DataConfig) -> LabelTable:
    """Reads the labels of a folder.

    Args:
      folder: the project, from which the files name their images.
      data: the meaning of an empty pair of cells.

    Raises:
      UserError: a file is not understood, or the files are those of several cameras.
    """
    files = label_files(folder)
    tables = [read_csv_table(folder, file, data.missing) for file in files]
    _refuse_views(folder, tables)
    names = tuple(dict.fromkeys(name for table in tables for name in table.poses.keypoint_names))
    notes = [
        f"{table.file.name} has no {', '.join(lacking)}: not used in its frames"
        for table in tables
        if (lacking := [name for name in names if name not in table.poses.keypoint_names])
    ]
    kind = f"{count(len(files), 'label file')}: {', '.join(file.name for file in files)}"
    scorers = list(dict.fromkeys(table.scorer for table in tables))
    unread = (f"which of {', '.join(map(repr, scorers))} labelled which image",) if len(scorers) > 1 else ()
    joined = join_tables(folder, names, tables)
    joined = dataclasses.replace(joined, kind=kind, notes=(*joined.notes, *notes), unread=unread)
    return normalised(joined, data)


def _has_labels(file: Path) -> bool:
    try:
        text = read_text(file)[0][:_HEADER_CHARACTERS]
        rows = [row for row, _ in zip(csv.reader(io.StringIO(text, newline="")), range(4), strict=False)]
    except (OSError, UserError, csv.Error):
        return False
    cells = [{cell.strip() for cell in row[1:]} - {""} for row in rows]
    return any({"x", "y"} <= coords <= set(coords_of(file)) for coords in cells)


def _refuse_views(folder: Path, tables: list[LabelTable]) -> None:
    """Refuses the files of several cameras: CollectedData_<view>.csv with images in folders <session>_<view>."""

    def view(table: LabelTable) -> str:
        name = table.file.stem.removeprefix(_PREFIX)
        folders = {PurePosixPath(image).parent.name for image in table.poses.frames}
        return name if table.file.stem != name and all(folder.endswith(f"_{name}") for folder in folders) else ""

    views = [view(table) for table in tables]
    if len(views) > 1 and all(views):
        raise UserError(
            f"the label files of {folder} look like those of several cameras; name the views: "
            f"data.views={','.join(views)}"
        )
