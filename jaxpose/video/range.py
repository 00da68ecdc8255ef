"""Decodes a range of a video's frames and reports which of them are unreliable.

For any range, the frames are those that decoding from the start of the file gives. If the key frames of the video have
passed their check, decoding begins at one of them; if damage shows, the file is decoded from its start, and only the
damage found there counts. The decoder has one thread, because its treatment of damage depends on the number of threads.
"""

import bisect
import contextlib
import dataclasses
import hashlib
import logging
from collections.abc import Callable, Generator, Iterator

import av
import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter

from jaxpose import cache
from jaxpose.fitting import fit_numbered
from jaxpose.video.decoding import Decoding, Flaw
from jaxpose.video.file import to_rgb
from jaxpose.video.index import VideoIndex, is_unchanged
from jaxpose.video.key_frames import can_begin_at_key_frames, key_frame_before

# Part of the key of the notes of damage: increase it when the definition of damage changes.
_VERSION = 1
_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Damage:
    """Frames `first` to `last` of a video that cannot be used, and the reason."""

    first: int
    last: int
    reason: str


class RangeReader:
    """Iterates once over the frames [first, end) of a video that decode: (number, (height, width, 3) uint8 RGB).

    The numbers ascend. If damage shows after a key frame, the frames may come again, from `first` on; of two frames
    with one number, the later one is right. Frames in `damage` may come or be left out. The iteration raises
    `Stopped` once `is_stopped` returns true: an hour of other frames may have to be decoded before those of the range.

    Attributes:
      damage: after the iteration, the unreliable frames of the range (and some outside of it): those that the decoder
        lost, refused or repaired, each with all frames up to the next key frame, which may depend on it.
      decoded_frames: frames decoded so far, including those before the range.
    """

    def __init__(
        self,
        index: VideoIndex,
        first: int,
        end: int,
        input_from_frame: np.ndarray,
        size_px: tuple[int, int],
        is_stopped: Callable[[], bool] = lambda: False,
        crop_px: tuple[int, ...] | np.ndarray = (),
    ):
        """See `fit_numbered` for `input_from_frame` and `crop_px`."""
        self.damage: list[Damage] = []
        self.decoded_frames = 0
        self._index, self._first, self._end = index, first, end
        self._input_from_frame, self._size_px, self._crop_px = input_from_frame, size_px, crop_px
        self._is_stopped = is_stopped
        self._converter = VideoReformatter()

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        if key := key_frame_before(self._index, self._first, self._is_stopped):
            seen = yield from self._images(key)
            if not self._numbers(seen):
                return
            # Only decoding from the start decides. If it finds the same frames damaged, the other frames are right.
            self.damage = find_damage(self._index, self._is_stopped)
            if self._numbers(seen) <= self._numbers(self.damage):
                return
        self.damage = yield from self._images(0)

    def _images(self, key: int) -> Generator[tuple[int, np.ndarray], None, list[Damage]]:
        """Yields the frames of the range, decoded from a key frame on; returns the damage found."""
        damage: list[Damage] = []
        for number, frame in _decode(self._index, key, self._end, self._is_stopped, damage):
            self.decoded_frames += 1
            if number >= self._first:
                image = to_rgb(frame, self._converter, self._index.quarter_turns)
                yield number, fit_numbered(image, number, self._input_from_frame, self._size_px, self._crop_px)
        return damage

    def _numbers(self, damage: list[Damage]) -> set[int]:
        """Returns the frames of the range that are damaged."""
        return {number for one in damage for number in range(max(one.first, self._first), min(one.last + 1, self._end))}


def find_damage(index: VideoIndex, is_stopped: Callable[[], bool]) -> list[Damage]:
    """Returns the damage of a whole video, by decoding it from its start; kept in the cache folder.

    Raises:
      Stopped: `is_stopped` returned true.
    """
    known = ("damage", _VERSION, index.identity, av.library_versions["libavcodec"])
    note = hashlib.sha256(repr(known).encode()).hexdigest()
    kept = cache.read_note(note)
    if kept is None:
        _logger.info("decodes %s, %d frames, to find its damaged frames", index.path, index.frame_count)
        found: list[Damage] = []
        for _ in _decode(index, 0, index.frame_count, is_stopped, found):
            pass
        kept = [dataclasses.asdict(damage) for damage in found]
        # If the file was deleted or replaced meanwhile, the result is not that of the index.
        if is_unchanged(index):
            with contextlib.suppress(OSError):
                cache.write_note(note, kept)
    return [Damage(**damage) for damage in kept]


def _decode(
    index: VideoIndex, key: int, end: int, is_stopped: Callable[[], bool], damage: list[Damage]
) -> Iterator[tuple[int, VideoFrame]]:
    """Yields the frames from a key frame to `end` that decode and have the right size; adds the others to `damage`."""
    for item in Decoding(index, 1, is_stopped, key, end):
        if isinstance(item, Flaw):
            damage.append(_spread(index, item, is_stopped))
        else:
            yield item


def _spread(index: VideoIndex, flaw: Flaw, is_stopped: Callable[[], bool]) -> Damage:
    """Returns the frames that a flaw makes unusable: its own and all that may be built on them, up to a key frame."""
    begins = index.key_frames if can_begin_at_key_frames(index, is_stopped) else []
    following = bisect.bisect_right(begins, flaw.last)
    until = begins[following] - 1 if following < len(begins) else index.frame_count - 1
    return Damage(flaw.first, max(flaw.first, until), flaw.text)
