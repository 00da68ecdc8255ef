"""The tables of videos in a run folder, or in another folder of results, whose prediction ended well."""

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.files import read_bytes, sha256_of
from jaxpose.prediction.index_row import DONE, Row, parse_rows
from jaxpose.run.paths import INDEX_FILE, VIDEO_TABLES_FOLDER


def finished_tables(run: Path) -> dict[Path, Path]:
    """Returns {table: its video, which may be of another machine}, all undamaged.

    Raises:
      UserError: there is none, or one is damaged.
      DamagedFile: the index is damaged.
    """
    rows = [row for row in _read_rows(run) if row.state == DONE and row.table.startswith(f"{VIDEO_TABLES_FOLDER}/")]
    if not rows:
        raise UserError(
            f"{run} has no finished predictions of videos; make them with "
            f"jaxpose predict --run {shlex.quote(str(run))} VIDEOS"
        )
    return {_undamaged(run, row): Path(row.path) for row in rows}


def find_table(run: Path, video: Path) -> Path:
    """Returns the whole, undamaged table of a video in a run folder.

    Raises:
      UserError: there is none; the message has the command that makes it.
      DamagedFile: the index is damaged.
    """
    command = f"jaxpose predict --run {shlex.quote(str(run))} {shlex.quote(str(video))}"
    of_name = [row for row in _read_rows(run) if Path(row.path).name == video.name and row.table.endswith(".csv")]
    done = [row for row in of_name if row.state == DONE and row.size == video.stat().st_size]
    if not done:
        which = " of this size" if of_name else ""
        raise UserError(f"{run} has no finished predictions of {video}{which}; make them with {command}")
    # The same file first: folders of several recordings may hold the same names.
    row: Row = next((row for row in done if row.path == os.path.abspath(video)), done[0])
    return _undamaged(run, row)


def _read_rows(run: Path) -> Iterable[Row]:
    index = run / INDEX_FILE
    return parse_rows(index, read_bytes(index)).values() if index.is_file() else ()


def _undamaged(run: Path, row: Row) -> Path:
    table = run / row.table
    if not table.is_file() or not sha256_of(table).startswith(row.table_sha256):
        command = f"jaxpose predict --run {shlex.quote(str(run))} {shlex.quote(row.path)}"
        raise UserError(f"{table} is absent, damaged or changed; make it with {command} --overwrite")
    return table
