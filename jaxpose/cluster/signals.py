"""SIGTERM and Ctrl-C as a flag that the training loop reads between two steps; takes over from `early_signals`.

With more than one process jax.distributed catches SIGTERM itself, tells the others, and all agree on a step.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from jax.experimental import multihost_utils

from jaxpose.early_signals import EXIT_CODES


class Interrupt:
    """A context in which SIGTERM and SIGINT set `signal` (None or the first one's number) instead of killing.

    Only the main thread may install handlers: in another thread nothing is installed and `signal` stays None.

    Args:
      processes: number of processes of the run. With more than one, SIGTERM is left to jax.distributed, and SIGINT is
        passed on as one.
      on_signal: called by the handler of the first signal that is caught here; quick, and safe wherever that may be.
      what_follows: what the handler says will be done; may be changed as the work goes on.
    """

    def __init__(
        self,
        processes: int = 1,
        on_signal: Callable[[], None] = lambda: None,
        what_follows: str = "saving at the next step",
    ) -> None:
        self.signal: int | None = None
        self._several = processes > 1
        self._on_signal = on_signal
        self.what_follows = what_follows
        self._steps = 0
        self._is_agreed = False
        self._asked_by_hand = False
        self._old_handlers: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """The exit code to use: 85 after SIGTERM (requeue, please), 130 after Ctrl-C, 0 without a signal."""
        return 0 if self.signal is None else EXIT_CODES[signal.Signals(self.signal)]

    def stops_here(self) -> bool:
        """Returns whether to save and stop now; to be called after every step, by every process alike.

        Once it was true it stays so.
        """
        if not self._several:
            return self.signal is not None
        # Counted from 1: after a signal that came before the first call, JAX agrees to stop at number 1.
        self._steps += 1
        reached = multihost_utils.reached_preemption_sync_point(self._steps)
        self._is_agreed |= reached
        if reached and self.signal is None:
            self.signal = int(signal.SIGTERM)
        return self._is_agreed

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT,) if self._several else EXIT_CODES:
                self._old_handlers[number] = signal.signal(number, self._caught)
        return self

    def __exit__(self, *error: Any) -> None:
        for number, handler in self._old_handlers.items():
            # None: the old handler was not installed from Python and cannot be put back from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._old_handlers.clear()

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._asked_by_hand:
            _say("leaving at once; what was not saved is lost")
            os._exit(130)
        self._asked_by_hand |= number == signal.SIGINT
        if self.signal is None:
            self.signal = int(number)
            name = signal.Signals(number).name
            times = "again" if number == signal.SIGINT else "twice"
            _say(f"{name}: {self.what_follows}, press Ctrl-C {times} to leave at once")
            self._on_signal()
            if self._several:
                os.kill(os.getpid(), signal.SIGTERM)


def _say(message: str) -> None:
    # os.write and not print: a handler may run in the middle of another print, which raises.
    os.write(2, f"\n{message}\n".encode())
