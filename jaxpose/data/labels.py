"""Reads label files with one row per frame, as Lightning Pose and DeepLabCut write them.

Input: a CSV with the header rows scorer (optional), bodyparts and coords, and a row for each frame. Output: a
`LabelTable`, with a sentence for every unusable row.
"""

import contextlib
import csv
import dataclasses
import hashlib
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.data.cells import parse_number, refuse_formula, refuse_unprintable
from jaxpose.data.label_table import EmptyImage, LabelTable, normalised, with_files
from jaxpose.errors import UserError
from jaxpose.poses import NOT_USED, NOT_VISIBLE, VISIBLE, Poses
from jaxpose.text_file import GUESS, SAVE_AS_UTF_8, read_text

# The header rows of a label file give the scorer, keypoint and coordinate of each column.

COORDS = ("x", "y", "visible")
# DeepLabCut and napari keep this column in label files that began as predictions. In other files it marks a prediction
# table, which must not be used for training by mistake.
LIKELIHOOD = "likelihood"
_LABEL_FILES = "CollectedData"
# pandas writes this for a missing name.
_UNNAMED = "Unnamed:"
# The individual that holds the unique body parts of DeepLabCut: keypoints of the frame that belong to no animal.
SINGLE = "single"


@dataclasses.dataclass(frozen=True)
class LabelHeader:
    """The columns of a label file.

    Attributes:
      scorer: the name in the scorer row, "" without such a row.
      rows: number of header rows.
      index_columns: 1 (the image's path) or 3 (labeled-data, folder, image).
      columns: {individual: {(keypoint, coord): column}}, without likelihoods; in a file of one animal, its name is "".
      width: number of columns.
      unique: the names of DeepLabCut's unique body parts, whose columns are not in `columns`.
    """

    scorer: str
    rows: int
    index_columns: int
    columns: dict[str, dict[tuple[str, str], int]]
    width: int
    unique: tuple[str, ...] = ()

    @property
    def keypoint_names(self) -> tuple[str, ...]:
        """The names in file order."""
        return tuple(dict.fromkeys(name for columns in self.columns.values() for name, _ in columns))


def read_header(file: Path, numbered_rows: list[tuple[int, list[str]]]) -> LabelHeader:
    """Returns the header of a label file.

    Args:
      file: for messages, and to recognise label files by name.
      numbered_rows: line number and cells of each row.

    Raises:
      UserError: it is not a header of labels, an individual lacks a keypoint, or a name cannot be used.
    """
    rows = [row for _, row in numbered_rows]
    number = next((number for number, row in enumerate(rows[:4]) if is_coords_row(row)), 0)
    _refuse_other_rows(file, rows, number)
    coords, parts = rows[number], rows[number - 1]
    index_columns = next((column for column, cell in enumerate(coords) if column and cell), 0)
    if index_columns not in (1, 3):
        raise UserError(
            f"{file} has {index_columns} columns before the first keypoint; it must be 1 (the image's path) or "
            "3 (labeled-data, folder, image)"
        )
    if len(parts) != len(coords):
        raise UserError(f"{file}: the bodyparts row has {len(parts)} cells, the coords row {len(coords)}")
    individuals = rows[1] if number == 3 and len(names_of(rows[1][index_columns:])) > 1 else [""] * len(coords)
    if len(individuals) != len(coords):
        raise UserError(f"{file}: the individuals row has {len(individuals)} cells, the coords row {len(coords)}")
    columns: dict[str, dict[tuple[str, str], int]] = {}
    for column in range(index_columns, len(coords)):
        name, coord, of_animal = parts[column], coords[column], columns.setdefault(named(individuals[column]), {})
        _refuse_column(file, numbered_rows[number - 1][0], column, name, coord)
        if (name, coord) in of_animal:
            raise UserError(f"{file}: keypoint {name!r} has two columns {coord!r}; names must differ")
        of_animal[name, coord] = column
    unique = take_unique(columns)
    refuse_incomplete(file, columns)
    scorer = next(filter(None, map(named, rows[0][index_columns:])), "") if number > 1 else ""
    read = {
        animal: {key: column for key, column in of_animal.items() if key[1] != LIKELIHOOD}
        for animal, of_animal in columns.items()
    }
    return LabelHeader(scorer, number + 1, index_columns, read, len(coords), unique)


def coords_of(file: Path) -> tuple[str, ...]:
    """Returns the coordinates that a label file's columns may have."""
    return (*COORDS, LIKELIHOOD) if file.name.startswith(_LABEL_FILES) else COORDS


def is_coords_row(row: Sequence[str]) -> bool:
    """Returns whether a row names coordinates, whatever its first cell."""
    # Every tool writes "coords" into the first cell, but files made by hand may not have it.
    return bool(row) and (row[0] == "coords" or {"x", "y"} <= set(row[1:]))


def named(cell: str) -> str:
    """Returns the name in a header cell, "" for a name that pandas filled in ("Unnamed: 3_level_1")."""
    return "" if cell.startswith(_UNNAMED) else cell


def names_of(individuals: Sequence[str]) -> list[str]:
    """Returns the names in an individuals row, each once."""
    return list(dict.fromkeys(filter(None, map(named, individuals))))


def take_unique(columns: dict[str, dict[tuple[str, str], int]]) -> tuple[str, ...]:
    """Removes the unique body parts from the columns {individual: {(keypoint, coord): column}}; returns their names.

    If one individual is left, the columns become those of a file of one animal.
    """
    parts = {animal: dict.fromkeys(name for name, _ in of_animal) for animal, of_animal in columns.items()}
    others = [names for animal, names in parts.items() if animal != SINGLE]
    if not others or SINGLE not in parts or parts[SINGLE].keys() == others[0].keys():
        return ()
    del columns[SINGLE]
    if len(columns) == 1:
        columns[""] = columns.pop(next(iter(columns)))
    return tuple(parts[SINGLE])


def refuse_unique(file: Path, unique: Sequence[str]) -> None:
    """Raises UserError if a command that writes label files would have to write unique body parts as well."""
    if unique:
        raise UserError(
            f"{file} has the unique body parts {', '.join(unique)} (individual {SINGLE!r}), which this command does "
            "not write: label in DeepLabCut"
        )


def refuse_incomplete(file: Path, columns: Mapping[str, Mapping[tuple[str, str], int]]) -> None:
    """Checks the columns {individual: {(keypoint, coord): column}} of labels.

    Raises:
      UserError: a keypoint lacks x or y, or an individual lacks a keypoint.
    """
    parts = {animal: list(dict.fromkeys(name for name, _ in of_animal)) for animal, of_animal in columns.items()}
    for animal, of_animal in columns.items():
        whose = f" of {animal}" if animal else ""
        for name in dict.fromkeys(name for names in parts.values() for name in names):
            absent = [coord for coord in ("x", "y") if (name, coord) not in of_animal]
            if absent:
                raise UserError(f"{file}: keypoint {name!r}{whose} has no column {absent[0]!r}")


def refuse_several(file: Path, individuals: Sequence[str]) -> None:
    """Raises UserError if an individuals row names more than one animal; one may be unnamed."""
    if len(animals := names_of(individuals)) > 1:
        raise UserError(
            f"{file} has the individuals {', '.join(animals)}: it belongs to a project with several animals; jaxpose "
            "needs labels of one animal here"
        )


def _refuse_other_rows(file: Path, rows: list[list[str]], number: int) -> None:
    """Refuses a file whose coords row is not the second, the third or, below an individuals row, the fourth."""
    if number in (1, 2) or (number == 3 and named(rows[1][0]) in ("individuals", "")):
        return
    kind = ""
    if separator := next((row[0][6:7] for row in rows[:4] if len(row) == 1 and row[0].startswith("coords")), ""):
        shown = "tabs" if separator == "\t" else f'"{separator}"'
        kind = f' (its cells are separated by {shown}; save it with ",")'
    raise UserError(
        f"{file} must begin with the header rows scorer, bodyparts, coords, or bodyparts, coords{kind}; "
        f"the coords row (coords,x,y,...) is {f'row {number + 1}' if number else 'not among the first four rows'}"
    )


def _refuse_column(file: Path, line: int, column: int, name: str, coord: str) -> None:
    if coord not in coords_of(file):
        hint = (
            f", a table of predictions? Labels with this column are read from files named {_LABEL_FILES}..."
            if coord == LIKELIHOOD
            else "; it must be x, y or visible"
        )
        raise UserError(f"{file}: column {column + 1} is {coord!r} in the coords row{hint}")
    if not name:
        raise UserError(f"{file}: column {column + 1} has no name in the bodyparts row")
    try:
        refuse_unprintable(name)
        refuse_formula(name)
    except UserError as error:
        raise UserError(f"{file}:{line}: column {column + 1}, a keypoint's name: {error}; rename it") from None


# Reads the rows of a label file in any encoding that `jaxpose.text_file` supports.


def read_rows(file: Path) -> tuple[list[tuple[int, list[str]]], str]:
    """Returns the rows of a CSV, each with the number of its first line, and the encoding from `read_text`.

    Raises:
      UserError: it is not a CSV, or is empty.
      OSError: the file cannot be read.
    """
    text, encoding = read_text(file)
    rows: list[tuple[int, list[str]]] = []
    line = 1
    try:
        reader = csv.reader(io.StringIO(text, newline=""))
        for row in reader:
            # Only spaces and tabs: str.strip would also remove line breaks and spaces of other scripts.
            rows.append((line, [cell.strip(" \t") for cell in row]))
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{file} is not a CSV file: {error}") from None
    while rows and not rows[-1][1]:
        rows.pop()
    if not rows:
        raise UserError(
            f"{file} is empty; it must have the header rows scorer, bodyparts, coords and a row for each frame"
        )
    if any("\0" in cell for _, row in rows for cell in row):
        raise UserError(f"{file} is not a CSV file: it contains NUL bytes")
    return rows, encoding


# Cells that pandas, which usually writes and reads these files, treats as empty.
EMPTY = ("", "nan", "na", "n/a", "null", "none")
# Numbers without an exponent; with fewer digits than this, they are finite.
_PLAIN, _MOST_PLAIN = re.compile(r"[0-9.+-]*").fullmatch, 300


def read_table(folder: Path, file: Path, data: DataConfig) -> LabelTable:
    """Reads a label file in Lightning Pose's layout that is a project by itself.

    Args:
      folder: the project; image names are relative to it.
      file: the CSV.
      data: defines missing labels.

    Raises:
      UserError, OSError: as `read_labels`.
    """
    table = read_csv_table(folder, file, data.missing)
    return normalised(dataclasses.replace(table, notes=(*table.notes, *table.unique_notes)), data)


def read_csv_table(folder: Path, file: Path, missing: str) -> LabelTable:
    """Reads a label file as is: the reader of several joins them and calls `normalised`.

    Args:
      folder: the project; image names are relative to it.
      file: the CSV.
      missing: as in `read_labels`.

    Raises:
      UserError, OSError: as `read_labels`.
    """
    table = with_files(folder, read_labels(file, missing))
    # The only note is about a guessed encoding.
    named = table.poses.frames if table.notes else ()
    if absent := [name for name in named if not name.isascii() and not (folder / name).is_file()]:
        raise UserError(f"{file} is not a UTF-8 CSV file, but there is no image {absent[0]!r}: {SAVE_AS_UTF_8}")
    return table


def read_labels(file: Path, missing: str) -> LabelTable:
    """Reads the rows of a label file; keeps its image names and does not look for the images.

    Args:
      file: the CSV.
      missing: how to read an empty pair of cells: "ignore" = visibility 0, "not_visible" = visibility 1.

    Raises:
      UserError: the file is not a CSV, its header rows are wrong, no row follows them, or a keypoint name cannot be
        written to a table (it has a line break, or spreadsheets would read it as a formula).
      OSError: the file cannot be read.
    """
    rows, encoding = read_rows(file)
    header = read_header(file, rows)
    if len(rows) == header.rows:
        raise UserError(f"{file} has no row after its header")
    if encoding == GUESS and not all(name.isascii() for name in header.keypoint_names):
        raise UserError(f"{file} is not a UTF-8 CSV file, so letters in its keypoints are unknown: {SAVE_AS_UTF_8}")
    found, names = AnimalRows(sorted(header.columns)), header.keypoint_names
    problems: list[str] = []
    first_line: dict[str, int] = {}
    for line, row in rows[header.rows :]:
        try:
            image = _read_image(row, header)
            if image in first_line:
                raise UserError(f"{image} is already labelled in line {first_line[image]}")
            first_line[image] = line
            animals = {
                animal: _read_keypoints(row, header.columns[animal], names, missing) for animal in found.individuals
            }
        except UserError as error:
            problems.append(f"{file}:{line}: {error}")
            continue
        found.add(image, f"{file}:{line}", animals)
    guessed = f"{file.name} is not UTF-8, and was read as {GUESS}: {SAVE_AS_UTF_8}"
    table = found.table(file, names, problems, header.scorer)
    return dataclasses.replace(table, notes=(guessed,) if encoding == GUESS else (), unique=header.unique)


class AnimalRows:
    """Collects the rows of a label table: one for each image, or one for each animal in a file of several."""

    def __init__(self, individuals: Sequence[str]) -> None:
        """Takes the names of the individuals; one is a file of one animal an image."""
        self.individuals = list(individuals)
        self.is_several = len(individuals) > 1
        self._images: list[str] = []
        self._sources: list[str] = []
        self._entries: list[int] = []
        self._identity: list[int] = []
        self._points: list[np.ndarray] = []
        self._visibility: list[np.ndarray] = []
        self._empty: list[EmptyImage] = []
        self._count = 0

    def add(self, image: str, source: str, animals: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
        """Adds an image with {individual: points (k, 2) and visibility (k,)}; animals without a position are absent."""
        present = [
            (number, *animals[name])
            for number, name in enumerate(self.individuals)
            if not self.is_several or np.isfinite(animals[name][0]).any()
        ]
        for number, points, visibility in present:
            self._images.append(image)
            self._sources.append(f"{source} ({self.individuals[number]})" if self.is_several else source)
            self._entries.append(self._count)
            self._identity.append(number if self.is_several else -1)
            self._points.append(points)
            self._visibility.append(visibility)
        self._count += 1
        if not present:
            self._empty.append(EmptyImage(image, source))

    def table(self, file: Path, names: tuple[str, ...], problems: Sequence[str], scorer: str) -> LabelTable:
        """Returns the table of keypoints with these names."""
        points = np.array(self._points, np.float64).reshape(-1, len(names), 2)
        marks = np.array(self._visibility, np.int8).reshape(-1, len(names))
        identity = np.array(self._identity, int)[:, None]
        poses = Poses.of_one_animal(
            names, tuple(self._images), points, visibility=marks, pixels="image", identity=identity,
            individuals=tuple(self.individuals) if self.is_several else (),
        )  # fmt: skip
        return LabelTable(
            file=file,
            poses=poses,
            sources=tuple(self._sources),
            problems=tuple(problems),
            scorer=scorer,
            entries=tuple(self._entries) if self.is_several else (),
            without_animals=tuple(self._empty),
        )


def labels_checksum(keypoint_names: Sequence[str], keypoints_frame_px: np.ndarray, visibility: np.ndarray) -> str:
    """Returns the hexadecimal SHA-256 of a frame's labels; it does not depend on the order of the keypoints.

    Args:
      keypoint_names: k names.
      keypoints_frame_px: (k, 2) (x, y) in pixels of the original frame; ignored for unused keypoints.
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


def _read_keypoints(
    row: list[str], columns: Mapping[tuple[str, str], int], names: Sequence[str], missing: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the keypoints (k, 2) of an animal in a row, NaN without a position, and their visibility (k,)."""
    keypoints = np.array(_read_numbers(row, columns, [(name, coord) for name in names for coord in "xy"]))
    keypoints = keypoints.reshape(-1, 2)
    is_absent = np.isnan(keypoints)
    if len(halves := np.flatnonzero(is_absent[:, 0] != is_absent[:, 1])):
        raise UserError(f"{names[halves[0]]} has only one of x and y")
    is_absent = is_absent[:, 0]
    visibility = np.where(is_absent, NOT_VISIBLE if missing == "not_visible" else NOT_USED, VISIBLE).astype(np.int8)
    marked = [index for index, name in enumerate(names) if (name, "visible") in columns]
    flags = _read_numbers(row, columns, [(names[index], "visible") for index in marked])
    for index, flag in zip(marked, flags, strict=True):
        if not math.isnan(flag):
            if flag not in (NOT_USED, NOT_VISIBLE, VISIBLE):
                name = names[index]
                raise UserError(f"visible of {name} is {row[columns[name, 'visible']]!r}; it must be 0, 1 or 2")
            # A visible point without a position has no target.
            visibility[index] = NOT_USED if flag == VISIBLE and is_absent[index] else int(flag)
    return keypoints, visibility


def _read_numbers(
    row: list[str], columns: Mapping[tuple[str, str], int], keys: Sequence[tuple[str, str]]
) -> list[float]:
    """Returns the numbers of these (keypoint, coord), NaN for empty cells."""
    cells = [row[columns[key]] for key in keys]
    # Nearly all rows have short decimal numbers only: then the cells need no look one by one.
    if _PLAIN("".join(cells)) and max(map(len, cells), default=0) < _MOST_PLAIN:
        with contextlib.suppress(ValueError):
            return [float(cell) if cell else math.nan for cell in cells]
    return [_read_number(cell, *key) for cell, key in zip(cells, keys, strict=True)]


def _read_number(cell: str, name: str, coord: str) -> float:
    if not cell or cell.lower() in EMPTY:
        return math.nan
    try:
        number = parse_number(cell)
    except ValueError:
        raise UserError(f"{coord} of {name} is {cell!r}, not a number") from None
    if not math.isfinite(number):
        raise UserError(f"{coord} of {name} is {cell!r}; it must be finite")
    return number
