"""The labelled frames of a project as a check shows them: refused ones first, then outliers, then all others."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxpose.check.refused_rows import RefusedRow
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.labelling.pose_outliers import PoseOutlier, find_outliers


@dataclasses.dataclass(frozen=True)
class Frame:
    """A labelled image.

    Attributes:
      image: its name.
      path: the file.
      set: that a training would put it into, "" if it refuses the image or has no split.
      keypoints_image_px: (k, 2), NaN without a label.
      refused: places of refused rows of the image, each with the reason; other rows of it may be usable.
      is_usable: whether a row of it is.
      outlier: what looks wrong about its pose, or None.
      unusual: robust standard deviations of its most unusual keypoint, 0 if poses were not compared.
    """

    image: str
    path: Path
    set: str
    keypoints_image_px: np.ndarray
    refused: tuple[str, ...] = ()
    is_usable: bool = True
    outlier: PoseOutlier | None = None
    unusual: float = 0.0

    @property
    def is_marked(self) -> bool:
        """Whether somebody should look at it before training."""
        return bool(self.refused or self.outlier)


def make_frames(
    project: Project, sets: np.ndarray | None, refused: Sequence[RefusedRow], pairs: list[tuple[int, int]]
) -> tuple[list[Frame], list[str]]:
    """Returns every labelled image once, in the order in which a person should look, and checks that were impossible.

    Args:
      project: n usable frames.
      sets: (n,) their sets, None without a split.
      refused: rows that are not among them.
      pairs: (left, right) keypoints, of which exchanges are looked for.
    """
    outliers, unusual, notes = _outliers(project, pairs)
    reasons: dict[Path, list[RefusedRow]] = {}
    for row in refused:
        if row.path is not None:
            reasons.setdefault(row.path, []).append(row)
    labelled_px = project.labelled_frame_px()
    frames = [
        Frame(
            image=image,
            path=path,
            set="" if sets is None else str(sets[row]),
            keypoints_image_px=labelled_px[row] - (project.crop_px(row) or (0, 0))[:2],
            refused=_texts(reasons.pop(path, [])),
            outlier=outliers.get(row),
            unusual=float(unusual[row]),
        )
        for row, (image, path) in enumerate(zip(project.images, project.paths, strict=True))
    ]
    frames += [
        Frame(rows[0].image, path, "", rows[0].keypoints_image_px, _texts(rows), is_usable=False)
        for path, rows in reasons.items()
    ]
    return sorted(frames, key=_order), notes


def _texts(rows: Sequence[RefusedRow]) -> tuple[str, ...]:
    return tuple(f"{row.place}: {row.reason}" for row in rows)


def _order(frame: Frame) -> tuple[bool, float, float]:
    """Returns the key of a frame: refused, then outliers, then others, each the most unusual first."""
    outlier = frame.outlier
    strength = outlier.distance_px / max(outlier.usual_px, 0.5) if outlier else 0.0
    return not frame.refused, -strength, -frame.unusual


def _outliers(project: Project, pairs: list[tuple[int, int]]) -> tuple[dict[int, PoseOutlier], np.ndarray, list[str]]:
    """Returns {row: outlier}, how unusual each row (n,) is, and sentences about views that could not be checked."""
    labelled_px, views = project.labelled_frame_px(), np.array(project.views)
    found: dict[int, PoseOutlier] = {}
    unusual, notes = np.zeros(len(views)), []
    for view in dict.fromkeys(project.views):
        rows = np.flatnonzero(views == view)
        try:
            outliers, unusual[rows] = find_outliers(labelled_px[rows], pairs)
            found |= {int(rows[one.row]): one for one in outliers}
        except UserError as error:
            reason = str(error).removeprefix("losses.pca_singleview: ").partition(": choose")[0]
            notes.append(f"Poses{f' of the view {view}' if view else ''} are not compared: {reason}.")
    return found, unusual, notes
