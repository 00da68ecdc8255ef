"""Turns the network's outputs into points, for each kind of network."""

import jax
import jax.numpy as jnp

from jaxpose.config import ModelConfig
from jaxpose.pose import heatmap, heatmap_lightning_pose, view_agreement
from jaxpose.pose.pca import Pca

# Outputs for each window of q sequences: (q, windows, heads, k, ...).
Outputs = jax.Array


def heatmaps(
    outputs: Outputs, model: ModelConfig, views: Pca | None, input_from_view: jax.Array | None = None
) -> jax.Array:
    """Returns the maps of every head (q, w, heads, k, h, w), each of sum 1.

    Args:
      outputs: (q, w, heads, k, h, w).
      model: options of the network.
      views: the subspace of the views that agree, in pixels of the input, or None (see `model.views_agree`).
      input_from_view: affines (q, 2, 3) from pixels of what the network saw to those of the input; None: they are one.
    """
    q, w, heads, k, height, width = outputs.shape
    maps = jax.nn.softmax(outputs.reshape(q * w * heads, k, height, width), axis=(-2, -1))
    if views is not None:
        if input_from_view is None:
            input_from_view = jnp.broadcast_to(jnp.eye(2, 3), (q, 2, 3))
        affines = jnp.repeat(input_from_view.astype(maps.dtype), w * heads, axis=0)
        maps = view_agreement.agree(maps, affines, model.heatmap_stride, views)
    return maps.reshape(outputs.shape)


def decode_outputs(
    outputs: Outputs, model: ModelConfig, frame_from_input: jax.Array, views: Pca | None = None
) -> tuple[jax.Array, jax.Array]:
    """Returns the points of every head (q, w, heads, k, 2) in input pixels and their confidence (q, w, heads, k).

    The confidence of a network without maps is always 1.

    Args:
      outputs: (q, w, heads, k, ...).
      model: options of the network.
      frame_from_input: affines (q, 2, 3); Lightning Pose's decoding depends on the size of the frame.
      views: as in `heatmaps`.
    """
    if model.kind == "regression":
        return outputs, jnp.ones(outputs.shape[:-1], outputs.dtype)
    return _decode_maps(heatmaps(outputs, model, views), model, frame_from_input)


def _decode_maps(maps: jax.Array, model: ModelConfig, frame_from_input: jax.Array) -> tuple[jax.Array, jax.Array]:
    q, w, heads, k, height, width = maps.shape
    maps = maps.reshape(q * w * heads, k, height, width)
    if model.decoding == "lightning_pose":
        points_px, confidence = heatmap_lightning_pose.decode(maps, model.heatmap_stride)
        shift = heatmap_lightning_pose.offset_px(frame_from_input).astype(points_px.dtype)
        points_px = points_px.reshape(q, w, heads, k, 2) - shift[:, None, None, None]
    else:
        points_px, confidence = heatmap.decode(maps, model.heatmap_stride, model.sigma_cells)
    return points_px.reshape(q, w, heads, k, 2), confidence.reshape(q, w, heads, k)


def most_confident(points_px: jax.Array, confidence: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns each keypoint from its most confident head: points (q, w, k, 2) and confidence (q, w, k).

    If heads are equally confident, the first one counts, which sees one frame.
    """
    if points_px.shape[2] == 1:
        return points_px[:, :, 0], confidence[:, :, 0]
    best = jnp.argmax(confidence, axis=2)[:, :, None]
    chosen = jnp.take_along_axis(points_px, best[..., None], axis=2)[:, :, 0]
    return chosen, jnp.take_along_axis(confidence, best, axis=2)[:, :, 0]


def surest_maps(
    outputs: Outputs, model: ModelConfig, frame_from_input: jax.Array, input_from_view: jax.Array, views: Pca | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the maps (q, k, h, w) of each keypoint's most confident head, their points and their confidence.

    Args:
      outputs: (q, 1, heads, k, h, w).
      model, frame_from_input: as in `decode_outputs`.
      input_from_view, views: as in `heatmaps`.
    """
    maps = heatmaps(outputs, model, views, input_from_view)
    points_px, confidence = _decode_maps(maps, model, frame_from_input)
    best = jnp.argmax(confidence, axis=2)[:, :, None]
    maps = jnp.take_along_axis(maps, best[..., None, None], axis=2)[:, 0, 0]
    points_px, confidence = most_confident(points_px, confidence)
    return maps, points_px[:, 0], confidence[:, 0]


def map_shift_px(model: ModelConfig, frame_from_input: jax.Array) -> jax.Array:
    """Returns the shift (b, 2) by which cell c of a map of stride s is pixel c s - shift of the input.

    Args:
      model, frame_from_input: as in `encode_targets`.
    """
    if model.decoding == "lightning_pose":
        return heatmap_lightning_pose.offset_px(frame_from_input)
    return jnp.full_like(frame_from_input[:, :, 2], 0.5 - 0.5 * model.heatmap_stride)
