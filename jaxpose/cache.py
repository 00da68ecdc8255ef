"""The cache folder: arrays on disk that are slow to compute. It can be deleted at any time."""

import contextlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from jaxpose.errors import UserError
from jaxpose.files import open_atomic

if TYPE_CHECKING:
    import numpy as np

GIB = 2**30
STALE_SECONDS = 24 * 3600


def cache_folder() -> Path:
    """Returns the folder named by JAXPOSE_CACHE, else the user's cache folder for jaxpose."""
    return Path(os.environ.get("JAXPOSE_CACHE") or platformdirs.user_cache_dir("jaxpose"))


def open_cached(
    key: str, shape: tuple[int, ...], folder: Path | None = None, *, in_memory: bool = False
) -> "np.ndarray | None":
    """Returns the uint8 array stored under a key, or None; marks it as used now.

    Args:
      key: a name of letters and digits, unique for everything that the array depends on.
      shape: its shape; an entry with a different shape is not returned.
      folder: where the cache is; None = `cache_folder()`.
      in_memory: read the array; otherwise it is memory-mapped, read-only.
    """
    # Imported here: it takes longer than everything else that a verb needs for its first line.
    import numpy as np

    file = _file(key, folder)
    # The cache may belong to somebody else.
    with contextlib.suppress(OSError):
        os.utime(file)
    try:
        array = np.load(file, mmap_mode=None if in_memory else "r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array if array.shape == shape and array.dtype == np.uint8 else None


def store(
    key: str, shape: tuple[int, ...], rows: "Iterable[np.ndarray]", limit_gib: float, folder: Path | None = None
) -> None:
    """Writes a uint8 array under a key, row by row, after removing the least recently used entries to make room.

    Args:
      key: as in `open_cached`.
      shape: the array's.
      rows: shape[0] arrays of shape[1:].
      limit_gib: maximum size of all entries.
      folder: where the cache is; None = `cache_folder()`.

    Raises:
      UserError: the array alone is above the limit.
      OSError: the disk is full; nothing is left of the entry.
    """
    import numpy as np

    size = int(np.prod(shape))
    if size > limit_gib * GIB:
        raise UserError(
            f"{shape[0]} decoded frames take {size / GIB:.3g} GiB, more than data.cache_limit_gib = {limit_gib:g}; "
            "raise this limit, or raise data.memory_limit_gib to keep the frames in memory"
        )
    file = _file(key, folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    make_room(file.parent, limit_gib * GIB - size, ".npy")
    # Without a memory map: on a full disk, a page fault would end the process instead of raising an error.
    with open_atomic(file, sync=False) as stream:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        for row in rows:
            stream.write(row.tobytes())


def read_note(key: str, folder: Path | None = None) -> Any:
    """Returns the content that `write_note` kept under a key, or None.

    Args:
      key: as in `open_cached`.
      folder: where the cache is; None = `cache_folder()`.
    """
    try:
        return json.loads(_note(key, folder).read_text())
    except (OSError, ValueError, RecursionError):
        return None


def write_note(key: str, content: Any, folder: Path | None = None) -> None:
    """Keeps JSON-ready content under a key; notes are small and count towards no limit.

    Raises:
      OSError: it cannot be written.
    """
    file = _note(key, folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    with open_atomic(file, sync=False) as stream:
        stream.write(json.dumps(content).encode())


def _file(key: str, folder: Path | None) -> Path:
    return (folder or cache_folder()) / "frames" / f"{key}.npy"


def _note(key: str, folder: Path | None) -> Path:
    return (folder or cache_folder()) / "notes" / f"{key}.json"


def make_room(folder: Path, limit: float, suffix: str | tuple[str, ...]) -> None:
    """Deletes the least recently used files of a folder until the rest has at most `limit` bytes.

    Args:
      folder: an existing folder.
      limit: bytes.
      suffix: which files count, one suffix or several, such as ".npy"; other files stay, except stale ".tmp" files.
    """
    # Another process may remove the same entries. If it has one open, the pages stay until it closes the file.
    entries = []
    for file in folder.iterdir():
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        if file.name.endswith(suffix):
            entries.append((status.st_mtime, status.st_size, file))
        elif file.suffix == ".tmp" and time.time() - status.st_mtime > STALE_SECONDS:
            file.unlink(missing_ok=True)
    total = sum(size for _, size, _ in entries)
    for _, size, file in sorted(entries):
        if total <= limit:
            break
        file.unlink(missing_ok=True)
        total -= size
