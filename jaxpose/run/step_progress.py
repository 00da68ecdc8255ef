"""How far a training has come: a bar on a terminal or in a notebook, elsewhere a line now and then."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxpose.bars import Bar
from jaxpose.quantities import clock
from jaxpose.run.speed import SpeedWindow
from jaxpose.terminal import draws_bars

_WINDOW_S = 1.0  # speeds below the bar are averaged over this time
_LINE_S = 30.0  # between two lines
_LEAST_METRICS = 3  # of a line


class StepProgress:
    """The progress of a training; close it.

    Args:
      total_steps: length of the training.
      print_line: prints a line.
    """

    def __init__(self, total_steps: int, print_line: Callable[[str], None]):
        self._total_steps, self._print_line = total_steps, print_line
        self._draws = draws_bars()
        self._bar: Bar | None = None
        self._window: SpeedWindow | None = None
        self._speed = ""

    def step(self, step: int, metrics: Mapping[str, Any], images: int, wait_s: float, losses: int) -> None:
        """Moves the bar or prints a line; arguments as those of `RunLog.step`."""
        if self._draws:
            self._move_bar(step, _first(metrics, losses), images, wait_s)
        else:
            self._print(step, _first(metrics, max(losses, _LEAST_METRICS)), images, wait_s)

    def close(self) -> None:
        """Wipes the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _move_bar(self, step: int, metrics: Mapping[str, Any], images: int, wait_s: float) -> None:
        if self._bar is None:
            self._bar = Bar("training", self._total_steps, "step", done=step - 1)
        if self._count(step, images, wait_s, _WINDOW_S):
            self._bar.note = f"{shown(metrics)}  {self._speed}"
        self._bar.update(step)
        if step == self._total_steps:
            self.close()

    def _print(self, step: int, metrics: Mapping[str, Any], images: int, wait_s: float) -> None:
        window = self._count(step, images, wait_s, _LINE_S, at_tenths_of=self._total_steps)
        if window is None:
            return
        left_s = (self._total_steps - step) / window.steps_per_s()
        self._print_line(
            f"step {step}/{self._total_steps}  {100 * step // self._total_steps}%  {shown(metrics)}  "
            f"{window.steps_per_s():.3g} steps/s, {self._speed}, ETA {clock(left_s)}"
        )

    def _count(
        self, step: int, images: int, wait_s: float, length_s: float, at_tenths_of: int = 0
    ) -> SpeedWindow | None:
        """Adds a step to the window over which speeds are averaged; returns the window if it ends here."""
        if self._window is None:
            # Speeds are measured from the end of the first step, which is slower than the others.
            self._window = SpeedWindow()
            return None
        self._window.add(images, wait_s)
        is_tenth = at_tenths_of > 0 and 10 * step // at_tenths_of > 10 * (step - 1) // at_tenths_of
        if not is_tenth and self._window.length_s() < length_s:
            return None
        ended, self._window = self._window, SpeedWindow()
        self._speed = ended.text()
        return ended


def shown(values: Mapping[str, Any]) -> str:
    """Returns metrics as text."""
    return "  ".join(f"{name} {float(value):.4g}" for name, value in values.items())


def _first(metrics: Mapping[str, Any], count: int) -> dict[str, Any]:
    return dict(list(metrics.items())[:count])
