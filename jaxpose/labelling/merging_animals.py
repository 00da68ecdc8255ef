"""Merges labels of several animals: finds the animals that a project and new labels share, and plans what is added.

An image that both label may have animals in any order and with other names, so they are matched by their positions.
"""

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from jaxpose.data.animals import BOX_RATIO, body_size_px
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.labelling.merging import (
    NewFile,
    frame_of,
    image_problem,
    layout_of,
    raise_problems,
    target_file,
    target_problem,
)
from jaxpose.labelling.project_labels import LabelLayout, ProjectLabels
from jaxpose.poses import NOT_USED, Poses, join_poses
from jaxpose.terminal import count, listed
from jaxpose.text_file import SAVE_AS_UTF_8, read_text

# As COCO's similarity of keypoints, with the square of the body size as area: the same animal from an OKS of 0.5, which
# is a distance of 0.24 body sizes; another one below 0.1, or 0.43 body sizes.
_SIGMA, _SAME, _OTHER = 0.1, 0.5, 0.1
# Two poses without a common keypoint may be parts of one animal if both lie in a square of this many body sizes, the
# box of an animal. Incomplete labels make the body size too small, so only twice the box excludes it.
_ONE_BOX, _TWO_BOXES = BOX_RATIO, 2 * BOX_RATIO
_LISTED = 5

# (individual, keypoint, coordinate): the text of the cell.
Cells = dict[tuple[str, str, str], str]


@dataclasses.dataclass(frozen=True)
class Animal:
    """A labelled animal.

    Attributes:
      individual: its name in its file.
      pose_px: (k, 2) in pixels of the image, NaN without a label.
      row: its row in the table of its file.
    """

    individual: str
    pose_px: np.ndarray
    row: int


@dataclasses.dataclass(frozen=True)
class LabelledImage:
    """An image of the project: its name, the file and line of its row, and its animals."""

    name: str
    source: str
    animals: list[Animal]


@dataclasses.dataclass(frozen=True)
class Pair:
    """An animal that the project and the new labels share.

    Attributes:
      image: its name.
      individual, new_individual: its names in the project and in the new labels.
      distances_px: (k,) between the two positions of each keypoint, NaN where one lacks it.
    """

    image: str
    individual: str
    new_individual: str
    distances_px: np.ndarray


@dataclasses.dataclass
class Plan:
    """What a merge does.

    Attributes:
      rows: {label file: new rows}, each an image and its cells.
      changes: {label file: {line: cells to fill in the row that begins there}}.
      pairs: the animals that both label.
      added: "IMAGE (individual)" of the animals added to images of the project under their own individual.
      renamed: "IMAGE (individual as INDIVIDUAL)" of those added under one that was free.
      filled: number of points added to animals of the project.
      absent: number of animals of the project that new labels of the same image lack.
    """

    rows: dict[Path, list[tuple[str, Cells]]] = dataclasses.field(default_factory=dict)
    changes: dict[Path, dict[int, Cells]] = dataclasses.field(default_factory=dict)
    pairs: list[Pair] = dataclasses.field(default_factory=list)
    added: list[str] = dataclasses.field(default_factory=list)
    renamed: list[str] = dataclasses.field(default_factory=list)
    filled: int = 0
    absent: int = 0

    def lines(self, keypoint_names: Sequence[str]) -> list[str]:
        """Returns sentences about the images that both label."""
        lines = []
        if self.pairs:
            images = len({pair.image for pair in self.pairs})
            distances = np.stack([pair.distances_px for pair in self.pairs])
            known = distances[np.isfinite(distances)]
            far = ""
            if known.size:
                place, point = divmod(int(np.nanargmax(distances)), distances.shape[1])
                worst = self.pairs[place]
                where = f"{keypoint_names[point]} of {worst.individual} in {worst.image}"
                far = f", {np.median(known):.1f} px apart in the median, at most {known.max():.1f} px ({where})"
            lines.append(
                f"labelled twice: {count(len(self.pairs), 'animal')} in {count(images, 'image')}{far}; the project's "
                "positions stay"
            )
        other = [
            f"{pair.image} ({pair.new_individual} is {pair.individual})"
            for pair in self.pairs
            if pair.new_individual != pair.individual
        ]
        new = "; new rows have those of the new labels: are they the same animals?" * bool(self.rows)
        lines += [f"other individuals: {listed(other, _LISTED)}; those of the project stay{new}"] if other else []
        lines += [f"added to images of the project: {listed(self.added, _LISTED)}"] if self.added else []
        renamed = (
            f"added under a free individual, because their own is another animal there: {listed(self.renamed, _LISTED)}"
        )
        lines += [renamed] if self.renamed else []
        lines += [f"filled: {count(self.filled, 'point')} that the project lacked"] if self.filled else []
        lines += [f"only in the project: {count(self.absent, 'animal')} of these images"] if self.absent else []
        return lines


def plan_merge(found: Sequence[NewFile], project: ProjectLabels, folder: Path) -> Plan:
    """Returns what a merge adds to a project of several animals.

    Args:
      found: the new labels, with the keypoints of the project.
      project: its labels.
      folder: names of new images are relative to it.

    Raises:
      UserError: a line for each problem; then nothing can be merged.
    """
    names = keypoint_names(project)
    known, plan, problems = _images_of(project, names), Plan(), list[str]()
    poses = [table.poses.with_keypoints(names) for table in (*project.all_tables(), *(file.labels for file in found))]
    size_px = body_size_px(join_poses([dataclasses.replace(one, columns={}) for one in poses]))
    places = dict[tuple[str, int | str], str]()
    for file in found:
        table, of_image = file.labels, dict[str, list[int]]()
        for row, name in enumerate(table.poses.frames):
            of_image.setdefault(name, []).append(row)
        for name, rows in of_image.items():
            source, frame = _row_of(table.sources[rows[0]], table.poses.individuals), frame_of(name)
            target, inside = target_file(project, file.view, name), known.get(frame)
            animals = [_animal(table.poses.with_keypoints(names), row) for row in rows]
            reasons = [image_problem(table, row, project, folder) for row in rows]
            reasons += [target_problem(project, target, file.cells[row]) for row in rows]
            reasons += [_unknown_individual(animals, layout_of(project, target)), same_animal(name, animals)]
            reasons += [_unread(inside, project)] if inside else []
            if earlier := places.get(frame):
                reasons = [f"{name} is already labelled in {earlier}; remove one of the two"]
            elif inside and inside.name != name:
                reasons = [f"{name} is already labelled in {inside.source} as {inside.name}: give it one name"]
            places[frame] = source
            if not any(reasons) and inside:
                cells = [file.cells[row] for row in rows]
                own = _file_of(inside, target)
                reasons = _add_to_image(plan, animals, cells, inside, own, layout_of(project, own), names, size_px)
            elif not any(reasons):
                of_row = {(one.individual, *at): cell for one in animals for at, cell in file.cells[one.row].items()}
                plan.rows.setdefault(target, []).append((name, of_row))
            problems += [f"{source}: {reason}" for reason in dict.fromkeys(filter(None, reasons))]
    raise_problems(problems)
    return plan


def contents_of(plan: Plan, project: ProjectLabels, extended: Mapping[Path, bytes]) -> dict[Path, bytes]:
    """Returns {label file: its bytes after the merge}; rows that do not change keep theirs.

    Args:
      plan: what the merge does.
      project: the destination.
      extended: {label file: its bytes with the new rows}.

    Raises:
      UserError: a file to change is not text in UTF-8 or UTF-16.
    """
    contents = dict(extended)
    for file, changes in plan.changes.items():
        before = contents.get(file, read_bytes(file, most_bytes=None))
        layout, encoding = layout_of(project, file), read_text(file)[1]
        text = before.decode(encoding, "replace")
        if text.encode(encoding, "replace") != before:
            raise UserError(f"{file} is not text in {encoding.upper()}, so its rows cannot be changed: {SAVE_AS_UTF_8}")
        contents[file] = _changed(text, changes, layout).encode(encoding)
    return contents


def rows_of(plan: Plan, project: ProjectLabels) -> dict[Path, list[list[str]]]:
    """Returns {label file: new rows} in that file's columns, with numbers as written in the new files."""
    found = dict[Path, list[list[str]]]()
    for file, rows in plan.rows.items():
        layout = layout_of(project, file)
        for image, cells in rows:
            index = [image] if layout.index_columns == 1 else image.split("/")
            found.setdefault(file, []).append([*index, *(cells.get(column, "") for column in _columns(layout))])
    return found


def _columns(layout: LabelLayout) -> list[tuple[str, str, str]]:
    return [(animal, *column) for animal, column in zip(layout.animals(), layout.columns(), strict=True)]


def _changed(text: str, changes: Mapping[int, Cells], layout: LabelLayout) -> str:
    """Returns a CSV with some cells filled; all other lines stay as they are."""
    lines = list(io.StringIO(text, newline=""))
    reader, parts, first = csv.reader(lines), list[str](), 0
    places = {column: layout.index_columns + place for place, column in enumerate(_columns(layout))}
    for row in reader:
        part, cells = "".join(lines[first : reader.line_num]), changes.get(first + 1, {})
        if cells:
            for column, cell in cells.items():
                row[places[column]] = cell
            written = io.StringIO(newline="")
            # Before Python 3.13, only the characters of the line end of a writer are quoted in cells.
            csv.writer(written, lineterminator="\r\n").writerow(row)
            part = written.getvalue().removesuffix("\r\n") + part[len(part.rstrip("\r\n")) :]
        parts.append(part)
        first = reader.line_num
    return "".join(parts)


def keypoint_names(project: ProjectLabels) -> tuple[str, ...]:
    """Returns the keypoints of a project, in the order of `Pair.distances_px`."""
    return project.all_tables()[0].poses.keypoint_names


def _images_of(project: ProjectLabels, names: tuple[str, ...]) -> dict[tuple[str, int | str], LabelledImage]:
    """Returns {video and frame: image} of the images that the project lists, also without an animal."""
    found = dict[tuple[str, int | str], LabelledImage]()
    for table in project.all_tables():
        for image in table.without_animals:
            source = _row_of(image.source, table.poses.individuals)
            found.setdefault(frame_of(image.name), LabelledImage(image.name, source, []))
        poses = table.poses.with_keypoints(names)
        for row, name in enumerate(poses.frames):
            image = found.setdefault(
                frame_of(name), LabelledImage(name, _row_of(table.sources[row], poses.individuals), [])
            )
            image.animals.append(_animal(poses, row))
    return found


def _file_of(image: LabelledImage, target: Path) -> Path:
    """Returns the label file of an image of the project, by the name that new rows of its folder use for it."""
    file = Path(image.source.rpartition(":")[0])
    return target if target.is_file() and target.samefile(file) else file


def _row_of(source: str, individuals: Sequence[str]) -> str:
    """Returns FILE:LINE from FILE:LINE (individual), whatever signs the individual's name has."""
    ends = [end for end in (f" ({name})" for name in individuals) if source.endswith(end)]
    return source.removesuffix(max(ends, key=len, default=""))


def _animal(poses: Poses, row: int) -> Animal:
    points_px, visibility = poses.labels()
    number = int(np.asarray(poses.identity)[row, 0])
    labelled = np.where((visibility[row] > NOT_USED)[:, None], points_px[row], np.nan)
    return Animal(poses.individuals[number] if number >= 0 else "", labelled, row)


def _unknown_individual(animals: Sequence[Animal], layout: LabelLayout) -> str:
    unknown = [one.individual for one in animals if one.individual not in layout.individuals]
    if not unknown:
        return ""
    what = f"has no individual {unknown[0]}; it" if unknown[0] else "names animals, and these labels do not: it"
    return f"the project {what} has {', '.join(layout.individuals)}"


def same_animal(image: str, animals: Sequence[Animal]) -> str:
    """Returns which animals of an image coincide: the readers of labels refuse the second one."""
    first = dict[bytes, Animal]()
    for one in animals:
        # The sum turns -0.0 into 0.0.
        other = first.setdefault((one.pose_px + 0.0).tobytes(), one)
        if other is not one:
            which = f"{one.individual} of {image} is the same animal as {other.individual}"
            return f"{which}: correct or remove one of the two"
    return ""


def _unread(image: LabelledImage, project: ProjectLabels) -> str:
    """Returns a problem of an animal in the project's row of an image; its individual only seems to be free."""
    starts = f"{image.source} (", f"{image.source}: "
    found = [problem for table in project.all_tables() for problem in table.problems if problem.startswith(starts)]
    return f"correct the row of the project first: {found[0]}" if found else ""


def _add_to_image(
    plan: Plan,
    animals: list[Animal],
    cells: list[dict[tuple[str, str], str]],
    image: LabelledImage,
    file: Path,
    layout: LabelLayout,
    names: tuple[str, ...],
    size_px: float,
) -> list[str]:
    """Adds to a plan what new labels of an image have that the project lacks; returns problems.

    Args:
      plan: it changes.
      animals, cells: the new labels, and the text of their cells.
      image: that of the project.
      file, layout: its label file, and the form of this.
      names: the keypoints of `pose_px`.
      size_px: the body size.
    """
    partners, problems = find_partners(animals, image, size_px)
    free = [name for name in layout.individuals if name not in {one.individual for one in image.animals}]
    added = [one.individual for one, partner in zip(animals, partners, strict=True) if partner is None]
    # Those whose own name is free have it, whatever the order of the animals.
    others = iter([name for name in free if name not in added])
    changed = Cells()
    for one, given, partner in zip(animals, cells, partners, strict=True):
        if partner is None:
            name = one.individual if one.individual in free else next(others, "")
            if not name and not problems:
                problems.append(f"{image.name} has no free individual in {image.source} for {one.individual}")
            elif name == one.individual:
                plan.added.append(f"{image.name} ({name})")
            else:
                plan.renamed.append(f"{image.name} ({one.individual} as {name})")
            changed |= {(name, *at): cell for at, cell in given.items()}
        else:
            distances = np.linalg.norm(one.pose_px - partner.pose_px, axis=1)
            plan.pairs.append(Pair(image.name, partner.individual, one.individual, distances))
            is_new = np.isfinite(one.pose_px).all(axis=1) & np.isnan(partner.pose_px).any(axis=1)
            lacking = {names[place] for place in np.flatnonzero(is_new).tolist()}
            plan.filled += len(lacking)
            changed |= {(partner.individual, *at): cell for at, cell in given.items() if at[0] in lacking}
    plan.absent += len(image.animals) - sum(partner is not None for partner in partners)
    if changed and not problems:
        plan.changes.setdefault(file, {})[int(image.source.rpartition(":")[2])] = changed
    return problems


def find_partners(animals: list[Animal], image: LabelledImage, size_px: float) -> tuple[list[Animal | None], list[str]]:
    """Returns which animal of the project each new one is, None for another one; and problems where this is unclear."""
    if not image.animals:
        return [None] * len(animals), []
    oks = np.array([[_oks(one, other, size_px) for other in image.animals] for one in animals])
    rows, places = linear_sum_assignment(-oks)
    partners, problems = list[Animal | None]([None] * len(animals)), list[str]()
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        if oks[row, place] >= _SAME:
            partners[row] = image.animals[place]
    for row, one in enumerate(animals):
        same = [other for other in _without_partner(image, partners) if other.individual == one.individual]
        if partners[row] is None and same and _boxes_between(one, same[0], size_px) <= _ONE_BOX:
            partners[row] = same[0]
    # Next to an animal that has its partner, a person labelled a second one.
    left = _without_partner(image, partners)
    for one in (one for one, partner in zip(animals, partners, strict=True) if partner is None):
        unclear = [other for other in left if _OTHER <= _oks(one, other, size_px)]
        apart = [other for other in left if _boxes_between(one, other, size_px) <= _TWO_BOXES]
        for others, why in ((unclear, "which it overlaps"), (apart, "with which it shares no keypoint")):
            if others:
                nearest = max(others, key=lambda at: (_oks(one, at, size_px), at.individual == one.individual))
                why = why if size_px else "and animals of one keypoint have no size that tells"
                problems.append(
                    f"{one.individual} of {image.name} may be {nearest.individual} in {image.source}, {why}: correct "
                    "or remove one of the two"
                )
                break
    return partners, problems


def _without_partner(image: LabelledImage, partners: Sequence[Animal | None]) -> list[Animal]:
    return [other for other in image.animals if not any(other is partner for partner in partners)]


def _oks(one: Animal, other: Animal, size_px: float) -> float:
    """Returns the OKS of the keypoints that both have, 0 if they share none.

    Animals without a size, of one keypoint, are the same at the same place; elsewhere, nothing tells.
    """
    away = one.pose_px - other.pose_px
    away = away[np.isfinite(away).all(axis=1)]
    if not len(away):
        return 0.0
    if not size_px:
        return _OTHER if away.any() else 1.0
    return float(np.exp(-np.square(away).sum(axis=1) / (2 * (2 * _SIGMA * size_px) ** 2)).mean())


def _boxes_between(one: Animal, other: Animal, size_px: float) -> float:
    """Returns the side in body sizes of the square around two poses that share no keypoint; infinity if they do."""
    if np.isfinite(one.pose_px + other.pose_px).all(axis=1).any():
        return np.inf
    both = np.concatenate([one.pose_px, other.pose_px])
    # Without a size, they may be one animal, but nothing shows it.
    return float(np.ptp(both[np.isfinite(both).all(axis=1)], axis=0).max() / size_px) if size_px else _TWO_BOXES
