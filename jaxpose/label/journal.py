"""The journal of a labelling session: each edit is on the disk before the page hears that it is saved.

The journal holds the edits that are not in the label files yet, and those that conflict with a change from outside. It
lies in the project, and is removed when the label files have every edit. A killed session leaves it; the next one
applies it.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.files import GrowingFile, read_bytes, write_atomic
from jaxpose.label.label_file import Point

JOURNAL_FILE = ".jaxpose_label.jsonl"


@dataclasses.dataclass(frozen=True)
class Edit:
    """A change of a keypoint in an image.

    Attributes:
      image: its name.
      keypoint: its name.
      before: the point in the label file that the edit was made on.
      after: the new point.
    """

    image: str
    keypoint: str
    before: Point | None
    after: Point | None


class Journal:
    """The journal of a project."""

    def __init__(self, folder: Path):
        self.file = folder / JOURNAL_FILE
        self._growing = GrowingFile(self.file)

    def read(self) -> list[Edit]:
        """Returns the edits that a killed session left; the last line may be torn, and was never acknowledged.

        Raises:
          UserError: an earlier line is damaged.
          OSError: the file cannot be read.
        """
        try:
            lines = read_bytes(self.file, most_bytes=None).split(b"\n")
        except FileNotFoundError:
            return []
        edits = []
        for number, line in enumerate(lines[:-1], 1):
            try:
                entries = json.loads(line)
                edits += [Edit(*entry[:2], *(_point(point) for point in entry[2:])) for entry in entries]
            except (ValueError, TypeError):
                raise UserError(
                    f"{self.file}:{number} is damaged: an earlier jaxpose label wrote here the labels that it could "
                    "not save any more; copy the file, then remove it"
                ) from None
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
            write_atomic(self.file, _record(edits))
        else:
            with contextlib.suppress(FileNotFoundError):
                self.file.unlink()


def _record(edits: Iterable[Edit]) -> bytes:
    return json.dumps([dataclasses.astuple(edit) for edit in edits]).encode() + b"\n"


def _point(value: list | None) -> Point | None:
    return None if value is None else (float(value[0]), float(value[1]), int(value[2]))
