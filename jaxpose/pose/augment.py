"""Augmentation of labelled frames on the device: one warp, cheap pixel filters, and the same warp for the keypoints.

Input: a batch, one key per sample, and the config. `draw_params` draws the parameters of every sample. From these,
`render` makes the pixels and `move_keypoints` the labels, so that both always agree. A transform whose probability is 0
is not compiled. docs/augmentation.md explains the numbers.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt8

from jaxpose import geometry
from jaxpose.pose import pixels
from jaxpose.pose.pixels import Params, Resolved
from jaxpose.poses import NOT_USED

# Moved parts: rectangles of a frame that move to another place in it, with the keypoints on them.
#
# If a network sees the parts of a few frames only where they were labelled, it learns their place, not their
# appearance. A part is moved within its own frame, so that no number depends on the other frames of the batch. The
# place it leaves is filled with the mean colour.

# The random numbers of a part: place x and y, side x and y, new place x and y, whether it moves.
_NUMBERS = 7


def draw_part_params(keys: Array, augment: Resolved, size_px: tuple[int, int], dtype: jax.typing.DTypeLike) -> Params:
    """Returns the rectangles of each sample, (b, parts, 2) as (x, y) in whole pixels; a part that stays has no sides.

    Args:
      keys: jax keys (b,).
      augment: the resolved config.
      size_px: (height, width) of the input.
      dtype: the numbers'.
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


def move_part_keypoints(
    params: Params, keypoints_px: Float[Array, "b k 2"], visibility: Int[Array, "b k"]
) -> tuple[Float[Array, "b k 2"], Int[Array, "b k"]]:
    """Returns the keypoints where their parts are, and their visibility: NOT_USED where another part lies over them.

    Args:
      params: from `draw_params`.
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
    """Returns the point (x, y) of the frame that appears at a point after the moves, and where none does.

    Args:
      params: from `draw_params`.
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


# Masked patches: squares of a view without content, so that a network that sees all cameras learns to use the others.


def draw_masks(keys: Array, share: Float[Array, " b"], cells: tuple[int, int]) -> Bool[Array, "b a b2"]:
    """Returns which patches of each sample are masked: floor(share a b2) of them, each as likely.

    Args:
      keys: jax keys (b,).
      share: of the patches.
      cells: (a, b2), patches of a frame from top to bottom and from left to right.
    """
    patches = cells[0] * cells[1]
    bits = jax.vmap(lambda key: jax.random.bits(key, (patches,), jnp.uint32))(keys)
    rank = jnp.argsort(jnp.argsort(bits, axis=-1), axis=-1)
    # Rounding must not lose a patch of a whole number.
    count = jnp.floor(share.astype(jnp.float32) * patches + 1e-3).astype(rank.dtype)
    return (rank < count[:, None]).reshape(-1, *cells)


def mask_patches(
    pictures: Float[Array, "b t h w 3"], masked: Bool[Array, "b a b2"], colour: tuple[float, float, float]
) -> Float[Array, "b t h w 3"]:
    """Returns the frames with each masked patch in one colour.

    Args:
      pictures: 0..255.
      masked: from `draw_masks`.
      colour: 0..255; the mean that the network subtracts leaves 0.
    """
    sides = pictures.shape[2] // masked.shape[1], pictures.shape[3] // masked.shape[2]
    squares = jnp.repeat(jnp.repeat(masked, sides[0], axis=1), sides[1], axis=2)
    return jnp.where(squares[:, None, :, :, None], jnp.asarray(colour, pictures.dtype), pictures)


# Every number has its own column of random bits: turning a transform on or off does not change other numbers.
_COLUMNS: tuple[str, ...] = (
    "quarter_turns", "flip", "rotate", "rotate_deg", "scale", "scale_factor", "translate", "translate_x", "translate_y",
    "crop_pad", "crop_pad_left", "crop_pad_right", "crop_pad_top", "crop_pad_bottom",
    "elastic", "elastic_alpha", "elastic_seed_x", "elastic_seed_y",
    "motion_blur", "motion_blur_angle", "motion_blur_direction",
    "dropout", "dropout_per_channel", "dropout_seed_r", "dropout_seed_g", "dropout_seed_b",
    "salt", "salt_size", "salt_seed", "pepper", "pepper_size", "pepper_seed", "grain_seed",
    "emboss", "emboss_alpha", "emboss_strength", "brightness", "brightness_change", "contrast", "contrast_change",
)  # fmt: skip

# The user chooses the number of moved parts, so their random numbers have their own key.
_PARTS = 1

# Elastic displacement: smooth random shifts that are a pure function of a seed and a position. imgaug smooths an image
# of uniform noise with a Gaussian. Gaussian bumps on a grid of pitch 1.25 sigma give the same field, up to a ripple of
# 0.4 % in its variance. The noise at a node is a hash of the node, so one point costs 64 nodes and no image.
_PITCH_PER_SIGMA = 1.25
_SMALLEST_PITCH_PX = 2
_REACH = 4  # nodes; a bump is below 4e-6 beyond
_INVERSION_STEPS = 12


def sample_keys(seed: int | Array, stream: int, draw: Int[Array, "b"], purpose: int) -> Array:
    """Returns one jax key per sample (b,), which depends only on these numbers, not on JAX_RANDOM_SEED_OFFSET.

    Args:
      seed: the run's seed, also as a uint32 scalar.
      stream: which endless stream of samples.
      draw: position of each sample in that stream.
      purpose: the use of the key.
    """
    key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray([0, seed], jnp.uint32), impl="threefry2x32"), stream)
    return jax.vmap(lambda index: jax.random.fold_in(jax.random.fold_in(key, index), purpose))(draw)


def draw_params(
    keys: Array, augment: Resolved, frame_from_input: Float[Array, "b 2 3"], size_px: tuple[int, int]
) -> Params:
    """Returns the parameters of each sample's augmentation, as small arrays whose first axis is the sample.

    Args:
      keys: jax keys (b,), as made by `sample_keys`.
      augment: the resolved config: no option is None.
      frame_from_input: maps input pixels to frame pixels; its dtype is the dtype of the parameters.
      size_px: (height, width) of the input.
    """
    bits = jax.vmap(lambda key: jax.random.bits(key, (len(_COLUMNS),), jnp.uint32))(keys)
    # 24 bits fit a float32, so the numbers are the same in every dtype.
    uniform = (bits >> 8).astype(frame_from_input.dtype) / 2**24
    seeds = dict(zip(_COLUMNS, jnp.unstack(bits, axis=1), strict=True))
    share = dict(zip(_COLUMNS, jnp.unstack(uniform, axis=1), strict=True))
    linear = frame_from_input[..., :2]
    frame_px_per_px = geometry.scale(frame_from_input)
    drawn = _draw_geometry(share, augment, linear, size_px)
    drawn |= pixels.draw_params(share, seeds, augment, frame_px_per_px)
    if augment.elastic_p:
        alpha = jnp.where(share["elastic"] < augment.elastic_p, share["elastic_alpha"] * augment.elastic_alpha_px, 0.0)
        seed = jnp.stack([seeds["elastic_seed_x"], seeds["elastic_seed_y"]], axis=-1)
        drawn |= draw_elastic(alpha, augment.elastic_sigma_px, frame_px_per_px, seed)
    if augment.move_p:
        part_keys = jax.vmap(lambda key: jax.random.fold_in(key, _PARTS))(keys)
        drawn |= draw_part_params(part_keys, augment, size_px, frame_from_input.dtype)
    return drawn


def move_keypoints(
    params: Params,
    augment: Resolved,
    keypoints_px: Float[Array, "b k 2"],
    visibility: Int[Array, "b k"],
    flip_permutation: tuple[int, ...] | None,
) -> tuple[Float[Array, "b k 2"], Int[Array, "b k"]]:
    """Returns the keypoints in pixels of the augmented input and their visibility; NaN stays NaN.

    The visibility is 0 where a moved part came to lie over the keypoint.

    Args:
      params: these samples', from `draw_params`.
      augment: the config that the parameters were drawn with.
      keypoints_px: (x, y) in pixels of the input.
      visibility: 0, 1 or 2; in a flip it moves with its keypoint.
      flip_permutation: the index that each keypoint gets in a flip, or None if flips are off.

    Raises:
      ValueError: flips are on without a permutation of one entry per keypoint.
    """
    if not _moves(augment):
        return keypoints_px, visibility
    if augment.move_p:
        keypoints_px, visibility = move_part_keypoints(params, keypoints_px, visibility)
    with jax.default_matmul_precision("highest"):
        keypoints_px = geometry.apply(geometry.invert(params["input_from_augmented"]), keypoints_px)
    if augment.elastic_p:
        keypoints_px = undo_elastic(params, keypoints_px)
    keypoints_px, visibility = (
        exchange_sides(params, augment, values, flip_permutation) for values in (keypoints_px, visibility)
    )
    return keypoints_px, visibility


def moves_of_parts(params: Params, augment: Resolved, points_px: Float[Array, "b k 2"]) -> Float[Array, "b m 2"]:
    """Returns how far the parts move points of the input, in its pixels; with m = 1 if no part moves.

    Args:
      params: these samples', from `draw_params`.
      augment: the config that the parameters were drawn with.
      points_px: (x, y) in pixels of the input.
    """
    if not augment.move_p:
        return jnp.zeros_like(points_px[:, :1])
    moved_px, _ = move_part_keypoints(params, points_px, jnp.zeros(points_px.shape[:2], jnp.int8))
    return moved_px - points_px


def exchange_sides(
    params: Params, augment: Resolved, values: Shaped[Array, "b k ..."], flip_permutation: tuple[int, ...] | None
) -> Shaped[Array, "b k ..."]:
    """Returns the values of each keypoint, with left and right exchanged where a sample is flipped.

    Args:
      params, augment, flip_permutation: as in `move_keypoints`.
      values: for each keypoint.

    Raises:
      ValueError: as `move_keypoints`.
    """
    if not augment.flip_p:
        return values
    if flip_permutation is None or len(flip_permutation) != values.shape[1]:
        raise ValueError(
            f"augment.flip_p is {augment.flip_p:g} and the flip permutation is {flip_permutation}; a flip needs "
            f"one entry for each of the {values.shape[1]} keypoints (see data.flip_pairs)"
        )
    flip = params["flip"].reshape(-1, *[1] * (values.ndim - 1))
    return jnp.where(flip, values[:, np.array(flip_permutation)], values)


def render(
    params: Params, augment: Resolved, frames: UInt8[Array, "b t h w 3"], dtype: jax.typing.DTypeLike
) -> Float[Array, "b t h w 3"]:
    """Returns the augmented frames, 0..255, in `dtype`; all frames of a sample get the same augmentation.

    Args:
      params: these samples', from `draw_params`.
      augment: the config that the parameters were drawn with.
      frames: RGB, at the input's size.
      dtype: the result's; computations use it, or float32 if it is smaller.
    """
    work = jnp.float64 if jnp.dtype(dtype) == jnp.float64 else jnp.float32
    params = {
        name: value.astype(work) if jnp.issubdtype(value.dtype, jnp.floating) else value
        for name, value in params.items()
    }
    pictures = frames.astype(work)
    if _moves(augment):
        x_px, y_px = _sampled_px(params, augment, frames.shape[2], frames.shape[3])
        if augment.move_p:
            x_px, y_px, is_empty = source_px(params, x_px, y_px)
            pictures = pixels.warp(frames, x_px, y_px)
            mean = mean_colour(frames, work)
            pictures = jnp.where(is_empty[:, None, :, :, None], mean, pictures)
        else:
            pictures = pixels.warp(frames, x_px, y_px)
    return pixels.apply_filters(params, augment, pictures).astype(dtype)


def _turns(augment: Resolved) -> bool:
    return any(augment.quarter_turns)


def _moves(augment: Resolved) -> bool:
    probabilities = (augment.flip_p, augment.rotate_p, augment.scale_p, augment.translate_p, augment.crop_pad_p)
    return any(probabilities) or bool(augment.elastic_p) or bool(augment.move_p) or _turns(augment)


def _sampled_px(
    params: Params, augment: Resolved, height: int, width: int
) -> tuple[Float[Array, "b h w"], Float[Array, "b h w"]]:
    """Returns the point (x, y) of the input, after the moves of parts, that each pixel of the augmented image shows."""
    affine = params["input_from_augmented"][..., None, None]
    x = jnp.arange(width, dtype=affine.dtype)[None, None, :]
    y = jnp.arange(height, dtype=affine.dtype)[None, :, None]
    if augment.elastic_p:
        moved_x, moved_y = elastic_shifts(params, height, width)
        x, y = x + moved_x, y + moved_y
    sampled_x, sampled_y = (row[:, 0] * x + row[:, 1] * y + row[:, 2] for row in (affine[:, 0], affine[:, 1]))
    return sampled_x, sampled_y


def _draw_geometry(share: Params, augment: Resolved, frame_from_input: Array, size_px: tuple[int, int]) -> Params:
    """Returns the affine: turn, rotate and scale the frame about its centre, shift, move sides, flip, in this order."""
    if not _moves(augment):
        return {}
    one = jnp.ones_like(share["rotate"])
    size = jnp.array([size_px[1], size_px[0]], one.dtype)
    angle, scale = 0.0 * one, one
    if augment.rotate_p:
        radians = math.radians(augment.rotate_deg) * (2 * share["rotate_deg"] - 1)
        angle = jnp.where(share["rotate"] < augment.rotate_p, radians, 0.0)
    if augment.scale_p:
        factor = augment.scale_min + (augment.scale_max - augment.scale_min) * share["scale_factor"]
        scale = jnp.where(share["scale"] < augment.scale_p, factor, 1.0)
    if _turns(augment):
        choices = augment.quarter_turns
        turns = jnp.array(choices)[(share["quarter_turns"] * len(choices)).astype(jnp.int32)]
        angle += math.pi / 2 * turns.astype(one.dtype)
        # A turn by 90 or 270 degrees shrinks the image until all of it fits: nothing is lost, and shapes stay.
        sides = size[None] * jnp.sqrt(jnp.sum(frame_from_input**2, axis=1))
        fit = jnp.min(sides, axis=-1) / jnp.max(sides, axis=-1)
        scale = jnp.where(turns % 2 == 1, scale * fit, scale)

    # R = cos I + sin J; in input pixels J becomes L^-1 J L. So a rotation by 0 is exactly the identity.
    (a, b), (c, d) = (jnp.unstack(row, axis=-1) for row in jnp.unstack(frame_from_input, axis=1))
    quarter = jnp.stack([-(a * b + c * d), -(b * b + d * d), a * a + c * c, a * b + c * d], axis=-1)
    quarter = (quarter / (a * d - b * c)[:, None]).reshape(-1, 2, 2)
    identity = jnp.eye(2, dtype=one.dtype)[None]
    linear = scale[:, None, None] * (jnp.cos(angle)[:, None, None] * identity + jnp.sin(angle)[:, None, None] * quarter)
    centre = (size - 1) / 2
    shift = centre[None] - jnp.sum(linear * centre[None, None], axis=-1)
    if augment.translate_p:
        moved = jnp.stack([share["translate_x"], share["translate_y"]], axis=-1) * 2 - 1
        chosen = (share["translate"] < augment.translate_p)[:, None]
        shift += jnp.where(chosen, moved * augment.translate_share * size[None], 0.0)
    if augment.crop_pad_p:
        sides = jnp.stack([share[f"crop_pad_{side}"] for side in ("left", "top", "right", "bottom")], axis=-1)
        chosen = (share["crop_pad"] < augment.crop_pad_p)[:, None]
        sides = jnp.where(chosen, augment.crop_pad_share * (2 * sides - 1), 0.0)
        factor = 1 / (1 + sides[:, :2] + sides[:, 2:])
        linear *= factor[..., None]
        shift = (shift + sides[:, :2] * size[None]) * factor + (factor - 1) / 2
    drawn = {}
    if augment.flip_p:
        drawn["flip"] = share["flip"] < augment.flip_p
        sign = jnp.stack([jnp.where(drawn["flip"], -one, one), one], axis=-1)
        linear *= sign[..., None]
        shift = shift * sign + (1 - sign) * centre[None]
    with jax.default_matmul_precision("highest"):
        drawn["input_from_augmented"] = geometry.invert(jnp.concatenate([linear, shift[..., None]], axis=-1))
    return drawn


def draw_elastic(
    alpha_px: Float[Array, "b"], sigma_px: float, frame_px_per_px: Float[Array, "b"], seed: Array
) -> dict[str, Array]:
    """Returns strength, pitch and seed of each sample's field; lengths are in input pixels.

    Args:
      alpha_px: factor on the smoothed noise, frame pixels; 0 = no displacement.
      sigma_px: smoothing, frame pixels.
      frame_px_per_px: frame pixels per input pixel.
      seed: uint32 (b, 2), one for x and one for y.
    """
    # Noise in +-1 smoothed by a Gaussian has the standard deviation sqrt(1/3) / (2 sqrt(pi) sigma).
    bumps = 2 * math.pi * sigma_px / _PITCH_PER_SIGMA
    pitch = jnp.maximum(_PITCH_PER_SIGMA * sigma_px / frame_px_per_px, float(_SMALLEST_PITCH_PX))
    return {
        "elastic_strength_px": alpha_px / bumps / frame_px_per_px, "elastic_pitch_px": pitch, "elastic_seed": seed,
    }  # fmt: skip


def elastic_shifts(
    params: dict[str, Array], height: int, width: int
) -> tuple[Float[Array, "b h w"], Float[Array, "b h w"]]:
    """Returns the shift (x, y) at every pixel of the input, in input pixels."""
    strength, pitch = params["elastic_strength_px"], params["elastic_pitch_px"]

    def nodes_and_bumps(side: int) -> tuple[Array, Array]:
        nodes = jnp.arange(-_REACH, (side - 1) // _SMALLEST_PITCH_PX + _REACH + 1)
        places = jnp.arange(side, dtype=pitch.dtype)[None, :, None] / pitch[:, None, None]
        return nodes, _bump(places - nodes.astype(pitch.dtype)[None, None, :])

    rows, bumps_y = nodes_and_bumps(height)
    columns, bumps_x = nodes_and_bumps(width)
    noise = _noise(
        params["elastic_seed"][:, :, None, None], rows[None, None, :, None], columns[None, None, None, :], pitch
    )
    shifts = jnp.einsum("byi,bcij,bxj->cbyx", bumps_y, noise, bumps_x * strength[:, None, None], precision="highest")
    return shifts[0], shifts[1]


def undo_elastic(params: dict[str, Array], shifted_px: Float[Array, "b k 2"]) -> Float[Array, "b k 2"]:
    """Returns the points p whose p + shift(p) are the given points, in input pixels; NaN stays NaN."""

    def step(_: Array, points: Array) -> Array:
        return shifted_px - _elastic_shifts_of_points(params, points)

    return jax.lax.fori_loop(0, _INVERSION_STEPS, step, shifted_px - _elastic_shifts_of_points(params, shifted_px))


def _elastic_shifts_of_points(params: dict[str, Array], points_px: Array) -> Array:
    strength, pitch = params["elastic_strength_px"], params["elastic_pitch_px"]
    places = points_px / pitch[:, None, None]
    # For NaN, any node will do: the bumps make the shift NaN.
    first = jnp.floor(jnp.nan_to_num(places)) - (_REACH - 1)
    nodes = first[..., None] + jnp.arange(2 * _REACH, dtype=pitch.dtype)[None, None, None]
    bumps = _bump(places[..., None] - nodes)
    columns, rows = nodes[:, None, :, 0, None, :].astype(jnp.int32), nodes[:, None, :, 1, :, None].astype(jnp.int32)
    noise = _noise(params["elastic_seed"][:, :, None, None, None], rows, columns, pitch)
    shifts = jnp.sum(noise * bumps[:, None, :, 1, :, None] * bumps[:, None, :, 0, None, :], axis=(-1, -2))
    return strength[:, None, None] * shifts.swapaxes(1, 2)


def _bump(distance: Array) -> Array:
    return jnp.exp(-0.5 * (distance * _PITCH_PER_SIGMA) ** 2)


def _noise(seed: Array, row: Array, column: Array, like: Array) -> Array:
    return (pixels.hashed(seed, row, column) >> 8).astype(like.dtype) / 2**23 - 1


# Occluders: rectangles over keypoints of a frame, filled with another place of the frame or with one grey.
#
# To find the keypoints below them, a network must read the pose around them (joint cutout of Xie et al., ICCV 2021;
# joint cut-occlusion and cutmix of MultiAugs, Zhou et al., 2024). The other place is in the same frame, so that no
# number depends on the other frames of the batch.

# Half the side of a rectangle, as shares of the frame's smaller side.
_SMALLEST, _LARGEST = 0.03, 0.10
# The largest distance of its middle from the keypoint, as a share of half its side.
_JITTER = 0.5


def draw_occluders(keys: Array, count: int, dtype: jax.typing.DTypeLike) -> Params:
    """Returns uniform numbers in [0, 1) for the rectangles of each sample, (b, count, 8).

    Args:
      keys: jax keys (b,).
      count: number of rectangles.
      dtype: the numbers'.
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
      params: from `draw_params`.
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
        # A keypoint other than the covered one; with a single keypoint there is none, and every fill is grey.
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
