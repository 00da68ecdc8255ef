"""A label file of which single images are changed: the rest stays. In a CSV file, all other rows keep their bytes.

A point is (x, y, visibility) in pixels of the image, or None where a keypoint has no label. The visibility is VISIBLE
or NOT_VISIBLE (a hidden point). The slot of a point is (animal, keypoint). The animal is the name of an individual of a
CSV file, or the id that its file gives it in an image; in a CSV file of one animal an image, it is "".
"""

import abc
import csv
import dataclasses
import functools
import hashlib
import io
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Self

import numpy as np

from jaxpose.data.checked_table import refuse_link_out_of_project, refuse_name_outside
from jaxpose.data.labels import LabelHeader, read_csv_table, read_header, refuse_unique
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.formats.deeplabcut.tables import relocated
from jaxpose.labelling.project_labels import LabelLayout, h5_of_csv
from jaxpose.poses import NOT_USED, NOT_VISIBLE, VISIBLE, Skeleton
from jaxpose.text_file import SAVE_AS_UTF_8, read_text

Point = tuple[float, float, int]
Slot = tuple[str, str]
Points = dict[Slot, Point | None]
# The keypoint of a slot that has the name of the animal's track, "" without one, instead of a point.
TRACK = ""
# Label tools write this for a missing label; see `jaxpose.data.label_table.normalised`.
MISSING = (-1.0, -1.0)
_MARK = "visible"


@dataclasses.dataclass(frozen=True)
class LabelFile:
    """The content of a label file.

    Attributes:
      file: the path; absent for a file that begins with the first label.
      header: its columns.
      head: the text before the first row, with a byte order mark if there is one.
      rows: the text of each row, with its line end.
      row_of: {image: index in `rows`} of the usable rows.
      points: {image: {slot: point}} of these.
      problems: {image: reason} of the other rows.
      encoding: of the text.
      visible_mark: what the file writes for a visible point; 1 in files that only use 0 and 1.
      originals: {image: (text of its row, its points)} of the rows that were changed, as the file had them before.
    """

    file: Path
    header: LabelHeader
    head: str
    rows: Sequence[str]
    row_of: Mapping[str, int]
    points: Mapping[str, Points]
    problems: Mapping[str, str]
    encoding: str = "utf-8"
    visible_mark: int = VISIBLE
    originals: Mapping[str, tuple[str, Points]] = dataclasses.field(default_factory=dict)

    @property
    def can_hide(self) -> bool:
        """Whether the file can mark a point as hidden: it has columns `visible`, with the marks 0, 1 and 2."""
        marked = (coord == _MARK for columns in self.header.columns.values() for _, coord in columns)
        return self.visible_mark == VISIBLE and any(marked)

    def animals(self, image: str) -> dict[str, str]:
        """Returns {animal: its name} of those that have a place in each row: the individuals."""
        return {name: name for name in self.header.columns}

    def is_deleted(self, image: str, animal: str) -> bool:
        """Returns False, as the individuals keep their places."""
        return False

    @property
    def images(self) -> list[str]:
        """The images with a row."""
        return [*self.row_of, *self.problems]

    def obstacle(self, image: str, slot: Slot, point: Point | None) -> str:
        """Returns why the file has no place for a point, "" if it has."""
        animal, keypoint = slot
        if image in self.problems:
            return f"the row of {image} in {self.file} cannot be used: {self.problems[image]}"
        if (keypoint, "x") not in self.header.columns.get(animal, {}):
            return f"{self.file} has no columns of {keypoint}" + f" of {animal}" * bool(animal)
        if point and point[2] == NOT_VISIBLE and not self.can_hide:
            return f"{self.file} cannot mark {keypoint} as hidden: it has no columns visible with 0, 1 and 2"
        return ""

    def path_of(self, folder: Path, image: str) -> Path:
        """Returns the file of an image of a project folder.

        Raises:
          UserError: it lies outside of the project.
        """
        refuse_name_outside(image)
        refuse_link_out_of_project(folder / image, image)
        return folder / image

    def layout(self) -> LabelLayout:
        """Returns the form of the file."""
        rows = csv.reader(io.StringIO(self.head.removeprefix("\ufeff"), newline=""))
        header = tuple(tuple(cell.strip(" \t") for cell in row) for row in rows)
        return LabelLayout(self.file.name, True, header, self.header.index_columns)

    def h5(self, content: bytes) -> bytes:
        """Returns the HDF5 file with the rows of this file, whose bytes are given; raises UserError if none can."""
        try:
            return h5_of_csv(content, self.layout(), self.encoding)
        except ValueError as error:
            raise UserError(f"{self.file} cannot be written as HDF5, which DeepLabCut reads: {error}") from None

    def final(self) -> "LabelFile":
        """Returns the file as it is left at the end of a session."""
        return self

    def content(self) -> bytes:
        """Returns the bytes of the file."""
        return (self.head + "".join(self.rows)).encode(self.encoding)

    def changed(self, changes: Mapping[str, Points]) -> "LabelFile":
        """Returns the file with other points.

        Rows of other images keep their text, and so do the cells of other points. A row whose points are again those
        that were read gets its first text back. An image without a row gets one at the end, with its first point, and
        loses it with its last one.

        Args:
          changes: {image: {slot: new point}}; the slots have columns.
        """
        rows, row_of = list(self.rows), dict(self.row_of)
        points, originals = dict(self.points), dict(self.originals)
        end = "\r\n" if self.head.endswith("\r\n") else "\n"
        for image, changed in changes.items():
            if is_new := image not in row_of:
                if not any(changed.values()):
                    continue
                if rows and not line_end(rows[-1]):
                    rows[-1] += end
                row_of[image] = len(rows)
                rows.append(csv_line(self._empty_cells(image), end))
                points[image] = _no_points(self.header.columns, self.header.keypoint_names)
            place, before = row_of[image], points[image]
            text, at_first = originals.setdefault(image, ("" if is_new else rows[place], before))
            points[image] = {**before, **changed}
            (cells,) = csv.reader([rows[place]])
            for slot, point in changed.items():
                if before[slot] != point:
                    self._write(cells, slot, point)
            rows[place] = text if points[image] == at_first else csv_line(cells, line_end(rows[place]))
        # Such rows are among the last ones.
        for image in sorted(row_of, key=row_of.__getitem__, reverse=True):
            if image in originals and not originals[image][0] and not any(points[image].values()):
                place = row_of.pop(image)
                row_of = {other: index - (index > place) for other, index in row_of.items()}
                del rows[place], points[image], originals[image]
        return dataclasses.replace(self, rows=rows, row_of=row_of, points=points, originals=originals)

    def _empty_cells(self, image: str) -> list[str]:
        index = [image] if self.header.index_columns == 1 else image.split("/")
        return [*index, *[""] * (self.header.width - len(index))]

    def _write(self, cells: list[str], slot: Slot, point: Point | None) -> None:
        animal, name = slot
        columns = self.header.columns[animal]
        for coord, value in zip("xy", point[:2] if point else (None, None), strict=True):
            cells[columns[name, coord]] = "" if value is None else repr(value)
        if (name, _MARK) in columns:
            mark = self.visible_mark if point and point[2] == VISIBLE else NOT_VISIBLE
            cells[columns[name, _MARK]] = str(mark) if point else ""


@dataclasses.dataclass(frozen=True)
class WholeFile(abc.ABC):
    """The content of a label file of another form than rows; a subclass writes the changes into it.

    Attributes:
      file: the path.
      original: the bytes that were read.
      keypoint_names: in the order of the file.
      images: all images that the file names, with or without labels.
      at_first: {image: {slot: point}} of the labelled images, as read: all keypoints of their labelled animals.
      points: the same after the changes; an animal of `at_first` without any point is removed from the file.
      animal_names: {image: {animal: name}} of the animals in the file that have or could get labels; names may be "".
      problems: {image: reason} of images whose labels cannot be changed.
      can_hide: whether the file can mark a point as hidden.
      skeleton: of the animal.
    """

    file: Path
    original: bytes
    keypoint_names: tuple[str, ...]
    images: Sequence[str]
    at_first: Mapping[str, Points]
    points: Mapping[str, Points]
    animal_names: Mapping[str, Mapping[str, str]]
    problems: Mapping[str, str]
    can_hide: bool
    skeleton: Skeleton

    def animals(self, image: str) -> dict[str, str]:
        """Returns {animal: its name} of an image, in order; "" for an animal without a name."""
        known = self.animal_names.get(image, {})
        return {**known, **{animal: "" for animal, _ in self.points.get(image, ()) if animal not in known}}

    def is_deleted(self, image: str, animal: str) -> bool:
        """Returns whether an animal without points had some in this session: another one must not take its id."""
        known, at_first = self.animals(image), {one for one, _ in self.at_first.get(image, ())}
        return animal in at_first or animal not in known

    @abc.abstractmethod
    def new_animal(self, image: str, places: Mapping[str, Sequence[str | None]]) -> str:
        """Returns the id of a new animal in an image; `places` are {image: ids} in use besides those of the file."""

    def find_animal(
        self, image: str, animal: str, known_px: Mapping[str, Collection[Sequence[float] | None]], is_new: bool
    ) -> str:
        """Returns the id that an animal has now in an image: that of the animal with most of its points.

        Args:
          image: its name.
          animal: the id that it had; of two animals with as many points, it keeps this one.
          known_px: {keypoint: places (x, y) that it had, None for no point}; none of those left out had a point.
          is_new: whether the file did not have the animal; then one with another id has no other points.

        Returns:
          The id; "" if no animal, or more than one, can be it. An animal that had no point is one without any.
        """
        poses = self.poses(self.points.get(image, {}))
        shared: dict[str, int] = {}
        for one, pose in poses.items():
            points = zip(self.keypoint_names, pose, strict=True)
            are_known = [point[:2] in known_px.get(name, ()) for name, point in points if point]
            if one == animal or not is_new or all(are_known):
                shared[one] = sum(are_known)
        most = max(shared.values(), default=0)
        best = [one for one, number in shared.items() if number == most]
        if most:
            return animal if animal in best else best[0] if len(best) == 1 else ""
        was_empty = all(None in places for places in known_px.values())
        return animal if was_empty and not any(poses.get(animal, ())) else ""

    def obstacle(self, image: str, slot: Slot, point: Point | None) -> str:
        """Returns why the file has no place for a point, "" if it has."""
        keypoint = slot[1]
        if image in self.problems:
            return f"the labels of {image} in {self.file} cannot be used: {self.problems[image]}"
        if keypoint not in self.keypoint_names:
            return f"{self.file} has no keypoint {keypoint}"
        if point and point[2] == NOT_VISIBLE and not self.can_hide:
            return f"{self.file} cannot mark {keypoint} as hidden: its marks are only 0 and 1"
        return ""

    def changed(self, changes: Mapping[str, Points]) -> Self:
        """Returns the file with other points; an animal that had no labels, and has no point any more, is left out."""
        points = dict(self.points)
        for image, changed in changes.items():
            none = _no_points((animal for animal, _ in changed), self.keypoint_names)
            new = {**none, **points.get(image, {}), **changed}
            kept = {animal for (animal, _), point in new.items() if point}
            kept |= {animal for animal, _ in self.at_first.get(image, ())}
            points[image] = {slot: point for slot, point in new.items() if slot[0] in kept}
            if not points[image]:
                del points[image]
        return dataclasses.replace(self, points=points)

    def final(self) -> Self:
        """Returns the file as it is left at the end of a session."""
        return self

    def content(self) -> bytes:
        """Returns the bytes of the file: those that were read, if no point has changed."""
        return self._content

    @functools.cached_property
    def _content(self) -> bytes:
        edits = self.edited()
        return self.written(edits) if edits else self.original

    def edited(self) -> dict[str, Points]:
        """Returns {image: points} of the images that differ from the file as it was read."""
        return {image: points for image, points in self.points.items() if points != self.at_first.get(image)}

    def poses(self, points: Points) -> dict[str, list[Point | None]]:
        """Returns {animal: its points in the order of the keypoints}."""
        animals = dict.fromkeys(animal for animal, _ in points)
        return {animal: [points[animal, name] for name in self.keypoint_names] for animal in animals}

    @abc.abstractmethod
    def written(self, edits: Mapping[str, Points]) -> bytes:
        """Returns the bytes of the file with other points of these images."""

    @abc.abstractmethod
    def path_of(self, folder: Path, image: str) -> Path:
        """Returns the file of an image; raises UserError without a usable one."""


def revision_of(poses: Sequence[Sequence[Point | None]], names: Sequence[str]) -> str:
    """Returns a text that is equal for equal points and names of the animals of an image in equal places.

    An animal without a point has no name here, and the last places may be without points. Also after a restart, an edit
    is then of the animal in its place.
    """
    found = {place: (pose, names[place]) for place, pose in enumerate(poses) if any(pose)}
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


def give_place(places: list[str | None], animal: str) -> None:
    """Gives an animal the first free place of an image, unless it has one."""
    if animal not in places:
        free = places.index(None) if None in places else len(places)
        places[free : free + 1] = [animal]


def read_label_file(folder: Path, file: Path, is_deeplabcut: bool) -> LabelFile:
    """Reads a label file; it may have no row yet.

    Args:
      folder: the project; image names are relative to it.
      file: the CSV.
      is_deeplabcut: image names may be paths of another machine.

    Raises:
      UserError: it is not a label file, or its text cannot be written again byte for byte.
      OSError: it cannot be read.
    """
    content = read_bytes(file, most_bytes=None)
    text, encoding = read_text(file)
    mark = "\ufeff" * content.decode(encoding, "replace").startswith("\ufeff")
    if (mark + text).encode(encoding, "replace") != content:
        raise UserError(f"{file} is not a UTF-8 CSV file, so its rows cannot be kept byte for byte: {SAVE_AS_UTF_8}")
    numbered, texts = split_rows(file, text)
    header = read_header(file, numbered)
    refuse_unique(file, header.unique)
    found = LabelFile(
        file=file,
        header=header,
        head=mark + "".join(texts[: header.rows]),
        rows=texts[header.rows :],
        row_of={},
        points={},
        problems={},
        encoding=encoding,
    )
    has_rows = any(any(row) for _, row in numbered[header.rows :])
    return _with_points(folder, found, numbered[header.rows :], is_deeplabcut) if has_rows else found


def read_label_header(file: Path) -> LabelHeader:
    """Returns the columns of a label file; raises as `read_label_file`."""
    header = read_header(file, split_rows(file, read_text(file)[0])[0])
    refuse_unique(file, header.unique)
    return header


def first_image(file: Path) -> str:
    """Returns the image of the first row of a label file, "" without rows; raises as `read_label_file`."""
    numbered, _ = split_rows(file, read_text(file)[0])
    header = read_header(file, numbered)
    rows = (row for _, row in numbered[header.rows :] if any(row))
    return "/".join(next(rows, [""])[: header.index_columns]).replace("\\", "/")


def new_label_file(file: Path, header: Sequence[Sequence[str]]) -> LabelFile:
    """Returns a label file that does not exist yet, with these header rows."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(header)
    numbered = [(number, list(row)) for number, row in enumerate(header, 1)]
    return LabelFile(file, read_header(file, numbered), text.getvalue(), [], {}, {}, {})


def _with_points(
    folder: Path, found: LabelFile, numbered: Sequence[tuple[int, list[str]]], is_deeplabcut: bool
) -> LabelFile:
    table = read_csv_table(folder, found.file, "ignore")
    table = relocated(folder, table) if is_deeplabcut else table
    index_of_line = {line: index for index, (line, _) in enumerate(numbered)}
    individuals = (*table.poses.individuals, "")
    points_px, visibility = table.poses.labels()
    placed = visibility[(visibility > NOT_USED)]
    marks = [coord == _MARK for columns in found.header.columns.values() for _, coord in columns]
    uses_1 = any(marks) and placed.size > 0 and bool((placed == NOT_VISIBLE).all())
    names, identities = table.poses.keypoint_names, np.asarray(table.poses.identity)[:, 0].tolist()
    values = identities, points_px.tolist(), visibility.tolist()
    rows = [*zip(table.poses.frames, table.sources, *values, strict=True)]
    rows += [(one.name, one.source, -1, [], []) for one in table.without_animals]
    row_of, points = dict[str, int](), dict[str, Points]()
    for image, source, number, of_image, of_points in rows:
        # "FILE:LINE", or "FILE:LINE (individual)".
        row_of[image] = index_of_line[int(source.removeprefix(f"{found.file}:").partition(" ")[0])]
        known = points.setdefault(image, _no_points(found.header.columns, names))
        for name, (x, y), mark in zip(names, of_image, of_points, strict=False):
            known[individuals[number], name] = _point(x, y, VISIBLE if uses_1 and mark else mark)
    row_of = dict(sorted(row_of.items(), key=lambda row: row[1]))
    problems = {}
    first = found.header.index_columns
    for problem in table.problems:
        line, _, reason = problem.removeprefix(f"{found.file}:").partition(": ")
        cells = numbered[index_of_line[int(line)]][1]
        problems[PurePosixPath("/".join(cells[:first]).replace("\\", "/")).as_posix()] = reason
    mark = NOT_VISIBLE if uses_1 else VISIBLE
    return dataclasses.replace(found, row_of=row_of, points=points, problems=problems, visible_mark=mark)


def _no_points(animals: Iterable[str], names: Iterable[str]) -> Points:
    names = tuple(names)
    return {(animal, name): None for animal in animals for name in names}


def _point(x: float, y: float, mark: int) -> Point | None:
    if not math.isfinite(x) or mark == NOT_USED or (x, y) == MISSING:
        return None
    return x, y, mark


def split_rows(file: Path, text: str) -> tuple[list[tuple[int, list[str]]], list[str]]:
    """Returns the rows of a CSV, each with the number of its first line, and the text of each.

    Raises:
      UserError: it is not a CSV file.
    """
    lines = list(io.StringIO(text, newline=""))
    reader = csv.reader(lines)
    rows, texts, start = [], [], 0
    try:
        for row in reader:
            rows.append((start + 1, [cell.strip(" \t") for cell in row]))
            texts.append("".join(lines[start : reader.line_num]))
            start = reader.line_num
    except csv.Error as error:
        raise UserError(f"{file} is not a CSV file: {error}") from None
    return rows, texts


def line_end(text: str) -> str:
    """Returns the line end of a row, "" without one."""
    match = re.search(r"[\r\n]+$", text)
    return match[0] if match else ""


def csv_line(cells: Sequence[str], end: str) -> str:
    """Returns the text of a row, with a line end."""
    text = io.StringIO(newline="")
    # Before Python 3.13, only the characters of the line end of a writer are quoted in cells.
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().removesuffix("\r\n") + end
