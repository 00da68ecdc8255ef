"""The destinations for the files of a run: a folder on any file system that fsspec knows, and a function of the user.

Nothing here imports jax.
"""

import base64
import contextlib
import hashlib
import importlib
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

from jaxpose.errors import UserError
from jaxpose.files import NotRegularFile, read_bytes

# Seconds between the attempts of one call.
WAITS_S = (0.2, 1.0, 3.0)
# Number of bytes that are read back at once.
_BLOCK_BYTES = 64 * 2**20
_UPLOADING = ".uploading-"

Result = TypeVar("Result")


class RemoteFolder:
    """The folder <url>/<name>, or <url> without a name; paths below it use slashes, "" is the folder itself.

    Each call on the file system is tried again after a failure; in the end, the file system's own exception is raised.
    FileNotFoundError and NotImplementedError are answers and are raised at once.

    Attributes:
      url: the folder's, for messages.
      path: the folder, if it is on this machine or mounted here; otherwise None.
      answers: how many calls have succeeded so far.
      closed: once it is set, every call fails.
    """

    def __init__(self, url: str, name: str = ""):
        self._fs, root = url_to_fs(url)
        self._root, self.url = (posixpath.join(place, name) if name else place for place in (root, url))
        self.path = Path(self._root) if isinstance(self._fs, LocalFileSystem) else None
        # Some file systems rename a file atomically. On object stores and memory://, a move is a copy, and an object is
        # written atomically.
        self._renames = type(self._fs).mv is not fsspec.AbstractFileSystem.mv
        self._temporary = self._at(_UPLOADING + uuid.uuid4().hex[:12])
        self.closed = threading.Event()
        self.answers = 0

    def names(self, path: str = "") -> list[str]:
        """Returns the names in a folder, without unfinished uploads; [] if it does not exist."""
        return [name for name in self._names(path) if not name.startswith(_UPLOADING)]

    def read(self, path: str, most_bytes: int | None = None) -> bytes:
        """Returns the content of a file.

        Raises:
          FileNotFoundError: it does not exist.
          NotRegularFile: on this machine, it is a folder, a pipe, a device, or a link that leads out of the folder, or
            larger than `most_bytes`.
        """
        if not self.path:
            return self._tried(self._fs.cat_file, self._at(path))
        content = self._tried(read_bytes, self.path / path, most_bytes)
        if not (target := os.path.realpath(self.path / path)).startswith(os.path.realpath(self.path) + os.sep):
            raise NotRegularFile(self.path / path, f"is a link to {target}, outside of the folder")
        return content

    def size(self, path: str) -> int:
        """Returns the bytes of a file; FileNotFoundError if it does not exist."""
        self._fs.invalidate_cache()
        return self._tried(self._fs.info, self._at(path))["size"]

    def age_s(self, path: str) -> float | None:
        """Returns the seconds since a file was written, None if the file or its time is unknown."""
        try:
            return max(time.time() - self._tried(self._fs.modified, self._at(path)).timestamp(), 0.0)
        except (NotImplementedError, FileNotFoundError):
            return None

    def put(self, path: str, data: bytes) -> None:
        """Writes a file atomically; OSError if it arrived with other bytes."""
        place = self._at(path)
        target = self._temporary if self._renames else place
        self.make_folder(posixpath.dirname(path))
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
        with contextlib.suppress(FileNotFoundError):
            if self._renames:
                self._tried(self._fs.rm, self._at(path), recursive=True)

    def remove_leftovers(self) -> None:
        """Removes the unfinished uploads of killed processes."""
        for name in self._names(""):
            if name.startswith(_UPLOADING):
                self.remove(name)

    def _at(self, path: str) -> str:
        return posixpath.join(self._root, path) if path else self._root

    def _names(self, path: str) -> list[str]:
        try:
            self._fs.invalidate_cache()
            found = self._tried(self._fs.ls, self._at(path), detail=False)
        except FileNotFoundError:
            return []
        # An object store may list the folder in itself.
        entries = {entry.rstrip("/") for entry in found} - {self._fs._strip_protocol(self._at(path))}
        return sorted(posixpath.basename(entry) for entry in entries)

    def _has_arrived(self, place: str, data: bytes) -> bool:
        info = self._tried(self._fs.info, place)
        if info["size"] != len(data):
            return False
        # S3 has the MD5 as ETag, GCS as md5Hash. Another tag proves nothing: S3 has others for multipart uploads.
        digest = hashlib.md5(data, usedforsecurity=False)
        known = {digest.hexdigest(), base64.b64encode(digest.digest()).decode()}
        if any(isinstance(value, str) and value.strip('"') in known for value in info.values()):
            return True
        blocks = [(start, min(start + _BLOCK_BYTES, len(data))) for start in range(0, len(data), _BLOCK_BYTES)]
        read = self._fs.cat_file
        return all(self._tried(read, place, start=start, end=end) == data[start:end] for start, end in blocks)

    def _tried(self, function: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        for wait_s in (*WAITS_S, None):
            if self.closed.is_set():
                break
            try:
                answer = function(*arguments, **named)
            except (FileNotFoundError, NotImplementedError, NotRegularFile):
                raise
            # Each kind of store has its own exceptions.
            except Exception:
                if wait_s is None:
                    raise
                self.closed.wait(wait_s)
            else:
                self.answers += 1
                return answer
        raise TimeoutError(f"{self.url} was closed")


def run_name(folder: Path) -> str:
    """Returns the name that the copy of a run folder has below `log.remote_url`."""
    return folder.resolve().name


def load_hook(name: str) -> Callable[[str], object] | None:
    """Returns the function that MODULE:FUNCTION names, None for "".

    Raises:
      UserError: it cannot be imported, or is not a function.
    """
    if not name:
        return None
    module, _, function = name.partition(":")
    try:
        hook = getattr(importlib.import_module(module), function)
    # A user's module may raise anything.
    except (Exception, SystemExit) as error:
        reason = f"which cannot be imported: {type(error).__name__}: {error}"
        raise UserError(f"log.remote_hook is {name!r}, {reason}") from None
    if not callable(hook):
        raise UserError(f"log.remote_hook is {name!r}, which is not a function but of type {type(hook).__name__}")
    return hook
