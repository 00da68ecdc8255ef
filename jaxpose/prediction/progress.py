"""How far the work on videos and images has come: a progress bar, and one line with the time left."""

import logging
import threading
import time

from jaxpose.bars import Bar
from jaxpose.quantities import count, duration
from jaxpose.terminal import draws_bars

# The time left is estimated after this many frames.
_TIMED_FRAMES = 500

_logger = logging.getLogger(__name__)


class Progress:
    """Counts the frames that this process predicts; threads may share it. A context manager, which shows the bar.

    Args:
      frames: number of all frames to predict.
    """

    def __init__(self, frames: int):
        self._all = frames
        self._done, self._is_timed, self._started = 0, False, 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> "Progress":
        self._started = time.monotonic()
        self._bar = Bar("predicting", self._all, "frame") if draws_bars() else None
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.close()

    def add(self, frames: int) -> None:
        """Counts frames that are predicted."""
        with self._lock:
            self._done += frames
            if self._bar:
                self._bar.update(min(self._done, self._all))
            done, left = self._done, self._all - self._done
            is_time = done >= _TIMED_FRAMES and not self._is_timed
            self._is_timed |= is_time
        if is_time and left > 0:
            speed = done / (time.monotonic() - self._started)
            _logger.info(
                f"after {count(done, 'frame')}: {speed:.1f} frames/s, about {duration(left / speed)} left if no other "
                "process helps"
            )
