"""Reads the properties of a video file from header and packets; decodes only the first frame."""

import contextlib
import dataclasses
import re
from pathlib import Path

import av
import cv2
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream

from jaxpose.errors import UserError
from jaxpose.video import containers, packets
from jaxpose.video.packets import Packets, open_video, read_packets, video_stream

# Videos of more than 8 bits per channel: pixels are the upper 8 bits, by the depth stated in the file.

# A 16-bit format may hold values with fewer bits; FFmpeg does not know.
_UNKNOWN_BITS = 16
# Between a black frame and a frame that uses more than 12 bits; colours are rounded.
_BLACK, _NEARLY_BLACK = 2**8, 2**12 + 64


def bits_of(frame: VideoFrame) -> int:
    """Returns the bits per channel of a decoded frame."""
    return max(component.bits for component in frame.format.components)


def is_nearly_black(frame: VideoFrame) -> bool:
    """Returns whether a frame of a 16-bit format uses 12 bits or fewer, so that its upper 8 bits look black."""
    if bits_of(frame) != _UNKNOWN_BITS:
        return False
    return _BLACK <= int(frame.reformat(format="rgb48le").to_ndarray().max()) < _NEARLY_BLACK


def describe_depth(path: object, bits: int) -> str:
    """Returns a sentence about a video of more than 8 bits, or ""."""
    return f"{path}: of its {bits} bits per channel, the upper 8 are used" if bits > 8 else ""


# From this many frames on, an AVI file's index shows how many places each frame has.
_FEWEST_STEPS = 8

# FFmpeg's names of containers that may state a duration but no frame count.
_DURATION_FORMATS = ("matroska", "flv", "asf")

# By number of clockwise quarter turns.
TURNS = (-1, cv2.ROTATE_90_CLOCKWISE, cv2.ROTATE_180, cv2.ROTATE_90_COUNTERCLOCKWISE)


@dataclasses.dataclass(frozen=True)
class Video:
    """Properties of a video file.

    Attributes:
      path: the file.
      width_px, height_px: size of frames as read, after the quarter turns.
      fps: mean frames per second, 0 if unknown.
      announced_frames: the container's frame count; without it, the number of packets in the file plus those missing up
        to the stated duration.
      quarter_turns: clockwise rotation of a stored frame when read, 0 to 3.
      places_per_frame: 2 in an AVI file that counts two places for each frame and leaves one empty, otherwise 1.
      bits: per channel, from the first frame that decodes.
      states_length: whether the file states its frame count, its duration, or the positions of all parts. Others (MPEG
        transport and program streams, raw streams, live WebM) may lack frames without a sign.
    """

    path: Path
    width_px: int
    height_px: int
    fps: float
    announced_frames: int
    quarter_turns: int = 0
    places_per_frame: int = 1
    bits: int = 8
    states_length: bool = True

    @property
    def expected_frames(self) -> int:
        """The announced frames without the places left empty by `places_per_frame`."""
        return -(-self.announced_frames // self.places_per_frame)


def scan(path: Path) -> Video:
    """Returns the properties of a video file; reads no more than necessary and decodes one frame.

    Applies the rotation in the file; for exceptions, see `index.as_labelled`.

    Raises:
      UserError: the file is missing or empty, is not a video, has no video stream or no frames, or holds 12-bit values
        in a 16-bit format.
    """
    return scan_packets(path, all_packets=False)[0]


def scan_packets(path: Path, all_packets: bool = True) -> tuple[Video, Packets]:
    """Returns the properties and packets of a video file.

    Args:
      path: the file.
      all_packets: reads all packets even if the file announces their number.

    Raises:
      UserError: as `scan`.
    """
    if not path.is_file():
        raise UserError(f"{path} is not a file")
    if not path.stat().st_size:
        raise UserError(f"{path} is empty")
    try:
        with open_video(path) as container:
            stream = video_stream(container, path)
            packets = read_packets(path, container, stream, all_packets or not stream.frames)
            # A truncated file may keep a count without any packets.
            announced = (stream.frames or _announced(packets, container, stream)) if packets.times else 0
            width, height, rate = stream.width, stream.height, stream.average_rate
            first = _first_frame(container, stream)
            turns, bits, is_black = (
                (_noted_quarter_turns(first), bits_of(first), is_nearly_black(first)) if first else (0, 8, False)
            )
            places = _places_per_frame(container, stream)
            states_length = _states_length(path, container, stream)
    except FFmpegError as error:
        raise UserError(f"{path} is not a readable video: {error.strerror}") from None
    if not announced or not width or not height:
        raise UserError(f"{path} has no video frames")
    if is_black:
        raise UserError(
            f"{path} has a format of {bits} bits per channel, but its first frame uses only 12 or fewer, so all would "
            "be nearly black: save it with 8 bits, or in a format with only the bits that it uses"
        )
    fps = float(rate or 0) / places
    return Video(
        path, *turned_size_px(width, height, turns), fps, announced, turns, places, bits, states_length
    ), packets


def file_damage(path: Path, unshown: int) -> tuple[str, bool]:
    """Returns a clause about damage visible without decoding, and whether the file is truncated.

    Does not check the frame count. The clause is "" without visible damage, or if the file was deleted in the meantime.
    See `containers` and `packets` for the checks.

    Args:
      path: the file.
      unshown: number of frames that the file announces but never shows, from `PacketWalk.unshown`.
    """
    if not path.exists():
        return "", False
    if false := packets.find_false_entry(path):
        return false, False
    clause, breaks_off = containers.find_matroska_damage(path)
    return (clause, breaks_off) if clause else containers.find_mp4_damage(path, unshown)


def to_rgb(frame: VideoFrame, converter: VideoReformatter, quarter_turns: int = 0) -> np.ndarray:
    """Returns a frame as (height, width, 3) uint8 RGB.

    Args:
      frame: as decoded.
      converter: shared by a video's frames, because creating one costs as much as decoding a frame.
      quarter_turns: clockwise, 0 to 3.
    """
    # More threads cost more than they gain.
    image = converter.reformat(frame, format="rgb24", threads=1).to_ndarray()
    return cv2.rotate(image, TURNS[quarter_turns]) if quarter_turns else image


def turned_size_px(width_px: int, height_px: int, quarter_turns: int) -> tuple[int, int]:
    """Returns (width, height) of a frame after quarter turns."""
    return (height_px, width_px) if quarter_turns % 2 else (width_px, height_px)


def _first_frame(container: InputContainer, stream: VideoStream) -> VideoFrame | None:
    """Returns the first frame that decodes, or None: FFmpeg reports a rotation only with a frame."""
    with contextlib.suppress(FFmpegError):
        container.seek(0, stream=stream)
        for packet in container.demux(stream):
            # Earlier frames are damaged.
            with contextlib.suppress(FFmpegError):
                for frame in packet.decode():
                    return frame
    return None


def _noted_quarter_turns(frame: VideoFrame) -> int:
    """Returns the clockwise quarter turns that turn a frame upright."""
    turns, rest = divmod(-frame.rotation, 90)
    return 0 if rest else turns % 4


def _places_per_frame(container: InputContainer, stream: VideoStream) -> int:
    """Returns `Video.places_per_frame` from an AVI file's index: FFmpeg numbers its places, not its frames."""
    if container.format.name != "avi":
        return 1
    steps = np.diff([entry.timestamp for entry in stream.index_entries])
    if len(steps) < _FEWEST_STEPS:
        return 1
    places = int(np.gcd.reduce(steps))
    # If frames came rarely, most steps are longer than their common divisor.
    return places if np.median(steps) == places else 1


def _announced(packets: Packets, container: InputContainer, stream: VideoStream) -> int:
    """Returns the number of packets plus those missing up to the stated duration."""
    count = len(packets.times) + packets.unshown
    times = [time for time in packets.times if time is not None]
    if len(times) < 2 or not stream.time_base:
        return count
    step_s = float((max(times) - min(times)) * stream.time_base) / (len(times) - 1)
    if len(container.streams) == 1:
        # Most Matroska writers store the end of the last frame here, others its distance from the first frame's start.
        # Read as the end, it never announces a frame that did not exist.
        first_s = max(0.0, float(min(times) * stream.time_base))
        lacking_s = (container.duration or 0) / av.time_base - first_s - len(times) * step_s
    else:
        # The file's duration is its longest stream's. Matroska also stores the end of each stream.
        lacking_s = _noted_end_s(stream) - float(max(times) * stream.time_base) - step_s
    # Timestamps are rounded, and the last frame may be shown for longer.
    return count + (round(lacking_s / step_s) if lacking_s > 2 * step_s > 0 else 0)


def _states_length(path: Path, container: InputContainer, stream: VideoStream) -> bool:
    """Returns `Video.states_length`; FFmpeg measures a duration if the file states none."""
    if stream.frames:
        return True
    if "mov" in container.format.name:
        return containers.lists_fragments(path)
    has_duration = any(name in container.format.name for name in _DURATION_FORMATS)
    return has_duration and bool(container.duration if len(container.streams) == 1 else _noted_end_s(stream))


def _noted_end_s(stream: VideoStream) -> float:
    """Returns the end time of a Matroska stream (00:01:02.500000000), 0 if not stored."""
    match = re.fullmatch(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)", stream.metadata.get("DURATION", ""))
    return int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3]) if match else 0.0
