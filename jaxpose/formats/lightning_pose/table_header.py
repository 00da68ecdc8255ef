"""The three header rows of a table of predictions: the network, the keypoint and the coordinate of each column."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxpose.config.excerpt import excerpt
from jaxpose.data.label_header import is_coords_row, named, refuse_several
from jaxpose.errors import UserError

COORDS = ["x", "y", "likelihood"]
_ROWS = ("scorer", "bodyparts", "coords")
_MOST_SHOWN = 40  # characters of a wrong cell


def header_rows(scorer: str, keypoint_names: Sequence[str], coords: Sequence[str] = COORDS) -> list[list[str]]:
    """Returns the header: every keypoint has the columns `coords`."""
    names = [name for name in keypoint_names for _ in coords]
    return [["scorer", *[scorer] * len(names)], ["bodyparts", *names], ["coords", *list(coords) * len(keypoint_names)]]


def read_header(file: Path, lines: Iterator[list[str]]) -> tuple[list[list[str]], int]:
    """Reads the header of a table, and returns its rows scorer, bodyparts, coords, and how many rows it had.

    DeepLabCut and napari may add a row of individuals, and leave the first cells without names.

    Args:
      file: for the messages.
      lines: the rows of the table; the header's are taken.

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
    """Returns the names of the keypoints, and the numbers of the columns of x, y and likelihood of each.

    A keypoint may have more columns behind these, such as its variance, the same for all keypoints.

    Args:
      file: for the messages.
      header: the three rows.

    Raises:
      UserError: it is no such header.
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
    if coords and set(coords) <= {"", "x", "y"}:
        raise UserError(
            f"{file} is a label file, without likelihood columns; give a table of predictions, such as "
            "video_preds/<video>.csv in the folder of a run"
        )
    first = [place for place, coord in enumerate(coords) if coord == "x"]
    each = len(coords) // max(len(first), 1)
    is_regular = coords == coords[:each] * len(first) and coords[: len(COORDS)] in ([], COORDS)
    if not is_regular or len(names) != len(coords) or names != [names[at] for at in first for _ in range(each)]:
        raise UserError(f"{file}: every keypoint must have the columns x, y, likelihood in this order")
    return [names[place] for place in first], [1 + place + after for place in first for after in range(len(COORDS))]
