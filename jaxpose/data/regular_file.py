"""Files that a user names: only regular ones are read, so that a FIFO or a device is an error and not a wait."""

import os
import stat
from pathlib import Path

_NOT_REGULAR = "a FIFO, a socket or a device; it must be a regular file"


def is_regular(file: Path) -> bool:
    """Returns whether a path is a regular file; False if it is a folder or does not exist.

    Raises:
      ValueError: it is a FIFO, a socket or a device, or the system cannot follow it (a loop of symbolic links).
    """
    try:
        mode = os.stat(file).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ValueError(f"{file} is {_NOT_REGULAR}")
    return stat.S_ISREG(mode)


def read_regular(file: Path) -> bytes:
    """Returns the content of a regular file.

    Raises:
      OSError: it does not exist, cannot be read, or is not a regular file; `strerror` says which.
    """
    with open(file, "rb", opener=_open_regular) as stream:
        return stream.read()


def _open_regular(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a FIFO waits for its writer.
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        os.close(descriptor)
        raise OSError(None, f"it is {_NOT_REGULAR}", path)
    return descriptor
