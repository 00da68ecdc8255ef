"""Walks through the packets of a video file to count frames, check key frames and decode."""

import contextlib
import dataclasses
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import av
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.stream import VideoStream

from jaxpose.errors import UserError

# Checks an AVI file's index for empty places at its end, which FFmpeg does not report, and for false entries.

_ENTRY_BYTES = 16


def empty_places_at_end(path: Path, stream: int) -> int:
    """Returns how many frames are left out after a stream's last frame, from the index at the end of an AVI file.

    Recorders write an empty place if the camera gave no new frame, and count it as a frame. A file without this index,
    such as a truncated one, gives 0.

    Args:
      path: the file.
      stream: its number in the file.
    """
    index = _read_index(path)
    entries = [index[at : at + _ENTRY_BYTES] for at in range(0, len(index) - _ENTRY_BYTES + 1, _ENTRY_BYTES)]
    count = 0
    for entry in reversed(entries):
        # A chunk's name begins with its stream number; its length comes last.
        if entry[:2] == b"%02d" % stream:
            if any(entry[12:]):
                return count
            count += 1
    return 0


def find_false_entry(path: Path) -> str:
    """Returns a clause about the first AVI index entry that does not match its target, "" without one.

    If most entries differ, positions are counted in another way, and nothing is known.
    """
    index = _read_index(path)
    entries = [
        entry for entry in struct.iter_unpack("<4sIII", index[: len(index) // 16 * 16]) if entry[0][:2].isdigit()
    ]
    with open(path, "rb") as file:
        if not entries or not (start := _frames_at(file)):
            return ""
        # Positions count from the start of the file, or from the name of the frame list.
        base = 0 if _chunk(file, entries[0][2]) == (entries[0][0], entries[0][3]) else start
        false = [
            number for number, (name, _, at, length) in enumerate(entries) if _chunk(file, base + at) != (name, length)
        ]
    if not false or 2 * len(false) > len(entries):
        return ""
    return f"entry {false[0]} of its index does not match the content of the file there ({len(false)} such entries)"


def _chunk(file: BinaryIO, at: int) -> tuple[bytes, int]:
    """Returns the name and length of the chunk at a position."""
    file.seek(at)
    head = file.read(8)
    return head[:4], int.from_bytes(head[4:], "little")


def _frames_at(file: BinaryIO) -> int:
    """Returns the position of the name of the frame list, 0 without one."""
    at = 12
    while len(head := _head_at(file, at)) == 12:
        if head[:4] == b"LIST" and head[8:] == b"movi":
            return at + 8
        length = int.from_bytes(head[4:8], "little")
        at += 8 + length + length % 2
    return 0


def _head_at(file: BinaryIO, at: int) -> bytes:
    file.seek(at)
    return file.read(12)


def _read_index(path: Path) -> bytes:
    """Returns the content of the chunk idx1, b"" without one."""
    with open(path, "rb") as file:
        if file.read(4) != b"RIFF" or file.seek(8) != 8 or file.read(4) != b"AVI ":
            return b""
        while len(head := file.read(8)) == 8:
            name, length = head[:4], struct.unpack("<I", head[4:])[0]
            if name == b"idx1":
                return file.read(length)
            # Chunks are padded to an even length.
            file.seek(length + length % 2, 1)
    return b""


# Accepts metadata that is not UTF-8. PyAV does so by itself since version 19, and no longer has this argument.
_METADATA: dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}


@dataclasses.dataclass(frozen=True)
class Packets:
    """The packets of a video file, in file order.

    Attributes:
      times: timestamps of the shown packets, in stream units; None if a packet has no timestamp.
      key_times: timestamps of the packets with key frames.
      last_decoded: decoding time of the last packet, None if the file does not store it. Every frame shown up to then
        is before that packet in the file.
      unshown: as `PacketWalk.unshown`.
      container: FFmpeg's name of the container.
      reorders: how many frames may precede an earlier-shown frame in the file.
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
    """Walks through the packets of a video in file order.

    The last packet of a walk is empty: it makes the decoder return the frames that it still holds.

    Attributes:
      unshown: number of frames so far, in a walk from the start, that the file announces but never shows. Frames before
        an edit list's start are only decoded; AVI counts the empty places of left-out frames.
    """

    def __init__(self, path: Path):
        self.unshown = 0
        self._path = path

    def packets(self, threads: int, key_times: Sequence[int] = (), until: int = 0) -> Iterator[Packet]:
        """Opens the file and yields its packets in decoding order.

        Args:
          threads: decoder threads; 0 lets FFmpeg choose.
          key_times: ascending timestamps of key frames. The walk starts at the last one that the container can seek to,
            otherwise at the start of the file.
          until: timestamp after which the walk must not start.

        Raises:
          FFmpegError: the file does not exist or cannot be read.
          UserError: the file is no longer a video.
        """
        if key_times:
            with open_video(self._path) as container:
                stream = _stream(container, self._path, threads)
                _show_first_packet(container, stream)
                # Containers without a key frame table may seek to a later frame: then try further back.
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
        """Yields the packets of a freshly opened file, and counts `unshown`."""
        last_decoded = None
        for packet in container.demux(stream):
            if packet.size:
                self.unshown += _unshown(packet, last_decoded, container.format.name)
                last_decoded = packet.dts
            yield packet
        if container.format.name == "avi":
            self.unshown += empty_places_at_end(self._path, stream.index)


def read_packets(path: Path, container: InputContainer, stream: VideoStream, all_packets: bool) -> Packets:
    """Returns the packets of a freshly opened file, all of them or only up to the first shown packet.

    Raises:
      FFmpegError: not even the first packet can be read.
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
      UserError: there is none, or its codec is unknown.
    """
    stream = container.streams.best("video")
    if not isinstance(stream, VideoStream):
        raise UserError(f"{path} has no video stream")
    # None if FFmpeg does not know the codec, despite the type.
    if stream.codec_context is None:
        raise UserError(f"{path} has a video stream of an unknown codec")
    return stream


def _not_empty(packets: Iterable[Packet]) -> Iterator[Packet]:
    return (packet for packet in packets if packet.size)


def _unshown(packet: Packet, last_decoded: int | None, container: str) -> int:
    """Returns how many frames between the previous packet and this one the file announces but never shows.

    Args:
      packet: not empty.
      last_decoded: decoding time of the previous packet, None for the first.
      container: FFmpeg's name of the container.
    """
    if container == "avi" and packet.dts is not None:
        # AVI stores no times; these count the places.
        return max(packet.dts - (-1 if last_decoded is None else last_decoded) - 1, 0)
    return int(packet.is_discard)


def _show_first_packet(container: InputContainer, stream: VideoStream) -> None:
    """Decodes the first packet: some files name their encoder, and thus its bugs, only there.

    A later seek makes the decoder forget the frame, but not the encoder.
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
