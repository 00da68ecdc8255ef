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
_VERSION = 2
# Frames of 8 bits, of 16 bits, of floats, and image files as they were found.
_SUFFIXES = (".bmp", ".ppm", ".pfm", ".png", ".jpg")

# Values (height, width, 3) RGB, uint8, uint16 or float32; or the content of an image file, PNG or JPEG.
Image = np.ndarray | bytes


class ExtractedFrames:
    """The image files of the frames of one video: BMP, because its bytes depend on nothing but the pixels.

    Frames of more than 8 bits keep them all, as PPM or PFM files, whose bytes depend on nothing else either.
    """

    def __init__(self, key: str, data: DataConfig) -> None:
        """Takes a name that is unique for the content of the video, and the limit of the cache folder."""
        digest = hashlib.sha256(f"{_VERSION} {key}".encode()).hexdigest()
        self._folder, self._prefix = cache.cache_folder() / "images", digest[:32]
        self._limit_gib = data.cache_limit_gib

    def path(self, frame: int) -> Path:
        """Returns the file of a frame, which may not exist."""
        files = [self._folder / f"{self._prefix}-{frame}{suffix}" for suffix in _SUFFIXES]
        return next((file for file in files if file.exists()), files[0])

    def absent(self, frames: Sequence[int]) -> list[int]:
        """Returns the frames that are not there, and marks the others as used now."""
        found = []
        for frame in frames:
            try:
                os.utime(self.path(frame))
            except OSError:
                found.append(frame)
        return found

    def make_room(self, count: int, frame_bytes: int) -> None:
        """Removes the frames used longest ago, so that `count` frames of so many bytes can be stored.

        Raises:
          UserError: they alone are above the limit of the cache folder.
        """
        needed = count * frame_bytes
        if needed > self._limit_gib * cache.GIB:
            raise UserError(
                f"{count} labelled frames take {needed / cache.GIB:.2f} GiB, above data.cache_limit_gib = "
                f"{self._limit_gib:g}; raise it"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        cache.make_room(self._folder, self._limit_gib * cache.GIB - needed, _SUFFIXES)

    def store(self, frame: int, image: Image) -> None:
        """Writes a frame.

        Raises:
          OSError: the disk is full.
        """
        content, suffix = _encode(image)
        file = self._folder / f"{self._prefix}-{frame}{suffix}"
        with open_atomic(file, sync=False) as stream:
            stream.write(content)


def image_bytes(image: Image) -> int:
    """Returns the size of the file of an image, at most."""
    if isinstance(image, bytes):
        return len(image)
    height, width = image.shape[:2]
    # The rows of a BMP file are filled to 4 bytes.
    return 3 * (width + 1) * height * image.itemsize + 64


def _encode(image: Image) -> tuple[bytes, str]:
    """Returns the content of an image file, and its suffix."""
    if isinstance(image, bytes):
        return image, ".png" if image.startswith(b"\x89PNG") else ".jpg"
    height, width = image.shape[:2]
    if image.dtype == np.uint8:
        return cv2.imencode(".bmp", cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2BGR))[1].tobytes(), ".bmp"
    if image.dtype == np.uint16:
        return b"P6 %d %d 65535\n" % (width, height) + image.astype(">u2").tobytes(), ".ppm"
    # The last row comes first.
    return b"PF\n%d %d\n-1.0\n" % (width, height) + image[::-1].astype("<f4").tobytes(), ".pfm"


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
    kept.make_room(len(absent), image_bytes(np.empty((index.height_px, index.width_px, 3), np.uint8)))
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
