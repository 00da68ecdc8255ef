"""The edits of a labelling session that are in the label files: other programs may take them out again.

A program that read a label file before such an edit, and saves it after it, does so without a word.
"""

import dataclasses
from collections.abc import Container, Iterable, Mapping

from jaxpose.label.journal import Edit, as_point, known_places_px
from jaxpose.label.label_file import LabelFile, Point, WholeFile


@dataclasses.dataclass
class _Animal:
    """The edits of an animal in an image.

    Attributes:
      is_new: whether the label file did not have the animal before them.
      last: {keypoint: the last edit of it}.
      before: {keypoint: points that it had before any of its edits}.
    """

    is_new: bool
    last: dict[str, Edit] = dataclasses.field(default_factory=dict)
    before: dict[str, set[Point | None]] = dataclasses.field(default_factory=dict)

    def now(self, found: LabelFile | WholeFile, image: str, animal: str) -> str | None:
        """Returns the present id of the animal in a label file, None if the file lacks it; `animal` is the last one."""
        if isinstance(found, LabelFile):
            return animal
        places_px = known_places_px(self.last.values())
        for name, points in self.before.items():
            places_px[name] |= {point and point[:2] for point in points}
        now = found.find_animal(image, animal, places_px, self.is_new)
        return now if now in found.animals(image) else None


class WrittenEdits:
    """The edits of points in the label files, by image and animal."""

    def __init__(self) -> None:
        self._animals: dict[tuple[str, str], _Animal] = {}

    def add(self, edits: Iterable[Edit]) -> None:
        """Takes edits that were written, but those of tracks: the page tells when another program has changed one."""
        for edit in edits:
            if isinstance(edit.after, str):
                continue
            known = self._animals.setdefault((edit.image, edit.animal), _Animal(edit.was is None))
            known.last[edit.keypoint] = edit
            known.before.setdefault(edit.keypoint, set()).add(as_point(edit.before))

    def take_lost(self, images: Container[str], found: LabelFile | WholeFile, later: Iterable[Edit]) -> list[Edit]:
        """Takes out the edits whose point is again one from before them, and returns them.

        Args:
          images: those of the label file, also as it was before.
          found: the label file as it is now.
          later: edits that are not written; they count instead of the ones before.

        Returns:
          The edits as if the file had their points already: its present ones are then changes from outside, also for
          the next session, which reads these edits in the journal.
        """
        others = {edit.key for edit in later}
        animals, lost = dict[tuple[str, str], _Animal](), list[Edit]()
        for (image, animal), known in self._animals.items():
            if image not in images or image in found.problems:
                animals[image, animal] = known
                continue
            now, points = known.now(found, image, animal), found.points.get(image, {})
            was: Mapping[str, Point] | None = {}
            if isinstance(found, WholeFile):
                was = {name: point for (one, name), point in points.items() if one == now and point}
                was = None if now is None and known.is_new else was
            for name, edit in list(known.last.items()):
                point = None if now is None else points.get((now, name))
                is_lost = point != edit.after and point in known.before[name]
                if is_lost and (image, animal, name) not in others:
                    lost.append(dataclasses.replace(edit, animal=animal, before=edit.after, was=was))
                    del known.last[name], known.before[name]
            if now is not None and known.last:
                animals[image, now] = known
        self._animals = animals
        return lost
