"""Everything that a training needs before its first step: network, state, the compiled step, and what it costs."""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpose.cluster.devices import compile_options, describe
from jaxpose.cluster.mesh import replicate
from jaxpose.config import Config
from jaxpose.data.dataset import Dataset
from jaxpose.data.flip_pairs import flip_permutation
from jaxpose.data.loader import Batch, rows_of_draws, training_batches
from jaxpose.data.threads import allowed_cores
from jaxpose.model.pose_net import make_network
from jaxpose.training.optim import make_optimizer
from jaxpose.training.slots import microbatch_size, slots
from jaxpose.training.state import State, initial_state, parameter_count
from jaxpose.training.step import Plan, build_train_step
from jaxpose.training.trained import load_trained, transfer

_MIB, _GIB = 2**20, 2**30
# More threads than this do not help a loader that only gathers rows.
_LOADER_THREADS = 4


@dataclasses.dataclass(frozen=True)
class Session:
    """A training that is ready to step.

    Attributes:
      config: the resolved config.
      mesh: the devices.
      data: the labelled frames.
      graphdef: definition of the network.
      state: the state before the first step, on the mesh.
      plan: what the step knows of the data.
      step: the compiled update.
      compile_s: seconds that it took.
      messages: what the user should know, one sentence each.
    """

    config: Config
    mesh: Mesh
    data: Dataset
    graphdef: nnx.GraphDef
    state: State
    plan: Plan
    step: jax.stages.Compiled
    compile_s: float
    messages: list[str]

    def batches(self, first_step: int) -> Iterator[Batch]:
        """Yields this host's batches from a step on."""
        config = self.config
        return training_batches(
            self.data.samples,
            self.data.rows("train"),
            self.draws,
            first_step=first_step,
            total_steps=self.plan.total_steps,
            data_seed=config.data.seed,
            train_seed=config.train.seed,
            augment=config.augment,
            threads=config.data.threads or min(allowed_cores(), _LOADER_THREADS),
            read_ahead=config.data.read_ahead_steps,
        )

    def draws(self, step: int) -> np.ndarray:
        """Returns the draws in the slots of this host's devices (devices, micro-batches, slots), -1 where empty."""
        train = self.config.train
        everywhere = slots(step, train.batch_size, microbatch_size(train), self.mesh.size)
        mine = [device.process_index == jax.process_index() for device in self.mesh.devices.flat]
        return everywhere[np.array(mine)]

    def names_of(self, draws: np.ndarray) -> list[str]:
        """Returns the image names of draws (m,)."""
        rows = rows_of_draws(draws, self.data.rows("train"), self.config.data.seed)
        return [self.data.project.images[row] for row in rows]

    def describe(self, folder: Path | None) -> dict[str, str]:
        """Returns the start block: what runs where, how large it is and what it costs."""
        config, plan = self.config, self.plan
        train = config.train
        width, height = self.data.size_px
        memory = self.step.memory_analysis()
        used = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
        used += memory.temp_size_in_bytes
        costs = self.step.cost_analysis() or {}
        per_device = -(-microbatch_size(train) // self.mesh.size)
        state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self.state))
        counts = {name: len(self.data.rows(name)) for name in ("train", "validation", "test", "unused")}
        return {
            "run folder": str(folder) if folder else "none (dry run)",
            "project": f"{self.data.project.folder}, keypoints: {len(config.data.keypoint_names)}",
            "frames": ", ".join(f"{count} {name}" for name, count in counts.items() if count),
            "network": f"{config.model.backbone}, width {config.model.width}, norm {config.model.norm}, "
            f"{parameter_count(self.state.params):,} parameters, {train.precision}",
            "input": f"{width} x {height} px ({config.data.resize}), maps at stride {config.model.heatmap_stride}",
            "processes": f"{jax.process_count()}, this is {jax.process_index()}",
            "devices": f"{self.mesh.size}: {'; '.join(describe(list(self.mesh.local_devices)))}",
            "batch": f"{train.batch_size} frames in {plan.passes} pass(es), {per_device} slot(s) a device and pass",
            "length": f"{plan.total_steps} steps, {plan.steps_per_epoch} an epoch",
            "compiled": f"in {self.compile_s:.1f} s; {used / _MIB:,.0f} MiB a device, "
            f"{costs.get('flops', 0) / 1e9:.2f} GFLOP a device and pass",
            "disk": f"about {3 * state_bytes / _GIB:.2f} GiB for checkpoints",
        }


def build_session(config: Config, mesh: Mesh, data: Dataset) -> Session:
    """Builds the network and compiles the step.

    Raises:
      ValueError: the data has no training frames, flips have no complete pairing, or `train.init_from` does not fit.
    """
    train, names = config.train, config.data.keypoint_names
    rows = data.rows("train")
    if not len(rows):
        raise ValueError("no frame is in the training set: raise data.train_share, or look at data.split")
    permutation = flip_permutation(names, config.data.flip_pairs) if config.augment.flip_p else None
    graphdef, params, statistics = make_network(config.model, len(names), train.precision, train.seed)
    messages = []
    if train.init_from:
        params, statistics, remade = transfer(load_trained(Path(train.init_from)), names, params, statistics)
        messages.append(f"starts from {train.init_from}" + (f"; made anew: {', '.join(remade)}" if remade else ""))
    else:
        messages.append(
            "starts from random weights: with few labelled frames expect clearly larger errors than from a pretrained "
            "backbone (train.init_from=RUN starts from a run of yours)"
        )
    if config.model.norm == "local" and mesh.size > 1:
        messages.append("model.norm=local: the numbers of this run depend on the number of devices")
    steps_per_epoch = -(-len(rows) // train.batch_size)
    width, height = data.size_px
    plan = Plan(
        size_px=(height, width),
        passes=-(-train.batch_size // microbatch_size(train)),
        steps_per_epoch=steps_per_epoch,
        total_steps=train.steps or train.epochs * steps_per_epoch,
        loaded_weights=bool(train.init_from),
        flip_permutation=permutation,
    )
    state = initial_state(params, statistics, make_optimizer(config.optim), config.optim.ema_decay > 0)
    state = replicate(mesh, state)
    started = time.monotonic()
    lowered = build_train_step(config, graphdef, mesh, plan).lower(
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state),
        _abstract_batch(mesh, data, slots(0, train.batch_size, microbatch_size(train), mesh.size).size),
    )
    step = lowered.compile(compile_options(config.mesh, list(mesh.devices.flat)))
    return Session(config, mesh, data, graphdef, state, plan, step, time.monotonic() - started, messages)


def _abstract_batch(mesh: Mesh, data: Dataset, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    example = data.samples.batch(np.zeros(1, np.int64), np.zeros(1, np.int64))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    return {
        name: jax.ShapeDtypeStruct((rows, *field.shape[1:]), field.dtype, sharding=sharding)
        for name, field in example.items()
    }
