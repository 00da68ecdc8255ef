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

from jaxpose import geometry
from jaxpose.config import Config
from jaxpose.model.pose_net import DTYPES, MATMUL_PRECISION, apply_network
from jaxpose.pose import augment, heatmap, losses
from jaxpose.training import optim
from jaxpose.training.state import State

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
      loaded_weights: whether the backbone started from loaded weights.
      flip_permutation: partner of each keypoint in a flip, or None where flips are off.
    """

    size_px: tuple[int, int]
    passes: int
    steps_per_epoch: int
    total_steps: int
    loaded_weights: bool = False
    flip_permutation: tuple[int, ...] | None = None


def build_train_step(
    config: Config, graphdef: nnx.GraphDef, mesh: Mesh, plan: Plan
) -> Callable[[State, Batch], tuple[State, Metrics]]:
    """Returns the jitted update (state, batch) -> (state, metrics); the state is donated.

    The batch is a labelled batch (see docs/data.md) sharded over its leading axis, each device's rows being
    (micro-batches x slots) in the order of `slots`. The metrics are replicated scalars, but `sample_loss`, which lies
    as the batch does.
    """

    def update(state: State, batch: Batch) -> tuple[State, Metrics]:
        with jax.default_matmul_precision(MATMUL_PRECISION[config.train.precision]):
            return _update(state, batch, config, graphdef, plan)

    sharded = jax.shard_map(update, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=(P(), _metric_specs()))
    return jax.jit(sharded, donate_argnums=0)


def _metric_specs() -> dict[str, P]:
    names = ("loss", "targets", "gradient_norm", "learning_rate", "backbone_learning_rate", "skipped_in_row")
    return {**dict.fromkeys(names, P()), "sample_loss": P(AXIS)}


def _update(state: State, batch: Batch, config: Config, graphdef: nnx.GraphDef, plan: Plan) -> tuple[State, Metrics]:
    pieces, used_count, valid_counts = _prepare(batch, config, plan)
    gradients, statistics, loss, sample_loss = _gradients(
        state, pieces, used_count, valid_counts, config, graphdef, plan
    )
    state, metrics = _apply(state, gradients, statistics, loss, config, plan)
    metrics |= {"targets": used_count * lax.axis_size(AXIS), "sample_loss": sample_loss}
    return state, metrics


def _prepare(batch: Batch, config: Config, plan: Plan) -> tuple[Batch, jax.Array, jax.Array]:
    """Returns the batch as micro-batches with its keypoints augmented, and the global counts (one small reduction).

    The counts are (used keypoints / devices, valid samples of each micro-batch): known before the first pass.
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
    visibility = heatmap.in_frame(keypoints_px, visibility, plan.size_px)
    pieces = {
        "frames": batch["frames"],
        "keypoints_px": keypoints_px,
        "visibility": visibility,
        "valid": valid,
        "plan": drawn,
    }
    pieces = jax.tree.map(lambda leaf: leaf.reshape(plan.passes, -1, *leaf.shape[1:]), pieces)
    used = jnp.sum(visibility > 0, dtype=dtype)
    counts = lax.psum(jnp.concatenate([used[None], jnp.sum(pieces["valid"], 1, dtype=dtype)]), AXIS)
    return pieces, counts[0] / lax.axis_size(AXIS), counts[1:]


def _gradients(
    state: State,
    pieces: Batch,
    used_count: jax.Array,
    valid_counts: jax.Array,
    config: Config,
    graphdef: nnx.GraphDef,
    plan: Plan,
) -> tuple[dict, dict, jax.Array, jax.Array]:
    """Returns (gradients, moved statistics, loss, loss of each sample) of the step: one reduction, after all passes."""
    compare = losses.heatmap_loss(config.model.loss)
    one_over_count = jnp.where(used_count > 0, 1 / jnp.maximum(used_count, 1), 0)
    # Varying copies: with replicated parameters the gradient would already be a sum over devices, and the mean below
    # would be too large by their number, silently.
    params = lax.pcast(state.params, AXIS, to="varying")
    local_statistics = config.model.norm == "local"
    statistics = lax.pcast(state.statistics, AXIS, to="varying") if local_statistics else state.statistics

    def loss_of(params: dict, statistics: dict, piece: Batch, count: jax.Array) -> tuple[jax.Array, tuple]:
        frames = augment.render(piece["plan"], config.augment, piece["frames"], count.dtype)[:, 0]
        targets = heatmap.encode(
            piece["keypoints_px"],
            piece["visibility"],
            plan.size_px,
            config.model.heatmap_stride,
            config.model.sigma_cells,
        )
        logits, statistics = apply_network(graphdef, params, statistics, frames, piece["valid"], count, True)
        sums, _ = compare(logits, targets, piece["visibility"] > 0)
        sums = losses.HEATMAP_WEIGHT * sums
        return jnp.sum(sums) * one_over_count, (statistics, sums)

    def one_pass(carry: tuple, inputs: tuple) -> tuple[tuple, jax.Array]:
        gradients, statistics, loss = carry
        piece, count = inputs
        (piece_loss, (statistics, sums)), piece_gradients = jax.value_and_grad(loss_of, has_aux=True)(
            params, statistics, piece, count
        )
        gradients = jax.tree.map(jnp.add, gradients, piece_gradients)
        return (gradients, statistics, loss + piece_loss), sums

    zeros = jax.tree.map(jnp.zeros_like, params)
    start = (zeros, statistics, lax.pcast(jnp.zeros((), used_count.dtype), AXIS, to="varying"))
    (gradients, statistics, loss), sample_loss = lax.scan(one_pass, start, (pieces, valid_counts))
    # As one vector: reductions of single tensors would be merged into those of the norm layers, here one and there one.
    vector, restore = ravel_pytree((gradients, loss, statistics if local_statistics else {}))
    gradients, loss, mean_statistics = restore(lax.pmean(vector, AXIS))
    if local_statistics:
        statistics = mean_statistics
    return gradients, statistics, loss, sample_loss.reshape(-1)


def _apply(
    state: State, gradients: dict, statistics: dict, loss: jax.Array, config: Config, plan: Plan
) -> tuple[State, Metrics]:
    """Returns the moved state and its metrics; a non-finite step moves `step` and `skipped_in_row` alone."""
    head_rate, backbone_rate = optim.learning_rates(
        state.step,
        config.optim,
        batch_size=config.train.batch_size,
        steps_per_epoch=plan.steps_per_epoch,
        total_steps=plan.total_steps,
        loaded_weights=plan.loaded_weights,
    )
    norm = optax.tree.norm(gradients)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    directions, optimizer = optim.make_optimizer(config.optim).update(gradients, state.optimizer, state.params)
    params = optim.apply_directions(state.params, directions, head_rate, backbone_rate)
    ema = state.ema
    if ema:
        now = {"params": params, "statistics": statistics}
        ema = optim.moving_average(ema, now, config.optim.ema_decay, state.step)
    moved = (params, statistics, optimizer, ema)
    kept = (state.params, state.statistics, state.optimizer, state.ema)
    params, statistics, optimizer, ema = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, kept)
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
        "loss": loss,
        "gradient_norm": norm,
        "learning_rate": head_rate,
        "backbone_learning_rate": backbone_rate,
        "skipped_in_row": state.skipped_in_row,
    }


def build_evaluate_step(
    config: Config, graphdef: nnx.GraphDef, mesh: Mesh
) -> Callable[[dict, dict, Batch], dict[str, jax.Array]]:
    """Returns the jitted (parameters, statistics, batch) -> predictions, all sharded as the batch is.

    The batch has `frames` uint8 (b, t, h, w, 3), `keypoints_px`, `visibility` and `frame_from_input`; a batch without
    labels has visibility 0. The result has `keypoints_px` (b, k, 2) in input pixels, `keypoints_frame_px` (b, k, 2),
    `confidence` (b, k), and per sample `loss_sum` and `loss_count`.
    """
    compare = losses.heatmap_loss(config.model.loss)
    stride, sigma = config.model.heatmap_stride, config.model.sigma_cells
    dtype = DTYPES[config.train.precision][1]

    def predict(params: dict, statistics: dict, batch: Batch) -> dict[str, jax.Array]:
        frames = batch["frames"][:, 0].astype(dtype)
        size_px = (frames.shape[1], frames.shape[2])
        valid = jnp.ones(frames.shape[0], bool)
        with jax.default_matmul_precision(MATMUL_PRECISION[config.train.precision]):
            logits, _ = apply_network(graphdef, params, statistics, frames, valid, jnp.ones((), dtype), False)
            keypoints_px, confidence = heatmap.decode(jax.nn.softmax(logits, axis=(-2, -1)), stride, sigma)
            visibility = heatmap.in_frame(batch["keypoints_px"].astype(dtype), batch["visibility"], size_px)
            targets = heatmap.encode(batch["keypoints_px"].astype(dtype), visibility, size_px, stride, sigma)
            sums, counts = compare(logits, targets, visibility > 0)
            keypoints_frame_px = geometry.apply(batch["frame_from_input"].astype(dtype), keypoints_px)
        return {
            "keypoints_px": keypoints_px,
            "keypoints_frame_px": keypoints_frame_px,
            "confidence": confidence,
            "loss_sum": losses.HEATMAP_WEIGHT * sums,
            "loss_count": counts,
        }

    sharded = jax.shard_map(predict, mesh=mesh, in_specs=(P(), P(), P(AXIS)), out_specs=P(AXIS))
    return jax.jit(sharded)
