"""Consistency: on unlabelled frames, a student that sees a hard view learns the points of a teacher in an easy view.

The teacher is the moving average of the weights. Its points travel through the two known affines and with moved parts
into the student's view. Without the asymmetry of easy and hard, both would agree on anything (Xie et al., ICCV 2021). A
frame is a clip of a single window (see `jaxpose.steps.clip_step`).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxpose import geometry
from jaxpose.codes import NOT_USED, VISIBLE
from jaxpose.config import AugmentConfig, Config
from jaxpose.config.augment import resolve_preset
from jaxpose.config.terms import TermFacts
from jaxpose.model.pose_net import DTYPES, apply_network
from jaxpose.pose import augment, carried_maps, occluders
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.labelled import map_loss, used_keypoints
from jaxpose.steps.outputs import map_shift_px, surest_maps
from jaxpose.steps.terms import Batch, Dealt, Scalars, Sums, Term, Weights
from jaxpose.steps.unlabelled import as_microbatches, frame_rows, wide_geometry

# Purposes of the random numbers of a frame.
_EASY, _HARD, _OCCLUDERS = 0, 1, 2
# Turns and scales of the teacher's view.
_EASY_DEG, _EASY_SCALE = 10.0, 0.1
# A threshold moves in a step by this times (the share that passed - the wanted share).
_RATE = 0.02


def consistency_term(known: TermFacts, config: Config, facts: DataFacts) -> Term:
    """Returns the term of the unlabelled frames that a teacher labels."""
    dtype, keypoints = DTYPES[config.train.precision][1], len(config.data.keypoint_names)

    def deal(batch: Batch, seed: jax.Array) -> Dealt:
        rows = frame_microbatches(batch["unlabelled"], seed, config, facts.passes)
        frames = jnp.sum(rows["valid"], 1, dtype=dtype) * batch["unlabelled"]["frames"].shape[2]
        # Of each keypoint, also below its threshold: such a prediction costs nothing.
        seen = jnp.sum(rows["valid"], dtype=dtype)
        return Dealt(rows, frames, {"consistency_passed": seen, "consistency": seen * keypoints})

    def targets(graphdef: nnx.GraphDef, before: Weights, microbatch: Batch, frames: jax.Array) -> Batch:
        pictures = teacher_input(microbatch, config, frames.dtype)
        counted = jnp.repeat(microbatch["valid"][:, None], pictures.shape[1], axis=1)
        outputs, _ = apply_network(
            graphdef, before.teacher["params"], before.teacher["statistics"], [pictures], [counted], frames, False
        )
        thresholds = before.thresholds[known.name]
        labels, passed = pseudo_labels(outputs[0], microbatch, config, facts, thresholds)
        return microbatch | {"labels": labels, "passed": passed}

    def sums(outputs: jax.Array, microbatch: Batch) -> Sums:
        total = loss_sum(outputs, microbatch["labels"], config)
        return Sums({"consistency": total, "consistency_passed": microbatch["passed"]})

    return Term(
        known,
        deal,
        inputs=lambda microbatch, dtype: student_input(microbatch, microbatch["labels"], config, dtype),
        sums=sums,
        factor=lambda step, dtype: factor(config, step).astype(dtype),
        targets=targets,
        extra={"consistency_passed": (keypoints,)},
        move=lambda thresholds, means, counts: moved_thresholds(thresholds, means, counts, config),
    )


def easy_view() -> AugmentConfig:
    """Returns the augmentation of the teacher's view."""
    low, high = 1 - _EASY_SCALE, 1 + _EASY_SCALE
    turned = AugmentConfig(
        preset="none", rotate_p=1.0, rotate_deg=_EASY_DEG, scale_p=1.0, scale_min=low, scale_max=high
    )
    return resolve_preset(turned)


def hard_view(config: Config) -> AugmentConfig:
    """Returns the augmentation of the student's view: that of labelled frames, and more.

    Args:
      config: the run's config, resolved.
    """
    given: Any = config.augment
    return dataclasses.replace(
        given,
        # Labels of the teacher go through an affine and moved parts; equalization is done on the host.
        elastic_p=0.0,
        equalize_p=0.0,
        clahe_p=0.0,
        crop_pad_p=0.0,
        **wide_geometry(given, config.losses.consistency),
        brightness_p=max(given.brightness_p, 0.5),
        contrast_p=max(given.contrast_p, 0.5),
    )


def frame_microbatches(frames: Batch, seed: jax.Array, config: Config, passes: int) -> Batch:
    """Returns this part's unlabelled frames as microbatches, a row for each frame and camera, with their two views."""
    rows, keys = frame_rows(frames, seed, config)
    affines, size_px = rows["frame_from_input"], frames["frames"].shape[3:5]
    rows |= {
        "easy": augment.draw_params(keys(_EASY), easy_view(), affines, size_px),
        "hard": augment.draw_params(keys(_HARD), hard_view(config), affines, size_px),
    }
    if number := config.losses.consistency.occluders:
        rows["occluders"] = occluders.draw_params(keys(_OCCLUDERS), number, affines.dtype)
    return as_microbatches(rows, passes)


def teacher_input(microbatch: Batch, config: Config, dtype: Any) -> jax.Array:
    """Returns the teacher's frames (q, s, h, w, 3)."""
    return augment.render(microbatch["easy"], easy_view(), microbatch["frames"], dtype)


def pseudo_labels(
    outputs: jax.Array, microbatch: Batch, config: Config, facts: DataFacts, thresholds: jax.Array
) -> tuple[Batch, jax.Array]:
    """Returns labels of the student's view, and the number of predictions of each keypoint (k,) above its threshold.

    Args:
      outputs: of the teacher (q, 1, heads, k, ...).
      microbatch: one of `frame_microbatches`.
      config: the run's config.
      facts: about the data.
      thresholds: (k,), the smallest confidence of a prediction that counts.
    """
    affines, easy, hard = microbatch["frame_from_input"], microbatch["easy"], microbatch["hard"]
    maps, points_px, confidence = surest_maps(outputs, config.model, affines, easy["input_from_augmented"], facts.views)
    points_px = geometry.apply(easy["input_from_augmented"], points_px)
    moves_px = augment.moves_of_parts(hard, hard_view(config), points_px)
    passes = (confidence >= thresholds[None]) & microbatch["valid"][:, None]
    visibility = jnp.where(passes, VISIBLE, NOT_USED).astype(jnp.int8)
    points_px, visibility = augment.move_keypoints(
        hard, hard_view(config), points_px, visibility, facts.flip_permutation
    )
    visibility = used_keypoints(points_px, visibility, facts.size_px, config.model)
    maps = carried_maps.carry(
        maps,
        easy["input_from_augmented"],
        hard["input_from_augmented"],
        config.model.heatmap_stride,
        map_shift_px(config.model, affines),
        moves_px,
    )
    maps = augment.exchange_sides(hard, hard_view(config), maps, facts.flip_permutation)
    labels = {"keypoints_px": points_px, "visibility": visibility, "maps": maps}
    return labels, jnp.sum(passes, 0, dtype=confidence.dtype)


def student_input(microbatch: Batch, labels: Batch, config: Config, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Returns the student's frames (q, s, h, w, 3), and which of them are counted (q, s)."""
    pictures = augment.render(microbatch["hard"], hard_view(config), microbatch["frames"], dtype)
    if config.losses.consistency.occluders:
        pictures = occluders.cover(pictures, labels["keypoints_px"], microbatch["occluders"])
    return pictures, jnp.repeat(microbatch["valid"][:, None], pictures.shape[1], axis=1)


def loss_sum(outputs: jax.Array, labels: Batch, config: Config) -> jax.Array:
    """Returns the sum of the student's loss (q, 1, heads, k, ...) over the labels that count."""
    sums, _ = map_loss(outputs, labels["maps"], labels["visibility"] > 0, config.model)
    return jnp.sum(sums)


def factor(config: Config, step: jax.Array) -> jax.Array:
    """Returns the factor of the loss at a step from 0 on, a float32 scalar.

    It is 0 for `start_steps` steps, then grows in `ramp_steps` equal parts.
    """
    options = config.losses.consistency
    taken = (step - options.start_steps + 1).astype(jnp.float32)
    return options.weight * jnp.clip(taken / max(1, options.ramp_steps), 0, 1)


def moved_thresholds(thresholds: jax.Array, means: Scalars, counts: Scalars, config: Config) -> jax.Array:
    """Returns the thresholds (k,) after a step, nearer to where `pass_share` of each keypoint's predictions pass.

    Args:
      thresholds: before the step.
      means: `consistency_passed` (k,), the share of the predictions that passed.
      counts: `consistency_passed`, the number of frames that decoded.
      config: the run's config.
    """
    goal = config.losses.consistency.pass_share
    moved = jnp.clip(thresholds + _RATE * (means["consistency_passed"] - goal), 0, 1)
    return jnp.where(counts["consistency_passed"] > 0, moved, thresholds)
