"""Targets, losses and decoding of a finder, the network that finds the animals of a whole frame.

For each cell of a frame, the finder gives the logit of being the centre of an animal, and the offsets to the keypoints
of the nearest animal, in units of `BODY_PX`. An animal is present if one of its keypoints is used; the order of the
animals and absent ones change no bit. The losses return a sum and a count per sample, as those of `heatmap.py`; that of
centres is CenterNet's (Zhou et al. 2019, equation 1).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxpose.config.model import BODY_PX
from jaxpose.geometry import cells_from_input, input_from_cells

# A maximum of the map of centres below this score is not an animal.
WORKING_SCORE = 0.3
# The least score of what an evaluation ranks: the probability that training starts from.
LEAST_SCORE = 0.01

# Standard deviation of a centre's target: narrow, so that animals which touch have a maximum each.
_SIGMA_CELLS = 0.7
# Offsets count this near to a centre.
_REACH_CELLS = 2.0
# Below this error, in units of `BODY_PX`, the loss of an offset is quadratic.
_BETA = 0.05


class Targets(NamedTuple):
    """The targets of b frames, on maps of h x w cells.

    Attributes:
      centre: 0 to 1, exactly 1 at the cell nearest to the centre of an animal.
      is_counted: cells that count in the loss of the centres.
      offsets: (x, y) from the cell to each keypoint of the nearest animal, in units of `BODY_PX`.
      is_near: keypoints whose offsets count.
      animals: number of animals.
    """

    centre: Float[Array, "b h w"]
    is_counted: Bool[Array, "b h w"]
    offsets: Float[Array, "b k 2 h w"]
    is_near: Bool[Array, "b k h w"]
    animals: Float[Array, "b"]


def encode(
    keypoints_px: Float[Array, "b a k 2"],
    used: Bool[Array, "b a k"],
    partly_labelled: Bool[Array, "b"],
    size_px: tuple[int, int],
    stride: int,
    body_px: float,
) -> Targets:
    """Returns the targets of frames with up to a animals. The centre of an animal is the middle of its used keypoints.

    Args:
      keypoints_px: (x, y) in input pixels; anything where not used.
      used: which keypoints are visible and in the input; none of an absent animal.
      partly_labelled: frames in which some animals may lack labels: only cells within `body_px` of the centre of
        a labelled one count there.
      size_px: (height, width) of the input.
      stride: input pixels per cell.
      body_px: the longest side of a typical animal, in input pixels.
    """
    size = size_px[0] // stride, size_px[1] // stride
    # Unused points may be NaN: replace them before any arithmetic.
    points = cells_from_input(jnp.where(used[..., None], keypoints_px, 0), stride)
    points, used, centres, present = _by_position(points, used)
    cells = _cells(size, points.dtype)
    squares = jnp.square(cells[None, None] - centres[:, :, None, None]).sum(-1)
    # The first of equally near animals wins. All that follows has no axis of animals, so absent ones cannot change it.
    owner = jnp.argmin(jnp.where(present[:, :, None, None], squares, jnp.inf), axis=1)
    own_points, own_used, own_centre = (jax.vmap(_taken)(values, owner) for values in (points, used, centres))
    square = jnp.square(cells[None] - own_centre).sum(-1)
    any_animal = present.any(1)[:, None, None]
    highest = jnp.array((size[1] - 1, size[0] - 1), points.dtype)[None, None]
    nearest = jnp.clip(jnp.floor(centres + 0.5), 0, highest)
    is_centre = (present[:, :, None, None] & (cells[None, None] == nearest[:, :, None, None]).all(-1)).any(1)
    gaussian = jnp.where(any_animal, jnp.exp(-0.5 * square / _SIGMA_CELLS**2), 0)
    offsets = (own_points - cells[None, :, :, None]) * (stride / BODY_PX)
    is_near = (any_animal & (square <= _REACH_CELLS**2))[..., None] & own_used
    return Targets(
        centre=jnp.where(is_centre, 1, gaussian),
        is_counted=~partly_labelled[:, None, None] | (any_animal & (square <= (body_px / stride) ** 2)),
        offsets=offsets.transpose(0, 3, 4, 1, 2),
        is_near=is_near.transpose(0, 3, 1, 2),
        animals=present.sum(1, dtype=points.dtype),
    )


def _by_position(
    points: Float[Array, "b a k 2"], used: Bool[Array, "b a k"]
) -> tuple[Float[Array, "b a k 2"], Bool[Array, "b a k"], Float[Array, "b a 2"], Bool[Array, "b a"]]:
    """Returns (points, used, centres, present), the animals from left to right, top to bottom, absent last."""
    present = used.any(-1)
    low = jnp.where(used[..., None], points, jnp.inf).min(2)
    high = jnp.where(used[..., None], points, -jnp.inf).max(2)
    centres = jnp.where(present[..., None], 0.5 * (low + high), 0)
    order = jnp.lexsort((centres[..., 1], centres[..., 0], ~present))
    points, used, centres, present = (jax.vmap(_taken)(values, order) for values in (points, used, centres, present))
    return points, used, centres, present


def _taken(values: Array, places: Array) -> Array:
    return values[places]


def _cells(size: tuple[int, int], dtype: jax.typing.DTypeLike) -> Float[Array, "h w 2"]:
    """Returns the (x, y) of each cell of maps of (height, width) cells."""
    return jnp.stack(jnp.meshgrid(jnp.arange(size[1], dtype=dtype), jnp.arange(size[0], dtype=dtype)), axis=-1)


def centre_loss(logits: Float[Array, "b h w"], targets: Targets) -> tuple[Float[Array, "b"], Float[Array, "b"]]:
    """Returns, per sample, the penalty-reduced focal loss summed over counted cells, and the number of animals.

    Args:
      logits: anything, even NaN, where a cell does not count.
      targets: as `encode` returns them.
    """
    logits = jnp.where(targets.is_counted, logits, 0)
    probability = jax.nn.sigmoid(logits)
    missed = -jnp.square(1 - probability) * jax.nn.log_sigmoid(logits)
    excused = jnp.square(jnp.square(1 - targets.centre))
    spurious = -excused * jnp.square(probability) * jax.nn.log_sigmoid(-logits)
    per_cell = jnp.where(targets.centre == 1, missed, spurious)
    return jnp.where(targets.is_counted, per_cell, 0).sum((-2, -1)), targets.animals


def offset_loss(offsets: Float[Array, "b k 2 h w"], targets: Targets) -> tuple[Float[Array, "b"], Float[Array, "b"]]:
    """Returns, per sample, the smooth L1 loss summed over the offsets near a centre, and the number of these offsets.

    Args:
      offsets: (x, y) in units of `BODY_PX`; anything, even NaN, where an offset does not count.
      targets: as `encode` returns them.
    """
    is_near = targets.is_near[:, :, None]
    error = jnp.abs(jnp.where(is_near, offsets, 0) - jnp.where(is_near, targets.offsets, 0))
    cost = jnp.where(error < _BETA, 0.5 / _BETA * jnp.square(error), error - 0.5 * _BETA)
    return cost.sum((1, 2, 3, 4)), targets.is_near.sum((1, 2, 3), dtype=cost.dtype)


class Found(NamedTuple):
    """The animals found in b frames, the surest first; NaN and score 0 in places without one.

    Attributes:
      keypoints_px: rough positions (x, y) in input pixels.
      centres_px: (x, y) in input pixels.
      score: 0 to 1.
    """

    keypoints_px: Float[Array, "b n k 2"]
    centres_px: Float[Array, "b n 2"]
    score: Float[Array, "b n"]


def decode(
    logits: Float[Array, "b h w"],
    offsets: Float[Array, "b k 2 h w"],
    stride: int,
    animals: int,
    threshold: float,
) -> Found:
    """Returns the highest maxima of the map of centres: cells that are at least as high as the eight around them.

    If several cells are equally high, the topmost counts, then the leftmost. Along x and y, the centre is the top of
    the parabola through the logarithms of the probabilities of the cell and its two neighbours.

    Args:
      logits: of the centres.
      offsets: (x, y) from each cell to the keypoints, in units of `BODY_PX`.
      stride: input pixels per cell.
      animals: the most animals of a frame.
      threshold: the least score, above 0.
    """
    batch, height, width = logits.shape
    count = min(animals, height * width)
    flat = jnp.where(_is_maximum(logits), logits, -jnp.inf).reshape(batch, height * width)
    best, place = lax.top_k(flat, count)
    score = jax.nn.sigmoid(best)
    is_found = score >= threshold
    cells = jnp.stack([place % width, place // width], axis=-1)
    centres_px = input_from_cells(cells.astype(logits.dtype) + _shifts(logits, cells), stride)
    flat_offsets = offsets.reshape(*offsets.shape[:3], height * width).transpose(0, 3, 1, 2)
    cells_px = input_from_cells(cells.astype(logits.dtype), stride)
    keypoints_px = cells_px[:, :, None] + BODY_PX * jax.vmap(_taken)(flat_offsets, place)
    found = Found(
        jnp.where(is_found[..., None, None], keypoints_px, jnp.nan),
        jnp.where(is_found[..., None], centres_px, jnp.nan),
        jnp.where(is_found, score, 0),
    )
    return Found(*(_filled(values, animals) for values in found))


def _filled(values: Float[Array, "b n ..."], animals: int) -> Float[Array, "b m ..."]:
    """Returns values for `animals` places: a map with fewer cells has fewer maxima."""
    absent = 0 if values.ndim == 2 else jnp.nan
    padding = [(0, animals - values.shape[1] if axis == 1 else 0) for axis in range(values.ndim)]
    return jnp.pad(values, padding, constant_values=absent)


def _is_maximum(logits: Float[Array, "b h w"]) -> Bool[Array, "b h w"]:
    height, width = logits.shape[1:]
    padded = jnp.pad(logits, ((0, 0), (1, 1), (1, 1)), constant_values=-jnp.inf)
    found = jnp.isfinite(logits)
    for row in range(3):
        for column in range(3):
            other = padded[:, row : row + height, column : column + width]
            if (row, column) < (1, 1):
                found &= logits > other
            elif (row, column) > (1, 1):
                found &= logits >= other
    return found


def _shifts(logits: Float[Array, "b h w"], cells: Int[Array, "b n 2"]) -> Float[Array, "b n 2"]:
    """Returns the tops (x, y) of the parabolas at some cells, at most half a cell away; 0 at the edge of the map."""
    padded = jnp.pad(jax.nn.log_sigmoid(logits), ((0, 0), (1, 1), (1, 1)), constant_values=-jnp.inf)

    def at(values: Array, places: Array) -> Array:
        return values[places[:, 1], places[:, 0]]

    shifts = []
    for axis in range(2):
        step = jnp.array([1 - axis, axis])[None, None]
        before, here, after = (jax.vmap(at)(padded, cells + 1 + sign * step) for sign in (-1, 0, 1))
        bend = before - 2 * here + after
        is_bent = jnp.isfinite(bend) & (bend < 0)
        shift = 0.5 * jnp.where(is_bent, before - after, 0) / jnp.where(is_bent, bend, -1)
        shifts.append(jnp.clip(shift, -0.5, 0.5))
    return jnp.stack(shifts, axis=-1)
