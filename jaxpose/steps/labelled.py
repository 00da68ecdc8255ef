"""The term of the labelled frames: augments them, makes targets from their labels, and computes their loss."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxpose.config import Config, ModelConfig
from jaxpose.config.data import mask_steps
from jaxpose.config.model import BACKBONES, pixel_scale
from jaxpose.config.terms import TermFacts
from jaxpose.model.pose_net import DTYPES
from jaxpose.pose import (
    augment,
    heatmap,
    heatmap_deeplabcut,
    heatmap_lightning_pose,
    unlabelled_losses,
    view_agreement,
)
from jaxpose.pose.pca import Pca
from jaxpose.poses import NOT_USED, VISIBLE
from jaxpose.steps.terms import Batch, DataFacts, Dealt, Sums, Term

# Decodes the network's outputs into points, for each kind of network.

# Outputs for each window of q sequences: (q, windows, heads, k, ...).
Outputs = jax.Array


def heatmaps(
    outputs: Outputs, model: ModelConfig, views: Pca | None, input_from_view: jax.Array | None = None
) -> jax.Array:
    """Returns the maps of every head (q, w, heads, k, h, w), each of sum 1; DeepLabCut's as the network gives them.

    Args:
      outputs: (q, w, heads, k, h, w) or, with offsets, (q, w, heads, k, 3, h, w).
      model: options of the network.
      views: the subspace of the views that agree, in pixels of the input, or None (see `model.views_agree`).
      input_from_view: affines (q, 2, 3) from the pixels that the network saw to those of the input; None if equal.
    """
    if model.decoding == "deeplabcut":
        return outputs[..., 0, :, :]
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
      frame_from_input: affines (q, 2, 3); the decoding of other tools depends on the size of the frame.
      views: as in `heatmaps`.
    """
    if model.kind == "regression":
        return outputs, jnp.ones(outputs.shape[:-1], outputs.dtype)
    if model.decoding == "deeplabcut":
        flat = outputs.reshape(-1, *outputs.shape[3:])
        points_px, confidence = (
            found.reshape(*outputs.shape[:4], *found.shape[2:])
            for found in heatmap_deeplabcut.decode(flat, model.heatmap_stride)
        )
        return points_px - _tool_shift_px(frame_from_input, points_px)[:, None, None, None], confidence
    return _decode_maps(heatmaps(outputs, model, views), model, frame_from_input)


def _decode_maps(maps: jax.Array, model: ModelConfig, frame_from_input: jax.Array) -> tuple[jax.Array, jax.Array]:
    q, w, heads, k, height, width = maps.shape
    maps = maps.reshape(q * w * heads, k, height, width)
    if model.decoding == "lightning_pose":
        points_px, confidence = heatmap_lightning_pose.decode(maps, model.heatmap_stride)
        shift = _tool_shift_px(frame_from_input, points_px)
        points_px = points_px.reshape(q, w, heads, k, 2) - shift[:, None, None, None]
    else:
        points_px, confidence = heatmap.decode(maps, model.heatmap_stride, model.sigma_cells)
    return points_px.reshape(q, w, heads, k, 2), confidence.reshape(q, w, heads, k)


def _tool_shift_px(frame_from_input: jax.Array, points_px: jax.Array) -> jax.Array:
    """Returns Lightning Pose's or DeepLabCut's pixels of a point minus jaxpose's (b, 2), in the points' type."""
    return heatmap_lightning_pose.offset_px(frame_from_input).astype(points_px.dtype)


def most_confident(points_px: jax.Array, confidence: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns each keypoint from its most confident head: points (q, w, k, 2) and confidence (q, w, k).

    If heads are equally confident, the first one, which sees one frame, counts.
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


# Points of a batch that are targets, and which of them a loss uses.
_USED = {"keypoints_px": "visibility", "reprojected_px": "reprojected"}
# Streams and purposes that keep random numbers of different uses apart.
LABELLED, AUGMENTATION, _MASKS = 0, 0, 1


def labelled_term(known: TermFacts, config: Config, facts: DataFacts) -> Term:
    """Returns the term of the labelled frames."""

    def sums(outputs: jax.Array, microbatch: Batch) -> Sums:
        def loss(of: str) -> jax.Array:
            labels_px, used, affines = (microbatch[name] for name in (of, _USED[of], "frame_from_input"))
            return supervised_loss(outputs, labels_px, used, affines, facts.size_px, config.model)[0]

        of_samples = loss("keypoints_px")
        found = {"supervised_loss": jnp.sum(of_samples)}
        if config.losses.reprojection.weight:
            found["reprojection"] = jnp.sum(loss("reprojected_px"))
        return Sums(found, of_samples=of_samples)

    deal = functools.partial(_deal, config=config, facts=facts)
    inputs = functools.partial(augmented_frames, config=config)
    counted = tuple(name for name in known.losses if name == "reprojection")
    return Term(known, deal, inputs, sums, factor=lambda _, dtype: jnp.ones((), dtype), counted=counted)


def augmented_frames(microbatch: Batch, dtype: Any, config: Config) -> tuple[jax.Array, jax.Array]:
    """Returns the frames that `augmented_labels` has parameters for, and which of them are counted."""
    pictures = augment.render(microbatch["params"], config.augment, microbatch["frames"], dtype)
    if "masked" in microbatch:
        pictures = augment.mask_patches(pictures, microbatch["masked"], pixel_scale(config.model.weights).mean)
    return pictures, jnp.repeat(microbatch["valid"][:, None], pictures.shape[1], axis=1)


def _deal(batch: Batch, seed: jax.Array, config: Config, facts: DataFacts) -> Dealt:
    """Returns the labelled frames of a part as microbatches, with their keypoints augmented.

    `targets` counts the used keypoints, and `reprojection` those that other views show.
    """
    dtype = DTYPES[config.train.precision][1]
    labelled = augmented_labels(batch, seed, config, facts)
    visibility = used_keypoints(labelled["keypoints_px"], labelled["visibility"], facts.size_px, config.model)
    labelled |= {"visibility": visibility}
    if config.augment.mask_share:
        labelled["masked"] = masked_patches(batch["draw"], seed, config, facts.steps_per_epoch, facts.size_px)
    counts = {"targets": jnp.sum(visibility > 0, dtype=dtype)}
    if config.losses.reprojection.weight:
        points_px = jnp.where(batch["valid"][:, None, None], batch["reprojected_px"].astype(dtype), jnp.nan)
        shown = jnp.where(jnp.isfinite(points_px).all(-1), jnp.int8(VISIBLE), jnp.int8(NOT_USED))
        points_px, shown = augment.move_keypoints(
            labelled["params"], config.augment, points_px, shown, facts.flip_permutation
        )
        shown = used_keypoints(points_px, shown, facts.size_px, config.model)
        labelled |= {"reprojected_px": points_px, "reprojected": shown}
        counts["reprojection"] = jnp.sum(shown > 0, dtype=dtype)
    return Dealt(*in_passes(labelled, facts.passes, dtype), counts)


def in_passes(labelled: Batch, passes: int, dtype: Any) -> tuple[Batch, jax.Array]:
    """Returns labelled frames as microbatches, and the frames of each that enter the batch statistics."""
    microbatches = jax.tree.map(lambda leaf: leaf.reshape(passes, -1, *leaf.shape[1:]), labelled)
    return microbatches, jnp.sum(microbatches["valid"], 1, dtype=dtype) * labelled["frames"].shape[1]


def augmented_labels(batch: Batch, seed: jax.Array, config: Config, facts: DataFacts) -> Batch:
    """Returns labelled frames with the parameters of their augmentation, and with their keypoints augmented."""
    dtype = DTYPES[config.train.precision][1]
    valid = batch["valid"]
    keys = augment.sample_keys(seed, LABELLED, batch["draw"], AUGMENTATION)
    identity = jnp.eye(2, 3, dtype=dtype)[None]
    # An empty slot may hold any bytes, even NaN: replace them before any arithmetic.
    frame_from_input = jnp.where(valid[:, None, None], batch["frame_from_input"].astype(dtype), identity)
    drawn = augment.draw_params(keys, config.augment, frame_from_input, facts.size_px)
    keypoints_px = jnp.where(valid[:, None, None], batch["keypoints_px"].astype(dtype), 0)
    visibility = jnp.where(valid[:, None], batch["visibility"], 0)
    keypoints_px, visibility = augment.move_keypoints(
        drawn, config.augment, keypoints_px, visibility, facts.flip_permutation
    )
    return {
        "frames": jnp.where(valid[:, None, None, None, None], batch["frames"], jnp.uint8(0)),
        "keypoints_px": keypoints_px,
        "visibility": visibility,
        "frame_from_input": frame_from_input,
        "valid": valid,
        "params": drawn,
    }


def masked_patches(
    draw: jax.Array, seed: jax.Array | int, config: Config, steps_per_epoch: int, size_px: tuple[int, int]
) -> jax.Array:
    """Returns the masked patches (b, h / patch, w / patch) of samples; a draw tells the step, and so the share.

    Args:
      draw: (b,), positions in the stream of samples; a moment has one for each view.
      seed: `train.seed`, a uint32 scalar.
      config: the run's config.
      steps_per_epoch: see `DataFacts`.
      size_px: (height, width) of the input.
    """
    on, patch_px = config.augment, BACKBONES[config.model.backbone].stride
    first, last = mask_steps(on, steps_per_epoch)
    step = draw // (config.train.batch_size * len(config.data.views))
    # Both may round to one step.
    progress = jnp.clip((step - first).astype(jnp.float32) / (last - first), 0, 1) if last > first else 1.0
    share = jnp.where(step < first, 0, on.mask_share_start + progress * (on.mask_share - on.mask_share_start))
    keys = augment.sample_keys(seed, LABELLED, draw, _MASKS)
    return augment.draw_masks(keys, share, (size_px[0] // patch_px, size_px[1] // patch_px))


def used_keypoints(
    keypoints_px: jax.Array, visibility: jax.Array, size_px: tuple[int, int], model: ModelConfig
) -> jax.Array:
    """Returns the visibility (b, k) for the loss: 0 for keypoints without a target.

    These are keypoints outside the input and, for a network without maps, keypoints that are not visible.
    """
    visibility = heatmap.in_frame(keypoints_px, visibility, size_px)
    if model.kind == "regression":
        return jnp.where(visibility == VISIBLE, visibility, jnp.zeros_like(visibility))
    return visibility


def encode_targets(
    keypoints_px: jax.Array,
    visibility: jax.Array,
    frame_from_input: jax.Array,
    size_px: tuple[int, int],
    model: ModelConfig,
) -> jax.Array:
    """Returns the target maps (b, k, h, w) of a network with maps of sum 1; `decode_outputs` inverts this.

    Args:
      keypoints_px: (b, k, 2) in input pixels; may be NaN.
      visibility: (b, k); 2 draws a Gaussian, 1 a uniform map, 0 zeros.
      frame_from_input: affines (b, 2, 3), as in `decode_outputs`.
      size_px: (height, width) of the input.
      model: options of the network.
    """
    encode = heatmap.encode
    if model.decoding == "lightning_pose":
        keypoints_px += _tool_shift_px(frame_from_input, keypoints_px)[:, None]
        encode = heatmap_lightning_pose.encode
    return encode(keypoints_px, visibility, size_px, model.heatmap_stride, model.sigma_cells)


def supervised_loss(
    outputs: Outputs,
    keypoints_px: jax.Array,
    visibility: jax.Array,
    frame_from_input: jax.Array,
    size_px: tuple[int, int],
    model: ModelConfig,
) -> tuple[jax.Array, jax.Array]:
    """Returns the weighted loss of labelled frames, (sums, counts), each (b,), as a mean over the heads.

    Args:
      outputs: (b, 1, heads, k, ...).
      keypoints_px: labels (b, k, 2) in input pixels; anything where not used.
      visibility: (b, k), as `used_keypoints` returns it.
      frame_from_input: (b, 2, 3); the loss of a network without maps is in frame pixels.
      size_px: (height, width) of the input.
      model: options of the network.
    """
    if model.kind == "regression":
        scale = frame_from_input[:, None, :, :2]
        # The shift is the same for both points and cancels.
        seen, labelled = (jnp.sum(scale * points[..., None, :], axis=-1) for points in (outputs[:, 0, 0], keypoints_px))
        sums, counts = unlabelled_losses.regression(seen, labelled, visibility > 0)
        return heatmap.HEATMAP_WEIGHT * sums, counts
    if model.decoding == "deeplabcut":
        tool_px = keypoints_px + _tool_shift_px(frame_from_input, keypoints_px)[:, None]
        return heatmap_deeplabcut.loss(outputs[:, 0, 0], tool_px, visibility, model.heatmap_stride, model.sigma_cells)
    targets = encode_targets(keypoints_px, visibility, frame_from_input, size_px, model)
    return map_loss(outputs, targets, visibility > 0, model)


def map_loss(
    outputs: jax.Array, targets: jax.Array, used: jax.Array, model: ModelConfig
) -> tuple[jax.Array, jax.Array]:
    """Returns the weighted loss of maps, (sums, counts), each (b,), as a mean over the heads.

    Args:
      outputs: (b, 1, heads, k, h, w).
      targets: (b, k, h, w), each of sum 1; anything where not used.
      used: (b, k), which maps count.
      model: options of the network.
    """
    heads, compare = outputs.shape[2], heatmap.heatmap_loss(model.loss)
    found = [compare(outputs[:, 0, head], targets, used) for head in range(heads)]
    sums = jnp.stack([sums for sums, _ in found]).sum(0)
    return heatmap.HEATMAP_WEIGHT / heads * sums, found[0][1]
