"""Copies a run folder away from the machine while the run goes on, and tells a hook of each finished file.

What comes in: a run folder that a run writes in. What goes out: the same folder at <log.remote_url>/<its name>.
Nothing that fails here stops a run.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from jaxpose.cluster.agreement import from_first
from jaxpose.cluster.signals import Interrupt
from jaxpose.config import LogConfig
from jaxpose.remote.hook import Hook, load_hook
from jaxpose.remote.mirror import Mirror
from jaxpose.remote.store import RemoteFolder, run_name
from jaxpose.run.folder import RunFolder

NOT_COPIED = 3  # exit code

_LONGEST_WAIT_S = 600.0
# After the end: rounds in a row that may fail, and how long a run that fails itself waits for its copy.
_LAST_ROUNDS, _FAREWELL_S = 3, 5.0
# After a good end: how long it waits in silence, and how long without an answer of the store or the hook.
_TELLS_AFTER_S, _PATIENCE_S = 10.0, 600.0

_logger = logging.getLogger(__name__)


class RemoteCopy:
    """The copy of one run, made by a thread of process 0; close it, or use it as a context.

    The hook has a thread of its own: one that hangs does not stop the copy. Does nothing where neither a URL nor a hook
    is given, and in all processes but the first.
    """

    def __init__(self, folder: RunFolder, config: LogConfig):
        self._every_s, self._stop_s = config.remote_every_s, config.remote_stop_s
        self._ending, self._leaving = threading.Event(), threading.Event()
        # The hook is done, and what it had to say is in train.log.
        self._told = threading.Event()
        self._remote: RemoteFolder | None = None
        self._mirror: Mirror | None = None
        self._hook: Hook | None = None
        self._reasons: dict[str, str] = {}
        self._warned: set[str] = set()
        self._threads: list[threading.Thread] = []
        if not folder.is_ours or not (config.remote_url or config.remote_hook):
            return
        if function := load_hook(config.remote_hook):
            self._hook = Hook(folder.path, function)
            self._start("remote hook", self._tell_all)
        else:
            self._told.set()
        if config.remote_url:
            self._remote = RemoteFolder(config.remote_url, run_name(folder.path))
            self._mirror = Mirror(folder.path, self._remote, folder.action == "start", self._leaving)
            self._start("remote copy", lambda: self._work(self._copy, self._told))

    def finish(self, summary: dict[str, Any], interrupt: Interrupt) -> dict[str, Any]:
        """Copies the last state and returns the run's summary, with exit code 3 where that failed after a good end.

        To be called by every process, once nothing writes in the run folder any more. After a signal it takes
        `log.remote_stop_s` at most; without one, as long as the store or the hook answers now and then.
        """
        return summary | {"exit_code": from_first(lambda: self._finish(summary["exit_code"], interrupt))}

    def __enter__(self) -> "RemoteCopy":
        return self

    def __exit__(self, *error: Any) -> None:
        if self._threads and not self._leaving.is_set():
            self._ending.set()
            stops_at = time.monotonic() + _FAREWELL_S
            for thread in self._threads:
                thread.join(max(0.0, stops_at - time.monotonic()))
            self._leave()

    def _start(self, name: str, work: Callable[[], None]) -> None:
        # A daemon: a file system or a hook that hangs does not keep the process.
        self._threads.append(threading.Thread(target=work, name=name, daemon=True))
        self._threads[-1].start()

    def _finish(self, exit_code: int, interrupt: Interrupt) -> int:
        if not self._threads:
            return exit_code
        self._ending.set()
        why = self._wait(interrupt)
        self._leave()
        not_copied = self._mirror.missing() if self._mirror else []
        not_told = self._hook.missing() if self._hook else []
        if not_copied and self._remote:
            self._say_missing("copy", f"the copy in {self._remote.url} lacks", not_copied, why)
        elif self._remote:
            # Not through the log, whose copy would then lack a line.
            tqdm.write(f"everything is copied to {self._remote.url}", file=sys.stdout)
        if not_told:
            self._say_missing("hook", "log.remote_hook was not called, or in vain, with", not_told, why)
        return NOT_COPIED if exit_code == 0 and (not_copied or not_told) else exit_code

    def _wait(self, interrupt: Interrupt) -> str:
        """Waits for the threads, and returns why no longer."""
        stops_at, answers, is_told = float("inf"), -1, False
        now = answered_at = started_at = time.monotonic()
        while (alive := [thread for thread in self._threads if thread.is_alive()]) and now < stops_at:
            if now - answered_at >= _PATIENCE_S:
                return f"nothing arrived for {_PATIENCE_S:g} s"
            if not is_told and now - started_at >= _TELLS_AFTER_S and (awaited := self._awaited()):
                # Not through the log, as below.
                tqdm.write(f"waits for {' and for '.join(awaited)}", file=sys.stdout)
                is_told = True
            alive[0].join(0.1)
            now = time.monotonic()
            if interrupt.signal is not None:
                stops_at = min(stops_at, now + self._stop_s)
            if answers != (seen := sum(part.answers for part in (self._remote, self._hook) if part)):
                answers, answered_at = seen, now
        return "there was no time left"

    def _awaited(self) -> list[str]:
        awaited = (
            [f"the copy in {self._remote.url}"] if self._remote and self._mirror and self._mirror.missing() else []
        )
        return awaited + ([f"log.remote_hook with {self._hook.path}"] if self._hook and self._hook.path else [])

    def _say_missing(self, kind: str, what: str, missing: list[str], why: str) -> None:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        reason = self._reasons.get(kind, why)
        _logger.warning("%s %s%s: %s; the same command goes on with it", what, ", ".join(missing[:3]), more, reason)

    def _leave(self) -> None:
        self._leaving.set()
        self._told.set()
        if self._remote:
            self._remote.give_up()

    def _work(self, follow: Callable[[bool], bool], last: threading.Event) -> None:
        """Runs in a thread: looks what has changed, again and again.

        Args:
          follow: does what is to be done, told whether the run is at its end; returns whether all went well.
          last: once it is set, nothing changes any more.
        """
        failures = 0
        while not self._leaving.is_set():
            is_ending, is_last = self._ending.is_set(), last.is_set()
            failures = 0 if follow(is_ending) else failures + 1
            if not is_ending:
                self._ending.wait(min(self._every_s * 2**failures, max(self._every_s, _LONGEST_WAIT_S)))
            elif failures >= _LAST_ROUNDS or (is_last and not failures):
                return
            elif failures:
                self._leaving.wait(2 ** (failures - 1))
            else:
                last.wait()

    def _copy(self, is_ending: bool) -> bool:
        assert self._mirror and self._remote
        self._reasons.pop("copy", None)
        try:
            self._mirror.sync()
        # Each kind of store has exceptions of its own.
        except Exception as error:
            self._failed("copy", f"{self._remote.url} cannot be written", error)
        return "copy" not in self._reasons

    def _tell(self, is_ending: bool) -> bool:
        assert self._hook
        self._reasons.pop("hook", None)
        for path, error in self._hook.follow(is_ending, self._leaving.is_set):
            self._failed("hook", f"log.remote_hook failed for {path}", error)
        return "hook" not in self._reasons

    def _tell_all(self) -> None:
        self._work(self._tell, self._ending)
        self._told.set()

    def _failed(self, kind: str, what: str, error: BaseException) -> None:
        self._reasons[kind] = (str(error).splitlines() or [""])[0] or type(error).__name__
        if kind not in self._warned:
            self._warned.add(kind)
            _logger.warning("%s: %s; the run goes on, and it is tried again", what, self._reasons[kind])
