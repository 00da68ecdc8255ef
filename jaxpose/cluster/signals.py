"""Turns SIGTERM and Ctrl-C into a flag that the training loop reads between two steps; replaces `early_signals`.

With several processes, jax.distributed catches SIGTERM itself and informs the others, so that all stop at one step.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from jax.experimental import multihost_utils

from jaxpose import terminal
from jaxpose.early_signals import EXIT_CODES, exit_at_once

# What a training does after a signal.
SAVES = "saving at the next step"


class Interrupt:
    """A context in which SIGTERM and SIGINT set `signal` (None, or the number of the first one) instead of killing.

    Only the main thread may install handlers. In another thread nothing is installed, and `signal` stays None.

    Args:
      processes: number of processes of the run. With more than one, jax.distributed handles SIGTERM, and SIGINT is
        forwarded to it as SIGTERM.
      on_signal: called by the handler of the first signal. It must be quick, and safe at any point of the program.
      what_follows: text for the handler's message about the next action. It may be changed during the work.
    """

    def __init__(
        self,
        processes: int = 1,
        on_signal: Callable[[], None] = lambda: None,
        what_follows: str = SAVES,
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
        """The exit code to use: 85 after SIGTERM (asks for a requeue), 130 after Ctrl-C, 0 without a signal."""
        return 0 if self.signal is None else EXIT_CODES[signal.Signals(self.signal)]

    def stops_here(self) -> bool:
        """Returns whether to save and stop now; every process must call this after every step.

        Once true, it stays true.
        """
        if not self._several:
            return self.signal is not None
        # Counted from 1: if a signal arrived before the first call, JAX agrees on step 1.
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
            # None: the old handler was not installed from Python, so Python cannot restore it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._old_handlers.clear()

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._asked_by_hand:
            _say("leaving at once; unsaved work is lost")
            exit_at_once(EXIT_CODES[signal.SIGINT])
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
    # os.write instead of print: a handler may interrupt another print, and a nested print raises an exception.
    os.write(2, terminal.above_bars(message))
