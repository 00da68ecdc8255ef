"""Losses on frames without labels: those of clips, of points, and of a pretraining."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxpose.pose.pca import Pca, residuals_px

# Losses on unlabelled clips, and on coordinates: a sum and a count per clip, never a mean.
#
# The caller adds sums and counts over the global batch and divides once. A clip is a sequence of w predictions. If
# another clip shard owns a prediction, its copy here is computed, but neither added nor counted. Values that are not
# owned may be anything, even NaN: they are replaced before any arithmetic. Formulas: docs/losses.md.

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
      confidence: for each point.
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


def multiview_consistency(
    keypoints_frame_px: Float[Array, "c w k 2"],
    owned: Bool[Array, "c w"],
    epsilon_px: Sequence[float],
    shown_frame_px: Float[Array, "c w k 2"],
    is_shown: Bool[Array, "c w k"],
) -> Sums:
    """Returns, per clip and view, the sum of max(0, distance - epsilon) to the other views' place, and the number.

    Args:
      keypoints_frame_px: (x, y) in frame pixels.
      owned: whether a prediction is counted here.
      epsilon_px: one number, or one per keypoint.
      shown_frame_px: the places that the other views show; they get no gradient.
      is_shown: whether there is such a place; a keypoint without one costs 0 and counts.
    """
    used = is_shown & owned[..., None]
    places = keypoints_frame_px, jax.lax.stop_gradient(shown_frame_px)
    seen, shown = (jnp.where(used[..., None], side, 0) for side in places)
    return _sum_and_count(_length(seen - shown), used, owned, epsilon_px)


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
      confidence: for each point; a map that is not confident enough does not count.
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


# Camera noise on the frames of clips; every copy of a frame gets the same noise.


def shot_noise(
    pictures: Float[Array, "b s h w 3"], keys: Array, frame_index: Int[Array, "b s"], variance_max: float
) -> Float[Array, "b s h w 3"]:
    """Returns images (0..255) with noise whose variance is proportional to the pixel's value, like photon noise.

    Each clip draws its proportion between 0 and `variance_max`, and each frame its noise. The noise is uniform, not
    normal: it has the same variance at a third of the cost.

    Args:
      pictures: clips, 0..255.
      keys: jax keys (b,), one per clip.
      frame_index: position of each frame in its clip; with the key, it decides the noise.
      variance_max: largest proportion.
    """
    dtype = pictures.dtype
    # 24 bits fit a float32, so the noise is the same in every dtype.
    drawn = jax.vmap(lambda key: jax.random.bits(key, (), jnp.uint32))(keys)
    proportion = variance_max * (drawn >> 8).astype(dtype) / 2**24

    def of_frame(key: Array, index: Array) -> Array:
        return jax.random.bits(jax.random.fold_in(key, index), pictures.shape[2:], jnp.uint16)

    bits = jax.vmap(jax.vmap(of_frame, (None, 0)))(keys, frame_index)
    # Between -1 and 1, with a variance of 1/3.
    unit = (2 * bits.astype(dtype) + 1) / 2**16 - 1
    noise = jnp.sqrt(3 * proportion[:, None, None, None, None] * pictures) * unit
    return jnp.clip(pictures + noise, 0.0, 255.0)


# The losses of a pretraining: pixels of hidden squares (He et al., CVPR 2022), or the features of a teacher.
#
# As in that paper, a square's pixels are normalised by its own mean and deviation before the comparison, so that
# structure counts, not brightness.

# Added to a square's variance, in (grey values)^2: a flat square has no structure, only noise.
_FLAT_VARIANCE = 25.0


def draw_hidden(keys: Array, share: float, cells: tuple[int, int]) -> Bool[Array, "q a b"]:
    """Returns which squares of each frame are hidden, each with the same probability.

    Args:
      keys: jax keys (q,).
      share: the probability.
      cells: (a, b), squares of a frame from top to bottom and from left to right.
    """
    bits = jax.vmap(lambda key: jax.random.bits(key, cells, jnp.uint32))(keys)
    # 24 bits fit a float32, so the squares are the same in every precision.
    return (bits >> 8).astype(jnp.float32) / 2**24 < share


def hide(pictures: Float[Array, "q t h w 3"], hidden: Bool[Array, "q a b"]) -> Float[Array, "q t h w 3"]:
    """Returns the frames with each hidden square filled with the frame's mean colour."""
    mean = jnp.mean(pictures, axis=(2, 3), keepdims=True)
    return jnp.where(_repeated(hidden, pictures.shape[2:4])[:, None, :, :, None], mean, pictures)


def square_targets(pictures: Float[Array, "q h w 3"], cells: tuple[int, int], stride: int) -> Float[Array, "q c h2 w2"]:
    """Returns the pixels of each cell of a map, c = 3 stride^2 numbers, normalised over the square that it lies in.

    Args:
      pictures: 0..255.
      cells: (a, b), squares from top to bottom and from left to right; their sides are multiples of the stride.
      stride: pixels per cell of the map.
    """
    count, height, width, _ = pictures.shape
    squares = pictures.reshape(count, cells[0], height // cells[0], cells[1], width // cells[1], 3)
    mean = jnp.mean(squares, axis=(2, 4), keepdims=True)
    variance = jnp.mean(jnp.square(squares - mean), axis=(2, 4), keepdims=True)
    normal = ((squares - mean) * jax.lax.rsqrt(variance + _FLAT_VARIANCE)).reshape(pictures.shape)
    maps = normal.reshape(count, height // stride, stride, width // stride, stride, 3).transpose(0, 2, 4, 5, 1, 3)
    return maps.reshape(count, -1, height // stride, width // stride)


def hidden_loss(
    maps: Float[Array, "q c h w"], targets: Float[Array, "q c h w"], hidden: Bool[Array, "q a b"]
) -> tuple[Float[Array, " q"], Float[Array, " q"]]:
    """Returns for each frame the sum over hidden cells of the mean squared error, and the same for maps of 0.

    The second one is the loss of a network that knows only the mean of each square.
    """
    counts = _repeated(hidden, maps.shape[2:])[:, None]
    targets = targets.astype(maps.dtype)
    channels = maps.shape[1]
    costs = [jnp.sum(jnp.where(counts, jnp.square(of - targets), 0), (1, 2, 3)) for of in (maps, jnp.zeros_like(maps))]
    return costs[0] / channels, costs[1] / channels


def follow_loss(maps: Float[Array, "q c h w"], features: Float[Array, "q a b c"]) -> Float[Array, " q"]:
    """Returns for each frame the sum over the cells of a teacher of 1 - cosine between its features and a student's.

    Args:
      maps: the student's, averaged over the cells of the teacher's grid; h is a multiple of a, w of b.
      features: the teacher's.
    """
    count, channels, height, width = maps.shape
    high, wide = features.shape[1:3]
    cells = maps.reshape(count, channels, high, height // high, wide, width // wide)
    student = jnp.mean(cells, axis=(3, 5)).transpose(0, 2, 3, 1)
    return jnp.sum(1 - jnp.sum(_unit(student) * _unit(features.astype(student.dtype)), axis=-1), axis=(1, 2))


def _unit(features: Array) -> Array:
    return features * jax.lax.rsqrt(jnp.sum(jnp.square(features), axis=-1, keepdims=True) + 1e-24)


def _repeated(hidden: Array, sides: tuple[int, ...]) -> Array:
    """Returns a mask of squares (q, a, b) for each cell (q, h, w) of maps or frames with the given sides."""
    rows = jnp.repeat(hidden, sides[0] // hidden.shape[1], axis=1)
    return jnp.repeat(rows, sides[1] // hidden.shape[2], axis=2)
