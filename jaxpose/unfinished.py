"""Files and folders while they are written: beside their target, under a name that no other process and no link has.

An unfinished file of report.html is .report.html.0.tmp, or the first number after 0 that is free. Its process holds a
lock on it. What a killed process leaves is removed by the next process that writes the same target, so it does not pile
up. A name is made anew (O_EXCL, O_NOFOLLOW): a link that somebody left there is not followed.
"""

import contextlib
import errno
import fcntl
import glob
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxpose.errors import UserError

# Errors of the system for a disk or a quota without space, and for a limit on the size of a file.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# In the path of an unfinished file, or of a file in an unfinished folder.
_UNFINISHED = re.compile(r"/\.[^/]*\.\d+\.tmp(/|$)")
_ENDING = ".tmp"
LOCK_FILE = ".lock"
# Names of files have at most 255 bytes.
_LONGEST_NAME = 200
# Some folders, such as those of /proc, exist but refuse every new file as if they did not.
_MOST_TRIES = 1000
# Without locks of the file system, an unfinished file counts as abandoned when nobody has written to it for so long.
_STALE_S = 24 * 3600

_new_flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Absolute path of an unfinished file or folder of this process -> the descriptor that holds its lock.
_held: dict[Path, int] = {}


def pattern_of(name: str) -> str:
    """Returns a glob of the unfinished files of a target with this name, which may be a glob itself."""
    return f".{name}.*{_ENDING.removeprefix('.')}"


@contextlib.contextmanager
def unfinished_file(target: Path, mode: int = 0o666) -> Iterator[tuple[Path, int]]:
    """Gives a new, locked file beside a target, with its descriptor; it is removed if it still has its name at the end.

    Args:
      target: what to write; its folder exists.
      mode: permissions, of which the process's umask takes some away.

    Raises:
      OSError: the file cannot be made.
    """
    path, descriptor = _new(target, lambda path: os.open(path, _new_flags, mode))
    with _holding(path, descriptor):
        yield path, descriptor


@contextlib.contextmanager
def unfinished_folder(target: Path) -> Iterator[Path]:
    """Gives a new folder beside a target, for libraries that open files themselves; it is removed at the end.

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
    """A context in which an error of the system names the target, in place of its unfinished file or of no file.

    Of a file in an unfinished folder, it names the final place.

    Libraries have errors of their own for a full disk; they become an OSError.
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
    """Returns the number of the system's error if something could not be written for lack of space, else 0."""
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        return error.errno
    # HDF5, Arrow and others have the system's text within theirs.
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

    It may have been killed after its last file was complete, and before it told its user. So a command that finds such
    a target compares what it would write, and does not refuse at once.
    """
    return any(target.parent.glob(pattern_of(glob.escape(target.name))))


def remove_unfinished() -> None:
    """Removes all unfinished files of this process, which is about to end at once."""
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
    """Returns the first free name beside a target and the descriptor of what `make` made there, locked.

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
            # Another process took the new folder for an abandoned one, as it had no lock yet.
            if not target.parent.is_dir() or number == _MOST_TRIES - 1:
                raise
            continue
        except KeyboardInterrupt:
            # A signal during the call of the system is raised after it: the file exists, and nobody holds it.
            _remove_abandoned(path)
            raise
        # In between, another process may have taken it for an abandoned one.
        if _lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
            _remove_behind(target, number)
            return path, descriptor
        os.close(descriptor)
    raise OSError(errno.EEXIST, "no name of an unfinished file is free", str(target))


def _name(target: Path, number: int) -> Path:
    name = os.fsdecode(os.fsencode(target.name)[-_LONGEST_NAME:])
    return target.with_name(f".{name}.{number}{_ENDING}")


def _remove_behind(target: Path, number: int) -> None:
    """Removes what processes that were killed while they wrote the same target have left under higher numbers."""
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
        is_mine = _lock(descriptor)
        is_abandoned = is_mine or (is_mine is None and time.time() - _newest_s(path) > _STALE_S)
        if is_abandoned:
            _remove_locked(path, descriptor)
    finally:
        os.close(descriptor)
    return not os.path.lexists(path)


def _lock(descriptor: int) -> bool | None:
    """Locks an open file; returns False if another process holds it, None if its file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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

    It may have got its final name, and another process may have made one with this name since.
    """
    with contextlib.suppress(OSError):
        is_folder = stat.S_ISDIR(path.lstat().st_mode)
        if not os.path.samestat(os.fstat(descriptor), os.lstat(path / LOCK_FILE if is_folder else path)):
            return
        if is_folder:
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
