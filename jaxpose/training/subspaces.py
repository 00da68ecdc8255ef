"""The subspaces of poses that a run knows: fitted to its training labels, kept in its folder, measured against."""

import json
from pathlib import Path

import numpy as np

from jaxpose.config import Config
from jaxpose.config.losses import weights
from jaxpose.data.dataset import Dataset
from jaxpose.pose.pca import Pca, columns_of, fit_multiview, fit_singleview, from_json, to_json
from jaxpose.training.run_folder import json_text, write_atomic

SUBSPACES_FILE = "pca.json"

Subspaces = dict[str, Pca]


def fit_subspaces(config: Config, data: Dataset) -> Subspaces:
    """Returns the subspaces by the name of their loss, fitted to the training labels in frame pixels.

    One is fitted where its loss is on or where its keypoints or views are named: then it measures predictions only.

    Raises:
      ValueError: the labels are too few, or a keypoint is not there.
    """
    on, names, losses = weights(config.losses), config.data.keypoint_names, config.losses
    rows = data.rows("train")
    found: Subspaces = {}
    if "pca_singleview" in on or losses.pca_singleview.keypoints:
        chosen = losses.pca_singleview.keypoints or names
        columns = columns_of(chosen, names, "losses.pca_singleview.keypoints")
        found["pca_singleview"] = fit_singleview(data.labelled_frame_px(rows), columns, losses.pca_singleview)
    if config.data.views and ("pca_multiview" in on or losses.pca_multiview.views):
        # The keypoints of all views of a moment side by side.
        keypoints, views = len(names), len(config.data.views)
        moments = _by_moment(data, rows, views)
        columns = [tuple(range(view * keypoints, (view + 1) * keypoints)) for view in range(views)]
        found["pca_multiview"] = fit_multiview(moments, columns, losses.pca_multiview)
    elif "pca_multiview" in on or losses.pca_multiview.views:
        option = "losses.pca_multiview.views"
        views = [tuple(name.strip() for name in entry.split(",")) for entry in losses.pca_multiview.views]
        columns = [columns_of(view, names, option) for view in views]
        found["pca_multiview"] = fit_multiview(data.labelled_frame_px(rows), columns, losses.pca_multiview)
    return found


def save_subspaces(run: Path, subspaces: Subspaces) -> None:
    """Writes the subspaces into a run folder."""
    content = {name: to_json(pca) for name, pca in subspaces.items()}
    write_atomic(run / SUBSPACES_FILE, f"{json_text(content)}\n".encode())


def load_subspaces(run: Path) -> Subspaces:
    """Returns the subspaces of a run folder; a run that has none gives {}."""
    file = run / SUBSPACES_FILE
    return {name: from_json(stored) for name, stored in json.loads(file.read_text()).items()} if file.is_file() else {}


def _by_moment(data: Dataset, rows: np.ndarray, views: int) -> np.ndarray:
    """Returns the labels of whole moments (moments, views k, 2), the views in the order of data.views."""
    labels = data.labelled_frame_px(rows)
    moments = np.asarray(data.project.moments)[rows]
    order = np.lexsort((rows, moments))
    return labels[order].reshape(-1, views * labels.shape[1], 2)
