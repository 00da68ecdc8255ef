"""The labelled frames of a check: refused frames, then outliers, then all others."""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from jaxpose.check.findings import OUTLIER, OUTSIDE, ROW, SWAP, Finding
from jaxpose.config import DataConfig, project_folder
from jaxpose.data.cells import parse_number
from jaxpose.data.checked_table import OUTSIDE_OF_IT, name_place
from jaxpose.data.label_changes import read_at_once
from jaxpose.data.label_files import find_folder, find_labels, refuse_absent_project
from jaxpose.data.label_table import LabelTable
from jaxpose.data.labels import read_table
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.formats.project import read_label_table, without_config_file
from jaxpose.labelling.pose_outliers import PoseOutlier, find_outliers
from jaxpose.labelling.project_labels import frame_keypoints_px, read_cells, read_project_labels
from jaxpose.poses import NOT_USED, Poses, join_poses

# Poses of another project for comparison with the labels.


def read_poses_px(data: DataConfig, like: str, names: tuple[str, ...]) -> Mapping[str, np.ndarray]:
    """Returns {view: poses (n, k, 2) in frame pixels} from all label files of a project.

    Args:
      data: the user's options, for reading it.
      like: the project.
      names: k keypoints; those that the project lacks are NaN.

    Raises:
      UserError: it does not exist, is the checked project, has none of the keypoints, or cannot be read.
    """
    refuse_absent_project(like, "--like")
    wanted = dataclasses.replace(data, project=like)
    if _place(wanted) == _place(data):
        raise UserError(
            f"--like is {like!r}, the checked project itself, whose poses are always compared: leave --like out"
        )
    project = read_project_labels(wanted, several=True)
    of_views = {
        view: np.concatenate([frame_keypoints_px(project, table, names) for table in tables])
        for view, tables in project.tables.items()
    }
    if not any(np.isfinite(poses_px).any() for poses_px in of_views.values()):
        raise UserError(f"--like is {like!r}, which has no label of {', '.join(names)}")
    return of_views


def _place(data: DataConfig) -> Path:
    """Returns the folder or file of a project, also given its config file."""
    return Path(without_config_file(data).project).expanduser().resolve()


# Label rows that training refuses, with the image and the points that can still be read.


def read_tables(data: DataConfig, labels: str = "") -> list[LabelTable]:
    """Returns the tables of all views without opening images.

    Args:
      data: the project.
      labels: a label file to read instead of the project's own, as in `jaxpose.formats.project.read_project`.

    Raises:
      UserError: as `jaxpose.formats.project.read_label_table`.
    """
    if not labels and not data.views:
        return [read_label_table(data, several=True)]
    folder = find_folder(str(project_folder(data.project)))
    files = [find_labels(folder, labels or data.labels, view) for view in data.views or ("",)]
    return read_at_once(folder, lambda: [read_table(folder, file, data) for file in files])


def refused_rows(project: Project, tables: Sequence[LabelTable], names: tuple[str, ...]) -> LabelTable:
    """Returns a row with its problem for each problem of a project, in order.

    Includes points with both coordinates. An unknown image is named "". Visibility is not read.

    Args:
      project: with its problems.
      tables: the project's tables.
      names: k keypoints of the result; keypoints that only the tables have follow.
    """
    places = {source: (table, row) for table in tables for row, source in enumerate(table.sources)}
    names = tuple(dict.fromkeys([*names, *(name for table in tables for name in table.poses.keypoint_names)]))
    parts, paths, sources = [_poses("", (), np.empty((0, 2)), names).at([])], list[Path](), list[str]()
    rows_of = functools.cache(read_cells)
    for problem in project.problems:
        # A file name may contain the separator of place and reason.
        ends = [match.start() for match in re.finditer(": ", problem)]
        known = next((end for end in ends if problem[:end] in places), None)
        if known is not None:
            table, row = places[problem[:known]]
            of_table, points = table.poses, table.poses.points_px[row, 0]
            place, path = problem[:known], table.paths[row]
            poses = _poses(of_table.frames[row], of_table.keypoint_names, points, names)
        else:
            place, path, poses = _from_csv(problem, project.folder, names, rows_of)
        parts.append(poses)
        paths.append(path)
        sources.append(place)
    return LabelTable(
        project.label_file, join_poses(parts), tuple(paths), sources=tuple(sources), problems=project.problems
    )


def outside_of(refused: LabelTable, row: int) -> tuple[str, ...]:
    """Returns the keypoints outside the image of a refused row, if that is the reason."""
    outside, poses = refused.problems[row].partition(OUTSIDE_OF_IT)[2], refused.poses
    named = zip(poses.keypoint_names, poses.points_px[row, 0], strict=True)
    return tuple(name for name, point in named if name_place(name, point) in outside)


def reason_of(refused: LabelTable, row: int) -> str:
    """Returns the problem of a refused row without its place."""
    return refused.problems[row].removeprefix(f"{refused.sources[row]}: ")


def _poses(image: str, given: Sequence[str], points: np.ndarray, names: Sequence[str]) -> Poses:
    """Returns an image's pose from the points (k, 2) of the given keypoints."""
    return Poses.of_one_animal(given, (image,), points[None], pixels="image").with_keypoints(names)


def _from_csv(
    problem: str, folder: Path, names: tuple[str, ...], rows_of: Callable[[Path], dict[str, Any]]
) -> tuple[str, Path, Poses]:
    """Returns the readable place, image and pose of a problem "FILE.csv:LINE: reason"."""
    match = re.match(r"(.+?\.csv):(\d{1,9}): ", problem, re.DOTALL)
    if not match or not Path(match[1]).is_file():
        return problem.partition(": ")[0], Path(), _poses("", (), np.empty((0, 2)), names)
    file, place = Path(match[1]), f"{match[1]}:{int(match[2])}"
    index, cells = rows_of(file).get(place, ([], {}))
    image = PurePosixPath("/".join(index).replace("\\", "/")).as_posix() if any(index) else ""
    given = list(dict.fromkeys(name for name, _ in cells))
    points = np.array([[_number(cells.get((name, coord), "")) for coord in "xy"] for name in given]).reshape(-1, 2)
    points = np.where(np.isfinite(points).all(axis=1, keepdims=True), points, np.nan)
    # DeepLabCut finds images by name next to the label file.
    near, inside = file.parent / PurePosixPath(image).name, folder / image
    path = inside if inside.is_file() or not near.is_file() else near
    return place, path if image else Path(), _poses(image, given, points, names)


def _number(cell: str) -> float:
    try:
        return parse_number(cell)
    except (ValueError, UserError):
        return np.nan


@dataclasses.dataclass(frozen=True)
class Frame:
    """A labelled image.

    Attributes:
      place: of the shown labels: FILE:LINE, or FILE: and the entry of the file.
      image: its name.
      path: the file.
      set: its set in training, "" if training refuses the image or there is no split; for a label file that is only
        evaluated, the ending of its name, such as new.
      origin_px: (x, y) of the image in its frame.
      refused: places and reasons of the image's refused rows; other rows of it may be usable.
      is_usable: whether any of its rows is usable.
      outlier: the problem of its pose, or None.
      unusual: robust standard deviations of its most unusual keypoint, 0 if poses were not compared.
    """

    place: str
    image: str
    path: Path
    set: str
    origin_px: tuple[int, ...] = (0, 0)
    refused: tuple[str, ...] = ()
    is_usable: bool = True
    outlier: PoseOutlier | None = None
    unusual: float = 0.0

    @property
    def is_marked(self) -> bool:
        """Whether it needs a review before training."""
        return bool(self.refused or self.outlier)


@dataclasses.dataclass(frozen=True)
class CheckedLabels:
    """The labels of a project, or a label file that is only evaluated.

    Attributes:
      project: n usable frames.
      sets: (n,) their sets, "" without a split.
      refused: the other rows with their problems.
    """

    project: Project
    sets: Sequence[str]
    refused: LabelTable


def make_frames(
    checked: Sequence[CheckedLabels],
    names: tuple[str, ...],
    pairs: list[tuple[int, int]],
    like_px: Mapping[str, np.ndarray],
) -> tuple[list[Frame], Poses, list[str]]:
    """Returns every labelled image once, in review order, with the poses and notes on impossible checks.

    The poses belong to the frames, in pixels of the images, NaN without a label.

    Args:
      checked: the labels.
      names: k keypoints of the frames.
      pairs: (left, right) keypoints to check for swaps.
      like_px: {view: (m, k, 2)} poses in frame pixels that also count as plausible.
    """
    labelled = [_labelled_frame_px(one.project, names) for one in checked]
    views = [view for one in checked for view in one.project.views]
    outliers, unusual, notes = _outliers(np.concatenate(labelled), views, pairs, like_px)
    found: list[tuple[Frame, np.ndarray]] = []
    first = 0
    for one, labelled_px in zip(checked, labelled, strict=True):
        places = range(first, first + len(labelled_px))
        marks = [(outliers.get(place), float(unusual[place])) for place in places]
        found += _frames_of(one, names, labelled_px, marks)
        first += len(labelled_px)
    frames, points_px = zip(*sorted(found, key=lambda one: _order(one[0])), strict=True)
    poses = Poses.of_one_animal(names, [frame.image for frame in frames], np.stack(points_px), pixels="image")
    return list(frames), poses, notes


def _labelled_frame_px(project: Project, names: Sequence[str]) -> np.ndarray:
    """Returns the labels (n, k, 2) of some keypoints, NaN where missing."""
    points_px, visibility = project.poses.with_keypoints(names).labels()
    return np.where((visibility > NOT_USED)[..., None], points_px, np.nan)


def _frames_of(
    one: CheckedLabels,
    names: Sequence[str],
    labelled_px: np.ndarray,
    marks: list[tuple[PoseOutlier | None, float]],
) -> list[tuple[Frame, np.ndarray]]:
    """Returns a frame for each image and its points (k, 2) in pixels of the image.

    `labelled_px` (n, k, 2), in frame pixels, and `marks` (outlier, unusual) are of usable frames.
    """
    project, refused = one.project, _by_image(one.refused)
    origins_px = [(project.crop_px(row) or (0, 0))[:2] for row in range(len(project.paths))]

    def texts(rows: Sequence[int]) -> tuple[str, ...]:
        return tuple(without_folder(one.refused.problems[row], project.folder) for row in rows)

    frames = []
    for row, (path, (outlier, unusual)) in enumerate(zip(project.paths, marks, strict=True)):
        frame = Frame(
            place=project.sources[row],
            image=project.poses.frames[row],
            path=path,
            set=one.sets[row],
            origin_px=origins_px[row],
            refused=texts(refused.pop(path, [])),
            outlier=outlier,
            unusual=unusual,
        )
        frames.append((frame, labelled_px[row] - origins_px[row]))
    points_px = one.refused.poses.with_keypoints(names).points_px[:, 0]
    for path, (row, *others) in refused.items():
        place, image = one.refused.sources[row], one.refused.poses.frames[row]
        frames.append((Frame(place, image, path, "", refused=texts([row, *others]), is_usable=False), points_px[row]))
    return frames


def _by_image(refused: LabelTable) -> dict[Path, list[int]]:
    """Returns {path: refused rows} for known images."""
    rows: dict[Path, list[int]] = {}
    for row, (image, path) in enumerate(zip(refused.poses.frames, refused.paths, strict=True)):
        if image:
            rows.setdefault(path, []).append(row)
    return rows


def without_folder(text: str, folder: Path) -> str:
    """Returns a place or reason with paths relative to the project folder, which the page names once."""
    return text.replace(f"{folder}/", "")


def _order(frame: Frame) -> tuple[bool, float, float]:
    """Returns a frame's sort key: refused, outliers, then others, each most unusual first."""
    outlier = frame.outlier
    strength = outlier.distance_px / max(outlier.usual_px, 0.5) if outlier else 0.0
    return not frame.refused, -strength, -frame.unusual


def _outliers(
    labelled_px: np.ndarray, views: Sequence[str], pairs: list[tuple[int, int]], like_px: Mapping[str, np.ndarray]
) -> tuple[dict[int, PoseOutlier], np.ndarray, list[str]]:
    """Returns {row: outlier}, how unusual each row is (n,), and sentences about unchecked views."""
    found: dict[int, PoseOutlier] = {}
    unusual, notes = np.zeros(len(views)), []
    for view in dict.fromkeys(views):
        rows = np.flatnonzero(np.array(views) == view)
        poses_px = np.concatenate([labelled_px[rows], *([like_px[view]] if view in like_px else [])])
        try:
            outliers, of_poses = find_outliers(poses_px, pairs)
        except UserError as error:
            reason = str(error).removeprefix("losses.pca_singleview: ").partition(": choose")[0]
            hint = "" if like_px else "; --like PROJECT adds the poses of earlier labels"
            notes.append(f"Poses{f' of the view {view}' if view else ''} are not compared: {reason}{hint}.")
        else:
            unusual[rows] = of_poses[: len(rows)]
            found |= {int(rows[one.row]): one for one in outliers if one.row < len(rows)}
    return found, unusual, notes


def make_findings(frames: Sequence[Frame], refused: Sequence[LabelTable], names: Sequence[str]) -> list[Finding]:
    """Returns a finding for each refused row, then for each outlier, in page order.

    Args:
      frames: all frames.
      refused: the refused rows of all files.
      names: k keypoints.
    """
    rows = []
    for table in refused:
        for row, (place, image) in enumerate(zip(table.sources, table.poses.frames, strict=True)):
            outside = outside_of(table, row)
            rows.append(Finding(OUTSIDE if outside else ROW, place, image, outside, reason_of(table, row)))
    poses = [
        Finding(
            SWAP if outlier.is_swap else OUTLIER,
            frame.place,
            frame.image,
            tuple(names[place] for place in outlier.keypoints),
            outlier.text(names),
        )
        for frame in frames
        if (outlier := frame.outlier)
    ]
    return rows + poses
