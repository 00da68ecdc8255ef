"""SIGTERM and Ctrl-C from the first moment of a verb: one line, and exit code 85 or 130.

Imports only the standard library, so that it runs before the packages that take seconds to import. There is nothing to
save until `cluster.signals.Interrupt` takes over: a signal ends the process at once, as a kill would, and every file is
either whole or absent.
"""

import collections
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from jaxpose import phases

# 85: please requeue, as launch/slurm.sbatch does. 130: how shells report Ctrl-C.
EXIT_CODES = {signal.SIGTERM: 85, signal.SIGINT: 130}

_verb = ""
_caught_times: collections.Counter[int] = collections.Counter()
_leaving = threading.Lock()
_tell_others: list[Callable[[int], None]] = []


def install(verb: str) -> None:
    """From now on SIGTERM and Ctrl-C end the process at once, until another handler is installed.

    Must be called in the main thread.

    Args:
      verb: what the line on stderr begins with.
    """
    global _verb
    _verb = verb
    wakes, woken = os.pipe()
    os.set_blocking(woken, False)
    for number in EXIT_CODES:
        # A shell starts a command in the background with Ctrl-C ignored, and it stays ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _caught)
    # Python runs a handler in the main thread, between two instructions of Python: that can wait for a compilation of
    # minutes. The thread is woken at once.
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(wakes,), name="early signals", daemon=True).start()
    # The launcher blocks them, so that one that comes before this line waits for it.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, EXIT_CODES)


def before_leaving(tell_others: Callable[[int], None]) -> None:
    """Lets a function tell the run's other processes that a signal ends this one; it is called with the exit code."""
    _tell_others.append(tell_others)


def ended(code: int) -> None:
    """Notes that the verb has ended with an exit code, which a signal no longer changes."""
    for number in EXIT_CODES:
        if signal.getsignal(number) is _caught:
            signal.signal(number, lambda *_: os._exit(code))


def _watch(wakes: int) -> None:
    while numbers := os.read(wakes, 64):
        for number in numbers:
            # Where another handler took over before the main thread ran this one, the signal is the other's.
            if number in EXIT_CODES and (signal.getsignal(number) is _caught or _caught_times[number]):
                _leave(number)


def _caught(number: int, frame: FrameType | None) -> None:
    _caught_times[number] += 1
    if number == signal.SIGINT and _caught_times[number] > 1:
        os._exit(EXIT_CODES[signal.SIGINT])
    _leave(number)


def _leave(number: int) -> None:
    # The main thread and the one that is woken both come here.
    if not _leaving.acquire(blocking=False):
        return
    code, name = EXIT_CODES[signal.Signals(number)], signal.Signals(number).name
    doing = f" while {phases.current()}" if phases.current() else ""
    # os.write: the main thread may be in the middle of a print. On a terminal the line of progress is wiped.
    wipe = "\r\x1b[K" if os.isatty(2) else ""
    os.write(2, f"{wipe}{_verb}: stopped by {name}{doing}; nothing is lost, the same command continues\n".encode())
    try:
        for tell in _tell_others:
            tell(code)
    finally:
        os._exit(code)
