"""The labelled frames of a project as a check shows them: refused ones first, then outliers, then all others."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxpose.check.findings import OUTLIER, OUTSIDE, ROW, SWAP, Finding
from jaxpose.check.refused_rows import outside_of, reason_of
from jaxpose.codes import NOT_USED
from jaxpose.data.label_table import LabelTable
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.labelling.pose_outliers import PoseOutlier, find_outliers
from jaxpose.poses import Poses


@dataclasses.dataclass(frozen=True)
class Frame:
    """A labelled image.

    Attributes:
      place: of the labels that are shown: FILE:LINE, or FILE: and the entry of the file.
      image: its name.
      path: the file.
      set: that a training would put it into, "" if it refuses the image or has no split; of a label file that is only
        evaluated, what its name ends in, such as new.
      origin_px: (x, y) of the image in its frame.
      refused: places of refused rows of the image, each with the reason; other rows of it may be usable.
      is_usable: whether a row of it is.
      outlier: what looks wrong about its pose, or None.
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
        """Whether somebody should look at it before training."""
        return bool(self.refused or self.outlier)


@dataclasses.dataclass(frozen=True)
class CheckedLabels:
    """The labels of a project, or a label file that is only evaluated.

    Attributes:
      project: n usable frames.
      sets: (n,) their sets, "" without a split.
      refused: the other rows, each with its problem.
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
    """Returns every labelled image once, in the order in which a person should look, and checks that were impossible.

    The poses are those of the frames, in pixels of the images, NaN without a label.

    Args:
      checked: the labels.
      names: k keypoints of the frames.
      pairs: (left, right) keypoints, of which exchanges are looked for.
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
    """Returns the labels (n, k, 2) of some keypoints, NaN where there is none."""
    points_px, visibility = project.poses.with_keypoints(names).labels()
    return np.where((visibility > NOT_USED)[..., None], points_px, np.nan)


def _frames_of(
    one: CheckedLabels,
    names: Sequence[str],
    labelled_px: np.ndarray,
    marks: list[tuple[PoseOutlier | None, float]],
) -> list[tuple[Frame, np.ndarray]]:
    """Returns a frame for each image, with its points (k, 2) in pixels of the image.

    `labelled_px` (n, k, 2), in frame pixels, and `marks` (outlier, unusual) are of the usable ones.
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
    """Returns {path: refused rows} of the images that are known."""
    rows: dict[Path, list[int]] = {}
    for row, (image, path) in enumerate(zip(refused.poses.frames, refused.paths, strict=True)):
        if image:
            rows.setdefault(path, []).append(row)
    return rows


def without_folder(text: str, folder: Path) -> str:
    """Returns a place or a reason with files named from the folder of the project, which the page names once."""
    return text.replace(f"{folder}/", "")


def _order(frame: Frame) -> tuple[bool, float, float]:
    """Returns the key of a frame: refused, then outliers, then others, each the most unusual first."""
    outlier = frame.outlier
    strength = outlier.distance_px / max(outlier.usual_px, 0.5) if outlier else 0.0
    return not frame.refused, -strength, -frame.unusual


def _outliers(
    labelled_px: np.ndarray, views: Sequence[str], pairs: list[tuple[int, int]], like_px: Mapping[str, np.ndarray]
) -> tuple[dict[int, PoseOutlier], np.ndarray, list[str]]:
    """Returns {row: outlier}, how unusual each row (n,) is, and sentences about views that could not be checked."""
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
    """Returns a finding for each refused row, then one for each outlier, in the order of the page.

    Args:
      frames: all.
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
