"""Files that several commands may write or read at once: locks, and the output files of all verbs.

If several commands write files in one folder, only one at a time moves its files into place. A reader whose files are
replaced while it reads them reads them again, so all of them come from the same command.
"""

import contextlib
import ctypes
import fcntl
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from jaxpose.errors import UserError
from jaxpose.files import (
    LOCK_FILE,
    is_of_file,
    is_same_file,
    is_unfinished,
    naming_errors,
    open_shared,
    remove_abandoned,
    try_lock,
    unfinished_folder,
    was_cut_off,
)
from jaxpose.terminal import listed, print_lines

_MOST_WAIT_S, _POLL_S = 60.0, 0.05
# A command ends this long after it has moved its files into place.
_MOST_END_S = 2.0
# A reader looks at the lock for microseconds, which is not worth a message.
_UNTOLD_S = 0.2
# How often a reader reads files that are replaced, before it makes others wait.
_MOST_TRIES = 4

# Lock of this process -> the thread that holds it, which reads what it writes.
_holders: dict[str, int] = {}

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def locked(file: Path, what: str) -> Iterator[None]:
    """A context in which no other jaxpose process has the lock; waits for one.

    The system releases the lock when the process dies. It works across machines on network file systems with locks
    (NFS, Lustre with flock); elsewhere a warning reports that there is no lock.

    Args:
      file: the lock, which exists only while it is held.
      what: is written under the lock, for messages: "the labels of project".

    Raises:
      UserError: another process has held it for a minute.
      OSError: the folder is not writable.
    """
    lock, name = _lock(file, what), os.path.realpath(file)
    _holders[name] = threading.get_ident()
    try:
        yield
    finally:
        _holders.pop(name, None)
        # Removed while locked: a waiting process notices that the name no longer refers to this file. If the folder
        # was replaced meanwhile, the name may be that of another process's lock.
        if is_of_file(lock, file):
            file.unlink(missing_ok=True)
        os.close(lock)


def _lock(file: Path, what: str) -> int:
    """Locks a lock file, writes the name of this process to it, and returns its descriptor."""
    start, is_told = time.monotonic(), False
    while True:
        lock = _open(file)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(lock)
            waited_s = time.monotonic() - start
            if waited_s > _MOST_WAIT_S:
                raise UserError(f"{owner} has been writing {what} for a minute; wait for it, then repeat") from None
            if waited_s > _UNTOLD_S and not is_told:
                print_lines(f"waiting for {owner}, which writes {what}")
                is_told = True
            time.sleep(_POLL_S)
            continue
        except OSError as error:
            _logger.warning(
                "%s cannot be locked (%s): do not run two commands at once that write %s", file, error.strerror, what
            )
        if is_of_file(lock, file):
            # A lock that another user's killed command has left cannot be written to.
            with contextlib.suppress(OSError):
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            return lock
        os.close(lock)


def _open(file: Path) -> int:
    """Opens a lock file; that of another user, which may not be writable, only for reading."""
    try:
        return open_shared(file, os.O_RDWR)
    except PermissionError:
        with contextlib.suppress(OSError):
            return os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        raise


def _is_own(file: Path) -> bool:
    """Returns whether this thread has the lock."""
    return _holders.get(os.path.realpath(file)) == threading.get_ident()


def _is_locked(file: Path) -> bool:
    """Returns whether another thread or process has the lock."""
    if _is_own(file):
        return False
    try:
        lock = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return try_lock(lock, fcntl.LOCK_SH) is False
    finally:
        os.close(lock)


# Readers of several files that belong together.

_Found = TypeVar("_Found")


def stamps(files: Iterable[Path]) -> dict[Path, tuple[int, int, int] | None]:
    """Returns {file: what differs once the file is replaced, None without it}."""
    found: dict[Path, tuple[int, int, int] | None] = {}
    for file in files:
        try:
            status = file.stat()
            found[file] = status.st_ino, status.st_mtime_ns, status.st_size
        except FileNotFoundError:
            found[file] = None
    return found


def date_as(file: Path, source: Mapping[Path, tuple[int, int, int] | None]) -> None:
    """Gives a file the time of what it was made from, so that it is older than a source that was replaced meanwhile.

    Args:
      file: the file.
      source: `stamps` of one file, from before it was read.
    """
    for stamp in filter(None, source.values()):
        os.utime(file, ns=(stamp[1], stamp[1]))


def read_unchanged(lock: Path, stamp: Callable[[], object], read: Callable[[], _Found]) -> _Found:
    """Returns what `read` returns, of files that no command replaced meanwhile; else reads them again.

    Args:
      lock: of `locked`, under which the files are written.
      stamp: differs once one of the files is replaced, as `stamps` does.
      read: reads the files. If it raises a UserError or an OSError, this is raised only if no file was replaced.

    Raises:
      UserError: another process has been writing the files for a minute; or as `read`.
      OSError: as `read`.
    """
    if _is_own(lock):
        return read()
    for _ in range(_MOST_TRIES):
        before, found, problem = stamp(), [], None
        try:
            found.append(read())
        except (UserError, OSError) as error:
            problem = error
        if not _is_locked(lock) and stamp() == before:
            if problem is not None:
                raise problem
            return found[0]
        time.sleep(_POLL_S)
    # Another process writes for long, or again and again.
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(lock, f"files in {lock.parent}"))
        except OSError:
            # Who may only read cannot make others wait.
            _wait_for(lock)
        return read()


def _wait_for(lock: Path) -> None:
    """Waits until no other process has the lock.

    Raises:
      UserError: another process has held it for a minute.
    """
    end = time.monotonic() + _MOST_WAIT_S
    while _is_locked(lock):
        if time.monotonic() > end:
            raise UserError(f"files in {lock.parent} have been written for a minute; wait for that, then repeat")
        time.sleep(_POLL_S)


# Output files that already exist: one rule for all verbs.
#
# A full disk or a kill may interrupt a command that makes several files. So an existing file with the same bytes is
# kept, and the same command makes the others. A file with other bytes is refused unless --overwrite is given.

_OUTPUT = "output"
OUTPUT_LOCK_FILE = ".jaxpose_output.lock"


@contextlib.contextmanager
def output_folder(folder: Path, overwrite: bool, stale: Callable[[], Iterable[Path]] | None = None) -> Iterator[Path]:
    """Yields an empty folder to write to; at the end its files move to the same places below `folder`.

    If several commands write there, only one at a time compares and moves its files, so the second finds all files of
    the first.

    Args:
      folder: where the files belong; it is created.
      overwrite: replace files with other content, and remove those that no longer belong there.
      stale: returns files that readers would take for files of this call; those of them that it does not write do not
        belong there. Called while no other command moves files into the folder.

    Raises:
      UserError: a file already exists and has other content, or does not belong there; no file is moved then.
      OSError: a file cannot be written; the error names it, or the folder.
    """
    with output_folders([folder], overwrite, stale) as (new,):
        yield new


@contextlib.contextmanager
def output_folders(
    folders: Sequence[Path], overwrite: bool, stale: Callable[[], Iterable[Path]] | None = None
) -> Iterator[list[Path]]:
    """Yields an empty folder for each of several folders, whose files move together, as those of `output_folder`.

    Args:
      folders: where the files belong. `may_be_ours` of the first one is true after a kill until all files are there.
      overwrite, stale: as in `output_folder`.

    Raises:
      UserError, OSError: as `output_folder`.
    """
    with contextlib.ExitStack() as held:
        new = []
        for folder in folders:
            held.enter_context(naming_errors(folder))
            folder.mkdir(parents=True, exist_ok=True)
            new.append(held.enter_context(unfinished_folder(folder / _OUTPUT)))
        yield new
        targets: dict[Path, Path] = {}
        for place, folder in zip(new, folders, strict=True):
            # In reverse order: a.json, which describes a, comes before it.
            files = sorted(
                (file for file in place.rglob("*") if file.is_file() and file != place / LOCK_FILE), reverse=True
            )
            targets |= {file: folder / file.relative_to(place) for file in files}
        # In the same order in all commands, so that no two wait for each other.
        for name, folder in sorted({os.path.realpath(folder): folder for folder in folders}.items()):
            held.enter_context(locked(Path(name) / OUTPUT_LOCK_FILE, f"files in {folder}"))
        others = sorted(file for file in {*stale()} - {*targets.values()} if os.path.lexists(file)) if stale else []
        if others and not overwrite:
            raise UserError(
                f"{', '.join(map(str, others))} would be read with the new files: --overwrite removes "
                f"{'them' if len(others) > 1 else 'it'}; or choose another --out"
            )
        _move(targets, overwrite)
        for file in others:
            file.unlink()


def _move(targets: Mapping[Path, Path], overwrite: bool) -> None:
    """Moves files to their targets, except those whose target has the same bytes; raises as `output_folder`."""
    kept = {target for file, target in targets.items() if is_same_file(file, target)}
    other = [target for target in targets.values() if os.path.lexists(target) and target not in kept]
    if other and not overwrite:
        raise already_exist(sorted(other))
    for file, target in targets.items():
        if target not in kept:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, target)


def already_exist(files: list[Path]) -> UserError:
    """Returns the error for files that already exist."""
    names = ", ".join(map(str, files))
    if len(files) > 1:
        return UserError(f"{names} already exist: --overwrite replaces them; or choose another --out")
    return UserError(f"{names} already exists: --overwrite replaces it; or choose another --out")


def may_be_ours(folder: Path) -> bool:
    """Returns whether a killed command may have left the files of a folder unreported; see `was_cut_off`.

    Then `output_folder` compares them, and nothing refuses them earlier.
    """
    return was_cut_off(folder / _OUTPUT)


# Folders that are written as a whole.

_RENAME_EXCHANGE = 2
_HERE = -100


@contextlib.contextmanager
def write_folder(folder: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yields a new folder that gets its name at the end, complete or not at all; `write_new` writes its files.

    Args:
      folder: the folder to write: absent, empty, or a link to such a folder, which stays a link. A folder that holds
        the same files already stays as it is.
      overwrite: the folder may hold other files; they are removed at the end, once no other command moves files into
        it. Where the system can, the two folders are exchanged in one step.

    Raises:
      UserError: another command is writing in the folder.
      OSError: the folder cannot be written, or holds files; the error names it.
    """
    with naming_errors(folder):
        target = Path(os.path.realpath(folder))
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_folder(target) as place:
            new = place / target.name
            new.mkdir()
            yield new
            if not target.is_dir():
                os.replace(new, target)
            elif not has_same_files(new, target):
                _replace_folder(new, target, overwrite)


def _replace_folder(new: Path, target: Path, overwrite: bool) -> None:
    """Gives a folder the name of another one; raises as `write_folder`."""
    if not overwrite or not any(target.iterdir()):
        os.replace(new, target)
        return
    with locked(target / OUTPUT_LOCK_FILE, f"files in {target}"):
        _refuse_written(target)
        if not _exchange(new, target):
            os.replace(target, new.with_name(".before"))
            os.replace(new, target)


def _exchange(first: Path, second: Path) -> bool:
    """Exchanges the names of two folders in one step; returns whether the system and the file system can do this."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    names = os.fsencode(first.absolute()), os.fsencode(second.absolute())
    return rename is not None and rename(_HERE, names[0], _HERE, names[1], _RENAME_EXCHANGE) == 0


def has_same_files(folder: Path, other: Path) -> bool:
    """Returns whether two folders hold files with the same names and bytes, apart from the lock of a command."""
    files = [
        {file.relative_to(place): file for file in place.rglob("*") if file.is_file() and file.name != OUTPUT_LOCK_FILE}
        for place in (folder, other)
    ]
    return files[0].keys() == files[1].keys() and all(
        is_same_file(file, files[1][name]) for name, file in files[0].items()
    )


# Files that killed commands leave in a folder.


def is_leaving(name: str) -> bool:
    """Returns whether only a command that writes in a folder, or that was killed there, has a file of this name."""
    return name == OUTPUT_LOCK_FILE or is_unfinished(name)


def remove_leavings(folder: Path) -> None:
    """Removes the files that killed commands left in a folder.

    Raises:
      UserError: another command is writing in the folder.
      OSError: the folder cannot be changed.
    """
    _refuse_written(folder)
    if os.path.lexists(lock := folder / OUTPUT_LOCK_FILE):
        # Its owner removes it; after a kill, the next owner does.
        with locked(lock, f"files in {folder}"):
            pass


def _refuse_written(folder: Path) -> None:
    """Removes unfinished files that no process holds.

    Raises:
      UserError: another command has unfinished files there, and does not end soon.
    """
    end = time.monotonic() + _MOST_END_S
    while held := remove_abandoned(folder):
        if time.monotonic() > end:
            names = listed([path.name for path in held], 3)
            raise UserError(f"another command is writing in {folder} ({names}): wait for it, or give another folder")
        time.sleep(_POLL_S)
