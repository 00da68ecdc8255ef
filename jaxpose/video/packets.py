"""The packets of a video file: the one walk over them, used to count frames, to check key frames and to decode."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import av
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.stream import VideoStream

from jaxpose.errors import UserError
from jaxpose.video.avi import empty_places_at_end

# Metadata that is not UTF-8 is no reason to refuse a video. Since version 19, PyAV accepts it and has no such argument.
_METADATA: dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}


@dataclasses.dataclass(frozen=True)
class Packets:
    """The packets of a video file, in file order.

    Attributes:
      times: time stamps of the shown packets, in units of the stream; None if a packet has no time stamp.
      key_times: time stamps of the packets with key frames.
      last_decoded: decoding time of the last packet, None if the file does not store it. Every frame shown up to
        then lies before that packet in the file.
      unshown: as `PacketWalk.unshown`.
      container: FFmpeg's name of the container.
      reorders: how many frames may come in the file before one that is shown earlier.
      stopped: why reading stopped before the end, or "".
    """

    times: list[int | None]
    key_times: list[int | None]
    last_decoded: int | None
    unshown: int
    container: str
    reorders: int
    stopped: str


class PacketWalk:
    """Walks over the packets of a video in file order.

    The last packet of a walk is empty: it makes the decoder give out the frames that it still holds.

    Attributes:
      unshown: frames passed so far, in a walk from the start, that the file announces but never shows. Frames before
        the start that an edit list sets are decoded only; AVI counts the empty places where a frame was left out.
    """

    def __init__(self, path: Path):
        self.unshown = 0
        self._path = path

    def packets(self, threads: int, key_times: Sequence[int] = (), until: int = 0) -> Iterator[Packet]:
        """Opens the file and yields its packets, to be decoded in order.

        Args:
          threads: threads of the decoder; 0 lets FFmpeg choose.
          key_times: time stamps of key frames, ascending. The walk begins at the last one that the container can seek
            to; without any, or where it can seek to none, at the start of the file.
          until: time stamp after which the walk must not begin.

        Raises:
          FFmpegError: the file does not exist or cannot be read.
          UserError: the file is no longer a video.
        """
        if key_times:
            with open_video(self._path) as container:
                stream = _stream(container, self._path, threads)
                _show_first_packet(container, stream)
                # Containers without a table of key frames may lead to a later one: then try further back.
                at, back = len(key_times) - 1, 1
                while at >= 0:
                    container.seek(key_times[at], stream=stream)
                    packets = container.demux(stream)
                    head = next(packets)
                    if head.pts is not None and head.pts <= until:
                        yield head
                        yield from packets
                        return
                    at, back = at - back, 2 * back
        with open_video(self._path) as container:
            yield from self.of(container, _stream(container, self._path, threads))

    def of(self, container: InputContainer, stream: VideoStream) -> Iterator[Packet]:
        """Yields the packets of a file that was just opened, and counts `unshown`."""
        last_decoded = None
        for packet in container.demux(stream):
            if packet.size:
                self.unshown += _unshown(packet, last_decoded, container.format.name)
                last_decoded = packet.dts
            yield packet
        if container.format.name == "avi":
            self.unshown += empty_places_at_end(self._path, stream.index)


def read_packets(path: Path, container: InputContainer, stream: VideoStream, all_packets: bool) -> Packets:
    """Returns the packets of a file that was just opened, all of them or only up to the first shown one.

    Raises:
      FFmpegError: not even the first one can be read.
    """
    times: list[int | None] = []
    key_times: list[int | None] = []
    walk, last_decoded, stopped = PacketWalk(path), None, ""
    try:
        for packet in _not_empty(walk.of(container, stream)):
            if packet.is_keyframe:
                key_times.append(packet.pts)
            if not packet.is_discard:
                times.append(packet.pts)
                last_decoded = packet.dts
                if not all_packets:
                    break
    except FFmpegError as error:
        if not times:
            raise
        stopped = error.strerror or str(error)
    reorders = int(stream.codec_context.has_b_frames)
    return Packets(times, key_times, last_decoded, walk.unshown, container.format.name, reorders, stopped)


def open_video(path: Path) -> InputContainer:
    """Opens a video file.

    Raises:
      FFmpegError: the file does not exist or cannot be read.
    """
    return av.open(str(path), **_METADATA)


def video_stream(container: InputContainer, path: Path) -> VideoStream:
    """Returns the video stream of an open file.

    Raises:
      UserError: the file has none, or its codec is unknown.
    """
    stream = container.streams.best("video")
    if not isinstance(stream, VideoStream):
        raise UserError(f"{path} has no video stream")
    # None if FFmpeg does not know the codec, although the type says otherwise.
    if stream.codec_context is None:
        raise UserError(f"{path} has a video stream of an unknown codec")
    return stream


def _not_empty(packets: Iterable[Packet]) -> Iterator[Packet]:
    return (packet for packet in packets if packet.size)


def _unshown(packet: Packet, last_decoded: int | None, container: str) -> int:
    """Returns how many frames, from a packet back to the previous one, the file announces but never shows.

    Args:
      packet: one that is not empty.
      last_decoded: decoding time of the previous packet, None for the first one.
      container: FFmpeg's name of the container.
    """
    if container == "avi" and packet.dts is not None:
        # AVI stores no times: these count the places.
        return max(packet.dts - (-1 if last_decoded is None else last_decoded) - 1, 0)
    return int(packet.is_discard)


def _show_first_packet(container: InputContainer, stream: VideoStream) -> None:
    """Decodes the first packet: some files state only there which encoder, with which bugs, wrote them.

    A following seek makes the decoder forget the frame, but not the encoder.
    """
    for packet in container.demux(stream):
        with contextlib.suppress(FFmpegError):
            packet.decode()
        return


def _stream(container: InputContainer, path: Path, threads: int) -> VideoStream:
    stream = video_stream(container, path)
    if threads:
        stream.codec_context.thread_count = threads
    else:
        stream.thread_type = "AUTO"
    return stream
