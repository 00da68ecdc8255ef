"""Reads regular files only, writes files atomically, and appends whole records."""

import contextlib
import errno
import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from jaxpose.errors import UserError

# A damaged or forged file must not fill the memory.
_MOST_BYTES = 2**28


class NotRegularFile(UserError):
    """A path that should be a file is a folder, a pipe or a device, or the file is far too large.

    Attributes:
      strerror: the reason without the name of the file, as in OSError.
    """

    def __init__(self, file: Path, reason: str):
        super().__init__(f"{file} {reason}")
        self.strerror = f"it {reason}"


def open_regular(file: Path, most_bytes: int | None = _MOST_BYTES) -> BinaryIO:
    """Opens a file for reading; refuses a named pipe at once, because reading it would wait for ever.

    Args:
      file: what to open.
      most_bytes: size above which the file is refused, for files that jaxpose writes; None is no limit.

    Raises:
      OSError: the system refuses it.
      NotRegularFile: it is not a regular file, or is too large.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    reason = _irregularity(status.st_mode)
    if not reason and most_bytes is not None and status.st_size > most_bytes:
        reason = f"has {status.st_size:,} bytes; it must have at most {most_bytes:,}"
    if reason:
        os.close(descriptor)
        raise NotRegularFile(file, reason)
    return os.fdopen(descriptor, "rb")


def read_bytes(file: Path, most_bytes: int | None = _MOST_BYTES) -> bytes:
    """Returns the whole content of a file; arguments and errors are those of `open_regular`."""
    with open_regular(file, most_bytes) as stream:
        return stream.read()


def is_regular(file: Path) -> bool:
    """Returns whether a path is a regular file; False if it is a folder or does not exist.

    Raises:
      UserError: it is a pipe, a socket or a device, or the system cannot follow it (a loop of symbolic links).
    """
    try:
        mode = os.stat(file).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    reason = _irregularity(mode)
    if reason and not stat.S_ISDIR(mode):
        raise NotRegularFile(file, reason)
    return not reason


def _irregularity(mode: int) -> str:
    """Returns why a file of this mode is not read, "" for a regular one."""
    if stat.S_ISREG(mode):
        return ""
    return f"is a {'folder' if stat.S_ISDIR(mode) else 'pipe or device'}, not a file"


@contextlib.contextmanager
def open_atomic(file: Path, temporary: str = "", sync: bool = True) -> Iterator[BinaryIO]:
    """Opens a file for writing so that, at any moment, readers see either the old content or the new one.

    Args:
      file: what to write; its folder exists.
      temporary: name during the writing; "" stands for `temporary_name`. Processes that may write the same file at the
        same time need different names.
      sync: wait until the content is on the disk; not needed for files that can be made again.
    """
    unfinished = file.with_name(temporary or temporary_name(file.name))
    try:
        with open(unfinished, "wb") as stream:
            yield stream
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
        os.replace(unfinished, file)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def write_atomic(file: Path, data: bytes) -> None:
    """Writes a file so that, at any moment, readers see either the old content or the new one."""
    try:
        with open_atomic(file) as stream:
            stream.write(data)
    except OSError as error:
        error.filename = str(file)  # the error of a full disk does not name the file
        raise


@contextlib.contextmanager
def replace_whole(file: Path) -> Iterator[Path]:
    """Gives a path with the same suffixes, for libraries that open files themselves; renames it at the end.

    After an error, neither file is there.

    Args:
      file: what to write; its folder is made.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".partial.{file.name}")
    try:
        yield unfinished
        os.replace(unfinished, file)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def temporary_name(name: str) -> str:
    """Returns the name of a file while it is written, before it is renamed."""
    return f".{name}.tmp"


def sha256_of(file: Path) -> str:
    """Returns the SHA-256 of a file's content in hexadecimal digits; the file may be larger than the memory.

    Raises:
      OSError: the file cannot be read.
    """
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class GrowingFile:
    """Appends records to a file; a record that does not fit on the disk is removed completely."""

    def __init__(self, file: Path):
        self._file = file
        self._descriptor = -1
        self._lock = threading.Lock()

    def append(self, record: bytes) -> None:
        """Writes a record at the end, at once.

        Raises:
          OSError: the record cannot be written; the file is unchanged.
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
