"""Fits the PCA subspaces of poses to the training labels, for losses and metrics."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxpose import geometry
from jaxpose.config import Config
from jaxpose.config.losses import PcaMultiviewConfig, weights
from jaxpose.data.dataset import Dataset
from jaxpose.errors import UserError
from jaxpose.pose.pca import Pca
from jaxpose.pose.pca_fit import columns_of, fit_multiview, fit_singleview, parts_of
from jaxpose.quantities import count
from jaxpose.run.pca import VIEWS_AGREE, Subspaces, side_by_side

# Parts of labelled frames that all views show: below, the relation of the views would be that of chance.
_FEWEST_PLACES = 10


def fit_subspaces(config: Config, data: Dataset) -> tuple[Subspaces, list[str]]:
    """Returns the subspaces by the name of their loss, fitted to the training labels in frame pixels, and messages.

    A subspace is fitted if its loss is on, or if its keypoints or views are named; then it only measures predictions.
    If such a subspace cannot be fitted, it is left out, and a message gives the reason. That of `model.views_agree` is
    in pixels of the network's input.

    Raises:
      UserError: a keypoint does not exist or is named twice, the labels are too few for a loss that is on or for
        `model.views_agree`, or it keeps all components.
    """
    on, names, losses = weights(config.losses), config.data.keypoint_names, config.losses
    labels = data.labelled_frame_px(data.rows("train"))
    fitted: Subspaces = {}
    messages: list[str] = []

    def fit(name: str, make: Callable[[], Pca]) -> None:
        try:
            fitted[name] = make()
        except UserError as error:
            if name in on:
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
        if config.model.views_agree:
            frame_from_input = data.samples.frame_from_input[data.rows("train")].astype(np.float64)
            fitted[VIEWS_AGREE], message = _fit_relation(labels, frame_from_input, mirrors, losses.pca_multiview)
            messages.append(message)
    return fitted, messages


def _fit_relation(
    labels_frame_px: np.ndarray,
    frame_from_input: np.ndarray,
    views: Sequence[Sequence[int]],
    options: PcaMultiviewConfig,
) -> tuple[Pca, str]:
    """Returns the subspace of the views that agree, and a message about it.

    In the input, unlike in the frame, a place of the arena is the same whatever the size of the frames.
    """
    labels_px = geometry.apply(geometry.invert(frame_from_input), labels_frame_px)
    places = int(np.isfinite(labels_px).all(-1)[:, np.array(parts_of(views))].all(-1).sum())
    parts = f"{count(len(views[0]), 'body part')} in {len(views)} views"
    if places < _FEWEST_PLACES:
        raise UserError(
            "model.views_agree learns how the views are related from places that all of them show, and needs "
            f"{_FEWEST_PLACES}; the training labels have {places}, of {parts}: label more frames, or leave it out"
        )
    scale = float(np.median(geometry.scale(frame_from_input)))
    source = f"from the deviations at {places} labelled places"
    if options.epsilon_px is not None:
        source = "losses.pca_multiview.epsilon_px"
        options = dataclasses.replace(options, epsilon_px=options.epsilon_px / scale)
    pca = fit_multiview(labels_px, views, options)
    return pca, f"views agree on {parts} within {pca.epsilon_px * scale:.2f} px of the frame ({source})"
