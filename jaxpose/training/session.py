"""A training with its state and its batches, and, once it is to step, its compiled step and what that costs."""

import dataclasses
import functools
import time
from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpose.cluster.agreement import gather_lists
from jaxpose.cluster.devices import compile_options, describe
from jaxpose.cluster.mesh import replicate
from jaxpose.codes import SETS
from jaxpose.config import Config
from jaxpose.config.losses import weights
from jaxpose.config.mesh import AXIS
from jaxpose.config.model import CONTEXT_RADIUS
from jaxpose.config.video import frames_per_clip
from jaxpose.data.dataset import Dataset
from jaxpose.data.loader import Batch, rows_of_draws, training_batches
from jaxpose.phases import phase
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.layout import ClipShards, clip_shards, microbatch_size, slots
from jaxpose.steps.optim import make_optimizer, peak_rate
from jaxpose.steps.state import State, initial_state, parameter_count
from jaxpose.steps.train_step import build_train_step
from jaxpose.threads import allowed_cores, loader_threads
from jaxpose.training.clip_batch import clip_batch, empty_clips
from jaxpose.training.setup import Setup
from jaxpose.training.transfer import describe_backbone_rate
from jaxpose.video.clips import ClipSource

_MIB = 2**20
# The last two, the best, and the one that is being written.
_CHECKPOINTS_AT_ONCE = 4


@dataclasses.dataclass(frozen=True)
class Session:
    """A training.

    Attributes:
      config: the resolved config.
      mesh: the devices.
      data: the labelled frames.
      start: what the training begins with.
      state: the state before the first step, on the mesh.
      threads: of each process, those that decode and load.
      step: the compiled update; None before `compiled`, and where the training is done.
      compile_s: seconds that it took.
    """

    config: Config
    mesh: Mesh
    data: Dataset
    start: Setup
    state: State
    threads: list[int]
    step: jax.stages.Compiled | None = None
    compile_s: float = 0.0

    def compiled(self) -> "Session":
        """Returns the same training with its step compiled."""
        config, mesh, facts = self.config, self.mesh, self.start.facts
        started = time.monotonic()
        with phase("compiling the training step"):
            lowered = build_train_step(config, self.start.graphdef, mesh, facts).lower(
                jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.state),
                _abstract_batch(config, mesh, self.data, facts),
            )
            step = lowered.compile(compile_options(config.mesh, list(mesh.devices.flat)))
        return dataclasses.replace(self, step=step, compile_s=time.monotonic() - started)

    def batches(self, first_step: int) -> Iterator[Batch]:
        """Yields this host's batches from a step on."""
        config, clips = self.config, self.start.clips
        return training_batches(
            self.data.samples,
            self.data.rows("train"),
            self.draws,
            first_step=first_step,
            total_steps=self.start.facts.total_steps,
            data_seed=config.data.seed,
            train_seed=config.train.seed,
            augment=config.augment,
            threads=loader_threads(config.data.threads),
            read_ahead=config.data.read_ahead_steps,
            clips_of=functools.partial(self._clips, clips) if clips else None,
        )

    def draws(self, step: int) -> np.ndarray:
        """Returns the draws in the slots of this host's devices (devices, micro-batches, slots), -1 where empty."""
        train = self.config.train
        return slots(step, train.batch_size, microbatch_size(train), self.mesh.size)[self._mine()]

    def _clips(self, source: ClipSource, step: int) -> Batch:
        """Returns this host's pieces of the clips of a step; only the clips of its own pieces are decoded."""
        shards = _shards(self.config, self.start.facts, self.mesh, step)
        return clip_batch(source, shards.of_devices(self._mine()))

    def _mine(self) -> np.ndarray:
        return np.array([device.process_index == jax.process_index() for device in self.mesh.devices.flat])

    def names_of(self, draws: np.ndarray) -> list[str]:
        """Returns the image names of draws (m,)."""
        rows = rows_of_draws(draws, self.data.rows("train"), self.config.data.seed)
        return [self.data.project.images[row] for row in rows]

    def clip_names(self, step: int) -> list[str]:
        """Returns what the clips of a step are called."""
        clips, count = self.start.clips, self.config.video.clips_per_step
        return [clips.name(draw) for draw in range(step * count, (step + 1) * count)] if clips else []

    def notes(self) -> list[str]:
        """Returns what went wrong with clips since this was asked last."""
        return self.start.clips.messages() if self.start.clips else []

    def describe(self) -> dict[str, str]:
        """Returns the start block: what runs where, how large it is and what it costs."""
        config, facts = self.config, self.start.facts
        train = config.train
        width, height = self.data.size_px
        stride = config.model.heatmap_stride
        maps = f"one map of {width // stride} x {height // stride} cells a keypoint"
        shown = {"regression": "one point a keypoint, no maps", "heatmap_context": f"{maps} and head"}
        per_device = -(-microbatch_size(train) // self.mesh.size)
        state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self.state))
        counts = {name: len(self.data.rows(name)) for name in SETS}
        untested = "; no test set: the validation error is that of the frames that choose the checkpoint"
        untested *= not self.data.is_selection_tested(train.monitor)
        passes = "one pass" if facts.passes == 1 else f"{facts.passes} passes of at most {microbatch_size(train)}"
        return {
            "project": f"{self.data.project.folder}, {len(config.data.keypoint_names)} keypoints",
            "frames": ", ".join(f"{count} {name}" for name, count in counts.items() if count) + untested,
            "network": f"{config.model.backbone}, width {config.model.width}, {config.model.norm} norm, "
            f"{parameter_count(self.state.params):,} parameters, {train.precision}",
            "input": f"{width} x {height} px (resize: {config.data.resize}), {shown.get(config.model.kind, maps)}",
            "processes": f"{jax.process_count()}",
            "devices": "; ".join(describe(list(self.mesh.devices.flat))),
            "loader": f"threads: {self.threads[0]} here (cores allowed: {allowed_cores()}), {sum(self.threads)} in all",
            "batch": f"{train.batch_size} frames a step in {passes}, at most {per_device} at once on a device",
            **self._describe_clips(),
            **self._describe_rate(),
            **({"backbone": describe_backbone_rate(config.optim, facts)} if train.init_from else {}),
            "length": f"{facts.total_steps} steps; an epoch is {facts.steps_per_epoch}",
            **self._describe_step(),
            "disk": f"about {_CHECKPOINTS_AT_ONCE * state_bytes / _MIB:,.0f} MiB of checkpoints",
        }

    def _describe_step(self) -> dict[str, str]:
        if self.step is None:
            return {}
        used, memory = 0, self.step.memory_analysis()
        if memory is not None:  # as some backends have it
            used = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
            used += memory.temp_size_in_bytes
        flops = (self.step.cost_analysis() or {}).get("flops", 0)
        needs = f"a device needs {used / _MIB:,.0f} MiB and {flops / 1e9:.3g} GFLOP a pass"
        return {"step": f"compiled in {self.compile_s:.1f} s; {needs}"}

    def _describe_clips(self) -> dict[str, str]:
        clips, video = self.start.clips, self.config.video
        if not clips:
            return {}
        shards = _shards(self.config, self.start.facts, self.mesh, 0)
        return {
            "clips": f"{video.clips_per_step} of {frames_per_clip(video, self.config.model)} frames a step, at most "
            f"{shards.frame_index.shape[-1]} of them in a piece on a device; {', '.join(weights(self.config.losses))}"
        }

    def _describe_rate(self) -> dict[str, str]:
        optim, batch = self.config.optim, self.config.train.batch_size
        if optim.lr_scale == "none":
            return {}
        peak = peak_rate(optim, batch)
        at = f"{optim.lr:g} at {optim.lr_reference_batch} frames a step is {peak:g} at {batch}"
        return {"rate": f"{at} (optim.lr_scale: {optim.lr_scale})"}


def open_session(config: Config, mesh: Mesh, data: Dataset, start: Setup) -> Session:
    """Puts the first state on the devices; compiles nothing."""
    state = initial_state(start.params, start.statistics, make_optimizer(config.optim), config.optim.ema_decay > 0)
    threads = gather_lists([loader_threads(config.data.threads)])
    return Session(config, mesh, data, start, replicate(mesh, state), threads)


def build_session(config: Config, mesh: Mesh, data: Dataset, start: Setup) -> Session:
    """Puts the first state on the devices and compiles the step."""
    return open_session(config, mesh, data, start).compiled()


def _shards(config: Config, facts: DataFacts, mesh: Mesh, step: int) -> ClipShards:
    frames = frames_per_clip(config.video, config.model)
    radius = CONTEXT_RADIUS[config.model.kind]
    return clip_shards(step, config.video.clips_per_step, facts.passes, mesh.size, frames, radius)


def _abstract_batch(config: Config, mesh: Mesh, data: Dataset, facts: DataFacts) -> Batch:
    """Returns the shapes and types of a step's batch."""
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))

    def shapes(example: Batch, rows: int) -> Batch:
        return {
            name: jax.ShapeDtypeStruct((rows, *field.shape[1:]), field.dtype, sharding=sharding)
            for name, field in example.items()
        }

    train = config.train
    rows = slots(0, train.batch_size, microbatch_size(train), mesh.size).size
    batch = shapes(data.samples.batch(np.zeros(1, np.int64), np.zeros(1, np.int64)), rows)
    if weights(config.losses):
        shards = _shards(config, facts, mesh, 0)
        batch["clips"] = shapes(empty_clips(shards, max(1, len(config.data.views)), data.size_px), shards.draws.size)
    return batch
