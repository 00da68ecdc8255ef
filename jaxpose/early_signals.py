"""Handles SIGTERM and Ctrl-C from the first moment of a verb: one line, and exit code 85 or 130.

Verbs that save and resume `install` handlers for both. In other verbs, both raise an exception once the packages are
imported, so that unfinished files are removed; see `interruptible`.

This file imports only the standard library, so that it runs before packages that take seconds to import. Until
`cluster.signals.Interrupt` takes over there is nothing to save: a signal ends the process at once, as a kill would, and
every file is either whole or absent.
"""

import atexit
import collections
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from jaxpose import progress, terminal
from jaxpose.files import remove_unfinished

# 85 asks for a requeue (launch/slurm.sbatch). Shells report Ctrl-C as 130.
EXIT_CODES = {signal.SIGTERM: 85, signal.SIGINT: 130}

# Python's default handlers.
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)

_verb = ""
_caught_times: collections.Counter[int] = collections.Counter()
_leaving = threading.Lock()
_inform_others: list[Callable[[int], None]] = []


def install(verb: str) -> None:
    """Makes SIGTERM and Ctrl-C end the process at once, until another handler is installed.

    Must be called in the main thread.

    Args:
      verb: prefix of the line on stderr.
    """
    global _verb
    _verb = verb
    wakes, woken = os.pipe()
    os.set_blocking(woken, False)
    for number in EXIT_CODES:
        # A shell starts a background command with Ctrl-C ignored; it stays ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _caught)
    # Python runs a handler in the main thread between two instructions, so a compilation may delay it for minutes. The
    # wake-up file descriptor wakes the thread `_watch` at once.
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(wakes,), name="early signals", daemon=True).start()
    # The launcher blocks these signals, so an early one is still pending here.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, EXIT_CODES)


class Terminated(KeyboardInterrupt):
    """SIGTERM in a verb that saves nothing; like KeyboardInterrupt for Ctrl-C."""


def leave_on_interrupt() -> None:
    """Makes SIGTERM and Ctrl-C end the process at once, with a line, until other handlers are installed.

    `interruptible` installs some. Must be called in the main thread.
    """
    for number in EXIT_CODES:
        if signal.getsignal(number) in _DEFAULTS:
            signal.signal(number, _interrupted)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A context in which Ctrl-C raises KeyboardInterrupt and SIGTERM raises Terminated, so that files are removed.

    During an import, they end the process at once, because packages turn such an error into another one, such as
    numpy's ImportError, or lose it. A handler that was installed before stays.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in EXIT_CODES}
    ours = [number for number, handler in before.items() if handler in (*_DEFAULTS, _interrupted)]
    for number in ours:
        signal.signal(number, _interrupted_in_work)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is _interrupted_in_work:
                signal.signal(number, before[number])


def before_leaving(inform_others: Callable[[int], None]) -> None:
    """Registers a function that informs the run's other processes of a signal; it is called with the exit code."""
    _inform_others.append(inform_others)


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Ends the process with the exit code of a verb; a later signal does not change the code.

    Args:
      main: runs the verb.
    """
    leave_on_interrupt()
    # Exit functions run in reverse order, so a signal still ends one that hangs, such as JAX's.
    atexit.register(_ignore)
    code = main()
    ended(code)
    sys.exit(code)


def ended(code: int) -> None:
    """Makes a signal end the process at once with the exit code of the finished verb."""
    for number in EXIT_CODES:
        if signal.getsignal(number) in (_caught, _interrupted):
            signal.signal(number, lambda *_: exit_at_once(code))


def _ignore() -> None:
    """Ignores signals while Python shuts down: its handlers are gone by then, and the default kills."""
    for number in EXIT_CODES:
        signal.signal(number, signal.SIG_IGN)


def _interrupted(number: int, frame: FrameType | None) -> None:
    os.write(2, f"jaxpose: {how_interrupted(number)}\n".encode())
    exit_at_once(EXIT_CODES[signal.Signals(number)])


def _interrupted_in_work(number: int, frame: FrameType | None) -> None:
    caller = frame
    while caller:
        if caller.f_code.co_filename.startswith("<frozen importlib"):
            _interrupted(number, frame)
        caller = caller.f_back
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def how_interrupted(number: int) -> str:
    """Returns the text about a signal for a line on stderr."""
    return "stopped by SIGTERM" if number == signal.SIGTERM else "interrupted"


def exit_at_once(code: int) -> NoReturn:
    """Ends the process without returning to its work; removes its unfinished files."""
    remove_unfinished()
    os._exit(code)


def _watch(wakes: int) -> None:
    while numbers := os.read(wakes, 64):
        for number in numbers:
            # If another handler replaced this one before the main thread ran it, the signal is for the other handler.
            if number in EXIT_CODES and (signal.getsignal(number) is _caught or _caught_times[number]):
                _leave(number)


def _caught(number: int, frame: FrameType | None) -> None:
    _caught_times[number] += 1
    if number == signal.SIGINT and _caught_times[number] > 1:
        exit_at_once(EXIT_CODES[signal.SIGINT])
    _leave(number)


def _leave(number: int) -> None:
    # Both the main thread and the thread `_watch` call this.
    if not _leaving.acquire(blocking=False):
        return
    code, name = EXIT_CODES[signal.Signals(number)], signal.Signals(number).name
    doing = f" while {progress.current()}" if progress.current() else ""
    # os.write instead of print: the main thread may be printing.
    os.write(2, terminal.above_bars(f"{_verb}: stopped by {name}{doing}; nothing is lost, the same command continues"))
    try:
        for inform in _inform_others:
            inform(code)
    finally:
        exit_at_once(code)
