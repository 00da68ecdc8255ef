"""Merges labels into a file of SLEAP or COCO: plans what is added, by the rules for label files with rows.

Both files are read, and the project's is written, as on the labelling page.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.data.animals import body_size_px
from jaxpose.data.checked_table import find_outside
from jaxpose.errors import UserError
from jaxpose.labelling.coco_file import CocoFile
from jaxpose.labelling.label_file import Point, Points, Slot, WholeFile
from jaxpose.labelling.merging import keypoint_problems, raise_problems, read_size_px
from jaxpose.labelling.merging_animals import Animal, LabelledImage, Pair, find_partners, same_animal
from jaxpose.labelling.merging_animals import Plan as AnimalsPlan
from jaxpose.labelling.sleap_file import SleapFile
from jaxpose.poses import VISIBLE, Poses
from jaxpose.terminal import listed

_LISTED = 5
# Other programs round coordinates when they save a file again.
_ALIKE_PX = 1e-3


@dataclasses.dataclass
class Matched:
    """The images of new labels, and those of the project that they are.

    Attributes:
      project: the file of the project, which also lists the new images.
      names: {image of the new labels: image of the project}, without those that have a problem.
      files: {image of the project: its file}.
      copies: {free path in the project: image}.
      problems: "IMAGE: reason" of the images that cannot be merged.
    """

    project: WholeFile
    names: dict[str, str] = dataclasses.field(default_factory=dict)
    files: dict[str, Path] = dataclasses.field(default_factory=dict)
    copies: dict[Path, Path] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Plan:
    """What a merge does to the file of a project.

    Attributes:
      animals: about the images that both label.
      changes: {image: {slot: new point}}.
      tracks: {image: {animal: name of its track}} of new animals of a SLEAP file.
      without_track: "IMAGE (track)" of the animals whose track another animal of the image has.
      began_several: whether the project has its first image with several animals from this merge.
    """

    animals: AnimalsPlan = dataclasses.field(default_factory=AnimalsPlan)
    changes: dict[str, Points] = dataclasses.field(default_factory=dict)
    tracks: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    without_track: list[str] = dataclasses.field(default_factory=list)
    began_several: bool = False

    @property
    def new_images(self) -> int:
        """Number of images that had no labels."""
        return sum(map(len, self.animals.rows.values()))

    def give_tracks(self, image: str, tracks: Mapping[str, str], known: Mapping[str, str]) -> None:
        """Gives new animals of an image their tracks, but none twice; `known` are {animal: track} of the project."""
        used = {*known.values()}
        for animal, name in tracks.items():
            if name and name in used:
                self.without_track.append(f"{image} ({name})")
            elif name and not known.get(animal):
                self.tracks.setdefault(image, {})[animal] = name
                used.add(name)

    def content(self, project: WholeFile) -> bytes:
        """Returns the bytes of the project's file after the merge."""
        merged = project.changed(self.changes)
        if isinstance(merged, SleapFile):
            merged = merged.retracked(self.tracks)
        return merged.content()

    def lines(self, keypoint_names: Sequence[str]) -> list[str]:
        """Returns sentences about the images that both label, and about what had no place in the file."""
        lines = self.animals.lines(keypoint_names)
        if self.without_track:
            named = listed(self.without_track, _LISTED)
            lines.append(f"added without a track, because another animal there has theirs: {named}")
        if self.began_several:
            lines.append(
                "the project now has images with several animals, so training finds several animals in each image"
            )
        return lines


def image_key(name: str) -> tuple[str, str]:
    """Returns the folder and the name of an image; img7.png and img0007.png are the same."""
    path = PurePosixPath(name)
    return path.parent.name, re.sub("[0-9]+", lambda match: match[0].lstrip("0"), path.name)


def labelled_images(file: WholeFile) -> list[str]:
    """Returns the images of a file in which an animal has a point."""
    return [image for image, points in file.points.items() if any(points.values())]


def refuse_unusable(new: WholeFile, project: WholeFile) -> None:
    """Checks new labels before their images are matched.

    Raises:
      UserError: they have no label, or there is a line for each image that cannot be used and for each keypoint that
        only one of the files has.
    """
    if not labelled_images(new) and not new.problems:
        hint = "; predicted instances count once a person has corrected them" * isinstance(new, SleapFile)
        raise UserError(f"{new.file} has no image with a label: nothing to merge{hint}")
    raise_problems(keypoint_problems(new.file, new.keypoint_names, project.keypoint_names))
    raise_problems([f"{new.file}: {image}: {reason}" for image, reason in new.problems.items()])


def plan_merge(new: WholeFile, matched: Matched) -> Plan:
    """Returns what a merge adds to the file of a project.

    If no image of either file has several animals, an image that the project has labelled is refused, unless the labels
    are the same.

    Args:
      new: the labels.
      matched: their images.

    Raises:
      UserError: a line for each problem; then nothing can be merged.
    """
    project, plan, problems = matched.project, Plan(), list(matched.problems)
    files = ((new, labelled_images(new)), (project, labelled_images(project)))
    poses = [_animals(file, image, project.keypoint_names) for file, images in files for image in images]
    of_project = poses[len(files[0][1]) :]
    several = any(len(animals) > 1 for animals in poses)
    size_px = _body_size_px(project.keypoint_names, [one.pose_px for animals in poses for one in animals])
    sources, ids = dict[str, str](), _NewIds(project)
    for image in files[0][1]:
        if (inside := matched.names.get(image)) is None:
            continue
        known = LabelledImage(inside, str(project.file), _animals(project, inside, project.keypoint_names))
        given = _animals(new, image, project.keypoint_names, "new ")
        reasons = [same_animal(image, given), _outside(project, new, image, matched.files[inside])]
        if earlier := sources.get(inside):
            reasons = [f"it is the same image as {earlier}: remove one of the two"]
        elif not several and known.animals and not _is_same(given[0], known.animals[0]):
            reasons = [f"it is already labelled in {project.file}; remove one of the two"]
        sources[inside] = image
        if not any(reasons):
            reasons = _add(plan, new, image, known, project, size_px, ids)
        problems += [f"{image}: {reason}" for reason in dict.fromkeys(filter(None, reasons))]
    raise_problems([f"{new.file}: {problem}" for problem in problems])
    had_several = any(len(animals) > 1 for animals in of_project)
    plan.began_several = several and bool(of_project) and not had_several and bool(plan.changes)
    return plan


def _animals(file: WholeFile, image: str, names: Sequence[str], mark: str = "") -> list[Animal]:
    """Returns the labelled animals of an image, with the keypoints in this order; `mark` precedes invented names."""
    found, points, known = list[Animal](), file.points.get(image, {}), file.animals(image)
    for row, animal in enumerate(dict.fromkeys(slot[0] for slot, point in points.items() if point)):
        pose = [point[:2] if (point := points.get((animal, name))) else (np.nan, np.nan) for name in names]
        found.append(Animal(known.get(animal) or mark + _number_text(file, animal), np.array(pose), row))
    return found


def _number_text(file: WholeFile, animal: str) -> str:
    return f"annotation {animal}" if isinstance(file, CocoFile) else f"instance {int(animal) + 1}"


def _ids(points: Points) -> list[str]:
    """Returns the ids of the labelled animals, in the order of `_animals`."""
    return [*dict.fromkeys(slot[0] for slot, point in points.items() if point)]


def _body_size_px(names: Sequence[str], poses_px: Sequence[np.ndarray]) -> float:
    points_px = np.stack(poses_px)
    visibility = np.where(np.isfinite(points_px[..., 0]), VISIBLE, 0).astype(np.int8)
    images = [""] * len(points_px)
    return body_size_px(Poses.of_one_animal(names, images, points_px, visibility=visibility, pixels="image"))


def _is_same(one: Animal, other: Animal) -> bool:
    return np.allclose(one.pose_px, other.pose_px, rtol=0, atol=_ALIKE_PX, equal_nan=True)


def _outside(project: WholeFile, new: WholeFile, image: str, file: Path) -> str:
    """Returns which keypoints lie outside of the image, or why its size is not known, "" if all is well."""
    try:
        size_px = read_size_px(file)
    except UserError as error:
        return str(error)
    placed = [(name, point) for (_, name), point in new.points[image].items() if point]
    points_px = np.array([point[:2] for _, point in placed])
    outside = find_outside(points_px, np.array([point[2] for _, point in placed]), size_px)
    names = ", ".join(dict.fromkeys(placed[place][0] for place in outside))
    return f"outside of its image of {size_px[0]} x {size_px[1]} px: {names}" if outside else ""


class _NewIds:
    """The ids of new animals: in a COCO file, they count on over all images."""

    def __init__(self, project: WholeFile) -> None:
        self._project, self._given = project, dict[str, list[str | None]]()
        self._numbers = itertools.count(int(project.new_animal("", {}))) if isinstance(project, CocoFile) else None

    def next(self, image: str) -> str:
        """Returns the id of another new animal in an image."""
        of_image = self._given.setdefault(image, [])
        of_image.append(str(next(self._numbers)) if self._numbers else self._project.new_animal(image, self._given))
        return str(of_image[-1])


def _add(
    plan: Plan, new: WholeFile, image: str, known: LabelledImage, project: WholeFile, size_px: float, ids: _NewIds
) -> list[str]:
    """Adds to a plan what new labels of an image have that the project lacks; returns problems.

    Args:
      plan: it changes.
      new, image: the new labels, and their image.
      known: the image in the project.
      project: its file.
      size_px: the body size.
      ids: of new animals.
    """
    given, points = _animals(new, image, project.keypoint_names, "new "), new.points[image]
    partners, problems = find_partners(given, known, size_px)
    labelled = _ids(project.points.get(known.name, {}))
    empty = [animal for animal in project.animals(known.name) if animal not in labelled]
    if empty and partners.count(None) > 1:
        what = _number_text(project, empty[0])
        problems.append(f"{what} in {project.file} has no keypoint, and may be any of these animals: label it first")
    if problems:
        return problems
    changed, names, of_new, merged = dict[Slot, Point](), project.animals(known.name), new.animals(image), plan.animals
    tracks = dict[str, str]()
    for one, own, partner in zip(given, _ids(points), partners, strict=True):
        added = {name: point for (animal, name), point in points.items() if animal == own and point}
        if partner is None:
            animal = empty[0] if empty else ids.next(known.name)
            tracks[animal] = of_new[own]
            merged.added += [f"{known.name} ({one.individual})"] if known.animals else []
        else:
            animal = labelled[partner.row]
            # An animal without a name has an invented one, which says nothing.
            individual = one.individual if of_new[own] and names[animal] else partner.individual
            distances = np.linalg.norm(one.pose_px - partner.pose_px, axis=1)
            merged.pairs.append(Pair(known.name, partner.individual, individual, distances))
            added = {name: point for name, point in added.items() if not project.points[known.name][animal, name]}
            merged.filled += len(added)
        changed |= {(animal, name): point for name, point in added.items()}
    merged.absent += len(known.animals) - sum(partner is not None for partner in partners)
    # The places of an animal differ only in whether they are hidden.
    tried = {(slot[0], point[2]): (slot, point) for slot, point in changed.items()}
    obstacles = [project.obstacle(known.name, *one) for one in tried.values()]
    if changed and not any(obstacles):
        plan.changes[known.name] = {**changed}
        plan.give_tracks(known.name, tracks, names)
        if not known.animals:
            merged.rows.setdefault(project.file, []).append((known.name, {}))
    return obstacles
