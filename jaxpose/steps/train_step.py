"""One update, as one compiled program: augment, network, losses, ONE reduction of the gradients, optimizer.

Every sum across devices is a sum over samples divided by a global count, never a mean of means, so the result does not
depend on the distribution of the batch over devices, except by rounding. All random numbers are keyed by the sample's
draw. With `train.shards`, see `jaxpose.steps.sharded_step`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxpose.config import Config
from jaxpose.config.model import norm_of
from jaxpose.config.train import AXIS
from jaxpose.model.pose_net import MATMUL_PRECISION
from jaxpose.steps import optim
from jaxpose.steps.objective import Objective, weights_of
from jaxpose.steps.state import State
from jaxpose.steps.terms import Batch, DataFacts, Scalars, Term

# From the gradients of a step to the next state: optimizer, moving averages, and the response to numbers that are not
# finite.

Metrics = dict[str, jax.Array]


def move_state(
    state: State, gradients: dict, statistics: dict, means: Scalars, counts: Scalars, objective: Objective
) -> tuple[State, Metrics]:
    """Returns the moved state and the metrics of the step, scalars.

    If the loss, the gradient or any part of the new state is not finite, only `step` and `skipped_in_row` change.

    Args:
      state: before the step; the arguments below are of the whole step.
      gradients: the loss's.
      statistics: the moved batch statistics.
      means: `loss`, that of each loss if there are several, and the terms' extra means.
      counts: `targets`, and that of each loss with a count of its own.
      objective: the loss.
    """
    config, facts, moved_from = objective.config, objective.facts, state.step
    head_rate, backbone_rate = optim.learning_rates(
        state.step,
        config.optim,
        batch_size=config.train.batch_size,
        steps_per_epoch=facts.steps_per_epoch,
        total_steps=facts.total_steps,
        has_new_head=facts.has_new_head,
    )
    norm = optax.tree.norm(gradients)
    directions, optimizer = optim.make_optimizer(config.optim).update(gradients, state.optimizer, state.params)
    params = optim.apply_directions(state.params, directions, head_rate, backbone_rate)
    ema = state.ema
    if ema and (decay := config.optim.ema_decay):
        now = {"params": params, "statistics": statistics}
        ema = optim.moving_average(ema, now, decay, state.step)
    movers = {term.facts.name: term.move for term in objective.terms if term.move}
    thresholds = {name: moved(state.thresholds[name], means, counts) for name, moved in movers.items()}
    moved = (params, statistics, optimizer, ema, thresholds)
    kept = (state.params, state.statistics, state.optimizer, state.ema, state.thresholds)
    # A finite gradient may still overflow, times a large rate. The optimizer's state cannot: its squares and averages
    # are bounded by the squared norm. Checking it as well would take a tenth of the step's compile time. All devices
    # hold the same state, so this needs no reduction.
    finite = jnp.isfinite(means["loss"]) & jnp.isfinite(norm) & _all_finite((params, statistics, ema))
    params, statistics, optimizer, ema, thresholds = _choose(finite, moved, kept)
    state = dataclasses.replace(
        state,
        step=state.step + 1,
        params=params,
        statistics=statistics,
        optimizer=optimizer,
        ema=ema,
        thresholds=thresholds,
        skipped_in_row=jnp.where(finite, 0, state.skipped_in_row + 1),
    )
    metrics = {
        "gradient_norm": norm,
        "learning_rate": head_rate,
        "backbone_learning_rate": backbone_rate,
        "skipped_in_row": state.skipped_in_row,
        "targets": counts["targets"],
    }
    # The share that passed has a number per keypoint; the others are scalars already.
    metrics |= {name: jnp.mean(mean) for name, mean in means.items()} | _of_terms(objective.terms, moved_from, counts)
    return state, metrics


def _of_terms(terms: Sequence[Term], step: jax.Array, counts: Scalars) -> Metrics:
    """Returns the factors at a step and the counts that terms log."""
    metrics: Metrics = {}
    for term in terms:
        if term.facts.factor:
            metrics[term.facts.factor] = term.factor(step, counts["targets"].dtype)
        metrics |= {f"{name}_count": counts[name] for name in term.counted}
    return metrics


def metric_names(objective: Objective) -> list[str]:
    """Returns the names of the metrics of a step, except `sample_loss`."""
    names = ["loss", "targets", "gradient_norm", "learning_rate", "backbone_learning_rate", "skipped_in_row"]
    if len(objective.losses) > 1:
        names += objective.losses
    for term in objective.terms:
        names += [*term.extra, *(f"{name}_count" for name in term.counted)]
        names += [term.facts.factor] * bool(term.facts.factor)
    return names


def _all_finite(tree: Any) -> jax.Array:
    """Returns whether every number of a tree of arrays is finite.

    This uses the norm: XLA compiles the products of hundreds of arrays in 2 s, but their `isfinite` in minutes.
    """
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    # Scaled down so that no square overflows.
    return jnp.isfinite(optax.tree.norm([leaf * 2.0**-100 for leaf in leaves]))


def _choose(condition: jax.Array, yes: Any, no: Any) -> Any:
    """Returns one of two trees of arrays, bit for bit.

    On CPU this is a branch: in a selection, XLA would compute the condition again for each of hundreds of arrays, a
    third of the step's compile time. On GPU it is a selection: a branch would wait until the host knows the condition.
    """

    def select(condition: jax.Array, yes: Any, no: Any) -> Any:
        return jax.tree.map(lambda x, y: jnp.where(condition, x, y), yes, no)

    def branch(condition: jax.Array, yes: Any, no: Any) -> Any:
        return lax.cond(condition, lambda: yes, lambda: no)

    return lax.platform_dependent(condition, yes, no, cpu=branch, default=select)


# The mean over all devices, in few calls that may begin before the last gradient is known.

# Every call adds latency, so there are few. XLA joins calls of less than 30 MB in total on GPU; two of these are more.
_BUCKETS, _LEAST_BYTES = 4, 20_000_000


def mean_over_devices(tree: Any) -> Any:
    """Returns the mean of a tree of arrays over the devices of AXIS, equal on all of them.

    The arrays are joined in buckets, the last ones first, because the backward pass makes them in this order: while one
    bucket is sent, the next is computed. XLA would merge single arrays with the reductions of norm layers.
    """
    if lax.axis_size(AXIS) == 1:
        # Nothing is sent, so copies into buckets would only take time.
        return lax.pmean(tree, AXIS)
    leaves, structure = jax.tree.flatten(tree)
    means: list[jax.Array] = []
    for bucket in _buckets(leaves[::-1]):
        vector, restore = ravel_pytree(bucket)
        means += restore(lax.pmean(vector, AXIS))
    return jax.tree.unflatten(structure, means[::-1])


def _buckets(leaves: list[jax.Array]) -> list[list[jax.Array]]:
    """Returns the arrays, in order, in lists of about the same number of bytes."""
    all_bytes = sum(leaf.nbytes for leaf in leaves)
    count = max(1, min(_BUCKETS, all_bytes // _LEAST_BYTES))
    buckets: list[list[jax.Array]] = [[] for _ in range(count)]
    before = 0
    for leaf in leaves:
        # By the middle of the array, so that no bucket exceeds its share by more than half an array.
        buckets[int((before + leaf.nbytes / 2) * count / max(all_bytes, 1))].append(leaf)
        before += leaf.nbytes
    return [bucket for bucket in buckets if bucket]


def build_train_step(
    config: Config, graphdef: nnx.GraphDef, mesh: Mesh, facts: DataFacts
) -> Callable[[State, Batch, jax.Array], tuple[State, Metrics]]:
    """Returns the jitted update (state, batch, seed) -> (state, metrics); the state is donated.

    The batch is a labelled batch (see docs/data.md), which contains a batch of each other stream of the objective. It
    is sharded over its first axis; the rows of a device are (microbatches x slots) in the order of `slots` and
    `clip_shards`. The seed is `train.seed`, a uint32 scalar. The metrics are replicated scalars (see `metric_names`),
    except `sample_loss`, which is sharded like the batch.

    Raises:
      ValueError: the network has a norm over shards.
    """

    if norm_of(config.model) == "shard":
        raise ValueError("model.norm=shard needs shards: see ShardedStep")

    objective = Objective(config, graphdef, facts)

    def update(state: State, batch: Batch, seed: jax.Array) -> tuple[State, Metrics]:
        with jax.default_matmul_precision(MATMUL_PRECISION[config.train.precision]):
            return _update(state, batch, seed, objective)

    specs = {**dict.fromkeys(metric_names(objective), P()), "sample_loss": P(AXIS)}
    sharded = jax.shard_map(update, mesh=mesh, in_specs=(P(), P(AXIS), P()), out_specs=(P(), specs))
    return jax.jit(sharded, donate_argnums=0)


def _update(state: State, batch: Batch, seed: jax.Array, objective: Objective) -> tuple[State, Metrics]:
    def vary(tree: Any) -> Any:
        return lax.pcast(tree, AXIS, to="varying")

    microbatches, counts = objective.microbatches(batch, seed)
    vector, restore = ravel_pytree(counts)
    counts = restore(lax.psum(vector, AXIS))
    # Make varying copies. With replicated parameters, the gradient would already be a sum over the devices, and the
    # mean below would silently be too large by their number.
    before = weights_of(state)
    before = before._replace(params=vary(before.params))
    if objective.late:
        late = objective.count_late(before, (microbatches, counts["frames"]), vary)
        counts |= lax.psum(late, AXIS)
    gradients, statistics, means, sample_loss = objective.summed_gradients(
        before, state.step, microbatches, counts, lax.axis_size(AXIS), vary
    )
    gradients, means = mean_over_devices((gradients, means))
    state, metrics = move_state(state, gradients, statistics, means, counts, objective)
    return state, metrics | {"sample_loss": sample_loss}
