"""A row of index.csv: an input, what its table was made from, and how the prediction ended.

Nothing here imports jax, so that verbs that only read tables start at once.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxpose.checksums import DamagedFile, parse_csv
from jaxpose.data.cells import path_of_cell

CHECKSUM_DIGITS = 16
WAITING, DONE, DAMAGED, FAILED = "waiting", "done", "damaged", "failed"


@dataclasses.dataclass(frozen=True)
class Row:
    """The row of an input.

    Attributes:
      path: absolute, of the video or of the folder of images.
      size: bytes; for images, of all together.
      mtime: time of the last change, seconds since 1970; for images, the newest.
      files: checksum of name, size and time of each image, or of the video and the file of its boxes.
      model: checksum of the weights.
      frames_announced: frames by the header of the file.
      frames_delivered: rows of the table.
      seconds: computing time of all workers.
      state: waiting, done, damaged (the input cannot be predicted to the end; not tried again while it is the same) or
        failed (for another reason; the next command tries again).
      reason: why it is not done, or a remark.
      table: path below the folder of results.
      table_size: bytes of all tables of the input together.
      table_sha256: digits of the checksum of the table of predictions, "" before it is done.
      run: hash of the run's config.
      arithmetic: what the last bits of the tables depend on, as arithmetic.json of a run has it; parts that were made
        otherwise follow behind " | ". "" before it is done.
    """

    path: str
    size: int
    mtime: str
    files: str
    model: str
    frames_announced: int
    frames_delivered: int
    seconds: float
    state: str
    reason: str
    table: str
    table_size: int
    table_sha256: str
    run: str
    arithmetic: str

    def is_of_same(self, other: "Row") -> bool:
        """Returns whether both rows have the same frames and the same network."""
        return self._frames() == other._frames() and (self.model, self.run) == (other.model, other.run)

    def _frames(self) -> tuple[str, int, str, str]:
        # Hosts may know the same folder under different paths.
        return Path(self.path).name, self.size, self.mtime, self.files


COLUMNS = [field.name for field in dataclasses.fields(Row)]
_TYPES: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(Row)}


def identity_of(sources: Sequence[Path], boxes: Sequence[Path] = ()) -> tuple[int, str, str]:
    """Returns `size`, `mtime` and `files` of the row of a video or of images.

    Args:
      sources: the video, or the images.
      boxes: the file with the boxes of the video's frames, if they have boxes; it counts in `files` alone.

    Raises:
      OSError: a file no longer exists.
    """
    status = [source.stat() for source in sources]
    newest_ns = max(entry.st_mtime_ns for entry in status)
    with_boxes = zip([*sources, *boxes], [*status, *(file.stat() for file in boxes)], strict=True)
    each = [(file.name, entry.st_size, entry.st_mtime_ns) for file, entry in with_boxes]
    size, mtime = sum(entry.st_size for entry in status), f"{newest_ns // 10**9}.{newest_ns % 10**9:09}"
    return size, mtime, hashlib.sha256(repr(each).encode()).hexdigest()[:CHECKSUM_DIGITS]


def parse_rows(file: Path, data: bytes) -> dict[str, Row]:
    """Returns the rows in the content of an index.csv by their table.

    Raises:
      DamagedFile: it is not an index, or not as jaxpose wrote it.
    """
    mend = "remove the file and give --overwrite, or choose another --out"
    rows = {}
    for number, cells in enumerate(parse_csv(data, file, mend), 1):
        try:
            row = Row(**{name: _TYPES[name](path_of_cell(cell)) for name, cell in cells.items()})
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFile(f"{file} is not an index of this version: row {number} ({error}); {mend}") from None
        rows[row.table] = row
    return rows
