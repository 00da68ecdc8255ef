"""The header rows of a label file: the scorer, the keypoint and the coordinate of each column."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxpose.data.cells import refuse_formula, refuse_unprintable
from jaxpose.errors import UserError

COORDS = ("x", "y", "visible")
# DeepLabCut and napari keep this column in label files that began as predictions. In other files it marks a table of
# predictions, which must not be trained on by mistake.
LIKELIHOOD = "likelihood"
_LABEL_FILES = "CollectedData"
# What pandas writes in place of a name that it does not have.
_UNNAMED = "Unnamed:"


@dataclasses.dataclass(frozen=True)
class LabelHeader:
    """The columns of a label file.

    Attributes:
      scorer: the name in the scorer row, "" without this row.
      rows: number of header rows.
      index_columns: 1 (the image's path) or 3 (labeled-data, folder, image).
      columns: {(keypoint, coord): column}; a likelihood is not among them.
      width: number of columns.
    """

    scorer: str
    rows: int
    index_columns: int
    columns: dict[tuple[str, str], int]
    width: int

    @property
    def keypoint_names(self) -> tuple[str, ...]:
        """The names in the file's order."""
        return tuple(dict.fromkeys(name for name, _ in self.columns))


def read_header(file: Path, numbered_rows: list[tuple[int, list[str]]]) -> LabelHeader:
    """Returns the header of a label file.

    Args:
      file: for messages, and to know a label file by its name.
      numbered_rows: the line and the cells of each row.

    Raises:
      UserError: it is no header of labels of one animal, or the name of a keypoint cannot be used.
    """
    rows = [row for _, row in numbered_rows]
    number = next((number for number, row in enumerate(rows[:4]) if _is_coords_row(row)), 0)
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
    if number == 3:
        refuse_several(file, rows[1][index_columns:])
    columns: dict[tuple[str, str], int] = {}
    for column in range(index_columns, len(coords)):
        name, coord = parts[column], coords[column]
        _refuse_column(file, numbered_rows[number - 1][0], column, name, coord)
        if (name, coord) in columns:
            raise UserError(f"{file}: keypoint {name!r} has two columns {coord!r}; names must differ")
        columns[name, coord] = column
    for name in dict.fromkeys(name for name, _ in columns):
        absent = [coord for coord in ("x", "y") if (name, coord) not in columns]
        if absent:
            raise UserError(f"{file}: keypoint {name!r} has no column {absent[0]!r}")
    if len(rows) == number + 1:
        raise UserError(f"{file} has no row after its header")
    scorer = next(filter(None, map(named, rows[0][index_columns:])), "") if number > 1 else ""
    read = {key: column for key, column in columns.items() if key[1] != LIKELIHOOD}
    return LabelHeader(scorer, number + 1, index_columns, read, len(coords))


def named(cell: str) -> str:
    """Returns the name in a cell of a header, "" for one that pandas filled in ("Unnamed: 3_level_1")."""
    return "" if cell.startswith(_UNNAMED) else cell


def refuse_several(file: Path, individuals: Sequence[str]) -> None:
    """Raises UserError if the cells of a row of individuals name more than one animal; one may have no name."""
    if len(animals := dict.fromkeys(filter(None, map(named, individuals)))) > 1:
        raise UserError(
            f"{file} has the individuals {', '.join(animals)}: it is of a project with several animals; jaxpose needs "
            "one of one animal"
        )


def _refuse_other_rows(file: Path, rows: list[list[str]], number: int) -> None:
    """Refuses a file whose coords row is not its second, its third or, below a row of individuals, its fourth."""
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
    allowed = (*COORDS, LIKELIHOOD) if file.name.startswith(_LABEL_FILES) else COORDS
    if coord not in allowed:
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


def _is_coords_row(row: list[str]) -> bool:
    # The first cell is "coords" in files of every tool, but not in every file made by hand.
    return bool(row) and (row[0] == "coords" or {"x", "y"} <= set(row[1:]))
