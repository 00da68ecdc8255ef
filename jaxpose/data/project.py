"""A labelled project: its usable frames, and a message for every unusable one.

Input: label tables that `jaxpose.formats` reads from other tools' files, or a folder in the layout of Lightning Pose.
Output: a `Project`. Hashes every image, and decodes it unless it is known to be intact; `jaxpose.data.images` makes the
pixels later.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxpose.config import DataConfig, video_crop
from jaxpose.data import animals
from jaxpose.data.checked_table import CheckedTable, LabelledImage, check_table, sorted_problems
from jaxpose.data.image_file import AUTO, PixelRule, choose_white, describe_white
from jaxpose.data.label_changes import read_at_once
from jaxpose.data.label_files import find_folder, find_labels, moment_of_image
from jaxpose.data.label_table import LabelTable, is_hidden
from jaxpose.data.labels import labels_checksum, read_table
from jaxpose.errors import UserError
from jaxpose.poses import VISIBLE, Poses, join_poses
from jaxpose.terminal import count, listed

LISTED_PROBLEMS = 20
# Of those that lack images.
_LISTED_MOMENTS = 3


@dataclasses.dataclass(frozen=True)
class Project:
    """The usable labelled frames, in the order of the label file.

    With several cameras, every view of a moment is a separate frame, and a moment may lack views. Frames are ordered by
    view, as in `data.views`, then by moment. If images have several animals, each animal is a separate frame with a
    box; those of an image follow each other from left to right.

    Attributes:
      folder: the project, or its folder if it is a file.
      label_file: the label file, or the folder of several; with several cameras, the name without the view.
      poses: n frames with one animal each, in pixels of the original frame, NaN without a label. Frames are image names
        with forward slashes: paths relative to the project for images inside it; with several animals, followed by
        the number of the animal in its image, as in `animals.row_name`.
      paths: n files.
      sources: n places of the labels: FILE:LINE, with lines counted from 1, or FILE: and the entry of the file.
      videos: n names of the videos that the images come from: the names of their folders.
      views: n names of cameras, "" with only one camera.
      moments: (n,) int32, equal for the views of one moment and the animals of one image: 0 to m - 1, in label file
        order.
      sizes_px: (n, 2) int32 (width, height) of the images.
      byte_counts: n file sizes.
      checksums: n hexadecimal SHA-256 of the files.
      pixel_checksums: n SHA-256 of their pixels: equal for the same picture in files of any form.
      problems: "FILE:LINE: reason" of the rows left out.
      crops_px: n crops (x, y, width, height) in pixels of the original frame, each () if the image is a whole frame; ()
        if all are.
      boxes_px: n boxes (x, y, width, height) inside the images, the parts the network sees; () without `data.boxes`.
        With several animals, a box around each, which may extend past its image.
      video_crops_px: in the form of `data.video_crops_px`.
      video_files: {name: file} of videos outside the project's video folder.
      kind: the recognised kind of project, for the user; "" for the layout of Lightning Pose.
      notes: sentences for the user about the content, both read and ignored.
      unlabelled_names: keypoints that the project names and no label file has.
      orientation: which pixels the labels refer to, as in `image_file.PixelRule`.
      white: the white of images of more than 8 bits, derived from their values; 0 without any.
      most_animals: the largest number of animals in an image; 0 if a row is an image.
      body_size_px: of the animals, see `animals.body_size_px`; 0 if a row is an image.
      without_animals: the images that the labels of several animals list without any, None if there are none.
    """

    folder: Path
    label_file: Path
    poses: Poses
    paths: tuple[Path, ...]
    sources: tuple[str, ...]
    videos: tuple[str, ...]
    views: tuple[str, ...]
    moments: np.ndarray
    sizes_px: np.ndarray
    byte_counts: tuple[int, ...]
    checksums: tuple[str, ...]
    pixel_checksums: tuple[str, ...]
    problems: tuple[str, ...]
    crops_px: tuple[tuple[int, ...], ...] = ()
    boxes_px: tuple[tuple[int, ...], ...] = ()
    video_crops_px: tuple[str, ...] = ()
    video_files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    kind: str = ""
    notes: tuple[str, ...] = ()
    unlabelled_names: tuple[str, ...] = ()
    orientation: str = AUTO
    white: float = 0.0
    most_animals: int = 0
    body_size_px: float = 0.0
    without_animals: "Project | None" = None

    @property
    def images(self) -> tuple[str, ...]:
        """The names of the n images; the animals of an image have one."""
        names = tuple(self.poses.frames)
        return tuple(map(animals.image_of_row, names)) if self.most_animals else names

    @property
    def keypoints_frame_px(self) -> np.ndarray:
        """The points (n, k, 2)."""
        return self.poses.labels()[0]

    @property
    def visibility(self) -> np.ndarray:
        """How training uses each point: (n, k) int8."""
        return self.poses.labels()[1]

    def pixel_rule(self, white: float) -> PixelRule:
        """Returns how images become pixels, with a run's white."""
        return PixelRule(self.orientation, white)

    def crop_px(self, row: int) -> tuple[int, ...]:
        """Returns the crop (x, y, width, height) of the frame that an image shows, () for a whole frame."""
        return self.crops_px[row] if self.crops_px else ()

    def part_px(self, row: int, crop_px: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the part (x, y, width, height) of an image that the network sees, () for all of it.

        Args:
          row: of the image.
          crop_px: `data.crop_px`, the part of images without boxes.
        """
        return self.boxes_px[row] if self.boxes_px else crop_px

    def labelled_frame_px(self) -> np.ndarray:
        """Returns the labels (n, k, 2), NaN where visibility is 0."""
        return np.where(self.visibility[..., None] > 0, self.keypoints_frame_px, np.nan)

    def measured_frame_px(self) -> np.ndarray:
        """Returns the labels (n, k, 2) from which errors are measured: those where training puts a target."""
        return np.where((self.visibility == VISIBLE)[..., None], self.keypoints_frame_px, np.nan)

    def not_visible(self) -> np.ndarray:
        """Returns which keypoints (n, k) have a labelled position and are marked as not visible.

        Whether training puts a target there depends on the format: it does for v = 1 in COCO, but not for visible = 1
        in a CSV, where the network learns to be unsure.
        """
        return is_hidden(self.poses) & np.isfinite(self.labelled_frame_px()).all(axis=-1)

    def whole_images(self, most: int, with_empty: bool = False) -> "Project":
        """Returns the project with a row for each image, with up to `most` animals, and without boxes.

        Args:
          most: the largest number of animals.
          with_empty: the images without animals follow.
        """
        _, first = np.unique(self.moments, return_index=True)

        def at(values: tuple) -> tuple:
            return tuple(values[row] for row in first.tolist())

        points, visibility = (animals.by_image(values, self.moments, most) for values in self.poses.labels())
        images = at(self.images)
        poses = Poses(self.poses.keypoint_names, images, points, visibility=visibility, skeleton=self.poses.skeleton)
        whole = dataclasses.replace(
            self,
            poses=poses,
            paths=at(self.paths),
            sources=at(self.sources),
            videos=at(self.videos),
            views=at(self.views),
            moments=self.moments[first],
            sizes_px=self.sizes_px[first],
            byte_counts=at(self.byte_counts),
            checksums=at(self.checksums),
            pixel_checksums=at(self.pixel_checksums),
            boxes_px=(),
            most_animals=0,
        )
        return whole._followed_by(self.without_animals) if with_empty and self.without_animals else whole

    def _followed_by(self, empty: "Project") -> "Project":
        """Returns these whole images, and then those of a project of images without animals."""
        number = len(empty.poses.frames)
        absent = np.full((number, *self.poses.points_px.shape[1:]), np.nan)
        unused = np.zeros(absent.shape[:3], np.int8)
        of_empty = Poses(self.poses.keypoint_names, empty.poses.frames, absent, visibility=unused)
        of_rows = ("paths", "sources", "videos", "views", "byte_counts", "checksums", "pixel_checksums")
        joined = {name: (*getattr(self, name), *getattr(empty, name)) for name in of_rows}
        return dataclasses.replace(
            self,
            poses=join_poses([self.poses, of_empty]),
            moments=np.arange(len(self.moments) + number, dtype=np.int32),
            sizes_px=np.concatenate([self.sizes_px, empty.sizes_px]),
            **joined,
        )

    def labels_checksums(self) -> tuple[str, ...]:
        """Returns n hexadecimal SHA-256, one for the labels of each frame."""
        return tuple(
            labels_checksum(self.poses.keypoint_names, keypoints, visibility)
            for keypoints, visibility in zip(self.keypoints_frame_px, self.visibility, strict=True)
        )

    def rows_of_moments(self) -> np.ndarray:
        """Returns the row of each view of each moment, int64 (m, v); -1 if the moment lacks an image of the view."""
        views = list(dict.fromkeys(self.views))
        rows = np.full((self.moments.max() + 1, len(views)), -1, np.int64)
        rows[self.moments, [views.index(view) for view in self.views]] = np.arange(len(self.views))
        return rows

    def describe_absent(self) -> str:
        """Returns how many moments lack images, of which views, and the first ones; "" if none does.

        Names sessions of which only one view has images, as if their name were misspelled.
        """
        is_absent = self.rows_of_moments() < 0
        if not is_absent.any():
            return ""
        names, moments = self.moment_names(), np.flatnonzero(is_absent.any(axis=1)).tolist()
        of_views = zip(dict.fromkeys(self.views), is_absent.sum(axis=0).tolist(), strict=True)
        lacking = ", ".join(f"{number} of {view}" for view, number in of_views if number)
        first = ", ".join(names[moment] for moment in moments[:_LISTED_MOMENTS])
        more = f" and {len(moments) - _LISTED_MOMENTS} more" * (len(moments) > _LISTED_MOMENTS)
        views_of_session: dict[str, set[int]] = {}
        for name, absent in zip(names, is_absent, strict=True):
            views_of_session.setdefault(name.rpartition("/")[0], set()).update(np.flatnonzero(~absent).tolist())
        single = [name for name, views in views_of_session.items() if len(views) == 1]
        alone = f"; only one view has images of {listed(single, 3)}: are the names of the others spelled alike?"
        text = f"{len(moments)} of {count(len(names), 'moment')} lack an image ({lacking}): {first}{more}"
        return text + alone * bool(single)

    def moment_names(self) -> tuple[str, ...]:
        """Returns m names: the image, in a folder without the view."""
        _, first = np.unique(self.moments, return_index=True)
        return tuple(moment_of_image(self.images[row], self.views[row]) for row in first.tolist())


def read_project(data: DataConfig, labels: str = "") -> Project:
    """Reads the labels and checks every image of a project in the layout of Lightning Pose.

    `jaxpose.formats.project.read_project` also reads projects of other tools.

    Args:
      data: the project's location, and how to treat bad frames.
      labels: a label file to read instead of `data.labels`, relative to the project, without a view name.

    Raises:
      UserError: the folder or a label file is missing or not understood, or as `make_project`.
    """
    folder, labels = find_folder(data.project), labels or data.labels
    files = [find_labels(folder, labels, view) for view in data.views or ("",)]
    tables = read_at_once(folder, lambda: [read_table(folder, file, data) for file in files])
    return make_project(folder, folder / labels, tables, data)


def make_project(folder: Path, label_file: Path, tables: list[LabelTable], data: DataConfig) -> Project:
    """Checks every image in the table of each view and makes a project.

    Args:
      folder: the project.
      label_file: the attribute `label_file` of the project.
      tables: of the views in `data.views`, or one.
      data: how to treat bad frames.

    Raises:
      UserError: the views have different keypoints; some rows are unusable and `data.on_bad_frame` is stop (the message
        lists them); a view has no usable row, or no two views show one moment; or `data.crop_px` or `data.boxes` is
        given but the images are already crops.
    """
    views = [check_table(table, view, data) for table, view in zip(tables, data.views or ("",), strict=True)]
    first = views[0]
    _refuse_other_keypoints(views)
    moments = list(dict.fromkeys(moment for view in views for moment in view.images))
    problems = [problem for view in views for problem in sorted_problems(view)]
    of_views = [[moment for moment in moments if moment in view.images] for view in views]
    chosen = [(view, *view.images[moment]) for view, own in zip(views, of_views, strict=True) for moment in own]
    if not chosen or (problems and data.on_bad_frame == "stop"):
        raise UserError(refusal([view.table.file for view in views], problems, len(chosen)))
    _refuse_separate_views(views, of_views)
    crops_px = tuple(view.crop_px(row, image) for view, row, image in chosen)
    if any(crops_px):
        _refuse_other_crops(label_file, data)
    offsets_px = np.array([crop[:2] or (0, 0) for crop in crops_px])
    white, notes = _white(chosen, data)
    image_poses = [
        view.table.poses.at([view.images[moment][0] for moment in own])
        for view, own in zip(views, of_views, strict=True)
    ]
    number = {moment: at for at, moment in enumerate(moments)}
    project = Project(
        folder=folder,
        label_file=label_file,
        poses=join_poses(image_poses).shifted(offsets_px, "frame"),
        paths=tuple(view.table.paths[row] for view, row, _ in chosen),
        sources=tuple(view.table.sources[row] for view, row, _ in chosen),
        videos=tuple(view.table.videos[row] for view, row, _ in chosen),
        views=tuple(view.view for view, _, _ in chosen),
        moments=np.array([number[moment] for own in of_views for moment in own], np.int32),
        sizes_px=np.array([image.size_px for _, _, image in chosen], np.int32),
        crops_px=crops_px if any(crops_px) else (),
        boxes_px=tuple(image.box_px for *_, image in chosen) if data.boxes else (),
        byte_counts=tuple(image.byte_count for _, _, image in chosen),
        checksums=tuple(image.checksum for _, _, image in chosen),
        pixel_checksums=tuple(image.pixel_checksum for _, _, image in chosen),
        problems=tuple(problems),
        video_crops_px=_video_crops_px(chosen, crops_px),
        video_files=first.table.video_files,
        kind=first.table.kind,
        notes=(*_notes(views, any(crops_px)), *notes),
        unlabelled_names=first.table.unlabelled_names,
        orientation=next((view.orientation for view in views if view.orientation != AUTO), AUTO),
        white=white,
    )
    return _with_animals(project, first, moments, data) if first.animals else project


def _refuse_separate_views(views: list[CheckedTable], of_views: list[list[str]]) -> None:
    """Refuses a view without usable images, and views of which no two show one moment."""
    for view, own in zip(views, of_views, strict=True):
        if not own:
            raise UserError(refusal([view.table.file], sorted_problems(view), 0))
    if len(views) > 1 and len({moment for own in of_views for moment in own}) == sum(map(len, of_views)):
        shown = ", ".join(
            f"{view.table.poses.frames[view.images[own[0]][0]]}" for view, own in zip(views, of_views, strict=True)
        )
        raise UserError(
            f"no moment has images of two of the views {', '.join(view.view for view in views)}: images of one moment "
            f"have one name and session, as labeled-data/<session>_<view>/<name>; the first of each view are {shown}"
        )


def _with_animals(project: Project, checked: CheckedTable, rows: Sequence[str], data: DataConfig) -> Project:
    """Returns the project with rows named as in `animals.row_name`, and a box around each animal."""
    if project.crops_px:
        raise UserError(
            f"labelled images of {project.label_file} are crops of their frames, and have several animals; jaxpose "
            "trains several animals only on whole frames"
        )
    images = list(map(animals.image_of_row, rows))
    number = {image: at for at, image in enumerate(dict.fromkeys(images))}
    moments = np.array([number[image] for image in images], np.int32)
    size_px = data.body_size_px or animals.body_size_px(project.poses)
    if size_px < 1:
        raise UserError(
            f"the labelled animals of {project.label_file} have a size of {size_px:g} px, less than 1: give "
            "the longest side of an animal in data.body_size_px"
        )
    return dataclasses.replace(
        project,
        poses=dataclasses.replace(project.poses, frames=tuple(rows)),
        moments=moments,
        boxes_px=animals.boxes_px(project.poses, size_px),
        most_animals=int(np.bincount(moments).max()),
        body_size_px=size_px,
        without_animals=_without_animals(project, checked) if checked.without_animals else None,
    )


def _without_animals(project: Project, checked: CheckedTable) -> Project:
    """Returns the project of the images without animals."""
    names, found = tuple(checked.without_animals), checked.without_animals.values()
    points = np.full((len(names), 1, len(project.poses.keypoint_names), 2), np.nan)
    return dataclasses.replace(
        project,
        poses=Poses(project.poses.keypoint_names, names, points, visibility=np.zeros(points.shape[:3], np.int8)),
        paths=tuple(empty.path for empty, _ in found),
        sources=tuple(empty.source for empty, _ in found),
        videos=tuple(empty.video for empty, _ in found),
        views=("",) * len(names),
        moments=np.arange(len(names), dtype=np.int32),
        sizes_px=np.array([image.size_px for _, image in found], np.int32),
        byte_counts=tuple(image.byte_count for _, image in found),
        checksums=tuple(image.checksum for _, image in found),
        pixel_checksums=tuple(image.pixel_checksum for _, image in found),
    )


def _refuse_other_crops(label_file: Path, data: DataConfig) -> None:
    given = "crop_px" if data.crop_px else "boxes" if data.boxes else ""
    if given:
        raise UserError(
            f"data.{given} is {getattr(data, given)}, but labelled images of {label_file} are crops of their frames "
            f"already; remove data.{given}"
        )


def _notes(views: list[CheckedTable], has_crops: bool) -> list[str]:
    """Returns the notes of the tables (with several cameras, each names its view) and of their images."""
    tables = [f"{f'{view.view}: ' * (len(views) > 1)}{note}" for view in views for note in view.table.notes]
    if (empty := len(views[0].table.without_animals)) and not views[0].animals:
        tables.append(f"left out: {count(empty, 'image')} without an animal")
    return [*tables, *(note for view in views for note in (*view.size_notes(has_crops), *view.notes))]


def _refuse_other_keypoints(views: list[CheckedTable]) -> None:
    first = views[0]
    for view in views:
        names, others = first.table.poses.keypoint_names, view.table.poses.keypoint_names
        if names != others:
            raise UserError(
                f"{first.table.file} has the keypoints {', '.join(names)}, but {view.table.file} has "
                f"{', '.join(others)}; they must be the same in all views, in one order"
            )


def _white(chosen: list[tuple[CheckedTable, int, LabelledImage]], data: DataConfig) -> tuple[float, list[str]]:
    """Returns the project's `white`, and a sentence about images of more than 8 bits."""
    ranges = [image.facts.values for *_, image in chosen if image.facts.values]
    white = data.white or choose_white(ranges)
    return white, list(filter(None, [describe_white(ranges, white)[0]]))


def _video_crops_px(
    chosen: list[tuple[CheckedTable, int, LabelledImage]], crops_px: tuple[tuple[int, ...], ...]
) -> tuple[str, ...]:
    """Returns video crops in the form of `data.video_crops_px`; () if no image is a crop."""
    of_videos = {view.table.videos[row]: crop for (view, row, _), crop in zip(chosen, crops_px, strict=True) if crop}
    others = {name: crop for view, *_ in chosen for name, crop in view.table.crops_px.items() if name == "*"}
    # The crop for all other videos does not apply to a video labelled as a whole.
    wholes = {
        (video := view.table.videos[row]): (0, 0, *view.table.frame_sizes_px.get(video, image.size_px))
        for view, row, image in (chosen if others else ())
    }
    return tuple(video_crop(name, crop) for name, crop in sorted((wholes | of_videos | others).items()) if of_videos)


def refusal(files: list[Path], problems: list[str], usable: int) -> str:
    """Returns why label files with these problems and this number of usable rows are refused."""
    rows = len(problems) + usable
    fix = "fix them, or leave them out with data.on_bad_frame=skip" if usable else "none is left"
    where, shown = ", ".join(map(str, files)), _by_reason(problems)
    more = len(shown) - LISTED_PROBLEMS
    if not problems:
        return f"{where} has no labelled image"
    lines = [f"{len(problems)} of {rows} rows of {where} cannot be used; {fix}:", *shown[:LISTED_PROBLEMS]]
    return "\n".join([*lines, f"... and {more} more"] if more > 0 else lines)


def _by_reason(problems: list[str]) -> list[str]:
    """Returns the rows; of those that share a reason and would fill the list, as of a missing video, only the first."""
    lines, seen = list[str](), set[str]()
    reasons = [problem.partition(": ")[2] for problem in problems]
    rows_of = Counter(reasons)
    for problem, reason in zip(problems, reasons, strict=True):
        if (rows := rows_of[reason]) <= LISTED_PROBLEMS:
            lines.append(problem)
        elif reason not in seen:
            lines.append(f"{problem} (as in {count(rows - 1, 'other row')})")
        seen.add(reason)
    return lines
