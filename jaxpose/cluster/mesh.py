"""The mesh: every device holds all parameters, and its share of the batch along the axis `data`.

Input: devices, and this host's rows of a batch as numpy arrays. Output: global arrays for the step, and programs that
run with the same bits on every device.
"""

# pyright: reportInvalidTypeForm=false, reportAttributeAccessIssue=false
# (jaxlib has no stubs: pyright knows neither jax.Device nor jax.config's options)

import contextlib
import functools
import hashlib
import importlib.metadata
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.compiler import get_compile_options
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.sharding import PartitionSpec as P

from jaxpose.cluster.code_identity import xla_options
from jaxpose.cluster.kept_shapes import read_shapes, write_shapes
from jaxpose.cluster.program_cache import kept_programs
from jaxpose.config.train import AXIS


def make_mesh(devices: list[jax.Device]) -> Mesh:
    """Returns a mesh with one axis, `data`, over the devices in the given order."""
    return Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))


def local_devices(mesh: Mesh) -> list[jax.Device]:
    """Returns the devices of this process, in the order of the mesh."""
    return [device for device in mesh.devices.flat if device.process_index == jax.process_index()]


def equal_machines(mesh: Mesh, names: Sequence[str]) -> int:
    """Returns the number of machines, if each has the same number of neighbours in the mesh, else 1.

    Args:
      mesh: the devices.
      names: the name of each process's machine.
    """
    of_devices = [names[device.process_index] for device in mesh.devices.flat]
    runs = [len(list(run)) for _, run in itertools.groupby(of_devices)]
    return len(runs) if len(runs) == len(set(of_devices)) and len(set(runs)) == 1 else 1


def put_batch(mesh: Mesh, host_batch: dict[str, Any]) -> dict[str, Any]:
    """Returns global arrays whose first axis is divided evenly over the devices.

    Args:
      mesh: the mesh.
      host_batch: this process's rows of each field, (its devices * rows per device, ...), in the order of its devices.
        A field may itself be a batch, with its own number of rows. Do not modify the arrays afterwards: a CPU device
        may use the same memory.

    Raises:
      ValueError: the rows of a field cannot be divided evenly over this process's devices.
    """
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    local_count = mesh.local_mesh.size

    def put(name: str, rows: np.ndarray) -> jax.Array:
        if rows.ndim == 0 or len(rows) == 0 or len(rows) % local_count:
            raise ValueError(
                f"batch field {name!r} has shape {rows.shape}; its first axis must be a multiple of the {local_count} "
                "devices of this process (pad it, with valid = False)"
            )
        global_shape = (len(rows) // local_count * mesh.size, *rows.shape[1:])
        return jax.make_array_from_process_local_data(sharding, rows, global_shape)

    return {
        name: put_batch(mesh, rows) if isinstance(rows, dict) else put(name, rows) for name, rows in host_batch.items()
    }


def replicate(mesh: Mesh, tree: Any) -> Any:
    """Returns the tree with a full copy of every leaf (numpy or a fully addressable jax array) on every device."""
    sharding = NamedSharding(mesh, PartitionSpec())

    def put(leaf: Any) -> jax.Array:
        # Via numpy: from a jax array, with two processes, jax 0.10.2 makes an array whose shards cannot be listed.
        array = np.asarray(leaf)
        return jax.make_array_from_process_local_data(sharding, array, array.shape)

    return jax.tree.map(put, tree)


def copies(mesh: Mesh, tree: Any) -> list[Any]:
    """Returns each copy, on a device of this process, of a tree that `replicate` returned."""
    if mesh.size == 1:
        return [tree]
    leaves, structure = jax.tree.flatten(tree)
    by_device = [{shard.device: shard.data for shard in leaf.addressable_shards} for leaf in leaves]
    return [structure.unflatten([copy[device] for copy in by_device]) for device in local_devices(mesh)]


def joined(mesh: Mesh, copies: list[Any]) -> Any:
    """Returns a tree on the mesh from its copies on the devices of this process."""
    if mesh.size == 1:
        return copies[0]
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(
        lambda *own: jax.make_array_from_single_device_arrays(own[0].shape, sharding, list(own)), *copies
    )


# Checks that all devices hold the same state. Each has its own copy, and only equal gradients keep the copies equal.

_BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


class Replicas:
    """The copies of a state on the devices of a mesh.

    Args:
      mesh: the devices.
    """

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        self._checksums = jax.jit(jax.shard_map(self._of_each, mesh=mesh, in_specs=P(), out_specs=P()))

    def differing(self, state: Any) -> list[str]:
        """Returns the names of the devices whose copy differs from that of the majority; every process must call this.

        Without a majority, all devices are returned.
        """
        if self._mesh.size == 1:
            return []
        sums = np.asarray(self._checksums(jax.tree.leaves(state)))
        values, counts = np.unique(sums, return_counts=True)
        # -1 if no value has a majority.
        usual = values[np.argmax(counts)] if 2 * counts.max() > len(sums) else -1
        devices = list(self._mesh.devices.flat)
        return [
            f"{device.platform}:{device.local_hardware_id or 0} of process {device.process_index}"
            for device, value in zip(devices, sums, strict=True)
            if value != usual
        ]

    def _of_each(self, leaves: list[jax.Array]) -> jax.Array:
        """Returns a checksum of each device's copy, uint32 (devices,). Any flipped bit changes it."""
        total = jnp.uint32(0)
        for leaf in leaves:
            bits = lax.bitcast_convert_type(leaf, _BITS[leaf.dtype.itemsize]).reshape(-1)
            words = bits.astype(jnp.uint32)
            if bits.dtype == jnp.uint64:
                words = words ^ (bits >> jnp.uint64(32)).astype(jnp.uint32)
            # Odd factors lose no bit; different factors detect exchanged values.
            place = 2 * lax.iota(jnp.uint32, words.size) + 1
            total = total * jnp.uint32(31) + jnp.sum(words * place, dtype=jnp.uint32)
        mine = lax.axis_index(AXIS) == lax.iota(jnp.int32, self._mesh.size)
        return lax.psum(jnp.where(mine, total, jnp.uint32(0)), AXIS)


# One compiled program on every device of this process: the same machine code, so the same bits.

# Private modules. They are the same in all JAX releases that pyproject.toml allows.


class DeviceProgram:
    """A function, compiled once for one device, and loaded on each device of this process.

    A second compilation could choose other kernels on a GPU, and XLA runs other passes on a program for several devices
    than on one for a single device: both would change the last bits.

    Args:
      function: takes arrays or trees of arrays; no collectives.
      devices: this process's.
      arguments: shapes and types of the arguments.
      donated: numbers of the arguments whose memory is used for the results.
      options: for XLA.
      identity: of everything that the function reads except its arguments, such as `code_identity` and the config. With
        it, a kept program is found without tracing the function; "" if it is not known.

    Attributes:
      results: shapes and types of the results.
    """

    def __init__(
        self,
        function: Callable,
        devices: Sequence[jax.Device],
        arguments: Sequence[Any],
        donated: tuple[int, ...] = (),
        options: dict[str, Any] | None = None,
        identity: str = "",
    ):
        options = options or {}
        self._arguments = jax.tree.structure((tuple(arguments), {}))
        untraced = _untraced_key(identity, arguments, donated, options, devices[0]) if identity else ""
        if untraced and self._load_untraced(untraced, devices, arguments):
            return
        if len(devices) > 1 or untraced:
            # JAX would reuse its executable of the function, which may come from its cache: see `_serialized`.
            function = _renewed(function)
        on_first = on_device(devices[0])
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=on_first), tuple(arguments)
        )
        lowered = jax.jit(function, donate_argnums=donated).lower(*shapes)
        self.results = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), lowered.out_info)
        if len(devices) == 1 and not untraced:
            self._on_devices = [lowered.compile(options)]
            return
        key = _traced_key(lowered, options, devices[0])
        if not self._load_kept(key, devices):
            compiled, content = _serialized(lowered, options)
            _keep(key, content)
            self._on_devices = [compiled] if len(devices) == 1 else self._loaded(content, devices)
        if untraced and (text := write_shapes(self.results, arguments)):
            _keep(untraced, f"{key}\n{text}".encode())

    @property
    def compiled(self) -> jax.stages.Compiled:
        """The program on the first device."""
        return self._on_devices[0]

    def _load_untraced(self, key: str, devices: Sequence[jax.Device], arguments: Sequence[Any]) -> bool:
        """Loads the program of an `_untraced_key`, which names its `_traced_key`; returns False without one."""
        files = kept_programs()
        found = files.get(key) if files else None
        if found is None:
            return False
        of_program, _, shapes = found.decode().partition("\n")
        self.results = read_shapes(shapes, arguments)
        return self._load_kept(of_program, devices)

    def _load_kept(self, key: str, devices: Sequence[jax.Device]) -> bool:
        """Loads the program of a `_traced_key`; returns False if there is none, or XLA cannot load it."""
        files = kept_programs()
        content = files.get(key) if files else None
        if content is None:
            return False
        try:
            self._on_devices = self._loaded(content, devices)
        except jax.errors.JaxRuntimeError:
            return False
        return True

    def _loaded(self, content: bytes, devices: Sequence[jax.Device]) -> list[jax.stages.Compiled]:
        structures = self._arguments, jax.tree.structure(self.results)
        return [_loaded(content, *structures, devices[0], device) for device in devices]

    def __call__(self, place: int, *arguments: Any) -> Any:
        """Runs on device number `place` of this process, which must hold the arguments."""
        return self._on_devices[place](*arguments)


def _renewed(function: Callable) -> Callable:
    """Returns the function as a new one to JAX."""
    return functools.wraps(function)(lambda *arguments: function(*arguments))


def on_device(device: jax.Device) -> NamedSharding:
    """Returns the sharding of an array on one device, over `make_mesh`'s mesh of that device."""
    return NamedSharding(make_mesh([device]), PartitionSpec())


def _untraced_key(
    identity: str, arguments: Sequence[Any], donated: tuple[int, ...], options: dict[str, Any], device: jax.Device
) -> str:
    """Returns the key of what is kept about a program, from what is known before its function is traced."""
    leaves, structure = jax.tree.flatten(tuple(arguments))
    shapes = [(leaf.shape, np.dtype(leaf.dtype).name) for leaf in leaves]
    text = repr((identity, str(structure), shapes, donated, sorted(options.items()), _target(device)))
    return f"untraced-{hashlib.sha256(text.encode()).hexdigest()}"


def _target(device: jax.Device) -> tuple[Any, ...]:
    """Returns what a program is compiled by and for."""
    versions = [importlib.metadata.version(name) for name in ("jax", "jaxlib")]
    return versions, device.client.platform_version, device.device_kind, device.id, xla_options()


def _traced_key(lowered: jax.stages.Lowered, options: dict[str, Any], device: jax.Device) -> str:
    """Returns the key of a program compiled for a device."""
    # The text omits arguments that the function does not use, but the program is called with all of them.
    identity = (lowered.as_text(), str(jax.tree.structure(lowered.args_info)), _target(device), options)
    return f"device-{hashlib.sha256(repr(identity).encode()).hexdigest()}"


def _keep(key: str, content: bytes) -> None:
    if files := kept_programs():
        files.put(key, content)


def _serialized(lowered: jax.stages.Lowered, options: dict[str, Any]) -> tuple[jax.stages.Compiled, bytes]:
    """Returns a program, compiled now, and its content.

    It is kept apart from JAX's, because a CPU program that JAX loaded cannot be serialized again.
    """
    with _without_kept_programs():
        compiled = lowered.compile(options)
        content, _, _ = serialize_executable.serialize(compiled)
    return compiled, content


@contextlib.contextmanager
def _without_kept_programs() -> Iterator[None]:
    """Makes JAX compile again."""
    before = jax.config.jax_enable_compilation_cache
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        # JAX asks only once whether to use the cache.
        compilation_cache.reset_cache()
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _loaded(content: bytes, arguments: Any, results: Any, first: jax.Device, device: jax.Device) -> jax.stages.Compiled:
    """Returns a program compiled for the first device, loaded on a device.

    Args:
      content: the serialized program.
      arguments: structure of ((arguments), {}).
      results: structure of the results.
      first: the device that it was compiled for.
      device: the device that will run it.
    """
    unloaded, shapes, has_no_keywords = _OnDevice(content, first, device).load()
    return jax.stages.Compiled(unloaded.load(), [], arguments.unflatten(shapes), results, no_kwargs=has_no_keywords)


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
