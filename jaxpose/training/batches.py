"""The batches of a training: the content of this host's slots at each step, and the names of images and clips."""

import functools
from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpose.cluster.mesh import put_batch
from jaxpose.config.losses import weights
from jaxpose.config.mesh import AXIS
from jaxpose.config.model import CONTEXT_RADIUS
from jaxpose.config.video import frames_per_clip
from jaxpose.data.loader import Batch, rows_of_draws, training_batches
from jaxpose.steps.layout import ClipShards, clip_shards, microbatch_size, slots
from jaxpose.threads import loader_threads
from jaxpose.training.clip_batch import clip_batch, empty_clips
from jaxpose.training.setup import Setup
from jaxpose.video.clips import ClipSource


def host_batches(setup: Setup, first_step: int) -> Iterator[Batch]:
    """Returns this host's batches from a step on, as numpy arrays, prepared ahead by threads."""
    config, clips = setup.config, setup.clips
    mine = np.array([device.process_index == jax.process_index() for device in setup.mesh.devices.flat])
    return training_batches(
        setup.data.samples,
        setup.data.rows("train"),
        lambda step: _slots(setup, step)[mine],
        first_step=first_step,
        total_steps=setup.facts.total_steps,
        data_seed=config.data.seed,
        train_seed=config.train.seed,
        augment=config.augment,
        threads=loader_threads(config.data.threads),
        read_ahead=config.data.read_ahead_steps,
        clips_of=functools.partial(_host_clips, setup, clips, mine) if clips else None,
    )


def batches_on_devices(mesh: Mesh, batches: Iterator[Batch]) -> Iterator[tuple[np.ndarray, Batch]]:
    """Yields (this host's draws, -1 where empty; the batch on the devices), with the next batch already on its way."""
    waiting = None
    for batch in batches:
        coming = np.where(batch["valid"], batch["draw"], -1), put_batch(mesh, batch)
        if waiting:
            yield waiting
        waiting = coming
    if waiting:
        yield waiting


def batch_shapes(setup: Setup) -> Batch:
    """Returns the shapes and types of a step's batch on the devices."""
    sharding = NamedSharding(setup.mesh, PartitionSpec(AXIS))

    def shapes(example: Batch, rows: int) -> Batch:
        return {
            name: jax.ShapeDtypeStruct((rows, *field.shape[1:]), field.dtype, sharding=sharding)
            for name, field in example.items()
        }

    config, data = setup.config, setup.data
    batch = shapes(data.samples.batch(np.zeros(1, np.int64), np.zeros(1, np.int64)), _slots(setup, 0).size)
    if weights(config.losses):
        shards = shards_of_step(setup, 0)
        batch["clips"] = shapes(empty_clips(shards, max(1, len(config.data.views)), data.size_px), shards.draws.size)
    return batch


def shards_of_step(setup: Setup, step: int) -> ClipShards:
    """Returns how the clips of a step lie on all devices."""
    config = setup.config
    frames, radius = frames_per_clip(config.video, config.model), CONTEXT_RADIUS[config.model.kind]
    return clip_shards(step, config.video.clips_per_step, setup.facts.passes, setup.mesh.size, frames, radius)


def image_names(setup: Setup, draws: np.ndarray) -> list[str]:
    """Returns the names of the images of draws (m,)."""
    rows = rows_of_draws(draws, setup.data.rows("train"), setup.config.data.seed)
    return [setup.data.project.images[row] for row in rows]


def clip_names(setup: Setup, step: int) -> list[str]:
    """Returns the names of the clips of a step; none without clips."""
    clips, count = setup.clips, setup.config.video.clips_per_step
    return [clips.name(draw) for draw in range(step * count, (step + 1) * count)] if clips else []


def _slots(setup: Setup, step: int) -> np.ndarray:
    """Returns the draws in the slots of all devices (devices, microbatches, slots), -1 where empty."""
    train = setup.config.train
    return slots(step, train.batch_size, microbatch_size(train), setup.mesh.size)


def _host_clips(setup: Setup, clips: ClipSource, mine: np.ndarray, step: int) -> Batch:
    """Returns this host's shards of the clips of a step; only the clips of its own shards are decoded."""
    return clip_batch(clips, shards_of_step(setup, step).of_devices(mine))
