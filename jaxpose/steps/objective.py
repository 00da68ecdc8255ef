"""The objective of a step: a tuple of terms, their counts, and their gradients summed over all passes.

A part of a step's batch is the share of one device or, with `train.shards`, one shard.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxpose.config import Config
from jaxpose.config.terms import terms
from jaxpose.model.pose_net import apply_network
from jaxpose.steps.clip_step import clip_term
from jaxpose.steps.finder import finder_term
from jaxpose.steps.labelled import labelled_term
from jaxpose.steps.state import State
from jaxpose.steps.terms import Batch, DataFacts, Scalars, Sums, Term, Weights
from jaxpose.steps.unlabelled import consistency_term, distill_term, masked_term

# The seed of a run, as an argument of its programs.
SEED = jax.ShapeDtypeStruct((), jnp.uint32)


def terms_of(config: Config, facts: DataFacts) -> tuple[Term, ...]:
    """Returns the terms of a run's objective; their order is that of the sums."""
    make = {
        "labelled": labelled_term,
        "finder": finder_term,
        "clips": clip_term,
        "consistency": consistency_term,
        "masked": masked_term,
        "distill": distill_term,
    }
    return tuple(make[known.name](known, config, facts) for known in terms(config))


def weights_of(state: State) -> Weights:
    """Returns the weights for the loss of the next step; only a term that follows the average has thresholds."""
    teacher = state.ema if state.thresholds else state.teacher
    return Weights(state.params, state.statistics, teacher, state.thresholds)


def unchanged(tree: Any) -> Any:
    """Returns the tree: the `vary` of the functions below if there are no other devices."""
    return tree


class Objective:
    """The loss of a step as a function of the weights.

    A microbatch is a dict with the arrays of each term by the name of its stream. The scalar `frames` is the number of
    frames of the global microbatch that enter the batch statistics.

    Args:
      config: the run's config.
      graphdef: definition of the network.
      facts: about the data.

    Attributes:
      terms: the terms of the loss.
      losses: names of their losses.
      late: losses whose count depends on predictions.
    """

    def __init__(self, config: Config, graphdef: nnx.GraphDef, facts: DataFacts):
        self.config, self.graphdef, self.facts = config, graphdef, facts
        self.terms = terms_of(config, facts)
        self.losses = [name for term in self.terms for name in term.facts.losses]
        self.late = [name for term in self.terms for name in term.late]

    def microbatches(self, batch: Batch, seed: jax.Array) -> tuple[dict[str, Batch], Scalars]:
        """Returns a part of a batch as microbatches, and its counts, which are whole numbers.

        These are known before the first pass: `frames`, the frames of each microbatch that enter the batch statistics;
        `targets`; and the count of each loss that has its own, except `late`.

        Args:
          batch: the part.
          seed: `train.seed`, a uint32 scalar; an argument, so that the members of an ensemble share one program.
        """
        microbatches: dict[str, Batch] = {}
        counts: Scalars = {}
        for term in self.terms:
            dealt = term.deal(batch, seed)
            microbatches[term.facts.stream.name] = dealt.microbatches
            frames = counts["frames"] + dealt.frames if counts else dealt.frames
            counts |= {"frames": frames, **dealt.counts}
        return microbatches, counts

    def count_late(
        self,
        before: Weights,
        inputs: tuple[dict[str, Batch], jax.Array],
        vary: Callable[[Any], Any] = unchanged,
    ) -> Scalars:
        """Returns this part's counts that depend on predictions.

        They are known only after all passes, so an extra round without gradients counts them. If a step has one pass,
        the compiler may merge the two rounds.

        Args:
          before: the weights.
          inputs: the microbatches and the global count of frames of each, with a first axis of passes.
          vary: marks a number as one that differs between devices.
        """

        def add(totals: Scalars, of_pass: tuple) -> tuple[Scalars, None]:
            microbatch = self._with_targets(before, *of_pass)
            outputs, _ = self._outputs(before.params, before.statistics, microbatch, of_pass[1])
            counts = {name: count for found in self._sums(outputs, microbatch) for name, count in found.counts.items()}
            return jax.tree.map(jnp.add, totals, counts), None

        totals, _ = lax.scan(add, {name: vary(jnp.zeros((), inputs[1].dtype)) for name in self.late}, inputs)
        return totals

    def summed_gradients(
        self,
        before: Weights,
        step: jax.Array,
        microbatches: dict[str, Batch],
        counts: Scalars,
        parts: int = 1,
        vary: Callable[[Any], Any] = unchanged,
    ) -> tuple[dict, dict, Scalars, jax.Array]:
        """Returns (gradients, batch statistics, means, loss of each sample): of this part, summed over the passes.

        Args:
          before: the weights.
          step: the number of steps taken before.
          microbatches: this part's.
          counts: over all parts, including those that depend on predictions.
          parts: the later divisor of the sum over all parts.
          vary: marks a number as one that differs between devices.
        """
        dtype = counts["targets"].dtype
        factors = self.factors(step, dtype)
        zero: jax.Array = vary(jnp.zeros((), dtype))
        first_means = dict.fromkeys([*factors, "loss"], zero)
        first_means |= {
            name: vary(jnp.zeros(shape, dtype)) for term in self.terms for name, shape in term.extra.items()
        }
        # In a fixed order: a set would give every process another program.
        divisors = {name: counts.get(name, counts["targets"]) for name in first_means if name != "loss"}
        shares = {name: jnp.where(count > 0, parts / jnp.maximum(count, 1), 0) for name, count in divisors.items()}
        loss = functools.partial(self._loss, factors=factors, shares=shares)

        def take_pass(carry: tuple, of_pass: tuple) -> tuple[tuple, jax.Array]:
            gradients, statistics, means = carry
            (_, (statistics, pass_means, sample_sums)), pass_gradients = jax.value_and_grad(loss, has_aux=True)(
                before.params, statistics, self._with_targets(before, *of_pass), of_pass[1]
            )
            gradients, means = jax.tree.map(jnp.add, (gradients, means), (pass_gradients, pass_means))
            return (gradients, statistics, means), sample_sums

        first = (jax.tree.map(jnp.zeros_like, before.params), before.statistics, first_means)
        (gradients, statistics, means), sample_loss = lax.scan(take_pass, first, (microbatches, counts["frames"]))
        if len(factors) == 1:
            # It equals the loss.
            del means[self.losses[0]]
        return gradients, statistics, means, sample_loss.reshape(-1)

    def factors(self, step: jax.Array, dtype: jax.typing.DTypeLike) -> Scalars:
        """Returns the factor of each loss at a step."""
        factors: Scalars = {}
        for term in self.terms:
            factor = term.factor(step, dtype)
            factors |= {name: factor if weight == 1 else factor * weight for name, weight in term.facts.losses.items()}
        return factors

    def _with_targets(self, before: Weights, microbatch: dict[str, Batch], frames: jax.Array) -> dict[str, Batch]:
        """Returns the microbatch with the targets of each term's losses."""
        made = {term.facts.stream.name: term.targets for term in self.terms if term.targets}
        return microbatch | {name: make(self.graphdef, before, microbatch[name], frames) for name, make in made.items()}

    def _outputs(
        self, params: dict, statistics: dict, microbatch: dict[str, Batch], frames: jax.Array
    ) -> tuple[list[jax.Array], dict]:
        """Returns the outputs for the frames of each term, from one call of the network, and the moved statistics."""
        inputs = [term.inputs(microbatch[term.facts.stream.name], frames.dtype) for term in self.terms]
        sequences, counted = [pictures for pictures, _ in inputs], [counted for _, counted in inputs]
        return apply_network(self.graphdef, params, statistics, sequences, counted, frames, True)

    def _sums(self, outputs: list[jax.Array], microbatch: dict[str, Batch]) -> list[Sums]:
        """Returns the sums of each term."""
        return [
            term.sums(own, microbatch[term.facts.stream.name]) for term, own in zip(self.terms, outputs, strict=True)
        ]

    def _loss(
        self,
        params: dict,
        statistics: dict,
        microbatch: dict[str, Batch],
        frames: jax.Array,
        factors: Scalars,
        shares: Scalars,
    ) -> tuple[jax.Array, tuple[dict, Scalars, jax.Array]]:
        """Returns this microbatch's part of the loss, and (moved statistics, part of each mean, sample losses).

        Args:
          params: the parameters; the gradient is with respect to these.
          statistics: the batch statistics.
          microbatch: this part's, with its targets.
          frames: see the class.
          factors: one for each loss.
          shares: for each mean, the factor from this microbatch's sum to its part of the mean over the global batch.
        """
        outputs, statistics = self._outputs(params, statistics, microbatch, frames)
        found = self._sums(outputs, microbatch)
        sums = {name: total for of_term in found for name, total in of_term.sums.items()}
        means = {name: sums[name] * share for name, share in shares.items()}
        loss = sum((factors[name] * means[name] for name in factors), jnp.zeros_like(frames))
        of_samples = [of_term.of_samples for of_term in found if of_term.of_samples is not None]
        sample_sums = of_samples[0] if of_samples else jnp.zeros((0,), frames.dtype)
        return loss, (statistics, means | {"loss": loss}, sample_sums)
