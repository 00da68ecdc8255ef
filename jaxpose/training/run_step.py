"""The compiled update of a training in its two forms: one program over all devices, or one program for each shard."""

import dataclasses
import functools
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import Mesh

from jaxpose.cluster.mesh import copies, joined, local_devices, on_device, put_batch, replicate
from jaxpose.data.loader import Batch
from jaxpose.steps.layout import shard_blocks
from jaxpose.steps.sharded_step import ShardedStep
from jaxpose.steps.state import State

_Metrics = dict[str, Any]


@runtime_checkable
class RunStep(Protocol):
    """The update, and what it holds on the devices between two calls.

    Attributes:
      mesh: the devices.
    """

    mesh: Mesh

    def with_seed(self, seed: int) -> "RunStep":
        """Returns the update of a run with this `train.seed`, by the same programs."""
        ...

    @property
    def needed_bytes(self) -> int:
        """The bytes that a device needs; 0 if they are not reported."""
        ...

    @property
    def flops(self) -> float:
        """The operations of a pass on a device."""
        ...

    def hold(self, state: State) -> Any:
        """Returns a state on the mesh as a call takes it."""
        ...

    def state(self, held: Any) -> State:
        """Returns the state on the mesh that a call returned; the next call donates it."""
        ...

    def put(self, batch: Batch) -> Any:
        """Returns this process's rows of a batch, in the order of its parts, on its devices."""
        ...

    def __call__(self, held: Any, batch: Any) -> tuple[Any, _Metrics]:
        """Returns the state after the update, and its metrics; `sample_loss` is a list of arrays of this process."""
        ...


@dataclasses.dataclass(frozen=True)
class OneProgram(RunStep):
    """The update as one program over all devices.

    Attributes:
      compiled: the program.
      mesh: the devices.
      seed: `train.seed`.
    """

    compiled: jax.stages.Compiled
    mesh: Mesh
    seed: int

    def with_seed(self, seed: int) -> "OneProgram":
        return dataclasses.replace(self, seed=seed)

    def hold(self, state: State) -> State:
        return state

    def state(self, held: State) -> State:
        return held

    def put(self, batch: Batch) -> Batch:
        return put_batch(self.mesh, batch)

    def __call__(self, held: State, batch: Batch) -> tuple[State, _Metrics]:
        held, metrics = self.compiled(held, batch, self._seed_on_mesh)
        shards = sorted(metrics["sample_loss"].addressable_shards, key=lambda shard: shard.index[0].start or 0)
        return held, metrics | {"sample_loss": [shard.data for shard in shards]}

    @functools.cached_property
    def _seed_on_mesh(self) -> jax.Array:
        return replicate(self.mesh, np.uint32(self.seed))

    @property
    def needed_bytes(self) -> int:
        """The bytes that a device needs for the program with its arguments; 0 if they are not reported."""
        return needed_bytes(self.compiled)

    @property
    def flops(self) -> float:
        """The operations of a pass on a device."""
        return _flops(self.compiled)


@dataclasses.dataclass(frozen=True)
class ShardPrograms(RunStep):
    """The update as programs for single devices.

    Attributes:
      step: the programs.
      mesh: the devices.
      shards: per pass, on all devices.
      seed: `train.seed`.
    """

    step: ShardedStep
    mesh: Mesh
    shards: int
    seed: int

    def with_seed(self, seed: int) -> "ShardPrograms":
        return dataclasses.replace(self, seed=seed)

    def hold(self, state: State) -> list[State]:
        """Returns the copy of each device of this process."""
        return copies(self.mesh, state)

    def state(self, held: list[State]) -> State:
        return joined(self.mesh, held)

    def put(self, batch: Batch) -> list[list[Batch]]:
        """Returns this process's rows of a batch as shards on their devices."""
        devices = local_devices(self.mesh)
        blocks = dict(zip(self.mesh.devices.flat, shard_blocks(self.shards, self.mesh.size), strict=True))
        own = sum(len(blocks[device]) for device in devices)
        first, found = 0, []
        for device in devices:
            shards = range(first, first + len(blocks[device]))
            rows = [jax.tree.map(lambda leaf, shard=shard: _part(leaf, shard, own), batch) for shard in shards]
            # All at once: each call costs as much as its arrays.
            found.append(jax.device_put(rows, on_device(device)))
            first += len(shards)
        return found

    def __call__(self, held: list[State], batch: list[list[Batch]]) -> tuple[list[State], _Metrics]:
        return self.step(held, batch, self._seeds)

    @functools.cached_property
    def _seeds(self) -> list[jax.Array]:
        """The seed on each device of this process."""
        return copies(self.mesh, replicate(self.mesh, np.uint32(self.seed)))

    @property
    def needed_bytes(self) -> int:
        """The bytes that a device needs for the largest program with its arguments, and for the sums of its shards."""
        own = self._most_shards()
        at_once, sums = min(self.step.at_once, own), self.step.sum_bytes * own.bit_length()
        return max(needed_bytes(program.compiled, at_once) for program in self.step.programs.values()) + sums

    @property
    def flops(self) -> float:
        """The operations of a pass on a device."""
        return self._most_shards() * _flops(self.step.programs["gradients"].compiled)

    def _most_shards(self) -> int:
        """Returns the number of shards of the device that has the most."""
        return max(map(len, shard_blocks(self.shards, self.mesh.size)))


def needed_bytes(compiled: jax.stages.Compiled, at_once: int = 1) -> int:
    """Returns the bytes that a device needs for a program with its arguments; 0 if they are not reported.

    Args:
      compiled: the program.
      at_once: how many times it runs at the same time, with other results.
    """
    memory: Any = compiled.memory_analysis()
    if memory is None:
        return 0
    made = memory.output_size_in_bytes - memory.alias_size_in_bytes + memory.temp_size_in_bytes
    return memory.argument_size_in_bytes + at_once * made


def _part(leaf: np.ndarray, number: int, parts: int) -> np.ndarray:
    """Returns a part of an array that is cut into equal ones."""
    rows = len(leaf) // parts
    return leaf[number * rows : (number + 1) * rows]


def _flops(compiled: jax.stages.Compiled) -> float:
    costs: Any = compiled.cost_analysis()
    return (costs or {}).get("flops", 0)
