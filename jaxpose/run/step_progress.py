"""Shows the progress of a training: a bar on a terminal or in a notebook, elsewhere occasional lines.

train.log has the lines in either case.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from jaxpose.progress import Bar, percent
from jaxpose.terminal import clock, three_digits

# Speeds of a training, averaged over a time window.


class SpeedWindow:
    """Counts steps, images and waiting time since it was created."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._steps = 0
        self._images = 0
        self._wait_s = 0.0

    def add(self, images: int, wait_s: float) -> None:
        """Counts a step with its images and the time that the devices waited for its data."""
        self._steps += 1
        self._images += images
        self._wait_s += wait_s

    def length_s(self) -> float:
        """Returns the seconds since it was created."""
        return max(time.monotonic() - self._started_at, 1e-9)

    def steps_per_s(self) -> float:
        """Returns the mean speed in steps."""
        return self._steps / self.length_s()

    def figures(self) -> dict[str, float]:
        """Returns the speeds by tag, and the share of time spent waiting for data."""
        length_s = self.length_s()
        return {
            "speed/steps_per_s": self._steps / length_s,
            "speed/images_per_s": self._images / length_s,
            "speed/waiting_share": min(self._wait_s / length_s, 1.0),
        }

    def text(self) -> str:
        """Returns the speed in images and the share of time spent waiting, for people."""
        share = min(self._wait_s / self.length_s(), 1.0)
        return f"{three_digits(self._images / self.length_s())} images/s, {share:.0%} waiting for data"


_WINDOW_S = 1.0  # speeds below the bar are averaged over this time
_LINE_S = 30.0  # between two lines
_LEAST_METRICS = 3  # of a line


class StepProgress:
    """The progress of a training; close it.

    Args:
      total_steps: length of the training.
      tell: prints a line and writes it to train.log; if a bar is drawn, only `write` it there.
      write: writes a line to train.log.
      draws: whether there is a bar.
    """

    def __init__(self, total_steps: int, tell: Callable[[str], None], write: Callable[[str], None], draws: bool):
        self._total_steps = total_steps
        self._draws = draws
        self._line = write if self._draws else tell
        self._bar: Bar | None = None
        self._of_bar: SpeedWindow | None = None
        self._of_line: SpeedWindow | None = None
        self._began_at_tenth = True

    def step(self, step: int, metrics: Mapping[str, Any], images: int, wait_s: float, losses: int) -> None:
        """Moves the bar or prints a line; arguments as those of `RunLog.step`."""
        if self._of_line is None:
            # Speeds are measured from the end of the first step, which is slower than the others.
            self._of_bar, self._of_line = SpeedWindow(), SpeedWindow()
        else:
            self._of_line.add(images, wait_s)
            is_tenth = 10 * step // self._total_steps > 10 * (step - 1) // self._total_steps
            if is_tenth or self._of_line.length_s() >= _LINE_S:
                self._show_line(step, _first(metrics, max(losses, _LEAST_METRICS)), self._of_line, is_tenth)
        if self._draws:
            self._move_bar(step, metrics, images, wait_s, losses)

    def close(self) -> None:
        """Wipes the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _move_bar(self, step: int, metrics: Mapping[str, Any], images: int, wait_s: float, losses: int) -> None:
        if self._bar is None:
            self._bar = Bar("training", self._total_steps, "step", done=step - 1)
        elif self._of_bar is not None:
            self._of_bar.add(images, wait_s)
            if self._of_bar.length_s() >= _WINDOW_S:
                self._bar.note = f"{shown(_first(metrics, losses))}  {self._of_bar.text()}"
                self._of_bar = SpeedWindow()
        self._bar.update(step)
        if step == self._total_steps:
            self.close()

    def _show_line(self, step: int, metrics: Mapping[str, Any], window: SpeedWindow, is_tenth: bool) -> None:
        # Reading the metrics waits for the devices, so the speeds come after them.
        line = f"step {step}/{self._total_steps}  {percent(step, self._total_steps)}  {shown(metrics)}"
        # A tenth that ends soon after a line says little: the speed of a few steps, or of a validation.
        if not self._began_at_tenth and window.length_s() < _LINE_S:
            return self._line(line)
        left_s = (self._total_steps - step) / window.steps_per_s()
        self._line(f"{line}  {three_digits(window.steps_per_s())} steps/s, {window.text()}, ETA {clock(left_s)}")
        self._of_line, self._began_at_tenth = SpeedWindow(), is_tenth


def shown(values: Mapping[str, Any]) -> str:
    """Returns metrics as text."""
    return "  ".join(f"{name} {float(value):.4g}" for name, value in values.items())


def _first(metrics: Mapping[str, Any], count: int) -> dict[str, Any]:
    return dict(list(metrics.items())[:count])
