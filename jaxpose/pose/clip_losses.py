"""Losses on unlabelled clips, and on coordinates: a sum and a count per clip, never a mean.

The caller adds sums and counts over the global batch and divides once. A clip is a sequence of w
predictions. A copy of a prediction that another clip shard owns is computed, but neither added nor counted. Values that
are not owned may be anything, even NaN: they are replaced before any arithmetic. Formulas: docs/losses.md.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxpose.pose.pca import Pca, residuals_px

Sums = tuple[Float[Array, "c"], Float[Array, "c"]]

# Keeps the logarithms finite where a map is 0.
_TINY = 1e-10


def temporal(
    keypoints_frame_px: Float[Array, "c w k 2"],
    confidence: Float[Array, "c w k"],
    owned_pairs: Bool[Array, "c w-1"],
    epsilon_px: Sequence[float],
    confidence_min: float,
) -> Sums:
    """Returns, per clip, the sum of max(0, step - epsilon) over pairs and keypoints, and their number.

    A step is the Euclidean distance of a keypoint between neighbouring predictions. If one of the two is not confident
    enough, the step is 0 and still counts.

    Args:
      keypoints_frame_px: (x, y) in frame pixels.
      confidence: of each point.
      owned_pairs: whether the pair of predictions i and i + 1 is counted here.
      epsilon_px: one number, or one per keypoint.
      confidence_min: the smallest confidence that is enough.

    Raises:
      ValueError: the number of epsilons is neither 1 nor the number of keypoints.
    """
    used = _confident_pairs(confidence, owned_pairs, confidence_min)
    points = keypoints_frame_px
    before, after = (jnp.where(used[..., None], side, 0) for side in (points[:, :-1], points[:, 1:]))
    return _sum_and_count(_length(after - before), used, owned_pairs, epsilon_px)


def temporal_heatmap_mse(
    maps: Float[Array, "c w k height width"],
    confidence: Float[Array, "c w k"],
    owned_pairs: Bool[Array, "c w-1"],
    epsilon: Sequence[float],
    confidence_min: float,
) -> Sums:
    """Returns the same as `temporal`, where a step is the mean over cells of the squared difference of the two maps.

    Args: as in `temporal`; each map sums to 1.
    """
    used = _confident_pairs(confidence, owned_pairs, confidence_min)
    before, after = _map_pairs(maps, used)
    return _sum_and_count(jnp.square(after - before).mean((-2, -1)), used, owned_pairs, epsilon)


def temporal_heatmap_kl(
    maps: Float[Array, "c w k height width"],
    confidence: Float[Array, "c w k"],
    owned_pairs: Bool[Array, "c w-1"],
    epsilon: Sequence[float],
    confidence_min: float,
) -> Sums:
    """Returns the same as `temporal`, where a step is KL(next map || map), with 1e-10 added to both.

    Args: as in `temporal`; each map sums to 1.
    """
    used = _confident_pairs(confidence, owned_pairs, confidence_min)
    before, after = (side + _TINY for side in _map_pairs(maps, used))
    divergence = (after * (jnp.log(after) - jnp.log(before))).sum((-2, -1))
    return _sum_and_count(divergence, used, owned_pairs, epsilon)


def pca(keypoints_frame_px: Float[Array, "c w k 2"], owned: Bool[Array, "c w"], fitted: Pca) -> Sums:
    """Returns, per clip, the sum of max(0, distance - epsilon) over the points of all poses, and their number.

    The distance is that of `jaxpose.pose.pca.errors_px`, for the single-view and the multi-view PCA.

    Args:
      keypoints_frame_px: (x, y) in frame pixels; with several cameras the keypoints of all views side by side.
      owned: whether a prediction is counted here.
      fitted: the subspace.
    """
    clips, windows = owned.shape
    points = jnp.where(owned[..., None, None], keypoints_frame_px, 0)
    # With less precision, a GPU would round coordinates of 1000 px to whole pixels.
    with jax.default_matmul_precision("highest"):
        residuals = residuals_px(fitted, points.reshape(clips * windows, *points.shape[2:]))
    distance = _length(residuals).reshape(clips, windows, -1)
    return _sum_and_count(distance, owned[..., None], owned, (fitted.epsilon_px,))


def unimodal_mse(
    maps: Float[Array, "c w k height width"],
    targets: Float[Array, "c w k height width"],
    confidence: Float[Array, "c w k"],
    owned: Bool[Array, "c w"],
    confidence_min: float,
) -> Sums:
    """Returns, per clip, the sum over confident maps of the squared difference to one Gaussian, and their number.

    Args:
      maps: each sums to 1.
      targets: target maps of labels at the predicted points; they get no gradient.
      confidence: of each point; a map that is not confident enough does not count.
      owned: whether a prediction is counted here.
      confidence_min: the smallest confidence that is enough.
    """
    used = owned[..., None] & ~(confidence < confidence_min)
    seen, wanted = (jnp.where(used[..., None, None], side, 0) for side in (maps, jax.lax.stop_gradient(targets)))
    sums = jnp.square(seen - wanted).sum((1, 2, 3, 4))
    return sums, used.sum((1, 2), dtype=sums.dtype)


def regression(
    predicted_px: Float[Array, "b k 2"], labelled_px: Float[Array, "b k 2"], used: Bool[Array, "b k"]
) -> tuple[Float[Array, "b"], Float[Array, "b"]]:
    """Returns, per frame, the sum over used keypoints of the squared error, mean of x and y, and their number.

    Args:
      predicted_px: (x, y).
      labelled_px: (x, y) in the same pixels; any value, even NaN, where not used.
      used: whether a keypoint counts.
    """
    predicted, labelled = (jnp.where(used[..., None], points, 0) for points in (predicted_px, labelled_px))
    sums = jnp.square(predicted - labelled).mean(-1).sum(-1)
    return sums, used.sum(-1, dtype=sums.dtype)


def _confident_pairs(
    confidence: Float[Array, "c w k"], owned_pairs: Bool[Array, "c w-1"], confidence_min: float
) -> Bool[Array, "c w-1 k"]:
    # Not >=, which is false for NaN: the loss would hide the NaN.
    unsure = confidence < confidence_min
    return owned_pairs[..., None] & ~(unsure[:, :-1] | unsure[:, 1:])


def _map_pairs(maps: Array, used: Array) -> tuple[Array, Array]:
    used = used[..., None, None]
    return jnp.where(used, maps[:, :-1], 0), jnp.where(used, maps[:, 1:], 0)


def _length(vectors: Float[Array, "*n 2"]) -> Float[Array, "*n"]:
    """Returns Euclidean lengths whose gradient at 0 is 0, not NaN."""
    squared = jnp.square(vectors).sum(-1)
    at_zero = squared == 0
    return jnp.where(at_zero, 0, jnp.sqrt(jnp.where(at_zero, 1, squared)))


def _sum_and_count(
    values: Float[Array, "c n k"], used: Bool[Array, "c n #k"], owned: Bool[Array, "c n"], epsilon: Sequence[float]
) -> Sums:
    """Returns, per clip, the sum of max(0, value - epsilon) where used, and the number of values that are owned."""
    columns = values.shape[-1]
    if len(epsilon) not in (1, columns):
        raise ValueError(f"epsilon has {len(epsilon)} numbers for {columns} keypoints; give one, or one per keypoint")
    costs = jax.nn.relu(values - jnp.asarray(epsilon, values.dtype)[None, None])
    sums = jnp.where(used, costs, 0).sum((1, 2))
    return sums, owned.sum(1, dtype=sums.dtype) * columns
