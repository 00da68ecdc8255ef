"""How far the work on videos and images has come: a progress bar, and one line with the time left."""

import logging
import threading
import time

from jaxpose.phases import draws_bars, make_bar
from jaxpose.quantities import count, duration

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
        self._bar = make_bar(total=self._all, unit="frame", disable=not draws_bars(), leave=False)
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def add(self, frames: int) -> None:
        """Counts frames that are predicted."""
        with self._lock:
            self._bar.update(frames)
            self._done += frames
            done, left = self._done, self._all - self._done
            is_time = done >= _TIMED_FRAMES and not self._is_timed
            self._is_timed |= is_time
        if is_time and left > 0:
            speed = done / (time.monotonic() - self._started)
            _logger.info(
                f"after {count(done, 'frame')}: {speed:.1f} frames/s, about {duration(left / speed)} left if no other "
                "process helps"
            )
