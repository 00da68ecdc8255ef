"""A part of a step's batch: its microbatches, its counts, and its gradients summed over all passes.

A part is what one device has of the batch or, with `train.shards`, one shard.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxpose.config import Config
from jaxpose.config.losses import has_teacher, weights
from jaxpose.config.pretrain import is_pretraining
from jaxpose.model.pose_net import DTYPES
from jaxpose.pose import augment
from jaxpose.steps import clip_step, consistency, pretrain_step
from jaxpose.steps.clip_step import Batch
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.objective import Objective, Scalars
from jaxpose.steps.outputs import used_keypoints
from jaxpose.steps.pretrain_step import AnyObjective
from jaxpose.steps.state import Weights

# Streams and purposes that keep random numbers of different uses apart.
LABELLED, AUGMENTATION = 0, 0

# The seed of a run, as an argument of its programs.
SEED = jax.ShapeDtypeStruct((), jnp.uint32)


def microbatches_of(
    batch: Batch, seed: jax.Array, config: Config, facts: DataFacts
) -> tuple[dict[str, Batch], Scalars]:
    """Returns a part of a batch as microbatches with its keypoints augmented, and its counts, which are whole numbers.

    Of a pretraining, see `pretrain_step.microbatches_of`. These counts are known before the first pass: `targets`, the
    used keypoints; `frames`, the frames of each microbatch that enter the batch statistics; and the terms of each loss
    on clips, except `unimodal_mse`.

    Args:
      batch: the part.
      seed: `train.seed`, a uint32 scalar; an argument, so that the members of an ensemble share one program.
      config: the run's config.
      facts: about the data.
    """
    if is_pretraining(config.pretrain):
        return pretrain_step.microbatches_of(batch, seed, config, facts)
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
    microbatches = {"labelled": jax.tree.map(lambda leaf: leaf.reshape(facts.passes, -1, *leaf.shape[1:]), labelled)}
    counts = {
        "targets": jnp.sum(visibility > 0, dtype=dtype),
        "frames": jnp.sum(microbatches["labelled"]["valid"], 1, dtype=dtype) * batch["frames"].shape[1],
    }
    if weights(config.losses):
        clips = clip_step.clip_microbatches(batch["clips"], seed, config, facts.passes)
        microbatches["clips"] = clips
        counts["frames"] += jnp.sum(clips["counted"], (1, 2), dtype=dtype) * batch["clips"]["frames"].shape[1]
        counts |= clip_step.known_counts(clips, config, facts.pca)
    if has_teacher(config.losses):
        unlabelled = consistency.frame_microbatches(batch["unlabelled"], seed, config, facts.passes)
        microbatches["unlabelled"] = unlabelled
        counts["frames"] += jnp.sum(unlabelled["valid"], 1, dtype=dtype) * batch["unlabelled"]["frames"].shape[2]
        # Of each keypoint, also below its threshold: such a prediction costs nothing.
        counts["consistency_passed"] = jnp.sum(unlabelled["valid"], dtype=dtype)
        counts["consistency"] = counts["consistency_passed"] * batch["visibility"].shape[1]
    return microbatches, counts


def unchanged(tree: Any) -> Any:
    """Returns the tree: what `vary` of the functions below is where there are no other devices."""
    return tree


def count_confident(
    objective: Objective,
    before: Weights,
    inputs: tuple[dict[str, Batch], jax.Array],
    vary: Callable[[Any], Any] = unchanged,
) -> jax.Array:
    """Returns this part's count of `unimodal_mse`: the number of maps with a confident prediction.

    It is known only after all passes, so an extra round without gradients counts them. If a step has one pass, the
    compiler may merge the two rounds.

    Args:
      objective: the loss.
      before: the weights.
      inputs: the microbatches and the global count of frames of each, with a first axis of passes.
      vary: marks a number as one that differs between devices.
    """

    def add(total: jax.Array, of_pass: tuple) -> tuple[jax.Array, None]:
        microbatch, frames = objective.add_pseudo_labels(before, *of_pass), of_pass[1]
        outputs, _ = objective.outputs(before.params, before.statistics, microbatch, frames)
        return total + objective.sums(outputs, microbatch)[2]["unimodal_mse"], None

    confident, _ = lax.scan(add, vary(jnp.zeros((), inputs[1].dtype)), inputs)
    return confident


def summed_gradients(
    objective: AnyObjective,
    before: Weights,
    step: jax.Array,
    microbatches: dict[str, Batch],
    counts: Scalars,
    parts: int = 1,
    vary: Callable[[Any], Any] = unchanged,
) -> tuple[dict, dict, Scalars, jax.Array]:
    """Returns (gradients, batch statistics, losses, loss of each sample): of this part, summed over the passes.

    Args:
      objective: the loss.
      before: the weights.
      step: the number of steps taken before.
      microbatches: of this part.
      counts: of all parts together; with `unimodal_mse` also that.
      parts: by which the sum over all parts is divided afterwards.
      vary: marks a number as one that differs between devices.
    """
    dtype = counts["targets"].dtype
    counts = {"supervised_loss": counts["targets"]} | counts
    factors, _ = objective.factors(step, dtype)
    zero: jax.Array = vary(jnp.zeros((), dtype))
    first_means = dict.fromkeys([*factors, "loss"], zero)
    first_means |= {name: vary(jnp.zeros(shape, dtype)) for name, shape in objective.extra_means(before).items()}
    # In a fixed order: a set would give every process another program.
    counted = [name for name in first_means if name != "loss"]
    shares = {name: jnp.where(counts[name] > 0, parts / jnp.maximum(counts[name], 1), 0) for name in counted}
    loss = functools.partial(objective.loss, factors=factors, shares=shares)

    def take_pass(carry: tuple, of_pass: tuple) -> tuple[tuple, jax.Array]:
        gradients, statistics, means = carry
        (_, (statistics, pass_means, sample_sums)), pass_gradients = jax.value_and_grad(loss, has_aux=True)(
            before.params, statistics, objective.add_pseudo_labels(before, *of_pass), of_pass[1]
        )
        gradients, means = jax.tree.map(jnp.add, (gradients, means), (pass_gradients, pass_means))
        return (gradients, statistics, means), sample_sums

    first = (jax.tree.map(jnp.zeros_like, before.params), before.statistics, first_means)
    (gradients, statistics, means), sample_loss = lax.scan(take_pass, first, (microbatches, counts["frames"]))
    if len(factors) == 1:
        # It equals the loss.
        del means[next(iter(factors))]
    return gradients, statistics, means, sample_loss.reshape(-1)
