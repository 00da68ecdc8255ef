"""One update, as one compiled program: augment, network, losses, ONE reduction of the gradients, optimizer.

Every sum that crosses devices is a sum over samples divided by a global count, never a mean of means, so the result
does not depend on how the batch lies on the devices. All random numbers are keyed by the sample's draw.
"""

import dataclasses
import functools
from collections.abc import Callable
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
from jaxpose.config.losses import weights
from jaxpose.config.mesh import AXIS
from jaxpose.model.pose_net import DTYPES, MATMUL_PRECISION
from jaxpose.pose import augment
from jaxpose.steps import clip_step, optim
from jaxpose.steps.clip_step import Batch
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.objective import Objective, Scalars
from jaxpose.steps.outputs import used_keypoints
from jaxpose.steps.state import State

# Streams and purposes that keep random numbers of different uses apart.
LABELLED, AUGMENTATION = 0, 0

Metrics = dict[str, jax.Array]


def build_train_step(
    config: Config, graphdef: nnx.GraphDef, mesh: Mesh, facts: DataFacts
) -> Callable[[State, Batch], tuple[State, Metrics]]:
    """Returns the jitted update (state, batch) -> (state, metrics); the state is donated.

    The batch is a labelled batch (see docs/data.md); with a loss on clips, it contains a batch of `clips`. It is
    sharded over its first axis; the rows of a device are (microbatches x slots) in the order of `slots` and
    `clip_shards`. The metrics are replicated scalars, except `sample_loss`, which is sharded like the batch. A loss on
    clips adds `supervised_loss`, the annealing factor `clip_factor`, its mean `<name>` and its `<name>_count`.
    """

    def update(state: State, batch: Batch) -> tuple[State, Metrics]:
        with jax.default_matmul_precision(MATMUL_PRECISION[config.train.precision]):
            return _update(state, batch, config, graphdef, facts)

    specs = {**dict.fromkeys(_metric_names(config), P()), "sample_loss": P(AXIS)}
    sharded = jax.shard_map(update, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=(P(), specs))
    return jax.jit(sharded, donate_argnums=0)


def _metric_names(config: Config) -> list[str]:
    names = ["loss", "targets", "gradient_norm", "learning_rate", "backbone_learning_rate", "skipped_in_row"]
    if on_clips := weights(config.losses):
        names += ["supervised_loss", "clip_factor"]
        names += [name + ending for name in on_clips for ending in ("", "_count")]
    return names


def _update(
    state: State, batch: Batch, config: Config, graphdef: nnx.GraphDef, facts: DataFacts
) -> tuple[State, Metrics]:
    microbatches, counts = _microbatches(batch, config, facts)
    objective = Objective(config, graphdef, facts)
    gradients, statistics, means, sample_loss = _gradients(state, microbatches, counts, objective)
    state, metrics = _apply(state, gradients, statistics, means["loss"], config, facts)
    metrics |= means | {"targets": counts["targets"], "sample_loss": sample_loss}
    return state, metrics


def _microbatches(batch: Batch, config: Config, facts: DataFacts) -> tuple[dict[str, Batch], dict[str, jax.Array]]:
    """Returns the batch as microbatches with its keypoints augmented, and the global counts (one small reduction).

    These counts are known before the first pass: `targets`, the used keypoints; `frames`, the frames of each microbatch
    that enter the batch statistics; and the terms of each loss on clips, except `unimodal_mse`.
    """
    dtype = DTYPES[config.train.precision][1]
    valid = batch["valid"]
    keys = augment.sample_keys(config.train.seed, LABELLED, batch["draw"], AUGMENTATION)
    identity = jnp.eye(2, 3, dtype=dtype)[None]
    # An empty slot may hold any bytes, even NaN: replace them before any arithmetic.
    frame_from_input = jnp.where(valid[:, None, None], batch["frame_from_input"].astype(dtype), identity)
    drawn = augment.draw_params(keys, config.augment, frame_from_input, facts.size_px)
    keypoints_px = jnp.where(valid[:, None, None], batch["keypoints_px"].astype(dtype), 0)
    visibility = jnp.where(valid[:, None], batch["visibility"], 0)
    keypoints_px, visibility = augment.move_keypoints(
        drawn, config.augment, keypoints_px, visibility, facts.flip_permutation
    )
    visibility = used_keypoints(keypoints_px, visibility, facts.size_px, config.model)
    labelled = {
        "frames": jnp.where(valid[:, None, None, None, None], batch["frames"], jnp.uint8(0)),
        "keypoints_px": keypoints_px,
        "visibility": visibility,
        "frame_from_input": frame_from_input,
        "valid": valid,
        "params": drawn,
    }
    microbatches = {"labelled": jax.tree.map(lambda leaf: leaf.reshape(facts.passes, -1, *leaf.shape[1:]), labelled)}
    counts = {
        "targets": jnp.sum(visibility > 0, dtype=dtype),
        "frames": jnp.sum(microbatches["labelled"]["valid"], 1, dtype=dtype) * batch["frames"].shape[1],
    }
    if weights(config.losses):
        clips = clip_step.clip_microbatches(batch["clips"], config, facts.passes)
        microbatches["clips"] = clips
        counts["frames"] += jnp.sum(clips["counted"], (1, 2), dtype=dtype) * batch["clips"]["frames"].shape[1]
        counts |= clip_step.known_counts(clips, config, facts.pca)
    vector, restore = ravel_pytree(counts)
    return microbatches, restore(lax.psum(vector, AXIS))


def _gradients(
    state: State, microbatches: dict[str, Batch], counts: Scalars, objective: Objective
) -> tuple[dict, dict, dict, jax.Array]:
    """Returns (gradients, moved statistics, losses, loss of each sample): one reduction, after all passes."""
    losses, dtype = objective.config.losses, counts["targets"].dtype
    # Make varying copies. With replicated parameters, the gradient would already be a sum over the devices, and the
    # mean below would silently be too large by their number.
    params = lax.pcast(state.params, AXIS, to="varying")
    has_local_statistics = objective.config.model.norm == "local"
    statistics = lax.pcast(state.statistics, AXIS, to="varying") if has_local_statistics else state.statistics
    counts = {"supervised_loss": counts["targets"]} | counts
    if "unimodal_mse" in weights(losses):
        counts["unimodal_mse"] = objective.count_confident(params, statistics, microbatches, counts["frames"])
    factors, annealing = objective.factors(state.step, dtype)
    # Times the number of devices, because their gradients are averaged.
    devices = lax.axis_size(AXIS)
    shares = {name: jnp.where(counts[name] > 0, devices / jnp.maximum(counts[name], 1), 0) for name in factors}
    loss = functools.partial(objective.loss, factors=factors, shares=shares)
    inputs = microbatches, counts["frames"]
    gradients, statistics, means, sample_loss = _sum_passes(loss, [*factors, "loss"], params, statistics, inputs)
    if not weights(losses):
        # Without clips, it equals the loss.
        del means["supervised_loss"]
    sums = (gradients, means, statistics if has_local_statistics else {})
    # Reduce one vector: XLA would merge reductions of single tensors with those of the norm layers. With one device
    # nothing is sent, so the copy into a vector would only take time.
    vector, restore = ravel_pytree(sums) if devices > 1 else (sums, lambda averaged: averaged)
    gradients, reduced, mean_statistics = restore(lax.pmean(vector, AXIS))
    metrics = dict(reduced)
    if has_local_statistics:
        statistics = mean_statistics
    metrics |= annealing | {f"{name}_count": counts[name] for name in weights(losses)}
    return gradients, statistics, metrics, sample_loss.reshape(-1)


def _sum_passes(
    loss: Callable, names: list[str], params: dict, statistics: dict, inputs: tuple[dict[str, Batch], jax.Array]
) -> tuple[dict, dict, dict, jax.Array]:
    """Returns (summed gradients, statistics after the last pass, summed means, sample losses (passes, b)).

    Args:
      loss: `Objective.loss` with its factors and shares.
      names: of the means that the loss returns.
      params: the parameters, varying over the devices.
      statistics: the batch statistics before the first pass.
      inputs: the microbatches and the frames of each, with a first axis of passes.
    """

    def take_pass(carry: tuple, of_pass: tuple) -> tuple[tuple, jax.Array]:
        gradients, statistics, means = carry
        (_, (statistics, pass_means, sample_sums)), pass_gradients = jax.value_and_grad(loss, has_aux=True)(
            params, statistics, *of_pass
        )
        gradients, means = jax.tree.map(jnp.add, (gradients, means), (pass_gradients, pass_means))
        return (gradients, statistics, means), sample_sums

    zero = lax.pcast(jnp.zeros((), inputs[1].dtype), AXIS, to="varying")
    first = (jax.tree.map(jnp.zeros_like, params), statistics, dict.fromkeys(names, zero))
    (gradients, statistics, means), sample_loss = lax.scan(take_pass, first, inputs)
    return gradients, statistics, means, sample_loss


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


def _apply(
    state: State, gradients: dict, statistics: dict, loss: jax.Array, config: Config, facts: DataFacts
) -> tuple[State, Metrics]:
    """Returns the moved state and its metrics.

    If the loss, the gradient or any part of the new state is not finite, only `step` and `skipped_in_row` change.
    """
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
    if ema:
        now = {"params": params, "statistics": statistics}
        ema = optim.moving_average(ema, now, config.optim.ema_decay, state.step)
    moved = (params, statistics, optimizer, ema)
    kept = (state.params, state.statistics, state.optimizer, state.ema)
    # A finite gradient may still overflow, times a large rate. The optimizer's state cannot: the squared norm bounds
    # its squares and averages, and looking at it would take a tenth of the step's compile time. All devices hold the
    # same state, so this needs no reduction.
    finite = jnp.isfinite(loss) & jnp.isfinite(norm) & _all_finite((params, statistics, ema))
    params, statistics, optimizer, ema = _choose(finite, moved, kept)
    state = dataclasses.replace(
        state,
        step=state.step + 1,
        params=params,
        statistics=statistics,
        optimizer=optimizer,
        ema=ema,
        skipped_in_row=jnp.where(finite, 0, state.skipped_in_row + 1),
    )
    return state, {
        "gradient_norm": norm,
        "learning_rate": head_rate,
        "backbone_learning_rate": backbone_rate,
        "skipped_in_row": state.skipped_in_row,
    }
