"""Finds labelled poses that are unlike the others: keypoints far from the pose PCA, and left-right swaps."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxpose.config.losses import PcaSingleviewConfig
from jaxpose.errors import UserError
from jaxpose.labelling.project_labels import ProjectLabels, frame_keypoints_px
from jaxpose.pose.pca import Pca, fit_singleview

# The subspace of plausible poses, fitted to a project's labels.


def fit_poses(project: ProjectLabels, names: tuple[str, ...]) -> dict[str, Pca]:
    """Returns {view: plausible poses} for views with enough labels for a PCA.

    Args:
      project: the labels.
      names: the keypoints of a pose, in this order.
    """
    found = {}
    for view, of_view in project.tables.items():
        labelled_px = np.concatenate([frame_keypoints_px(project, table, names) for table in of_view])
        try:
            found[view] = fit_pose(labelled_px)
        except UserError:
            continue
    return found


def fit_pose(labelled_px: np.ndarray) -> Pca:
    """Returns the subspace of poses (n, k, 2), NaN where missing, with losses.pca_singleview's defaults.

    Raises:
      UserError: there are too few labels.
    """
    return fit_singleview(labelled_px, range(labelled_px.shape[1]), PcaSingleviewConfig())


# Number of groups of poses; a PCA of the other groups measures each pose.
_FOLDS = 10
# A keypoint is an outlier from this many robust standard deviations on; the smallest standard deviation.
_OUTLIER, _LEAST_PX = 6.0, 0.5
# A swap is reported if it moves a pose this many times closer to plausible poses.
_SWAP_FACTOR = 2.0
# A swap is considered from this many robust standard deviations on.
_DOUBTFUL = 3.0


@dataclasses.dataclass(frozen=True)
class PoseOutlier:
    """A labelled pose that looks wrong.

    Attributes:
      row: its index among the poses.
      keypoints: those that look wrong: one, or both of each swapped pair.
      is_swap: left and right are swapped.
      distance_px: from the keypoint to the nearest plausible pose; for a swap, the largest of its keypoints.
      usual_px: the median of that distance over all poses.
      expected_px: (k, 2) the nearest plausible pose; for a swap, the swapped labels.
    """

    row: int
    keypoints: tuple[int, ...]
    is_swap: bool
    distance_px: float
    usual_px: float
    expected_px: np.ndarray

    def text(self, keypoint_names: Sequence[str]) -> str:
        """Describes the problem for the user."""
        wrong = [keypoint_names[place] for place in self.keypoints]
        if self.is_swap:
            return f"left and right look exchanged: {', '.join(wrong)}"
        return (
            f"{wrong[0]} is {self.distance_px:.1f} px from the nearest plausible pose (usual: {self.usual_px:.1f} px)"
        )


@dataclasses.dataclass(frozen=True)
class _Measured:
    """Poses measured by the subspaces of the others.

    Attributes:
      subspaces: (n,) for each pose.
      nearest_px: (n, k, 2) plausible poses.
      distances_px: (n, k) from them, NaN where missing.
      usual_px: (k,) medians of these distances.
      deviations: (n, k) of the distances from `usual_px` in robust standard deviations, 0 where missing.
    """

    subspaces: list[Pca]
    nearest_px: np.ndarray
    distances_px: np.ndarray
    usual_px: np.ndarray
    deviations: np.ndarray


def find_outliers(labelled_px: np.ndarray, pairs: list[tuple[int, int]]) -> tuple[list[PoseOutlier], np.ndarray]:
    """Returns the poses that look wrong, worst first, and how unusual each pose is.

    The latter (n,) are robust standard deviations of each pose's most unusual keypoint, from the first pass.

    Poses found in the first pass are left out of the PCA of a second, decisive pass.

    Args:
      labelled_px: (n, k, 2), NaN where missing. Missing keypoints are left out of their poses.
      pairs: (left, right) keypoints.

    Raises:
      UserError: there are too few labels for a PCA.
    """
    fit_pose(labelled_px)  # reports too few labels in total with their number
    is_usual = np.ones(len(labelled_px), bool)
    first = _measure(labelled_px, is_usual)
    is_usual[[outlier.row for outlier in _find(first, labelled_px, pairs)]] = False
    found = _find(_measure(labelled_px, is_usual), labelled_px, pairs)
    found.sort(key=lambda outlier: -outlier.distance_px / max(outlier.usual_px, _LEAST_PX))
    return found, first.deviations.max(axis=1)


def nearest_pose_px(pca: Pca, pose_px: np.ndarray) -> np.ndarray:
    """Returns the subspace pose (k, 2) nearest to the labelled keypoints of a pose (k, 2), if any."""
    flat = pose_px.ravel()
    present = np.isfinite(flat)
    if not present.any():
        return np.full_like(pose_px, np.nan)
    scores = np.linalg.lstsq(pca.components[:, present].T, flat[present] - pca.mean_px[present], rcond=None)[0]
    return (pca.mean_px + scores @ pca.components).reshape(-1, 2)


def _measure(labelled_px: np.ndarray, is_usual: np.ndarray) -> _Measured:
    """Measures each pose (n, k, 2) by the other usual (n,) poses."""
    folds = np.arange(len(labelled_px)) % _FOLDS
    of_fold = [fit_pose(labelled_px[is_usual & (folds != fold)]) for fold in range(_FOLDS)]
    subspaces = [of_fold[fold] for fold in folds.tolist()]
    nearest_px = np.stack([nearest_pose_px(pca, pose) for pca, pose in zip(subspaces, labelled_px, strict=True)])
    distances_px = np.linalg.norm(labelled_px - nearest_px, axis=-1)
    usual_px, spread_px = _usual(distances_px[is_usual])
    deviations = np.nan_to_num((distances_px - usual_px) / spread_px)
    return _Measured(subspaces, nearest_px, distances_px, usual_px, deviations)


def _find(measured: _Measured, labelled_px: np.ndarray, pairs: list[tuple[int, int]]) -> list[PoseOutlier]:
    deviations, found = measured.deviations, []
    for row in np.flatnonzero(deviations.max(axis=1) > _DOUBTFUL).tolist():
        wrong, expected_px = (int(deviations[row].argmax()),), measured.nearest_px[row]
        swap = _find_swap(measured.subspaces[row], labelled_px[row], pairs)
        if swap:
            wrong, expected_px = swap
        elif deviations[row].max() <= _OUTLIER:
            continue
        worst = wrong[int(deviations[row, list(wrong)].argmax())]
        distance, usual = float(measured.distances_px[row, worst]), float(measured.usual_px[worst])
        found.append(PoseOutlier(row, wrong, bool(swap), distance, usual, expected_px))
    return found


def _usual(distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the median and the robust standard deviation of each keypoint's distances (n, k)."""
    known = np.where(np.isnan(distances).all(axis=0), 0, distances)
    usual = np.nanmedian(known, axis=0)
    return usual, np.maximum(1.4826 * np.nanmedian(np.abs(known - usual), axis=0), _LEAST_PX)


def _find_swap(
    pca: Pca, pose_px: np.ndarray, pairs: list[tuple[int, int]]
) -> tuple[tuple[int, ...], np.ndarray] | None:
    """Returns the swapped keypoints and the pose after the swap, or None if that is not far more plausible."""
    labelled = [pair for pair in pairs if np.isfinite(pose_px[list(pair)]).all()]
    best, least = None, _error_px(pca, pose_px) / _SWAP_FACTOR
    for chosen in [*([pair] for pair in labelled), *([labelled] if len(labelled) > 1 else [])]:
        exchanged = pose_px.copy()
        for left, right in chosen:
            exchanged[[left, right]] = pose_px[[right, left]]
        if (with_swap := _error_px(pca, exchanged)) < least:
            best, least = (tuple(point for pair in chosen for point in pair), exchanged), with_swap
    return best


def _error_px(pca: Pca, pose_px: np.ndarray) -> float:
    return float(np.sqrt(np.nanmean((pose_px - nearest_pose_px(pca, pose_px)) ** 2)))
