"""Unlabelled clips of several animals: each clip shows one animal, in a box around it.

Input: videos, and the boxes of their animals over time. Output: as `jaxpose.video.clips`.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from jaxpose import geometry
from jaxpose.config import DataConfig
from jaxpose.geometry import fit_image
from jaxpose.video.cache import DecodedFrames
from jaxpose.video.clips import ClipSource, block_windows, describe_cost, loss_reasons
from jaxpose.video.decoding import RangeReader
from jaxpose.video.index import VideoIndex

# Animals are looked for in stretches of this many frames; no tracklet is longer.
STRETCH_FRAMES = 128


@dataclasses.dataclass(frozen=True)
class Tracklet:
    """The boxes of one animal in a stretch of a video.

    Attributes:
      frames: (n,) numbers of the frames in which it was found, ascending.
      boxes_px: (n, 4) square boxes (x, y, width, height) of one size around it, whole numbers; may extend past the
        frame.
    """

    frames: np.ndarray
    boxes_px: np.ndarray


def clips_of_tracklet(tracklet: Tracklet, length: int, most_px: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first frames (w,) of the clips of a tracklet, and their boxes (w, 4) of the tracklet's size.

    A clip begins at the earliest frame from which on the animal moves little enough over the whole clip; the next one
    begins after its end. Its box lies in the middle of the animal's boxes. A frame in which the animal was not found
    does not count.

    Args:
      tracklet: the animal.
      length: frames per clip.
      most_px: the animal moves at most so far in a clip, along x and along y.
    """
    start, side_px = int(tracklet.frames[0]), tracklet.boxes_px[0, 2]
    count = int(tracklet.frames[-1]) - start + 1
    if count < length:
        return np.zeros(0, int), np.zeros((0, 4), int)
    corners_px = np.full((count, 2), np.nan)
    corners_px[tracklet.frames - start] = tracklet.boxes_px[:, :2]
    windows = np.lib.stride_tricks.sliding_window_view(corners_px, length, axis=0)
    low = np.where(np.isfinite(windows), windows, np.inf).min(axis=-1)
    high = np.where(np.isfinite(windows), windows, -np.inf).max(axis=-1)
    # Without any box, the difference is negative.
    is_still = ((high - low >= 0) & (high - low <= most_px)).all(axis=1)
    firsts, at = [], 0
    for first in np.flatnonzero(is_still).tolist():
        if first >= at:
            firsts.append(first)
            at = first + length
    middle_px = np.floor((low[firsts] + high[firsts]) / 2).astype(int)
    return np.array(firsts, int) + start, np.concatenate([middle_px, np.full_like(middle_px, side_px)], axis=1)


@dataclasses.dataclass(frozen=True)
class Scene:
    """Clips of a stretch of a video, which are decoded together.

    Attributes:
      index: the video.
      firsts: (w,) first frame of each clip, ascending.
      boxes_px: (w, 4) box of each clip.
    """

    index: VideoIndex
    firsts: np.ndarray
    boxes_px: np.ndarray


def scenes_of_video(index: VideoIndex, tracklets: Sequence[Tracklet], length: int, most_px: float) -> list[Scene]:
    """Returns the clips of a video's animals, in the order of their first frames, then of their boxes.

    Args:
      index: the video.
      tracklets: its animals.
      length, most_px: as in `clips_of_tracklet`.
    """
    found = [clips_of_tracklet(tracklet, length, most_px) for tracklet in tracklets]
    firsts = np.concatenate([np.zeros(0, int), *(part for part, _ in found)])
    boxes_px = np.concatenate([np.zeros((0, 4), int), *(part for _, part in found)])
    order = np.lexsort((boxes_px[:, 1], boxes_px[:, 0], firsts))
    firsts, boxes_px, most = firsts[order], boxes_px[order], block_windows(length)
    _, starts = np.unique(firsts // STRETCH_FRAMES, return_index=True)
    return [
        Scene(index, firsts[at : min(at + most, end)], boxes_px[at : min(at + most, end)])
        for start, end in itertools.pairwise([*starts.tolist(), len(firsts)])
        for at in range(start, end, most)
    ]


class AnimalClips(ClipSource):
    """Reads clips of several animals by draw number, from any thread; they are decoded whenever they are needed."""

    def __init__(self, scenes: Sequence[Scene], length: int, data: DataConfig, mixed_blocks: int):
        """
        Args:
          scenes: at least one.
          length: frames per clip.
          data: how to fit boxes into the input, and the seed of the order.
          mixed_blocks: see `jaxpose.video.clips.place`.
        """
        frame_counts = [len(scene.firsts) * length for scene in scenes]
        super().__init__([(scene.index,) for scene in scenes], length, data, "off", {}, mixed_blocks, frame_counts)
        self._scenes = scenes
        self._affines = [geometry.input_from_boxes(scene.boxes_px, self.size_px, data.resize) for scene in scenes]
        self.notes = list(dict.fromkeys(self.notes))

    @property
    def clip_count(self) -> int:
        """Number of clips of all animals."""
        return sum(len(scene.firsts) for scene in self._scenes)

    def name(self, draw: int) -> str:
        """Returns the name of a draw's clip for messages."""
        scene, clip = self._find(draw)
        x, y, width, height = self._scenes[scene].boxes_px[clip].tolist()
        first = self._scenes[scene].firsts[clip]
        frames = f"{self._scenes[scene].index.path.name}, frames {first} to {first + self._length - 1}"
        return f"{frames}, the animal around ({x + width // 2}, {y + height // 2})"

    def frame_from_input(self, draw: int) -> np.ndarray:
        """Returns the affine (1, 2, 3) float32 from input pixels to frame pixels."""
        scene, clip = self._find(draw)
        return geometry.invert(self._affines[scene][clip : clip + 1]).astype(np.float32)

    def cost_warning(self) -> str:
        """Returns a warning if far more frames are decoded than delivered, or ""."""
        fix = "re-encode the videos with more key frames"
        return describe_cost(self.decoded_frames, self.delivered_frames, fix)

    def _find(self, draw: int) -> tuple[int, int]:
        """Returns the numbers of a draw's scene, and of its clip there."""
        scene, row = self.place(draw)
        return scene, row // self._length

    def _read(self, session: int, view: int, first: int) -> np.ndarray | str:
        scene = self._scenes[session]
        held = self._blocks.get((scene.index.path, session), lambda: self._decode_scene(session))
        with self._lock:
            self.delivered_frames += self._length
        number = int(scene.firsts[first // self._length])
        if reasons := loss_reasons(scene.index, held.damage, number, self._length):
            return f"{scene.index.path}: frames {number} to {number + self._length - 1} are not used: {reasons[0]}"
        return held.pixels[first : first + self._length]

    def _decode_scene(self, session: int) -> DecodedFrames:
        scene, affines = self._scenes[session], self._affines[session]
        start, end = int(scene.firsts[0]), int(scene.firsts[-1]) + self._length
        whole_px = scene.index.width_px, scene.index.height_px
        reader = RangeReader(scene.index, start, end, np.eye(2, 3), whole_px, lambda: self._is_closed)
        pixels = np.zeros((len(scene.firsts), self._length, self.size_px[1], self.size_px[0], 3), np.uint8)
        for number, frame in reader:
            places = number - scene.firsts
            for clip in np.flatnonzero((places >= 0) & (places < self._length)).tolist():
                box = tuple(scene.boxes_px[clip].tolist())
                pixels[clip, places[clip]] = fit_image(frame, affines[clip], self.size_px, box)
        with self._lock:
            self.decoded_frames += reader.decoded_frames
        return DecodedFrames(0, pixels.reshape(-1, *pixels.shape[2:]), reader.damage)
