"""Reads videos for prediction in order, on a background thread, and reports every lost frame.

Input: a `Video`. Output: chunks of frames fitted into the network's input, and a sentence about all problems of the
file. Frames are rotated by the quarter turns of the `Video` (see `index.as_labelled`). Frame times are not used, so
variable frame rates need no special treatment.
"""

import bisect
import collections
import dataclasses
import math
import queue
import threading
from collections.abc import Iterable, Iterator

import numpy as np
from av.error import FFmpegError
from av.video.reformatter import VideoReformatter

from jaxpose import terminal
from jaxpose.config import DataConfig, crop_of_video
from jaxpose.geometry import fit_numbered
from jaxpose.video.decoding import Decoding, Flaw, FlawKind
from jaxpose.video.file import Video, file_damage, scan, to_rgb
from jaxpose.video.index import (
    Stopped,
    VideoIndex,
    as_labelled,
    can_begin_at_key_frames,
    key_frame_before,
    labelled_sizes_px,
    read_index,
)

# Divides a long video into parts for separate prediction, at key frames, where decoding can start.


@dataclasses.dataclass(frozen=True)
class Segment:
    """The frames [first, end) of an index's video; the index has frame times."""

    index: VideoIndex
    first: int
    end: int


def cut(video: Video, minutes: float) -> list[Segment] | None:
    """Returns the parts of a video, all except the last at least this many minutes long; None if it is not cut.

    A video is not cut if it is not longer than that, if the file does not store its rate or its frame times, if
    decoding cannot start at its key frames, or if it is damaged: it is then read from its start until it breaks off.

    Args:
      video: from `scan`.
      minutes: of video time.

    Raises:
      UserError: the file is no longer a video.
    """
    most = max(1, round(minutes * 60 * video.fps))
    if not video.fps or video.expected_frames <= most:
        return None
    # Reads the whole file without decoding it.
    index = read_index(video.path)
    # A gap in the timestamps is not damage: no frame of the file is missing.
    if not index.times or index.is_damaged:
        return None
    if not can_begin_at_key_frames(index):
        return None
    firsts = [0]
    while True:
        place = bisect.bisect_left(index.key_frames, firsts[-1] + most)
        if place == len(index.key_frames):
            break
        firsts.append(index.key_frames[place])
    return [Segment(index, first, end) for first, end in zip(firsts, [*firsts[1:], index.frame_count], strict=True)]


def padded(segment: Segment, margin_frames: int, radius: int, batch: int) -> Segment:
    """Returns the frames that the network needs to give the same rows as a prediction of the whole video.

    Args:
      segment: the wanted rows.
      margin_frames: number of additional rows wanted before it.
      radius: number of neighbours on either side that the network sees.
      batch: frames per step on a device. The first frame is a multiple of it, so that each frame has the same place in
        its batch as in the whole video: the order of a sum, and thus its last bit, may depend on the place.
    """
    first = max(0, segment.first - margin_frames - radius) // batch * batch
    return dataclasses.replace(segment, first=first, end=min(segment.index.frame_count, segment.end + radius))


def rows_of(
    segment: Segment, first: int, found: Iterable[tuple[np.ndarray, np.ndarray]]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the results from the frame before a segment to its end.

    Args:
      segment: the wanted rows.
      first: number of the first frame of the results.
      found: keypoints (m, k, 2) and confidences (m, k) of consecutive frames.
    """
    for keypoints, confidence in found:
        rows = slice(max(0, segment.first - 1 - first), max(0, segment.end - first))
        first += len(keypoints)
        if len(keypoints[rows]):
            yield keypoints[rows], confidence[rows]


__all__ = ["ChunkReader", "Video", "read_chunks", "scan"]

# Seconds between checks for a stop, in a thread that waits for a slow consumer.
_WAIT_S = 0.1
_LISTED_FRAMES = 5


def read_chunks(
    video: Video,
    input_from_frame: np.ndarray,
    size_px: tuple[int, int],
    chunk_frames: int,
    read_ahead: int = 2,
    segment: Segment | None = None,
    crop_px: tuple[int, ...] | np.ndarray = (),
    radius: int = 0,
) -> "ChunkReader":
    """Returns an iterator over the frames of a video, fitted into the network's input.

    Args:
      video: from `scan`.
      input_from_frame: affine (2, 3), frame pixels to input pixels; (n, 2, 3) if each frame has its own.
      size_px: (width, height) of the input.
      chunk_frames: frames in each chunk except the last, at least 1.
      read_ahead: chunks decoded ahead of the consumer, at least 1.
      segment: the frames to read; None means all, regardless of timestamps.
      crop_px: (x, y, width, height) in frame pixels, black outside; () for the whole frame; (n, 4) if each frame has
        its own.
      radius: if above 0, each frame comes as a window with this many frames on either side, all fitted like it.
    """
    return ChunkReader(video, input_from_frame, size_px, chunk_frames, read_ahead, segment, crop_px, radius)


class ChunkReader:
    """Iterates once over chunks (m, height, width, 3) uint8 RGB in display order.

    Chunks of windows are (m, 2 radius + 1, height, width, 3); the first and last frames repeat beyond the ends. At a
    lost frame the iteration ends early and `problem` reports it: the numbers of later frames would be a guess. Frames
    that the decoder repaired are delivered and listed in `problem`. Damage that the decoder does not notice (other
    pixels, same number of frames) cannot be reported. The end of the iteration ends the thread; after an early exit
    (break, exception), call `close`.

    Attributes:
      delivered: number of frames delivered so far.
      problem: after the iteration, the file's problems, or "".
    """

    def __init__(
        self,
        video: Video,
        input_from_frame: np.ndarray,
        size_px: tuple[int, int],
        chunk_frames: int,
        read_ahead: int,
        segment: Segment | None,
        crop_px: tuple[int, ...] | np.ndarray,
        radius: int,
    ):
        self.delivered = 0
        self.problem = ""
        self._video = video
        self._segment = segment
        self._announced = segment.end - segment.first if segment else video.announced_frames
        self._input_from_frame, self._crop_px = input_from_frame, crop_px
        self._size_px, self._radius = size_px, radius
        self._chunk_shape = (chunk_frames, *([2 * radius + 1] * bool(radius)), size_px[1], size_px[0], 3)
        self._stopped, self._mended = "", list[int]()
        # Chunks, then the problem or a program error.
        self._queue: queue.Queue[np.ndarray | str | Exception] = queue.Queue(read_ahead)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"decode {video.path.name}", daemon=True)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yields the chunks.

        Raises:
          RuntimeError: the program, not the file, failed in the thread; or this is a second iteration.
        """
        self._thread.start()
        try:
            while not self._stop.is_set():
                item = self._queue.get()
                if isinstance(item, Exception):
                    place = f"{self._video.path}: reading failed after {self.delivered} frames"
                    raise RuntimeError(f"{place}: {item}") from item
                if isinstance(item, str):
                    self.problem = item
                    return
                self.delivered += len(item)
                yield item
        finally:
            self.close()

    def close(self) -> None:
        """Ends the thread; drops chunks decoded ahead."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._put(self._decode())
        except Exception as error:
            self._put(error)

    def _put(self, item: np.ndarray | str | Exception) -> None:
        while not self._stop.is_set():
            try:
                return self._queue.put(item, timeout=_WAIT_S)
            except queue.Full:
                continue

    def _decode(self) -> str:
        """Puts all chunks and returns the problem."""
        chunk, filled, count = np.empty(self._chunk_shape, np.uint8), 0, 0
        decoding = self._decoding()
        try:
            for number, window in windows(self._images(decoding), self._radius):
                fitted = [
                    fit_numbered(image, number, self._input_from_frame, self._size_px, self._crop_px)
                    for image in window
                ]
                chunk[filled] = fitted if self._radius else fitted[0]
                filled, count = filled + 1, count + 1
                if filled == len(chunk):
                    self._put(chunk)
                    chunk, filled = np.empty(self._chunk_shape, np.uint8), 0
        except Stopped:
            return ""
        if filled:
            self._put(chunk[:filled])
        unshown = 0 if self._segment else decoding.unshown
        return _problem(self._video, self._segment, count, self._announced, unshown, self._stopped, self._mended)

    def _images(self, decoding: Decoding) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the numbers and images (h, w, 3) of the wanted frames up to the first lost frame."""
        first, end = (self._segment.first, self._segment.end) if self._segment else (0, None)
        known = len(self._crop_px) if isinstance(self._crop_px, np.ndarray) else math.inf
        converter = VideoReformatter()
        try:
            for item in decoding:
                if isinstance(item, Flaw):
                    if _ends_delivery(item, first):
                        self._stopped = item.error or item.text
                        return
                    if item.kind is FlawKind.MENDED and item.first >= first:
                        self._mended.append(item.first)
                    continue
                number, frame = item
                # The decoder starts at a key frame.
                if number < first:
                    continue
                if number >= known:
                    self._stopped = f"only {known} frames have boxes"
                    return
                yield number, to_rgb(frame, converter, self._video.quarter_turns)
                if number + 1 == end:
                    return
        except FFmpegError as error:
            self._stopped = error.strerror or str(error)

    def _decoding(self) -> Decoding:
        if not self._segment:
            return Decoding(self._video, 0, self._stop.is_set)
        index = self._segment.index
        return Decoding(index, 0, self._stop.is_set, key_frame_before(index, self._segment.first, self._stop.is_set))


def windows(frames: Iterable[tuple[int, np.ndarray]], radius: int) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yields each frame number with the frame and its `radius` neighbours on either side, in order.

    The first and last frames are repeated beyond the ends.

    Args:
      frames: numbers and images of consecutive frames.
      radius: 0 yields each frame alone, immediately.
    """
    numbers: collections.deque[int] = collections.deque()
    held: list[np.ndarray] = []

    def window() -> tuple[int, list[np.ndarray]]:
        return numbers.popleft(), held[: 2 * radius + 1]

    for number, image in frames:
        held += [image] * (1 + (not held) * radius)
        numbers.append(number)
        if len(held) > 2 * radius:
            yield window()
            del held[0]
    for _ in range(len(numbers)):
        held += [held[-1]] * (2 * radius + 1 - len(held))
        yield window()
        del held[0]


def _ends_delivery(flaw: Flaw, first: int) -> bool:
    """Returns whether a flaw ends delivery; before `first`, only decoding failures matter."""
    return flaw.kind is FlawKind.FAILED or (flaw.kind is FlawKind.LOST and flaw.last >= first)


def _problem(
    video: Video, segment: Segment | None, count: int, announced: int, unshown: int, stopped: str, mended: list[int]
) -> str:
    """Returns one sentence about all problems, or ""."""
    parts, of, announced = [], f" from frame {segment.first} on" if segment else "", announced - unshown
    if stopped:
        parts.append(f"decoding stopped after {count} of {announced} frames{of}: {stopped}")
    elif count != announced:
        parts.append(f"{_were(count, 'frame')} decoded{of}, but the file states {announced}")
    elif not segment and (lack := file_damage(video.path, unshown)[0]):
        parts.append(f"{_were(count, 'frame')} decoded, but {lack}")
    if mended:
        some = ", ".join(map(str, mended[:_LISTED_FRAMES])) + (", ..." if len(mended) > _LISTED_FRAMES else "")
        parts.append(
            f"{_were(len(mended), 'damaged frame')} repaired by the decoder (frame {some}); all frames up to the next "
            "key frame may be wrong"
        )
    return f"{video.path}: {'; '.join(parts)}" if parts else ""


def _were(number: int, noun: str) -> str:
    return f"{terminal.count(number, noun)} {'was' if number == 1 else 'were'}"


# The crop of a video with labelled images that are crops of its frames.


def describe_crop(name: str, data: DataConfig) -> str:
    """Returns a sentence if the run crops a video of this name (file without suffix), else ""."""
    if not data.video_crops_px or not (crop_px := crop_of_video(data, name)):
        return ""
    x, y, width, height = crop_px
    return (
        f"{name}: the network sees the crop of {width} x {height} px at ({x}, {y}) of the frames "
        "(data.video_crops_px); results are in pixels of whole frames"
    )


def describe_whole_frames(video: Video, data: DataConfig) -> str:
    """Returns a warning about a video of a new size without a crop if labelled images were crops, else "".

    Args:
      video: from `scan`.
      data: of the run, with the sizes of labelled images that were whole frames.
    """
    sizes_px = labelled_sizes_px(data)
    shown = as_labelled(video, sizes_px)
    is_known = crop_of_video(data, video.path.stem) or (shown.width_px, shown.height_px) in sizes_px
    if is_known or not data.video_crops_px:
        return ""
    return (
        f"{video.path} is predicted as a whole, but the labelled images were crops of their videos, and "
        "data.video_crops_px has none for it: expect larger errors"
    )


def describe_other_size(video: Video, data: DataConfig) -> str:
    """Returns a warning about a video of several animals whose frames have not the size of any labelled image, else "".

    Args:
      video: from `scan`.
      data: of the run, with the sizes of the labelled images.
    """
    sizes_px = labelled_sizes_px(data)
    shown = as_labelled(video, sizes_px)
    if data.animals < 2 or not sizes_px or (shown.width_px, shown.height_px) in sizes_px:
        return ""
    width, height = data.frame_sizes_px[:2]
    return (
        f"{video.path} has frames of {shown.width_px} x {shown.height_px} px, the labelled images {width} x {height}: "
        f"its animals are predicted in boxes for a body size of {data.body_size_px:.3g} px; if they have another size "
        "in these frames, expect larger errors, or resize the video"
    )
