"""The term of the labelled frames: augmented, and compared with their labels; labels as targets, and their loss."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxpose.codes import VISIBLE
from jaxpose.config import Config, ModelConfig
from jaxpose.config.terms import TermFacts
from jaxpose.model.pose_net import DTYPES
from jaxpose.pose import augment, clip_losses, heatmap, heatmap_lightning_pose
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.outputs import Outputs
from jaxpose.steps.terms import Batch, Dealt, Sums, Term

# Streams and purposes that keep random numbers of different uses apart.
LABELLED, AUGMENTATION = 0, 0


def labelled_term(known: TermFacts, config: Config, facts: DataFacts) -> Term:
    """Returns the term of the labelled frames."""

    def inputs(microbatch: Batch, dtype: Any) -> tuple[jax.Array, jax.Array]:
        pictures = augment.render(microbatch["params"], config.augment, microbatch["frames"], dtype)
        return pictures, jnp.repeat(microbatch["valid"][:, None], pictures.shape[1], axis=1)

    def sums(outputs: jax.Array, microbatch: Batch) -> Sums:
        of_samples, _ = supervised_loss(
            outputs,
            microbatch["keypoints_px"],
            microbatch["visibility"],
            microbatch["frame_from_input"],
            facts.size_px,
            config.model,
        )
        return Sums({"supervised_loss": jnp.sum(of_samples)}, of_samples=of_samples)

    deal = functools.partial(_deal, config=config, facts=facts)
    return Term(known, deal, inputs, sums, factor=lambda _, dtype: jnp.ones((), dtype))


def _deal(batch: Batch, seed: jax.Array, config: Config, facts: DataFacts) -> Dealt:
    """Returns the labelled frames of a part as microbatches, with their keypoints augmented.

    `targets` counts the used keypoints.
    """
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
    visibility = used_keypoints(keypoints_px, visibility, facts.size_px, config.model)
    labelled = {
        "frames": jnp.where(valid[:, None, None, None, None], batch["frames"], jnp.uint8(0)),
        "keypoints_px": keypoints_px,
        "visibility": visibility,
        "frame_from_input": frame_from_input,
        "valid": valid,
        "params": drawn,
    }
    microbatches = jax.tree.map(lambda leaf: leaf.reshape(facts.passes, -1, *leaf.shape[1:]), labelled)
    targets = jnp.sum(visibility > 0, dtype=dtype)
    frames = jnp.sum(microbatches["valid"], 1, dtype=dtype) * batch["frames"].shape[1]
    return Dealt(microbatches, frames, {"targets": targets})


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
    """Returns the target maps (b, k, h, w) of a network with maps; `decode_outputs` inverts this.

    Args:
      keypoints_px: (b, k, 2) in input pixels; may be NaN.
      visibility: (b, k); 2 draws a Gaussian, 1 a uniform map, 0 zeros.
      frame_from_input: affines (b, 2, 3), as in `decode_outputs`.
      size_px: (height, width) of the input.
      model: options of the network.
    """
    encode = heatmap.encode
    if model.decoding == "lightning_pose":
        keypoints_px += heatmap_lightning_pose.offset_px(frame_from_input).astype(keypoints_px.dtype)[:, None]
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
        sums, counts = clip_losses.regression(seen, labelled, visibility > 0)
        return heatmap.HEATMAP_WEIGHT * sums, counts
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
