"""Decodes a range of a video's frames, from the key frame before it on, and says which of them cannot be relied on.

Which frames come out, and which are damaged, depends on the file and on the frame alone, not on the range that is asked
for: the decoder starts anew at the same key frames in every case, and has one thread, for what decoders make of damage
depends on their number.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream

from jaxpose.data.images import fit_image
from jaxpose.data.video_file import open_video, to_rgb, video_stream
from jaxpose.data.video_index import VideoIndex


@dataclasses.dataclass(frozen=True)
class Damage:
    """Frames `first` to `last` of a video that cannot be used, and the reason."""

    first: int
    last: int
    reason: str


class Stopped(Exception):
    """The reading was told to stop, whatever is left of the range."""


class RangeReader:
    """Iterates once over the frames [first, end) of a video that decode: (number, (height, width, 3) uint8 RGB).

    The numbers ascend. Frames that `damage` names may come or be left out. Once `is_stopped` returns true, it raises
    `Stopped`: before the frames of a range may come an hour of others.

    Attributes:
      damage: after the iteration, the frames of the range that cannot be relied on (and some beside it): those that the
        decoder lost, refused or mended, each with all up to the next key frame, which may be built on it.
      decoded_frames: frames that were decoded so far, those before the range included.
    """

    def __init__(
        self,
        index: VideoIndex,
        first: int,
        end: int,
        input_from_frame: np.ndarray,
        size_px: tuple[int, int],
        is_stopped: Callable[[], bool] = lambda: False,
        crop_px: tuple[int, ...] = (),
    ):
        self.damage: list[Damage] = []
        self.decoded_frames = 0
        self._index, self._first, self._end = index, first, end
        self._input_from_frame, self._size_px, self._crop_px = input_from_frame, size_px, crop_px
        self._is_stopped = is_stopped
        self._converter = VideoReformatter()

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        starts = [*self._index.segments, self._index.frame_count]
        for start, end in itertools.pairwise(starts[bisect.bisect_right(starts, self._first) - 1 :]):
            if start >= self._end:
                return
            # Frames come in the order in which they are shown: once a later one is there, what is lacking is lost.
            next_number, end = start, min(end, self._end)
            for number, frame in self._numbered(start):
                if number >= end:
                    break
                if number < next_number:
                    continue
                if number > next_number:
                    self._note(next_number, "is missing", number - 1)
                next_number = number + 1
                if (frame.width, frame.height) != (self._index.width_px, self._index.height_px):
                    self._note(number, f"has {frame.width} x {frame.height} pixels")
                    continue
                if frame.is_corrupt:
                    self._note(number, "is damaged")
                if number >= self._first:
                    image = to_rgb(frame, self._converter)
                    yield number, fit_image(image, self._input_from_frame, self._size_px, self._crop_px)
            if next_number < end:
                self._note(next_number, "is missing", end - 1)

    def _numbered(self, start: int) -> Iterator[tuple[int, VideoFrame]]:
        """Yields decoded frames and their numbers, from a key frame on; the first ones may lie before it."""
        number = start - 1
        try:
            for packet in packets_from(self._index, start, 1):
                if self._is_stopped():
                    raise Stopped
                damaged = self._index.number_of(packet.pts) if packet.is_corrupt else None
                if damaged is not None and damaged >= start:
                    self._note(damaged, "is damaged")
                try:
                    frames = packet.decode()
                except FFmpegError as error:
                    failed = self._index.number_of(packet.pts)
                    failed = number + 1 if failed is None else failed
                    # What lies before the key frame belongs to the segment before.
                    if failed >= start:
                        self._note(failed, f"does not decode ({_text(error)})")
                    if not self._index.times:
                        return
                    continue
                for frame in frames:
                    self.decoded_frames += 1
                    found = self._index.number_of(frame.pts) if self._index.times else number + 1
                    if found is not None:
                        number = found
                        yield number, frame
        except (FFmpegError, ValueError) as error:
            # The file breaks off, can no longer be opened, or is another one by now.
            self._note(number + 1, f"cannot be read ({_text(error)})")

    def _note(self, first: int, what: str, last: int = -1) -> None:
        """Notes a frame, or all up to `last`, and those that may be built on it."""
        keys = [*self._index.key_frames, self._index.frame_count]
        next_key = bisect.bisect_right(keys, max(first, last))
        until = keys[next_key] - 1 if next_key < len(keys) else first
        self.damage.append(Damage(first, until, f"frame {first} {what}"))


def packets_from(index: VideoIndex, number: int, threads: int) -> Iterator[Packet]:
    """Yields the packets from the key frame of a frame, or from an earlier place, to the end of the file.

    Args:
      index: of the video; without time stamps all packets come.
      number: of the frame.
      threads: of the decoder; 0 = as many as it likes.

    Raises:
      FFmpegError: the file is not there or cannot be read.
      ValueError: it is no video by now.
    """
    keys = index.key_times
    # Containers without a table of key frames may lead to a later one: then one further back is tried.
    at, back = bisect.bisect_right(keys, index.times[number]) - 1 if number and index.times else -1, 1
    if at >= 0:
        with open_video(index.path) as container:
            stream = _stream(container, index, threads)
            while at >= 0:
                container.seek(keys[at], stream=stream)
                packets = container.demux(stream)
                head = next(packets)
                if head.pts is not None and head.pts <= index.times[number]:
                    yield head
                    yield from packets
                    return
                at, back = at - back, 2 * back
    # The start of the file is always there.
    with open_video(index.path) as container:
        yield from container.demux(_stream(container, index, threads))


def _stream(container: InputContainer, index: VideoIndex, threads: int) -> VideoStream:
    stream = video_stream(container, index.path)
    if threads:
        stream.codec_context.thread_count = threads
    else:
        stream.thread_type = "AUTO"
    return stream


def _text(error: FFmpegError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, FFmpegError) else str(error)
