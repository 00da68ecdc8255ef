"""Heatmaps of one view of a frame, carried into another view."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpose import geometry
from jaxpose.pose import pixels


def carry(
    maps: Float[Array, "b k h w"],
    input_from_source: Float[Array, "b 2 3"],
    input_from_target: Float[Array, "b 2 3"],
    stride: int,
    shift_px: Float[Array, "b 2"],
    moves_px: Float[Array, "b m 2"],
) -> Float[Array, "b k h w"]:
    """Returns the maps as another view of the same input size sees them, bilinear, each of sum 1.

    A map of which the other view shows nothing is 0.

    Args:
      maps: of the source view; each sums to 1.
      input_from_source, input_from_target: affines from pixels of a view to those of the input.
      stride: pixels per cell.
      shift_px: cell c of a map is pixel c stride - shift_px, (x, y) for each sample.
      moves_px: how far the other view moves each keypoint, (x, y) in pixels of the input, and its whole map with it; of
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
    # Keypoints that move alike are the colours of one picture. Beyond the source view, there is no mass.
    pictures = maps.reshape(len(at), -1, height, width).transpose(0, 2, 3, 1)[:, None]
    seen = pixels.warp(pictures, at[..., 0], at[..., 1])[:, 0].transpose(0, 3, 1, 2).reshape(maps.shape)
    mass = seen.sum((-2, -1), keepdims=True)
    return jnp.where(mass > 0, seen / jnp.where(mass > 0, mass, 1), 0)
