"""From the gradients of a step to the next state: optimizer, moving averages, and what happens if a number breaks."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxpose.steps import optim
from jaxpose.steps.objective import Objective
from jaxpose.steps.state import State
from jaxpose.steps.terms import Scalars, Term

Metrics = dict[str, jax.Array]


def move_state(
    state: State, gradients: dict, statistics: dict, means: Scalars, counts: Scalars, objective: Objective
) -> tuple[State, Metrics]:
    """Returns the moved state and the metrics of the step, scalars.

    If the loss, the gradient or any part of the new state is not finite, only `step` and `skipped_in_row` change.

    Args:
      state: before the step; the arguments below are of the whole step.
      gradients: of the loss.
      statistics: the moved batch statistics.
      means: `loss`, that of each loss if there are several, and what the terms have next to them.
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
    # are bounded by the squared norm. To look at it, too, would take a tenth of the step's compile time. All devices
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
    # The share that passed is one of each keypoint; the others are scalars already.
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
