"""A file that only grows, by whole records."""

import errno
import os
import threading
from pathlib import Path


class GrowingFile:
    """A file that is appended to; a record that does not fit on the disk leaves no half of itself behind."""

    def __init__(self, file: Path):
        self._file = file
        self._descriptor = -1
        self._lock = threading.Lock()

    def append(self, record: bytes) -> None:
        """Writes a record at the end, at once.

        Raises:
          OSError: it cannot be written; the file is as before.
        """
        with self._lock:
            if self._descriptor < 0:
                self._descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            size = os.fstat(self._descriptor).st_size
            try:
                if os.write(self._descriptor, record) < len(record):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(self._descriptor, size)
                raise

    def close(self) -> None:
        """Closes the file; a later `append` opens it again."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
