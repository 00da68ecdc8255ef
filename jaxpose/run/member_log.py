"""The logs of an ensemble: each member writes its own files, and the ensemble logs their means."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.config import LogConfig
from jaxpose.run.log import RunLog


class MeanLog:
    """Logs the mean over the members of what each of them logs about a step, once all have done so.

    Args:
      log: of the ensemble.
    """

    def __init__(self, log: RunLog):
        self._log = log
        self._number = 0
        self._steps: list[tuple[Mapping[str, Any], tuple]] = []
        self._events: list[Mapping[str, Any]] = []

    def step(self, step: int, metrics: Mapping[str, Any], *rest: Any) -> None:
        """Takes the step of a member; arguments as those of `RunLog.step`."""
        self._begin(step)
        self._steps.append((metrics, rest))

    def event(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Takes the metrics of a member that belong to a step, such as those of a validation."""
        self._begin(step)
        self._events.append(metrics)

    def alert(self, message: str) -> None:
        """Passes a message on to the log of the ensemble."""
        self._log.alert(message)

    def flush(self) -> None:
        """Logs what has not been logged yet."""
        steps, events, self._steps, self._events = self._steps, self._events, [], []
        if steps:
            self._log.step(self._number, _means([metrics for metrics, _ in steps]), *steps[0][1])
        if events:
            self._log.event(self._number, _means(events))

    def _begin(self, step: int) -> None:
        if step != self._number:
            self.flush()
            self._number = step


class MemberLog(RunLog):
    """The log of a member: it writes its own files, prints nothing, and passes its steps on to the ensemble's log.

    Args:
      folder: the run folder of the member; None on all processes but the first.
      config: options of the log.
      total_steps: length of the training.
      first_step: steps taken before.
      name: of the member, in messages.
      means: gets the steps.
    """

    def __init__(
        self, folder: Path | None, config: LogConfig, total_steps: int, first_step: int, name: str, means: MeanLog
    ):
        super().__init__(folder, config, total_steps, first_step, prints=False)
        self._name, self._means = name, means

    def step(self, step: int, metrics: Mapping[str, Any], images: int, wait_s: float, losses: int = 1) -> None:
        super().step(step, metrics, images, wait_s, losses)
        self._means.step(step, metrics, images, wait_s, losses)

    def event(self, step: int, metrics: Mapping[str, Any], prefix: str = "") -> None:
        super().event(step, metrics, prefix)
        self._means.event(step, {prefix + name: value for name, value in metrics.items()})

    def alert(self, message: str) -> None:
        super().alert(message)
        self._means.alert(f"{self._name}: {message}")

    def _emit(self, message: str, level: int) -> None:
        super()._emit(message, level)
        if level >= logging.WARNING:
            self._means.alert(f"{self._name}: warning: {message}")


def _means(values: list[Mapping[str, Any]]) -> dict[str, float]:
    return {name: float(np.mean([float(of_member[name]) for of_member in values])) for name in values[0]}
