"""Speeds of a training, averaged over a time window."""

import time

from jaxpose.quantities import three_digits


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
