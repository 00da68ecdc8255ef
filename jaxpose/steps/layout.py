"""The layout of a step: which part of a pass has which sample and which piece of a clip, for any sizes and numbers.

The parts of a pass are the shards of `train.shards` or, without them, one for each device. Samples go to the parts in
turn. Every frame, window and pair of neighbours of a clip has exactly one owner.
"""

import dataclasses

import numpy as np

from jaxpose.config import TrainConfig

EMPTY = -1
# Maximum number of labelled frames that a device predicts at once, however many the training has.
_MOST_LABELLED = 32


def microbatch_size(train: TrainConfig) -> int:
    """Returns the number of frames in one pass over all parts."""
    return train.microbatch_size or train.batch_size


def part_count(train: TrainConfig, devices: int) -> int:
    """Returns the number of parts in every pass: `train.shards`, or one for each device."""
    return train.shards if train.shards > 0 else devices


def validation_batch(train: TrainConfig, validating: int) -> int:
    """Returns how many labelled frames a device predicts at once: at most as many as a shard of the training has.

    This number affects rounding, and validation decides which weights are the best. So it depends neither on the
    devices nor on an option that may change between resumes. It is not much larger than the validation set, because the
    rest would be padding.

    Args:
      train: the run's options.
      validating: number of validation frames.
    """
    return min(-(-microbatch_size(train) // max(1, train.shards)), max(8, validating), _MOST_LABELLED)


def shard_blocks(shards: int, devices: int) -> list[range]:
    """Returns the shards of each device: neighbours, in numbers that differ by at most one, 0 if there are too few."""
    ends = [device * shards // devices for device in range(devices + 1)]
    return [range(first, end) for first, end in zip(ends[:-1], ends[1:], strict=True)]


def slots(step: int, batch_size: int, microbatch: int, parts: int) -> np.ndarray:
    """Returns the draw in each slot of a step, or `EMPTY`: int64 (parts, microbatches, slots).

    A draw is a position in the endless stream of samples. Step s holds the draws [s B, (s + 1) B); its microbatch m
    holds the next M of them, dealt to the parts in turn, so that every part has `ceil(M / parts)` slots and the empty
    ones are spread.

    Args:
      step: number of the step, from 0.
      batch_size: B, samples per step.
      microbatch: M, samples per pass, at most B.
      parts: number of parts of a pass (`part_count`).
    """
    passes = -(-batch_size // microbatch)
    per_part = -(-microbatch // parts)
    # place[m, j, d] is the position of slot j of part d among the draws of microbatch m.
    place = np.arange(per_part * parts).reshape(1, per_part, parts)
    position = place + microbatch * np.arange(passes).reshape(-1, 1, 1)
    real = (place < microbatch) & (position < batch_size)
    draws = np.where(real, np.int64(step) * batch_size + position, EMPTY)
    return draws.transpose(2, 0, 1)


@dataclasses.dataclass(frozen=True)
class ClipShards:
    """The clip shards of each part; a shard is a whole clip or a part of it.

    Attributes:
      draws: int64 (parts, microbatches, slots), the clip's position in the endless stream, or `EMPTY`.
      frame_index: int32 (parts, microbatches, slots, frames), place of each frame in its clip, or `EMPTY`.
      owned: bool, of the same shape; other frames are copies for a window or a pair at the end of the shard.
    """

    draws: np.ndarray
    frame_index: np.ndarray
    owned: np.ndarray

    def of_parts(self, chosen: np.ndarray) -> "ClipShards":
        """Returns the clip shards of the parts in a mask (parts,)."""
        return ClipShards(self.draws[chosen], self.frame_index[chosen], self.owned[chosen])


def clip_shards(step: int, clips_per_step: int, passes: int, parts: int, clip_frames: int, radius: int) -> ClipShards:
    """Returns the clip shards of a step: whole clips to the parts in turn; with more parts than clips, pieces of clips.

    Microbatch m holds the clips [m c, (m + 1) c) of the step, c = ceil(clips per step / microbatches). A clip of S
    frames has W = S - 2 radius windows. Piece i of p owns the windows that begin at frames [i q, (i + 1) q), q = ceil(W
    / p), and those frames; the last one with a window owns all frames up to the clip's end.

    Args:
      step: number of the step, from 0.
      clips_per_step: clips of an update.
      passes: microbatches of an update.
      parts: number of parts of a pass (`part_count`).
      clip_frames: S.
      radius: frames on either side of a window's centre.
    """
    per_pass = -(-clips_per_step // passes)
    pieces = max(1, parts // per_pass)
    per_part = -(-per_pass // parts)
    windows = clip_frames - 2 * radius
    step_frames = -(-windows // pieces)
    # One window more than the piece owns, because the last prediction is compared with the next one.
    length = clip_frames if pieces == 1 else min(clip_frames, step_frames + 2 * radius + 1)
    draws = np.full((parts, passes, per_part), EMPTY, np.int64)
    frame_index = np.full((parts, passes, per_part, length), EMPTY, np.int32)
    owned = np.zeros(frame_index.shape, bool)
    for number in range(clips_per_step):
        turn, place = divmod(number, per_pass)
        for piece in range(pieces):
            first = piece * step_frames
            if first >= windows:
                continue
            where = (place * pieces + piece) % parts, turn, place * pieces // parts
            frames = np.arange(first, first + length)
            is_last = first + step_frames >= windows
            draws[where] = step * clips_per_step + number
            frame_index[where] = np.where(frames < clip_frames, frames, EMPTY)
            owned[where] = (frames < clip_frames) & (is_last | (frames < first + step_frames))
    return ClipShards(draws, frame_index, owned)
