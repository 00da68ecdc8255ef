"""Reads regular files only, writes files and folders atomically, and appends whole records."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from jaxpose.errors import UserError

# Unfinished files and folders: next to their target, under a name that no other process and no link has.
#
# An unfinished file of report.html is .report.html.0.tmp, or the first number after 0 that is free. Its process holds a
# lock on it. The next process that writes the same target removes the leftovers of a killed process, so they do not
# pile up. A file is always a new one (O_EXCL, O_NOFOLLOW), so a link planted under its name is not followed.

# System errors for a full disk or quota, and for a limit on the size of a file.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Marks the path of an unfinished file, or of a file in an unfinished folder.
_UNFINISHED = re.compile(r"/\.[^/]*\.\d+\.tmp(/|$)")
_ENDING = ".tmp"
LOCK_FILE = ".lock"
# File names have at most 255 bytes.
_LONGEST_NAME = 200
# Some folders, such as those of /proc, exist but refuse every new file as if they did not exist.
_MOST_TRIES = 1000
# If the file system has no locks, an unfinished file counts as abandoned after this long without a write.
_STALE_S = 24 * 3600

_new_flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Absolute path of an unfinished file or folder of this process -> the descriptor that holds its lock.
_held: dict[Path, int] = {}


def pattern_of(name: str) -> str:
    """Returns a glob of the unfinished files of a target with this name, which may be a glob itself."""
    return f".{name}.*{_ENDING.removeprefix('.')}"


@contextlib.contextmanager
def unfinished_file(target: Path, mode: int = 0o666) -> Iterator[tuple[Path, int]]:
    """Yields a new, locked file next to a target, and its descriptor; removes it if it still has its name at the end.

    Args:
      target: the file to write; its folder exists.
      mode: permissions, before the process's umask.

    Raises:
      OSError: the file cannot be made.
    """
    path, descriptor = _new(target, lambda path: os.open(path, _new_flags, mode))
    with _holding(path, descriptor):
        yield path, descriptor


@contextlib.contextmanager
def unfinished_folder(target: Path) -> Iterator[Path]:
    """Yields a new folder next to a target, for libraries that open files themselves; removes it at the end.

    Raises:
      OSError: the folder cannot be made.
    """

    def make(path: Path) -> int:
        path.mkdir()
        return os.open(path / LOCK_FILE, _new_flags, 0o666)

    path, descriptor = _new(target, make)
    with _holding(path, descriptor):
        yield path


@contextlib.contextmanager
def naming_errors(target: Path) -> Iterator[None]:
    """A context in which a system error names the target, not its unfinished file or no file.

    For a file in an unfinished folder, the error names the final place.

    A library's own error for a full disk becomes an OSError.
    """
    try:
        yield
    except Exception as error:
        filename = error.filename if isinstance(error, OSError) else None
        shown = _UNFINISHED.sub("/", "/" if filename is None else os.fsdecode(filename))
        shown = str(target) if shown.endswith("/") else shown
        if number := _full_disk(error):
            raise OSError(number, os.strerror(number), shown) from None
        if isinstance(error, OSError) and filename is not None and os.fsdecode(filename) != shown:
            error.filename, error.filename2 = shown, None
        raise


def _full_disk(error: Exception) -> int:
    """Returns the system's error number if a write failed for lack of space, else 0."""
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        return error.errno
    # HDF5, Arrow and others quote the system's text.
    texts = () if isinstance(error, UserError) else _NO_SPACE
    return next((number for number in texts if os.strerror(number) in str(error)), 0)


def refuse_lack_of_space(folder: Path, needed_bytes: int) -> None:
    """Raises OSError if a file of this size does not fit on the disk or exceeds a quota or a limit of the process."""
    if shutil.disk_usage(folder).free < needed_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    trial = folder / ".space"
    descriptor = os.open(trial, _new_flags, 0o666)
    try:
        os.posix_fallocate(descriptor, 0, needed_bytes)
    except OSError as error:
        # Some file systems cannot reserve space.
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
    finally:
        os.close(descriptor)
        trial.unlink()


def was_cut_off(target: Path) -> bool:
    """Returns whether an unfinished file or folder lies next to a target: a command that wrote it may have been killed.

    It may have completed its last file without reporting this. So a command that finds such a target compares it with
    its own output, and does not refuse at once.
    """
    return any(target.parent.glob(pattern_of(glob.escape(target.name))))


def is_unfinished(name: str) -> bool:
    """Returns whether a file or folder of this name is an unfinished one."""
    return bool(_UNFINISHED.fullmatch(f"/{name}"))


def remove_abandoned(folder: Path) -> list[Path]:
    """Removes the unfinished files and folders in a folder that no process holds; returns the others."""
    found = sorted(path for path in folder.iterdir() if is_unfinished(path.name))
    return [path for path in found if not _remove_abandoned(path)]


def remove_unfinished() -> None:
    """Removes all unfinished files of this process, just before it ends."""
    for path, descriptor in list(_held.items()):
        _remove_locked(path, descriptor)


@contextlib.contextmanager
def _holding(path: Path, descriptor: int) -> Iterator[None]:
    # A writer may have changed the current folder when a signal ends the process.
    path = path.absolute()
    _held[path] = descriptor
    try:
        yield
    finally:
        _remove_locked(path, descriptor)
        _held.pop(path, None)
        os.close(descriptor)


def _new(target: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """Calls `make` with the first free name next to a target; returns the name and the locked descriptor.

    Raises:
      OSError: the system refuses it, or no name is free.
    """
    for number in range(_MOST_TRIES):
        path = _name(target, number)
        if os.path.lexists(path) and not _remove_abandoned(path):
            continue
        try:
            descriptor = make(path)
        except FileExistsError:
            continue
        except (FileNotFoundError, NotADirectoryError):
            # Another process removed the new folder as abandoned, because it had no lock yet.
            if not target.parent.is_dir() or number == _MOST_TRIES - 1:
                raise
            continue
        except KeyboardInterrupt:
            # A signal during the system call is raised after it: the file exists, and nobody holds it.
            _remove_abandoned(path)
            raise
        # Meanwhile, another process may have taken it for abandoned.
        if try_lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
            _remove_behind(target, number)
            return path, descriptor
        os.close(descriptor)
    raise OSError(errno.EEXIST, "no name of an unfinished file is free", str(target))


def _name(target: Path, number: int) -> Path:
    name = os.fsdecode(os.fsencode(target.name)[-_LONGEST_NAME:])
    return target.with_name(f".{name}.{number}{_ENDING}")


def _remove_behind(target: Path, number: int) -> None:
    """Removes higher-numbered leftovers of processes that were killed while they wrote the same target."""
    while os.path.lexists(path := _name(target, number := number + 1)):
        _remove_abandoned(path)


def _remove_abandoned(path: Path) -> bool:
    """Removes an unfinished file or folder that no process holds, and returns whether its name is free."""
    try:
        is_folder = stat.S_ISDIR(path.lstat().st_mode)
        lock = path / LOCK_FILE if is_folder else path
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_CREAT if is_folder else 0)
        descriptor = os.open(lock, flags, 0o666)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # a link, or it belongs to somebody else
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        is_mine = try_lock(descriptor)
        is_abandoned = is_mine or (is_mine is None and time.time() - _newest_s(path) > _STALE_S)
        if is_abandoned:
            _remove_locked(path, descriptor)
    finally:
        os.close(descriptor)
    return not os.path.lexists(path)


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool | None:
    """Locks an open file; returns False if another process holds it, None if its file system has no locks.

    Args:
      descriptor: of the file; the lock ends when it is closed.
      kind: `fcntl.LOCK_EX`, or `fcntl.LOCK_SH` to learn whether a writer holds the file.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _newest_s(path: Path) -> float:
    """Returns when an unfinished file, or something in an unfinished folder, was last written."""
    paths = [path, *path.rglob("*")] if path.is_dir() else [path]
    return max(entry.lstat().st_mtime for entry in paths)


def _remove_locked(path: Path, descriptor: int) -> None:
    """Removes an unfinished file or folder if it is still the one whose lock the descriptor holds.

    It may have got its final name since, and another process may have made one with this name.
    """
    with contextlib.suppress(OSError):
        is_folder = stat.S_ISDIR(path.lstat().st_mode)
        if not os.path.samestat(os.fstat(descriptor), os.lstat(path / LOCK_FILE if is_folder else path)):
            return
        if is_folder:
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


# Keeps a damaged or forged file from filling the memory.
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
    """Opens a file for reading; refuses a named pipe at once, because reading it would block.

    Args:
      file: the file to open.
      most_bytes: the largest size allowed, for files that jaxpose writes; None is unlimited.

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
      file: the file to write; its folder exists.
      sync: wait until the content is on the disk; not needed for files that can be recreated.
      mode: permissions, before the process's umask.

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
    """Yields a path with the same name in a new folder, for libraries that open files themselves; moves it at the end.

    After an error, the old file is as before. A link with this name is replaced, not followed.

    Args:
      file: the file to write; its folder is created.
      needed_bytes: space that must be free at the beginning, for a library that a full disk would crash (HDF5).

    Raises:
      OSError: the file cannot be written, whatever the library raises for a full disk; the error names the file.
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


def is_same_file(file: Path, other: Path) -> bool:
    """Returns whether the second path is a regular file with the bytes of the first one."""
    is_same_size = is_regular(other) and other.stat().st_size == file.stat().st_size
    return is_same_size and sha256_of(other) == sha256_of(file)


def write_new(file: Path, data: bytes) -> None:
    """Writes a file in place, as `open_new`."""
    with naming_errors(file), open_new(file) as stream:
        stream.write(data)


def open_new(file: Path) -> BinaryIO:
    """Opens a file for writing in place; first removes a file or link of this name.

    Only for files that no reader takes for complete: logs, and files in a folder that gets its name at the end.

    Raises:
      OSError: the file cannot be written.
    """
    file.unlink(missing_ok=True)
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "wb")


def open_shared(file: Path, flags: int, mode: int = 0o644) -> int:
    """Opens a file that several processes write to, such as a log or a lock, and returns its descriptor.

    Args:
      file: the file to open; created if absent.
      flags: for `os.open`, such as `os.O_WRONLY | os.O_APPEND`.
      mode: permissions of a new file, before the process's umask.

    Raises:
      OSError: the system refuses it, or it is a link, a pipe or a device; the error names it.
    """
    safe = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(file, flags | safe, mode)
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


def is_of_file(descriptor: int, file: Path) -> bool:
    """Returns whether a descriptor is still that of the file: the last owner of a lock file may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(file))
    except FileNotFoundError:
        return False


def sha256_of(file: Path) -> str:
    """Returns the SHA-256 of a file's content in hexadecimal digits; the file may be larger than memory.

    Raises:
      OSError: the file cannot be read.
    """
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class GrowingFile:
    """Appends records to a file; a record that does not fit on the disk is removed completely."""

    def __init__(self, file: Path, mode: int = 0o644):
        """Takes the file, and the permissions that it gets if it is new."""
        self._file, self._mode = file, mode
        self._descriptor = -1
        self._lock = threading.Lock()

    def append(self, record: bytes, sync: bool = False) -> None:
        """Writes a record at the end, at once.

        Args:
          record: the bytes.
          sync: wait until they are on the disk.

        Raises:
          OSError: the record cannot be written; the file is unchanged.
        """
        with self._lock:
            if self._descriptor < 0:
                self._descriptor = open_shared(self._file, os.O_WRONLY | os.O_APPEND, self._mode)
            size = os.fstat(self._descriptor).st_size
            try:
                if os.write(self._descriptor, record) < len(record):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if sync:
                    os.fsync(self._descriptor)
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
