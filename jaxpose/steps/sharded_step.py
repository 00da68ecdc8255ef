"""One update as programs for a single device each, so that only the config determines its bits (`train.shards`).

Every pass is divided into logical shards. A shard's gradients are computed by the same machine code, on arrays of the
same shapes, on any device; the shards' results are added in one fixed tree; and each device then updates its own copy
of the state, again with the same machine code. (The idea of logical workers: EasyScale, Li et al., SC 2023.)
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from jaxpose.cluster.mesh import DeviceProgram, local_devices
from jaxpose.config import Config
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.model.pose_net import MATMUL_PRECISION
from jaxpose.steps.layout import shard_blocks
from jaxpose.steps.objective import SEED, Objective, weights_of
from jaxpose.steps.shard_sum import ShardSum
from jaxpose.steps.state import State
from jaxpose.steps.terms import Batch, DataFacts, Scalars, Weights
from jaxpose.steps.train_step import Metrics, move_state
from jaxpose.threads import allowed_cores, arithmetic_threads


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
      machines: as `ShardSum`'s.

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
        machines: int = 1,
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
        self._add_counts, self._add_sums = (ShardSum(mesh, shards, summand, machines) for summand in (counts, sums))
        if late:
            self.programs["late"] = program(work.count_late, before, microbatches, counts)
            self._add_late = ShardSum(mesh, shards, late, machines)

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
