"""Whether label files have changed, and whether they are whole, by what the file system says about them."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from jaxpose.files import read_bytes

_Signature = tuple[int, ...] | None
# Those of a label file and the HDF5 file next to it, and whether one is young.
Signatures = tuple[tuple[_Signature, ...], bool]
# File systems round the times of files to this at most; a file that is younger may change without another time.
_COARSE_NS = 2_000_000_000
# A changed file that stays as it is for so long is whole.
_REST_S = 0.5


class FileStates:
    """The label files as they were read or written."""

    def __init__(self) -> None:
        self._known: dict[Path, Signatures] = {}
        self._seen: dict[Path, tuple[tuple[_Signature, ...], float]] = {}

    def take(self, file: Path, signatures: Signatures | None = None) -> None:
        """Takes the signatures of a file: the present ones, unless they are given."""
        self._known[file] = signatures or file_signatures(file)

    def has(self, file: Path) -> bool:
        """Returns whether a file existed when its signatures were taken."""
        return self._known[file][0][0] is not None

    def has_changed(self, file: Path, signatures: Signatures, content: Callable[[], bytes] | None) -> bool:
        """Returns whether a file differs from what was read; compares the bytes where its time proves nothing.

        Args:
          file: the path.
          signatures: the present ones.
          content: returns the bytes that were read or written, None for a file that was not.
        """
        (now, is_young), (before, was_young) = signatures, self._known.get(file, ((), False))
        if now != before or not content:
            return True
        try:
            is_other = (is_young or was_young) and read_bytes(file, most_bytes=None) != content()
        except FileNotFoundError:
            is_other = False
        if not is_other:
            self._known[file] = signatures
        return is_other

    def is_being_written(self, file: Path, signatures: Signatures) -> bool:
        """Returns whether a changed file may go on to change, because it did so a moment ago.

        Programs that write a file in place, as pandas does, leave the first part of it to read meanwhile.
        """
        now_s = time.monotonic()
        found, since_s = self._seen.get(file, ((), now_s))
        if found != signatures[0]:
            self._seen[file] = signatures[0], now_s
            return True
        return now_s - since_s < _REST_S


def file_signatures(file: Path) -> Signatures:
    """Returns what shows that a label file, or the HDF5 file next to it, has changed, and whether one is young."""
    found = tuple(map(_signature, (file, file.with_suffix(".h5"))))
    return found, any(time.time_ns() - max(one[:2]) < _COARSE_NS for one in found if one)


def _signature(file: Path) -> _Signature:
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
