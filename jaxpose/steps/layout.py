"""The layout of a step: which device gets which sample and which part of a clip, for any batch size and any devices.

Samples go to the devices in turn. Every frame, window and pair of neighbours of a clip has exactly one owner.
"""

import dataclasses

import numpy as np

from jaxpose.config import TrainConfig

EMPTY = -1


def microbatch_size(train: TrainConfig) -> int:
    """Returns the number of frames in one pass over all devices."""
    return train.microbatch_size or train.batch_size


def slots(step: int, batch_size: int, microbatch: int, devices: int) -> np.ndarray:
    """Returns the draw in each slot of a step, or `EMPTY`: int64 (devices, microbatches, slots).

    A draw is a position in the endless stream of samples. Step s holds the draws [s B, (s + 1) B); its microbatch m
    holds the next M of them, dealt to the devices in turn, so that every device has `ceil(M / devices)` slots and the
    empty ones are spread.

    Args:
      step: number of the step, from 0.
      batch_size: B, samples per step.
      microbatch: M, samples per pass, at most B.
      devices: number of devices.
    """
    passes = -(-batch_size // microbatch)
    per_device = -(-microbatch // devices)
    # place[m, j, d] is the position of slot j on device d among the draws of microbatch m.
    place = np.arange(per_device * devices).reshape(1, per_device, devices)
    position = place + microbatch * np.arange(passes).reshape(-1, 1, 1)
    real = (place < microbatch) & (position < batch_size)
    draws = np.where(real, np.int64(step) * batch_size + position, EMPTY)
    return draws.transpose(2, 0, 1)


@dataclasses.dataclass(frozen=True)
class ClipShards:
    """The clip shards on each device; a shard is a whole clip or a part of it.

    Attributes:
      draws: int64 (devices, microbatches, slots), the clip's position in the endless stream, or `EMPTY`.
      frame_index: int32 (devices, microbatches, slots, frames), place of each frame in its clip, or `EMPTY`.
      owned: bool, of the same shape; other frames are copies for a window or a pair at the end of the shard.
    """

    draws: np.ndarray
    frame_index: np.ndarray
    owned: np.ndarray

    def of_devices(self, chosen: np.ndarray) -> "ClipShards":
        """Returns the clip shards of the devices in a mask (devices,)."""
        return ClipShards(self.draws[chosen], self.frame_index[chosen], self.owned[chosen])


def clip_shards(step: int, clips_per_step: int, passes: int, devices: int, clip_frames: int, radius: int) -> ClipShards:
    """Returns the clip shards of a step: whole clips to devices in turn; with more devices than clips, parts of clips.

    Microbatch m holds the clips [m c, (m + 1) c) of the step, c = ceil(clips per step / microbatches). A clip of S
    frames has W = S - 2 radius windows. Cut into p parts, part i owns the windows that begin at frames
    [i q, (i + 1) q), q = ceil(W / p), and those frames; the last one with a window owns all frames up to the clip's
    end.

    Args:
      step: number of the step, from 0.
      clips_per_step: clips of an update.
      passes: microbatches of an update.
      devices: number of devices.
      clip_frames: S.
      radius: frames on either side of a window's centre.
    """
    per_pass = -(-clips_per_step // passes)
    parts = max(1, devices // per_pass)
    per_device = -(-per_pass // devices)
    windows = clip_frames - 2 * radius
    step_frames = -(-windows // parts)
    # One window more than the part owns, because the last prediction is compared with the next one.
    length = clip_frames if parts == 1 else min(clip_frames, step_frames + 2 * radius + 1)
    draws = np.full((devices, passes, per_device), EMPTY, np.int64)
    frame_index = np.full((devices, passes, per_device, length), EMPTY, np.int32)
    owned = np.zeros(frame_index.shape, bool)
    for number in range(clips_per_step):
        turn, place = divmod(number, per_pass)
        for part in range(parts):
            first = part * step_frames
            if first >= windows:
                continue
            where = (place * parts + part) % devices, turn, place * parts // devices
            frames = np.arange(first, first + length)
            is_last = first + step_frames >= windows
            draws[where] = step * clips_per_step + number
            frame_index[where] = np.where(frames < clip_frames, frames, EMPTY)
            owned[where] = (frames < clip_frames) & (is_last | (frames < first + step_frames))
    return ClipShards(draws, frame_index, owned)
