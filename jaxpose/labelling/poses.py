"""The subspace of plausible poses, fitted to a project's labels."""

from collections.abc import Sequence

import numpy as np

from jaxpose.codes import NOT_USED
from jaxpose.config.losses import PcaSingleviewConfig
from jaxpose.data.labels import Labels
from jaxpose.errors import UserError
from jaxpose.labelling.label_layout import ProjectLabels
from jaxpose.pose.pca import Pca
from jaxpose.pose.pca_fit import fit_singleview


def fit_poses(project: ProjectLabels, names: Sequence[str]) -> dict[str, Pca]:
    """Returns {view: plausible poses} for the views whose labels are enough for a PCA.

    Args:
      project: the labels.
      names: the keypoints that form a pose, in this order.
    """
    found = {}
    for view, of_view in project.labels.items():
        labelled_px = np.concatenate([labelled_keypoints_px(labels, names) for labels in of_view])
        try:
            found[view] = fit_pose(labelled_px)
        except UserError:
            continue
    return found


def fit_pose(labelled_px: np.ndarray) -> Pca:
    """Returns the subspace of poses (n, k, 2), NaN where missing, with the defaults of losses.pca_singleview.

    Raises:
      UserError: there are too few labels.
    """
    return fit_singleview(labelled_px, range(labelled_px.shape[1]), PcaSingleviewConfig())


def labelled_keypoints_px(labels: Labels, names: Sequence[str]) -> np.ndarray:
    """Returns the labels (n, k, 2) of some keypoints by name, NaN where there is none."""
    found = np.full((len(labels.images), len(names), 2), np.nan)
    used = np.where((labels.visibility > NOT_USED)[..., None], labels.keypoints_frame_px, np.nan)
    for place, name in enumerate(names):
        if name in labels.keypoint_names:
            found[:, place] = used[:, labels.keypoint_names.index(name)]
    return found
