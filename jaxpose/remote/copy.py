"""Copies a run folder to a remote place while the run goes on, and calls a hook with each finished file.

Input: a run folder that a run writes to. Output: the same folder at <log.remote_url>/<its name>. No failure here stops
a run.
"""

import logging
import threading
import time
from typing import Any

from jaxpose.cluster.agreement import broadcast_from_0
from jaxpose.cluster.signals import Interrupt
from jaxpose.config import LogConfig
from jaxpose.quantities import listed
from jaxpose.remote.follower import Failure, Follower
from jaxpose.remote.hook import Hook
from jaxpose.remote.mirror import Mirror
from jaxpose.remote.store import RemoteFolder, run_name
from jaxpose.remote.user_function import load_hook
from jaxpose.run.folder import RunFolder
from jaxpose.terminal import say

NOT_COPIED = 3  # exit code

# How long a run that fails itself waits for its copy.
_FAREWELL_S = 5.0
# After a good end: how long it waits in silence, and how long without an answer of the store or the hook.
TELLS_AFTER_S, PATIENCE_S = 10.0, 600.0
# Files that are named in a warning.
_LISTED = 3

_logger = logging.getLogger(__name__)


class RemoteCopy:
    """The copy of one run, made by a thread of process 0; close it, or use it as a context.

    The hook has a thread of its own, so that a hanging hook does not stop the copy. Does nothing where neither a URL
    nor a hook is given, and in all processes but the first.
    """

    def __init__(self, folder: RunFolder, config: LogConfig):
        self._stop_s = config.remote_stop_s
        self._ending, self._leaving = threading.Event(), threading.Event()
        self._remote: RemoteFolder | None = None
        self._mirror: Mirror | None = None
        self._hook: Hook | None = None
        self._copying: Follower | None = None
        self._calling: Follower | None = None
        if not folder.is_ours:
            return
        every_s, events = config.remote_every_s, (self._ending, self._leaving)
        if function := load_hook(config.remote_hook):
            self._hook = Hook(folder.path, function)
            self._calling = Follower("remote hook", self._call_hook, every_s, *events, last=self._ending)
        if config.remote_url:
            self._remote = RemoteFolder(config.remote_url, run_name(folder.path))
            self._mirror = Mirror(folder.path, self._remote, folder.action == "start", self._leaving)
            # The hook's warnings are in train.log, which is copied too.
            last = self._calling.done if self._calling else self._ending
            self._copying = Follower("remote copy", self._copy, every_s, *events, last=last)

    def finish(self, summary: dict[str, Any], interrupt: Interrupt) -> dict[str, Any]:
        """Copies the last state and returns the run's summary, with exit code 3 where that failed after a good end.

        Every process must call it, once nothing writes to the run folder any more. After a signal it takes
        `log.remote_stop_s` at most; without one, it waits as long as the store or the hook answers now and then.
        """
        return summary | {"exit_code": broadcast_from_0(lambda: self._finish(summary["exit_code"], interrupt))}

    def __enter__(self) -> "RemoteCopy":
        return self

    def __exit__(self, *error: Any) -> None:
        if self._followers() and not self._leaving.is_set():
            self._ending.set()
            stops_at = time.monotonic() + _FAREWELL_S
            for follower in self._followers():
                follower.join(max(0.0, stops_at - time.monotonic()))
            self._leave()

    def _followers(self) -> list[Follower]:
        return [follower for follower in (self._calling, self._copying) if follower]

    def _finish(self, exit_code: int, interrupt: Interrupt) -> int:
        if not self._followers():
            return exit_code
        self._ending.set()
        why = self._wait(interrupt)
        self._leave()
        not_copied = self._mirror.missing() if self._mirror else []
        not_called = self._hook.missing() if self._hook else []
        if self._remote and self._copying and not_copied:
            _warn(f"the copy in {self._remote.url} lacks", not_copied, self._copying.reason or why)
        elif self._remote:
            # Not through the log: its copy would lack the line.
            say(f"everything is copied to {self._remote.url}")
        if self._calling and not_called:
            _warn("log.remote_hook was not called, or failed, for", not_called, self._calling.reason or why)
        return NOT_COPIED if exit_code == 0 and (not_copied or not_called) else exit_code

    def _wait(self, interrupt: Interrupt) -> str:
        """Waits for the threads; returns why it no longer waits."""
        stops_at, answers, has_reported = float("inf"), -1, False
        now = answered_at = started_at = time.monotonic()
        while (alive := [follower for follower in self._followers() if follower.is_alive()]) and now < stops_at:
            if now - answered_at >= PATIENCE_S:
                return f"nothing arrived for {PATIENCE_S:g} s"
            if not has_reported and now - started_at >= TELLS_AFTER_S and (awaited := self._awaited()):
                # Not through the log, as above.
                say(f"waiting for {' and for '.join(awaited)}")
                has_reported = True
            alive[0].join(0.1)
            now = time.monotonic()
            if interrupt.signal is not None:
                stops_at = min(stops_at, now + self._stop_s)
            if answers != (seen := sum(part.answers for part in (self._remote, self._hook) if part)):
                answers, answered_at = seen, now
        return "there was no time left"

    def _awaited(self) -> list[str]:
        awaited = []
        if self._remote and self._mirror and self._mirror.missing():
            awaited.append(f"the copy in {self._remote.url}")
        if self._hook and self._hook.path:
            awaited.append(f"log.remote_hook with {self._hook.path}")
        return awaited

    def _leave(self) -> None:
        self._leaving.set()
        if self._calling:
            self._calling.done.set()  # a hanging hook does not keep the copy waiting
        if self._remote:
            self._remote.give_up()

    def _copy(self, is_ending: bool) -> list[Failure]:
        assert self._mirror and self._remote
        try:
            self._mirror.sync()
        # Each kind of store has exceptions of its own.
        except Exception as error:
            return [(f"{self._remote.url} cannot be written", error)]
        return []

    def _call_hook(self, is_ending: bool) -> list[Failure]:
        assert self._hook
        failed = self._hook.call(is_ending, self._leaving.is_set)
        return [(f"log.remote_hook failed for {path}", error) for path, error in failed]


def _warn(what: str, missing: list[str], reason: str) -> None:
    _logger.warning("%s %s: %s; the same command tries again", what, listed(missing, _LISTED), reason)
