"""A PCA subspace of poses, and the distance of other poses from it, in frame pixels.

A pose is m points of one frame, written x, y, x, y, ...: all chosen keypoints of the animal (single view, one pose a
frame), or one body part in m views (multi-view, a pose for each body part). `pca_fit` fits it.
"""

import dataclasses
import sys
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxpose.errors import UserError

Columns = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Pca:
    """A fitted subspace of poses of m points, d = 2 m coordinates, float64.

    Attributes:
      columns: for each of the q poses of a frame, the m keypoints that form it.
      centering: what is subtracted from a pose first, x and y apart: none, or the mean or median of its points.
      mean_px: (d,) mean pose in frame pixels.
      components: (c, d) the kept axes, orthonormal, by variance, largest first.
      explained_variance: (d,) share of the variance along each axis, kept or not.
      epsilon_px: distance from the subspace, in frame pixels, that costs nothing.
    """

    columns: Columns
    centering: str
    mean_px: np.ndarray
    components: np.ndarray
    explained_variance: np.ndarray
    epsilon_px: float


def poses_of(keypoints_px: Float[Any, "n k 2"], columns: Columns, centering: str) -> Float[Any, "n q d"]:
    """Returns the poses (n frames, q poses a frame, d = 2 m coordinates), as the same kind of array as the keypoints.

    Args:
      keypoints_px: (x, y) in pixels. With a centering, a pose with a missing (NaN) point is missing as a whole.
      columns: for each pose of a frame, the m keypoints that form it.
      centering: none, mean or median; subtracted from the points of each pose, x and y apart.
    """
    xp = keypoints_px.__array_namespace__()
    points = keypoints_px[:, np.array(columns)]
    if centering != "none":
        centre = {"mean": xp.mean, "median": xp.median}[centering]
        points = points - centre(points, axis=2, keepdims=True)
    return points.reshape(points.shape[0], points.shape[1], -1)


def scores(pca: Pca, poses_px: Float[Any, "n q d"]) -> Float[Any, "n q c"]:
    """Returns the position of each pose along the kept components, in frame pixels from the mean pose.

    A missing coordinate is replaced by that of the mean pose; a pose without points gives zeros.
    """
    xp = poses_px.__array_namespace__()
    mean = xp.asarray(pca.mean_px, dtype=poses_px.dtype)[None, None]
    components = xp.asarray(pca.components, dtype=poses_px.dtype)
    return xp.where(xp.isfinite(poses_px), poses_px - mean, 0) @ components.T


def residuals_px(pca: Pca, keypoints_frame_px: Float[Any, "n k 2"]) -> Float[Any, "n q m 2"]:
    """Returns (x, y) of each point of each pose relative to the nearest pose of the subspace, in frame pixels.

    The result has the kind and dtype of the given array. A pose with a missing point has NaN at all of its points: with
    fewer coordinates the subspace is nearer, and the error would look too small.
    """
    xp = keypoints_frame_px.__array_namespace__()
    poses = poses_of(keypoints_frame_px, pca.columns, pca.centering)
    mean = xp.asarray(pca.mean_px, dtype=poses.dtype)[None, None]
    components = xp.asarray(pca.components, dtype=poses.dtype)
    residual = poses - mean - scores(pca, poses) @ components
    residual = xp.where(xp.isfinite(poses).all(-1)[..., None], residual, xp.nan)
    return residual.reshape(*residual.shape[:2], -1, 2)


def errors_px(pca: Pca, keypoints_frame_px: Float[np.ndarray, "n k 2"]) -> Float[np.ndarray, "n k"]:
    """Returns how far each keypoint lies from the subspace in frame pixels, float64.

    NaN for keypoints that are in no pose of the PCA, and for all points of a pose with a missing one.
    """
    residual = residuals_px(pca, np.asarray(keypoints_frame_px, np.float64))
    errors = np.full(keypoints_frame_px.shape[:2], np.nan)
    errors[:, np.array(pca.columns)] = np.linalg.norm(residual, axis=-1)
    return errors


def to_json(pca: Pca) -> dict[str, Any]:
    """Returns the PCA as lists and numbers that JSON can hold, exactly."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(pca).items()}


def from_json(stored: dict[str, Any]) -> Pca:
    """Returns the PCA that `to_json` wrote.

    Raises:
      UserError: it is no such table, or its parts do not fit together.
    """
    fields = [field.name for field in dataclasses.fields(Pca)]
    if not isinstance(stored, dict) or set(stored) != set(fields):
        raise UserError(f"a PCA must be a table of {', '.join(fields)}")
    columns, centering, epsilon_px = stored["columns"], stored["centering"], stored["epsilon_px"]
    if not _are_columns(columns):
        raise UserError("columns must be lists of keypoints, counted from 0, all of one length")
    if centering not in ("none", "mean", "median"):
        raise UserError(f"centering is {centering!r}; it must be none, mean or median")
    size = 2 * len(columns[0])
    arrays = {
        "mean_px": _array(stored, "mean_px", (size,)),
        "components": _array(stored, "components", (None, size)),
        "explained_variance": _array(stored, "explained_variance", (size,)),
    }
    if not _is_number(epsilon_px) or epsilon_px < 0:
        raise UserError(f"epsilon_px is {epsilon_px!r}; it must be a number of at least 0")
    return Pca(tuple(map(tuple, columns)), centering, **arrays, epsilon_px=float(epsilon_px))


def _are_columns(value: Any) -> bool:
    if not isinstance(value, list | tuple) or not value:
        return False
    if not all(isinstance(pose, list | tuple) and pose and len(pose) == len(value[0]) for pose in value):
        return False
    return all(type(point) is int and point >= 0 for pose in value for point in pose)


def _array(stored: dict[str, Any], name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """Returns numbers in nested lists as float64 (shape; None is any length above 0)."""
    rows = stored[name] if len(shape) == 2 else [stored[name]]
    size = shape[-1]
    if not isinstance(rows, list | tuple) or not rows:
        raise UserError(f"{name} must be a list of lists of {size} numbers")
    for row in rows:
        if not isinstance(row, list | tuple) or len(row) != size or not all(map(_is_number, row)):
            raise UserError(f"{name} must hold {size} finite numbers{' in each row' if len(shape) == 2 else ''}")
    array = np.array(rows, np.float64)
    return array if len(shape) == 2 else array[0]


def _is_number(value: Any) -> bool:
    # A whole number may be too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
