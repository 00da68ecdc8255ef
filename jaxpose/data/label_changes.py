"""Writes all label files of a change to a project, or none.

It first writes all new content, and the content that it replaces, to a folder in the project. A journal there lists the
files while they are moved into place. If an error or a kill interrupts this, the previous files are restored: after an
error at once, after a kill by the next change. Until then, readers refuse the project.
"""

import contextlib
import dataclasses
import errno
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

from jaxpose.checksums import read_json, write_json
from jaxpose.errors import UserError
from jaxpose.files import open_atomic, read_bytes
from jaxpose.outputs import locked, read_unchanged
from jaxpose.terminal import print_lines

# The lock on a project's label files: only one process at a time writes them.

LOCK_FILE = ".jaxpose_labels.lock"


def locked_labels(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which no other jaxpose process writes label files of a project: `locked`.

    Args:
      folder: of the project.
    """
    return locked(folder / LOCK_FILE, f"the labels of {folder}")


_Found = TypeVar("_Found")

BACKUP_ENDING = ".bak"
_FOLDER, _JOURNAL_FILE = ".jaxpose_labels", "files.json"
# Any working disk finishes a change within this time.
_READER_WAIT_S, _POLL_S = 3.0, 0.05
_LABELS = (".csv", ".h5", ".slp", ".json")


class ChangedMeanwhile(UserError):
    """Another program has changed a label file while its new content was made."""


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A file of a change.

    Attributes:
      path: relative to the project.
      old: previous SHA-256, "" for a new file.
      new: new SHA-256.
    """

    path: str
    old: str
    new: str


@contextlib.contextmanager
def changing_labels(folder: Path) -> Iterator[None]:
    """A context in which `write_all` may write to a project: locked, with any interrupted change undone.

    Args:
      folder: of the project.

    Raises:
      UserError: as `locked`; or an interrupted change cannot be undone because a label file has changed since.
      OSError: the folder is not writable.
    """
    with locked_labels(folder):
        if _undo_interrupted(folder):
            print_lines(f"an earlier change of the labels of {folder} was interrupted; its changes are undone")
        yield


def write_all(
    folder: Path,
    labels: Mapping[Path, bytes],
    images: Mapping[Path, Path],
    backed_up: Collection[Path] = (),
    made_from: Mapping[Path, bytes | None] | None = None,
) -> list[Path]:
    """Writes label files and copies images into a project; after an error, the project is as before.

    Args:
      folder: of the project, inside `changing_labels`.
      labels: {label file: new content}; existing files are kept as <file>.bak.
      images: {free path in the project: image}.
      backed_up: label files whose <file>.bak stays as it is, because it has the content before an earlier change.
      made_from: {label file: content that the new one was made from, None for a new file}.

    Returns:
      The copies of the previous label files.

    Raises:
      ChangedMeanwhile: a file has other content than it was made from, or changes during the call; nothing is written.
      OSError: a file cannot be written.
    """
    staging = folder / _FOLDER
    staging.mkdir()
    try:
        entries = []
        for file, source in images.items():
            entries.append(_stage(folder, staging, len(entries), file, read_bytes(source, most_bytes=None)))
        for file, content in labels.items():
            entries.append(_stage(folder, staging, len(entries), file, content, file not in backed_up))
        write_json(staging / _JOURNAL_FILE, {"files": [dataclasses.astuple(entry) for entry in entries]})
        _refuse_changed(folder, staging, entries, made_from or {})
        backups = [_place(folder, staging, number, entry) for number, entry in enumerate(entries)]
    except BaseException:
        # The next change restores what cannot be restored now.
        with contextlib.suppress(OSError, UserError):
            _undo_interrupted(folder)
        raise
    (staging / _JOURNAL_FILE).unlink()
    shutil.rmtree(staging)
    return [backup for backup in backups if backup]


def refuse_unfinished(folder: Path) -> None:
    """Checks that no label file of a project has rows of an unfinished change.

    Raises:
      UserError: labels are being written, or writing was interrupted.
    """
    journal, end = folder / _FOLDER / _JOURNAL_FILE, time.monotonic() + _READER_WAIT_S
    while os.path.lexists(journal):
        if time.monotonic() > end:
            raise UserError(
                f"labels are being written to {folder}, or this was interrupted, so its label files may have some of "
                "the new rows only: wait for the end, or repeat the command (jaxpose label, jaxpose labels merge, "
                "jaxpose convert labels), which finishes it"
            )
        time.sleep(_POLL_S)


def read_at_once(folder: Path, read: Callable[[], _Found]) -> _Found:
    """Returns what `read` reads from the label files of a project: all from before a change, or all from after it.

    Args:
      folder: of the project.
      read: reads the files, and no images.

    Raises:
      UserError, OSError: as `read`.
    """
    # The lock of a change is an entry of the folder, whose time it therefore changes.
    return read_unchanged(folder / LOCK_FILE, lambda: folder.stat().st_mtime_ns, read)


def _undo_interrupted(folder: Path) -> bool:
    """Restores the files from before an interrupted change; returns whether one had changed any.

    Args:
      folder: of the project, locked.

    Raises:
      UserError: the journal is damaged, or a label file has changed since.
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


def _stage(folder: Path, staging: Path, number: int, file: Path, content: bytes, has_backup: bool = False) -> _Entry:
    old, mode = "", stat.S_IMODE(file.stat().st_mode) if file.is_file() else None
    _write(staging / f"{number}.new", content, mode)
    if mode is not None:
        before = read_bytes(file, most_bytes=None)
        old = _sha256(before)
        _write(staging / f"{number}.old", before, mode)
        if has_backup:
            _write(staging / f"{number}{BACKUP_ENDING}", before, mode)
    return _Entry(file.relative_to(folder).as_posix(), old, _sha256(content))


def _refuse_changed(
    folder: Path, staging: Path, entries: Sequence[_Entry], made_from: Mapping[Path, bytes | None]
) -> None:
    """Raises ChangedMeanwhile, and forgets the change, if a file is not the one that its new content was made from.

    Called right before the first file is replaced, because programs of others take no lock.
    """
    for entry in entries:
        file = folder / entry.path
        known = entry.old if file not in made_from else "" if (before := made_from[file]) is None else _sha256(before)
        if not entry.old == known == _checksum(file):
            (staging / _JOURNAL_FILE).unlink()
            raise ChangedMeanwhile(
                f"{file} was changed by another program while its labels were written; nothing was written: repeat "
                "the command"
            )


def _write(file: Path, content: bytes, mode: int | None) -> None:
    """Writes a file with the permissions of the one that it replaces or copies; None for those of a new file."""
    with open_atomic(file, mode=0o666 if mode is None else mode) as stream:
        if mode is not None:
            os.fchmod(stream.fileno(), mode)
        stream.write(content)


def _place(folder: Path, staging: Path, number: int, entry: _Entry) -> Path | None:
    """Moves a file into place; returns the copy of the previous file, or None."""
    file, backup = folder / entry.path, None
    file.parent.mkdir(parents=True, exist_ok=True)
    if (staging / f"{number}{BACKUP_ENDING}").exists():
        backup = file.with_name(file.name + BACKUP_ENDING)
        _move(staging / f"{number}{BACKUP_ENDING}", backup)
    _move(staging / f"{number}.new", file)
    return backup


def _put_back(folder: Path, staging: Path, number: int, entry: _Entry) -> None:
    # Someone else may have written the journal.
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


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _checksum(file: Path) -> str:
    try:
        return _sha256(read_bytes(file, most_bytes=None))
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _move(source: Path, target: Path) -> None:
    try:
        os.replace(source, target)
    except OSError as error:
        # The image folder may be a link to another disk.
        if error.errno != errno.EXDEV:
            error.filename = str(target)
            raise
        _write(target, read_bytes(source, most_bytes=None), stat.S_IMODE(source.stat().st_mode))
