"""Saves the state of a training when it is time, and only if all devices hold the same state."""

import time

import jax

from jaxpose.cluster.agreement import broadcast_from_0
from jaxpose.cluster.replicas import Replicas
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.steps.state import State
from jaxpose.training.diverged import Diverged
from jaxpose.training.setup import Setup


class Saver:
    """Saves the states of a training. All processes must call its methods in the same way.

    Args:
      setup: the set-up of the training.
      checkpoints: gets the states.
      first_step: the step that training resumes from.

    Attributes:
      saved_step: the step of the last save, `first_step` before the first one.
    """

    def __init__(self, setup: Setup, checkpoints: Checkpoints, first_step: int):
        self.saved_step = first_step
        self._saved_at = time.monotonic()
        self._setup, self._checkpoints = setup, checkpoints
        self._replicas = Replicas(setup.mesh)

    def is_due(self, step: int) -> bool:
        """Returns whether `train.save_every_steps` or `train.save_every_minutes` have passed since the last save."""
        config = self._setup.config
        if config.train.save_every_steps:
            return step - self.saved_step >= config.train.save_every_steps
        # With several processes, the clock of process 0 decides. All processes take part in asking it, so ask rarely.
        if jax.process_count() > 1 and step % config.log.every_steps:
            return False
        return broadcast_from_0(lambda: time.monotonic() - self._saved_at >= 60 * config.train.save_every_minutes)

    def save(self, step: int, state: State, is_best: bool) -> None:
        """Starts to save a state.

        Raises:
          Diverged: the devices no longer hold the same state.
        """
        if differing := self._replicas.differing(state):
            self._checkpoints.wait()
            saved = self._checkpoints.steps()
            raise Diverged(
                f"at step {step} the devices no longer hold the same state (different: {', '.join(differing)}): "
                "stopped without saving. The memory of a device may be faulty; the same command resumes from step "
                f"{saved[-1] if saved else 0}"
            )
        names = list(self._setup.config.data.keypoint_names)
        self._checkpoints.save(step, state, {"keypoint_names": names, "step": step}, is_best)
        if self._setup.config.train.save_every_steps:
            # save_every_steps bounds the lost steps, so wait for the save.
            self._checkpoints.wait()
        self.saved_step, self._saved_at = step, time.monotonic()
