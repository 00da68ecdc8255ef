"""Keeps the memory of a training on the CPU from being zeroed at every step, and from growing with every save.

Imports nothing heavy: glibc takes these options only while few threads run, so they are set before the packages.
"""

import ctypes
import functools

from jaxpose.cluster.gpus import nvidia_driver_is_visible

# From malloc.h of glibc.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_KEPT_BYTES = 2**31 - 1
# One for the first thread, and one that all others share.
_ARENAS = 2


@functools.cache
def keep_freed_memory(platform: str) -> bool:
    """Makes malloc keep what this process frees, in two arenas; returns whether it does.

    With a GPU, or without glibc, this does nothing. Later calls with this `mesh.platform` only return the answer.

    XLA allocates the temporary memory of a step again each time. By default, glibc takes it from the system and returns
    it, so every page is zeroed again. And by default it has up to 8 arenas a core, between which the threads of saves
    move: each keeps free memory that the others cannot use, so the process grows with every save
    (benchmarks/memory.md).
    """
    if platform not in ("auto", "cpu") or (platform == "auto" and nvidia_driver_is_visible()):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    for option, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _KEPT_BYTES), (_ARENA_MAX, _ARENAS)):
        set_option(option, value)
    return True
