"""The parts of a step that one device computes alone: a shard's counts and gradients, and the next state."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxpose.steps.clip_step import Batch
from jaxpose.steps.objective import Objective, Scalars
from jaxpose.steps.passes import count_confident, microbatches_of, summed_gradients
from jaxpose.steps.state import State
from jaxpose.steps.update import Metrics, move_state

Weights = tuple[dict, dict]


class ShardFunctions:
    """Functions of arrays, to be compiled. What is summed over all shards is one vector of each shard.

    Args:
      objective: the loss.
      state: the shapes of the state.
      shard: the shapes of one shard's part of a batch.

    Attributes:
      microbatches: shapes of a shard's microbatches.
      counts: shape of the vector of counts.
      sums: shape of the vector of gradients, losses and, with norm=shard, batch statistics.
    """

    def __init__(self, objective: Objective, state: State, shard: Batch):
        self._objective = objective
        self._has_own_statistics = objective.config.model.norm == "shard"
        self.microbatches, self._counts_tree = jax.eval_shape(self._microbatches, shard)
        self.counts = jax.eval_shape(_packed, self._counts_tree)
        before = (state.params, state.statistics)
        confident = self.counts.update(shape=())
        self._sums_tree, _ = jax.eval_shape(self._summed, before, state.step, self.microbatches, self.counts, confident)
        self.sums = jax.eval_shape(_packed, self._sums_tree)

    def prepare(self, shard: Batch) -> tuple[dict[str, Batch], jax.Array]:
        """Returns a shard as microbatches, and the vector of its counts."""
        microbatches, counts = self._microbatches(shard)
        return microbatches, _packed(counts)

    def confident(self, before: Weights, microbatches: dict[str, Batch], counts: jax.Array) -> jax.Array:
        """Returns the shard's count of `unimodal_mse`, (1,).

        Args:
          before: parameters and batch statistics.
          microbatches: of the shard.
          counts: the sum over all shards.
        """
        frames = _unpacked(counts, self._counts_tree)["frames"]
        return count_confident(self._objective, before, (microbatches, frames)).reshape(1)

    def gradients(
        self, before: Weights, step: jax.Array, microbatches: dict[str, Batch], counts: jax.Array, confident: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the shard's vector of `sums`, and the loss of each of its samples.

        Args:
          before: parameters and batch statistics.
          step: the number of steps taken before.
          microbatches: of the shard.
          counts: the sum over all shards.
          confident: the sum of `confident` over all shards; not used without that loss.
        """
        summed, sample_loss = self._summed(before, step, microbatches, counts, confident)
        return _packed(summed), sample_loss

    def update(self, state: State, sums: jax.Array, counts: jax.Array, confident: jax.Array) -> tuple[State, Metrics]:
        """Returns the moved state and the metrics of the step, from the sums over all shards."""
        summed, statistics = _unpacked(sums, self._sums_tree), state.statistics
        if self._has_own_statistics:
            shards = self._objective.config.train.shards
            statistics = jax.tree.map(lambda leaf: leaf / shards, summed["statistics"])
        return move_state(
            state,
            summed["gradients"],
            statistics,
            summed["means"],
            self._all_counts(counts, confident),
            self._objective,
        )

    def _microbatches(self, shard: Batch) -> tuple[dict[str, Batch], Scalars]:
        return microbatches_of(shard, self._objective.config, self._objective.facts)

    def _all_counts(self, counts: jax.Array, confident: jax.Array) -> Scalars:
        return _unpacked(counts, self._counts_tree) | {"unimodal_mse": confident.reshape(())}

    def _summed(
        self, before: Weights, step: jax.Array, microbatches: dict[str, Batch], counts: jax.Array, confident: jax.Array
    ) -> tuple[dict[str, Any], jax.Array]:
        gradients, statistics, means, sample_loss = summed_gradients(
            self._objective, before, step, microbatches, self._all_counts(counts, confident)
        )
        summed = {"gradients": gradients, "means": means}
        return summed | ({"statistics": statistics} if self._has_own_statistics else {}), sample_loss


def _packed(tree: Any) -> jax.Array:
    """Returns the numbers of a tree of arrays of one type as one vector."""
    return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(tree)])


def _unpacked(vector: jax.Array, tree: Any) -> Any:
    """Returns the numbers of a vector as a tree of these shapes."""
    shapes, structure = jax.tree.flatten(tree)
    leaves, first = [], 0
    for shape in shapes:
        leaves.append(vector[first : first + shape.size].reshape(shape.shape))
        first += shape.size
    return jax.tree.unflatten(structure, leaves)
