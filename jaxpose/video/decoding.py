"""Decodes a video and reports its damage. Only this file decides which frames are damaged.

Both video readers use it and differ only in how they respond to a flaw. Prediction (`video.ChunkReader`) needs one row
per frame: it delivers frames that the decoder repaired, and stops at a missing frame, because the numbers of all later
frames would be a guess. Clips (`RangeReader`) do not need every frame: they continue, and drop the frame and all frames
that may depend on it.
"""

import bisect
import contextlib
import dataclasses
import enum
import hashlib
import logging
import math
from collections.abc import Callable, Generator, Iterator

import av
import numpy as np
from av.error import FFmpegError
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter

from jaxpose import cache
from jaxpose.geometry import fit_numbered
from jaxpose.video.file import Video, to_rgb, turned_size_px
from jaxpose.video.index import Stopped, VideoIndex, can_begin_at_key_frames, is_unchanged, key_frame_before
from jaxpose.video.packets import PacketWalk


class FlawKind(enum.Enum):
    """How a flaw appears.

    FAILED: the decoder or the file raises an error, or decoding started at a frame that is not a key frame.
    LOST: a frame is missing or has another size.
    MENDED: a frame decodes, but the decoder marks it as corrupt.
    MARKED: the container marks a frame's packet as corrupt; the frame may decode and look intact.
    """

    FAILED = enum.auto()
    LOST = enum.auto()
    MENDED = enum.auto()
    MARKED = enum.auto()


@dataclasses.dataclass(frozen=True)
class Flaw:
    """Lost or damaged frames.

    Attributes:
      kind: how it appears.
      first: number of the frame.
      text: a clause about it, such as "frame 7 is missing".
      last: number of the last frame with this flaw.
      error: FFmpeg's message, or "".
    """

    kind: FlawKind
    first: int
    text: str
    last: int
    error: str = ""


class Decoding:
    """Iterates once over a video's frames, as (number, frame), and its flaws, as they appear.

    Frames come in display order. A corrupt frame follows its flaw; a frame of another size is left out, as are frames
    before `key`.
    """

    def __init__(
        self,
        video: Video | VideoIndex,
        threads: int,
        is_stopped: Callable[[], bool],
        key: int = 0,
        end: int | None = None,
    ):
        """
        Args:
          video: with an index, timestamps number the frames; without an index, or if it has no timestamps, they are
            counted.
          threads: decoder threads; 0 lets FFmpeg choose.
          is_stopped: called for every packet; True raises `Stopped`.
          key: frame number at which decoding starts: from `key_frame_before`, or 0.
          end: frame number at which the iteration ends; None reads to the end of the file.
        """
        self._video, self._threads, self._is_stopped = video, threads, is_stopped
        self._index = video if isinstance(video, VideoIndex) and video.times else None
        self._key, self._end = key, end
        self._walk = PacketWalk(video.path)

    @property
    def unshown(self) -> int:
        """Frames so far, from the start, that the file announces but never shows."""
        return self._walk.unshown

    def __iter__(self) -> Iterator[tuple[int, VideoFrame] | Flaw]:
        # Frames come in display order: when a later frame comes, those in between are lost.
        next_number = self._key
        stored_px = turned_size_px(self._video.width_px, self._video.height_px, self._video.quarter_turns)
        for item in self._numbered():
            if isinstance(item, Flaw):
                yield item
                continue
            number, frame = item
            if number >= (math.inf if self._end is None else self._end):
                break
            if number < next_number:
                continue
            if number > next_number:
                yield _missing(next_number, number - 1)
            next_number = number + 1
            if (frame.width, frame.height) != stored_px:
                yield _flaw(FlawKind.LOST, number, f"has {frame.width} x {frame.height} pixels")
                continue
            if frame.is_corrupt:
                yield _flaw(FlawKind.MENDED, number, "is damaged")
            if number == self._key and number and not frame.key_frame:
                yield _flaw(FlawKind.FAILED, number, "is marked as a key frame, but is not one")
            yield number, frame
        if self._end is not None and next_number < self._end:
            yield _missing(next_number, self._end - 1)

    def _numbered(self) -> Iterator[tuple[int, VideoFrame] | Flaw]:
        """Yields decoded frames with numbers, and packet flaws; the first frames may be before the key."""
        number = self._key - 1
        try:
            for packet in self._packets():
                if self._is_stopped():
                    raise Stopped
                packet_number = self._index.number_of(packet.pts) if self._index else None
                if packet.is_corrupt and packet_number is not None and packet_number >= self._key:
                    yield _flaw(FlawKind.MARKED, packet_number, "is damaged")
                try:
                    frames = packet.decode()
                except FFmpegError as error:
                    failed = number + 1 if packet_number is None else packet_number
                    # Frames before the key frame do not matter.
                    if failed >= self._key:
                        yield _flaw(FlawKind.FAILED, failed, "does not decode", _text(error))
                    if not self._index:
                        return
                    continue
                for frame in frames:
                    shown = self._index.number_of(frame.pts) if self._index else number + 1
                    if shown is not None:
                        number = shown
                        yield number, frame
        except (FFmpegError, ValueError) as error:
            # The file is truncated, can no longer be opened, or was replaced.
            yield _flaw(FlawKind.FAILED, number + 1, "cannot be read", _text(error))

    def _packets(self) -> Iterator[Packet]:
        return self._walk.packets(self._threads, *(self._index.begins_before(self._key) if self._index else ([], 0)))


def _missing(first: int, last: int) -> Flaw:
    return Flaw(FlawKind.LOST, first, f"frame {first} is missing", last)


def _flaw(kind: FlawKind, number: int, text: str, error: str = "") -> Flaw:
    return Flaw(kind, number, f"frame {number} {text}" + (f" ({error})" if error else ""), number, error)


def _text(error: FFmpegError | ValueError) -> str:
    return (isinstance(error, FFmpegError) and error.strerror) or str(error)


# Decodes a range of video frames and reports the unreliable ones.
#
# Any range gives the same frames as decoding from the start of the file. If the video's key frames passed their check,
# decoding starts at one of them; if damage appears, the file is decoded from its start, and only the damage found then
# counts. The decoder has one thread, because the number of threads affects how it treats damage.

# Part of the key of damage notes: increase it when the definition of damage changes.
_VERSION = 1
_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Damage:
    """Unusable frames `first` to `last` of a video, and the reason."""

    first: int
    last: int
    reason: str


class RangeReader:
    """Iterates once over the frames [first, end) that decode: (number, (height, width, 3) uint8 RGB).

    Numbers ascend. If damage appears after a key frame, the frames may come again from `first` on; of two frames with
    the same number, the later is right. Frames in `damage` may come or be left out. The iteration raises `Stopped` once
    `is_stopped` returns true: it may first have to decode an hour of frames before the range.

    Attributes:
      damage: after the iteration, the unreliable frames of the range (and some outside): those that the decoder lost,
        refused or repaired, each with all frames up to the next key frame, which may depend on it.
      decoded_frames: number of frames decoded so far, including those before the range.
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
            # Decoding from the start decides. If it finds the same damaged frames, the other frames are right.
            self.damage = find_damage(self._index, self._is_stopped)
            if self._numbers(seen) <= self._numbers(self.damage):
                return
        self.damage = yield from self._images(0)

    def _images(self, key: int) -> Generator[tuple[int, np.ndarray], None, list[Damage]]:
        """Yields the frames of the range, decoded from a key frame on; returns the damage."""
        damage: list[Damage] = []
        for number, frame in _decode(self._index, key, self._end, self._is_stopped, damage):
            self.decoded_frames += 1
            if number >= self._first:
                image = to_rgb(frame, self._converter, self._index.quarter_turns)
                yield number, fit_numbered(image, number, self._input_from_frame, self._size_px, self._crop_px)
        return damage

    def _numbers(self, damage: list[Damage]) -> set[int]:
        """Returns the damaged frames of the range."""
        return {number for one in damage for number in range(max(one.first, self._first), min(one.last + 1, self._end))}


def find_damage(index: VideoIndex, is_stopped: Callable[[], bool]) -> list[Damage]:
    """Decodes a whole video from its start; returns its damage, kept in the cache folder.

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
        # If the file was deleted or replaced in the meantime, the result does not belong to the index.
        if is_unchanged(index):
            with contextlib.suppress(OSError):
                cache.write_note(note, kept)
    return [Damage(**damage) for damage in kept]


def _decode(
    index: VideoIndex, key: int, end: int, is_stopped: Callable[[], bool], damage: list[Damage]
) -> Iterator[tuple[int, VideoFrame]]:
    """Yields frames from a key frame to `end` that decode with the right size; adds others to `damage`."""
    for item in Decoding(index, 1, is_stopped, key, end):
        if isinstance(item, Flaw):
            damage.append(_spread(index, item, is_stopped))
        else:
            yield item


def _spread(index: VideoIndex, flaw: Flaw, is_stopped: Callable[[], bool]) -> Damage:
    """Returns the frames that a flaw makes unusable: its own and all that may depend on them, up to a key frame."""
    begins = index.key_frames if can_begin_at_key_frames(index, is_stopped) else []
    following = bisect.bisect_right(begins, flaw.last)
    until = begins[following] - 1 if following < len(begins) else index.frame_count - 1
    return Damage(flaw.first, max(flaw.first, until), flaw.text)
