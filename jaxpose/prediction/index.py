"""index.csv in the folder of results: a row for each input, with what its table was made from.

By the index, a table is never mistaken for another, and a second command predicts only what is missing or changed.
"""

import csv
import dataclasses
import io
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from jaxpose.checksums import write_csv
from jaxpose.config import config_hash
from jaxpose.config.predict import AS_RUN
from jaxpose.data.cells import path_cell
from jaxpose.errors import UserError
from jaxpose.files import open_regular, sha256_of
from jaxpose.prediction.claims import Claims
from jaxpose.prediction.index_row import (
    CHECKSUM_DIGITS,
    COLUMNS,
    DAMAGED,
    DONE,
    FAILED,
    WAITING,
    Row,
    identity_of,
    parse_rows,
)
from jaxpose.prediction.predictor import Predictor
from jaxpose.prediction.table_files import edited_name, size_of
from jaxpose.run.paths import INDEX_FILE

_logger = logging.getLogger(__name__)


class PredictionIndex:
    """The index of a folder of results; other processes may write it too.

    Args:
      out: the folder of results.
      claims: those on the work in that folder.
      suffixes: of the tables beside each table of predictions: see `suffixes_beside`.
    """

    def __init__(self, out: Path, claims: Claims, suffixes: Sequence[str] = ()):
        self._out, self._file, self._claims, self._suffixes = out, out / INDEX_FILE, claims, suffixes
        self._lock = threading.Lock()
        self._read: tuple[tuple[int, int, int] | None, dict[str, Row]] = (None, {})

    def rows(self) -> dict[str, Row]:
        """Returns all rows by their table; a changed file is read again.

        Raises:
          DamagedFile: the file is not an index, or not as jaxpose wrote it.
          OSError: it cannot be read.
        """
        try:
            with open_regular(self._file) as stream:
                status = os.fstat(stream.fileno())
                look = status.st_mtime_ns, status.st_ino, status.st_size
                known, rows = self._read
                if look != known:
                    rows = parse_rows(self._file, stream.read())
                    self._read = look, rows
                return rows
        except FileNotFoundError:
            # Without the index, every table is of unknown origin.
            return {}

    def is_there(self, row: Row, overwrite: bool = False) -> bool:
        """Returns whether the table of an input exists or cannot be made; False if it has to be made.

        Args:
          row: of the input as it is now.
          overwrite: make existing tables again.

        Raises:
          UserError: the table exists, but is of other frames or of another run.
        """
        noted, table = self.rows().get(row.table), self._out / row.table
        if overwrite:
            return False
        if noted and noted.is_of_same(row):
            # If one of the tables was shortened or removed, all are made again.
            is_whole = noted.state == DONE and table.is_file() and self.bytes_of(table) == noted.table_size
            return is_whole or noted.state == DAMAGED
        if not table.is_file() or (noted and (noted.path, noted.run) == (row.path, row.run)):
            return False
        what = "other frames" if noted and noted.run == row.run else "another run, or of unknown origin"
        raise UserError(f"{table} exists already, of {what}: give --overwrite to replace it, or choose another --out")

    def set_aside_edited(self, rows: Iterable[Row]) -> None:
        """Renames the tables of inputs that are about to be predicted again if somebody changed them; reports each.

        A table is changed if its checksum is not that of the index.

        Raises:
          OSError: a table cannot be read or renamed.
        """
        rows = list(rows)

        def change(known: dict[str, Row]) -> None:
            for row in rows:
                noted, table = known.get(row.table), self._out / row.table
                if noted is None or noted.state != DONE or not table.is_file():
                    continue
                if not sha256_of(table).startswith(noted.table_sha256):
                    kept = edited_name(table)
                    os.replace(table, kept)
                    _logger.warning(f"{table} was changed since it was written: it is written anew, and kept as {kept}")

        self._write(change)

    def bytes_of(self, table: Path) -> int:
        """Returns the size of a table of predictions and of the tables beside it, as far as they exist."""
        return size_of(table, self._suffixes)

    def begin(self, rows: Iterable[Row], overwrite: bool = False) -> None:
        """Adds the inputs to predict, except those that other processes have added or finished meanwhile."""
        rows = list(rows)

        def change(known: dict[str, Row]) -> None:
            for row in rows:
                noted = known.get(row.table)
                is_noted = noted is not None and noted.is_of_same(row) and noted.state == WAITING
                if not is_noted and not self.is_there(row, overwrite):
                    known[row.table] = row

        self._write(change)

    def note(self, row: Row) -> None:
        """Records the outcome of an input; a failure only if the row is not of other frames by now."""

        def change(known: dict[str, Row]) -> None:
            noted = known.get(row.table)
            if row.state != FAILED or noted is None or noted.is_of_same(row):
                known[row.table] = row

        self._write(change)

    def _write(self, change: Callable[[dict[str, Row]], None]) -> None:
        """Applies `change` to the rows and writes them; no other process writes meanwhile."""
        while True:
            with self._lock, self._claims.waited_for("index") as claim:
                rows = dict(self.rows())
                change(rows)
                if not rows:
                    return
                text = io.StringIO()
                writer = csv.writer(text, lineterminator="\n")
                writer.writerow(COLUMNS)
                # The reason may begin with the name of a file.
                writer.writerows([path_cell(str(cell)) for cell in dataclasses.astuple(row)] for row in rows.values())
                # If this process was frozen for long meanwhile, another process may have written.
                if claim.refresh():
                    write_csv(self._file, text.getvalue())
                    return


def boxes_of(predictor: Predictor, video: Path) -> tuple[Path, ...]:
    """Returns the file of the boxes of a video, () where the run sees whole frames.

    Raises:
      UserError: it does not exist.
    """
    return (predictor.boxes.file_of(video),) if predictor.boxes else ()


def row_of(out: Path, table: Path, path: Path, sources: Sequence[Path], predictor: Predictor) -> Row:
    """Returns the row of a waiting input.

    Args:
      out: the folder of results.
      table: the table of predictions, below it.
      path: the video, or the folder of the images.
      sources: the video, or the images.
      predictor: the trained network.

    Raises:
      OSError: a file no longer exists.
      UserError: the run needs boxes, and the video has no file of boxes.
    """
    size, mtime, files = identity_of(sources, boxes_of(predictor, path))
    # Another way to turn images is like other weights: they are predicted again.
    how = predictor.config.predict.orientation
    return Row(
        path=os.path.abspath(path),
        size=size,
        mtime=mtime,
        files=files,
        model=predictor.checksum[:CHECKSUM_DIGITS] + ("" if how == AS_RUN or path in sources else f" {how}"),
        frames_announced=len(sources),
        frames_delivered=0,
        seconds=0.0,
        state=WAITING,
        reason="",
        table=table.relative_to(out).as_posix(),
        table_size=0,
        table_sha256="",
        run=config_hash(predictor.config),
        arithmetic="",
    )
