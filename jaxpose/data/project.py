"""A labelled project: its usable frames, fixed once, and a sentence for everything that is wrong with the others.

What comes in: a folder with a label file and images, as Lightning Pose and DeepLabCut lay it out. What goes out: a
`Project`. Images are hashed and checked here but not decoded: see `jaxpose.data.images`.
"""

import dataclasses
import difflib
import hashlib
import re
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.data.image_file import image_size_px
from jaxpose.data.labels import VISIBLE, Labels, read_labels
from jaxpose.data.threads import map_in_threads

LISTED_PROBLEMS = 20
MARGIN_PX = 0.5


@dataclasses.dataclass(frozen=True)
class Project:
    """The usable labelled frames, in the order of the label file.

    Attributes:
      folder: the project.
      label_file: where the labels were read.
      keypoint_names: k names.
      images: n paths relative to the project, with forward slashes.
      paths: n files.
      lines: n line numbers in the label file, counted from 1.
      videos: n names of the folders that the images lie in.
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
    lines: tuple[int, ...]
    videos: tuple[str, ...]
    keypoints_frame_px: np.ndarray
    visibility: np.ndarray
    sizes_px: np.ndarray
    byte_counts: tuple[int, ...]
    checksums: tuple[str, ...]
    problems: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Image:
    size_px: tuple[int, int]
    byte_count: int
    checksum: str


def read_project(data: DataConfig, labels: str = "") -> Project:
    """Reads the labels and checks every image of a project.

    Args:
      data: where it is and what to do with bad frames.
      labels: a label file to read in place of `data.labels`, relative to the project.

    Raises:
      ValueError: the folder or label file does not exist or is not understood; rows cannot be used and
        `data.on_bad_frame` is stop (the message lists them); or no row can be used.
    """
    folder = _find_folder(data.project)
    file = _find_labels(folder, labels or data.labels)
    read, problems = read_labels(file, data.missing)

    def check(row: int) -> _Image | str:
        try:
            image = _check_image(folder, read.images[row])
            _check_places(read, row, image.size_px, data.crop_px)
        except ValueError as error:
            return f"{file}:{read.lines[row]}: {error}"
        return image

    checked = list(map_in_threads(check, range(len(read.images)), data.threads, "checking images"))
    problems += [problem for problem in checked if isinstance(problem, str)]
    problems.sort(key=lambda problem: int(problem[len(f"{file}:") :].split(":")[0]))
    usable = [row for row, image in enumerate(checked) if isinstance(image, _Image)]
    images = [image for image in checked if isinstance(image, _Image)]
    if problems and (data.on_bad_frame == "stop" or not usable):
        raise ValueError(_refusal(file, problems, len(usable)))
    names = tuple(read.images[row] for row in usable)
    return Project(
        folder=folder,
        label_file=file,
        keypoint_names=read.keypoint_names,
        images=names,
        paths=tuple(folder / name for name in names),
        lines=tuple(read.lines[row] for row in usable),
        videos=tuple(PurePosixPath(name).parent.name for name in names),
        keypoints_frame_px=read.keypoints_frame_px[usable],
        visibility=read.visibility[usable],
        sizes_px=np.array([image.size_px for image in images], np.int32),
        byte_counts=tuple(image.byte_count for image in images),
        checksums=tuple(image.checksum for image in images),
        problems=tuple(problems),
    )


def extra_label_files(data: DataConfig) -> list[str]:
    """Returns the label files beside `data.labels` that are evaluated after training, relative to the project.

    They are CollectedData_new.csv, CollectedData_test.csv and the same endings on the name of `data.labels`.
    """
    labels = PurePosixPath(data.labels)
    stems = dict.fromkeys((labels.with_suffix("").as_posix(), (labels.parent / "CollectedData").as_posix()))
    names = [f"{stem}_{ending}.csv" for stem in stems for ending in ("new", "test")]
    folder = Path(data.project).expanduser()
    return [name for name in names if name != labels.as_posix() and (folder / name).is_file()]


def _find_folder(project: str) -> Path:
    if not project:
        raise ValueError("data.project is empty; it must be a project folder")
    folder = Path(project).expanduser().resolve()
    if folder.is_dir():
        return folder
    parent = next(parent for parent in folder.parents if parent.is_dir())
    missing = folder.relative_to(parent).parts[0]
    names = sorted(entry.name for entry in parent.iterdir() if entry.is_dir())
    near = difflib.get_close_matches(missing, names, 3)
    hint = f"; did you mean {' or '.join(str(parent / name) for name in near)}?" if near else ""
    raise ValueError(f"data.project is {project!r}, but {parent} has no folder {missing!r}{hint}")


def _find_labels(folder: Path, labels: str) -> Path:
    file = folder / labels
    if file.is_file():
        return file
    names = sorted(entry.name for entry in folder.glob("*.csv"))
    raise ValueError(
        f"data.labels is {labels!r}, but {folder} has no such file; "
        + (f"its CSV files are {', '.join(names)}" if names else "it has no CSV file at all")
    )


def _check_image(folder: Path, name: str) -> _Image:
    if name.startswith("/") or re.match(r"[A-Za-z]:", name) or ".." in PurePosixPath(name).parts:
        raise ValueError(f"{name} leaves the project folder; images must lie inside it")
    try:
        content = (folder / name).read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{name} does not exist in {folder}") from None
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    try:
        size_px = image_size_px(content)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return _Image(size_px, len(content), hashlib.sha256(content).hexdigest())


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


def _refusal(file: Path, problems: list[str], usable: int) -> str:
    rows = len(problems) + usable
    fix = "mend them, or leave them out with data.on_bad_frame=skip" if usable else "none is left"
    more = len(problems) - LISTED_PROBLEMS
    lines = [f"{len(problems)} of {rows} rows of {file} cannot be used; {fix}:", *problems[:LISTED_PROBLEMS]]
    return "\n".join([*lines, f"... and {more} more"] if more > 0 else lines)
