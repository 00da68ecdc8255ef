"""Pixel filters: the bilinear warp, motion blur, black cells, salt and pepper, emboss, brightness, contrast.

`draw_params` turns a sample's random numbers into parameters in pixels of the input, and `apply_filters` applies them;
neither moves a keypoint.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from jaxpose import geometry

Params = dict[str, Array]
# A resolved AugmentConfig, in which no option is None; the type checker cannot know that.
Resolved = Any


def draw_params(share: Params, seeds: Params, augment: Resolved, frame_px_per_px: Float[Array, "b"]) -> Params:
    """Returns the parameters of every filter that is on, for each sample.

    Args:
      share: uniform draws in [0, 1), each (b,).
      seeds: uint32 draws, each (b,).
      augment: the resolved config.
      frame_px_per_px: frame pixels per input pixel.
    """
    drawn: Params = {}
    if augment.motion_blur_p:
        drawn["motion_blur_kernel"] = _motion_kernel(share, augment, frame_px_per_px)
    if augment.dropout_p:
        drawn["dropout_share"] = jnp.where(share["dropout"] < augment.dropout_p, augment.dropout_share, 0.0)
        drawn["dropout_cells_per_px"] = augment.dropout_size * frame_px_per_px
        per_channel = share["dropout_per_channel"] < augment.dropout_per_channel_p
        channels = (jnp.where(per_channel, seeds[f"dropout_seed_{c}"], seeds["dropout_seed_r"]) for c in "rgb")
        drawn["dropout_seed"] = jnp.stack(list(channels), axis=-1)
    for name, p, most in (
        ("salt", augment.salt_p, augment.salt_share), ("pepper", augment.pepper_p, augment.pepper_share),
    ):  # fmt: skip
        if p:
            low, high = augment.salt_pepper_size_min, augment.salt_pepper_size_max
            drawn[f"{name}_share"] = jnp.where(share[name] < p, most, 0.0)
            drawn[f"{name}_cells_per_px"] = (low + (high - low) * share[f"{name}_size"]) * frame_px_per_px
            drawn[f"{name}_seed"] = seeds[f"{name}_seed"][:, None]
            drawn["grain_seed"] = seeds["grain_seed"][:, None]
    if augment.emboss_p:
        # A difference over one frame pixel is the difference over one input pixel divided by the scale.
        alpha = augment.emboss_alpha_max * share["emboss_alpha"] / jnp.maximum(frame_px_per_px, 1.0)
        low, high = augment.emboss_strength_min, augment.emboss_strength_max
        drawn["emboss_alpha"] = jnp.where(share["emboss"] < augment.emboss_p, alpha, 0.0)
        drawn["emboss_strength"] = low + (high - low) * share["emboss_strength"]
    for name, p, most in (
        ("brightness", augment.brightness_p, augment.brightness_max),
        ("contrast", augment.contrast_p, augment.contrast_max),
    ):  # fmt: skip
        if p:
            drawn[f"{name}_factor"] = jnp.where(share[name] < p, 1 + most * (2 * share[f"{name}_change"] - 1), 1.0)
    return drawn


def apply_filters(params: Params, augment: Resolved, pictures: Float[Array, "b t h w 3"]) -> Float[Array, "b t h w 3"]:
    """Returns the images (0..255) after every filter that is on; all frames of a sample get the same filters."""
    if augment.motion_blur_p:
        kernel = params["motion_blur_kernel"]
        radius = kernel.shape[1] // 2
        pictures = _where_any(kernel[:, radius, radius] < 1, _blur, pictures, kernel)
    if augment.dropout_p:
        pictures = jnp.where(_cells(params, "dropout", pictures), 0.0, pictures)
    if augment.salt_p or augment.pepper_p:
        pictures = _salt_and_pepper(params, augment, pictures)
    if augment.emboss_p:
        alpha = params["emboss_alpha"]
        pictures = jnp.clip(_where_any(alpha > 0, _emboss, pictures, alpha, params["emboss_strength"]), 0.0, 255.0)
    if augment.brightness_p:
        pictures = jnp.clip(pictures * params["brightness_factor"][:, None, None, None, None], 0.0, 255.0)
    if augment.contrast_p:
        factor = params["contrast_factor"][:, None, None, None, None]
        pictures = jnp.clip((pictures - 127.5) * factor + 127.5, 0.0, 255.0)
    return pictures


def warp(
    frames: Shaped[Array, "b t h w c"], x_px: Float[Array, "b h w"], y_px: Float[Array, "b h w"]
) -> Float[Array, "b t h w c"]:
    """Returns the frames' values at (x, y), bilinear, with black (0) around the frame."""
    batch, length, height, width, channels = frames.shape
    # With a black border of one pixel before and two pixels behind, every neighbour of a clipped point exists.
    x = jnp.clip(x_px, -1.0, float(width))
    y = jnp.clip(y_px, -1.0, float(height))
    left, top = jnp.floor(x), jnp.floor(y)
    right_share, lower_share = x - left, y - top
    padded = jnp.pad(frames, ((0, 0), (0, 0), (1, 2), (1, 2), (0, 0))).reshape(-1, channels)
    stride = width + 3
    first = jnp.arange(batch * length, dtype=jnp.int32).reshape(batch, length, 1, 1) * ((height + 3) * stride)
    corner = ((top.astype(jnp.int32) + 1) * stride + left.astype(jnp.int32) + 1)[:, None] + first
    neighbours = (
        (0, (1 - right_share) * (1 - lower_share)), (1, right_share * (1 - lower_share)),
        (stride, (1 - right_share) * lower_share), (stride + 1, right_share * lower_share),
    )  # fmt: skip
    total = jnp.zeros((), x_px.dtype)
    for offset, weight in neighbours:
        values = padded.at[corner + offset].get(mode="promise_in_bounds").astype(x_px.dtype)
        total += values * weight[:, None, :, :, None]
    return total


def hashed(seed: Array, row: Array, column: Array) -> Array:
    """Returns uint32 noise that depends on (seed, row, column) alone, all broadcast; row and column are signed."""
    row, column = row.astype(jnp.uint32), column.astype(jnp.uint32)
    return _mixed(_mixed(seed ^ (row * jnp.uint32(0x9E3779B9))) ^ (column * jnp.uint32(0x85EBCA6B)))


def _mixed(bits: Array) -> Array:
    """The 32-bit finaliser of Prospecting for Hash Functions (Wellons, 2018), "lowbias32"."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


def _cells(params: Params, name: str, pictures: Float[Array, "b t h w 3"]) -> Bool[Array, "b 1 h w c"]:
    """Returns the mask of random cells of `name`. A cell is at least a pixel; this does not change the statistics."""
    per_px = jnp.minimum(params[f"{name}_cells_per_px"], 1.0)

    def cell_of_pixel(side: int) -> Array:
        return ((jnp.arange(side, dtype=per_px.dtype)[None] + 0.5) * per_px[:, None]).astype(jnp.int32)

    row, column = cell_of_pixel(pictures.shape[2]), cell_of_pixel(pictures.shape[3])
    noise = hashed(
        params[f"{name}_seed"][:, None, None, None], row[:, None, :, None, None], column[:, None, None, :, None]
    )
    threshold = (params[f"{name}_share"] * 2**24).astype(jnp.uint32)
    return noise >> 8 < threshold[:, None, None, None, None]


def _salt_and_pepper(params: Params, augment: Resolved, pictures: Array) -> Array:
    rows, columns = jnp.arange(pictures.shape[2]), jnp.arange(pictures.shape[3])
    seed = params["grain_seed"][:, None, None, None]
    noise = hashed(seed, rows[None, None, :, None, None], columns[None, None, None, :, None])
    # cos of a uniform quarter turn follows the arcsine distribution, folded to one side.
    grain = jnp.cos((noise >> 8).astype(pictures.dtype) * (math.pi / 2 / 2**24))
    if augment.salt_p:
        pictures = jnp.where(_cells(params, "salt", pictures), 127.5 * (1 + grain), pictures)
    if augment.pepper_p:
        pictures = jnp.where(_cells(params, "pepper", pictures), 127.5 * (1 - grain), pictures)
    return pictures


def _motion_kernel(share: Params, augment: Resolved, frame_px_per_px: Array) -> Float[Array, "b n n"]:
    """Returns a line at a random angle, weighted along its direction, splatted on a grid of input pixels."""
    length = augment.motion_blur_px
    points = max(math.ceil(length), 2)
    radius = math.ceil((length - 1) / 2)
    dtype = frame_px_per_px.dtype
    # The kernel's size is fixed, so in an input finer than the frame the blur keeps its length in input pixels.
    extent = jnp.where(
        share["motion_blur"] < augment.motion_blur_p, (length - 1) / 2 / jnp.maximum(frame_px_per_px, 1.0), 0.0
    )
    along = extent[:, None] * jnp.linspace(-1, 1, points, dtype=dtype)[None]
    lean = share["motion_blur_direction"][:, None]
    weight = lean + (1 - 2 * lean) * jnp.linspace(0, 1, points, dtype=dtype)[None]
    angle = math.pi * share["motion_blur_angle"][:, None]
    grid = jnp.arange(-radius, radius + 1, dtype=dtype)[None, None]

    def splat(places: Array) -> Array:
        return jnp.maximum(1 - jnp.abs(places[..., None] - grid), 0.0)

    kernel = jnp.sum(
        (weight[..., None] * splat(jnp.sin(angle) * along))[..., None] * splat(jnp.cos(angle) * along)[:, :, None],
        axis=1,
    )
    return kernel / jnp.sum(kernel, axis=(1, 2), keepdims=True)


def _blur(pictures: Float[Array, "b t h w 3"], kernel: Float[Array, "b n n"]) -> Float[Array, "b t h w 3"]:
    size = kernel.shape[1]
    padded = _with_mirrored_border(pictures, size // 2)
    height, width = pictures.shape[2:4]
    total = jnp.zeros((), pictures.dtype)
    for row in range(size):
        for column in range(size):
            weight = kernel[:, row, column][:, None, None, None, None]
            total += weight * padded[:, :, row : row + height, column : column + width]
    return total


def _emboss(
    pictures: Float[Array, "b t h w 3"], alpha: Float[Array, "b"], strength: Float[Array, "b"]
) -> Float[Array, "b t h w 3"]:
    """Blends with the kernel [[-1-s, -s, 0], [-s, 1, s], [0, s, 1+s]]; its centre keeps the image."""
    padded = _with_mirrored_border(pictures, 1)
    height, width = pictures.shape[2:4]
    alpha, strength = (value[:, None, None, None, None] for value in (alpha, strength))

    def near(row: int, column: int) -> Array:
        return padded[:, :, 1 + row : 1 + row + height, 1 + column : 1 + column + width]

    diagonal = near(1, 1) - near(-1, -1)
    straight = near(0, 1) - near(0, -1) + near(1, 0) - near(-1, 0)
    return pictures + alpha * ((1 + strength) * diagonal + strength * straight)


def _with_mirrored_border(pictures: Array, width: int) -> Array:
    border = (width, width)
    return jnp.pad(pictures, ((0, 0), (0, 0), border, border, (0, 0)), mode="reflect")


def _where_any(chosen: Bool[Array, "b"], transform: Callable[..., Array], pictures: Array, *parameters: Array) -> Array:
    """Transforms the images if any sample is chosen; `transform` must not change the other samples.

    The branch also makes XLA finish the images first: otherwise the CPU backend computes them again for every neighbour
    that a filter reads (measured: 37 ms instead of 7 for a batch of 16 at 128 pixels).
    """
    return jax.lax.cond(jnp.any(chosen), transform, lambda unchanged, *_: unchanged, pictures, *parameters)


# Carries the heatmaps of one view of a frame into another view.


def carry(
    maps: Float[Array, "b k h w"],
    input_from_source: Float[Array, "b 2 3"],
    input_from_target: Float[Array, "b 2 3"],
    stride: int,
    shift_px: Float[Array, "b 2"],
    moves_px: Float[Array, "b m 2"],
) -> Float[Array, "b k h w"]:
    """Returns the maps as another view of the same input size sees them, bilinear, each of sum 1.

    A map that lies outside the other view is 0.

    Args:
      maps: the source view's; each sums to 1.
      input_from_source, input_from_target: affines from pixels of a view to those of the input.
      stride: pixels per cell.
      shift_px: cell c of a map is pixel c stride - shift_px, (x, y) for each sample.
      moves_px: how far the other view moves each keypoint, (x, y) in pixels of the input, and its whole map with it;
        all keypoints alike if m is 1.
    """
    height, width = maps.shape[-2:]
    y, x = jnp.meshgrid(jnp.arange(height, dtype=maps.dtype), jnp.arange(width, dtype=maps.dtype), indexing="ij")
    cells = jnp.stack([x, y], axis=-1).reshape(1, -1, 2)
    with jax.default_matmul_precision("highest"):
        points_px = geometry.apply(input_from_target, cells * stride - shift_px[:, None])
        points_px = points_px[:, None] - moves_px[:, :, None]
        points_px = geometry.apply(geometry.invert(input_from_source), points_px.reshape(len(maps), -1, 2))
    at = ((points_px + shift_px[:, None]) / stride).reshape(-1, height, width, 2)
    # Keypoints that move alike are the colours of one picture. Outside the source view, the mass is 0.
    pictures = maps.reshape(len(at), -1, height, width).transpose(0, 2, 3, 1)[:, None]
    seen = warp(pictures, at[..., 0], at[..., 1])[:, 0].transpose(0, 3, 1, 2).reshape(maps.shape)
    mass = seen.sum((-2, -1), keepdims=True)
    return jnp.where(mass > 0, seen / jnp.where(mass > 0, mass, 1), 0)
