"""A labelled project: its usable frames, fixed once, and a sentence for everything that is wrong with the others.

What comes in: a folder with a label file and images, as Lightning Pose and DeepLabCut lay it out. What goes out: a
`Project`. Every image is hashed and, unless the cache folder notes that this content was whole before, decoded; its
pixels are made later, by `jaxpose.data.images`.
"""

import contextlib
import dataclasses
import difflib
import hashlib
import os
import re
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose import cache
from jaxpose.config import SYNTHETIC, DataConfig
from jaxpose.data.image_file import DECODERS, image_size_px
from jaxpose.data.labels import Labels, labels_checksum, read_labels
from jaxpose.data.views import ENDINGS, label_file_of_view, moment_of_image
from jaxpose.files import is_regular, read_regular
from jaxpose.threads import map_in_threads
from jaxpose.visibility import VISIBLE

LISTED_PROBLEMS = 20
MARGIN_PX = 0.5
# Whichever config it is.
_GIVE_PROJECT = "give the project folder by --config.data.project=FOLDER"


@dataclasses.dataclass(frozen=True)
class Project:
    """The usable labelled frames, in the order of the label file.

    With several cameras every view of a moment is a frame of its own. The frames of one view come after those of
    another, in the order of `data.views`, and their moments are in the same order in each.

    Attributes:
      folder: the project.
      label_file: where the labels were read; with several cameras its name does not tell the view.
      keypoint_names: k names.
      images: n paths relative to the project, with forward slashes.
      paths: n files.
      sources: n times FILE:LINE, the row of a label file; lines are counted from 1.
      videos: n names of the folders that the images lie in.
      views: n names of cameras, "" where there is only one.
      moments: (n,) int32, the same number for the views of one moment: 0 to m - 1, in the order of the label file.
      keypoints_frame_px: (n, k, 2) float64 (x, y) in pixels of the original frame, NaN where there is no label.
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
        """Returns the labels (n, k, 2), NaN where there is none; where visibility is 0 a position means nothing."""
        return np.where(self.visibility[..., None] > 0, self.keypoints_frame_px, np.nan)

    def labels_checksums(self) -> tuple[str, ...]:
        """Returns n SHA-256, hexadecimal, one of the labels of each frame."""
        return tuple(
            labels_checksum(self.keypoint_names, keypoints, visibility)
            for keypoints, visibility in zip(self.keypoints_frame_px, self.visibility, strict=True)
        )

    def moment_names(self) -> tuple[str, ...]:
        """Returns m names: that of the image, with a folder that does not tell the view."""
        _, first = np.unique(self.moments, return_index=True)
        return tuple(moment_of_image(self.images[row], self.views[row]) for row in first.tolist())


@dataclasses.dataclass(frozen=True)
class _Image:
    size_px: tuple[int, int]
    byte_count: int
    checksum: str


@dataclasses.dataclass(frozen=True)
class _View:
    """A label file: `images[moment]` is (row, image) of a row that can be used, the other rows are problems."""

    name: str
    labels: Labels
    images: dict[str, tuple[int, _Image]]
    problems: list[str]


def read_project(data: DataConfig, labels: str = "") -> Project:
    """Reads the labels and checks every image of a project.

    Args:
      data: where it is and what to do with bad frames.
      labels: a label file to read in place of `data.labels`, relative to the project, without the name of a view.

    Raises:
      ValueError: the folder or a label file does not exist or is not understood; the views have other keypoints; rows
        cannot be used and `data.on_bad_frame` is stop (the message lists them); or no row can be used.
    """
    folder, labels = _find_folder(data.project), labels or data.labels
    views = [_read_view(folder, labels, name, data) for name in data.views or ("",)]
    first = views[0]
    for view in views:
        names, others = first.labels.keypoint_names, view.labels.keypoint_names
        if names != others:
            raise ValueError(
                f"{first.labels.file} has the keypoints {', '.join(names)}, but {view.labels.file} has "
                f"{', '.join(others)}; they must be the same in all views, in one order"
            )
    moments = [moment for moment in first.images if all(moment in view.images for view in views)]
    problems = [problem for view in views for problem in _all_problems(view, views)]
    chosen = [(view, *view.images[moment]) for view in views for moment in moments]
    if problems and (data.on_bad_frame == "stop" or not chosen):
        raise ValueError(_refusal([view.labels.file for view in views], problems, len(chosen)))
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
    """Looks whether the folder and the label files of a project are there; opens none of them.

    Raises:
      ValueError: one is not.
    """
    if data.project != SYNTHETIC:
        for view in data.views or ("",):
            _find_labels(_find_folder(data.project), data.labels, view)


def _read_view(folder: Path, labels: str, name: str, data: DataConfig) -> _View:
    file = _find_labels(folder, labels, name)
    read, problems = read_labels(file, data.missing)
    noted = _noted_images(file)
    whole = set(noted)

    def check(row: int) -> tuple[str, _Image] | str:
        try:
            moment = moment_of_image(read.images[row], name)
            image = _check_image(folder, read.images[row], whole)
            _check_places(read, row, image.size_px, data.crop_px)
        except ValueError as error:
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
    _note_images(file, noted, {image.checksum for _, image in images.values()})
    return _View(name, read, images, problems)


def _noted_images(label_file: Path) -> frozenset[str]:
    """Returns the checksums of the images of a label file that were whole when it was read last."""
    noted = cache.read_note(_note_key(label_file))
    return frozenset(entry for entry in noted if isinstance(entry, str)) if isinstance(noted, list) else frozenset()


def _note_images(label_file: Path, noted: frozenset[str], whole: set[str]) -> None:
    """Keeps the checksums of whole images for `_noted_images`, where there are new ones."""
    if not whole <= noted:
        # Without the note, images are decoded again.
        with contextlib.suppress(OSError):
            cache.write_note(_note_key(label_file), sorted(whole))


def _note_key(label_file: Path) -> str:
    return hashlib.sha256(repr(("whole images", DECODERS, str(label_file))).encode()).hexdigest()


def _source(labels: Labels, row: int) -> str:
    return f"{labels.file}:{labels.lines[row]}"


def _all_problems(view: _View, views: list[_View]) -> list[str]:
    """Returns what is wrong with the rows of a view, in their order; a moment that another view lacks is too."""
    problems = list(view.problems)
    for moment, (row, _) in view.images.items():
        lacking = [other for other in views if moment not in other.images]
        if lacking:
            problems.append(
                f"{_source(view.labels, row)}: {view.labels.images[row]} has no row that can be used for the view "
                f"{lacking[0].name} in {lacking[0].labels.file}"
            )
    return sorted(problems, key=lambda problem: int(problem[len(f"{view.labels.file}:") :].split(":")[0]))


def extra_label_files(data: DataConfig) -> list[str]:
    """Returns the label files beside `data.labels` that are evaluated after training, relative to the project.

    They are CollectedData_new.csv, CollectedData_test.csv and the same endings on the name of `data.labels`. With
    several cameras CollectedData_new.csv stands for CollectedData_<view>_new.csv.
    """
    labels = PurePosixPath(data.labels)
    stems = dict.fromkeys((labels.with_suffix("").as_posix(), (labels.parent / "CollectedData").as_posix()))
    names = [f"{stem}{ending}.csv" for stem in stems for ending in ENDINGS]
    folder, views = Path(data.project).expanduser(), data.views or ("",)
    there = {name for name in names if any((folder / label_file_of_view(name, view)).is_file() for view in views)}
    return [name for name in names if name != labels.as_posix() and name in there]


def _find_folder(project: str) -> Path:
    if not project:
        raise ValueError(f"data.project is empty; {_GIVE_PROJECT}")
    # Path.resolve raises RuntimeError where symbolic links form a loop.
    folder = Path(os.path.realpath(Path(project).expanduser()))
    if folder.is_dir():
        return folder
    parent = next(parent for parent in folder.parents if parent.is_dir())
    missing = folder.relative_to(parent).parts[0]
    if os.path.lexists(parent / missing):
        raise ValueError(f"data.project is {project!r}, but {parent / missing} is not a folder; {_GIVE_PROJECT}")
    names = sorted(entry.name for entry in parent.iterdir() if entry.is_dir())
    near = difflib.get_close_matches(missing, names, 3)
    hint = f"did you mean {' or '.join(str(parent / name) for name in near)}?" if near else _GIVE_PROJECT
    raise ValueError(f"data.project is {project!r}, but {parent} has no folder {missing!r}; {hint}")


def _find_labels(folder: Path, labels: str, view: str) -> Path:
    name = label_file_of_view(labels, view)
    file = folder / name
    if is_regular(file):
        return file
    names = sorted(entry.name for entry in folder.glob("*.csv"))
    asked = f"data.views has {view!r}, but {folder} has no {name}" if view else ""
    raise ValueError(
        (asked or f"data.labels is {labels!r}, but {folder} has no such file")
        + (f"; its CSV files are {', '.join(names)}" if names else "; it has no CSV file at all")
    )


def _check_image(folder: Path, name: str, whole: set[str]) -> _Image:
    """Returns an image; its checksum joins those of the `whole` ones, which are not decoded."""
    if name.startswith("/") or re.match(r"[A-Za-z]:", name) or ".." in PurePosixPath(name).parts:
        raise ValueError(f"{name} leaves the project folder; images must lie inside it")
    try:
        content = read_regular(folder / name)
    except FileNotFoundError:
        raise ValueError(f"{name} does not exist in {folder}") from None
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    checksum = hashlib.sha256(content).hexdigest()
    try:
        size_px = image_size_px(content, checksum in whole)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    whole.add(checksum)
    return _Image(size_px, len(content), checksum)


def _check_places(labels: Labels, row: int, size_px: tuple[int, int], crop_px: tuple[int, ...]) -> None:
    name, (width, height) = labels.images[row], size_px
    if crop_px and (crop_px[0] + crop_px[2] > width or crop_px[1] + crop_px[3] > height):
        raise ValueError(f"{name} has {width} x {height} pixels; data.crop_px = {crop_px} leaves it")
    keypoints = labels.keypoints_frame_px[row]
    # An image of width w covers [-0.5, w - 0.5]; a label on its rim may be rounded outwards.
    low, high = -0.5 - MARGIN_PX, np.array(size_px) - 0.5 + MARGIN_PX
    outside = (labels.visibility[row] == VISIBLE) & ((keypoints < low) | (keypoints > high)).any(axis=-1)
    if outside.any():
        places = [
            f"{labels.keypoint_names[k]} ({keypoints[k, 0]:g}, {keypoints[k, 1]:g})" for k in np.flatnonzero(outside)
        ]
        raise ValueError(f"{name} has {width} x {height} pixels; outside of it: {', '.join(places)}")


def _refusal(files: list[Path], problems: list[str], usable: int) -> str:
    rows = len(problems) + usable
    fix = "mend them, or leave them out with data.on_bad_frame=skip" if usable else "none is left"
    more = len(problems) - LISTED_PROBLEMS
    where = ", ".join(map(str, files))
    lines = [f"{len(problems)} of {rows} rows of {where} cannot be used; {fix}:", *problems[:LISTED_PROBLEMS]]
    return "\n".join([*lines, f"... and {more} more"] if more > 0 else lines)
