"""Fits a PCA subspace to poses, and measures the distance of other poses from it, in frame pixels.

A pose is m points of one frame, written x, y, x, y, ...: all chosen keypoints of the animal (single view, one pose a
frame), or one body part in m views (multi-view, a pose for each body part).
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxpose.config.losses import PcaMultiviewConfig, PcaSingleviewConfig
from jaxpose.errors import UserError

Columns = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Pca:
    """A fitted subspace of poses of m points, d = 2 m coordinates, float64.

    Attributes:
      columns: for each of the q poses of a frame, the m keypoints that form it.
      centering: the point that is first subtracted from a pose: none, or the mean or median of its x and of its y.
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
      centering: none, mean or median; subtracted from the points of each pose, x and y separately.
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
      UserError: it is not such a table, or its parts do not fit together.
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


# Fits a PCA subspace to labelled poses, once, on the host, in float64.
#
# The formulas are those of Lightning Pose 2.4 (utils/pca.py there), which fits in resized pixels and measures in frame
# pixels; here everything is in frame pixels.


def fit_singleview(
    labels_frame_px: Float[np.ndarray, "n k 2"], columns: Sequence[int], options: PcaSingleviewConfig
) -> Pca:
    """Returns the subspace of whole poses, one sample for each frame.

    Args:
      labels_frame_px: (x, y) of the training labels in frame pixels, NaN where missing.
      columns: the keypoints that form a pose.
      options: components, centering and epsilon.

    Raises:
      UserError: fewer frames with labels than coordinates, two keypoints never labelled together, an option that the
        data cannot meet, or all components are kept.
    """
    return _fit("pca_singleview", labels_frame_px, (tuple(columns),), options.centering, options)


def fit_multiview(
    labels_frame_px: Float[np.ndarray, "n k 2"], views: Sequence[Sequence[int]], options: PcaMultiviewConfig
) -> Pca:
    """Returns the subspace of one body part seen in several views, one sample for each frame and body part.

    With several cameras, a row is a moment, with the keypoints of all views side by side.

    Args:
      labels_frame_px: (x, y) of the training labels in frame pixels, NaN where missing.
      views: for each view its keypoints, in the same order of body parts.
      options: components and epsilon.

    Raises:
      UserError: as `fit_singleview`; fewer than two views, or views of different lengths.
    """
    return _fit("pca_multiview", labels_frame_px, parts_of(views), "none", options)


def parts_of(views: Sequence[Sequence[int]]) -> Columns:
    """Returns for each body part its keypoints, one of every view.

    Raises:
      UserError: fewer than two views, or views of different lengths.
    """
    if len(views) < 2 or len({len(view) for view in views}) != 1:
        lengths = ", ".join(str(len(view)) for view in views) or "none"
        raise UserError(
            f"losses.pca_multiview.views: the views have {lengths} keypoints; two or more views of the same number are "
            "needed, in the same order of body parts"
        )
    return tuple(zip(*views, strict=True))


def columns_of(names: Sequence[str], keypoint_names: Sequence[str], option: str) -> tuple[int, ...]:
    """Returns the indices of names in keypoint_names; `option` is the source of the names, for the message.

    Raises:
      UserError: a name is not a keypoint, or is given twice.
    """
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"{option}: {', '.join(twice)} is named more than once; a keypoint has one place in a pose")
    unknown = sorted(set(names) - set(keypoint_names))
    if unknown:
        raise UserError(f"{option}: no keypoint {', '.join(unknown)}; there are {', '.join(keypoint_names)}")
    return tuple(list(keypoint_names).index(name) for name in names)


def principal_axes(
    poses: Float[np.ndarray, "n d"],
) -> tuple[Float[np.ndarray, "d"], Float[np.ndarray, "d d"], Float[np.ndarray, "d"]]:
    """Returns the mean, the axes as rows, and each axis's share of the variance, the largest first.

    Without missing values this is scikit-learn's PCA. With missing values, each entry of the covariance matrix uses the
    samples that have both coordinates. Such a matrix can have negative variances, which are set to 0.

    Args:
      poses: samples; NaN where missing. A sample without any value is ignored.

    Raises:
      UserError: fewer samples than coordinates, two coordinates with less than two samples in common, or samples
        that are all equal.
    """
    poses = poses[np.isfinite(poses).any(1)]
    present = np.isfinite(poses)
    count, size = poses.shape
    if count < size:
        raise UserError(
            f"{count} labelled poses of {size} coordinates; a PCA needs at least as many poses as coordinates: choose "
            "fewer keypoints or label more frames"
        )
    together = present.T.astype(np.int64) @ present.astype(np.int64)
    if together.min() < 2:
        first, second = np.unravel_index(together.argmin(), together.shape)
        raise UserError(
            f"points {first // 2} and {second // 2} of the pose (counted from 0) are labelled together in "
            f"{together.min()} poses; a PCA needs two or more: leave one of them out or label more frames"
        )
    mean = np.where(present, poses, 0).sum(0) / present.sum(0)
    centred = np.where(present, poses - mean, 0)
    variances, axes = np.linalg.eigh(centred.T @ centred / (together - 1))
    variances, axes = np.maximum(variances[::-1], 0), axes.T[::-1]
    if not variances.any():
        raise UserError(f"the {count} labelled poses are all the same; a PCA needs poses that differ")
    # The sign of an axis is arbitrary; its largest coordinate is made positive, as in scikit-learn.
    largest = np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1)
    # The memory layout of an array read from JSON, so that products round in the same way.
    return mean, np.ascontiguousarray(axes * np.sign(largest)), variances / variances.sum()


def choose_components(
    explained_variance: Float[np.ndarray, "d"], components: int, explained_variance_min: float
) -> int:
    """Returns how many axes to keep: `components`, or if it is 0, as few as explain enough variance (1.0: all).

    Raises:
      UserError: more components than there are, or a share of the variance outside 0 to 1.
    """
    size = len(explained_variance)
    if not 0 <= components <= size:
        raise UserError(f"components is {components}; a pose of {size} coordinates has 1 to {size} (0: by variance)")
    if not 0 <= explained_variance_min <= 1:
        raise UserError(f"explained_variance is {explained_variance_min}; it must be in 0 to 1")
    if components:
        return components
    enough = np.cumsum(explained_variance) >= explained_variance_min
    # The sum of all may be 1 minus a rounding error, or 1 before the last.
    return int(enough.argmax()) + 1 if explained_variance_min < 1 else size


def empirical_epsilon_px(errors_px: Float[np.ndarray, "..."], percentile: float, multiplier: float) -> float:
    """Returns the percentile of the errors that are not NaN, times the multiplier, in their pixels.

    Raises:
      UserError: all errors are NaN.
    """
    known = errors_px[~np.isnan(errors_px)]
    if not known.size:
        raise UserError("no labelled pose is complete, so there is no error to take a percentile of; set epsilon_px")
    return float(np.percentile(known, percentile)) * multiplier


def _fit(
    name: str,
    labels_frame_px: np.ndarray,
    columns: Columns,
    centering: str,
    options: PcaSingleviewConfig | PcaMultiviewConfig,
) -> Pca:
    flat = [column for pose in columns for column in pose]
    if len(set(flat)) != len(flat) or not flat:
        raise UserError(f"losses.{name}: the keypoints {flat} (counted from 0) must be at least one, each once")
    labels = labels_frame_px.astype(np.float64)
    poses = poses_of(labels, columns, centering)
    try:
        mean_px, axes, explained = principal_axes(poses.reshape(-1, poses.shape[-1]))
        kept = choose_components(explained, options.components, options.explained_variance)
        _refuse_all(kept, columns, centering, options)
        fitted = Pca(columns, centering, mean_px, axes[:kept], explained, epsilon_px=0.0)
        epsilon_px = options.epsilon_px
        if epsilon_px is None:
            errors = errors_px(fitted, labels)
            epsilon_px = empirical_epsilon_px(errors, options.epsilon_percentile, options.epsilon_multiplier)
    except UserError as error:
        raise UserError(f"losses.{name}: {error}") from error
    return dataclasses.replace(fitted, epsilon_px=float(epsilon_px))


def _refuse_all(kept: int, columns: Columns, centering: str, options: PcaSingleviewConfig | PcaMultiviewConfig) -> None:
    """Raises UserError if so many components are kept that no pose lies outside them."""
    points = len(columns[0])
    # Centering makes the mean of the points 0. The median of two points is their mean.
    is_centred = centering == "mean" or (centering == "median" and points <= 2)
    size = 2 * points - 2 * is_centred
    if kept >= size:
        name = "components" if options.components else "explained_variance"
        of = f"a pose of {points} points{' after centering' * is_centred}"
        more = "keypoints" if isinstance(options, PcaSingleviewConfig) else "views"
        raise UserError(
            f"{name} = {getattr(options, name):g} keeps all {size} components of {of}, so the error of every pose "
            f"would be 0; lower it, or name more {more}"
        )
