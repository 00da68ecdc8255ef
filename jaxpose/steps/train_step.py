"""One update, as one compiled program: augment, network, losses, ONE reduction of the gradients, optimizer.

Every sum that crosses devices is a sum over samples divided by a global count, never a mean of means, so the result
does not depend on how the batch lies on the devices. All random numbers are keyed by the sample's draw.
"""

import dataclasses
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
from jaxpose.model.pose_net import DTYPES, MATMUL_PRECISION, apply_network
from jaxpose.pose import augment
from jaxpose.steps import clip_step, optim
from jaxpose.steps.clip_step import ClipPlan
from jaxpose.steps.optim import weight_of_step
from jaxpose.steps.outputs import supervised, used_keypoints
from jaxpose.steps.state import State

AXIS = "data"
# Streams and purposes that keep random numbers of different uses apart.
LABELLED, AUGMENTATION = 0, 0

# Arrays by name; the plan of the augmentation is a dict of its own inside.
Batch = dict[str, Any]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the step has to know of the data: fixed for a run.

    Attributes:
      size_px: (height, width) of the network's input.
      passes: micro-batches per step.
      steps_per_epoch: ceil(training frames / batch size).
      total_steps: length of the training.
      has_new_head: whether the backbone started from loaded weights, and a part of the head did not.
      flip_permutation: partner of each keypoint in a flip, or None where flips are off.
      clips: what is known of the unlabelled clips, or None where no loss is on them.
    """

    size_px: tuple[int, int]
    passes: int
    steps_per_epoch: int
    total_steps: int
    has_new_head: bool = False
    flip_permutation: tuple[int, ...] | None = None
    clips: ClipPlan | None = None


def build_train_step(
    config: Config, graphdef: nnx.GraphDef, mesh: Mesh, plan: Plan
) -> Callable[[State, Batch], tuple[State, Metrics]]:
    """Returns the jitted update (state, batch) -> (state, metrics); the state is donated.

    The batch is a labelled batch and, where a loss is on clips, a batch of `clips` in it (see docs/data.md), sharded
    over its leading axis, each device's rows being (micro-batches x slots) in the order of `slots` and `pieces`. The
    metrics are replicated scalars, but `sample_loss`, which lies as the batch does. With clips there are the
    supervised loss alone, the factor of annealing and, of each loss on clips, its mean `<name>` and `<name>_count`.
    """

    def update(state: State, batch: Batch) -> tuple[State, Metrics]:
        with jax.default_matmul_precision(MATMUL_PRECISION[config.train.precision]):
            return _update(state, batch, config, graphdef, plan)

    specs = {**dict.fromkeys(_metric_names(plan), P()), "sample_loss": P(AXIS)}
    sharded = jax.shard_map(update, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=(P(), specs))
    return jax.jit(sharded, donate_argnums=0)


def _metric_names(plan: Plan) -> list[str]:
    names = ["loss", "targets", "gradient_norm", "learning_rate", "backbone_learning_rate", "skipped_in_row"]
    if plan.clips:
        names += ["supervised_loss", "clip_factor"]
        names += [name + ending for name in plan.clips.weights for ending in ("", "_count")]
    return names


def _update(state: State, batch: Batch, config: Config, graphdef: nnx.GraphDef, plan: Plan) -> tuple[State, Metrics]:
    pieces, counts = _prepare(batch, config, plan)
    gradients, statistics, found, sample_loss = _gradients(state, pieces, counts, config, graphdef, plan)
    state, metrics = _apply(state, gradients, statistics, found["loss"], config, plan)
    metrics |= found | {"targets": counts["targets"], "sample_loss": sample_loss}
    return state, metrics


def _prepare(batch: Batch, config: Config, plan: Plan) -> tuple[dict[str, Batch], dict[str, jax.Array]]:
    """Returns the batch as micro-batches with its keypoints augmented, and the global counts (one small reduction).

    The counts are known before the first pass: `targets`, the used keypoints; `frames`, those of each micro-batch that
    reach the batch statistics; and the terms of each loss on clips, but `unimodal_mse`, which has its own reduction.
    """
    dtype = DTYPES[config.train.precision][1]
    valid = batch["valid"]
    keys = augment.sample_keys(config.train.seed, LABELLED, batch["draw"], AUGMENTATION)
    identity = jnp.eye(2, 3, dtype=dtype)[None]
    # What lies in an empty slot is anything at all: it is replaced before any arithmetic.
    frame_from_input = jnp.where(valid[:, None, None], batch["frame_from_input"].astype(dtype), identity)
    drawn = augment.plan(keys, config.augment, frame_from_input, plan.size_px)
    keypoints_px = jnp.where(valid[:, None, None], batch["keypoints_px"].astype(dtype), 0)
    visibility = jnp.where(valid[:, None], batch["visibility"], 0)
    keypoints_px, visibility = augment.move_keypoints(
        drawn, config.augment, keypoints_px, visibility, plan.flip_permutation
    )
    visibility = used_keypoints(keypoints_px, visibility, plan.size_px, config.model)
    labelled = {
        "frames": jnp.where(valid[:, None, None, None, None], batch["frames"], jnp.uint8(0)),
        "keypoints_px": keypoints_px,
        "visibility": visibility,
        "frame_from_input": frame_from_input,
        "valid": valid,
        "plan": drawn,
    }
    pieces = {"labelled": jax.tree.map(lambda leaf: leaf.reshape(plan.passes, -1, *leaf.shape[1:]), labelled)}
    counts = {
        "targets": jnp.sum(visibility > 0, dtype=dtype),
        "frames": jnp.sum(pieces["labelled"]["valid"], 1, dtype=dtype) * batch["frames"].shape[1],
    }
    if plan.clips:
        clips = clip_step.prepare(batch["clips"], config, plan.clips, plan.passes)
        pieces["clips"] = clips
        counts["frames"] += jnp.sum(clips["counted"], (1, 2), dtype=dtype) * batch["clips"]["frames"].shape[1]
        counts |= clip_step.known_counts(clips, config, plan.clips)
    vector, restore = ravel_pytree(counts)
    return pieces, restore(lax.psum(vector, AXIS))


def _gradients(
    state: State, pieces: dict[str, Batch], counts: dict[str, jax.Array], config: Config, graphdef: nnx.GraphDef,
    plan: Plan,
) -> tuple[dict, dict, dict[str, jax.Array], jax.Array]:  # fmt: skip
    """Returns (gradients, moved statistics, losses, loss of each sample): one reduction, after all passes."""
    devices = lax.axis_size(AXIS)
    # Varying copies: with replicated parameters the gradient would already be a sum over devices, and the mean below
    # would be too large by their number, silently.
    params = lax.pcast(state.params, AXIS, to="varying")
    local_statistics = config.model.norm == "local"
    statistics = lax.pcast(state.statistics, AXIS, to="varying") if local_statistics else state.statistics

    def see(params: dict, statistics: dict, piece: dict[str, Batch], count: jax.Array) -> tuple[list[jax.Array], dict]:
        labelled = piece["labelled"]
        frames = augment.render(labelled["plan"], config.augment, labelled["frames"], count.dtype)
        sequences, counted = [frames], [jnp.repeat(labelled["valid"][:, None], frames.shape[1], axis=1)]
        if plan.clips:
            for group, more in zip(
                (sequences, counted), clip_step.network_input(piece["clips"], config, count.dtype), strict=True
            ):
                group.append(more)
        return apply_network(graphdef, params, statistics, sequences, counted, count, True)

    def terms(outputs: list[jax.Array], piece: dict[str, Batch]) -> tuple[dict[str, jax.Array], jax.Array, dict]:
        labelled = piece["labelled"]
        sample_sums, _ = supervised(
            outputs[0],
            labelled["keypoints_px"],
            labelled["visibility"],
            labelled["frame_from_input"],
            plan.size_px,
            config.model,
        )
        sums, late_counts = {"supervised_loss": jnp.sum(sample_sums)}, {}
        if plan.clips:
            clip_sums, late_counts = clip_step.loss_sums(outputs[1], piece["clips"], config, plan.clips)
            sums |= clip_sums
        return sums, sample_sums, late_counts

    counts = {"supervised_loss": counts["targets"]} | counts
    if plan.clips and "unimodal_mse" in plan.clips.weights:
        # How many maps are sure enough is known once all passes are done: one round without gradients counts them.
        # Of a step of one pass the compiler makes no second round.
        def count_sure(total: jax.Array, inputs: tuple) -> tuple[jax.Array, None]:
            outputs, _ = see(params, statistics, *inputs)
            return total + terms(outputs, inputs[0])[2]["unimodal_mse"], None

        zero = lax.pcast(jnp.zeros((), counts["targets"].dtype), AXIS, to="varying")
        sure, _ = lax.scan(count_sure, zero, (pieces, counts["frames"]))
        counts["unimodal_mse"] = lax.psum(sure, AXIS)
    weights = {"supervised_loss": jnp.ones((), counts["targets"].dtype)}
    if plan.clips:
        factor = weight_of_step(config.losses, state.step, plan.steps_per_epoch).astype(counts["targets"].dtype)
        weights |= {name: factor * weight for name, weight in plan.clips.weights.items()}
    # Times the devices, as their gradients are averaged.
    shares = {name: jnp.where(counts[name] > 0, devices / jnp.maximum(counts[name], 1), 0) for name in weights}

    def loss_of(params: dict, statistics: dict, piece: dict[str, Batch], count: jax.Array) -> tuple[jax.Array, tuple]:
        outputs, statistics = see(params, statistics, piece, count)
        sums, sample_sums, _ = terms(outputs, piece)
        means = {name: sums[name] * shares[name] for name in weights}
        loss = sum((weights[name] * mean for name, mean in means.items()), jnp.zeros_like(count))
        return loss, (statistics, means | {"loss": loss}, sample_sums)

    def one_pass(carry: tuple, inputs: tuple) -> tuple[tuple, jax.Array]:
        gradients, statistics, found = carry
        (_, (statistics, means, sample_sums)), piece_gradients = jax.value_and_grad(loss_of, has_aux=True)(
            params, statistics, *inputs
        )
        gradients, found = jax.tree.map(jnp.add, (gradients, found), (piece_gradients, means))
        return (gradients, statistics, found), sample_sums

    zero = lax.pcast(jnp.zeros((), counts["targets"].dtype), AXIS, to="varying")
    start = (jax.tree.map(jnp.zeros_like, params), statistics, dict.fromkeys([*weights, "loss"], zero))
    (gradients, statistics, found), sample_loss = lax.scan(one_pass, start, (pieces, counts["frames"]))
    # As one vector: reductions of single tensors would be merged into those of the norm layers, here one and there one.
    if not plan.clips:
        # It is the loss itself.
        del found["supervised_loss"]
    vector, restore = ravel_pytree((gradients, found, statistics if local_statistics else {}))
    gradients, found, mean_statistics = restore(lax.pmean(vector, AXIS))
    if local_statistics:
        statistics = mean_statistics
    if plan.clips:
        found |= {"clip_factor": factor} | {f"{name}_count": counts[name] for name in plan.clips.weights}
    return gradients, statistics, found, sample_loss.reshape(-1)


def _all_finite(tree: Any) -> jax.Array:
    """Returns whether every number of a tree of arrays is finite.

    By its norm, for XLA compiles the products of hundreds of arrays in 2 s and their `isfinite` in minutes.
    """
    # So small that no square overflows.
    return jnp.isfinite(
        optax.tree.norm(
            [leaf * 2.0**-100 for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        )
    )


def _choose(condition: jax.Array, yes: Any, no: Any) -> Any:
    """Returns one of two trees of arrays, bit for bit.

    By a branch on CPU, where XLA would compute the condition again in the selection of each of hundreds of arrays,
    which is a third of what the step takes to compile. A GPU would stop at a branch until the host knows the condition.
    """

    def select(condition: jax.Array, yes: Any, no: Any) -> Any:
        return jax.tree.map(lambda x, y: jnp.where(condition, x, y), yes, no)

    def branch(condition: jax.Array, yes: Any, no: Any) -> Any:
        return lax.cond(condition, lambda: yes, lambda: no)

    return lax.platform_dependent(condition, yes, no, cpu=branch, default=select)


def _apply(
    state: State, gradients: dict, statistics: dict, loss: jax.Array, config: Config, plan: Plan
) -> tuple[State, Metrics]:
    """Returns the moved state and its metrics.

    Where the loss, the gradient or anything of the new state is not finite, `step` and `skipped_in_row` alone move.
    """
    head_rate, backbone_rate = optim.learning_rates(
        state.step,
        config.optim,
        batch_size=config.train.batch_size,
        steps_per_epoch=plan.steps_per_epoch,
        total_steps=plan.total_steps,
        has_new_head=plan.has_new_head,
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
    # A finite gradient may still overflow: times a large rate, or squared by Adam. All devices hold the same state, so
    # this needs no collective.
    finite = jnp.isfinite(loss) & jnp.isfinite(norm) & _all_finite(moved)
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
