"""Fits the PCA subspaces of poses to the training labels, for losses and metrics."""

from collections.abc import Callable

from jaxpose.config import Config
from jaxpose.config.losses import weights
from jaxpose.data.dataset import Dataset
from jaxpose.errors import UserError
from jaxpose.pose.pca import Pca
from jaxpose.pose.pca_fit import columns_of, fit_multiview, fit_singleview
from jaxpose.run.pca import Subspaces, side_by_side


def fit_subspaces(config: Config, data: Dataset) -> tuple[Subspaces, list[str]]:
    """Returns the subspaces by the name of their loss, fitted to the training labels in frame pixels, and messages.

    A subspace is fitted if its loss is on, or if its keypoints or views are named; then it only measures predictions.
    If such a subspace cannot be fitted, it is left out, and a message gives the reason.

    Raises:
      UserError: a keypoint does not exist or is named twice, the labels are too few for a loss that is on, or it
        keeps all components.
    """
    on, names, losses = weights(config.losses), config.data.keypoint_names, config.losses
    labels = data.project.labelled_frame_px()[data.rows("train")]
    fitted: Subspaces = {}
    messages: list[str] = []

    def fit(name: str, make: Callable[[], Pca]) -> None:
        try:
            fitted[name] = make()
        except UserError as error:
            if name in on or (name == "pca_multiview" and config.model.views_agree):
                raise
            messages.append(f"{name} is not measured: {error}")

    if "pca_singleview" in on or losses.pca_singleview.keypoints:
        chosen = losses.pca_singleview.keypoints or names
        columns = columns_of(chosen, names, "losses.pca_singleview.keypoints")
        if config.data.views:
            messages.append("pca_singleview is not measured: data.views names several cameras")
        else:
            fit("pca_singleview", lambda: fit_singleview(labels, columns, losses.pca_singleview))
    if config.data.views and "pca_multiview" in on:
        # A row has the keypoints of all views of a moment.
        keypoints, views = len(names), len(config.data.views)
        moments = side_by_side(labels, views)
        cameras = [tuple(range(view * keypoints, (view + 1) * keypoints)) for view in range(views)]
        fit("pca_multiview", lambda: fit_multiview(moments, cameras, losses.pca_multiview))
    elif losses.pca_multiview.views:
        option = "losses.pca_multiview.views"
        entries = [tuple(name.strip() for name in entry.split(",")) for entry in losses.pca_multiview.views]
        # Check all views at once, because no keypoint may be in two of them.
        columns_of([name for entry in entries for name in entry], names, option)
        mirrors = [columns_of(entry, names, option) for entry in entries]
        fit("pca_multiview", lambda: fit_multiview(labels, mirrors, losses.pca_multiview))
    return fitted, messages
