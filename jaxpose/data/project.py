"""A labelled project: its usable frames, fixed once, and a message for every unusable one.

Input: a folder with a label file and images, in the layout of Lightning Pose and DeepLabCut. Output: a `Project`. Every
image is hashed, and decoded unless its content was found intact before; `jaxpose.data.images` makes the pixels later.
"""

import dataclasses
import difflib
import os
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.config import SYNTHETIC, DataConfig
from jaxpose.data.labelled_image import LabelledImage, check_image, check_places, known_images, note_images
from jaxpose.data.labels import Labels, labels_checksum, read_labels
from jaxpose.data.views import ENDINGS, label_file_of_view, moment_of_image
from jaxpose.errors import UserError
from jaxpose.files import is_regular
from jaxpose.threads import map_in_threads

LISTED_PROBLEMS = 20
# The advice in every message about the project.
_GIVE_PROJECT = "give the project folder by --config.data.project=FOLDER"


@dataclasses.dataclass(frozen=True)
class Project:
    """The usable labelled frames, in the order of the label file.

    With several cameras, every view of a moment is a frame of its own. Frames are ordered by view, as in `data.views`,
    and in each view by moment.

    Attributes:
      folder: the project.
      label_file: the label file; with several cameras, the name without the view.
      keypoint_names: k names.
      images: n paths relative to the project, with forward slashes.
      paths: n files.
      sources: n times FILE:LINE, the row of a label file; lines are counted from 1.
      videos: n names of the folders of the images.
      views: n names of cameras, "" with only one camera.
      moments: (n,) int32, the same number for the views of one moment: 0 to m - 1, in the order of the label file.
      keypoints_frame_px: (n, k, 2) float64 (x, y) in pixels of the original frame, NaN without a label.
      visibility: (n, k) int8: 0 not used, 1 not visible, 2 visible.
      sizes_px: (n, 2) int32 (width, height).
      byte_counts: n sizes of the files.
      checksums: n SHA-256 of the files, hexadecimal.
      problems: "FILE:LINE: reason" of the rows that were left out.
    """

    folder: Path
    label_file: Path
    keypoint_names: tuple[str, ...]
    images: tuple[str, ...]
    paths: tuple[Path, ...]
    sources: tuple[str, ...]
    videos: tuple[str, ...]
    views: tuple[str, ...]
    moments: np.ndarray
    keypoints_frame_px: np.ndarray
    visibility: np.ndarray
    sizes_px: np.ndarray
    byte_counts: tuple[int, ...]
    checksums: tuple[str, ...]
    problems: tuple[str, ...]

    def labelled_frame_px(self) -> np.ndarray:
        """Returns the labels (n, k, 2), NaN where visibility is 0."""
        return np.where(self.visibility[..., None] > 0, self.keypoints_frame_px, np.nan)

    def labels_checksums(self) -> tuple[str, ...]:
        """Returns n SHA-256, hexadecimal, one of the labels of each frame."""
        return tuple(
            labels_checksum(self.keypoint_names, keypoints, visibility)
            for keypoints, visibility in zip(self.keypoints_frame_px, self.visibility, strict=True)
        )

    def moment_names(self) -> tuple[str, ...]:
        """Returns m names: that of the image, with a folder that does not name the view."""
        _, first = np.unique(self.moments, return_index=True)
        return tuple(moment_of_image(self.images[row], self.views[row]) for row in first.tolist())


@dataclasses.dataclass(frozen=True)
class _View:
    """A label file: `images[moment]` is (row, image) of each usable row; `problems` has the other rows."""

    name: str
    labels: Labels
    images: dict[str, tuple[int, LabelledImage]]
    problems: list[str]


def read_project(data: DataConfig, labels: str = "") -> Project:
    """Reads the labels and checks every image of a project.

    Args:
      data: where it is and what to do with bad frames.
      labels: a label file to read in place of `data.labels`, relative to the project, without the name of a view.

    Raises:
      UserError: the folder or a label file does not exist or is not understood; the views have other keypoints; rows
        cannot be used and `data.on_bad_frame` is stop (the message lists them); or no row can be used.
    """
    folder, labels = _find_folder(data.project), labels or data.labels
    views = [_read_view(folder, labels, name, data) for name in data.views or ("",)]
    first = views[0]
    for view in views:
        names, others = first.labels.keypoint_names, view.labels.keypoint_names
        if names != others:
            raise UserError(
                f"{first.labels.file} has the keypoints {', '.join(names)}, but {view.labels.file} has "
                f"{', '.join(others)}; they must be the same in all views, in one order"
            )
    moments = [moment for moment in first.images if all(moment in view.images for view in views)]
    problems = [problem for view in views for problem in _all_problems(view, views)]
    chosen = [(view, *view.images[moment]) for view in views for moment in moments]
    if problems and (data.on_bad_frame == "stop" or not chosen):
        raise UserError(_refusal([view.labels.file for view in views], problems, len(chosen)))
    paths = tuple(view.labels.images[row] for view, row, _ in chosen)
    return Project(
        folder=folder,
        label_file=folder / labels,
        keypoint_names=first.labels.keypoint_names,
        images=paths,
        paths=tuple(folder / path for path in paths),
        sources=tuple(_source(view.labels, row) for view, row, _ in chosen),
        videos=tuple(PurePosixPath(path).parent.name for path in paths),
        views=tuple(view.name for view, _, _ in chosen),
        moments=np.tile(np.arange(len(moments), dtype=np.int32), len(views)),
        keypoints_frame_px=np.stack([view.labels.keypoints_frame_px[row] for view, row, _ in chosen]),
        visibility=np.stack([view.labels.visibility[row] for view, row, _ in chosen]),
        sizes_px=np.array([image.size_px for _, _, image in chosen], np.int32),
        byte_counts=tuple(image.byte_count for _, _, image in chosen),
        checksums=tuple(image.checksum for _, _, image in chosen),
        problems=tuple(problems),
    )


def refuse_absent(data: DataConfig) -> None:
    """Checks that the folder and the label files of a project exist; opens none of them.

    Raises:
      UserError: one does not exist.
    """
    if data.project != SYNTHETIC:
        for view in data.views or ("",):
            _find_labels(_find_folder(data.project), data.labels, view)


def _read_view(folder: Path, labels: str, name: str, data: DataConfig) -> _View:
    file = _find_labels(folder, labels, name)
    read, problems = read_labels(file, data.missing)
    noted = known_images(file)
    sizes_px = dict(noted)

    def check(row: int) -> tuple[str, LabelledImage] | str:
        try:
            moment = moment_of_image(read.images[row], name)
            image = check_image(folder, read.images[row], sizes_px)
            check_places(read, row, image.size_px, data.crop_px)
        except UserError as error:
            return f"{_source(read, row)}: {error}"
        return moment, image

    images = {}
    rows = range(len(read.images))
    for row, checked in zip(rows, map_in_threads(check, rows, data.threads, "checking images"), strict=True):
        if isinstance(checked, str):
            problems.append(checked)
        else:
            moment, image = checked
            images[moment] = row, image
    note_images(file, noted, (image for _, image in images.values()))
    return _View(name, read, images, problems)


def _source(labels: Labels, row: int) -> str:
    return f"{labels.file}:{labels.lines[row]}"


def _all_problems(view: _View, views: list[_View]) -> list[str]:
    """Returns the problems of the rows of a view, in their order, including moments that another view lacks."""
    problems = list(view.problems)
    for moment, (row, _) in view.images.items():
        lacking = [other for other in views if moment not in other.images]
        if lacking:
            problems.append(
                f"{_source(view.labels, row)}: {view.labels.images[row]} has no usable row for the view "
                f"{lacking[0].name} in {lacking[0].labels.file}"
            )
    return sorted(problems, key=lambda problem: int(problem[len(f"{view.labels.file}:") :].split(":")[0]))


def extra_label_files(data: DataConfig) -> list[str]:
    """Returns the label files beside `data.labels` that are evaluated after training, relative to the project.

    They are CollectedData_new.csv, CollectedData_test.csv and the same endings on the name of `data.labels`. With
    several cameras, CollectedData_new.csv stands for CollectedData_<view>_new.csv.
    """
    labels = PurePosixPath(data.labels)
    stems = dict.fromkeys((labels.with_suffix("").as_posix(), (labels.parent / "CollectedData").as_posix()))
    names = [f"{stem}{ending}.csv" for stem in stems for ending in ENDINGS]
    folder, views = Path(data.project).expanduser(), data.views or ("",)
    existing = {name for name in names if any((folder / label_file_of_view(name, view)).is_file() for view in views)}
    return [name for name in names if name != labels.as_posix() and name in existing]


def _find_folder(project: str) -> Path:
    if not project:
        raise UserError(f"data.project is empty; {_GIVE_PROJECT}")
    # Path.resolve raises RuntimeError where symbolic links form a loop.
    folder = Path(os.path.realpath(Path(project).expanduser()))
    if folder.is_dir():
        return folder
    parent = next(parent for parent in folder.parents if parent.is_dir())
    missing = folder.relative_to(parent).parts[0]
    if os.path.lexists(parent / missing):
        raise UserError(f"data.project is {project!r}, but {parent / missing} is not a folder; {_GIVE_PROJECT}")
    names = sorted(entry.name for entry in parent.iterdir() if entry.is_dir())
    near = difflib.get_close_matches(missing, names, 3)
    hint = f"did you mean {' or '.join(str(parent / name) for name in near)}?" if near else _GIVE_PROJECT
    raise UserError(f"data.project is {project!r}, but {parent} has no folder {missing!r}; {hint}")


def _find_labels(folder: Path, labels: str, view: str) -> Path:
    name = label_file_of_view(labels, view)
    file = folder / name
    if is_regular(file):
        return file
    names = sorted(entry.name for entry in folder.glob("*.csv") if is_regular(entry))
    lacks = f"{file} is a folder" if file.is_dir() else f"{folder} has no {name}"
    asked = f"data.views has {view!r}" if view else f"data.labels is {labels!r}"
    raise UserError(
        f"{asked}, but {lacks}"
        + (f"; its CSV files are {', '.join(names)}" if names else "; it has no CSV file at all")
    )


def _refusal(files: list[Path], problems: list[str], usable: int) -> str:
    rows = len(problems) + usable
    fix = "fix them, or leave them out with data.on_bad_frame=skip" if usable else "none is left"
    more = len(problems) - LISTED_PROBLEMS
    where = ", ".join(map(str, files))
    lines = [f"{len(problems)} of {rows} rows of {where} cannot be used; {fix}:", *problems[:LISTED_PROBLEMS]]
    return "\n".join([*lines, f"... and {more} more"] if more > 0 else lines)
