"""One update as programs for a single device each, so that its bits follow from the config alone (`train.shards`).

Every pass is divided into logical shards. A shard's gradients come from the same machine code, on arrays of the same
shapes, on whichever device it is; the shards' results are added in one fixed tree; and each device then moves its copy
of the state by itself, again by the same machine code. (The idea of logical workers: EasyScale, Li et al., SC 2023.)
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxpose.cluster.device_program import DeviceProgram, on_device
from jaxpose.cluster.mesh import local_devices
from jaxpose.config import Config
from jaxpose.config.losses import weights
from jaxpose.model.pose_net import MATMUL_PRECISION
from jaxpose.steps.clip_step import Batch
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.objective import Objective
from jaxpose.steps.shard_functions import ShardFunctions
from jaxpose.steps.shard_sum import ShardSum
from jaxpose.steps.state import State
from jaxpose.steps.update import Metrics


class ShardedStep:
    """The compiled update of a run with `train.shards`. All processes must call it in the same way.

    Args:
      config: the run's config.
      graphdef: definition of the network.
      mesh: the devices.
      facts: about the data.
      state: the shapes of the state.
      shard: the shapes of one shard's part of a batch: (microbatches x slots) rows of each field.
      options: of XLA.

    Attributes:
      programs: the compiled programs by name; `gradients` is the large one.
      sum_bytes: of a shard's gradients and what else is summed.
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
    ):
        work, devices = ShardFunctions(Objective(config, graphdef, facts), state, shard), local_devices(mesh)
        before, confident = (state.params, state.statistics), work.confident

        def program(function: Callable, *arguments: Any, donated: tuple[int, ...] = ()) -> DeviceProgram:
            def precise(*arguments: Any) -> Any:
                with jax.default_matmul_precision(MATMUL_PRECISION[config.train.precision]):
                    return function(*arguments)

            return DeviceProgram(precise, devices, arguments, donated, options)

        self.programs = {
            "prepare": program(work.prepare, shard),
            "gradients": program(work.gradients, before, state.step, work.microbatches, work.counts, confident),
            "update": program(work.update, state, work.sums, work.counts, confident, donated=(0,)),
        }
        self.sum_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(work.sums))
        shards = config.train.shards
        self._add_counts, self._add_sums = (ShardSum(mesh, shards, summand) for summand in (work.counts, work.sums))
        self._zeros = [jax.device_put(np.zeros((), confident.dtype), on_device(device)) for device in devices]
        if "unimodal_mse" in weights(config.losses):
            self.programs["confident"] = program(work.count_confident, before, work.microbatches, work.counts)
            self._add_confident = ShardSum(mesh, shards, confident)

    def __call__(self, states: list[State], batch: list[list[Batch]]) -> tuple[list[State], Metrics]:
        """Returns the moved states and the metrics of the step; `sample_loss` is a list, an array for each shard.

        Args:
          states: the state on each device of this process; donated.
          batch: for each device of this process, the parts of its shards, on it.
        """
        prepare, gradients, update = (self.programs[name] for name in ("prepare", "gradients", "update"))
        prepared = [[prepare(place, shard) for shard in shards] for place, shards in enumerate(batch)]
        counts = self._add_counts([[counted for _, counted in shards] for shards in prepared])
        before = [(state.params, state.statistics) for state in states]
        confident = self._zeros
        if count := self.programs.get("confident"):
            confident = self._add_confident(
                [
                    [count(place, before[place], microbatches, counts[place]) for microbatches, _ in shards]
                    for place, shards in enumerate(prepared)
                ]
            )
        sample_loss: list[jax.Array] = []

        def sums_of(place: int) -> Iterator[dict[str, Any]]:
            # One shard after the other, so that few sums are held at once.
            for microbatches, _ in prepared[place]:
                sums, losses = gradients(
                    place, before[place], states[place].step, microbatches, counts[place], confident[place]
                )
                sample_loss.append(losses)
                yield sums

        sums = self._add_sums([sums_of(place) for place in range(len(states))])
        moved = [update(place, *of_it) for place, of_it in enumerate(zip(states, sums, counts, confident, strict=True))]
        return [state for state, _ in moved], moved[0][1] | {"sample_loss": sample_loss}
