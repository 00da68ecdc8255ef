"""A remote folder on any file system that fsspec knows: files are written atomically and verified on arrival."""

import base64
import contextlib
import hashlib
import logging
import os
import posixpath
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from jaxpose.files import NotRegularFile, read_bytes

# Seconds between the attempts of one call.
WAITS_S = (0.2, 1.0, 3.0)
# Bytes that are read back at once.
_BLOCK_BYTES = 64 * 2**20
_UPLOADING = ".uploading-"

_logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class RemoteFolder:
    """The folder <url>/<name>, or <url> without a name; paths below it use slashes, "" is the folder itself.

    Each call on the file system is tried again after a failure; in the end, the file system's own exception is raised.
    FileNotFoundError and NotImplementedError are answers and are raised at once.

    Attributes:
      url: of the folder, for messages.
      answers: how many calls have succeeded so far.
    """

    def __init__(self, url: str, name: str = ""):
        self._fs, root = url_to_fs(url)
        self._root = posixpath.join(root, name) if name else root
        self.url = posixpath.join(url, name) if name else url
        # Some file systems rename a file atomically. On object stores and memory://, a move is a copy, and an object is
        # written atomically.
        self._renames = type(self._fs).mv is not fsspec.AbstractFileSystem.mv
        self._temporary = posixpath.join(self._root, f"{_UPLOADING}{uuid.uuid4().hex[:12]}")
        self._given_up = threading.Event()
        self.answers = 0

    @property
    def path(self) -> Path | None:
        """The folder as a path, if it is on this machine or mounted here; otherwise None."""
        return Path(self._root) if isinstance(self._fs, LocalFileSystem) else None

    def is_at(self, folder: Path) -> bool:
        """Returns whether this is a given folder on this machine."""
        return self.path is not None and self.path.resolve() == folder.resolve()

    def names(self, path: str = "") -> list[str]:
        """Returns the names of the entries of a folder, [] if it does not exist."""
        try:
            self._fs.invalidate_cache()
            found = self._tried(self._fs.ls, self._at(path), detail=False)
        except FileNotFoundError:
            return []
        # An object store may list the folder in itself.
        entries = {entry.rstrip("/") for entry in found} - {self._fs._strip_protocol(self._at(path))}
        return sorted(posixpath.basename(entry) for entry in entries)

    def read(self, path: str) -> bytes:
        """Returns the content of a file.

        Raises:
          FileNotFoundError: it does not exist.
          NotRegularFile: on this machine, it is a folder, a pipe, a device, or a link that leads out of the folder.
        """
        if isinstance(self._fs, LocalFileSystem):
            return self._tried(self._read_local, Path(self._at(path)))
        return self._tried(self._fs.cat_file, self._at(path))

    def _read_local(self, file: Path) -> bytes:
        content = read_bytes(file)
        if not os.path.realpath(file).startswith(os.path.join(os.path.realpath(self._root), "")):
            raise NotRegularFile(file, f"is a link to {os.path.realpath(file)}, outside of the folder")
        return content

    def size(self, path: str) -> int:
        """Returns the bytes of a file.

        Raises:
          FileNotFoundError: it does not exist.
        """
        self._fs.invalidate_cache()
        return self._tried(self._fs.info, self._at(path))["size"]

    def age_s(self, path: str) -> float | None:
        """Returns the seconds since a file was written, None if the file or its time is unknown."""
        try:
            return max(time.time() - self._tried(self._fs.modified, self._at(path)).timestamp(), 0.0)
        except (NotImplementedError, FileNotFoundError):
            return None

    def put(self, path: str, data: bytes) -> None:
        """Writes a file atomically and verifies it.

        Raises:
          OSError: the file arrived with other bytes.
        """
        place = self._at(path)
        target = self._temporary if self._renames else place
        if self._renames:
            self._tried(self._fs.makedirs, posixpath.dirname(place), exist_ok=True)
        self._tried(self._fs.pipe_file, target, data)
        if not self._has_arrived(target, data):
            raise OSError(f"{path} arrived with other bytes than were sent")
        if self._renames:
            self._tried(self._fs.mv, target, place)

    def make_folder(self, path: str) -> None:
        """Makes a folder, if the file system has folders."""
        if self._renames:
            self._tried(self._fs.makedirs, self._at(path), exist_ok=True)

    def remove(self, path: str) -> None:
        """Removes a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._tried(self._fs.rm_file, self._at(path))

    def remove_folder(self, path: str) -> None:
        """Removes a folder with its content, if it exists."""
        self._fs.invalidate_cache()
        # One by one: after a failure, removed files need not be removed again.
        for file in self._tried(self._fs.find, self._at(path)):
            self._tried(self._fs.rm_file, file)
        if self._renames:
            with contextlib.suppress(FileNotFoundError):
                self._tried(self._fs.rm, self._at(path), recursive=True)

    def remove_leftovers(self) -> None:
        """Removes the unfinished uploads of killed processes."""
        for name in self.names():
            if name.startswith(_UPLOADING):
                self.remove(name)

    def give_up(self) -> None:
        """Stops retrying: from now on, a failing call fails at once."""
        self._given_up.set()

    def _at(self, path: str) -> str:
        return posixpath.join(self._root, path) if path else self._root

    def _has_arrived(self, place: str, data: bytes) -> bool:
        info = self._tried(self._fs.info, place)
        if info["size"] != len(data):
            return False
        if _has_checksum_of(info, data):
            return True
        view = memoryview(data)
        for start in range(0, len(data), _BLOCK_BYTES):
            end = min(start + _BLOCK_BYTES, len(data))
            if self._tried(self._fs.cat_file, place, start=start, end=end) != view[start:end]:
                return False
        return True

    def _tried(self, function: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        for wait_s in WAITS_S:
            try:
                return self._answer(function, *arguments, **named)
            except (FileNotFoundError, NotImplementedError, NotRegularFile):
                raise
            # Each kind of store has exceptions of its own.
            except Exception as error:
                _logger.debug("%s: %s; next attempt in %g s", self.url, error, wait_s)
                self._given_up.wait(wait_s)
        return self._answer(function, *arguments, **named)

    def _answer(self, function: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        answer = function(*arguments, **named)
        self.answers += 1
        return answer


def is_leftover(name: str) -> bool:
    """Returns whether a name is that of an unfinished upload."""
    return name.startswith(_UPLOADING)


def _has_checksum_of(info: dict[str, Any], data: bytes) -> bool:
    """Returns whether the store reports the MD5 of these bytes: S3 as ETag, GCS as md5Hash.

    Another tag proves nothing: for multipart uploads, S3 computes it in another way.
    """
    digest = hashlib.md5(data, usedforsecurity=False)
    known = {digest.hexdigest(), base64.b64encode(digest.digest()).decode()}
    return any(isinstance(value, str) and value.strip('"') in known for value in info.values())


def run_name(folder: Path) -> str:
    """Returns the name that the copy of a run folder has below `log.remote_url`."""
    return folder.resolve().name
