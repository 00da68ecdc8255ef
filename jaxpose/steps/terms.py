"""Defines a term of the objective as plain functions of arrays, and the facts about the data that terms need."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from flax import nnx

from jaxpose.config.terms import TermFacts
from jaxpose.pose.pca import Pca

# Arrays by name; the parameters of an augmentation are a nested dict.
Batch = dict[str, Any]
Scalars = dict[str, jax.Array]


class Weights(NamedTuple):
    """The inputs of a step's loss, except the batch.

    Attributes:
      params: nested dict of parameters.
      statistics: nested dict of batch statistics.
      teacher: {"params": ..., "statistics": ...} of the moving average, {"params": ...} of a distillation, or {}.
      thresholds: as in `State`.
    """

    params: dict
    statistics: dict
    teacher: dict
    thresholds: dict


class Dealt(NamedTuple):
    """A part of a batch as a term deals it to the passes of a step. Counts are whole numbers.

    Attributes:
      microbatches: arrays with a first axis of passes.
      frames: (passes,), the frames of each pass that enter the batch statistics.
      counts: by name, those known before the first pass; a loss without its own is divided by `targets`.
    """

    microbatches: Batch
    frames: jax.Array
    counts: Scalars


class Sums(NamedTuple):
    """The sums that a term computes from the network's outputs for a microbatch.

    Attributes:
      sums: for each loss, and for the names in `Term.extra`.
      counts: those of `Term.late`.
      of_samples: (b,), the loss of each labelled frame; None for a term without labelled frames.
    """

    sums: Scalars
    counts: Mapping[str, jax.Array] = {}
    of_samples: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class Term:
    """A term of the objective. Its functions are traced into the compiled step.

    A loss is a sum and a count, added over the global batch and divided once.

    Attributes:
      facts: its name, frames and losses.
      deal: (part of a batch, seed) to the part as a step needs it; the seed is `train.seed`, a uint32 scalar.
      inputs: (microbatch with its targets, type) to frames (q, s, h, w, 3), and which of them are counted (q, s).
      sums: (outputs for these frames, microbatch with its targets) to the sums.
      factor: (step, type) to the factor of its losses.
      targets: (definition of the network, weights, microbatch, count of frames) to the microbatch with its losses'
        targets; outside the gradient, before the frames go through the network. None: it has them.
      extra: shapes of the means that are logged next to the losses.
      counted: losses whose count is a metric.
      late: losses whose count depends on the predictions, so that a round without gradients counts them.
      move: (thresholds of confidence, means, counts) to the thresholds after a step; None for a term without them.
    """

    facts: TermFacts
    deal: Callable[[Batch, jax.Array], Dealt]
    inputs: Callable[[Batch, Any], tuple[jax.Array, jax.Array]]
    sums: Callable[[jax.Array, Batch], Sums]
    factor: Callable[[jax.Array, Any], jax.Array]
    targets: Callable[[nnx.GraphDef, Weights, Batch, jax.Array], Batch] | None = None
    extra: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    counted: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    move: Callable[[jax.Array, Scalars, Scalars], jax.Array] | None = None


# Facts about the data that the compiled step needs: fixed for a run, so they are part of the program.


@dataclasses.dataclass(frozen=True)
class DataFacts:
    """Sizes, lengths and fitted PCAs that follow from the data of a run.

    Attributes:
      size_px: (height, width) of the network's input.
      passes: microbatches per step.
      steps_per_epoch: ceil(training frames / batch size).
      total_steps: length of the training.
      has_new_head: whether the backbone started from loaded weights, but a part of the head did not.
      flip_permutation: partner of each keypoint in a flip, or None if flips are off.
      pca: the PCAs of `pca_singleview` and `pca_multiview`, by the name of the loss, if that loss is on.
      views: the subspace of the views whose maps agree (`model.views_agree`), or None.
      teacher: definition of a distillation's teacher; else None.
    """

    size_px: tuple[int, int]
    passes: int
    steps_per_epoch: int
    total_steps: int
    has_new_head: bool = False
    flip_permutation: tuple[int, ...] | None = None
    pca: dict[str, Pca] = dataclasses.field(default_factory=dict)
    views: Pca | None = None
    teacher: nnx.GraphDef | None = None
