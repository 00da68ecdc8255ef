"""The rows of a label file, in any encoding that `jaxpose.text_file` reads."""

import csv
import io
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.text_file import read_text


def read_rows(file: Path) -> tuple[list[tuple[int, list[str]]], str]:
    """Returns the rows of a CSV, each with the number of its first line, and the encoding as `read_text` returns it.

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
            # Only blanks and tabs: str.strip would also remove line breaks and spaces of other scripts.
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
