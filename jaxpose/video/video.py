"""Reads videos for prediction: in order, on a background thread, and with a report of every lost frame.

Input: a `Video`. Output: chunks of frames fitted into the network's input, and a sentence about all that is wrong with
the file. Frames are rotated by the quarter turns of the `Video` (see `rotation.as_labelled`). The time of a frame plays
no part, so a variable frame rate needs no special treatment.
"""

import collections
import math
import queue
import threading
from collections.abc import Iterable, Iterator

import numpy as np
from av.error import FFmpegError
from av.video.reformatter import VideoReformatter

from jaxpose import quantities
from jaxpose.fitting import fit_numbered
from jaxpose.video.decoding import Decoding, Flaw, FlawKind
from jaxpose.video.file import Video, file_damage, scan, to_rgb
from jaxpose.video.key_frames import Stopped, key_frame_before
from jaxpose.video.segments import Segment

__all__ = ["ChunkReader", "Video", "read_chunks", "scan"]

# How often a thread that waits for a slow consumer checks whether it should stop.
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
      video: as `scan` returned it.
      input_from_frame: affine (2, 3), frame pixels to input pixels; (n, 2, 3) if each frame has its own.
      size_px: (width, height) of the input.
      chunk_frames: frames in each chunk but the last, at least 1.
      read_ahead: chunks that are decoded ahead of the consumer, at least 1.
      segment: the frames to read; None is all of them, regardless of their time stamps.
      crop_px: (x, y, width, height) in frame pixels, outside of which frames are black; () for the whole frame; (n, 4)
        if each frame has its own.
      radius: if above 0, each frame comes as a window: with so many frames on either side, all of them fitted as it is.
    """
    return ChunkReader(video, input_from_frame, size_px, chunk_frames, read_ahead, segment, crop_px, radius)


class ChunkReader:
    """Iterates once over chunks (m, height, width, 3) uint8 RGB, in the order in which the frames are shown.

    Chunks of windows are (m, 2 radius + 1, height, width, 3); beyond its ends, a video or segment repeats a frame.
    At a lost frame the iteration ends early, and `problem` says so: the numbers of later frames would be a guess.
    Frames that the decoder had to mend are delivered and listed in `problem`. Damage that the decoder does not notice
    (other pixels, but as many frames) cannot be reported. The end of the iteration ends the thread; after an early exit
    (break, exception), call `close`.

    Attributes:
      delivered: frames handed out so far.
      problem: after the iteration, what was wrong with the file, or "".
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
        # Chunks; last, the problem or an error of the program.
        self._queue: queue.Queue[np.ndarray | str | Exception] = queue.Queue(read_ahead)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"decode {video.path.name}", daemon=True)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yields the chunks.

        Raises:
          RuntimeError: the program, not the file, failed in the thread; or this is the second iteration.
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
        """Ends the thread; chunks that were decoded ahead are dropped."""
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
        """Yields the numbers and images (h, w, 3) of the wanted frames up to the first that is lost."""
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
                # The decoder begins at a key frame.
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
    """Yields the number of each frame with the frame and its `radius` neighbours on either side, in their order.

    The first and the last frame are repeated beyond the ends.

    Args:
      frames: numbers and images of consecutive frames.
      radius: 0 yields each frame alone, at once.
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
    """Returns whether frames after a flaw are not delivered; before `first`, only a failure of decoding matters."""
    return flaw.kind is FlawKind.FAILED or (flaw.kind is FlawKind.LOST and flaw.last >= first)


def _problem(
    video: Video, segment: Segment | None, count: int, announced: int, unshown: int, stopped: str, mended: list[int]
) -> str:
    """Returns one sentence about all that is wrong, or ""."""
    parts, of, announced = [], f" from frame {segment.first} on" if segment else "", announced - unshown
    if stopped:
        parts.append(f"decoding stopped after {count} of {announced} frames{of}: {stopped}")
    elif count != announced:
        parts.append(f"{_were(count, 'frame')} decoded{of}, but the file announces {announced}")
    elif not segment and (lack := file_damage(video.path, unshown)[0]):
        parts.append(f"{_were(count, 'frame')} decoded, but {lack}")
    if mended:
        some = ", ".join(map(str, mended[:_LISTED_FRAMES])) + (", ..." if len(mended) > _LISTED_FRAMES else "")
        parts.append(
            f"{_were(len(mended), 'damaged frame')} mended by the decoder (frame {some}); all up to the next key frame "
            "may be wrong"
        )
    return f"{video.path}: {'; '.join(parts)}" if parts else ""


def _were(number: int, noun: str) -> str:
    return f"{quantities.count(number, noun)} {'was' if number == 1 else 'were'}"
