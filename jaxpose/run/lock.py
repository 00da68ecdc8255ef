"""The lock of a run folder: only one process at a time writes there."""

import fcntl
import logging
import os
import socket
import time
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.files import open_shared
from jaxpose.run.paths import LOCK_FILE

_LOCK_WAITS_S = (0.02, 0.1)

_logger = logging.getLogger(__name__)


def lock_folder(path: Path) -> int:
    """Makes a run folder and locks it; the system releases the lock when the process dies.

    Returns:
      The descriptor that holds the lock; closing it releases the lock.

    Raises:
      UserError: another process writes in the folder.
      OSError: the folder or its lock cannot be made.
    """
    path.mkdir(parents=True, exist_ok=True)
    lock = open_shared(path / LOCK_FILE, os.O_RDWR)
    try:
        _take(lock)
    except BlockingIOError:
        owner = os.pread(lock, 200, 0).decode(errors="replace").strip()
        os.close(lock)
        raise UserError(f"a run is writing in {path} ({owner}); wait for it, or choose another out") from None
    except OSError as error:
        _logger.warning("%s cannot be locked (%s): do not start a second run in it", path, error.strerror)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return lock


def _take(descriptor: int) -> None:
    # jaxpose.watch holds the lock for microseconds, so try again before giving up.
    for wait_s in _LOCK_WAITS_S:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(wait_s)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
