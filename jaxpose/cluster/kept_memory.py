"""Keeps the memory of a training step on the CPU for the next step."""

# pyright: reportAttributeAccessIssue=false
# (pyright does not know the options of jax.config)

import ctypes

import jax

from jaxpose.cluster.gpus import nvidia_driver_is_visible
from jaxpose.config import MeshConfig

# From malloc.h of glibc.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_KEPT_BYTES = 2**31 - 1


def keep_memory(mesh: MeshConfig) -> None:
    """Makes a process that trains on the CPU keep the memory that a step frees. Call it before the backend starts.

    XLA allocates the temporary memory of a step anew each time. By default, glibc takes it from the system and gives it
    back, so every page of it is filled with zeros once more. glibc can keep memory only for the thread in which the
    process began, so steps are computed in the thread that asks for them. With a GPU, or another library than glibc,
    this does nothing.
    """
    if mesh.platform not in ("auto", "cpu") or (mesh.platform == "auto" and nvidia_driver_is_visible()):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return
    set_option(_MMAP_MAX, 0)
    set_option(_TRIM_THRESHOLD, _KEPT_BYTES)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
