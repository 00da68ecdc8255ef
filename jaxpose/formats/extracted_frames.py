"""Frames of videos as image files in the cache folder, each decoded once."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from jaxpose import cache
from jaxpose.config import DataConfig
from jaxpose.errors import UserError
from jaxpose.files import open_atomic
from jaxpose.threads import map_in_threads
from jaxpose.video.index import VideoIndex
from jaxpose.video.range import RangeReader
from jaxpose.video.recording import Recording, read_recording

# Part of the names: increase it when the pixels change.
_VERSION = 1


class ExtractedFrames:
    """The image files of the frames of one video: BMP, because its bytes depend on nothing but the pixels."""

    def __init__(self, key: str, data: DataConfig) -> None:
        """Takes a name that is unique for the content of the video, and the limit of the cache folder."""
        digest = hashlib.sha256(f"{_VERSION} {key}".encode()).hexdigest()
        self._folder, self._prefix = cache.cache_folder() / "images", digest[:32]
        self._limit_gib = data.cache_limit_gib

    def path(self, frame: int) -> Path:
        """Returns the file of a frame, which may not exist."""
        return self._folder / f"{self._prefix}-{frame}.bmp"

    def absent(self, frames: Sequence[int]) -> list[int]:
        """Returns the frames that are not there, and marks the others as used now."""
        found = []
        for frame in frames:
            try:
                os.utime(self.path(frame))
            except OSError:
                found.append(frame)
        return found

    def make_room(self, count: int, size_px: tuple[int, int]) -> None:
        """Removes the frames used longest ago, so that `count` frames of (width, height) px can be stored.

        Raises:
          UserError: they alone are above the limit of the cache folder.
        """
        needed = count * (3 * (size_px[0] + 1) * size_px[1] + 64)
        if needed > self._limit_gib * cache.GIB:
            raise UserError(
                f"{count} labelled frames take {needed / cache.GIB:.2f} GiB, above data.cache_limit_gib = "
                f"{self._limit_gib:g}; raise it"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        cache.make_room(self._folder, self._limit_gib * cache.GIB - needed, ".bmp")

    def store(self, frame: int, pixels: np.ndarray) -> Path:
        """Writes a frame (height, width, 3) uint8 RGB, and returns its file.

        Raises:
          OSError: the disk is full.
        """
        content = cv2.imencode(".bmp", cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2BGR))[1].tobytes()
        with open_atomic(self.path(frame), sync=False) as stream:
            stream.write(content)
        return self.path(frame)


def frames_of_video(path: Path, frames: Sequence[int], recording: Recording, data: DataConfig) -> dict[int, Path | str]:
    """Returns {frame: its image file}, or in place of the file the reason why the frame cannot be used.

    Args:
      path: the video.
      frames: numbers from 0 in the order in which frames are shown.
      recording: what the label file says about the video; the size decides whether a rotation is applied.
      data: the limit of the cache folder, and the number of threads.

    Raises:
      UserError: the file is no video, or another recording; the frames are above the limit.
      OSError: the disk is full.
    """
    index = read_recording(path, recording)
    kept = ExtractedFrames(f"{index.identity} {index.quarter_turns}", data)
    absent = kept.absent(frames)
    kept.make_room(len(absent), (index.width_px, index.height_px))
    decoded = map_in_threads(
        lambda frame: _decode(index, frame), absent, data.threads, f"extracting frames of {path.name}"
    )
    reasons: dict[int, str] = {}
    for frame, image in zip(absent, decoded, strict=True):
        if isinstance(image, str):
            reasons[frame] = image
        else:
            kept.store(frame, image)
    return {frame: reasons.get(frame, kept.path(frame)) for frame in frames}


def _decode(index: VideoIndex, frame: int) -> np.ndarray | str:
    if not 0 <= frame < index.frame_count:
        return f"{index.path} has only the frames 0 to {index.frame_count - 1}"
    reader = RangeReader(index, frame, frame + 1, np.eye(2, 3), (index.width_px, index.height_px))
    images = dict(reader)
    reasons = [damage.reason for damage in reader.damage if damage.first <= frame <= damage.last]
    if reasons or frame not in images:
        return f"the frame of {index.path} cannot be decoded" + f": {reasons[0]}" * bool(reasons)
    return images[frame]
