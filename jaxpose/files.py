"""Files on disk: whole or not there at all, only regular ones read, and appended to by whole records."""

import errno
import hashlib
import os
import stat
import threading
from pathlib import Path
from typing import BinaryIO

# A damaged or forged file must not fill the memory.
_MOST_BYTES = 2**28
_NOT_REGULAR = "a FIFO, a socket or a device; it must be a regular file"


class NotRegularFile(ValueError):
    """A folder, a pipe, a device or a far too large file lies where a file is expected; the message names it."""


def open_regular(file: Path) -> BinaryIO:
    """Opens a file for reading; a named pipe, on which reading would wait for ever, is refused at once.

    Raises:
      OSError: the system refuses it.
      NotRegularFile: it is none, or is larger than any that jaxpose writes.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= _MOST_BYTES:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISREG(status.st_mode):
        raise NotRegularFile(f"{file} has {status.st_size:,} bytes; it must have at most {_MOST_BYTES:,}")
    raise NotRegularFile(f"{file} is a {'folder' if stat.S_ISDIR(status.st_mode) else 'pipe or device'}, not a file")


def read_bytes(file: Path) -> bytes:
    """Returns the whole content of a file; errors are those of `open_regular`."""
    with open_regular(file) as stream:
        return stream.read()


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
    with open(file, "rb", opener=_refuse_irregular) as stream:
        return stream.read()


def _refuse_irregular(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a FIFO waits for its writer.
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        os.close(descriptor)
        raise OSError(None, f"it is {_NOT_REGULAR}", path)
    return descriptor


def write_atomic(file: Path, data: bytes) -> None:
    """Writes a file so that at any moment either the old content or the new one is there."""
    temporary = file.with_name(temporary_name(file.name))
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(file)  # a full disk does not say of what
        raise


def temporary_name(name: str) -> str:
    """Returns the name under which a file is written before it is renamed."""
    return f".{name}.tmp"


def sha256_of(file: Path) -> str:
    """Returns the SHA-256 of a file's content in hexadecimal digits; the file may be larger than the memory.

    Raises:
      OSError: the file cannot be read.
    """
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class GrowingFile:
    """A file that is appended to; a record that does not fit on the disk leaves no half of itself behind."""

    def __init__(self, file: Path):
        self._file = file
        self._descriptor = -1
        self._lock = threading.Lock()

    def append(self, record: bytes) -> None:
        """Writes a record at the end, at once.

        Raises:
          OSError: it cannot be written; the file is as before.
        """
        with self._lock:
            if self._descriptor < 0:
                self._descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            size = os.fstat(self._descriptor).st_size
            try:
                if os.write(self._descriptor, record) < len(record):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(self._descriptor, size)
                raise

    def close(self) -> None:
        """Closes the file; a later `append` opens it again."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
