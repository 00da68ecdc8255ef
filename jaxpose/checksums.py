"""Reads and writes JSON and CSV files that later commands depend on: atomically, with a checksum inside.

A JSON file has the key `sha256`, a table (CSV) the column `check`. Content and checksum are in one file, so they are
replaced and copied together. A reader refuses a file that differs from what jaxpose wrote.
"""

import csv
import hashlib
import io
import json
import math
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jaxpose.errors import UserError
from jaxpose.files import NotRegularFile, read_bytes, write_atomic

_DIGEST, _CHECK = "sha256", "check"
_CHECK_DIGITS = 16
_UNSIGNED = ": another program or an earlier version of jaxpose wrote it, or it was changed by hand"


class DamagedFile(UserError):
    """A file differs from what jaxpose wrote; the message names the file and the fix."""


def json_text(value: Any) -> str:
    """Returns a value as one line of JSON, with null for NaN and the infinities, which JSON does not have."""
    return json.dumps(_finite(value), allow_nan=False)


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Writes JSON-ready content with its checksum, atomically; NaN and the infinities become null."""
    write_atomic(file, signed_json(content).encode())


def read_json(file: Path, mend: str = "", keys: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the content of a `write_json` file.

    Args:
      file: the file to read.
      mend: advice about a damaged file, for the end of the message.
      keys: that such a file has; without one, it is another file of jaxpose under this name.

    Raises:
      DamagedFile: the file cannot be read, has no checksum, has changed, or is another one.
    """
    return parse_json(_content(file, mend), file, mend, keys)


def signed_json(content: dict[str, Any]) -> str:
    """Returns the text that `write_json` writes."""
    content = _finite(content)
    return json.dumps(content | {_DIGEST: _sha256(content)}, indent=1) + "\n"


def parse_json(data: bytes, name: str | Path, mend: str = "", keys: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the content of `signed_json` text; `name` is the file's, for the message.

    Raises:
      DamagedFile: as `read_json`.
    """
    try:
        content = json.loads(data.decode(), parse_constant=_refuse_constant)
        digest = content.pop(_DIGEST, None) if isinstance(content, dict) else None
        is_same = digest == _sha256(content)
    except (ValueError, RecursionError) as error:
        reason = "its values are nested too deeply" if isinstance(error, RecursionError) else _reason(error)
        raise _damaged(name, f"is damaged: it cannot be read as JSON ({reason})", mend) from None
    if digest is None:
        raise _damaged(name, f"has no checksum (key {_DIGEST!r}){_UNSIGNED}", mend)
    if not is_same:
        raise _damaged(name, "was damaged or changed by hand: its checksum does not match its content", mend)
    _refuse_other(name, content, keys, mend)
    return content


def write_csv(file: Path, text: str) -> None:
    """Writes a table with a checksum in each row, atomically.

    Args:
      file: the file to write.
      text: the table as CSV, a header and at least one row, without the column `check`.
    """
    write_atomic(file, signed_csv(text).encode())


def read_csv(file: Path, mend: str = "", columns: Sequence[str] = ()) -> list[dict[str, str]]:
    """Returns the rows of a `write_csv` table, each {column: cell}, without the column `check`.

    Args:
      file: the file to read.
      mend: advice about a damaged file, for the end of the message.
      columns: that such a table has; without one, it is another table of jaxpose under this name.

    Raises:
      DamagedFile: the file cannot be read, has no checksums, is another one, or a row was changed, lost, added or
        moved.
    """
    return parse_csv(_content(file, mend), file, mend, columns)


def signed_csv(text: str) -> str:
    """Returns the text that `write_csv` writes.

    Raises:
      ValueError: the table has no row to carry a checksum.
    """
    header, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    if not rows:
        raise ValueError("a table without rows has no checksum")
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*header, _CHECK])
    writer.writerows([*row, check] for row, check in zip(rows, _checks(header, rows), strict=True))
    return out.getvalue()


def is_signed_csv(header: list[str]) -> bool:
    """Returns whether `write_csv` wrote a table with this header."""
    return header[-1:] == [_CHECK]


def parse_csv(data: bytes, name: str | Path, mend: str = "", columns: Sequence[str] = ()) -> list[dict[str, str]]:
    """Returns the rows of `signed_csv` text; `name` is the file's, for the message.

    Raises:
      DamagedFile: as `read_csv`.
    """
    lines, rows = [], []
    try:
        # A spreadsheet program may have put a byte order mark before the header.
        reader = csv.reader(io.StringIO(data.decode().removeprefix("\ufeff"), newline=""), strict=True)
        header = next(reader, [])
        lines.append(reader.line_num + 1)
        for row in reader:
            rows.append(row)
            lines.append(reader.line_num + 1)
    except (UnicodeDecodeError, csv.Error) as error:
        raise _damaged(name, f"is damaged: it cannot be read as CSV ({_reason(error)})", mend) from None
    if not is_signed_csv(header):
        raise _damaged(name, f"has no checksums (last column {_CHECK!r}){_UNSIGNED}", mend)
    names = header[:-1]
    checks = _checks(names, [row[:-1] for row in rows])
    wrong = [place for place, row in enumerate(rows) if row[-1:] != [checks[place]]]
    if len(wrong) == len(rows) != 1:
        raise _damaged(name, "was damaged or changed by hand: its header or its number of rows changed", mend)
    if wrong:
        place = f"{name}:{lines[wrong[0]]}:"
        raise _damaged(place, "the row was damaged, changed by hand, added or moved: its check does not match", mend)
    _refuse_other(name, names, columns, mend)
    return [dict(zip(names, row, strict=False)) for row in rows]


def _refuse_other(name: str | Path, found: Container[str], needed: Sequence[str], mend: str) -> None:
    if absent := [key for key in needed if key not in found]:
        raise _damaged(name, f"is a different jaxpose file under this name: it has no {absent[0]}", mend)


def _checks(header: list[str], rows: list[list[str]]) -> list[str]:
    """Returns the check of each row: a hash of the header, the number of rows, the row's number and its cells."""
    table = hashlib.sha256(json.dumps([header, len(rows)]).encode())
    checks = []
    for number, row in enumerate(rows):
        digest = table.copy()
        digest.update(json.dumps([number, row]).encode())
        # With a letter in front, no program reads the digits as a number.
        checks.append(f"x{digest.hexdigest()[:_CHECK_DIGITS]}")
    return checks


def _content(file: Path, mend: str) -> bytes:
    try:
        return read_bytes(file)
    except (OSError, NotRegularFile) as error:
        reason = f"{file} cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise DamagedFile(reason + _end(mend)) from None


def _reason(error: Exception) -> str:
    return "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)


def _damaged(name: str | Path, reason: str, mend: str) -> DamagedFile:
    return DamagedFile(f"{name} {reason}{_end(mend)}")


def _end(mend: str) -> str:
    return f"; {mend}" if mend else ""


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
