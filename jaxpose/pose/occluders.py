"""Occluders: rectangles over keypoints of a frame, filled with another place of the frame or with one grey.

A network that has to find the keypoints below them must read the pose around them (joint cutout of Xie et al., ICCV
2021; joint cut-occlusion and cutmix of MultiAugs, Zhou et al., 2024). The other place is in the same frame, so that no
number depends on which other frames are in a batch.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Params = dict[str, Array]

# Half the side of a rectangle, as shares of the frame's smaller side.
_SMALLEST, _LARGEST = 0.03, 0.10
# How far its middle may be from the keypoint, as a share of half its side.
_JITTER = 0.5


def draw_params(keys: Array, count: int, dtype: jax.typing.DTypeLike) -> Params:
    """Returns uniform numbers in [0, 1) for the rectangles of each sample, (b, count, 8).

    Args:
      keys: jax keys (b,).
      count: number of rectangles.
      dtype: of the numbers.
    """
    bits = jax.vmap(lambda key: jax.random.bits(key, (count, 8), jnp.uint32))(keys)
    # 24 bits fit a float32, so the numbers are the same in every dtype.
    return {"share": (bits >> 8).astype(dtype) / 2**24}


def cover(
    pictures: Float[Array, "b t h w 3"], keypoints_px: Float[Array, "b k 2"], params: Params
) -> Float[Array, "b t h w 3"]:
    """Returns the frames with rectangles over some keypoints, the same in all frames of a sample.

    Args:
      pictures: 0..255.
      keypoints_px: (x, y); those that are NaN are not covered.
      params: of `draw_params`.
    """
    share = params["share"].astype(pictures.dtype)
    height, width = pictures.shape[2:4]
    count = keypoints_px.shape[1]
    keypoints_px = jnp.nan_to_num(keypoints_px.astype(pictures.dtype), nan=-1e6)
    rows = jnp.arange(height, dtype=pictures.dtype)[None, :, None]
    columns = jnp.arange(width, dtype=pictures.dtype)[None, None, :]
    covered = pictures
    for number in range(share.shape[1]):
        chosen, source, jitter_x, jitter_y, wide, high, grey, fill = jnp.unstack(share[:, number], axis=-1)
        index = (chosen * count).astype(jnp.int32)
        at = _point(keypoints_px, index)
        half = min(height, width) * (_SMALLEST + (_LARGEST - _SMALLEST) * jnp.stack([wide, high], axis=-1))
        middle = at + half * _JITTER * (2 * jnp.stack([jitter_x, jitter_y], axis=-1) - 1)
        inside = (jnp.abs(columns - middle[:, 0, None, None]) < half[:, 0, None, None]) & (
            jnp.abs(rows - middle[:, 1, None, None]) < half[:, 1, None, None]
        )
        # Another keypoint than the covered one; with a single keypoint there is none, and every fill is grey.
        other = (index + 1 + (source * (count - 1)).astype(jnp.int32)) % count
        shift = _point(keypoints_px, other) - at
        limits = jnp.array([[width, height]], shift.dtype)
        moved = jax.vmap(_rolled)(pictures, jnp.rint(jnp.clip(shift, -limits, limits)).astype(jnp.int32))
        is_grey = fill[:, None, None, None, None] < (1 / 3 if count > 1 else 1)
        filled = jnp.where(is_grey, 255 * grey[:, None, None, None, None], moved)
        covered = jnp.where(inside[:, None, :, :, None], filled, covered)
    return covered


def _point(keypoints_px: Array, index: Array) -> Array:
    return jnp.take_along_axis(keypoints_px, index[:, None, None], axis=1)[:, 0]


def _rolled(picture: Array, shift: Array) -> Array:
    """Returns the frames (t, h, w, 3), moved so that pixel p shows what was at p + shift."""
    height, width = picture.shape[1:3]
    rows = (jnp.arange(height, dtype=shift.dtype) + shift[1]) % height
    columns = (jnp.arange(width, dtype=shift.dtype) + shift[0]) % width
    return picture[:, rows][:, :, columns]
