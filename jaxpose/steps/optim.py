"""From gradients to updates: clipping, the optimizer, the learning rates and the clip-loss factor of each step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpose.config import OptimConfig
from jaxpose.config.losses import LossesConfig

# A loaded backbone stays frozen for this many epochs under a new head, whose first gradients would spoil it.
_REST_EPOCHS = 20


def make_optimizer(optim: OptimConfig) -> optax.GradientTransformation:
    """Returns the transformation from gradients to directions; the step multiplies them by `learning_rates`."""
    parts = [optax.clip_by_global_norm(optim.clip_norm)] if optim.clip_norm else []
    if optim.name == "sgd":
        parts.append(optax.trace(optim.momentum))
    else:
        parts.append(_adam(optim))
    if optim.name == "adamw":
        parts.append(optax.add_decayed_weights(optim.weight_decay, mask=_decayed(optim)))
    return optax.chain(*parts)


def _adam(optim: OptimConfig) -> optax.GradientTransformation:
    adam = optax.scale_by_adam(optim.beta1, optim.beta2, optim.epsilon)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        # optax raises a float to an integer power, which strict type promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            return adam.update(updates, state, params)

    return optax.GradientTransformation(adam.init, update)


def _decayed(optim: OptimConfig) -> Any:
    def mask(params: dict) -> dict:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: optim.decay_norm_and_bias or path[-1].key == "kernel", params
        )

    return mask


def learning_rates(
    step: jax.Array,
    optim: OptimConfig,
    *,
    batch_size: int,
    steps_per_epoch: int,
    total_steps: int,
    has_new_head: bool,
) -> tuple[jax.Array, jax.Array]:
    """Returns the learning rates (head, backbone) of a step, float32 scalars.

    The backbone's rate is 0 before `unfreeze_epoch`, then `unfreeze_factor` of the head's, growing by `unfreeze_growth`
    an epoch up to `backbone_lr_factor` (the schedule of Lightning Pose).

    Args:
      step: int32, from 0.
      optim: the options.
      batch_size: frames per update.
      steps_per_epoch: for the options that are written in epochs.
      total_steps: length of the training.
      has_new_head: whether the backbone's weights were loaded, but not all of the head's.
    """
    time = step.astype(jnp.float32)
    if optim.schedule == "multistep":
        milestones = [round(epoch * steps_per_epoch) for epoch in optim.milestones_epochs]
        # Larger ones do not fit into the step counter and are never reached. The length of the training does not matter
        # here, so a longer training compiles to the same program.
        milestones = [milestone for milestone in milestones if milestone < 2**31]
        passed = sum((step >= milestone).astype(jnp.float32) for milestone in milestones) + jnp.float32(0)
        factor = jnp.float32(optim.gamma) ** passed
    elif optim.schedule == "cosine":
        length = max(1, total_steps - optim.warmup_steps)
        share = jnp.clip((time - optim.warmup_steps) / length, 0, 1)
        factor = 0.5 * (1 + jnp.cos(jnp.pi * share))
    else:
        factor = jnp.float32(1)
    if optim.warmup_steps:
        factor = factor * jnp.minimum(1, (time + 1) / optim.warmup_steps)
    with np.errstate(over="ignore"):
        # Beyond float32 the rate is infinite. Then no step is finite, and the run reports it.
        peak = np.float32(peak_rate(optim, batch_size))
    head = peak * factor
    rest = rest_epochs(optim, has_new_head)
    epoch = (step // steps_per_epoch).astype(jnp.float32)
    # Bounded, because an infinite growth times a factor of 0 is NaN.
    growth = jnp.minimum(jnp.float32(optim.unfreeze_growth) ** jnp.maximum(epoch - rest, 0), 1e6)
    grown = jnp.minimum(optim.unfreeze_factor * growth, optim.backbone_lr_factor)
    return head, head * jnp.where(epoch >= rest, grown, 0)


def rest_epochs(optim: OptimConfig, has_new_head: bool) -> int:
    """Returns how many epochs the backbone's rate is 0; see `learning_rates`."""
    return optim.unfreeze_epoch if optim.unfreeze_epoch >= 0 else _REST_EPOCHS * has_new_head


def peak_rate(optim: OptimConfig, batch_size: int) -> float:
    """Returns the head's rate before its schedule: `optim.lr`, scaled with the batch as `optim.lr_scale` says."""
    power = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}[optim.lr_scale]
    return optim.lr * (batch_size / optim.lr_reference_batch) ** power


def apply_directions(params: dict, directions: Any, head_rate: jax.Array, backbone_rate: jax.Array) -> dict:
    """Returns the parameters moved against their directions, the backbone and the rest at their own rates."""

    def move(path: Any, value: jax.Array, direction: jax.Array) -> jax.Array:
        rate = backbone_rate if path[0].key == "backbone" else head_rate
        return value - rate.astype(value.dtype) * direction

    return jax.tree_util.tree_map_with_path(move, params, directions)


def moving_average(average: dict, value: dict, decay: float, step: jax.Array) -> dict:
    """Returns the moving average after a step; early on it forgets faster, so that the initial weights do not linger.

    The decay at step t is min(decay, (1 + t) / (10 + t)), as in TensorFlow's ExponentialMovingAverage.
    """
    time = step.astype(jnp.float32)
    now = jnp.minimum(decay, (1 + time) / (10 + time))
    return jax.tree.map(lambda a, v: a + (1 - now).astype(a.dtype) * (v - a), average, value)


def clip_loss_factor(losses: LossesConfig, step: jax.Array, steps_per_epoch: int) -> jax.Array:
    """Returns the common factor of the losses on clips at a step, a float32 scalar.

    It is `anneal_init` up to the start, then grows to `anneal_end` by `anneal_increase_per_epoch` with every whole
    epoch since the start, as in Lightning Pose.

    Args:
      losses: the options.
      step: int32, from 0.
      steps_per_epoch: for the options that are written in epochs.
    """
    start = round(losses.anneal_start_epochs * steps_per_epoch)
    # A start that is never reached may be too large for an int32.
    passed = jnp.maximum(step - min(start, 2**31 - 1), 0)
    grown = (passed // steps_per_epoch).astype(jnp.float32) * losses.anneal_increase_per_epoch
    return jnp.minimum(losses.anneal_init + grown, losses.anneal_end)
