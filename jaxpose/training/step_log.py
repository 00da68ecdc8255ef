"""Logs each step: its metrics, why it was skipped, and what the loaders and slow processes report."""

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxpose.cluster.agreement import gather_lists
from jaxpose.cluster.stragglers import StragglerMonitor
from jaxpose.config.terms import terms
from jaxpose.run.log import RunLog
from jaxpose.training.setup import Setup
from jaxpose.training.skipped_steps import describe_skip

# Metrics shown first, after the losses; a compiled program returns its metrics in alphabetical order.
_SHOWN_FIRST = ("gradient_norm", "learning_rate")


@dataclasses.dataclass(frozen=True)
class TakenStep:
    """A step whose metrics have not been read yet.

    Attributes:
      step: the number of steps taken, this one included.
      draws: the step's draws (m,) on this host, -1 where empty.
      metrics: by name, on the devices; `sample_loss` is a list of arrays.
      waited_s: seconds that the devices waited for its data.
    """

    step: int
    draws: np.ndarray
    metrics: dict[str, Any]
    waited_s: float


class StepLog:
    """Logs the steps of a network. All processes must call its methods in the same way.

    Args:
      setup: the set-up of the training.
      log: gets metrics and sentences.
      stragglers: compares the speed of the processes.
    """

    def __init__(self, setup: Setup, log: RunLog, stragglers: StragglerMonitor):
        self._setup, self._log, self._stragglers = setup, log, stragglers

    def write(self, taken: TakenStep) -> dict[str, float]:
        """Logs a step and returns its metrics; names what was not finite in a skipped one."""
        config = self._setup.config
        own = [name for term in terms(config) for name in term.losses]
        # A single one equals the loss.
        losses = ("loss", *own) if len(own) > 1 else ("loss",)
        rest = sorted(taken.metrics.keys() - {"sample_loss", *losses, *_SHOWN_FIRST})
        names = (*losses, *_SHOWN_FIRST, *rest)
        with self._stragglers.elsewhere():
            metrics = jax.device_get({name: taken.metrics[name] for name in names})
        values = {name: float(metrics[name]) for name in names}
        self._log.step(taken.step, values, config.train.batch_size, taken.waited_s, len(losses))
        if values["skipped_in_row"]:
            sample_loss = taken.metrics["sample_loss"]
            self._log.alert(describe_skip(self._setup, taken.step, taken.draws, sample_loss, values))
        return values


class HostLog:
    """Logs what the clip readers and slow processes report. All processes must call its methods in the same way.

    Args:
      setup: the set-up of the training.
      log: gets metrics and sentences.
      stragglers: compares the speed of the processes.
    """

    def __init__(self, setup: Setup, log: RunLog, stragglers: StragglerMonitor):
        self._setup, self._log, self._stragglers = setup, log, stragglers
        self._reported: set[str] = set()

    def write(self, step: int) -> None:
        """Logs reports after a step; with several processes not after each, as all take part in the exchange."""
        if jax.process_count() == 1 or step % self._setup.config.log.every_steps == 0:
            with self._stragglers.elsewhere():
                self.report_clips()
                self._report_stragglers(step)

    def report_clips(self) -> None:
        """Logs what the clip readers of all processes report, each sentence once."""
        found = [text for stream in self._setup.clips.values() for text in stream.source.messages()]
        for sentence in dict.fromkeys(gather_lists(found)):
            if sentence not in self._reported:
                self._reported.add(sentence)
                self._log.text(sentence)

    def _report_stragglers(self, step: int) -> None:
        if self._stragglers.is_due():
            figures, sentences = self._stragglers.compare()
            self._log.record(step, figures)
            for sentence in sentences:
                self._log.text(f"warning: {sentence}")
