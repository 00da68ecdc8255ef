"""The parts of a step that one device computes alone: a shard's counts and gradients, and the next state."""

from typing import Any

import jax

from jaxpose.steps.clip_step import Batch
from jaxpose.steps.objective import Objective, Scalars
from jaxpose.steps.passes import SEED, count_confident, microbatches_of, summed_gradients
from jaxpose.steps.pretrain_step import AnyObjective
from jaxpose.steps.state import State, Weights, weights_of
from jaxpose.steps.update import Metrics, move_state


class ShardFunctions:
    """Functions of trees of arrays, to be compiled.

    Args:
      objective: the loss.
      state: the shapes of the state.
      shard: the shapes of one shard's part of a batch.

    Attributes:
      microbatches: shapes of a shard's microbatches.
      counts: shapes of the counts.
      confident: shape of the count of `unimodal_mse`.
      sums: shapes of what is summed after a pass: gradients, losses and, with norm=shard, batch statistics.
    """

    def __init__(self, objective: AnyObjective, state: State, shard: Batch):
        self._objective = objective
        self._has_own_statistics = objective.config.model.norm == "shard"
        self.microbatches, self.counts = jax.eval_shape(self.prepare, SEED, shard)
        self.confident = self.counts["targets"]
        before = weights_of(state)
        self.sums, _ = jax.eval_shape(
            self.gradients, before, state.step, self.microbatches, self.counts, self.confident
        )

    def prepare(self, seed: jax.Array, shard: Batch) -> tuple[dict[str, Batch], Scalars]:
        """Returns a shard as microbatches, and its counts; the seed is a uint32 scalar."""
        return microbatches_of(shard, seed, self._objective.config, self._objective.facts)

    def count_confident(self, before: Weights, microbatches: dict[str, Batch], counts: Scalars) -> jax.Array:
        """Returns the shard's count of `unimodal_mse`.

        Args:
          before: the weights.
          microbatches: of the shard.
          counts: the sum over all shards.
        """
        assert isinstance(self._objective, Objective)
        return count_confident(self._objective, before, (microbatches, counts["frames"]))

    def gradients(
        self, before: Weights, step: jax.Array, microbatches: dict[str, Batch], counts: Scalars, confident: jax.Array
    ) -> tuple[dict[str, Any], jax.Array]:
        """Returns the shard's `sums`, and the loss of each of its samples.

        Args:
          before: the weights.
          step: the number of steps taken before.
          microbatches: of the shard.
          counts: the sum over all shards.
          confident: the sum of `confident` over all shards; not used without that loss.
        """
        gradients, statistics, means, sample_loss = summed_gradients(
            self._objective, before, step, microbatches, counts | {"unimodal_mse": confident}
        )
        summed = {"gradients": gradients, "means": means}
        return summed | ({"statistics": statistics} if self._has_own_statistics else {}), sample_loss

    def update(
        self, state: State, summed: dict[str, Any], counts: Scalars, confident: jax.Array
    ) -> tuple[State, Metrics]:
        """Returns the moved state and the metrics of the step, from the sums over all shards."""
        statistics = state.statistics
        if self._has_own_statistics:
            shards = self._objective.config.train.shards
            statistics = jax.tree.map(lambda leaf: leaf / shards, summed["statistics"])
        return move_state(
            state,
            summed["gradients"],
            statistics,
            summed["means"],
            counts | {"unimodal_mse": confident},
            self._objective,
        )
