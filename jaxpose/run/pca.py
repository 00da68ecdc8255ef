"""The PCA subspaces of poses in a run folder, and the errors of predictions relative to them."""

import logging
from pathlib import Path

import numpy as np

from jaxpose.checksums import DamagedFile, read_json, write_json
from jaxpose.config import Config, ModelConfig
from jaxpose.config.losses import weights
from jaxpose.errors import UserError
from jaxpose.pose.pca import Pca, errors_px, from_json, to_json
from jaxpose.run.paths import SUBSPACES_FILE

_logger = logging.getLogger(__name__)

_LOSSES = ("pca_singleview", "pca_multiview")
# The subspace of `model.views_agree`, in pixels of the network's input; the others are in pixels of the frame.
VIEWS_AGREE = "views_agree"

Subspaces = dict[str, Pca]


def save_subspaces(run: Path, subspaces: Subspaces) -> None:
    """Writes the subspaces into a run folder."""
    write_json(run / SUBSPACES_FILE, {name: to_json(pca) for name, pca in subspaces.items()})


def load_subspaces(run: Path, config: Config) -> Subspaces:
    """Returns the subspaces of a run folder; {} without the file, with a warning if this config needs it.

    Raises:
      UserError: the views of the run agree, but there is no file.
      DamagedFile: the file is not as jaxpose wrote it, or does not fit the config.
    """
    file, mend = run / SUBSPACES_FILE, "put the original file back, or train again in another folder"
    if not file.exists():
        if config.model.views_agree:
            raise UserError(f"{file} is absent, and model.views_agree needs it: {mend}")
        losses = config.losses
        if set(_LOSSES) & set(weights(losses)) or losses.pca_singleview.keypoints or losses.pca_multiview.views:
            # If the labels were too few for a PCA that only measures, the run never had the file.
            _logger.warning("%s is absent: no errors of poses are computed; if it was lost, put it back", file)
        return {}
    stored = read_json(file, mend)
    try:
        known = (*_LOSSES, VIEWS_AGREE)
        if unknown := sorted(stored.keys() - set(known)):
            raise UserError(f"{unknown[0]!r} is not one of {', '.join(known)}")
        if config.model.views_agree and VIEWS_AGREE not in stored:
            raise UserError(f"model.views_agree is on, but there is no {VIEWS_AGREE}")
        subspaces = {name: from_json(pca) for name, pca in stored.items()}
        points = len(config.data.keypoint_names)
        for name, pca in subspaces.items():
            # With several cameras, a moment has the keypoints of all views.
            count = points * (len(config.data.views) or 1) if name == "pca_multiview" else points
            if (largest := max(max(pose) for pose in pca.columns)) >= count:
                raise UserError(f"{name}: a pose has keypoint {largest} (counted from 0), and there are {count}")
    except UserError as error:
        raise DamagedFile(f"{file} does not hold the PCAs of this run ({error}); {mend}") from None
    return subspaces


def agreeing_views(model: ModelConfig, subspaces: Subspaces) -> Pca | None:
    """Returns the subspace of the views whose maps agree, None without such views."""
    return subspaces[VIEWS_AGREE] if model.views_agree else None


def pose_errors_px(
    subspaces: Subspaces, keypoints_frame_px: np.ndarray, moments: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Returns how far each predicted keypoint lies from each subspace, {name: (n, k)} in frame pixels.

    Args:
      subspaces: by name.
      keypoints_frame_px: predictions (n, k, 2).
      moments: (m, v), the rows of the views of each moment, as `Project.rows_of_moments` returns them; None with one
        camera.
    """
    found = {}
    for name, pca in _of_losses(subspaces).items():
        if name == "pca_multiview" and moments is not None:
            errors = errors_px(pca, side_by_side(keypoints_frame_px, moments)).reshape(*moments.shape, -1)
            found[name] = np.full(keypoints_frame_px.shape[:2], np.nan)
            found[name][moments[moments >= 0]] = errors[moments >= 0]
        else:
            found[name] = errors_px(pca, keypoints_frame_px)
    return found


def within_a_view(subspaces: Subspaces, views: int) -> Subspaces:
    """Returns the subspaces that apply to the predictions of a single camera, given the number of cameras."""
    return {name: pca for name, pca in _of_losses(subspaces).items() if name != "pca_multiview" or views <= 1}


def side_by_side(keypoints_frame_px: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Returns rows (n, k, 2) as moments (m, v k, 2), NaN where a moment lacks a view.

    Args:
      keypoints_frame_px: of each row.
      moments: (m, v), as in `pose_errors_px`.
    """
    found = np.where((moments >= 0)[..., None, None], keypoints_frame_px[moments], np.nan)
    return found.reshape(len(moments), -1, 2)


def _of_losses(subspaces: Subspaces) -> Subspaces:
    """Returns the subspaces that predictions in frame pixels are compared with."""
    return {name: pca for name, pca in subspaces.items() if name in _LOSSES}
