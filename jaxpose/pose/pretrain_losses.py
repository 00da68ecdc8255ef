"""The losses of a pretraining: pixels of hidden squares (He et al., CVPR 2022), or the features of a teacher.

A square's pixels are compared after its own mean and deviation are taken away, as in that paper: what counts is the
structure, not the brightness.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

# Added to a square's variance, in (grey values)^2: a flat one has no structure, only noise.
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
    """Returns for each frame the sum over hidden cells of the mean squared error, and the same of maps of 0.

    The second one is what a network costs that knows only the mean of each square.
    """
    counts = _repeated(hidden, maps.shape[2:])[:, None]
    targets = targets.astype(maps.dtype)
    channels = maps.shape[1]
    costs = [jnp.sum(jnp.where(counts, jnp.square(of - targets), 0), (1, 2, 3)) for of in (maps, jnp.zeros_like(maps))]
    return costs[0] / channels, costs[1] / channels


def follow_loss(maps: Float[Array, "q c h w"], features: Float[Array, "q a b c"]) -> Float[Array, " q"]:
    """Returns for each frame the sum over the cells of a teacher of 1 - cosine between its features and a student's.

    Args:
      maps: of the student, averaged over the cells of the teacher's grid; h is a multiple of a, w of b.
      features: of the teacher.
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
