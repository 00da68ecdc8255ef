"""The text of a label file, which spreadsheets and shells of Windows also write in other encodings than UTF-8."""

import codecs
import csv
import io
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.files import read_bytes

# What nearly all of these programs write that do not write Unicode.
GUESS = "cp1252"
_BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_UTF_16_BYTES = 4
SAVE_AS_UTF_8 = "save it as UTF-8 (in Excel: CSV UTF-8)"


def read_text(file: Path) -> tuple[str, str]:
    """Returns the text of a file, without a byte order mark, and the encoding that appended rows must have.

    UTF-16 is known by its byte order mark, or by the zero bytes of its first two letters. What is neither that nor
    UTF-8 is read as `GUESS`.

    Raises:
      UserError: it looks like UTF-16 and is not.
      OSError: the file cannot be read.
    """
    content = read_bytes(file, most_bytes=None)
    encoding = _BYTE_ORDER_MARKS.get(content[:2], "")
    zeros = [byte == 0 for byte in content[:_UTF_16_BYTES]]
    if zeros in ([False, True] * 2, [True, False] * 2):
        encoding = "utf-16-le" if zeros[1] else "utf-16-be"
    try:
        return content.decode(encoding or "utf-8").removeprefix("\ufeff"), encoding or "utf-8"
    except UnicodeDecodeError as error:
        if encoding:
            raise UserError(f"{file} is not text in {encoding.upper()}: {error}; {SAVE_AS_UTF_8}") from None
        return content.decode(GUESS, "replace"), GUESS


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
