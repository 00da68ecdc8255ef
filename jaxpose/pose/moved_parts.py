"""Moved parts: rectangles of a frame that get another place in it, with the keypoints on them.

A network that sees the parts of a few frames only where they were labelled learns their place, not their look. A part
is moved within its own frame, so that no number depends on which other frames are in a batch. What it leaves behind
shows the mean colour.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8

from jaxpose.codes import NOT_USED
from jaxpose.pose.pixels import Params, Resolved

# The random numbers of a part: place x and y, side x and y, new place x and y, whether it is moved.
_NUMBERS = 7


def draw_params(keys: Array, augment: Resolved, size_px: tuple[int, int], dtype: jax.typing.DTypeLike) -> Params:
    """Returns the rectangles of each sample, (b, parts, 2) as (x, y) in whole pixels; a part that stays has no sides.

    Args:
      keys: jax keys (b,).
      augment: the resolved config.
      size_px: (height, width) of the input.
      dtype: of the numbers.
    """
    numbers = jax.vmap(lambda key: jax.random.bits(key, (augment.move_parts, _NUMBERS), jnp.uint32))(keys)
    # Whole numbers are the same in every dtype. 16 bits times a side fit 32 bits.
    draws = numbers >> 16
    size = np.array([size_px[1], size_px[0]])
    least, most = (np.maximum(1, np.rint(size * share)) for share in (augment.move_side_min, augment.move_side_max))

    def below(draw: Array, count: Array) -> Array:
        return draw * count >> 16

    least, spread, size = (jnp.asarray(value, jnp.uint32)[None, None] for value in (least, most - least + 1, size))
    side = least + below(draws[..., 2:4], spread)
    low, new = (below(places, size - side + 1) for places in (draws[..., 0:2], draws[..., 4:6]))
    # 24 bits fit a float32.
    moves = (numbers[..., 6:] >> 8).astype(dtype) / 2**24 < augment.move_p
    low, side, new = (value.astype(dtype) for value in (low, jnp.where(moves, side, 0), new))
    return {"part_low_px": low, "part_side_px": side, "part_shift_px": new - low}


def move_keypoints(
    params: Params, keypoints_px: Float[Array, "b k 2"], visibility: Int[Array, "b k"]
) -> tuple[Float[Array, "b k 2"], Int[Array, "b k"]]:
    """Returns the keypoints where their parts are, and their visibility: NOT_USED where another part lies over them.

    Args:
      params: of `draw_params`.
      keypoints_px: (x, y) in pixels of the input; NaN stays NaN.
      visibility: 0, 1 or 2.
    """
    for low, side, shift in _parts(params):
        moves = _within(keypoints_px, low, side)
        is_covered = _within(keypoints_px, low + shift, side) & ~moves
        keypoints_px = jnp.where(moves[..., None], keypoints_px + shift, keypoints_px)
        visibility = jnp.where(is_covered, jnp.asarray(NOT_USED, visibility.dtype), visibility)
    return keypoints_px, visibility


def source_px(
    params: Params, x_px: Float[Array, "b h w"], y_px: Float[Array, "b h w"]
) -> tuple[Float[Array, "b h w"], Float[Array, "b h w"], Bool[Array, "b h w"]]:
    """Returns the point (x, y) of the frame that is seen at a point after the moves, and where nothing is seen.

    Args:
      params: of `draw_params`.
      x_px, y_px: points of the input after the moves.
    """
    points = jnp.stack([x_px, y_px], axis=-1)
    flat = points.reshape(len(points), -1, 2)
    is_empty = jnp.zeros(flat.shape[:2], bool)
    # Backwards: the last move is on top.
    for low, side, shift in reversed(_parts(params)):
        moved = _within(flat, low + shift, side)
        is_empty |= _within(flat, low, side) & ~moved
        flat = jnp.where(moved[..., None], flat - shift, flat)
    x_px, y_px = jnp.unstack(flat.reshape(points.shape), axis=-1)
    return x_px, y_px, is_empty.reshape(x_px.shape)


def mean_colour(frames: UInt8[Array, "b t h w 3"], dtype: jax.typing.DTypeLike) -> Float[Array, "b 1 1 1 3"]:
    """Returns the mean colour of each sample's middle frame, 0..255, black bars included."""
    _, length, height, width, _ = frames.shape
    rows = jnp.sum(frames[:, length // 2 : length // 2 + 1], axis=3, keepdims=True, dtype=jnp.uint32)
    # Whole numbers have the same sum in any order, and in two halves they fit 32 bits.
    high, low = (jnp.sum(half, axis=2, keepdims=True, dtype=jnp.uint32) for half in (rows >> 8, rows & 255))
    return (high.astype(dtype) * 256 + low.astype(dtype)) / (height * width)


def _parts(params: Params) -> list[tuple[Array, Array, Array]]:
    """Returns the lower corner, the sides and the shift (b, 1, 2) of each part, in the order of the moves."""
    names = ("part_low_px", "part_side_px", "part_shift_px")
    return [tuple(params[name][:, part, None] for name in names) for part in range(params["part_low_px"].shape[1])]  # pyright: ignore[reportReturnType]


def _within(points_px: Float[Array, "b n 2"], low: Array, side: Array) -> Bool[Array, "b n"]:
    """Returns which points lie on the pixels low..low + side - 1; the pixel p reaches from p - 0.5 to p + 0.5."""
    return jnp.all((points_px >= low - 0.5) & (points_px < low + side - 0.5), axis=-1)
