"""The index of a video file: the time of each frame, the key frames, and the rotation to apply.

Reading it decodes at most one frame. The cache folder keeps it until the file changes.
"""

import bisect
import contextlib
import dataclasses
import functools
import hashlib
import logging
import threading
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import av
import numpy as np
from av.error import FFmpegError
from av.video.reformatter import VideoReformatter

from jaxpose import cache
from jaxpose.config import DataConfig
from jaxpose.errors import UserError
from jaxpose.terminal import count as count_of
from jaxpose.video.file import Video, file_damage, scan_packets, to_rgb, turned_size_px
from jaxpose.video.packets import Packets, PacketWalk

# Part of an index's key: increase it when the content of indexes changes.
_VERSION = 8
_SAMPLE_BYTES = 2**16
# MPEG program streams stamp only some packets, and not always the same ones after a seek.
_UNTIMED_FORMATS = ("mpeg",)
# A constant rate has at least this share of equal steps between frames and at most this share of gaps; otherwise the
# rate is variable.
_STEADY, _RARE = 0.9, 0.01
# A step of at least this many normal steps is a gap; a shorter step only if it is a whole number of them within this
# tolerance.
_LONG_STEPS, _FRACTION = 8, 0.1
_LISTED_FRAMES = 5
# FFmpeg's names of containers that store the time of each frame; others store only the frame order.
_TIMED_FORMATS = ("mov", "matroska", "mpegts", "flv")


@dataclasses.dataclass(frozen=True)
class VideoIndex:
    """The frames of a video file.

    As in prediction, frame numbers start at 0 in display order.

    Attributes:
      path: the file.
      identity: identifies the content that the index was read from.
      width_px, height_px: size of frames as read, after the quarter turns.
      quarter_turns: clockwise rotation of a stored frame when read, 0 to 3.
      fps: mean frames per second, 0 if unknown.
      announced_frames: number of frames that the file states.
      frame_count: number of frames in the file; if truncated, only those with a certain number.
      times: the timestamp of each frame, ascending, in stream units; empty if the file stores no reliable timestamps:
        it is then decoded from its start, and frames are counted.
      key_times: the timestamps of key frames, ascending; empty if `times` is.
      leaps: numbers of frames before which others are lost, according to the timestamps of a constant-rate video.
      lost: number of frames lost before each leap, by the usual step between frames.
      is_damaged: whether the file holds another number of frames than it announces, or shows damage.
      problem: a sentence about all problems of the file that are visible without decoding, or "".
    """

    path: Path
    identity: str
    width_px: int
    height_px: int
    quarter_turns: int
    fps: float
    announced_frames: int
    frame_count: int
    times: list[int]
    key_times: list[int]
    leaps: list[int]
    lost: list[int]
    is_damaged: bool
    problem: str

    @property
    def gaps(self) -> str:
        """The first gaps in the timestamps: "7 frames before frame 100, ..."; "" without gaps."""
        return _gaps(self.leaps, self.lost)

    @functools.cached_property
    def key_frames(self) -> list[int]:
        """Numbers of the frames that the file marks as key frames, ascending; the first is 0.

        `can_begin_at_key_frames` checks whether decoding can start there.
        """
        numbers = {bisect.bisect_left(self.times, time) for time in self.key_times}
        return sorted({0} | {number for number in numbers if number < self.frame_count})

    def number_of(self, time: int | None) -> int | None:
        """Returns the frame number for a timestamp, or None."""
        if time is None:
            return None
        number = bisect.bisect_left(self.times, time)
        return number if number < len(self.times) and self.times[number] == time else None

    def begins_before(self, key: int) -> tuple[list[int], int]:
        """Returns where decoding may start for a key frame: the timestamps of key frames up to it, and its own.

        Frame 0 has none: decoding starts at the start of the file, also if `times` is empty.
        """
        if not key or not self.times:
            return [], 0
        until = self.times[key]
        return self.key_times[: bisect.bisect_right(self.key_times, until)], until


def read_index(path: Path) -> VideoIndex:
    """Returns the index of a video file from the cache folder; makes and caches it if missing.

    Raises:
      UserError: the file is missing or empty, is not a video, or has no video stream or no frames.
    """
    if not path.is_file():
        raise UserError(f"{path} is not a file")
    identity = _identity(path)
    kept = cache.read_note(identity)
    if kept is None:
        kept = _make_index(path)
        # On failure, it is made again next time.
        with contextlib.suppress(OSError):
            cache.write_note(identity, kept)
    return VideoIndex(path=path, identity=identity, **kept)


def is_unchanged(index: VideoIndex) -> bool:
    """Returns whether an index's file is unchanged."""
    try:
        return _identity(index.path) == index.identity
    except OSError:
        return False


def ends_checksum(path: Path) -> str:
    """Returns the hexadecimal SHA-256 of both ends of a file; reading hours of video would take minutes."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        digest.update(stream.read(_SAMPLE_BYTES))
        stream.seek(max(0, path.stat().st_size - _SAMPLE_BYTES))
        digest.update(stream.read())
    return digest.hexdigest()


def _identity(path: Path) -> str:
    """Returns a hash that changes with the file: of its size, modification time and both ends of its content."""
    status = path.stat()
    known = (_VERSION, av.library_versions["libavformat"], status.st_size, status.st_mtime_ns, ends_checksum(path))
    return hashlib.sha256(repr(known).encode()).hexdigest()


def _make_index(path: Path) -> dict[str, Any]:
    video, packets = scan_packets(path)
    count, announced = len(packets.times), video.announced_frames - packets.unshown
    problem, breaks_off = "", True
    if packets.stopped:
        problem = f"{path}: reading stopped after {count} of {announced} frames: {packets.stopped}"
    elif count != announced:
        problem = f"{path}: the file states {announced} frames, but holds {count}"
    else:
        lack, breaks_off = file_damage(path, packets.unshown)
        problem = f"{path}: {lack}, with {count} frames" if lack else ""
    stores_times = any(name in packets.container for name in _TIMED_FORMATS)
    times = _times(packets, stores_times)
    if problem and not stores_times:
        # Counted timestamps depend on the frames lost before them.
        times = []
    if problem and breaks_off:
        # In a truncated file, frames between the last ones may be lost, so the numbers of the last are uncertain.
        end = bisect.bisect_right(times, packets.last_decoded) if packets.last_decoded is not None else len(times)
        times = times[:end]
        count = len(times) or count - packets.reorders
    if count < 1:
        raise UserError(f"{path} has no reliable video frames; {problem}")
    leaps, lost = _leaps(times)
    is_damaged = bool(problem)
    if leaps:
        lack = f"{count_of(sum(lost), 'frame')} lost, by gaps in the time stamps ({_gaps(leaps, lost)})"
        problem = f"{problem}; {lack}" if problem else f"{path}: {lack}"
    return {
        "width_px": video.width_px,
        "height_px": video.height_px,
        "quarter_turns": video.quarter_turns,
        "fps": video.fps,
        "announced_frames": announced,
        "frame_count": count,
        "times": times,
        "key_times": sorted(time for time in packets.key_times if time is not None) if times else [],
        "leaps": leaps,
        "lost": lost,
        "is_damaged": is_damaged,
        "problem": problem,
    }


def _times(packets: Packets, stores_times: bool) -> list[int]:
    """Returns the ascending timestamps of all frames, or [] if unreliable."""
    stamps = [time for time in packets.times if time is not None]
    times = sorted(set(stamps))
    # If frames may be reordered, ascending timestamps in file order are made up unless the container stores times.
    is_made_up = packets.reorders and times == stamps and not stores_times
    return [] if len(times) != len(packets.times) or is_made_up or packets.container in _UNTIMED_FORMATS else times


def _gaps(leaps: list[int], lost: list[int]) -> str:
    shown = [f"{count_of(n, 'frame')} before frame {leap}" for leap, n in zip(leaps, lost, strict=True)]
    return ", ".join(shown[:_LISTED_FRAMES]) + (", ..." if len(shown) > _LISTED_FRAMES else "")


def _leaps(times: list[int]) -> tuple[list[int], list[int]]:
    """Returns the numbers of frames before which others are lost, and how many before each.

    Lost frames leave rare gaps of whole frames in a constant rate. Late frames of a variable rate are frequent or
    irregular.
    """
    steps = np.diff(np.array(times, np.int64))
    if len(steps) < 2:
        return [], []
    # Timestamps may be rounded to a unit.
    usual = np.median(steps)
    is_late = steps > np.maximum(1.75 * usual, usual + 2)
    is_usual = np.abs(steps - usual) <= np.maximum(0.25 * usual, 1)
    if is_usual.mean() < _STEADY or is_late.sum() > max(1, _RARE * len(steps)):
        return [], []
    step = steps[is_usual].mean()
    count = steps / step
    is_whole = np.abs(count - np.round(count)) <= max(_FRACTION, 1.5 / step)
    before = np.flatnonzero(is_late & (is_whole | (count >= _LONG_STEPS)))
    return (before + 1).tolist(), np.maximum(np.round(count[before]).astype(int) - 1, 1).tolist()


# Decides where decoding of a video may start: at its start, and at its key frames if they pass a check.
#
# A frame that the container marks as a key frame may not be one. With intra refresh the image is complete only some
# frames later, some files mark other frames as key frames, and some decoders need information from the first packet.

# Part of the note's key: increase it when the check changes.
_CHECK_VERSION = 1
# Number of frames compared after each checked key frame.
_COMPARED_FRAMES = 64
_checking = threading.Lock()
_logger = logging.getLogger(__name__)


class Stopped(Exception):
    """Reading was stopped on request before the end."""


def can_begin_at_key_frames(index: VideoIndex, is_stopped: Callable[[], bool] = lambda: False) -> bool:
    """Returns whether decoding from key frames gives the same frames as decoding from the start.

    Checks the first and second key frames after the start, the middle one and the last: decoding from them, and from
    the key frame before (for the first two: from the start), must give the same frames. The cache folder keeps the
    result, so each video is checked once.

    Args:
      index: of the video.
      is_stopped: called for every packet; True raises `Stopped`.

    Raises:
      Stopped: `is_stopped` returned true.
    """
    keys = index.key_frames
    if len(keys) == 1:
        return False
    known = ("key frames", _CHECK_VERSION, index.identity, av.library_versions["libavcodec"])
    note = hashlib.sha256(repr(known).encode()).hexdigest()
    # Other threads that check the same video wait for the first.
    with _checking:
        kept = cache.read_note(note)
        if not isinstance(kept, bool):
            kept = all(
                _agree(index, keys[place - 1] if place > 2 else 0, keys[place], is_stopped)
                for place in sorted({1, min(2, len(keys) - 1), len(keys) // 2, len(keys) - 1})
            )
            if not kept:
                _logger.info("%s is always decoded from its start: decoding cannot begin at its key frames", index.path)
            # If the file was deleted or replaced in the meantime, the result does not belong to the index.
            if is_unchanged(index):
                with contextlib.suppress(OSError):
                    cache.write_note(note, kept)
    return kept


def key_frame_before(index: VideoIndex, number: int, is_stopped: Callable[[], bool] = lambda: False) -> int:
    """Returns the number of the frame from which decoding reaches a frame: a key frame, or 0 (the start).

    Raises:
      Stopped: `is_stopped` returned true.
    """
    keys = index.key_frames
    key = keys[bisect.bisect_right(keys, number) - 1]
    return key if key and can_begin_at_key_frames(index, is_stopped) else 0


def _agree(index: VideoIndex, before: int, key: int, is_stopped: Callable[[], bool]) -> bool:
    """Returns whether decoding from a key frame and an earlier one gives the same frames."""
    end = min(key + _COMPARED_FRAMES, index.frame_count)
    reference = _sums(index, before, key, end, is_stopped)
    return bool(reference) and _sums(index, key, key, end, is_stopped)[: len(reference)] == reference


def _sums(index: VideoIndex, begin: int, first: int, end: int, is_stopped: Callable[[], bool]) -> list[tuple[int, int]]:
    """Returns (number, checksum) of the frames [first, end), up to the first damaged or missing frame."""
    sums: list[tuple[int, int]] = []
    converter = VideoReformatter()
    with contextlib.suppress(FFmpegError, ValueError):
        for packet in PacketWalk(index.path).packets(1, *index.begins_before(begin)):
            if is_stopped():
                raise Stopped
            for frame in packet.decode():
                number = index.number_of(frame.pts)
                if number is None or number < first:
                    continue
                if number == end or frame.is_corrupt or number != first + len(sums):
                    return sums
                sums.append((number, zlib.crc32(to_rgb(frame, converter).tobytes())))
    return sums


# Decides from the labelled images whether to apply the rotation in a video file.
#
# Label tools that read videos with OpenCV extract upright frames; others use the stored frames. Input: a video and the
# sizes of labelled images. Output: the video with the rotation to apply.

AnyVideo = TypeVar("AnyVideo", Video, VideoIndex)
Sizes = Collection[tuple[int, int]]


def labelled_sizes_px(data: DataConfig) -> set[tuple[int, int]]:
    """Returns the sizes (width, height) of a run's labelled images."""
    return set(zip(data.frame_sizes_px[::2], data.frame_sizes_px[1::2], strict=True))


def as_labelled(video: AnyVideo, sizes_px: Sizes) -> AnyVideo:
    """Returns a video with frames oriented like the labelled images.

    Ignores the rotation in the file if labelled images have the size of the stored frames and none has the upright
    size. Otherwise applies it, also to half turns and square frames, which keep their size.

    Args:
      video: from `scan` or `read_index`, with its rotation applied.
      sizes_px: (width, height) of labelled images.
    """
    stored = turned_size_px(video.width_px, video.height_px, video.quarter_turns)
    if not video.quarter_turns or stored not in sizes_px or (video.width_px, video.height_px) in sizes_px:
        return video
    return dataclasses.replace(video, width_px=stored[0], height_px=stored[1], quarter_turns=0)


def describe_rotation(video: AnyVideo, sizes_px: Sizes) -> str:
    """Returns a sentence about the rotation in a video file, "" without one; arguments as above."""
    if not video.quarter_turns:
        return ""
    shown = as_labelled(video, sizes_px)
    noted = f"{video.path}: the file stores a rotation by {90 * video.quarter_turns} degrees clockwise"
    size = f"{shown.width_px} x {shown.height_px} px"
    if not shown.quarter_turns:
        return f"{noted}; it is not applied, because the labelled images have the size of the stored frames, {size}"
    stored = turned_size_px(video.width_px, video.height_px, video.quarter_turns)
    if (shown.width_px, shown.height_px) in sizes_px and stored not in sizes_px:
        return f"{noted}; it is applied, because the labelled images have the size of the upright frames, {size}"
    return (
        f"{noted}; it is applied, so frames are {size}, because the sizes of the labelled images do not decide the "
        "matter"
    )
