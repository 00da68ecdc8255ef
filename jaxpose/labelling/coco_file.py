"""A COCO file in which the keypoints of single images are changed: all other entries keep their values."""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.data.checked_table import refuse_link_out_of_project
from jaxpose.data.image_file import image_facts, upright_size_px
from jaxpose.errors import UserError
from jaxpose.files import NotRegularFile, read_bytes
from jaxpose.formats import coco
from jaxpose.labelling.label_file import MISSING, Point, Points, Slot, WholeFile
from jaxpose.poses import NOT_VISIBLE, VISIBLE
from jaxpose.terminal import count
from jaxpose.text_file import read_unicode

# A number from 0 on, as text.
_NUMBER = re.compile(r"[0-9]{1,300}(\.[0-9]{1,300})?(e\+[0-9]{1,3})?")


@dataclasses.dataclass(frozen=True)
class CocoFile(WholeFile):
    """The content of a COCO file.

    Attributes:
      tree: as read.
      style: how the text was written, for `json.dumps`.
      end: what follows the last bracket.
      visible_mark: what the file writes for a visible point; 1 in files that only use 0 and 1.
      entries: {image: its entry}.
      annotations: {image: {animal: index of its annotation}}; the animal is the id of the annotation.
      paths: {image: its file, or why there is none}.
      category_ids: those of the animals with labels, or of the only kind of animal; new annotations need a single one.
    """

    tree: Mapping[str, Any]
    style: Mapping[str, Any]
    end: str
    visible_mark: int
    entries: Mapping[str, dict[str, Any]]
    annotations: Mapping[str, Mapping[str, int]]
    paths: Mapping[str, Path | str]
    category_ids: tuple[Any, ...]

    def new_animal(self, image: str, places: Mapping[str, Sequence[str | None]]) -> str:
        used = {animal for points in self.points.values() for animal, _ in points}
        used |= {animal for of_image in places.values() for animal in of_image if animal}
        numbers = (int(animal) for animal in used if animal.isascii() and animal.isdigit())
        return str(max([self._last_id, *numbers]) + 1)

    @property
    def _last_id(self) -> int:
        """The largest id of an annotation that is a number, also as text or with decimals; 0 without any."""
        ids = (str(entry.get("id")) for entry in self.tree["annotations"] if isinstance(entry, dict))
        return max((int(Decimal(text)) for text in ids if _NUMBER.fullmatch(text)), default=0)

    def obstacle(self, image: str, slot: Slot, point: Point | None) -> str:
        if found := super().obstacle(image, slot, point):
            return found
        if image not in self.entries:
            return f"{self.file} has no image {image}"
        animal, is_new = slot[0], slot[0] not in self.annotations.get(image, {})
        if is_new and len(self.category_ids) > 1:
            return (
                f"{self.file} has several categories of animals: add an annotation of {image} that names its category"
            )
        if is_new and (not animal.isdigit() or any(animal in of_image for of_image in self.annotations.values())):
            return f"{self.file} has no annotation {animal} of {image}"
        return ""

    def path_of(self, folder: Path, image: str) -> Path:
        if image not in self.entries:
            raise UserError(f"{self.file} has no image {image}")
        path, entry = self.paths[image], self.entries[image]
        if isinstance(path, str):
            raise UserError(path)
        refuse_link_out_of_project(path, image)
        try:
            facts = image_facts(read_bytes(path, most_bytes=None))
        except (OSError, NotRegularFile) as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
        seen = coco.size_px(entry)
        if seen not in (None, facts.stored_px, upright_size_px(facts.stored_px, facts.orientation)):
            raise UserError(
                f"{path} has {facts.stored_px[0]} x {facts.stored_px[1]} pixels, but {self.file} has labels of an "
                f"image of {seen[0]} x {seen[1]}: put back the image that was labelled"
            )
        return path

    def written(self, edits: Mapping[str, Points]) -> bytes:
        annotations, removed = list(self.tree["annotations"]), set[int]()
        for image, points in edits.items():
            for animal, of_animal in self.poses(points).items():
                place = self.annotations.get(image, {}).get(animal)
                before = self.poses(self.at_first.get(image, {})).get(animal, [None] * len(of_animal))
                if of_animal == before:
                    continue
                if place is None:
                    annotations.append(self._new(image, animal, of_animal))
                elif any(of_animal) or not any(before):
                    annotations[place] = self._changed(annotations[place], of_animal, before)
                else:
                    removed.add(place)
        annotations = [annotation for place, annotation in enumerate(annotations) if place not in removed]
        tree = {**self.tree, "annotations": annotations}
        tree = coco.with_marks(tree) if self.visible_mark == VISIBLE else tree
        return (json.dumps(tree, **self.style) + self.end).encode()

    def _cell(self, point: Point | None) -> list[float]:
        if not point:
            return [0, 0, 0]
        return [*point[:2], self.visible_mark if point[2] == VISIBLE else NOT_VISIBLE]

    def _new(self, image: str, animal: str, points: Sequence[Point | None]) -> dict[str, Any]:
        new = {"id": int(animal), "image_id": self.entries[image]["id"], "category_id": self.category_ids[0]}
        values = np.array(list(map(self._cell, points)), np.float64)
        return {**new, "iscrowd": 0, **coco.keypoint_entries(values[:, :2], values[:, 2].astype(int))}

    def _changed(
        self, annotation: dict[str, Any], points: Sequence[Point | None], before: Sequence[Point | None]
    ) -> dict[str, Any]:
        """Returns an annotation with other points; a box that somebody drew stays, one around the keypoints follows."""
        numbers: list[float] = list(annotation.get("keypoints") or [0] * 3 * len(self.keypoint_names))
        for k, point in enumerate(points):
            if point != before[k]:
                numbers[3 * k : 3 * k + 3] = self._cell(point)
        values = np.array(numbers, np.float64).reshape(-1, 3)
        follows = coco.is_labelled(annotation) and not coco.has_own_box(annotation) and (values[:, 2] > 0).any()
        box = coco.keypoint_entries(values[:, :2], values[:, 2]) if follows else {}
        box = {name: box[name] for name in ("bbox", "area") if name in box and name in annotation}
        return {**annotation, **box, "keypoints": numbers, "num_keypoints": int((values[:, 2] > 0).sum())}


def read_coco_file(file: Path) -> CocoFile:
    """Reads a COCO file; it may have no label yet.

    Raises:
      UserError: it is not a COCO file, its animals have different keypoints, or no image can be named.
      OSError: it cannot be read.
    """
    original, text, tree = read_bytes(file, most_bytes=None), read_unicode(file), coco.read_tree(file)
    images = coco.entries_by_id(file, "images", tree["images"])
    categories = _categories(file, tree)
    names, ids = coco.names_of_keypoints(file, categories), tuple(category["id"] for category in categories)
    names_of_images, paths, problems = _images(file, images)
    chosen, unmatched = _annotations(tree["annotations"], names_of_images, ids)
    problems |= unmatched
    annotations, values, marks = dict[str, dict[str, int]](), dict[str, dict[str, np.ndarray]](), set[float]()
    ids_of = _ids_of(tree["annotations"])
    for image, places in chosen.items():
        labelled = [place for place in places if coco.is_labelled(tree["annotations"][place])]
        try:
            of_image = [coco.keypoints_of(tree["annotations"][place]["keypoints"], names) for place in labelled]
        except UserError as error:
            problems[image] = str(error)
            continue
        # As training, which reads images with several animals.
        marks.update(*(of_animal[:, 2].tolist() for of_animal in of_image))
        if len(places) > 1 and not labelled:
            problems[image] = (
                f"it has {count(len(places), 'annotation')} without keypoints, and the page cannot tell which one "
                "belongs to which animal: label a keypoint of each in the program that drew them"
            )
            continue
        annotations[image] = {ids_of[place]: place for place in labelled or places}
        if labelled:
            values[image] = dict(zip(annotations[image], of_image, strict=True))
    is_0_or_1 = marks - {0} == {NOT_VISIBLE} and tree.get(coco.MARKS) != coco.ALL_MARKS
    visible_mark = NOT_VISIBLE if is_0_or_1 else VISIBLE
    points = {image: _points(names, of_image, visible_mark) for image, of_image in values.items()}
    named = {image: dict.fromkeys(of_image, "") for image, of_image in annotations.items()}
    return CocoFile(
        file=file,
        original=original,
        keypoint_names=names,
        images=tuple(dict.fromkeys(names_of_images.values())),
        at_first=points,
        points=points,
        animal_names=named,
        problems=problems,
        can_hide=visible_mark == VISIBLE,
        skeleton=coco.read_skeleton(categories, names),
        tree=tree,
        style=_style(text),
        end=text[len(text.rstrip()) :],
        visible_mark=visible_mark,
        entries={names_of_images[key]: images[key] for key in reversed(images) if key in names_of_images},
        annotations=annotations,
        paths=paths,
        category_ids=ids,
    )


def _annotations(
    annotations: list[Any], names: Mapping[Any, str], category_ids: tuple[Any, ...]
) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Returns {image: indices of its animals' annotations}, and {image: why an annotation names it by another id}."""
    chosen, problems = dict[str, list[int]](), dict[str, str]()
    by_text = {str(key): (key, name) for key, name in names.items()}
    for place, annotation in enumerate(annotations):
        if not _is_of_animal(annotation, category_ids):
            continue
        image_id = annotation.get("image_id")
        if isinstance(image_id, str | int) and (image := names.get(image_id)):
            chosen.setdefault(image, []).append(place)
        elif found := by_text.get(_as_text(image_id)):
            # Its labels would be lost without a word.
            problems[found[1]] = (
                f"annotation {annotation.get('id')} has the image_id {image_id!r}, and the image has the id "
                f"{found[0]!r}: write both as a number, or both as text"
            )
    return chosen, problems


def _categories(file: Path, tree: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the categories of the labelled animals; without any, the only one with keypoints."""
    used = [entry for entry in tree["annotations"] if isinstance(entry, dict) and not entry.get("iscrowd")]
    if labelled := [entry for entry in used if coco.is_labelled(entry)]:
        return coco.labelled_categories(file, tree["categories"], labelled)
    found = coco.entries_by_id(file, "categories", tree["categories"]).values()
    if len(named := [entry for entry in found if entry.get("keypoints")]) != 1:
        raise UserError(
            f"{file} has no labels yet and {count(len(named), 'category')} with a list of keypoints; it must have one"
        )
    return named


def _images(
    file: Path, images: Mapping[str | int, dict[str, Any]]
) -> tuple[dict[Any, str], dict[str, Path | str], dict[str, str]]:
    """Returns {id: name of the image}, {name: its file, or why there is none}, and {name: problem}."""
    found, names, problems = coco.find_images(file, dict(images)), dict[Any, str](), dict[str, str]()
    paths: dict[str, Path | str] = {}
    for key, entry in images.items():
        try:
            given = coco.image_name_of(entry)
        except UserError:
            continue  # It stays in the file.
        name, path = coco.place_of(file, given, found[given])
        if name in paths:
            problems[name] = f"{file} has two entries of this image"
        names[key], paths[name] = name, found[given].reason or path
    return names, paths, problems


def _is_of_animal(annotation: Any, category_ids: tuple[Any, ...]) -> bool:
    if not isinstance(annotation, dict) or annotation.get("iscrowd"):
        return False
    return str(annotation.get("category_id")) in map(str, category_ids)


def _as_text(image_id: Any) -> str:
    """Returns an id as text; 3, 3.0 and "3" are the same."""
    return str(int(image_id) if isinstance(image_id, float) and image_id.is_integer() else image_id)


def _ids_of(annotations: list[Any]) -> list[str]:
    """Returns the id of each annotation as text; another unique text for one that has no id of its own."""
    ids = [str(entry.get("id")) if isinstance(entry, dict) else "" for entry in annotations]
    numbers = Counter(ids)
    return [text if numbers[text] == 1 else f"entry {place}" for place, text in enumerate(ids)]


def _points(names: tuple[str, ...], values: Mapping[str, np.ndarray], visible_mark: int) -> Points:
    return {
        (animal, name): None if not v or (x, y) == MISSING else (x, y, VISIBLE if v == visible_mark else int(v))
        for animal, of_animal in values.items()
        for name, (x, y, v) in zip(names, of_animal.tolist(), strict=True)
    }


def _style(text: str) -> dict[str, Any]:
    """Returns the arguments of `json.dumps` for a text like this one."""
    indent = re.match(r"\s*\{\s*?\n([ \t]*)", text)
    is_close = re.search(r'":\S', text[:10_000])
    separators = ("," if indent or is_close else ", ", ":" if is_close else ": ")
    return {"ensure_ascii": text.isascii(), "indent": indent[1] if indent else None, "separators": separators}
