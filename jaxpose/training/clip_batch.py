"""Makes this host's batch of unlabelled clips for a step: frames, owners and empty slots."""

import numpy as np

from jaxpose.data.loader import Batch
from jaxpose.steps.layout import EMPTY, ClipShards
from jaxpose.video.clips import ClipSource


def empty_clips(shards: ClipShards, views: int, size_px: tuple[int, int]) -> Batch:
    """Returns the batch of clip shards before any frame is read: nothing is valid, every frame is black.

    Args:
      shards: of these devices, (devices, microbatches, slots).
      views: cameras.
      size_px: (width, height) of the network's input.
    """
    draws = shards.draws.reshape(-1)
    frames = shards.frame_index.shape[-1]
    return {
        "frames": np.zeros((len(draws), views, frames, size_px[1], size_px[0], 3), np.uint8),
        "frame_from_input": np.tile(np.eye(2, 3, dtype=np.float32), (len(draws), views, 1, 1)),
        "draw": draws.astype(np.int32),
        "frame_index": shards.frame_index.reshape(-1, frames),
        "owned": shards.owned.reshape(-1, frames),
        "valid": np.zeros(len(draws), bool),
    }


def clip_batch(source: ClipSource, shards: ClipShards) -> Batch:
    """Returns the batch of clip shards with their frames; a clip that does not decode stays `valid = False`.

    Args:
      source: the clips.
      shards: of this host's devices, (devices, microbatches, slots).
    """
    batch = empty_clips(shards, source.views, source.size_px)
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
    return batch
