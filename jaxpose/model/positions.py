"""Positions of a vision transformer's patches: learned ones, resized to the input, and rotary ones."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# The slope of the bicubic kernel, in OpenCV's and torch's plain resize, and in Pillow's and torch's antialiased one.
_SLOPE = -0.75
_SLOPE_ANTIALIASED = -0.5
# The base of the wave lengths of DINOv3's rotary positions.
ROTARY_BASE = 100.0


def resize_positions(positions: Float[Array, "n c"], sides: tuple[int, int]) -> Float[Array, "m c"]:
    """Returns learned positions of a square grid, row by row, resized to a grid of `sides` = (rows, columns).

    As `interpolate_pos_encoding` of ViTModel, ViTMAEModel and Dinov2Model in transformers does it: bicubic, by torch's
    `interpolate` with align_corners=False and without antialiasing. To the same grid, it changes nothing.
    """
    side = round(positions.shape[0] ** 0.5)
    grid = positions.reshape(side, side, -1)
    rows, columns = (jnp.asarray(bicubic_matrix(count, side), positions.dtype) for count in sides)
    # Not rounded to fewer bits on a GPU, as products of tokens may be.
    resized = jnp.einsum("hi,wj,ijc->hwc", rows, columns, grid, precision="highest")
    return resized.reshape(sides[0] * sides[1], -1)


def rotary(
    sides: tuple[int, int], others: int, channels: int, dtype: jax.typing.DTypeLike
) -> tuple[Float[Array, "n d"], Float[Array, "n d"]]:
    """Returns the cosines and sines that `rotate` takes, of all tokens; the first `others` are not rotated.

    As DINOv3ViTModel in transformers does it: the centre of a patch has coordinates (y, x) from -1 to 1 over the input,
    whatever its size. A quarter of a head's channels is rotated by y, a quarter by x, each together with its partner
    half of the channels further on.

    Args:
      sides: rows and columns of patches.
      others: tokens before those of the patches.
      channels: of a head, a multiple of 4.
      dtype: type of the result.
    """
    y, x = ((2 * np.arange(count) + 1) / count - 1 for count in sides)
    places = np.stack(np.meshgrid(y, x, indexing="ij"), axis=-1).reshape(-1, 2, 1)
    frequencies = 2 * np.pi * ROTARY_BASE ** (-np.arange(channels // 4) * 4 / channels)
    angles = np.tile((places * frequencies).reshape(len(places), -1), 2)
    angles = np.concatenate([np.zeros((others, channels)), angles])
    return jnp.asarray(np.cos(angles), dtype), jnp.asarray(np.sin(angles), dtype)


def rotate(
    x: Float[Array, "b n heads d"], cosines: Float[Array, "n d"], sines: Float[Array, "n d"]
) -> Float[Array, "b n heads d"]:
    """Returns queries or keys with the pairs of channels (i, i + d / 2) rotated (Su et al. 2021)."""
    low, high = jnp.split(x, 2, axis=-1)
    return x * cosines[None, :, None] + jnp.concatenate([-high, low], axis=-1) * sines[None, :, None]


def bicubic_matrix(count: int, given: int) -> np.ndarray:
    """Returns the matrix (count, given) that resizes a row of values, as torch's plain bicubic `interpolate` does.

    Values beyond the ends are those at the ends, and pixels are compared by their edges (align_corners=False).
    """
    centres = (np.arange(count) + 0.5) * given / count - 0.5
    matrix = np.zeros((count, given))
    for row, centre in enumerate(centres):
        for tap in int(np.floor(centre)) + np.arange(-1, 3):
            matrix[row, np.clip(tap, 0, given - 1)] += _cubic(centre - tap, _SLOPE)
    return matrix


def antialiased_matrix(count: int, given: int) -> np.ndarray:
    """Returns the matrix (count, given) of torch's `interpolate` with bicubic, align_corners=True and antialias=True.

    It is only for as many values or more (count >= given > 1), where the antialiasing widens nothing. Taps beyond the
    ends are left out, and the rest are scaled to a sum of 1.
    """
    taps = np.arange(given)
    centres = (np.arange(count) + 0.5) * (given - 1) / (count - 1)
    matrix = np.array([[_cubic(tap + 0.5 - centre, _SLOPE_ANTIALIASED) for tap in taps] for centre in centres])
    return matrix / matrix.sum(axis=1, keepdims=True)


def _cubic(distance: float, slope: float) -> float:
    """Returns the weight of a tap at a distance in pixels (Keys 1981)."""
    d = abs(distance)
    if d <= 1:
        return (slope + 2) * d**3 - (slope + 3) * d**2 + 1
    return slope * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0
