"""Describes what was not finite in a skipped step."""

import math

import jax
import numpy as np

from jaxpose.cluster.agreement import gather_rows
from jaxpose.config.losses import LARGEST_FACTOR, weights
from jaxpose.training.batches import clip_names, image_names
from jaxpose.training.setup import Setup


def describe_skip(setup: Setup, step: int, draws: np.ndarray, sample_loss: jax.Array, values: dict[str, float]) -> str:
    """Returns a sentence on a skipped step, with the images, losses or clips at fault; every process must call this.

    Args:
      setup: the set-up of the training.
      step: the number of steps taken, this one included.
      draws: the step's draws (m,) on this host, -1 where empty.
      sample_loss: the loss of each sample of the step, sharded over the devices.
      values: the other metrics of the step.
    """
    shards = sorted(sample_loss.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    losses = gather_rows(np.concatenate([np.asarray(shard.data) for shard in shards]))
    draws = gather_rows(draws)
    bad = draws[~np.isfinite(losses) & (draws >= 0)]
    clips = clip_names(setup, step - 1)
    causes = [f"the loss of {', '.join(image_names(setup, bad))}"] * bool(len(bad))
    for name, weight in weights(setup.config.losses).items():
        factor = values["clip_factor"] * weight
        if not abs(values[name] * factor) <= LARGEST_FACTOR:
            causes.append(f"losses.{name} (mean {values[name]:g}, times {factor:g}) of {', '.join(clips)}")
    if not causes and math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"]):
        causes.append(
            f"the new parameters, batch statistics or optimizer state (learning rate {values['learning_rate']:g})"
        )
    elif not causes:
        images = image_names(setup, draws[draws >= 0])
        causes.append(f"the gradient of a batch with {', '.join([*images, *clips])}")
    return (
        f"step {step} skipped: loss {values['loss']:g}, gradient norm {values['gradient_norm']:g}; "
        f"not finite: {'; '.join(causes)}"
    )
