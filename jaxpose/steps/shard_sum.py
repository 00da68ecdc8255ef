"""Adds the shards' numbers in one fixed binary tree, whichever device of whichever machine has which shard."""

import functools
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpose.cluster.mesh import DeviceProgram, local_devices, on_device
from jaxpose.config.train import AXIS
from jaxpose.steps.layout import shard_blocks

_MACHINE = "machine"
# Up to this size, every device gets whole vectors: one call has less latency than two, and its bytes do not count.
_SMALL_BYTES = 1024

# Node (l, i) of the tree is the sum of the shards from i 2^l up to (i + 1) 2^l, as far as these shards exist.
_Node = tuple[int, int]


class ShardSum:
    """Adds trees of arrays. All processes must call it in the same way.

    Each device adds those of its own shards that are neighbours in the tree of shards. The rest is done with vectors,
    in slices: every device gets one slice of all sums (an all-to-all), finishes it, and sends it to all (an
    all-gather). If the shards of every machine are a branch of the tree, this happens twice: first the devices of a
    machine add its branch, then devices of different machines add the slices of the branches, so that a machine sends
    and receives the vector once each way, as in a ring. No order of additions depends on the devices or the machines.
    There are only additions of single numbers, which are the same in any program.

    Args:
      mesh: the devices.
      shards: their number; each device has a block of them (`shard_blocks`).
      summand: the shapes of one; its numbers are of one type.
      machines: the number of machines, each of which has the same number of neighbours in the mesh.

    Attributes:
      over_devices: the program for all devices, from each device's sums, in slots, to the whole sum; None for a single
        device.
      slot: the shape, type and sharding of a slot.
    """

    def __init__(self, mesh: Mesh, shards: int, summand: Any, machines: int = 1):
        self._shards = shards
        self._devices = local_devices(mesh)
        blocks = dict(zip(mesh.devices.flat, shard_blocks(shards, mesh.size), strict=True))
        self._blocks = [blocks[device] for device in self._devices]
        self._adder = None
        if max(map(len, self._blocks)) > 1:
            self._adder = DeviceProgram(_added, self._devices, (summand, summand), donated=(0,))
        self.over_devices = None
        if mesh.size == 1:
            return
        vector = jax.eval_shape(_packed, summand)
        self._pack = DeviceProgram(_packed, self._devices, (summand,))
        self._unpack = DeviceProgram(functools.partial(_unpacked, summand), self._devices, (vector,))
        self._zeros = [jax.device_put(np.zeros(vector.shape, vector.dtype), on_device(d)) for d in self._devices]
        nodes = [nodes_of(block) for block in blocks.values()]
        self._slots = max(map(len, nodes))
        if machines == mesh.size or not _has_branches(shards, machines):
            machines = 1
        of_machines = Mesh(mesh.devices.reshape(machines, -1), (_MACHINE, AXIS))
        sharding, length = NamedSharding(of_machines, P((_MACHINE, AXIS))), vector.shape[0]
        self.slot = jax.ShapeDtypeStruct((mesh.size * length,), vector.dtype, sharding=sharding)
        is_small = length * vector.dtype.itemsize <= _SMALL_BYTES
        finish = _gathered(nodes, shards) if is_small else _sliced(nodes, shards, machines, length)
        # The result is the same on all devices, but JAX cannot know.
        self.over_devices = jax.jit(
            jax.shard_map(finish, mesh=of_machines, in_specs=sharding.spec, out_specs=P(), check_vma=False)
        )

    def __call__(self, summands: Sequence[Iterable[Any]]) -> list[Any]:
        """Returns the sum on each device of this process.

        Args:
          summands: for each device of this process, those of its shards, in order; the sum may use their memory.
        """
        sums = [self._merged(place, of_device) for place, of_device in enumerate(summands)]
        if self.over_devices is None:
            return [total(sums[0], self._shards, functools.partial(self._sum_of, 0))]
        # A device with fewer sums than another sends zeros in their place, which are not read.
        filled = [
            [*(self._pack(place, own) for own in sums[place].values()), *[zeros] * self._slots]
            for place, zeros in enumerate(self._zeros)
        ]
        shape, sharding = self.slot.shape, self.slot.sharding
        slots = [
            jax.make_array_from_single_device_arrays(shape, sharding, [of_device[slot] for of_device in filled])
            for slot in range(self._slots)
        ]
        # CPU devices share one pool of threads: a wait for a collective must not keep others from getting there.
        is_cpu = self._devices[0].platform == "cpu"
        summed = self.over_devices(*(jax.block_until_ready(slots) if is_cpu else slots))
        if is_cpu:
            jax.block_until_ready(summed)
        found = {shard.device: shard.data for shard in summed.addressable_shards}
        vectors = [
            jax.make_array_from_single_device_arrays(summed.shape, on_device(device), [found[device]])
            for device in self._devices
        ]
        return [self._unpack(place, vector) for place, vector in enumerate(vectors)]

    def _merged(self, place: int, summands: Iterable[Any]) -> dict[_Node, Any]:
        """Returns the sums of a device's shards that are as high in the tree as these shards alone allow."""
        found: dict[_Node, Any] = {}
        for shard, value in zip(self._blocks[place], summands, strict=True):
            node = (0, shard)
            while left := _left_of(node, found):
                value, node = self._sum_of(place, found.pop(left), value), _parent(node)
            found[node] = value
        return found

    def _sum_of(self, place: int, left: Any, right: Any) -> Any:
        assert self._adder is not None, "one shard has nothing to be added to"
        return self._adder(place, left, right)


def _has_branches(shards: int, machines: int) -> bool:
    """Returns whether each of several machines has one full branch of the tree of shards."""
    of_machine, rest = divmod(shards, machines)
    return rest == 0 and of_machine.bit_count() == 1


def _gathered(nodes: list[list[_Node]], shards: int) -> Callable:
    """Returns the sum over devices that sends every vector to all of them.

    Args:
      nodes: of the tree, that each device has, in slots.
      shards: their number.
    """

    def finish(*slots: jax.Array) -> jax.Array:
        vectors = [lax.all_gather(slot, (_MACHINE, AXIS)) for slot in slots]
        return total(_by_node(vectors, nodes), shards, jnp.add)

    return finish


def _sliced(nodes: list[list[_Node]], shards: int, machines: int, length: int) -> Callable:
    """Returns the sum over devices that sends slices of the vectors, within each machine and then between them.

    Args:
      nodes: of the tree, that each device has, in slots.
      shards: their number; those of each machine are a branch, if there are several machines.
      machines: their number.
      length: of the vectors.
    """
    devices = len(nodes)
    inside, of_machine = devices // machines, shards // machines

    def finish(*slots: jax.Array) -> jax.Array:
        padded = [jnp.pad(slot, (0, -length % devices)) for slot in slots]
        # The devices of all machines have the same places in their branches.
        slices = _by_node([_exchanged(vector, inside, AXIS) for vector in padded], nodes[:inside])
        branch = total(slices, of_machine, jnp.add)
        if machines > 1:
            level = of_machine.bit_length() - 1
            branches = enumerate(_exchanged(branch, machines, _MACHINE))
            branch = total({(level, machine): value for machine, value in branches}, shards, jnp.add)
            branch = lax.all_gather(branch, _MACHINE, tiled=True)
        return lax.all_gather(branch, AXIS, tiled=True)[:length]

    return finish


def _exchanged(vector: jax.Array, devices: int, axis: str) -> jax.Array:
    """Returns this device's slice of the vectors of all devices along an axis, (devices, length / devices)."""
    return lax.all_to_all(vector.reshape(devices, -1), axis, 0, 0)


def _by_node(slots: Sequence[jax.Array], nodes: list[list[_Node]]) -> dict[_Node, jax.Array]:
    """Returns the values of the nodes that each device has, from slots whose first axis is the devices."""
    return {node: slots[slot][device] for device, own in enumerate(nodes) for slot, node in enumerate(own)}


def total(values: dict[_Node, Any], shards: int, add: Callable) -> Any:
    """Returns the root of the tree from the values of nodes that cover every shard once."""

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


def _added(left: Any, right: Any) -> Any:
    return jax.tree.map(jnp.add, left, right)


def _packed(tree: Any) -> jax.Array:
    """Returns the numbers of a tree of arrays of one type as one vector."""
    return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(tree)])


def _unpacked(tree: Any, vector: jax.Array) -> Any:
    """Returns the numbers of a vector as a tree of these shapes."""
    shapes, structure = jax.tree.flatten(tree)
    leaves, first = [], 0
    for shape in shapes:
        leaves.append(vector[first : first + shape.size].reshape(shape.shape))
        first += shape.size
    return jax.tree.unflatten(structure, leaves)
