"""Describes what was not finite in a skipped step."""

import itertools
import math

import jax
import numpy as np

from jaxpose.cluster.agreement import gather_lists
from jaxpose.config.losses import LARGEST_FACTOR
from jaxpose.config.terms import terms
from jaxpose.training.batches import clip_names, image_names
from jaxpose.training.setup import Setup


def describe_skip(
    setup: Setup, step: int, draws: np.ndarray, sample_loss: list[jax.Array], values: dict[str, float]
) -> str:
    """Returns a sentence on a skipped step, with the images, losses or clips at fault; every process must call this.

    Args:
      setup: the set-up of the training.
      step: the number of steps taken, this one included.
      draws: the step's draws (m,) on this host, -1 where empty.
      sample_loss: the loss of each sample of the step on this process, in the order of its draws.
      values: the other metrics of the step.
    """
    is_finite = np.concatenate([np.zeros(0, bool), *(np.isfinite(np.asarray(losses)) for losses in sample_loss)])
    is_finite, draws = (np.array(gather_lists(rows.tolist()), rows.dtype) for rows in (is_finite, draws))
    bad = draws[~is_finite & (draws >= 0)]
    clips = clip_names(setup, step - 1)
    causes = [f"the loss of {', '.join(image_names(setup, bad))}"] * bool(len(bad))
    for term in terms(setup.config):
        # Of a loss that is alone, the loss itself is logged.
        for name, weight in term.losses.items() if term.factor else ():
            factor = values[term.factor] * weight
            if not abs(values[name] * factor) <= LARGEST_FACTOR:
                own = ", ".join(clips[term.stream.name])
                causes.append(f"losses.{name} (mean {values[name]:g}, times {factor:g}) of {own}")
    if not causes and math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"]):
        causes.append(
            f"the new parameters, batch statistics or optimizer state (learning rate {values['learning_rate']:g})"
        )
    elif not causes:
        images = image_names(setup, draws[draws >= 0])
        causes.append(f"the gradient of a batch with {', '.join(itertools.chain(images, *clips.values()))}")
    return (
        f"step {step} skipped: loss {values['loss']:g}, gradient norm {values['gradient_norm']:g}; "
        f"not finite: {'; '.join(causes)}"
    )
