"""The lock on the label files of a project: one process at a time writes them."""

import contextlib
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.files import open_shared
from jaxpose.terminal import print_lines

LOCK_FILE = ".jaxpose_labels.lock"
_MOST_WAIT_S, _POLL_S = 60.0, 0.05

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def locked_labels(folder: Path) -> Iterator[None]:
    """A context in which no other process of jaxpose writes label files of a project; waits for another one.

    The system releases the lock when the process dies. It holds between machines on network file systems with locks
    (NFS, Lustre with flock); elsewhere a warning says that there is none.

    Args:
      folder: of the project.

    Raises:
      UserError: another process has been writing for a minute.
      OSError: the folder cannot be written.
    """
    file = folder / LOCK_FILE
    lock = _lock(file)
    try:
        yield
    finally:
        # Removed while it is locked: who waits for it notices that it is not the file of that name any more.
        file.unlink(missing_ok=True)
        os.close(lock)


def _lock(file: Path) -> int:
    """Returns the descriptor of a lock file, locked, with the name of this process as its content."""
    end, is_told = time.monotonic() + _MOST_WAIT_S, False
    while True:
        lock = open_shared(file, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(lock)
            if time.monotonic() > end:
                raise UserError(
                    f"{owner} has been writing the labels of {file.parent} for a minute; wait for it, then repeat"
                ) from None
            if not is_told:
                print_lines(f"waiting for {owner}, which writes the labels of {file.parent}")
            is_told = True
            time.sleep(_POLL_S)
            continue
        except OSError as error:
            _logger.warning(
                "%s cannot be locked (%s): do not run two commands at once that write its labels", file, error.strerror
            )
        if _is_file(lock, file):
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            return lock
        os.close(lock)


def _is_file(lock: int, file: Path) -> bool:
    """Returns whether a descriptor is that of the file of this name, which the last owner may have removed."""
    try:
        return os.path.samestat(os.fstat(lock), os.lstat(file))
    except FileNotFoundError:
        return False
