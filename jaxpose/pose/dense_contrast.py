"""Dense contrast: a place of a frame has the same features in two views of it, and other places have others.

The loss is InfoNCE (van den Oord et al. 2018) between the places of one frame, as in learned landmarks (Thewlis et al.,
ICCV 2019, descriptor vector exchange; Cheng et al., ICCV 2021). Other frames give no negatives: in video they show the
same background and the same body parts, whose features should agree.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def lattice_px(offsets: Float[Array, "q 2"], count: int, size_px: tuple[int, int]) -> Float[Array, "q n 2"]:
    """Returns count x count points (x, y) of each frame, in input pixels, on a lattice that spans the frame.

    Args:
      offsets: of each frame's lattice (x, y), in [0, 1) of the distance between two points.
      count: points along each side, n = count^2.
      size_px: (height, width) of the input.
    """
    dtype = offsets.dtype
    index = jnp.arange(count, dtype=dtype)
    y, x = jnp.meshgrid(index, index, indexing="ij")
    cells = jnp.stack([x, y], axis=-1).reshape(1, -1, 2) + offsets[:, None]
    distance_px = jnp.array([size_px[1] / count, size_px[0] / count], dtype)
    return cells * distance_px[None, None] - 0.5


def inside(points_px: Float[Array, "q n 2"], size_px: tuple[int, int]) -> Bool[Array, "q n"]:
    """Returns which points (x, y) lie in an input of (height, width) px."""
    last = jnp.array([size_px[1] - 1, size_px[0] - 1], points_px.dtype)
    return jnp.all((points_px >= 0) & (points_px <= last[None, None]), axis=-1)


def sample_maps(maps: Float[Array, "q k h w"], points: Float[Array, "q n 2"]) -> Float[Array, "q n k"]:
    """Returns the values of maps at points (x, y) in cells, bilinear; beyond the outer cells, those of the nearest."""
    count, channels, height, width = maps.shape
    flat = maps.transpose(0, 2, 3, 1).reshape(count, height * width, channels)
    limits = jnp.array([width - 1, height - 1], points.dtype)
    points = jnp.clip(points, 0, limits[None, None])
    corner = jnp.clip(jnp.floor(points), 0, jnp.maximum(limits - 1, 0)[None, None])
    share = points - corner
    first = corner[..., 0].astype(jnp.int32), corner[..., 1].astype(jnp.int32)
    values = jnp.zeros((count, points.shape[1], channels), maps.dtype)
    for right in (0, 1):
        for below in (0, 1):
            x, y = jnp.minimum(first[0] + right, width - 1), jnp.minimum(first[1] + below, height - 1)
            weight_x = share[..., 0] if right else 1 - share[..., 0]
            weight_y = share[..., 1] if below else 1 - share[..., 1]
            picked = jnp.take_along_axis(flat, (y * width + x)[..., None], axis=1)
            values += (weight_x * weight_y).astype(maps.dtype)[..., None] * picked
    return values


def unit(features: Float[Array, "... k"]) -> Float[Array, "... k"]:
    """Returns features of length 1; those of length 0 stay 0."""
    return features * jax.lax.rsqrt(jnp.sum(jnp.square(features), axis=-1, keepdims=True) + 1e-24)


def match_loss(
    first: Float[Array, "q n k"], second: Float[Array, "q n k"], matched: Bool[Array, "q n"], temperature: float
) -> tuple[Float[Array, " q"], Float[Array, " q"]]:
    """Returns the loss of each frame, a sum over its matched places, and how many of them are found.

    Place i costs the mean over both directions of -log softmax_j(s_ij / temperature) at j = i, where s_ij is the cosine
    of the features of place i in one view and of place j in the other. It is found if no other place is more similar.

    Args:
      first, second: features of the same n places in two views.
      matched: which places both views show; others are no negatives either.
      temperature: see above.
    """
    likeness = jnp.einsum("qnk,qmk->qnm", unit(first), unit(second)) / temperature
    lowest = jnp.asarray(jnp.finfo(likeness.dtype).min / 2, likeness.dtype)
    places = jnp.arange(first.shape[1])
    loss, hits = jnp.zeros(first.shape[:1], likeness.dtype), jnp.zeros(first.shape[:1], likeness.dtype)
    for scores in (likeness, likeness.swapaxes(1, 2)):
        scores = jnp.where(matched[:, None, :], scores, lowest)
        own = jnp.diagonal(jax.nn.log_softmax(scores, axis=-1), axis1=1, axis2=2)
        # Select before the sum: of a place that is not matched, the number has no meaning.
        loss -= jnp.sum(jnp.where(matched, own, 0), axis=-1) / 2
        is_found = matched & (jnp.argmax(scores, axis=-1) == places[None])
        hits += jnp.sum(is_found, axis=-1, dtype=hits.dtype) / 2
    return loss, hits


def follow_loss(maps: Float[Array, "q k h w"], features: Float[Array, "q a b k"]) -> Float[Array, " q"]:
    """Returns for each frame the sum of 1 - cosine between features and maps, averaged over the cells of each feature.

    Args:
      maps: of a student; h is a multiple of a, w of b.
      features: of a teacher, on a coarser grid.
    """
    count, channels, height, width = maps.shape
    high, wide = features.shape[1:3]
    cells = maps.reshape(count, channels, high, height // high, wide, width // wide)
    student = jnp.mean(cells, axis=(3, 5)).transpose(0, 2, 3, 1)
    cosine = jnp.sum(unit(student) * unit(features.astype(student.dtype)), axis=-1)
    return jnp.sum(1 - cosine, axis=(1, 2))
