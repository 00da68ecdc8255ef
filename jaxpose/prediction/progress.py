"""How far the work on videos and images has come: a progress bar, and one line with the time left."""

import threading
import time
from collections.abc import Callable

import tqdm

from jaxpose.quantities import count, duration

# The time left is estimated after this many frames.
_TIMED_FRAMES = 500


class Progress:
    """Counts the frames that this process predicts; threads may share it. A context manager, which shows the bar.

    Args:
      frames: all frames that there are to predict.
      say: is called once, with the speed and the time left.
    """

    def __init__(self, frames: int, say: Callable[[str], None]):
        self._all, self._say = frames, say
        self._done, self._is_timed, self._started = 0, False, 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> "Progress":
        self._started = time.monotonic()
        self._bar = tqdm.tqdm(total=self._all, unit="frame", disable=None, leave=False)
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
            self._say(
                f"after {count(done, 'frame')}: {speed:.1f} frames/s, about {duration(left / speed)} left if no other "
                "process helps"
            )
