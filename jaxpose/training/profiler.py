"""The profiler's trace of the steps that `log.profile_steps` names."""

import contextlib
from typing import Any

import jax

from jaxpose.config import LogConfig
from jaxpose.run.log import RunLog
from jaxpose.run.paths import PROFILE_FOLDER


class Profiler:
    """A context that stops the trace at its end, even after an error.

    Args:
      config: names the first and the last step of the trace, counted from 1, or none.
      log: its folder gets the trace; without a folder, nothing is traced.
      first_step: steps taken before; a run that resumes inside of the window traces at once.
    """

    def __init__(self, config: LogConfig, log: RunLog, first_step: int):
        first, _, last = config.profile_steps.partition(":")
        self._first, self._last = (max(int(first), first_step + 1), int(last)) if last else (0, 0)
        self._log = log
        self._trace = contextlib.ExitStack()

    def start_before(self, step: int) -> None:
        """Starts the trace if a step, counted from 1, is the first of its window."""
        if self._log.folder and step == self._first <= self._last:
            folder = str(self._log.folder / PROFILE_FOLDER)
            self._trace.callback(self._log.text, f"the profiler's trace is in {folder}; TensorBoard and xprof show it")
            self._trace.enter_context(jax.profiler.trace(folder))

    def stop_after(self, step: int, metrics: list[dict[str, Any]]) -> None:
        """Stops the trace if a step, counted from 1, is the last of its window; waits for the devices first."""
        if step == self._last:
            jax.block_until_ready(metrics)
            self._trace.close()

    def __enter__(self) -> "Profiler":
        return self

    def __exit__(self, *error: Any) -> None:
        self._trace.__exit__(*error)
