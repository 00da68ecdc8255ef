"""Which sample sits where in a step: the one rule that makes every batch size exact on any number of devices."""

import numpy as np

from jaxpose.config import TrainConfig

EMPTY = -1


def microbatch_size(train: TrainConfig) -> int:
    """Returns the number of frames in one pass over all devices."""
    if train.accum_steps:
        return -(-train.batch_size // train.accum_steps)
    return train.microbatch_size or train.batch_size


def slots(step: int, batch_size: int, microbatch: int, devices: int) -> np.ndarray:
    """Returns the draw in each slot of a step, or `EMPTY`: int64 (devices, micro-batches, slots).

    A draw is a position in the endless stream of samples. Step s holds the draws [s B, (s + 1) B); its micro-batch m
    holds the next M of them, dealt to the devices in turn, so that every device has `ceil(M / devices)` slots and the
    empty ones are spread.

    Args:
      step: number of the step, from 0.
      batch_size: B, samples per step.
      microbatch: M, samples per pass, at most B.
      devices: number of devices.
    """
    passes = -(-batch_size // microbatch)
    per_device = -(-microbatch // devices)
    # place[m, j, d] is the position of slot j on device d among the draws of micro-batch m.
    place = np.arange(per_device * devices).reshape(1, per_device, devices)
    position = place + microbatch * np.arange(passes).reshape(-1, 1, 1)
    real = (place < microbatch) & (position < batch_size)
    draws = np.where(real, np.int64(step) * batch_size + position, EMPTY)
    return draws.transpose(2, 0, 1)
