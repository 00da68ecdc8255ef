"""Frames of video files by number, as a training sees them; the latest ones are kept."""

import bisect
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxpose.errors import UserError
from jaxpose.video.decoding import RangeReader
from jaxpose.video.index import VideoIndex, read_index
from jaxpose.video.recording import Recording, read_recording

# Frames that are decoded together, and how many such groups are kept; more if each of many views needs one.
_TOGETHER, _MOST_GROUPS = 16, 3


class VideoFrames:
    """The frames of video files; several threads may ask for them."""

    def __init__(self, recordings: Mapping[Path, Recording] | None = None, views: int = 0):
        """Takes {file: how it is read}, for files that are not read as they are, and the number of cameras."""
        self._recordings, self._most_groups = recordings or {}, max(_MOST_GROUPS, views + 1)
        self._indexes: dict[Path, tuple[VideoIndex, tuple[int, ...]]] = {}
        self._groups: OrderedDict[tuple[Path, int], dict[int, np.ndarray]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, file: Path, number: int) -> np.ndarray:
        """Returns the pixels (h, w, 3) RGB of a frame.

        Raises:
          UserError: the video has no such frame, it is damaged, or the file is no longer the one that was opened.
        """
        with self._lock:
            key = file, _first_of_group(self.index(file).key_frames, number)
            if key not in self._groups:
                self._groups[key] = self._read(file, key[1])
            self._groups.move_to_end(key)
            if len(self._groups) > self._most_groups:
                self._groups.popitem(last=False)
            if number not in self._groups[key]:
                raise UserError(f"frame {number} of {file} cannot be read: it is damaged, or after the last one")
            return self._groups[key][number]

    def index(self, file: Path) -> VideoIndex:
        """Returns where the frames of a video are; raises as `get`."""
        now = _signature(file)
        if file not in self._indexes:
            recording = self._recordings.get(file)
            self._indexes[file] = read_recording(file, recording) if recording else read_index(file), now
        index, before = self._indexes[file]
        if now != before:
            raise UserError(
                f"{file} has changed since its frames were first shown: stop jaxpose label and start it again"
            )
        return index

    def _read(self, file: Path, first: int) -> dict[int, np.ndarray]:
        index = self.index(file)
        end = min((first // _TOGETHER + 1) * _TOGETHER, index.frame_count)
        if first >= end:
            return {}
        frames = dict(RangeReader(index, first, end, np.eye(2, 3), (index.width_px, index.height_px)))
        # The file may have been replaced while it was read.
        self.index(file)
        return frames


def _first_of_group(key_frames: Sequence[int], number: int) -> int:
    """Returns the first frame that is decoded together with a frame; `key_frames` begin with 0.

    It is a key frame among them if decoding would have to begin long before it otherwise.
    """
    first = number // _TOGETHER * _TOGETHER
    before, key = (key_frames[bisect.bisect_right(key_frames, frame) - 1] for frame in (first, number))
    return key if key > first and first - before > _TOGETHER else first


def _signature(file: Path) -> tuple[int, ...]:
    """Returns what changes when a video is replaced; () for an absent file."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return ()
    return status.st_size, status.st_mtime_ns
