"""Where decoding of a video may begin: at its start, and at its key frames if these have passed a check.

Not every frame that the container calls a key frame is one. With intra refresh the image is complete only some frames
later, some files mark other frames as key frames, and some decoders need information from the first packet.
"""

import bisect
import contextlib
import hashlib
import logging
import threading
import zlib
from collections.abc import Callable

import av
from av.error import FFmpegError
from av.video.reformatter import VideoReformatter

from jaxpose import cache
from jaxpose.video.file import to_rgb
from jaxpose.video.index import VideoIndex, is_unchanged
from jaxpose.video.packets import PacketWalk

# Part of the key of the notes: increase it when the check changes.
_VERSION = 1
# Frames compared after each key frame that is checked.
_COMPARED_FRAMES = 64
_checking = threading.Lock()
_logger = logging.getLogger(__name__)


class Stopped(Exception):
    """Reading was stopped on request before its end."""


def can_begin_at_key_frames(index: VideoIndex, is_stopped: Callable[[], bool] = lambda: False) -> bool:
    """Returns whether decoding that begins at key frames gives the frames that decoding from the start gives.

    The first and second key frame after the start, the middle one and the last one are checked: decoding from them, and
    from the key frame before (for the first two: from the start), must give the same frames. The result is kept in the
    cache folder, so a video is checked once.

    Args:
      index: of the video.
      is_stopped: asked for every packet whether to raise `Stopped`.

    Raises:
      Stopped: `is_stopped` returned true.
    """
    keys = index.key_frames
    if len(keys) == 1:
        return False
    known = ("key frames", _VERSION, index.identity, av.library_versions["libavcodec"])
    note = hashlib.sha256(repr(known).encode()).hexdigest()
    # Threads that ask for the same video wait for the first one.
    with _checking:
        kept = cache.read_note(note)
        if not isinstance(kept, bool):
            kept = all(
                _agree(index, keys[place - 1] if place > 2 else 0, keys[place], is_stopped)
                for place in sorted({1, min(2, len(keys) - 1), len(keys) // 2, len(keys) - 1})
            )
            if not kept:
                _logger.info("%s is always decoded from its start: decoding cannot begin at its key frames", index.path)
            # If the file was deleted or replaced meanwhile, the result is not that of the index.
            if is_unchanged(index):
                with contextlib.suppress(OSError):
                    cache.write_note(note, kept)
    return kept


def key_frame_before(index: VideoIndex, number: int, is_stopped: Callable[[], bool] = lambda: False) -> int:
    """Returns the number of the frame where decoding begins to reach a frame: a key frame, or 0, the start of the file.

    Raises:
      Stopped: `is_stopped` returned true.
    """
    keys = index.key_frames
    key = keys[bisect.bisect_right(keys, number) - 1]
    return key if key and can_begin_at_key_frames(index, is_stopped) else 0


def _agree(index: VideoIndex, before: int, key: int, is_stopped: Callable[[], bool]) -> bool:
    """Returns whether decoding from a key frame and from one before it gives the same frames."""
    end = min(key + _COMPARED_FRAMES, index.frame_count)
    reference = _sums(index, before, key, end, is_stopped)
    return bool(reference) and _sums(index, key, key, end, is_stopped)[: len(reference)] == reference


def _sums(index: VideoIndex, begin: int, first: int, end: int, is_stopped: Callable[[], bool]) -> list[tuple[int, int]]:
    """Returns (number, checksum) of the frames [first, end), up to the first that is damaged or missing."""
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
