"""Full disks, without a disk that is full."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(free_bytes: int = 1000) -> Iterator[None]:
    """A context in which no file grows beyond a size, in this process; Python ignores the signal of this limit."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
