"""A table of labelled images, independent of the tool that wrote it; projects and files are made from it.

`jaxpose.formats` reads and writes other tools' files; `jaxpose.data.labels` reads a CSV in Lightning Pose's layout.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.data.cells import refuse_alike
from jaxpose.data.named_files import are_in_place, find_files
from jaxpose.errors import UserError
from jaxpose.poses import NOT_USED, NOT_VISIBLE, VISIBLE, Poses, join_poses
from jaxpose.terminal import count, listed

# Finds places where a keypoint lies in several images: label tools often write one place for every missing label.

# A keypoint repeats if at least this many, and this share, of its labels are at one place, and more than around it:
# whole-pixel labels of a keypoint that hardly moves coincide, but have others close by.
_FEWEST, _SHARE, _AROUND_PX = 3, 0.01, 3.0
# Hardly anyone labels the centre of the corner pixel on purpose, not even once.
_CORNER = (0.0, 0.0)
_LISTED = 5


def describe_repeats(keypoint_names: Sequence[str], keypoints_px: np.ndarray, labelled: np.ndarray) -> list[str]:
    """Returns a sentence for each place where a keypoint repeats, with the option that declares labels there missing.

    A place counts if it has at least 3 labels and 1 % of a keypoint's labels, and more than lie within 3 px around it;
    (0, 0) counts from the first label.

    Args:
      keypoint_names: k names.
      keypoints_px: (n, k, 2) x and y in pixels of the image.
      labelled: (n, k) bool.
    """
    at_places: dict[tuple[float, float], dict[str, str]] = {}
    for place, name in enumerate(keypoint_names):
        points = keypoints_px[labelled[:, place], place]
        # The sum turns -0.0 into 0.0.
        counts = Counter(map(tuple, (points + 0.0).tolist()))
        for at, number in counts.items():
            if at == _CORNER or (number >= max(_FEWEST, _SHARE * len(points)) and _is_alone(points, at, number)):
                at_places.setdefault(at, {})[name] = f"{name} in {number:,} of {len(points):,}"
    most_first = sorted(at_places, key=lambda at: (at != _CORNER, -len(at_places[at]), at))
    sentences = [_sentence(at, list(at_places[at].values())) for at in most_first[:_LISTED]]
    if len(most_first) > _LISTED:
        sentences.append(f"keypoints repeat at {len(most_first) - _LISTED} more places")
    return sentences


def _is_alone(points: np.ndarray, at: tuple[float, float], number: int) -> bool:
    """Returns whether fewer labels lie around a place than at it."""
    close = np.asarray(np.hypot(*(points - at).T) <= _AROUND_PX)
    return int(close.sum()) - number < number


def place_text(at: Sequence[float]) -> str:
    """Returns a place as option text: 0,0 or 12.25,30."""
    return ",".join(repr(float(number)).removesuffix(".0") for number in at)


def _sentence(at: tuple[float, float], keypoints: list[str]) -> str:
    text = place_text(at)
    return (
        f"labels at exactly ({text.replace(',', ', ')}): {listed(keypoints, _LISTED)}; if this place stands for a "
        f"missing point, give data.missing_at_px={text}"
    )


# Columns of poses: positions marked as not visible in a file whose marks training does not use; NaN elsewhere.
HIDDEN_PX = ("hidden_x_px", "hidden_y_px")
# Several label tools write this for an unlabelled point.
_ALWAYS_MISSING = [-1.0, -1.0]


class EmptyImage(NamedTuple):
    """An image that a file of several animals lists without any; `is_marked` if a person said that there are none."""

    name: str
    source: str
    path: Path = Path()
    video: str = ""
    is_marked: bool = False


@dataclasses.dataclass(frozen=True)
class LabelTable:
    """The usable rows of the label files of one camera. The images are not opened yet.

    Attributes:
      file: the label file, or the folder of several.
      poses: n animals, one a row, in pixels of the image. Frames are names of images with forward slashes: paths
        relative to the project for files inside it. Points are NaN without a label; `visibility` says how training uses
        each, and the columns `HIDDEN_PX` what the file says about others.
      paths: n files.
      videos: n names of the videos that the images come from.
      sources: n places of the rows: FILE:LINE, with lines counted from 1, or FILE: and the entry of the file.
      problems: "PLACE: reason" of the unusable rows.
      crops_px: {video: (x, y, width, height)} in frame pixels: an image of this size is this crop of its frame. "*"
        stands for videos without an entry.
      sizes_px: {image: (width, height)} that the label tool saw; an image of another size was resized later.
      shown_sizes_px: {image: (width, height)} that the label tool may have seen: shows how it turned the image.
      frame_sizes_px: {video: (width, height)} of the frames of videos that were found.
      video_files: {video: file} of videos outside the project's video folder.
      kind: the recognised kind of project, for the user; "" for the layout of Lightning Pose.
      notes: sentences for the user about the content, both read and ignored.
      scorer: the person who labelled, "" if unknown.
      unlabelled_names: keypoints that the project names and no label file has.
      unread: file content that the table lacks, as numbers with nouns, such as "3 tracks".
      entries: n numbers, in a file of several animals: rows with equal numbers are the animals of one image; () if
        every row is an image of its own.
      without_animals: images that a file of several animals lists without any. `sources` has their form.
      unique: the unique body parts of DeepLabCut, which belong to no animal and are not read.
    """

    file: Path
    poses: Poses
    paths: tuple[Path, ...] = ()
    videos: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    crops_px: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    sizes_px: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    shown_sizes_px: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    frame_sizes_px: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    video_files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    kind: str = ""
    notes: tuple[str, ...] = ()
    scorer: str = ""
    unlabelled_names: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    entries: tuple[int, ...] = ()
    without_animals: tuple[EmptyImage, ...] = ()
    unique: tuple[str, ...] = ()

    @property
    def unique_notes(self) -> tuple[str, ...]:
        """A sentence for the user about `unique`, if there are any."""
        names = ", ".join(self.unique)
        return (f"not trained, because unique body parts belong to no animal: {names}",) if names else ()

    @property
    def most_animals(self) -> int:
        """The largest number of animals in an image."""
        return max(Counter(self.entries).values(), default=1)

    @property
    def keypoints_image_px(self) -> np.ndarray:
        """The points (n, k, 2)."""
        return self.poses.labels()[0]

    @property
    def visibility(self) -> np.ndarray:
        """How training uses each point: (n, k) int8."""
        return self.poses.labels()[1]

    def at(self, rows: Sequence[int]) -> "LabelTable":
        """Returns a table of the given rows, in this order."""
        named = {name: getattr(self, name) for name in ("paths", "videos", "sources", "entries")}
        chosen = {name: tuple(values[row] for row in rows) for name, values in named.items() if values}
        return dataclasses.replace(self, poses=self.poses.at(rows), **chosen)


def is_hidden(poses: Poses) -> np.ndarray:
    """Returns which labels have a position and are marked as not visible: (n, k) bool."""
    points, visibility = poses.labels()
    hidden = (visibility == NOT_VISIBLE) & np.isfinite(points[..., 0])
    return hidden | np.isfinite(poses.columns[HIDDEN_PX[0]][:, 0]) if HIDDEN_PX[0] in poses.columns else hidden


def hidden_columns(points: np.ndarray) -> dict[str, np.ndarray]:
    """Returns columns `HIDDEN_PX` for positions (..., 2)."""
    return {name: points[..., axis] for axis, name in enumerate(HIDDEN_PX)}


def hidden_px(poses: Poses) -> np.ndarray:
    """Returns the positions (n, k, 2) in the columns `HIDDEN_PX`, NaN without them."""
    points = poses.points_px[:, 0]
    if HIDDEN_PX[0] not in poses.columns:
        return np.full_like(points, np.nan)
    return np.stack([poses.columns[name][:, 0] for name in HIDDEN_PX], axis=-1)


def with_files(folder: Path, table: LabelTable) -> LabelTable:
    """Returns the table with image names as in the project; a row that matches two images is a problem.

    The label file may have paths of another machine, or names that differ in case or Unicode form.

    Args:
      folder: the project.
      table: of a label file that names its images relative to it.
    """
    images, kept, problems, names = list[str](), list[int](), list(table.problems), table.poses.frames
    if are_in_place(folder, names):
        images, kept = list(names), list(range(len(names)))
    else:
        for row, match in enumerate(map(find_files(names, [[folder]]).__getitem__, names)):
            is_inside = match.file is not None and match.file.is_relative_to(folder)
            if match.reason:
                problems.append(f"{table.sources[row]}: {match.reason}")
            else:
                kept.append(row)
                # A missing or outside image is reported when it is opened.
                images.append(match.file.relative_to(folder).as_posix() if match.file and is_inside else names[row])
    found = table.at(kept)
    empty = [image.name for image in table.without_animals]
    files = find_files(empty, [[folder]])
    return dataclasses.replace(
        found,
        without_animals=tuple(_with_file(image, files[image.name].file, folder) for image in table.without_animals),
        poses=dataclasses.replace(found.poses, frames=tuple(images)),
        paths=tuple(folder / image for image in images),
        videos=tuple(PurePosixPath(image).parent.name for image in images),
        problems=tuple(problems),
    )


def _with_file(image: EmptyImage, file: Path | None, folder: Path) -> EmptyImage:
    """Returns an image with its name and path as in the project; one that is not in it keeps its name."""
    is_inside = file is not None and file.is_relative_to(folder)
    name = file.relative_to(folder).as_posix() if file and is_inside else image.name
    return image._replace(name=name, path=folder / name, video=PurePosixPath(name).parent.name)


def normalised(table: LabelTable, data: DataConfig, has_hidden: bool = False) -> LabelTable:
    """Returns a table in which missing and visible labels mean the same, whatever tool wrote it.

    Labels at (-1, -1) and at the places of `data.missing_at_px` are missing. If the file has no mark 2, 1 means
    visible. Every reader calls this once with all rows of a camera; notes report how many labels it changed and where
    else keypoints repeat.

    Raises:
      UserError: two keypoints have names that look the same.

    Args:
      table: the rows as in the file.
      data: `missing_at_px`, and the meaning of `missing` labels.
      has_hidden: the file says that 1 means hidden.
    """
    refuse_alike(table.file, table.poses.keypoint_names)
    table = table if has_hidden else _with_visible_marks(table)
    (points, visibility), hidden = table.poses.labels(), hidden_px(table.poses)
    notes = list(table.notes)
    absent = NOT_VISIBLE if data.missing == "not_visible" else NOT_USED
    given = np.reshape(data.missing_at_px, (-1, 2)).astype(float).tolist()
    for at in [_ALWAYS_MISSING, *given]:
        is_there = (points == at).all(axis=-1)
        number = int((is_there & (visibility == VISIBLE)).sum())
        if number or at in given:
            option = f" (data.missing_at_px={place_text(at)})" if at in given else ""
            verb = "counts" if number == 1 else "count"
            notes.append(f"{count(number, 'label')} at exactly ({at[0]:g}, {at[1]:g}) {verb} as missing{option}")
        visibility = np.where(is_there & (visibility == VISIBLE), np.int8(absent), visibility)
        points = np.where(is_there[..., None], np.nan, points)
        hidden = np.where((hidden == at).all(axis=-1)[..., None], np.nan, hidden)
    notes += describe_repeats(table.poses.keypoint_names, points, visibility == VISIBLE)
    columns = hidden_columns(hidden[:, None]) if table.poses.columns else {}
    poses = dataclasses.replace(table.poses, points_px=points[:, None], visibility=visibility[:, None], columns=columns)
    table = dataclasses.replace(table, poses=poses, notes=tuple(notes))
    return _with_labelled_animals(table) if table.entries else table


def _with_labelled_animals(table: LabelTable) -> LabelTable:
    """Returns only the animals with a labelled position, each once; positions that are not labels are removed."""
    (points, visibility), entries = table.poses.labels(), table.entries
    labelled = np.isfinite(points).all(axis=-1) & (visibility > NOT_USED)
    points = np.where(labelled[..., None], points, np.nan)
    kept, problems, first = [], list(table.problems), dict[tuple[int, bytes], int]()
    for row in np.flatnonzero(labelled.any(axis=1)).tolist():
        # The sum turns -0.0 into 0.0.
        other = first.setdefault((entries[row], (points[row] + 0.0).tobytes()), row)
        if other == row:
            kept.append(row)
        else:
            image = table.poses.frames[row]
            problems.append(f"{table.sources[row]}: {image} has the same animal in {table.sources[other]}")
    found = dataclasses.replace(table, poses=dataclasses.replace(table.poses, points_px=points[:, None])).at(kept)
    with_animals = {*found.entries}
    left = {entry: row for row, entry in reversed(list(enumerate(entries))) if entry not in with_animals}
    empty = [EmptyImage(table.poses.frames[row], table.sources[row], table.paths[row], table.videos[row])
             for row in sorted(left.values())]  # fmt: skip
    return dataclasses.replace(found, problems=tuple(problems), without_animals=(*table.without_animals, *empty))


def _with_visible_marks(table: LabelTable) -> LabelTable:
    """Makes all labels visible if all are marked 1: the file uses only 0 and 1."""
    points, visibility = table.poses.labels()
    is_placed = np.isfinite(points).all(axis=-1) & (visibility > NOT_USED)
    is_marked = (visibility == NOT_VISIBLE) | np.isfinite(hidden_px(table.poses)).all(axis=-1)
    if not is_placed.any() or not is_marked[is_placed].all():
        return table
    visibility = np.where(is_placed, np.int8(VISIBLE), visibility)[:, None]
    note = "the marks of visibility are only 0 and 1: 1 counts as labelled and visible"
    poses = dataclasses.replace(table.poses, visibility=visibility, columns={})
    return dataclasses.replace(table, poses=poses, notes=(*table.notes, note))


def join_tables(file: Path, keypoint_names: tuple[str, ...], tables: list[LabelTable]) -> LabelTable:
    """Joins the rows of several tables; a keypoint that a table lacks is not used in its rows.

    Args:
      file: of the result.
      keypoint_names: of the result; other keypoints are dropped.
      tables: one or more.
    """
    scorers = {table.scorer for table in tables}
    return LabelTable(
        file=file,
        poses=join_poses([table.poses.with_keypoints(keypoint_names) for table in tables]),
        paths=tuple(path for table in tables for path in table.paths),
        videos=tuple(video for table in tables for video in table.videos),
        sources=tuple(source for table in tables for source in table.sources),
        problems=tuple(problem for table in tables for problem in table.problems),
        notes=tuple(note for table in tables for note in table.notes),
        scorer=scorers.pop() if len(scorers) == 1 else "",
        entries=_joined_entries(tables),
        without_animals=tuple(image for table in tables for image in table.without_animals),
        unique=tuple(dict.fromkeys(name for table in tables for name in table.unique)),
    )


def _joined_entries(tables: list[LabelTable]) -> tuple[int, ...]:
    """Returns the entries of the rows of several tables, different in each; () if no table has any."""
    if not any(table.entries for table in tables):
        return ()
    joined: list[int] = []
    for table in tables:
        own = table.entries or range(len(table.poses.frames))
        first = max(joined, default=-1) + 1
        joined += [first + entry for entry in own]
    return tuple(joined)


def refuse_several(table: LabelTable) -> None:
    """Raises UserError if an image has several animals, for commands that do not know them."""
    if table.most_animals > 1:
        raise UserError(
            f"{table.file} has up to {table.most_animals} animals in an image; this command reads only labels with one "
            "animal per image (jaxpose train, evaluate and check read several)"
        )


def without_empty_rows(table: LabelTable) -> tuple[LabelTable, int]:
    """Returns the table without rows that have no labels, and their number."""
    kept = np.flatnonzero((table.visibility > NOT_USED).any(axis=1)).tolist()
    return table.at(kept), len(table.visibility) - len(kept)
