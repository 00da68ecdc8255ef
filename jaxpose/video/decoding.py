"""Decodes a video and reports its damage: the one place that decides which frames are damaged.

Both readers of video are built on it and differ only in their answer to a flaw. Prediction (`video.ChunkReader`) wants
one row per frame: it delivers frames that the decoder mended, and stops at a frame that does not come, since the
numbers of all later frames would be a guess. Clips (`range.RangeReader`) do not need every frame: they continue
and drop the frame with all frames that may depend on it.
"""

import dataclasses
import enum
import math
from collections.abc import Callable, Iterator

from av.error import FFmpegError
from av.packet import Packet
from av.video.frame import VideoFrame

from jaxpose.video.file import Video, turned_size_px
from jaxpose.video.index import VideoIndex
from jaxpose.video.key_frames import Stopped
from jaxpose.video.packets import PacketWalk


class FlawKind(enum.Enum):
    """How a flaw shows.

    FAILED: the decoder or the file gives an error, or decoding began at a frame that is no key frame.
    LOST: a frame does not come, or comes with another size.
    MENDED: a frame comes, but the decoder calls it corrupt.
    MARKED: the container calls the packet of a frame corrupt; the frame may come and look whole.
    """

    FAILED = enum.auto()
    LOST = enum.auto()
    MENDED = enum.auto()
    MARKED = enum.auto()


@dataclasses.dataclass(frozen=True)
class Flaw:
    """Frames that are lost or damaged.

    Attributes:
      kind: how it shows.
      first: number of the frame.
      text: a clause about it, such as "frame 7 is missing".
      last: number of the last frame with this flaw.
      error: what FFmpeg says, or "".
    """

    kind: FlawKind
    first: int
    text: str
    last: int
    error: str = ""


class Decoding:
    """Iterates once over the frames of a video, as (number, frame), and over its flaws, as they show.

    Frames come in the order in which they are shown. One that is corrupt comes after its flaw; one of another size
    does not come. Frames before `key` are left out.
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
          video: with an index, frames are numbered by their time stamps; without one, or where the index has no time
            stamps, they are counted.
          threads: threads of the decoder; 0 lets FFmpeg choose.
          is_stopped: asked for every packet whether to raise `Stopped`.
          key: number of the frame where decoding begins: one that `key_frames.key_frame_before` gave, or 0.
          end: number of the frame at which the iteration ends; None reads to the end of the file.
        """
        self._video, self._threads, self._is_stopped = video, threads, is_stopped
        self._index = video if isinstance(video, VideoIndex) and video.times else None
        self._key, self._end = key, end
        self._walk = PacketWalk(video.path)

    @property
    def unshown(self) -> int:
        """Frames so far, counted from the start, that the file announces but never shows."""
        return self._walk.unshown

    def __iter__(self) -> Iterator[tuple[int, VideoFrame] | Flaw]:
        # Frames come in the order in which they are shown: when a later one comes, those in between are lost.
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
                yield _flaw(FlawKind.FAILED, number, "is marked as a key frame, but is none")
            yield number, frame
        if self._end is not None and next_number < self._end:
            yield _missing(next_number, self._end - 1)

    def _numbered(self) -> Iterator[tuple[int, VideoFrame] | Flaw]:
        """Yields decoded frames with their numbers, and flaws of packets; the first frames may lie before the key."""
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
                    # Nothing before the key frame is wanted.
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
            # The file breaks off, can no longer be opened, or was replaced.
            yield _flaw(FlawKind.FAILED, number + 1, "cannot be read", _text(error))

    def _packets(self) -> Iterator[Packet]:
        return self._walk.packets(self._threads, *(self._index.begins_before(self._key) if self._index else ([], 0)))


def _missing(first: int, last: int) -> Flaw:
    return Flaw(FlawKind.LOST, first, f"frame {first} is missing", last)


def _flaw(kind: FlawKind, number: int, text: str, error: str = "") -> Flaw:
    return Flaw(kind, number, f"frame {number} {text}" + (f" ({error})" if error else ""), number, error)


def _text(error: FFmpegError | ValueError) -> str:
    return (isinstance(error, FFmpegError) and error.strerror) or str(error)
