"""Which part of which clip sits where in a step: every frame, window and pair of neighbours has exactly one owner."""

import dataclasses

import numpy as np

from jaxpose.training.slots import EMPTY


@dataclasses.dataclass(frozen=True)
class Pieces:
    """Pieces of clips as they lie on the devices; a whole clip is a piece too.

    Attributes:
      draws: int64 (devices, micro-batches, slots), the clip's position in the endless stream, or `EMPTY`.
      frame_index: int32 (devices, micro-batches, slots, frames), place of each frame in its clip, or `EMPTY`.
      owned: bool, of the same shape: the other frames are copies that a window or a pair at the piece's end needs.
    """

    draws: np.ndarray
    frame_index: np.ndarray
    owned: np.ndarray

    def of_devices(self, chosen: np.ndarray) -> "Pieces":
        """Returns the pieces of the devices that are chosen by a mask (devices,)."""
        return Pieces(self.draws[chosen], self.frame_index[chosen], self.owned[chosen])


def pieces(step: int, clips_per_step: int, passes: int, devices: int, clip_frames: int, radius: int) -> Pieces:
    """Returns the pieces of a step: whole clips to devices in turn, or, where those are more, clips cut up.

    Micro-batch m holds the clips [m c, (m + 1) c) of the step, c = ceil(clips per step / micro-batches). A clip of S
    frames has W = S - 2 radius windows. Cut into p parts, part i owns the windows that begin at frames
    [i q, (i + 1) q), q = ceil(W / p), and those frames; the last one with a window owns all frames up to the clip's
    end.

    Args:
      step: number of the step, from 0.
      clips_per_step: clips of an update.
      passes: micro-batches of an update.
      devices: number of devices.
      clip_frames: S.
      radius: frames on either side of the one that a window is of.
    """
    per_pass = -(-clips_per_step // passes)
    parts = max(1, devices // per_pass)
    slots = -(-per_pass // devices)
    windows = clip_frames - 2 * radius
    step_frames = -(-windows // parts)
    # One window more than a part owns: its last prediction is compared with the next one.
    length = clip_frames if parts == 1 else min(clip_frames, step_frames + 2 * radius + 1)
    draws = np.full((devices, passes, slots), EMPTY, np.int64)
    frame_index = np.full((devices, passes, slots, length), EMPTY, np.int32)
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
    return Pieces(draws, frame_index, owned)
