"""Writes the rows of a table as CSV; the file gets its name when it is complete."""

import contextlib
import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from jaxpose.files import open_atomic, open_new
from jaxpose.unfinished import naming_errors


def join_tables(parts: Sequence[Path], file: Path, header_rows: int) -> int:
    """Writes the rows of tables of one kind into one file, one table after the other, and returns their number.

    Args:
      parts: tables with the same header, at least one.
      file: the file to write.
      header_rows: lines of the header, which is written once.
    """
    count = 0
    with open_atomic(file, sync=False) as joined:
        for number, part in enumerate(parts):
            with part.open("rb") as stream:
                header = b"".join(stream.readline() for _ in range(header_rows))
                joined.write(b"" if number else header)
                for line in stream:
                    joined.write(line)
                    count += 1
    return count


@contextlib.contextmanager
def write_rows(file: Path, keeps_rows: bool = False) -> Iterator[Any]:
    """Gives a CSV writer; the file gets its name at the end.

    Args:
      file: the table; its folder is made.
      keeps_rows: as of `PredictionWriter`.

    Raises:
      OSError: the file cannot be written; the error names it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    if not keeps_rows:
        with open_atomic(file) as stream:
            yield csv.writer(_Utf8(stream), lineterminator="\n")
        return
    partial = file.with_name(file.name + ".partial")
    with naming_errors(file):
        with open_new(partial) as stream:
            yield csv.writer(_Utf8(stream), lineterminator="\n")
        os.replace(partial, file)


class _Utf8:
    """What `csv.writer` writes to: a binary file that gets text in UTF-8."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        self._stream.write(text.encode())
