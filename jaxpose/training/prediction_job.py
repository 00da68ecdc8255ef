"""One table to be made, and where the work on it lies."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

from jaxpose.data.video import Video
from jaxpose.data.video_index import ends_checksum
from jaxpose.formats.lightning_pose import join_tables
from jaxpose.training.prediction_index import DAMAGED, FAILED, WAITING, Row

# Lines at the head of a table of predictions, and of one of errors.
_HEADER_ROWS, _ERROR_HEADER_ROWS = 3, 1


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
        """The folder of its stretches; that of other frames or another network is another one."""
        decides = (self.row.size, self.row.mtime, self.row.model, self.row.run)
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
        """Joins one of the tables of stretches into a file, and returns the number of rows."""
        return join_tables([part / name for part in parts], file, self._header_rows(name))

    def rescue(self, before: Sequence[Path], scratch: Path) -> int:
        """Writes the rows up to where the frames are damaged beside the table, and returns their number.

        Args:
          before: the stretches before that which broke off; those that are not there are left out.
          scratch: where it broke off.
        """
        whole, count = [part for part in before if part.is_dir()], 0
        for partial in scratch.glob("*.csv.partial"):
            name = partial.name.removesuffix(".partial")
            parts = [*(part / name for part in whole), partial]
            rows = join_tables(parts, self.table.with_name(partial.name), self._header_rows(name))
            count = rows if name == self.table.name else count
        return count

    def _header_rows(self, name: str) -> int:
        return _HEADER_ROWS if name == self.table.name else _ERROR_HEADER_ROWS
