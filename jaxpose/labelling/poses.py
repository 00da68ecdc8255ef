"""The subspace of plausible poses, fitted to a project's labels."""

import numpy as np

from jaxpose.config.losses import PcaSingleviewConfig
from jaxpose.errors import UserError
from jaxpose.labelling.project_labels import ProjectLabels, frame_keypoints_px
from jaxpose.pose.pca import Pca
from jaxpose.pose.pca_fit import fit_singleview


def fit_poses(project: ProjectLabels, names: tuple[str, ...]) -> dict[str, Pca]:
    """Returns {view: plausible poses} for the views whose labels are enough for a PCA.

    Args:
      project: the labels.
      names: the keypoints that form a pose, in this order.
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
    """Returns the subspace of poses (n, k, 2), NaN where missing, with the defaults of losses.pca_singleview.

    Raises:
      UserError: there are too few labels.
    """
    return fit_singleview(labelled_px, range(labelled_px.shape[1]), PcaSingleviewConfig())
