"""One update as programs for a single device each, so that only the config determines its bits (`train.shards`).

Every pass is divided into logical shards. A shard's gradients are computed by the same machine code, on arrays of the
same shapes, on any device; the shards' results are added in one fixed tree; and each device then updates its own copy
of the state, again with the same machine code. (The idea of logical workers: EasyScale, Li et al., SC 2023.)
"""

import functools
import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpose.cluster.mesh import DeviceProgram, local_devices, on_device
from jaxpose.config import Config
from jaxpose.config.train import AXIS
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.model.pose_net import MATMUL_PRECISION
from jaxpose.steps.layout import shard_blocks
from jaxpose.steps.objective import SEED, Objective, weights_of
from jaxpose.steps.state import State
from jaxpose.steps.terms import Batch, DataFacts, Scalars, Weights
from jaxpose.steps.train_step import Metrics, move_state
from jaxpose.threads import allowed_cores, arithmetic_threads

# Adds the shards' numbers in one fixed binary tree, whichever device has which shard.

# Node (l, i) of the tree is the sum of the shards from i 2^l up to (i + 1) 2^l, as far as these shards exist.
_Node = tuple[int, int]


class ShardSum:
    """Adds trees of arrays. All processes must call it in the same way.

    Each device adds those of its own shards that are neighbours in the tree of shards. The rest is done with vectors,
    in slices: every device gets one slice of all sums (an all-to-all), finishes it, and sends it to all (an
    all-gather). This sends as much as an all-reduce if the shards of each device have one sum (as with powers of two),
    but no order of additions depends on the devices. There are only additions of single numbers, which are the same in
    any program.

    Args:
      mesh: the devices.
      shards: their number; each device has a block of them (`shard_blocks`).
      summand: the shapes of one; its numbers are of one type.

    Attributes:
      over_devices: the program for all devices, from each device's sums, in slots, to the whole sum; None for a single
        device.
    """

    def __init__(self, mesh: Mesh, shards: int, summand: Any):
        self._mesh, self._shards = mesh, shards
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
        self._length = vector.shape[0]
        self._pack = DeviceProgram(_packed, self._devices, (summand,))
        self._unpack = DeviceProgram(functools.partial(_unpacked, summand), self._devices, (vector,))
        self._zeros = [jax.device_put(np.zeros(vector.shape, vector.dtype), on_device(d)) for d in self._devices]
        nodes = [nodes_of(block) for block in blocks.values()]
        self._slots = max(map(len, nodes))
        self.over_devices = jax.jit(self._finished(nodes))

    def __call__(self, summands: Sequence[Iterable[Any]]) -> list[Any]:
        """Returns the sum on each device of this process.

        Args:
          summands: for each device of this process, those of its shards, in order; the sum may use their memory.
        """
        sums = [self._merged(place, of_device) for place, of_device in enumerate(summands)]
        if self.over_devices is None:
            return [total(sums[0], self._shards, functools.partial(self._sum_of, 0))]
        sharding, shape = NamedSharding(self._mesh, P(AXIS)), (self._mesh.size * self._length,)
        # A device with fewer sums than another sends zeros in their place, which are not read.
        filled = [
            [*(self._pack(place, own) for own in sums[place].values()), *[zeros] * self._slots]
            for place, zeros in enumerate(self._zeros)
        ]
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
            jax.make_array_from_single_device_arrays((self._length,), on_device(device), [found[device]])
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

    def _finished(self, nodes: list[list[_Node]]) -> Callable:
        devices, length = self._mesh.size, self._length
        padding = -length % devices

        def finish(*slots: jax.Array) -> jax.Array:
            slices = [lax.all_to_all(jnp.pad(slot, (0, padding)).reshape(devices, -1), AXIS, 0, 0) for slot in slots]
            values = {node: slices[slot][device] for device, own in enumerate(nodes) for slot, node in enumerate(own)}
            return lax.all_gather(total(values, self._shards, jnp.add), AXIS, tiled=True)[:length]

        # The result is the same on all devices, but JAX cannot know.
        return jax.shard_map(finish, mesh=self._mesh, in_specs=P(AXIS), out_specs=P(), check_vma=False)


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


class ShardFunctions:
    """The parts of a step that one device computes alone, functions of trees of arrays, to be compiled.

    Args:
      objective: the loss.
    """

    def __init__(self, objective: Objective):
        self._objective = objective
        self._has_own_statistics = objective.config.model.norm == "shard"

    def prepare(self, seed: jax.Array, shard: Batch) -> tuple[dict[str, Batch], Scalars]:
        """Returns a shard as microbatches, and its counts; the seed is a uint32 scalar."""
        return self._objective.microbatches(shard, seed)

    def count_late(self, before: Weights, microbatches: dict[str, Batch], counts: Scalars) -> Scalars:
        """Returns the shard's counts that depend on predictions.

        Args:
          before: the weights.
          microbatches: the shard's.
          counts: the sum over all shards.
        """
        return self._objective.count_late(before, (microbatches, counts["frames"]))

    def gradients(
        self, before: Weights, step: jax.Array, microbatches: dict[str, Batch], counts: Scalars, late: Scalars
    ) -> tuple[dict[str, Any], jax.Array]:
        """Returns the values to sum over the shards, and the loss of each sample of this one.

        The first are the gradients, the losses and, with norm=shard, the batch statistics.

        Args:
          before: the weights.
          step: the number of steps taken before.
          microbatches: the shard's.
          counts: the sum over all shards.
          late: the sum of `late` over all shards.
        """
        gradients, statistics, means, sample_loss = self._objective.summed_gradients(
            before, step, microbatches, counts | late
        )
        summed = {"gradients": gradients, "means": means}
        return summed | ({"statistics": statistics} if self._has_own_statistics else {}), sample_loss

    def update(self, state: State, summed: dict[str, Any], counts: Scalars, late: Scalars) -> tuple[State, Metrics]:
        """Returns the moved state and the metrics of the step, from the sums over all shards."""
        statistics = state.statistics
        if self._has_own_statistics:
            shards = self._objective.config.train.shards
            statistics = jax.tree.map(lambda leaf: leaf / shards, summed["statistics"])
        return move_state(state, summed["gradients"], statistics, summed["means"], counts | late, self._objective)


class ShardedStep:
    """The compiled update of a run with `train.shards`. All processes must call it in the same way.

    Args:
      config: the run's config.
      graphdef: definition of the network.
      mesh: the devices.
      facts: about the data.
      state: the shapes of the state.
      shard: the shapes of one shard's part of a batch: (microbatches x slots) rows of each field.
      options: for XLA.
      identity: of the config, the definition of the network, the facts and the code; "" if it is not known.

    Attributes:
      programs: the compiled programs by name; `gradients` is the large one.
      sum_bytes: a shard's gradients and other summed values.
      at_once: the number of shards that this process computes at the same time; 1 on GPUs, which have queues instead.
    """

    def __init__(
        self,
        config: Config,
        graphdef: nnx.GraphDef,
        mesh: Mesh,
        facts: DataFacts,
        state: State,
        shard: Batch,
        options: dict[str, Any] | None = None,
        identity: str = "",
    ):
        objective = Objective(config, graphdef, facts)
        work, devices, before = ShardFunctions(objective), local_devices(mesh), weights_of(state)

        def program(function: Callable, *arguments: Any, donated: tuple[int, ...] = ()) -> DeviceProgram:
            # The program's name in profiles.
            @functools.wraps(function)
            def precise(*arguments: Any) -> Any:
                with jax.default_matmul_precision(MATMUL_PRECISION[config.train.precision]):
                    return function(*arguments)

            of_function = f"{function.__name__} {identity}" if identity else ""
            return DeviceProgram(precise, devices, arguments, donated, options, of_function)

        prepare = program(work.prepare, SEED, shard)
        microbatches, counts = prepare.results
        late = dict.fromkeys(objective.late, counts["targets"])
        gradients = program(work.gradients, before, state.step, microbatches, counts, late)
        sums, _ = gradients.results
        update = program(work.update, state, sums, counts, late, donated=(0,))
        self.programs = {"prepare": prepare, "gradients": gradients, "update": update}
        # The parts of one network that do not keep all cores busy run alongside those of another; together they need
        # the memory of an undivided pass.
        cores = min(allowed_cores(), arithmetic_threads()) if devices[0].platform == "cpu" else 1
        blocks = zip(mesh.devices.flat, shard_blocks(config.train.shards, mesh.size), strict=True)
        self.at_once = max(1, min(cores, sum(len(block) for device, block in blocks if device in devices)))
        self._workers = ThreadPoolExecutor(self.at_once, "shard") if self.at_once > 1 else None
        self._with_settings = functools.partial(pinned_settings, config.train.precision)
        self.sum_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(sums))
        shards = config.train.shards
        self._add_counts, self._add_sums = (ShardSum(mesh, shards, summand) for summand in (counts, sums))
        if late:
            self.programs["late"] = program(work.count_late, before, microbatches, counts)
            self._add_late = ShardSum(mesh, shards, late)

    def __call__(
        self, states: list[State], batch: list[list[Batch]], seeds: list[jax.Array]
    ) -> tuple[list[State], Metrics]:
        """Returns the moved states and the metrics of the step; `sample_loss` is a list, an array for each shard.

        Args:
          states: the state on each device of this process; donated.
          batch: for each device of this process, the parts of its shards, on it.
          seeds: the seed, a uint32 scalar, on each device of this process.
        """
        prepare, gradients, update = (self.programs[name] for name in ("prepare", "gradients", "update"))
        prepared = [[prepare(place, seeds[place], shard) for shard in shards] for place, shards in enumerate(batch)]
        counts = self._add_counts([[counted for _, counted in shards] for shards in prepared])
        before = [weights_of(state) for state in states]
        late: list[Scalars] = [{} for _ in states]
        if count := self.programs.get("late"):
            arguments = [
                [(before[place], microbatches, counts[place]) for microbatches, _ in shards]
                for place, shards in enumerate(prepared)
            ]
            late = self._add_late(self._computed(count, arguments))
        arguments = [
            [
                (before[place], states[place].step, microbatches, counts[place], late[place])
                for microbatches, _ in shards
            ]
            for place, shards in enumerate(prepared)
        ]
        sample_loss: list[jax.Array] = []

        def without_losses(computed: Iterator[Any]) -> Iterator[dict[str, Any]]:
            for summed, losses in computed:
                sample_loss.append(losses)
                yield summed

        sums = self._add_sums([without_losses(computed) for computed in self._computed(gradients, arguments)])
        moved = [update(place, *of_it) for place, of_it in enumerate(zip(states, sums, counts, late, strict=True))]
        return [state for state, _ in moved], moved[0][1] | {"sample_loss": sample_loss}

    def _computed(self, program: DeviceProgram, arguments: list[list[tuple]]) -> list[Iterator[Any]]:
        """Returns, for each device of this process, a program's results for its shards, in order.

        Results are computed as they are taken, so that few are held at once; with workers, shortly before.
        """
        if not self._workers:
            return [
                itertools.starmap(functools.partial(program, place), of_it) for place, of_it in enumerate(arguments)
            ]

        def finish(place: int, of_shard: tuple) -> Any:
            with self._with_settings():
                return jax.block_until_ready(program(place, *of_shard))

        return [self._workers.map(functools.partial(finish, place), of_it) for place, of_it in enumerate(arguments)]
