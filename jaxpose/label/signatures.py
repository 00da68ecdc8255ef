"""Whether a label file has changed, by what the file system says about it."""

import os
import time
from pathlib import Path

_Signature = tuple[int, ...] | None
# Those of a label file and the HDF5 file next to it, and whether one is young.
Signatures = tuple[tuple[_Signature, ...], bool]
# File systems round the times of files to this at most; a file that is younger may change without another time.
_COARSE_NS = 2_000_000_000


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
