"""The terms of a pretraining: hidden squares of unlabelled frames, or the features of a teacher, without labels."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxpose.config import AugmentConfig, Config
from jaxpose.config.augment import resolve_preset
from jaxpose.config.terms import TermFacts
from jaxpose.model.pose_net import DTYPES
from jaxpose.model.teacher import apply_teacher
from jaxpose.model.vit_weights import FORMS
from jaxpose.pose import augment, pretrain_losses
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.terms import Batch, Dealt, Sums, Term, Weights
from jaxpose.steps.unlabelled import as_microbatches, frame_rows, wide_geometry

# Purposes of the random numbers of a frame.
_VIEW, _HIDDEN = 0, 1
# The loss of a network that says nothing; beside it, the log shows how much is learned.
_BLANK = "blank_loss"


def view(config: Config) -> AugmentConfig:
    """Returns the augmentation of a frame: turns, scales and flips at least as large as those of labelled frames.

    Filters that add noise are left out: nobody could predict it.
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
        rows["hidden"] = pretrain_losses.draw_hidden(keys(_HIDDEN), pretrain.hidden_share, cells)
        rows["hidden"] &= rows["valid"][:, None, None]
        targets = jnp.sum(rows["hidden"], dtype=_dtype(config)) * (pretrain.square_px // stride) ** 2
        return _dealt(rows, targets, config, facts)

    def targets(graphdef: nnx.GraphDef, before: Weights, microbatch: Batch, frames: jax.Array) -> Batch:
        return microbatch | {"pictures": _pictures(microbatch, config, frames.dtype)}

    def inputs(microbatch: Batch, dtype: Any) -> tuple[jax.Array, jax.Array]:
        return pretrain_losses.hide(microbatch["pictures"], microbatch["hidden"]), _counted(microbatch)

    def sums(outputs: jax.Array, microbatch: Batch) -> Sums:
        hidden = microbatch["hidden"]
        targets = pretrain_losses.square_targets(microbatch["pictures"][:, 0], cells, stride)
        losses, blank = pretrain_losses.hidden_loss(outputs[:, 0, 0], targets, hidden)
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
        losses = pretrain_losses.follow_loss(outputs[:, 0, 0], microbatch["features"])
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
