"""A process that the page starts, and that outlives it.

Its output goes to a log. The process keeps the log locked while it runs, so that a page opened later can tell.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.files import open_shared, try_lock

_MOST_LOG_BYTES = 4096


class Background:
    """The processes of one log, one at a time.

    Attributes:
      log: the file.
    """

    def __init__(self, log: Path, busy: str):
        """Takes the log, and what is said while a process has it."""
        self.log, self._busy = log, busy
        self._process: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def claimed(self) -> Iterator[int]:
        """Yields the descriptor of the locked log, for `start`.

        Raises:
          UserError: a process has it.
          OSError: it cannot be opened.
        """
        log = open_shared(self.log, os.O_RDWR | os.O_APPEND)
        try:
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(self._busy) from None
            except OSError:
                pass  # a file system without locks
            yield log
        finally:
            # The processes hold the lock on.
            os.close(log)

    def start(self, log: int, script: str, arguments: Sequence[str], variables: Mapping[str, str]) -> int:
        """Starts a process, and returns the number of its group.

        Args:
          log: the claimed log, which is emptied.
          script: for sh, with the interpreter as $PYTHON.
          arguments: its $@.
          variables: of its environment.
        """
        os.ftruncate(log, 0)
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"PYTHON": sys.executable, **variables},
        )
        return self._process.pid

    def is_running(self) -> bool:
        """Returns whether a process has the log, whoever started it."""
        if self._process:
            self._process.poll()
        try:
            log = os.open(self.log, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            is_free = try_lock(log, fcntl.LOCK_SH)
        finally:
            os.close(log)
        if is_free is None:
            return bool(self._process and self._process.returncode is None)
        return not is_free

    def stop(self, group: int) -> None:
        """Ends the running processes as Ctrl-C would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGTERM)

    def last_lines(self) -> list[str]:
        """Returns the last lines of the log, without empty ones."""
        try:
            with open(self.log, "rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - _MOST_LOG_BYTES))
                return [line for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
        except FileNotFoundError:
            return []
