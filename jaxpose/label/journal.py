"""The journal of a labelling session: each edit is on the disk before the page hears that it is saved.

The journal holds the edits that are not in the label files yet, and those that conflict with a change from outside. It
lies in the project, and is removed when the label files have every edit. A killed session leaves it; the next one
applies it.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.files import GrowingFile, open_atomic, read_bytes
from jaxpose.label.label_file import Point, Points, Slot

# Labels that other users of the machine need not read: the label file has permissions of its own.
_MODE = 0o600


@dataclasses.dataclass(frozen=True)
class Edit:
    """A change of a keypoint in an image.

    Attributes:
      image: its name.
      animal, keypoint: the slot, as in `label_file`.
      before: the point in the label file that the edit was made on; in the slot of a track, its name.
      after: the new one.
      was: {keypoint: point} of the animal in the label file that the edit was made on, None if it was new. A file
        that numbers its animals may give the number to another one. A CSV file names them, and this is empty.
    """

    image: str
    animal: str
    keypoint: str
    before: Point | str | None
    after: Point | str | None
    was: Mapping[str, Point] | None

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


def known_places_px(edits: Iterable[Edit]) -> dict[str, set[tuple[float, float] | None]]:
    """Returns {keypoint: places (x, y) that it had before or after one of the edits of an animal, None for no point}.

    A keypoint that is in no edit, and had no point before any of them, is left out. Those of a new animal had none.
    """
    places: dict[str, set[tuple[float, float] | None]] = {}
    for edit in edits:
        if edit.was is None:
            places.setdefault(edit.keypoint, set()).add(None)
        for name, point in (*(edit.was or {}).items(), (edit.keypoint, edit.before), (edit.keypoint, edit.after)):
            if not isinstance(point, str):
                places.setdefault(name, set()).add(point and point[:2])
    return places


def by_animal(edits: Iterable[Edit]) -> list[list[Edit]]:
    """Returns the edits of each animal, in their order.

    Edits of one id are of two animals if these have no place in common: another program has given the id away.
    """
    of_ids: dict[tuple[str, str], list[list[Edit]]] = {}
    for edit in edits:
        of_id = of_ids.setdefault((edit.image, edit.animal), [])
        was = (edit.was or {}).items()
        for group in reversed(of_id):
            known_px = known_places_px(group)
            if not was or any(point[:2] in known_px.get(name, ()) for name, point in was):
                group.append(edit)
                break
        else:
            of_id.append([edit])
    return [group for of_id in of_ids.values() for group in of_id]


def changes_by_file(
    edits: Iterable[Edit], file_of: Callable[[str], Path]
) -> tuple[dict[Path, dict[str, Points]], dict[Path, dict[str, dict[str, str]]]]:
    """Returns {label file: {image: {slot: point}}}, and {label file: {image: {animal: track}}} of a few of the files.

    Args:
      edits: of one slot each.
      file_of: returns the label file of an image.
    """
    points: dict[Path, dict[str, Points]] = {}
    tracks: dict[Path, dict[str, dict[str, str]]] = {}
    for edit in edits:
        file, after = file_of(edit.image), edit.after
        of_file = points.setdefault(file, {})
        if isinstance(after, str):
            tracks.setdefault(file, {}).setdefault(edit.image, {})[edit.animal] = after
        else:
            of_file.setdefault(edit.image, {})[edit.slot] = after
    return points, tracks


def _record(edits: Iterable[Edit]) -> bytes:
    """Returns a line: a checksum, and what it is of."""
    groups = itertools.groupby(edits, lambda edit: (edit.image, edit.animal, edit.was))
    entries = [[*key, [(edit.keypoint, edit.before, edit.after) for edit in group]] for key, group in groups]
    content = json.dumps(entries).encode()
    return b"%b %b\n" % (_checksum(content), content)


def _edits(line: bytes) -> list[Edit] | None:
    """Returns the edits in a line without its end, None if it is damaged."""
    checksum, _, content = line.partition(b" ")
    if checksum != _checksum(content):
        return None
    edits: list[Edit] = []
    for entry in json.loads(content):
        if len(entry) != 4:
            return None
        image, animal, was, changes = entry
        was = was and {name: _placed(point) for name, point in was.items()}
        edits += [Edit(image, animal, name, _point(before), _point(after), was) for name, before, after in changes]
    return edits


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest()[:16].encode()


def as_point(value: Point | str | None) -> Point | None:
    """Returns the value of an edit if it is a point, None for the name of a track."""
    return None if isinstance(value, str) else value


def _point(value: list | str | None) -> Point | str | None:
    return _placed(value) if isinstance(value, list) else value


def _placed(value: list) -> Point:
    return float(value[0]), float(value[1]), int(value[2])
