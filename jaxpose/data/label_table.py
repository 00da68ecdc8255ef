"""A table of labelled images, whatever tool wrote it: the only thing that a project is made of.

Readers of other tools' files are in `jaxpose.formats`; the table of a CSV in the layout of Lightning Pose is made here.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.codes import NOT_USED, NOT_VISIBLE, VISIBLE
from jaxpose.config import DataConfig
from jaxpose.data.cells import refuse_alike
from jaxpose.data.labels import read_labels
from jaxpose.data.named_files import find_files
from jaxpose.data.repeated_places import describe_repeats, place_text
from jaxpose.errors import UserError
from jaxpose.poses import Skeleton
from jaxpose.quantities import count
from jaxpose.text_file import GUESS, SAVE_AS_UTF_8

# What several label tools write for a point that is not labelled.
_ALWAYS_MISSING = [-1.0, -1.0]


@dataclasses.dataclass(frozen=True)
class LabelTable:
    """The usable rows of the label files of one camera. The images are not opened yet.

    Attributes:
      file: the label file, or the folder of several.
      keypoint_names: k names.
      images: n names, with forward slashes: paths relative to the project for files that lie in it.
      paths: n files.
      videos: n names of the videos that the images were taken from.
      sources: n places of the rows: FILE:LINE, with lines counted from 1, or FILE: and the entry of the file.
      keypoints_image_px: (n, k, 2) float64 (x, y) in pixels of the image, NaN without a label.
      visibility: (n, k) int8: 0 not used, 1 not visible, 2 visible.
      problems: "PLACE: reason" of the rows that cannot be used.
      crops_px: {video: (x, y, width, height)} in frame pixels: an image of this size is this crop of its frame. "*"
        stands for videos without an entry.
      sizes_px: {image: (width, height)} that the label tool saw; an image of another size was resized since.
      shown_sizes_px: {image: (width, height)} that the label tool may have seen: a hint at how it turned the image.
      frame_sizes_px: {video: (width, height)} of the frames of videos that were found.
      video_files: {video: file} of videos that lie elsewhere than in the folder of the project's videos.
      kind: what was recognised, for the user; "" for the layout of Lightning Pose.
      notes: sentences for the user about what was read and what was not.
      scorer: who labelled, "" if unknown.
      hidden_image_px: (n, k, 2) positions, NaN elsewhere, that are marked as not visible in a file whose marks training
        does not use; None for other files. `visibility` says what training does with such a keypoint.
      skeleton: the animal.
      unlabelled_names: keypoints that the project names and no label file has.
      unread: what the files have and the table does not: a number and a noun each, such as "3 tracks".
    """

    file: Path
    keypoint_names: tuple[str, ...]
    images: tuple[str, ...]
    paths: tuple[Path, ...]
    videos: tuple[str, ...]
    sources: tuple[str, ...]
    keypoints_image_px: np.ndarray
    visibility: np.ndarray
    problems: tuple[str, ...] = ()
    crops_px: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    sizes_px: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    shown_sizes_px: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    frame_sizes_px: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    video_files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    kind: str = ""
    notes: tuple[str, ...] = ()
    scorer: str = ""
    hidden_image_px: np.ndarray | None = None
    skeleton: Skeleton = Skeleton()
    unlabelled_names: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @functools.cached_property
    def is_hidden(self) -> np.ndarray:
        """Whether each keypoint has a position and is marked as not visible: (n, k) bool."""
        hidden = (self.visibility == NOT_VISIBLE) & np.isfinite(self.keypoints_image_px[..., 0])
        return hidden if self.hidden_image_px is None else hidden | np.isfinite(self.hidden_image_px[..., 0])


def read_table(folder: Path, file: Path, data: DataConfig) -> LabelTable:
    """Reads a label file, in the layout of Lightning Pose, that is a project of its own.

    Args:
      folder: the project, from which the file names its images.
      file: the CSV.
      data: what counts as a missing label.

    Raises:
      UserError, OSError: as `labels.read_labels`.
    """
    return normalised(read_csv_table(folder, file, data.missing), data)


def read_csv_table(folder: Path, file: Path, missing: str) -> LabelTable:
    """Reads a label file as it is: the reader of several joins them and calls `normalised`.

    Args:
      folder: the project, from which the file names its images.
      file: the CSV.
      missing: as in `labels.read_labels`.

    Raises:
      UserError, OSError: as `labels.read_labels`.
    """
    labels, problems = read_labels(file, missing)
    table = LabelTable(
        file=file,
        keypoint_names=labels.keypoint_names,
        images=labels.images,
        paths=tuple(folder / image for image in labels.images),
        videos=tuple(PurePosixPath(image).parent.name for image in labels.images),
        sources=tuple(f"{file}:{line}" for line in labels.lines),
        keypoints_image_px=labels.keypoints_frame_px,
        visibility=labels.visibility,
        problems=tuple(problems),
        scorer=labels.scorer,
    )
    table = with_files(folder, table)
    if labels.encoding != GUESS:
        return table
    if absent := [name for name in table.images if not name.isascii() and not (folder / name).is_file()]:
        raise UserError(f"{file} is not a UTF-8 CSV file, and there is no image {absent[0]!r}: {SAVE_AS_UTF_8}")
    return dataclasses.replace(table, notes=(f"{file.name} is not UTF-8, and was read as {GUESS}: {SAVE_AS_UTF_8}",))


def with_files(folder: Path, table: LabelTable) -> LabelTable:
    """Returns the table with the names of the images as they are in the project; a row that fits two is a problem.

    The label file may have the paths of another machine, or names that differ in case or Unicode form.

    Args:
      folder: the project.
      table: of a label file that names its images from there.
    """
    images, kept, problems = [], [], list(table.problems)
    for row, match in enumerate(map(find_files(table.images, [[folder]]).__getitem__, table.images)):
        is_inside = match.file is not None and match.file.is_relative_to(folder)
        if match.reason:
            problems.append(f"{table.sources[row]}: {match.reason}")
        else:
            kept.append(row)
            # What is not found or lies outside is reported when the image is opened.
            images.append(match.file.relative_to(folder).as_posix() if match.file and is_inside else table.images[row])
    return dataclasses.replace(
        _with_rows(table, kept),
        images=tuple(images),
        paths=tuple(folder / image for image in images),
        videos=tuple(PurePosixPath(image).parent.name for image in images),
        problems=tuple(problems),
    )


def normalised(table: LabelTable, data: DataConfig) -> LabelTable:
    """Returns a table in which missing and visible labels mean the same as in the tables of every other tool.

    Labels at (-1, -1) and at the places of `data.missing_at_px` are missing. Where the file has no mark 2, 1 means
    visible. Every reader calls this once, with all rows of a camera; notes say how many labels it changed, and where
    else keypoints repeat.

    Raises:
      UserError: two keypoints have names that look the same.

    Args:
      table: the rows as the file has them.
      data: `missing_at_px`, and what `missing` labels mean.
    """
    refuse_alike(table.file, table.keypoint_names)
    table = _with_visible_marks(table)
    points, visibility, hidden = table.keypoints_image_px, table.visibility, table.hidden_image_px
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
        if hidden is not None:
            hidden = np.where((hidden == at).all(axis=-1)[..., None], np.nan, hidden)
    notes += describe_repeats(table.keypoint_names, points, visibility == VISIBLE)
    return dataclasses.replace(
        table, keypoints_image_px=points, visibility=visibility, hidden_image_px=hidden, notes=tuple(notes)
    )


def _with_visible_marks(table: LabelTable) -> LabelTable:
    """Returns a table in which all labels are visible if all of them are marked 1: the file knows only 0 and 1."""
    is_placed = np.isfinite(table.keypoints_image_px).all(axis=-1) & (table.visibility > NOT_USED)
    is_marked = table.visibility == NOT_VISIBLE
    if table.hidden_image_px is not None:
        is_marked = is_marked | np.isfinite(table.hidden_image_px).all(axis=-1)
    if not is_placed.any() or not is_marked[is_placed].all():
        return table
    return dataclasses.replace(
        table,
        visibility=np.where(is_placed, np.int8(VISIBLE), table.visibility),
        hidden_image_px=None,
        notes=(*table.notes, "the marks of visibility are only 0 and 1: 1 counts as labelled and visible"),
    )


def join_tables(file: Path, keypoint_names: tuple[str, ...], tables: list[LabelTable]) -> LabelTable:
    """Returns the rows of several tables as one; a keypoint that a table lacks is not used in its rows.

    Args:
      file: of the result.
      keypoint_names: of the result; other keypoints of the tables are left out.
      tables: one or more.
    """
    parts = [_with_keypoints(table, keypoint_names) for table in tables]
    scorers = {table.scorer for table in tables}
    return LabelTable(
        file=file,
        keypoint_names=keypoint_names,
        images=tuple(image for table in parts for image in table.images),
        paths=tuple(path for table in parts for path in table.paths),
        videos=tuple(video for table in parts for video in table.videos),
        sources=tuple(source for table in parts for source in table.sources),
        keypoints_image_px=np.concatenate([table.keypoints_image_px for table in parts]),
        visibility=np.concatenate([table.visibility for table in parts]),
        problems=tuple(problem for table in parts for problem in table.problems),
        notes=tuple(note for table in parts for note in table.notes),
        scorer=scorers.pop() if len(scorers) == 1 else "",
    )


def without_empty_rows(table: LabelTable) -> tuple[LabelTable, int]:
    """Returns the table without the rows that have no label at all, and their number."""
    kept = np.flatnonzero((table.visibility > 0).any(axis=1)).tolist()
    return _with_rows(table, kept), len(table.images) - len(kept)


def _with_rows(table: LabelTable, rows: list[int]) -> LabelTable:
    return dataclasses.replace(
        table,
        images=tuple(table.images[row] for row in rows),
        paths=tuple(table.paths[row] for row in rows),
        videos=tuple(table.videos[row] for row in rows),
        sources=tuple(table.sources[row] for row in rows),
        keypoints_image_px=table.keypoints_image_px[rows],
        visibility=table.visibility[rows],
    )


def _with_keypoints(table: LabelTable, names: tuple[str, ...]) -> LabelTable:
    points = np.full((len(table.images), len(names), 2), np.nan)
    visibility = np.zeros((len(table.images), len(names)), np.int8)
    for place, name in enumerate(names):
        if name in table.keypoint_names:
            source = table.keypoint_names.index(name)
            points[:, place] = table.keypoints_image_px[:, source]
            visibility[:, place] = table.visibility[:, source]
    return dataclasses.replace(table, keypoint_names=names, keypoints_image_px=points, visibility=visibility)
