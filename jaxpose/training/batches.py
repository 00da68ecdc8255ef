"""Makes the batches of a training: the content of this host's slots at each step, and the names of images and clips."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxpose.config.model import CONTEXT_RADIUS, views_at_once
from jaxpose.config.train import AXIS
from jaxpose.data.loader import OTHER_FRAMES, Batch, rows_of_draws, training_batches
from jaxpose.steps.layout import EMPTY, ClipShards, clip_shards, microbatch_size, part_count, shard_blocks, slots
from jaxpose.threads import loader_threads
from jaxpose.training.run_step import RunStep
from jaxpose.training.setup import ClipStream, Setup, drawn_rows
from jaxpose.video.clips import ClipSource

# Makes this host's batch of unlabelled clips for a step: frames, owners and empty slots.


def empty_clips(shards: ClipShards, views: int, size_px: tuple[int, int], cameras: np.ndarray | None = None) -> Batch:
    """Returns the batch of clip shards before any frame is read: nothing is valid, every frame is black.

    Args:
      shards: these devices', (devices, microbatches, slots).
      views: cameras.
      size_px: (width, height) of the network's input.
      cameras: as in `ClipStream`.
    """
    draws = shards.draws.reshape(-1)
    frames = shards.frame_index.shape[-1]
    calibration = {} if cameras is None else {"cameras": np.repeat(cameras[:1], len(draws), axis=0)}
    return {
        "frames": np.zeros((len(draws), views, frames, size_px[1], size_px[0], 3), np.uint8),
        "frame_from_input": np.tile(np.eye(2, 3, dtype=np.float32), (len(draws), views, 1, 1)),
        "draw": draws.astype(np.int32),
        "frame_index": shards.frame_index.reshape(-1, frames),
        "owned": shards.owned.reshape(-1, frames),
        "valid": np.zeros(len(draws), bool),
        **calibration,
    }


def clip_batch(source: ClipSource, shards: ClipShards, cameras: np.ndarray | None = None) -> Batch:
    """Returns the batch of clip shards with their frames; a clip that does not decode stays `valid = False`.

    Args:
      source: the clips.
      shards: those of this host's devices, (devices, microbatches, slots).
      cameras: as in `ClipStream`.
    """
    batch = empty_clips(shards, source.views, source.size_px, cameras)
    for draw in np.unique(batch["draw"][batch["draw"] != EMPTY]):
        # The shards of a clip on this host are cut from one decoding.
        clip = source.frames(int(draw))
        if clip is None:
            continue
        for row in np.flatnonzero(batch["draw"] == draw):
            index = batch["frame_index"][row]
            there = index != EMPTY
            batch["frames"][row][:, there] = clip[:, index[there]]
            batch["frame_from_input"][row] = source.frame_from_input(int(draw))
            batch["valid"][row] = True
            if cameras is not None:
                batch["cameras"][row] = cameras[source.place(int(draw))[0]]
    return batch


def host_batches(setup: Setup, first_step: int, other_seeds: Sequence[int] = ()) -> Iterator[Batch]:
    """Returns this host's batches from a step on, as numpy arrays, prepared ahead by threads.

    Args:
      setup: the set-up of the training, or of the first member of an ensemble.
      first_step: the first step.
      other_seeds: `train.seed` of the other members.
    """
    config = setup.config
    mine = np.concatenate([
        np.full(len(block), device.process_index == jax.process_index())
        for device, block in zip(setup.mesh.devices.flat, shard_blocks(_parts(setup), setup.mesh.size), strict=True)
    ])  # fmt: skip
    return training_batches(
        setup.samples,
        drawn_rows(setup.data),
        lambda step: _slots(setup, step)[mine],
        first_step=first_step,
        total_steps=setup.facts.total_steps,
        data_seed=config.data.seed,
        train_seed=config.train.seed,
        augment=config.augment,
        threads=loader_threads(config.data.threads),
        read_ahead=config.data.read_ahead_steps,
        clips_of=functools.partial(_host_clips, setup, mine),
        other_seeds=other_seeds,
    )


def batches_on_devices(step: RunStep, batches: Iterator[Batch]) -> Iterator[tuple[np.ndarray, list[Any]]]:
    """Yields this host's draws, -1 where empty, and the batch as the step takes it, with the next one on its way.

    The batch is a list: one for all members of an ensemble, or one for each if their frames differ.
    """
    waiting = None
    for batch in batches:
        others = [batch | {"frames": frames} for frames in batch.pop(OTHER_FRAMES, [])]
        coming = np.where(batch["valid"], batch["draw"], -1), [step.put(own) for own in (batch, *others)]
        if waiting:
            yield waiting
        waiting = coming
    if waiting:
        yield waiting


def batch_shapes(setup: Setup) -> Batch:
    """Returns the shapes and types of a step's batch on the devices."""
    sharding = NamedSharding(setup.mesh, PartitionSpec(AXIS))
    shapes = _shapes(setup, _parts(setup))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes)


def shard_shapes(setup: Setup) -> Batch:
    """Returns the shapes and types of one part of a step's batch."""
    return _shapes(setup, 1)


def _shapes(setup: Setup, parts: int) -> Batch:
    """Returns the shapes and types of that many parts of a step's batch."""

    def shapes(example: Batch, rows: int) -> Batch:
        return {
            name: jax.ShapeDtypeStruct((rows // _parts(setup) * parts, *field.shape[1:]), field.dtype)
            for name, field in example.items()
        }

    data = setup.data
    rows = _slots(setup, 0).size * views_at_once(setup.config.model, setup.config.data.views)
    batch = shapes(setup.samples.batch(np.zeros(0, np.int64), np.zeros(0, np.int64)), rows)
    for name, stream in setup.clips.items():
        shards = shards_of_step(setup, stream, 0)
        batch[name] = shapes(empty_clips(shards, stream.source.views, data.size_px, stream.cameras), shards.draws.size)
    return batch


def shards_of_step(setup: Setup, stream: ClipStream, step: int) -> ClipShards:
    """Returns how the clips of a step are divided among all parts of a pass."""
    radius = CONTEXT_RADIUS[setup.config.model.kind]
    return clip_shards(step, stream.per_step, setup.facts.passes, _parts(setup), stream.frames, radius)


def image_names(setup: Setup, draws: np.ndarray) -> list[str]:
    """Returns the names of the images of draws (m,), as in a batch."""
    at_once = views_at_once(setup.config.model, setup.config.data.views)
    moments, views = np.divmod(draws, at_once)
    rows = rows_of_draws(moments, drawn_rows(setup.data), setup.config.data.seed)
    rows = rows.reshape(len(draws), at_once)[np.arange(len(draws)), views]
    return [setup.samples.poses.frames[row] for row in rows]


def clip_names(setup: Setup, step: int) -> dict[str, list[str]]:
    """Returns the names of the clips of a step, by stream; none without clips."""
    return {
        name: [stream.source.name(draw) for draw in range(step * stream.per_step, (step + 1) * stream.per_step)]
        for name, stream in setup.clips.items()
    }


def _slots(setup: Setup, step: int) -> np.ndarray:
    """Returns the draws in the slots of all parts (parts, microbatches, slots), -1 where empty."""
    train = setup.config.train
    if not setup.data.has_labels:
        return np.zeros((_parts(setup), setup.facts.passes, 0), np.int64)
    return slots(step, train.batch_size, microbatch_size(train), _parts(setup))


def _parts(setup: Setup) -> int:
    return part_count(setup.config.train, setup.mesh.size)


def _host_clips(setup: Setup, mine: np.ndarray, step: int) -> dict[str, Batch]:
    """Returns this host's parts of the clips of a step, by stream; only the clips of its own shards are decoded."""
    return {
        name: clip_batch(stream.source, shards_of_step(setup, stream, step).of_parts(mine), stream.cameras)
        for name, stream in setup.clips.items()
    }
