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
from jaxpose.unfinished import naming_errors, refuse_lack_of_space, unfinished_file, unfinished_folder

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
def open_atomic(file: Path, sync: bool = True, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Opens a file for writing so that, at any moment, readers see either the old content or the new one.

    A link with this name is replaced, not followed.

    Args:
      file: what to write; its folder exists.
      sync: wait until the content is on the disk; not needed for files that can be made again.
      mode: permissions, of which the process's umask takes some away.

    Raises:
      OSError: the file cannot be written; the error names it.
    """
    with naming_errors(file), unfinished_file(file, mode) as (unfinished, descriptor):
        # A network folder may report a full disk only when a descriptor is closed; the other one keeps the lock.
        with os.fdopen(os.dup(descriptor), "wb") as stream:
            yield stream
            stream.flush()
            if sync:
                os.fsync(descriptor)
        os.replace(unfinished, file)


def write_atomic(file: Path, data: bytes) -> None:
    """Writes a file so that, at any moment, readers see either the old content or the new one; see `open_atomic`."""
    with open_atomic(file) as stream:
        stream.write(data)


@contextlib.contextmanager
def replace_whole(file: Path, needed_bytes: int = 0) -> Iterator[Path]:
    """Gives a path with the same name in a new folder, for libraries that open files themselves; moves it at the end.

    After an error, the old file is as before. A link with this name is replaced, not followed.

    Args:
      file: what to write; its folder is made.
      needed_bytes: space that must be free at the beginning, for a library that a full disk would crash (HDF5).

    Raises:
      OSError: the file cannot be written, whatever error the library has for a full disk; the error names the file.
    """
    with naming_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_folder(file) as folder:
            if needed_bytes:
                refuse_lack_of_space(folder, needed_bytes)
            unfinished = folder / file.name
            yield unfinished
            with open(unfinished, "rb+") as stream:
                os.fsync(stream.fileno())
            os.replace(unfinished, file)


@contextlib.contextmanager
def write_folder(folder: Path, overwrite: bool = False) -> Iterator[Path]:
    """Gives a new folder that gets its name at the end, complete or not at all; `write_new` writes its files.

    Args:
      folder: what to write: absent, empty, or a link to such a folder, which stays a link. A folder that holds the
        same files already stays as it is.
      overwrite: the folder may hold other files; they are removed at the end.

    Raises:
      OSError: the folder cannot be written, or holds files; the error names it.
    """
    with naming_errors(folder):
        target = Path(os.path.realpath(folder))
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_folder(target) as place:
            new = place / target.name
            new.mkdir()
            yield new
            if target.is_dir() and has_same_files(new, target):
                return
            if overwrite and target.is_dir():
                os.replace(target, place / ".before")
            os.replace(new, target)


def has_same_files(folder: Path, other: Path) -> bool:
    """Returns whether two folders hold files with the same names and bytes."""
    files = [
        {file.relative_to(place): file for file in place.rglob("*") if file.is_file()} for place in (folder, other)
    ]
    return files[0].keys() == files[1].keys() and all(
        is_same_file(file, files[1][name]) for name, file in files[0].items()
    )


def is_same_file(file: Path, other: Path) -> bool:
    """Returns whether the second path is a regular file with the bytes of the first one."""
    is_same_size = is_regular(other) and other.stat().st_size == file.stat().st_size
    return is_same_size and sha256_of(other) == sha256_of(file)


def write_new(file: Path, data: bytes) -> None:
    """Writes a file in place, as `open_new`."""
    with naming_errors(file), open_new(file) as stream:
        stream.write(data)


def open_new(file: Path) -> BinaryIO:
    """Opens a file for writing in place; removes a file or link with this name before.

    Only for files that no reader takes for complete: in a new folder, which gets its name at the end, or logs.

    Raises:
      OSError: the file cannot be written.
    """
    file.unlink(missing_ok=True)
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "wb")


def open_shared(file: Path, flags: int) -> int:
    """Opens a file that several processes write to, such as a log or a lock, and returns its descriptor.

    Args:
      file: what to open; it is made.
      flags: of `os.open`, such as `os.O_WRONLY | os.O_APPEND`.

    Raises:
      OSError: the system refuses it, or it is a link, a pipe or a device; the error names it.
    """
    safe = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(file, flags | safe, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(file):
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed: remove it", str(file)) from None
        if error.errno != errno.ENXIO:
            raise
        descriptor = -1  # a pipe that nobody reads
    if descriptor >= 0 and stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    if descriptor >= 0:
        os.close(descriptor)
    raise OSError(errno.ENXIO, "it is a pipe or device, not a file", str(file))


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
                self._descriptor = open_shared(self._file, os.O_WRONLY | os.O_APPEND)
            size = os.fstat(self._descriptor).st_size
            try:
                if os.write(self._descriptor, record) < len(record):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                os.ftruncate(self._descriptor, size)
                error.filename = str(self._file)
                raise

    def close(self) -> None:
        """Closes the file; a later `append` opens it again."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
