"""The journal of a labelling session: each edit is on the disk before the page hears that it is saved.

The journal holds the edits that are not in the label files yet, and those that conflict with a change from outside. It
lies in the project, and is removed when the label files have every edit. A killed session leaves it; the next one
applies it.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.files import GrowingFile, open_atomic, read_bytes
from jaxpose.label.label_file import Point, Slot

# Labels that other users of the machine need not read: the label file has permissions of its own.
_MODE = 0o600


@dataclasses.dataclass(frozen=True)
class Edit:
    """A change of a keypoint in an image.

    Attributes:
      image: its name.
      animal, keypoint: the slot, as in `label_file`.
      before: the point in the label file that the edit was made on.
      after: the new point.
    """

    image: str
    animal: str
    keypoint: str
    before: Point | None
    after: Point | None

    @property
    def slot(self) -> Slot:
        """The animal and the keypoint."""
        return self.animal, self.keypoint

    @property
    def key(self) -> tuple[str, str, str]:
        """What the edit changes: the image, the animal and the keypoint."""
        return self.image, self.animal, self.keypoint


class Journal:
    """The journal of a project: `LabelProject.journal_file`."""

    def __init__(self, file: Path):
        self.file = file
        self._growing = GrowingFile(file, _MODE)

    def read(self) -> list[Edit]:
        """Returns the edits that a killed session left; the last line may be torn, and was never acknowledged.

        Raises:
          UserError: a line is damaged.
          OSError: the file cannot be read.
        """
        try:
            lines = read_bytes(self.file, most_bytes=None).split(b"\n")
        except FileNotFoundError:
            return []
        edits = []
        for number, line in enumerate(lines, 1):
            entries = _edits(line)
            # What follows the last line end is torn, unless only the line end is damaged.
            if number == len(lines) and _edits(line[:-1]) is None:
                break
            if entries is None or number == len(lines):
                raise UserError(
                    f"{self.file}:{number} is damaged: an earlier jaxpose label wrote here the labels that it could "
                    "not save any more; copy the file, then remove it"
                )
            edits += entries
        return edits

    def append(self, edits: Iterable[Edit]) -> None:
        """Adds edits in one record, all or none; returns when they are on the disk.

        Raises:
          OSError: the disk is full, or fails.
        """
        self._growing.append(_record(edits), sync=True)

    def replace(self, edits: list[Edit]) -> None:
        """Makes these edits the whole content; without any, removes the file.

        Raises:
          OSError: the file cannot be written.
        """
        self._growing.close()
        if edits:
            with open_atomic(self.file, mode=_MODE) as stream:
                stream.write(_record(edits))
        else:
            with contextlib.suppress(FileNotFoundError):
                self.file.unlink()


def _record(edits: Iterable[Edit]) -> bytes:
    """Returns a line: a checksum, and what it is of."""
    content = json.dumps([dataclasses.astuple(edit) for edit in edits]).encode()
    return b"%b %b\n" % (_checksum(content), content)


def _edits(line: bytes) -> list[Edit] | None:
    """Returns the edits in a line without its end, None if it is damaged."""
    checksum, _, content = line.partition(b" ")
    if checksum != _checksum(content):
        return None
    entries = json.loads(content)
    if any(len(entry) != len(dataclasses.fields(Edit)) for entry in entries):
        return None
    return [Edit(*entry[:3], *map(_point, entry[3:])) for entry in entries]


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest()[:16].encode()


def _point(value: list | None) -> Point | None:
    return None if value is None else (float(value[0]), float(value[1]), int(value[2]))
