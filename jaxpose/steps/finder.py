"""The term of a finder: frames with all their animals, and the losses of the centres and the offsets."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxpose.config import Config
from jaxpose.config.terms import TermFacts
from jaxpose.model.pose_net import DTYPES
from jaxpose.pose import finder, heatmap
from jaxpose.poses import VISIBLE
from jaxpose.steps.labelled import augmented_frames, augmented_labels, in_passes
from jaxpose.steps.terms import Batch, DataFacts, Dealt, Sums, Term


def finder_term(known: TermFacts, config: Config, facts: DataFacts) -> Term:
    """Returns the term of a finder. Its batch has an axis of animals: see `jaxpose.data.loader.FrameSamples`."""

    def sums(outputs: jax.Array, microbatch: Batch) -> Sums:
        centres, offsets = maps_of(outputs)
        of_centres, _ = finder.centre_loss(centres, microbatch["targets"])
        of_offsets, _ = finder.offset_loss(offsets, microbatch["targets"])
        of_losses = {"centre_loss": jnp.sum(of_centres), "offset_loss": jnp.sum(of_offsets)}
        return Sums(of_losses, of_samples=of_centres + of_offsets)

    deal = functools.partial(_deal, config=config, facts=facts)
    inputs = functools.partial(augmented_frames, config=config)
    return Term(known, deal, inputs, sums, factor=lambda _, dtype: jnp.ones((), dtype))


def maps_of(outputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the logits of centres (b, h, w) and the offsets (b, k, 2, h, w) in outputs (b, 1, 1, maps, h, w)."""
    maps = outputs[:, 0, 0]
    return maps[:, 0], maps[:, 1:].reshape(maps.shape[0], -1, 2, *maps.shape[2:])


def targets_of(
    keypoints_px: jax.Array,
    visibility: jax.Array,
    partly_labelled: jax.Array,
    valid: jax.Array,
    size_px: tuple[int, int],
    config: Config,
) -> finder.Targets:
    """Returns the targets of frames; those of empty slots do not count.

    Args:
      keypoints_px: (b, a, k, 2) in input pixels; may be NaN.
      visibility: (b, a, k).
      partly_labelled: (b,), see `finder.encode`.
      valid: (b,), which frames are no empty slots.
      size_px: (height, width) of the input.
      config: of the run.
    """
    flat = keypoints_px.reshape(len(keypoints_px), -1, 2), visibility.reshape(len(visibility), -1)
    used = (heatmap.in_frame(*flat, size_px) == VISIBLE).reshape(visibility.shape)
    # In images of the most frequent size.
    width_px, height_px = config.data.frame_sizes_px[:2]
    body_px = config.data.body_size_px * min(size_px[0] / height_px, size_px[1] / width_px)
    targets = finder.encode(keypoints_px, used, partly_labelled, size_px, config.model.heatmap_stride, body_px)
    return targets._replace(is_counted=targets.is_counted & valid[:, None, None])


def _deal(batch: Batch, seed: jax.Array, config: Config, facts: DataFacts) -> Dealt:
    """Returns the frames of a part as microbatches with their targets. `targets` counts the animals."""
    dtype = DTYPES[config.train.precision][1]
    shape = batch["visibility"].shape
    # The augmentation moves the keypoints of all animals of a frame as those of one.
    flat = {
        "keypoints_px": batch["keypoints_px"].reshape(shape[0], -1, 2),
        "visibility": batch["visibility"].reshape(shape[0], -1),
    }
    partners = facts.flip_permutation
    if partners is not None:
        partners = tuple(shape[2] * animal + partner for animal in range(shape[1]) for partner in partners)
    of_all = dataclasses.replace(facts, flip_permutation=partners)
    labelled = augmented_labels(batch | flat, seed, config, of_all)
    keypoints_px, visibility = labelled.pop("keypoints_px"), labelled.pop("visibility")
    labelled["targets"] = targets_of(
        keypoints_px.reshape(*shape, 2), visibility.reshape(shape), batch["partly_labelled"], batch["valid"],
        facts.size_px, config,
    )  # fmt: skip
    animals = jnp.sum(labelled["targets"].animals, dtype=dtype)
    offsets = jnp.sum(labelled["targets"].is_near, dtype=dtype)
    return Dealt(*in_passes(labelled, facts.passes, dtype), {"targets": animals, "offset_loss": offsets})
