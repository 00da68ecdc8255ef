"""Writes all label files of a change to a project, or none of them.

All new content is first written to a folder in the project, with the content that it replaces. A journal there names
the files while they are put into place. If an error or a kill interrupts this, the previous files are restored: after
an error at once, after a kill by the next change. Until then, readers refuse the project.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from jaxpose.checksums import read_json, write_json
from jaxpose.errors import UserError
from jaxpose.files import open_shared, read_bytes, write_atomic
from jaxpose.terminal import print_lines

# The lock on the label files of a project: only one process at a time writes them.

LOCK_FILE = ".jaxpose_labels.lock"
_MOST_WAIT_S, _LOCK_POLL_S = 60.0, 0.05

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
            time.sleep(_LOCK_POLL_S)
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


BACKUP_ENDING = ".bak"
_FOLDER, _JOURNAL_FILE = ".jaxpose_labels", "files.json"
# A change is written within this time on any disk that works.
_READER_WAIT_S, _POLL_S = 3.0, 0.05
_LABELS = (".csv", ".h5")


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A file of a change.

    Attributes:
      path: relative to the project.
      old: SHA-256 before it, "" for a new file.
      new: SHA-256 after it.
    """

    path: str
    old: str
    new: str


@contextlib.contextmanager
def changing_labels(folder: Path) -> Iterator[None]:
    """A context in which `write_all` may write to a project: locked, and without the rest of an interrupted change.

    Args:
      folder: of the project.

    Raises:
      UserError: as `locked_labels`; or an interrupted change cannot be undone, because a label file was changed since.
      OSError: the folder cannot be written.
    """
    with locked_labels(folder):
        if _undo_interrupted(folder):
            print_lines(f"an earlier change of the labels of {folder} was interrupted; its changes are undone")
        yield


def write_all(folder: Path, labels: Mapping[Path, bytes], images: Mapping[Path, Path]) -> list[Path]:
    """Writes label files and copies images into a project; after an error, the project is as before.

    Args:
      folder: of the project, in `changing_labels`.
      labels: {label file: new content}; each that exists is kept as <file>.bak.
      images: {place in the project, where no file is: image}.

    Returns:
      The copies of label files as they were.

    Raises:
      OSError: a file cannot be written.
    """
    staging = folder / _FOLDER
    staging.mkdir()
    try:
        entries = []
        for file, source in images.items():
            entries.append(_stage(folder, staging, len(entries), file, read_bytes(source, most_bytes=None)))
        for file, content in labels.items():
            entries.append(_stage(folder, staging, len(entries), file, content))
        write_json(staging / _JOURNAL_FILE, {"files": [dataclasses.astuple(entry) for entry in entries]})
        backups = [_place(folder, staging, number, entry) for number, entry in enumerate(entries)]
    except BaseException:
        # What cannot be put back now, the next change puts back.
        with contextlib.suppress(OSError, UserError):
            _undo_interrupted(folder)
        raise
    (staging / _JOURNAL_FILE).unlink()
    shutil.rmtree(staging)
    return [backup for backup in backups if backup]


def refuse_unfinished(folder: Path) -> None:
    """Checks that no label file of a project has rows of a change that has not come to its end.

    Raises:
      UserError: labels are being written, or this was interrupted.
    """
    journal, end = folder / _FOLDER / _JOURNAL_FILE, time.monotonic() + _READER_WAIT_S
    while os.path.lexists(journal):
        if time.monotonic() > end:
            raise UserError(
                f"labels are being written to {folder}, or this was interrupted, so its label files may have some of "
                "the new rows only: wait for the end, or repeat the command (jaxpose labels merge, jaxpose convert "
                "labels), which finishes it"
            )
        time.sleep(_POLL_S)


def _undo_interrupted(folder: Path) -> bool:
    """Puts the files before an interrupted change back; returns whether there was one that had changed any.

    Args:
      folder: of the project, locked.

    Raises:
      UserError: the journal is damaged, or a label file was changed since.
      OSError: a file cannot be written.
    """
    staging = folder / _FOLDER
    if not os.path.lexists(staging):
        return False
    if staging.is_symlink():
        raise UserError(f"{staging} is a link, which jaxpose did not make; remove it")
    journal = staging / _JOURNAL_FILE
    is_begun = os.path.lexists(journal)
    if is_begun:
        found = read_json(journal, f"compare the label files with their {BACKUP_ENDING}, then remove {staging}")
        entries = [_Entry(*map(str, entry)) for entry in found["files"]]
        for number, entry in reversed(list(enumerate(entries))):
            _put_back(folder, staging, number, entry)
        journal.unlink()
    shutil.rmtree(staging)
    return is_begun


def _stage(folder: Path, staging: Path, number: int, file: Path, content: bytes) -> _Entry:
    write_atomic(staging / f"{number}.new", content)
    old = ""
    if file.is_file():
        before = read_bytes(file, most_bytes=None)
        old = hashlib.sha256(before).hexdigest()
        write_atomic(staging / f"{number}.old", before)
        write_atomic(staging / f"{number}{BACKUP_ENDING}", before)
    return _Entry(file.relative_to(folder).as_posix(), old, hashlib.sha256(content).hexdigest())


def _place(folder: Path, staging: Path, number: int, entry: _Entry) -> Path | None:
    """Puts a file into place; returns the copy of the file before, None if there was none."""
    file, backup = folder / entry.path, None
    file.parent.mkdir(parents=True, exist_ok=True)
    if entry.old:
        backup = file.with_name(file.name + BACKUP_ENDING)
        _move(staging / f"{number}{BACKUP_ENDING}", backup)
    _move(staging / f"{number}.new", file)
    return backup


def _put_back(folder: Path, staging: Path, number: int, entry: _Entry) -> None:
    # Somebody else may have written the journal.
    if PurePosixPath(entry.path).is_absolute() or ".." in PurePosixPath(entry.path).parts:
        raise UserError(
            f"{staging / _JOURNAL_FILE} names a file outside of the project: {entry.path}; remove {staging}"
        )
    file, before = folder / entry.path, staging / f"{number}.old"
    present = _checksum(file)
    if present == entry.new and not entry.old:
        file.unlink()
    elif present == entry.new and file.suffix in _LABELS and not before.is_symlink():
        _move(before, file)
    elif present != entry.old and file.suffix in _LABELS:
        raise UserError(
            f"{file} was changed after jaxpose was interrupted while it added rows; compare it with {file.name}"
            f"{BACKUP_ENDING}, which has the labels before that, then remove {staging}"
        )


def _checksum(file: Path) -> str:
    try:
        return hashlib.sha256(read_bytes(file, most_bytes=None)).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _move(source: Path, target: Path) -> None:
    try:
        os.replace(source, target)
    except OSError as error:
        # The folder of images may be a link to another disk.
        if error.errno != errno.EXDEV:
            error.filename = str(target)
            raise
        write_atomic(target, read_bytes(source, most_bytes=None))
