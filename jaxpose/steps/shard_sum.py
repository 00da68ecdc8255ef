"""The sum of one vector of each shard, in one fixed binary tree, whichever device has which shard."""

import functools
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpose.cluster.device_program import DeviceProgram, on_device
from jaxpose.cluster.mesh import local_devices
from jaxpose.config.mesh import AXIS
from jaxpose.steps.layout import shard_blocks

# Node (l, i) of the tree is the sum of the shards from i 2^l up to (i + 1) 2^l, as far as there are so many.
_Node = tuple[int, int]


class ShardSum:
    """Adds vectors. All processes must call it in the same way.

    Each device adds those of its own shards, as far as they are neighbours in the tree. The rest of the tree is done in
    slices: every device gets one slice of all sums (an all-to-all), finishes it, and sends it to all (an all-gather).
    That is as much as an all-reduce sends where the shards of each device have one sum (as with powers of two), but
    nothing is added in an order that depends on the devices. Additions of single numbers are the same in whatever
    program; there are no others.

    Args:
      mesh: the devices.
      shards: their number; each device has a block of them (`shard_blocks`).
      vector: its shape and type.

    Attributes:
      zeros: such a vector on each device of this process.
      over_devices: the program for all devices: the sums that each device has, in slots, to the whole sum; None for a
        single device.
    """

    def __init__(self, mesh: Mesh, shards: int, vector: jax.ShapeDtypeStruct):
        self._mesh, self._shards, self._length = mesh, shards, vector.shape[0]
        self._devices = local_devices(mesh)
        blocks = dict(zip(mesh.devices.flat, shard_blocks(shards, mesh.size), strict=True))
        self._blocks = [blocks[device] for device in self._devices]
        self._add = DeviceProgram(jnp.add, self._devices, (vector, vector), donated=(0,))
        self.zeros = [jax.device_put(np.zeros(vector.shape, vector.dtype), on_device(d)) for d in self._devices]
        nodes = [nodes_of(block) for block in blocks.values()]
        self._slots = max(map(len, nodes))
        self.over_devices = jax.jit(self._finished(nodes)) if mesh.size > 1 else None

    def __call__(self, vectors: Sequence[Iterable[jax.Array]]) -> list[jax.Array]:
        """Returns the sum on each device of this process.

        Args:
          vectors: for each device of this process, those of its shards, in order; the sum may use their memory.
        """
        sums = [self._merged(place, of_device) for place, of_device in enumerate(vectors)]
        if self.over_devices is None:
            return [total(sums[0], self._shards, functools.partial(self._add, 0))]
        sharding, shape = NamedSharding(self._mesh, P(AXIS)), (self._mesh.size * self._length,)
        # A device with fewer sums than another sends zeros in their place, which nobody reads.
        filled = [[*own.values(), *[zeros] * self._slots] for own, zeros in zip(sums, self.zeros, strict=True)]
        slots = [
            jax.make_array_from_single_device_arrays(shape, sharding, [of_device[slot] for of_device in filled])
            for slot in range(self._slots)
        ]
        # CPU devices share one pool of threads: what waits for a collective must not keep others from getting there.
        is_cpu = self._devices[0].platform == "cpu"
        summed = self.over_devices(*(jax.block_until_ready(slots) if is_cpu else slots))
        if is_cpu:
            jax.block_until_ready(summed)
        found = {shard.device: shard.data for shard in summed.addressable_shards}
        return [
            jax.make_array_from_single_device_arrays((self._length,), on_device(device), [found[device]])
            for device in self._devices
        ]

    def _merged(self, place: int, vectors: Iterable[jax.Array]) -> dict[_Node, jax.Array]:
        """Returns the sums of a device's shards that are as high in the tree as these shards alone allow."""
        found: dict[_Node, jax.Array] = {}
        for shard, vector in zip(self._blocks[place], vectors, strict=True):
            node = (0, shard)
            while left := _left_of(node, found):
                vector, node = self._add(place, found.pop(left), vector), _parent(node)
            found[node] = vector
        return found

    def _finished(self, nodes: list[list[_Node]]) -> Callable:
        devices, length = self._mesh.size, self._length
        padding = -length % devices

        def finish(*slots: jax.Array) -> jax.Array:
            slices = [lax.all_to_all(jnp.pad(slot, (0, padding)).reshape(devices, -1), AXIS, 0, 0) for slot in slots]
            values = {node: slices[slot][device] for device, own in enumerate(nodes) for slot, node in enumerate(own)}
            return lax.all_gather(total(values, self._shards, jnp.add), AXIS, tiled=True)[:length]

        # The result is the same on all devices, but JAX cannot see it.
        return jax.shard_map(finish, mesh=self._mesh, in_specs=P(AXIS), out_specs=P(), check_vma=False)


def total(values: dict[_Node, Any], shards: int, add: Callable) -> Any:
    """Returns the root of the tree from the values of nodes that together have every shard once."""

    def at(level: int, index: int) -> Any:
        if (level, index) in values:
            return values[level, index]
        left, right = at(level - 1, 2 * index), (2 * index + 1) << (level - 1)
        return add(left, at(level - 1, 2 * index + 1)) if right < shards else left

    return at((shards - 1).bit_length(), 0)


def nodes_of(block: range) -> list[_Node]:
    """Returns the highest nodes that a block of shards fills, in the order of their shards."""
    found: dict[_Node, None] = {}
    for shard in block:
        node = (0, shard)
        while left := _left_of(node, found):
            del found[left]
            node = _parent(node)
        found[node] = None
    return list(found)


def _left_of(node: _Node, found: Container[_Node]) -> _Node | None:
    """Returns the other child of a node's parent, if the node is the right one and the other is found."""
    level, index = node
    return (level, index - 1) if index % 2 and (level, index - 1) in found else None


def _parent(node: _Node) -> _Node:
    return node[0] + 1, node[1] // 2
