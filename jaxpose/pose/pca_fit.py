"""Fits a PCA subspace to labelled poses, once, on the host, in float64.

The formulas are those of Lightning Pose 2.4 (utils/pca.py there), which fits in resized pixels and measures in frame
pixels; here everything is in frame pixels.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from jaxpose.config.losses import PcaMultiviewConfig, PcaSingleviewConfig
from jaxpose.errors import UserError
from jaxpose.pose.pca import Columns, Pca, errors_px, poses_of


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
        data cannot give, or all components are kept.
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
      UserError: a name is no keypoint, or is given twice.
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
      UserError: more components than there are, or a share of the variance outside of 0 to 1.
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
    """Raises UserError if so many components are kept that no pose lies outside of them."""
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
