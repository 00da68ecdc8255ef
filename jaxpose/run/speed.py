"""Speeds of a training, averaged over a stretch of time."""

import time


class SpeedWindow:
    """Counts of steps, images and waiting since it was made."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._steps = 0
        self._images = 0
        self._wait_s = 0.0

    def add(self, images: int, wait_s: float) -> None:
        """Counts a step of so many images, for whose data the devices waited so long."""
        self._steps += 1
        self._images += images
        self._wait_s += wait_s

    def length_s(self) -> float:
        """Returns the seconds since it was made."""
        return max(time.monotonic() - self._started_at, 1e-9)

    def steps_per_s(self) -> float:
        """Returns the mean speed in steps."""
        return self._steps / self.length_s()

    def text(self) -> str:
        """Returns the speed in images and the share of time spent waiting, for people."""
        share = min(self._wait_s / self.length_s(), 1.0)
        return f"{self._images / self.length_s():.3g} images/s, {share:.0%} waiting for data"
