"""Copies a run folder away from the machine while the run goes on, and tells a hook of each finished file.

What comes in: a run folder that a run writes in. What goes out: the same folder at <log.remote_url>/<its name>.
Nothing that fails here stops a run.
"""

import logging
import sys
import threading
import time
from typing import Any

from tqdm import tqdm

from jaxpose.cluster.agreement import from_first
from jaxpose.config import LogConfig
from jaxpose.training.interrupt import Interrupt
from jaxpose.training.remote_folder import RemoteFolder, run_name
from jaxpose.training.remote_hook import Hook, load_hook
from jaxpose.training.remote_mirror import Mirror
from jaxpose.training.run_folder import RunFolder

NOT_COPIED = 3  # exit code

_LONGEST_WAIT_S = 600.0
# After the end: rounds in a row that may fail, and how long a run that fails itself waits for its copy.
_LAST_ROUNDS, _FAREWELL_S = 3, 5.0

_logger = logging.getLogger(__name__)


class RemoteCopy:
    """The copy of one run, made by a thread of process 0; close it, or use it as a context.

    Does nothing where neither a URL nor a hook is given, and in all processes but the first.
    """

    def __init__(self, folder: RunFolder, config: LogConfig):
        self._every_s, self._stop_s = config.remote_every_s, config.remote_stop_s
        self._ending, self._leaving = threading.Event(), threading.Event()
        self._remote: RemoteFolder | None = None
        self._mirror: Mirror | None = None
        self._hook: Hook | None = None
        self._reasons: dict[str, str] = {}
        self._warned: set[str] = set()
        self._thread: threading.Thread | None = None
        if not folder.is_ours or not (config.remote_url or config.remote_hook):
            return
        if config.remote_url:
            self._remote = RemoteFolder(config.remote_url, run_name(folder.path))
            self._mirror = Mirror(folder.path, self._remote, folder.action == "start", self._leaving)
        if function := load_hook(config.remote_hook):
            self._hook = Hook(folder.path, function)
        # A daemon: a file system that hangs does not keep the process.
        self._thread = threading.Thread(target=self._work, name="remote copy", daemon=True)
        self._thread.start()

    def finish(self, summary: dict[str, Any], interrupt: Interrupt) -> dict[str, Any]:
        """Copies the last state and returns the run's summary, with exit code 3 where that failed after a good end.

        To be called by every process, once nothing writes in the run folder any more. After a signal it takes
        `log.remote_stop_s` at most; without one, as long as something arrives.
        """
        return summary | {"exit_code": from_first(lambda: self._finish(summary["exit_code"], interrupt))}

    def __enter__(self) -> "RemoteCopy":
        return self

    def __exit__(self, *error: Any) -> None:
        if self._thread is not None and not self._leaving.is_set():
            self._ending.set()
            self._thread.join(_FAREWELL_S)
            self._leave()

    def _finish(self, exit_code: int, interrupt: Interrupt) -> int:
        if self._thread is None:
            return exit_code
        self._ending.set()
        stops_at = float("inf")
        while self._thread.is_alive() and time.monotonic() < stops_at:
            self._thread.join(0.1)
            if interrupt.signal is not None:
                stops_at = min(stops_at, time.monotonic() + self._stop_s)
        self._leave()
        not_copied = self._mirror.missing() if self._mirror else []
        not_told = self._hook.missing() if self._hook else []
        if not_copied and self._remote:
            self._say_missing("copy", f"the copy in {self._remote.url} lacks", not_copied)
        elif self._remote:
            # Not through the log, whose copy would then lack a line.
            tqdm.write(f"everything is copied to {self._remote.url}", file=sys.stdout)
        if not_told:
            self._say_missing("hook", "log.remote_hook was not called, or in vain, with", not_told)
        return NOT_COPIED if exit_code == 0 and (not_copied or not_told) else exit_code

    def _say_missing(self, kind: str, what: str, missing: list[str]) -> None:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        reason = self._reasons.get(kind, "there was no time left")
        _logger.warning("%s %s%s: %s; the same command goes on with it", what, ", ".join(missing[:3]), more, reason)

    def _leave(self) -> None:
        self._leaving.set()
        if self._remote:
            self._remote.give_up()

    def _work(self) -> None:
        """Runs in the thread: looks what has changed, again and again."""
        failures = 0
        while not self._leaving.is_set():
            is_last = self._ending.is_set()
            failures = 0 if self._follow(is_last) else failures + 1
            if not is_last:
                self._ending.wait(min(self._every_s * 2**failures, max(self._every_s, _LONGEST_WAIT_S)))
            elif not failures or failures >= _LAST_ROUNDS:
                return
            else:
                self._leaving.wait(2 ** (failures - 1))

    def _follow(self, is_last: bool) -> bool:
        """Copies what has changed and tells the hook of it; returns whether both went well."""
        self._reasons.clear()
        if self._mirror and self._remote:
            try:
                self._mirror.follow()
            # Each kind of store has exceptions of its own.
            except Exception as error:
                self._failed("copy", f"{self._remote.url} cannot be written", error)
        for path, error in self._hook.follow(is_last, self._leaving.is_set) if self._hook else []:
            self._failed("hook", f"log.remote_hook failed for {path}", error)
        return not self._reasons

    def _failed(self, kind: str, what: str, error: BaseException) -> None:
        self._reasons[kind] = (str(error).splitlines() or [""])[0] or type(error).__name__
        if kind not in self._warned:
            self._warned.add(kind)
            _logger.warning("%s: %s; the run goes on, and it is tried again", what, self._reasons[kind])
