"""One compiled program on every device of this process: the same machine code, so the same bits, on each."""

# pyright: reportInvalidTypeForm=false, reportAttributeAccessIssue=false
# (jaxlib has no stubs: pyright knows neither jax.Device nor jax.config's options)

import contextlib
import functools
import hashlib
import importlib.metadata
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
from jaxpose.cluster.program_cache import kept_programs


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

    Attributes:
      compiled: the program on the first device.
      results: shapes and types of the results.
    """

    def __init__(
        self,
        function: Callable,
        devices: Sequence[jax.Device],
        arguments: Sequence[Any],
        donated: tuple[int, ...] = (),
        options: dict[str, Any] | None = None,
    ):
        if len(devices) > 1:
            # JAX would reuse its executable of the function, which may come from its cache: see `_serialized`.
            function = _renewed(function)
        on_first = on_device(devices[0])
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=on_first), tuple(arguments)
        )
        lowered = jax.jit(function, donate_argnums=donated).lower(*shapes)
        self.results = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), lowered.out_info)
        if len(devices) == 1:
            self._on_devices = [lowered.compile(options)]
        else:
            content = _serialized(lowered, devices[0], options or {})
            self._on_devices = [_loaded(content, lowered, devices[0], device) for device in devices]
        self.compiled = self._on_devices[0]

    def __call__(self, place: int, *arguments: Any) -> Any:
        """Runs on the device number `place` of this process, where the arguments must lie."""
        return self._on_devices[place](*arguments)


def _renewed(function: Callable) -> Callable:
    """Returns the function as one that JAX has not seen."""
    return functools.wraps(function)(lambda *arguments: function(*arguments))


def on_device(device: jax.Device) -> NamedSharding:
    """Returns the sharding of an array that lies on one device: of a mesh of that device, as `make_mesh` makes it."""
    return NamedSharding(make_mesh([device]), PartitionSpec())


def _serialized(lowered: jax.stages.Lowered, device: jax.Device, options: dict[str, Any]) -> bytes:
    """Returns a program, compiled for a device; it is kept as other programs are.

    It is kept apart from JAX's, because on a CPU a program that JAX loaded cannot be serialized again.
    """
    files, versions = kept_programs(), [importlib.metadata.version(name) for name in ("jax", "jaxlib")]
    # The text has no argument that the function does not use, and the program is called with all of them.
    arguments = str(jax.tree.structure(lowered.args_info))
    identity = (lowered.as_text(), arguments, versions, device.device_kind, device.id, options)
    key = f"device-{hashlib.sha256(repr(identity).encode()).hexdigest()}"
    content = files.get(key) if files else None
    if content is None:
        with _without_kept_programs():
            content, _, _ = serialize_executable.serialize(lowered.compile(options))
        if files:
            files.put(key, content)
    return content


@contextlib.contextmanager
def _without_kept_programs() -> Iterator[None]:
    """Makes JAX compile anew."""
    before = jax.config.jax_enable_compilation_cache
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        # JAX asks only once whether to use the cache.
        compilation_cache.reset_cache()
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _loaded(content: bytes, lowered: jax.stages.Lowered, first: jax.Device, device: jax.Device) -> jax.stages.Compiled:
    """Returns a program that was compiled for the first device, loaded on a device."""
    unloaded, shapes, has_no_keywords = _OnDevice(content, first, device).load()
    arguments = jax.tree.structure(lowered.args_info).unflatten(shapes)
    return jax.stages.Compiled(unloaded.load(), [], arguments, lowered.out_tree, no_kwargs=has_no_keywords)


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
