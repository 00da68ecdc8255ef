"""A job: one table to be made, and the folder of the work on it."""

import dataclasses
import functools
import glob
import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.table_rows import join_tables
from jaxpose.prediction.claims import Claims
from jaxpose.prediction.index_row import DAMAGED, FAILED, WAITING, Row, identity_of
from jaxpose.prediction.table_files import PARTIAL
from jaxpose.quantities import count
from jaxpose.video.index import ends_checksum, read_index
from jaxpose.video.video import Video

# Header lines of a table of predictions, and of a table of errors.
_HEADER_ROWS, _ERROR_HEADER_ROWS = 3, 1


@dataclasses.dataclass(frozen=True)
class Job:
    """A table to be made.

    Attributes:
      row: its row in the index.
      table: the table of predictions; the others lie beside it.
      sources: a video, or the images of one folder.
      video: as `scan` returned it, None for images.
      problem: why the video cannot be read at all, or "".
      boxes: the file with the boxes of the video's frames, () without boxes.
    """

    row: Row
    table: Path
    sources: list[Path]
    video: Video | None = None
    problem: str = ""
    boxes: tuple[Path, ...] = ()

    @property
    def name(self) -> Path:
        """The video, or the folder of the images."""
        return self.sources[0] if self.video else self.sources[0].parent

    @functools.cached_property
    def key(self) -> str:
        """The prefix of the names of the claims on its work."""
        return key_of(self.row.table)

    @functools.cached_property
    def parts(self) -> Path:
        """The folder of its segments; other frames or another network have another folder."""
        decides = (self.row.size, self.row.mtime, self.row.files, self.row.model, self.row.run)
        return self.table.with_name(f"{self.table.name}.{hashlib.sha256(repr(decides).encode()).hexdigest()[:8]}.parts")

    def is_settled_by(self, row: Row | None) -> bool:
        """Returns whether a row of the index is the result of this job."""
        return row is not None and row.is_of_same(self.row) and row.state != WAITING

    def state_without_frames(self) -> str:
        """Returns the state of a job whose frames do not decode: DAMAGED if the files can be read, else FAILED."""
        try:
            for source in self.sources:
                ends_checksum(source)
        except OSError:
            return FAILED
        return DAMAGED

    def join(self, parts: Sequence[Path], name: str, file: Path) -> int:
        """Joins one table of all segments into a file; returns the number of rows."""
        return join_tables([part / name for part in parts], file, self._header_rows(name))

    def rescue(self, scratch: Path) -> int:
        """Copies the rows of a folder in which predicting broke off to beside the table; returns their number."""
        rows = 0
        for partial in scratch.glob(f"*.csv{PARTIAL}"):
            name = partial.name.removesuffix(PARTIAL)
            count = join_tables([partial], self.table.with_name(partial.name), self._header_rows(name))
            rows = count if name == self.table.name else rows
        return rows

    def change(self) -> str:
        """Returns a message if the files are no longer those of the row, else ""."""
        try:
            now = identity_of(self.sources, self.boxes)
        except OSError:
            return ""  # the reader of a missing file reports it
        is_same = now == (self.row.size, self.row.mtime, self.row.files)
        return "" if is_same else f"{self.name} changed while it was read; the same command predicts it again"

    def dropped_frames(self) -> str:
        """Returns a message about frames that are lost by the timestamps of a video, "" without any."""
        try:
            index = read_index(self.video.path) if self.video else None
        except (UserError, OSError):
            return ""
        if not index or not index.leaps:
            return ""
        return (
            f"{self.name}: its timestamps have gaps, where the camera dropped frames or they were lost since: "
            f"{index.gaps}; rows count the frames in the file"
        )

    def unknown_length(self, rows: int) -> str:
        """Returns a remark on a video that does not state its length, "" for others."""
        if not self.video or self.video.states_length:
            return ""
        return (
            f"{count(rows, 'frame')} of {self.name} {'was' if rows == 1 else 'were'} read; the file states neither a "
            "number of frames nor a duration, so frames that it lost may not show"
        )

    def _header_rows(self, name: str) -> int:
        return _HEADER_ROWS if name == self.table.name else _ERROR_HEADER_ROWS


def remove_leftovers(table: Path, claims: Claims) -> None:
    """Removes the segments of a finished table and the claims on them, including those of a killed process."""
    for folder in table.parent.glob(f"{glob.escape(table.name)}.*.parts"):
        shutil.rmtree(folder, ignore_errors=True)
    claims.forget(f"{key_of(table.relative_to(claims.out).as_posix())}-")


def key_of(table: str) -> str:
    """Returns what stands for a file in the names of claims; the file is named relative to the folder of results."""
    return hashlib.sha256(table.encode()).hexdigest()[:16]
