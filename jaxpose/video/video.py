"""Videos for prediction: read in order on a background thread, one row per frame, and none is lost in silence.

What comes in: a `Video`. What goes out: chunks of frames fitted into the network's input, and a sentence about all
that was wrong with the file. Frames get the quarter turns that the `Video` says (see `rotation.as_labelled`). A frame's
time plays no part, so a variable frame rate is nothing special.
"""

import queue
import threading
from collections.abc import Iterator

import numpy as np
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter

from jaxpose.fitting import fit_image
from jaxpose.video.file import (
    Video,
    cut_short,
    open_video,
    scan,
    to_rgb,
    turned_size_px,
    unshown,
    unshown_at_end,
    video_stream,
)
from jaxpose.video.key_frames import key_frame_before, packets_from
from jaxpose.video.segments import Segment

__all__ = ["ChunkReader", "Video", "read_chunks", "scan"]

# How often a thread that waits for a slow consumer looks whether it is still wanted.
_WAIT_S = 0.1
_LISTED_FRAMES = 5


def read_chunks(
    video: Video,
    input_from_frame: np.ndarray,
    size_px: tuple[int, int],
    chunk_frames: int,
    read_ahead: int = 2,
    segment: Segment | None = None,
    crop_px: tuple[int, ...] = (),
) -> "ChunkReader":
    """Returns an iterator over the frames of a video, fitted into the network's input.

    Args:
      video: as `scan` returned it.
      input_from_frame: affine (2, 3), frame pixels to input pixels.
      size_px: (width, height) of the input.
      chunk_frames: frames in each chunk but the last, at least 1.
      read_ahead: chunks that are decoded ahead of the consumer, at least 1.
      segment: the frames that are wanted; None is all of them, without a look at their time stamps.
      crop_px: (x, y, width, height) in frame pixels, outside of which frames are black; () for the whole frame.
    """
    return ChunkReader(video, input_from_frame, size_px, chunk_frames, read_ahead, segment, crop_px)


class ChunkReader:
    """Iterates once over chunks (m, height, width, 3) uint8 RGB, in the order in which the frames are shown.

    A damaged file ends early and `problem` says so: what was decoded before is delivered; what comes after is not, for
    its frame numbers would be a guess. Frames that the decoder had to mend are delivered and named in `problem`. Damage
    that the decoder does not notice (other pixels, as many frames) cannot be named. Where the iteration is left early
    (break, exception), `close` ends the thread; so does the end of the iteration.

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
        crop_px: tuple[int, ...],
    ):
        self.delivered = 0
        self.problem = ""
        self._video = video
        self._segment = segment
        self._announced = segment.end - segment.first if segment else video.announced_frames
        self._input_from_frame, self._crop_px = input_from_frame, crop_px
        self._chunk_shape = (chunk_frames, size_px[1], size_px[0], 3)
        # Chunks, and at the end the problem or an error of the program.
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
        size_px = (self._chunk_shape[2], self._chunk_shape[1])
        chunk, filled, count, mended = np.empty(self._chunk_shape, np.uint8), 0, 0, []
        first = self._segment.first if self._segment else 0
        stopped, converter = "", VideoReformatter()
        turns = self._video.quarter_turns
        stored_px = turned_size_px(self._video.width_px, self._video.height_px, turns)
        try:
            for frame in self._frames_of(self._segment) if self._segment else self._all_frames():
                if (frame.width, frame.height) != stored_px:
                    raise _Unusable(f"frame {first + count} has {frame.width} x {frame.height} pixels")
                if frame.is_corrupt:
                    mended.append(first + count)
                image = to_rgb(frame, converter, turns)
                chunk[filled] = fit_image(image, self._input_from_frame, size_px, self._crop_px)
                filled, count = filled + 1, count + 1
                if filled == len(chunk):
                    self._put(chunk)
                    chunk, filled = np.empty(self._chunk_shape, np.uint8), 0
        except FFmpegError as error:
            stopped = error.strerror or str(error)
        except _Unusable as error:
            stopped = str(error)
        if filled:
            self._put(chunk[:filled])
        return _problem(self._video, self._segment, count, self._announced, stopped, mended)

    def _all_frames(self) -> Iterator[VideoFrame]:
        last_decoded = None
        with open_video(self._video.path) as container:
            stream = video_stream(container, self._video.path)
            stream.thread_type = "AUTO"
            # The last packet is empty: it makes the decoder give out the frames that it holds back.
            for packet in container.demux(stream):
                if self._stop.is_set():
                    return
                if packet.size:
                    self._announced -= unshown(packet, last_decoded, container.format.name)
                    last_decoded = packet.dts
                yield from packet.decode()
            self._announced -= unshown_at_end(self._video.path, container, stream)

    def _frames_of(self, segment: Segment) -> Iterator[VideoFrame]:
        expected = segment.first
        key = key_frame_before(segment.index, segment.first, self._stop.is_set)
        for packet in packets_from(segment.index, key, threads=0):
            if self._stop.is_set():
                return
            for frame in packet.decode():
                number = segment.index.number_of(frame.pts)
                if number == key and number and not frame.key_frame:
                    raise _Unusable(f"frame {number} is marked as a key frame, but is none")
                # The decoder begins at a key frame, and gives out what is shown before it too.
                if number is None or number < expected:
                    continue
                if number > expected:
                    raise _Unusable(f"frame {expected} is missing")
                yield frame
                expected += 1
                if expected == segment.end:
                    return


class _Unusable(Exception):
    """A frame is not there, or does not have the size that the file says."""


def _problem(video: Video, segment: Segment | None, count: int, announced: int, stopped: str, mended: list[int]) -> str:
    """Returns one sentence about all that was wrong, or ""."""
    parts, of = [], f" from frame {segment.first} on" if segment else ""
    if stopped:
        parts.append(f"decoding stopped after {count} of {announced} frames{of}: {stopped}")
    elif count != announced:
        parts.append(f"{count} frames were decoded{of}, but the file announces {announced}")
    elif not segment and (lack := cut_short(video.path)):
        parts.append(f"{count} frames were decoded, but {lack}")
    if mended:
        some = ", ".join(map(str, mended[:_LISTED_FRAMES])) + (", ..." if len(mended) > _LISTED_FRAMES else "")
        parts.append(
            f"{len(mended)} damaged frames were mended by the decoder (frame {some}); they and those up to the "
            "next key frame may be wrong"
        )
    return f"{video.path}: {'; '.join(parts)}" if parts else ""
