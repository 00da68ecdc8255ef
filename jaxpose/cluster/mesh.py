"""The mesh: every device holds all parameters, and its share of the batch along the axis `data`.

Input: devices, and this host's rows of a batch as numpy arrays. Output: global arrays for the step.
"""

# pyright: reportInvalidTypeForm=false
# (jaxlib has no stubs: pyright does not know jax.Device)

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxpose.config.mesh import AXIS


def make_mesh(devices: list[jax.Device]) -> Mesh:
    """Returns a mesh with one axis, `data`, over the devices in the given order."""
    return Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))


def local_devices(mesh: Mesh) -> list[jax.Device]:
    """Returns the devices of this process, in the order of the mesh."""
    return [device for device in mesh.devices.flat if device.process_index == jax.process_index()]


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
