"""Decodes whole videos once, in order, into memory-mapped files in the cache folder.

Input: a `VideoIndex` and the affine that fits frames into the input. Output: the frames and the damage.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import numpy as np

from jaxpose import cache
from jaxpose.geometry import FIT_VERSION
from jaxpose.progress import phase
from jaxpose.video.decoding import Damage, RangeReader
from jaxpose.video.index import VideoIndex

# Part of the key of cached videos: increase it when the decoded frames change.
_VERSION = 2
_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class DecodedFrames:
    """Frames of a video in display order.

    Attributes:
      first: number of the first frame.
      pixels: (n, height, width, 3) uint8 RGB, read-only; undefined in damaged frames.
      damage: the unusable frames.
    """

    first: int
    pixels: np.ndarray
    damage: list[Damage]


def open_whole(
    index: VideoIndex,
    input_from_frame: np.ndarray,
    size_px: tuple[int, int],
    folder: Path | None,
    limit_gib: float,
    is_stopped: Callable[[], bool],
    crop_px: tuple[int, ...] | np.ndarray = (),
) -> DecodedFrames:
    """Returns all frames of a video from the cache folder; decodes them into it first if necessary.

    Several processes may decode the same video at the same time: each writes to its own file.

    Args:
      index: the video.
      input_from_frame: affine (2, 3), frame pixels to input pixels; (n, 2, 3) if each frame has its own.
      size_px: (width, height) of the input.
      folder: the cache folder; None = the default.
      limit_gib: maximum size of the cache folder; removes the least recently used entries.
      is_stopped: called for every packet; True raises `Stopped` and leaves nothing of the entry.
      crop_px: (x, y, width, height) in frame pixels, black outside; () for the whole frame; (n, 4) if each frame has
        its own.

    Raises:
      OSError: the cache folder cannot be written.
      Stopped: `is_stopped` returned true.
    """
    shape = (index.frame_count, size_px[1], size_px[0], 3)
    digest = hashlib.sha256(
        repr(
            (
                _VERSION,
                FIT_VERSION,
                index.identity,
                index.quarter_turns,
                shape,
                tuple(np.ravel(crop_px).tolist()),
                sorted(av.library_versions.items()),
            )  # fmt: skip
        ).encode()
    )
    digest.update(np.ascontiguousarray(input_from_frame, "<f8").tobytes())
    key = digest.hexdigest()
    # The note is written first.
    pixels, note = cache.open_cached(key, shape, folder), cache.read_note(key, folder)
    if pixels is None or note is None:
        _logger.info("decodes %s, %d frames, into %s", index.path, index.frame_count, folder or cache.cache_folder())
        reader = RangeReader(index, 0, index.frame_count, input_from_frame, size_px, is_stopped, crop_px)
        cache.store(key, shape, _all_frames(index, reader, size_px, key, folder), limit_gib, folder)
        pixels, note = cache.open_cached(key, shape, folder), cache.read_note(key, folder)
    if pixels is None or note is None:
        raise OSError(f"the frames of {index.path} written to {folder or cache.cache_folder()} cannot be read back")
    return DecodedFrames(0, pixels, [Damage(**damage) for damage in note])


def _all_frames(
    index: VideoIndex, reader: RangeReader, size_px: tuple[int, int], key: str, folder: Path | None
) -> Iterator[np.ndarray]:
    """Yields a frame for each number (black if missing), then writes the damage note."""
    black = np.zeros((size_px[1], size_px[0], 3), np.uint8)
    number = 0
    with phase(f"decoding {index.path.name}", index.frame_count, "frame") as progress:
        for found, image in reader:
            for _ in range(number, found):
                yield black
            yield image
            progress.update(found + 1 - number)
            number = found + 1
        for _ in range(number, index.frame_count):
            yield black
    cache.write_note(key, [dataclasses.asdict(damage) for damage in reader.damage], folder)


def decode_part(
    index: VideoIndex,
    first: int,
    end: int,
    input_from_frame: np.ndarray,
    size_px: tuple[int, int],
    is_stopped: Callable[[], bool],
    crop_px: tuple[int, ...] | np.ndarray = (),
) -> tuple[DecodedFrames, int]:
    """Returns the frames [first, end) of a video, and the number of frames decoded for them.

    Args:
      index: the video.
      first, end: frame numbers.
      input_from_frame: as in `open_whole`.
      size_px: (width, height) of the input.
      is_stopped: called for every packet; True raises `Stopped`.
      crop_px: as in `open_whole`.

    Raises:
      Stopped: `is_stopped` returned true.
    """
    reader = RangeReader(index, first, end, input_from_frame, size_px, is_stopped, crop_px)
    pixels = np.zeros((end - first, size_px[1], size_px[0], 3), np.uint8)
    for number, image in reader:
        pixels[number - first] = image
    return DecodedFrames(first, pixels, reader.damage), reader.decoded_frames
