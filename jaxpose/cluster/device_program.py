"""One compiled program on every device of this process: the same machine code, so the same bits, on each."""

# pyright: reportInvalidTypeForm=false, reportAttributeAccessIssue=false
# (jaxlib has no stubs: pyright knows neither jax.Device nor jax.config's options)

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

# Private modules. They are the same in all JAX releases that pyproject.toml allows.
from jax._src.compiler import get_compile_options
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import NamedSharding, PartitionSpec

from jaxpose.cluster.mesh import make_mesh


class DeviceProgram:
    """A function, compiled once for one device, and loaded on each device of this process.

    A second compilation could choose other kernels on a GPU, and one program for several devices passes through other
    passes of XLA than one for a single device: both would change the last bits.

    Args:
      function: of arrays or trees of arrays, without collectives.
      devices: of this process.
      arguments: shapes and types of the arguments.
      donated: numbers of the arguments whose memory is used for the results.
      options: of XLA.
    """

    def __init__(
        self,
        function: Callable,
        devices: Sequence[jax.Device],
        arguments: Sequence[Any],
        donated: tuple[int, ...] = (),
        options: dict[str, Any] | None = None,
    ):
        on_first = on_device(devices[0])
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=on_first), tuple(arguments)
        )
        lowered = jax.jit(function, donate_argnums=donated).lower(*shapes)
        with contextlib.nullcontext() if len(devices) == 1 else _without_kept_programs():
            self.compiled = lowered.compile(options)
        self._on_devices = [self.compiled, *_copies(self.compiled, devices[0], devices[1:])]

    def __call__(self, place: int, *arguments: Any) -> Any:
        """Runs on the device number `place` of this process, where the arguments must lie."""
        return self._on_devices[place](*arguments)


def on_device(device: jax.Device) -> NamedSharding:
    """Returns the sharding of an array that lies on one device: of a mesh of that device, as `make_mesh` makes it."""
    return NamedSharding(make_mesh([device]), PartitionSpec())


@contextlib.contextmanager
def _without_kept_programs() -> Iterator[None]:
    """Makes JAX compile anew: on CPU, a program from the cache of programs cannot be copied to other devices."""
    before = jax.config.jax_enable_compilation_cache
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        # JAX asks only once whether to use the cache.
        compilation_cache.reset_cache()
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _copies(
    compiled: jax.stages.Compiled, first: jax.Device, others: Sequence[jax.Device]
) -> list[jax.stages.Compiled]:
    """Returns a program that was compiled for a device, loaded on other devices."""
    if not others:
        return []
    content, in_tree, out_tree = serialize_executable.serialize(compiled)
    copies = []
    for device in others:
        unloaded, shapes, has_no_keywords = _OnDevice(content, first, device).load()
        copies.append(
            jax.stages.Compiled(unloaded.load(), [], in_tree.unflatten(shapes), out_tree, no_kwargs=has_no_keywords)
        )
    return copies


class _OnDevice(serialize_executable._JaxPjrtUnpickler):
    """Reads a serialized program for another device; JAX's own function loads it only on the device it was made for."""

    def __init__(self, content: bytes, first: jax.Device, device: jax.Device):
        super().__init__(io.BytesIO(content), device.client, [device])
        self.devices_by_id = {first.id: device}
        self._options = get_compile_options(1, 1, np.array([[device.id]]))

    def persistent_load(self, pid: tuple) -> Any:
        if pid[0] == "exec":
            return self.backend.deserialize_executable(pid[1], self.execution_devices, self._options)
        return super().persistent_load(pid)
