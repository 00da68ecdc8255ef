"""The terms of single unlabelled frames: consistency with a teacher, and the terms of a pretraining."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxpose import geometry
from jaxpose.config import AugmentConfig, Config, ConsistencyConfig, PretrainConfig
from jaxpose.config.data import resolve_preset
from jaxpose.config.terms import TermFacts
from jaxpose.model.pose_net import DTYPES, apply_network, apply_teacher
from jaxpose.model.vit_weights import FORMS
from jaxpose.pose import augment, pixels, unlabelled_losses
from jaxpose.poses import NOT_USED, VISIBLE
from jaxpose.steps.labelled import map_loss, map_shift_px, surest_maps, used_keypoints
from jaxpose.steps.terms import Batch, DataFacts, Dealt, Scalars, Sums, Term, Weights

# The unlabelled frames of a step: a row for each frame and camera, and the keys of its random numbers.

# The stream of unlabelled frames; the purposes of view v are those of its user + 3 v.
_UNLABELLED = 2


def wide_geometry(given: Any, options: ConsistencyConfig | PretrainConfig) -> dict[str, Any]:
    """Returns the options of augmentation that turn, scale and shift every frame, at least as far as labelled frames.

    Args:
      given: the resolved augmentation of labelled frames.
      options: the largest turn and the scales.
    """
    return {
        "rotate_p": 1.0,
        "rotate_deg": max(options.rotate_deg, given.rotate_deg * (given.rotate_p > 0)),
        "scale_p": 1.0,
        "scale_min": min(options.scale_min, given.scale_min) if given.scale_p else options.scale_min,
        "scale_max": max(options.scale_max, given.scale_max) if given.scale_p else options.scale_max,
        "translate_p": 1.0,
    }


def frame_rows(frames: Batch, seed: jax.Array, config: Config) -> tuple[Batch, Callable[[int], jax.Array]]:
    """Returns the rows of a part's unlabelled frames, and a function from a purpose (0, 1, 2) to their keys.

    Args:
      frames: one part's; a frame is a clip of a single window (see `jaxpose.steps.clip_step`).
      seed: `train.seed`, a uint32 scalar.
      config: the run's config.

    Returns:
      `frames` uint8 (rows, s, h, w, 3), `frame_from_input` (rows, 2, 3) and `valid` (rows,), rows = frames x cameras.
    """
    dtype = DTYPES[config.train.precision][1]
    count, views, length = frames["frames"].shape[:3]
    valid = jnp.repeat(frames["valid"] & frames["owned"][:, length // 2], views)

    def keys(purpose: int) -> jax.Array:
        of_views = [augment.sample_keys(seed, _UNLABELLED, frames["draw"], purpose + 3 * view) for view in range(views)]
        return jnp.stack(of_views, axis=1).reshape(-1)

    affines = frames["frame_from_input"].reshape(-1, 2, 3).astype(dtype)
    pictures = frames["frames"].reshape(count * views, *frames["frames"].shape[2:])
    rows = {
        # An empty slot may hold any bytes.
        "frames": jnp.where(valid[:, None, None, None, None], pictures, jnp.uint8(0)),
        "frame_from_input": jnp.where(valid[:, None, None], affines, jnp.eye(2, 3, dtype=dtype)[None]),
        "valid": valid,
    }
    return rows, keys


def as_microbatches(rows: Batch, passes: int) -> Batch:
    """Returns rows with a first axis of microbatches."""
    return jax.tree.map(lambda leaf: leaf.reshape(passes, -1, *leaf.shape[1:]), rows)


# Consistency: on unlabelled frames, a student that sees a hard view learns the points of a teacher in an easy view.
#
# The teacher is the moving average of the weights. Its points are mapped into the student's view by the two known
# affines and the moved parts. If both views were equally hard, both networks could agree on anything (Xie et al., ICCV
# 2021). A frame is a clip of a single window (see `jaxpose.steps.clip_step`).

# Purposes of the random numbers of a frame.
_EASY, _HARD, _OCCLUDERS = 0, 1, 2
# Rotations and scales of the teacher's view.
_EASY_DEG, _EASY_SCALE = 10.0, 0.1
# In each step, a threshold moves by this times (the share that passed - the wanted share).
_RATE = 0.02


def consistency_term(known: TermFacts, config: Config, facts: DataFacts) -> Term:
    """Returns the term of the unlabelled frames that a teacher labels."""
    dtype, keypoints = DTYPES[config.train.precision][1], len(config.data.keypoint_names)

    def deal(batch: Batch, seed: jax.Array) -> Dealt:
        rows = frame_microbatches(batch["unlabelled"], seed, config, facts.passes)
        frames = jnp.sum(rows["valid"], 1, dtype=dtype) * batch["unlabelled"]["frames"].shape[2]
        # Counts each keypoint, even below its threshold: such a prediction costs nothing.
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
        rows["occluders"] = augment.draw_occluders(keys(_OCCLUDERS), number, affines.dtype)
    return as_microbatches(rows, passes)


def teacher_input(microbatch: Batch, config: Config, dtype: Any) -> jax.Array:
    """Returns the teacher's frames (q, s, h, w, 3)."""
    return augment.render(microbatch["easy"], easy_view(), microbatch["frames"], dtype)


def pseudo_labels(
    outputs: jax.Array, microbatch: Batch, config: Config, facts: DataFacts, thresholds: jax.Array
) -> tuple[Batch, jax.Array]:
    """Returns labels of the student's view, and the number of predictions of each keypoint (k,) above its threshold.

    Args:
      outputs: the teacher's (q, 1, heads, k, ...).
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
    maps = pixels.carry(
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
        pictures = augment.cover(pictures, labels["keypoints_px"], microbatch["occluders"])
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


# The terms of a pretraining: hidden squares of unlabelled frames, or the features of a teacher, without labels.

# Purposes of the random numbers of a frame.
_VIEW, _HIDDEN = 0, 1
# The loss of a network that predicts nothing; the log shows it next to the loss as a reference.
_BLANK = "blank_loss"


def view(config: Config) -> AugmentConfig:
    """Returns the augmentation of a frame: turns, scales and flips at least as large as those of labelled frames.

    Filters that add noise are left out: it cannot be predicted.
    """
    given: Any = config.augment
    chosen = AugmentConfig(
        preset="none",
        flip_p=given.flip_p,
        quarter_turns=given.quarter_turns,
        **wide_geometry(given, config.pretrain),
        brightness_p=0.8,
        contrast_p=0.8,
    )
    return resolve_preset(chosen)


def masked_term(known: TermFacts, config: Config, facts: DataFacts) -> Term:
    """Returns the term of a masked pretraining: the network paints the hidden squares of a frame."""
    (height, width), pretrain, stride = facts.size_px, config.pretrain, config.model.heatmap_stride
    cells = height // pretrain.square_px, width // pretrain.square_px

    def deal(batch: Batch, seed: jax.Array) -> Dealt:
        rows, keys = _rows(batch, seed, config, facts)
        rows["hidden"] = unlabelled_losses.draw_hidden(keys(_HIDDEN), pretrain.hidden_share, cells)
        rows["hidden"] &= rows["valid"][:, None, None]
        targets = jnp.sum(rows["hidden"], dtype=_dtype(config)) * (pretrain.square_px // stride) ** 2
        return _dealt(rows, targets, config, facts)

    def targets(graphdef: nnx.GraphDef, before: Weights, microbatch: Batch, frames: jax.Array) -> Batch:
        return microbatch | {"pictures": _pictures(microbatch, config, frames.dtype)}

    def inputs(microbatch: Batch, dtype: Any) -> tuple[jax.Array, jax.Array]:
        return unlabelled_losses.hide(microbatch["pictures"], microbatch["hidden"]), _counted(microbatch)

    def sums(outputs: jax.Array, microbatch: Batch) -> Sums:
        hidden = microbatch["hidden"]
        targets = unlabelled_losses.square_targets(microbatch["pictures"][:, 0], cells, stride)
        losses, blank = unlabelled_losses.hidden_loss(outputs[:, 0, 0], targets, hidden)
        return Sums({known.name: jnp.sum(losses), _BLANK: jnp.sum(blank)})

    return Term(known, deal, inputs, sums, _one, targets, extra={_BLANK: ()})


def distill_term(known: TermFacts, config: Config, facts: DataFacts) -> Term:
    """Returns the term of a distillation: the network's features follow those of a frozen teacher."""
    (height, width), patch_px = facts.size_px, FORMS[config.pretrain.teacher_backbone].patch_px
    teacher = facts.teacher
    assert teacher is not None

    def deal(batch: Batch, seed: jax.Array) -> Dealt:
        rows, _ = _rows(batch, seed, config, facts)
        targets = jnp.sum(rows["valid"], dtype=_dtype(config)) * ((height // patch_px) * (width // patch_px))
        return _dealt(rows, targets, config, facts)

    def targets(graphdef: nnx.GraphDef, before: Weights, microbatch: Batch, frames: jax.Array) -> Batch:
        pictures = _pictures(microbatch, config, frames.dtype)
        features = apply_teacher(teacher, before.teacher["params"], pictures[:, 0])
        return microbatch | {"pictures": pictures, "features": features}

    def inputs(microbatch: Batch, dtype: Any) -> tuple[jax.Array, jax.Array]:
        return microbatch["pictures"], _counted(microbatch)

    def sums(outputs: jax.Array, microbatch: Batch) -> Sums:
        losses = unlabelled_losses.follow_loss(outputs[:, 0, 0], microbatch["features"])
        return Sums({known.name: jnp.sum(jnp.where(microbatch["valid"], losses, 0))})

    return Term(known, deal, inputs, sums, _one, targets)


def _one(step: jax.Array, dtype: Any) -> jax.Array:
    return jnp.ones((), dtype)


def _dtype(config: Config) -> Any:
    return DTYPES[config.train.precision][1]


def _rows(batch: Batch, seed: jax.Array, config: Config, facts: DataFacts) -> tuple[Batch, Callable[[int], jax.Array]]:
    """Returns the rows of a part's frames with the parameters of their views, and the keys of their random numbers."""
    rows, keys = frame_rows(batch["unlabelled"], seed, config)
    rows["view"] = augment.draw_params(keys(_VIEW), view(config), rows["frame_from_input"], facts.size_px)
    return rows, keys


def _dealt(rows: Batch, targets: jax.Array, config: Config, facts: DataFacts) -> Dealt:
    """Returns rows as microbatches; `targets` counts the cells that enter the loss."""
    microbatches = as_microbatches(rows, facts.passes)
    frames = jnp.sum(microbatches["valid"], 1, dtype=_dtype(config)) * rows["frames"].shape[1]
    return Dealt(microbatches, frames, {"targets": targets})


def _pictures(microbatch: Batch, config: Config, dtype: Any) -> jax.Array:
    return augment.render(microbatch["view"], view(config), microbatch["frames"], dtype)


def _counted(microbatch: Batch) -> jax.Array:
    return jnp.repeat(microbatch["valid"][:, None], microbatch["pictures"].shape[1], axis=1)
