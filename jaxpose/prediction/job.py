"""One table to be made, and where the work on it lies."""

import dataclasses
import functools
import glob
import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from jaxpose.data.inputs import TABLES_BESIDE
from jaxpose.formats.lightning_pose.tables import join_tables
from jaxpose.prediction.index import DAMAGED, FAILED, WAITING, Row, identity_of
from jaxpose.video.index import ends_checksum, read_index
from jaxpose.video.video import Video

# Lines at the head of a table of predictions, and of one of errors.
_HEADER_ROWS, _ERROR_HEADER_ROWS = 3, 1
_LISTED = 5


@dataclasses.dataclass(frozen=True)
class Job:
    """A table to be made.

    Attributes:
      row: of the index.
      table: the table of predictions; the others lie beside it.
      sources: a video, or images of one folder.
      video: as `scan` returned it, None for images.
      problem: why the video cannot be read at all, or "".
    """

    row: Row
    table: Path
    sources: list[Path]
    video: Video | None = None
    problem: str = ""

    @property
    def name(self) -> Path:
        """The video, or the folder of the images."""
        return self.sources[0] if self.video else self.sources[0].parent

    @functools.cached_property
    def key(self) -> str:
        """What the claims on its work begin with."""
        return hashlib.sha256(self.row.table.encode()).hexdigest()[:16]

    @functools.cached_property
    def parts(self) -> Path:
        """The folder of its segments; that of other frames or another network is another one."""
        decides = (self.row.size, self.row.mtime, self.row.files, self.row.model, self.row.run)
        return self.table.with_name(f"{self.table.name}.{hashlib.sha256(repr(decides).encode()).hexdigest()[:8]}.parts")

    def is_settled_by(self, row: Row | None) -> bool:
        """Returns whether a row of the index says what became of this job."""
        return row is not None and row.is_of_same(self.row) and row.state != WAITING

    def state_without_frames(self) -> str:
        """Returns the state where frames cannot be read: that the files are damaged, if they can be read at all."""
        try:
            for source in self.sources:
                ends_checksum(source)
        except OSError:
            return FAILED
        return DAMAGED

    def join(self, parts: Sequence[Path], name: str, file: Path) -> int:
        """Joins one of the tables of segments into a file, and returns the number of rows."""
        return join_tables([part / name for part in parts], file, self._header_rows(name))

    def rescue(self, scratch: Path) -> int:
        """Puts the rows of a folder in which predicting broke off beside the table, and returns their number."""
        rows = 0
        for partial in scratch.glob("*.csv.partial"):
            name = partial.name.removesuffix(".partial")
            count = join_tables([partial], self.table.with_name(partial.name), self._header_rows(name))
            rows = count if name == self.table.name else rows
        return rows

    def remove_tables(self) -> None:
        """Removes the tables, and what was rescued: those of the frames that were here before, under the same name."""
        for more in ("", *TABLES_BESIDE):
            for suffix in (".csv", ".csv.partial"):
                self.table.with_name(f"{self.table.stem}{more}{suffix}").unlink(missing_ok=True)

    def change(self) -> str:
        """Returns that the files are no longer those of the row, or ""."""
        try:
            now = identity_of(self.sources)
        except OSError:
            return ""  # what is gone is told by whoever reads it
        is_same = now == (self.row.size, self.row.mtime, self.row.files)
        return "" if is_same else f"{self.name} changed while it was read; the same command predicts it again"

    def holes(self) -> str:
        """Returns that the time stamps of a video tell of frames that were lost before it was written, or ""."""
        try:
            leaps = read_index(self.video.path).leaps if self.video else []
        except (ValueError, OSError):
            return ""
        some = f"{', '.join(map(str, leaps[:_LISTED]))}{', ...' if len(leaps) > _LISTED else ''}"
        return (
            f"{self.name}: by its time stamps frames are lost before frame {some}; the rows count those that are there"
        ) * bool(leaps)

    def _header_rows(self, name: str) -> int:
        return _HEADER_ROWS if name == self.table.name else _ERROR_HEADER_ROWS


def remove_parts(table: Path) -> None:
    """Removes the segments of a table that is done, also those that a killed process left behind."""
    for folder in table.parent.glob(f"{glob.escape(table.name)}.*.parts"):
        shutil.rmtree(folder, ignore_errors=True)
