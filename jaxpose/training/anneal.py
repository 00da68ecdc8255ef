"""How the losses on clips set in: nothing at first, then more and more."""

import jax
import jax.numpy as jnp

from jaxpose.config.losses import LossesConfig


def weight_of_step(losses: LossesConfig, step: jax.Array, steps_per_epoch: int) -> jax.Array:
    """Returns the common factor of the losses on clips at a step, a float32 scalar.

    It is `anneal_init` up to the start, then grows to `anneal_end`: by `anneal_increase_per_epoch` with every whole
    epoch since the start, as in Lightning Pose, or by `anneal_increase_per_step` with every step.

    Args:
      losses: the options.
      step: int32, from 0.
      steps_per_epoch: for the options that are written in epochs.
    """
    start = losses.anneal_start_steps
    if start == -1:
        start = round(losses.anneal_start_epochs * steps_per_epoch)
    # A start that is never reached may be too large for an int32.
    passed = jnp.maximum(step - min(start, 2**31 - 1), 0)
    if losses.anneal_increase_per_step > 0:
        grown = passed.astype(jnp.float32) * losses.anneal_increase_per_step
    else:
        grown = (passed // steps_per_epoch).astype(jnp.float32) * losses.anneal_increase_per_epoch
    return jnp.minimum(losses.anneal_init + grown, losses.anneal_end)
