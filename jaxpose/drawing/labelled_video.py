"""Writes a video with the predicted pose on each frame.

Input: the index of a video and its predictions. Output: an H.264 file with the same frames at the same times, counted
from 0, with a line of text below each. A thread decodes and draws while the encoder works.
"""

import contextlib
import dataclasses
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter

from jaxpose.data.images import keypoint_colours
from jaxpose.drawing.pose_painter import (
    LIMITED_RANGE,
    Caption,
    PosePainter,
    Style,
    copy_frame,
    even,
    is_copied,
    new_frame,
    side_by_side,
    to_yuv,
)
from jaxpose.errors import UserError
from jaxpose.formats.prediction_table import PredictionTable, refuse_other_length
from jaxpose.terminal import count
from jaxpose.video.decoding import Decoding, Flaw, FlawKind
from jaxpose.video.encoding import Format, open_h264
from jaxpose.video.index import VideoIndex
from jaxpose.video.packets import open_video, video_stream

# Makes items on a thread while earlier ones are used.

Item = TypeVar("Item")

# How often a thread that waits for a slow consumer checks whether it should stop.
_WAIT_S = 0.1


@contextlib.contextmanager
def made_ahead(items: Generator[Item, None, None], most: int) -> Iterator[Iterator[Item]]:
    """A context with an iterator over the items, which a thread makes; its end stops the thread and closes `items`.

    Args:
      items: the items to iterate over; their errors are raised by the iterator.
      most: items that wait at the same time, at least 1.
    """
    made: queue.Queue[tuple[Item] | BaseException | None] = queue.Queue(most)
    stopped = threading.Event()

    def put(entry: tuple[Item] | BaseException | None) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                return made.put(entry, timeout=_WAIT_S)

    def make() -> None:
        try:
            with contextlib.closing(items):
                for item in items:
                    put((item,))
                    if stopped.is_set():
                        return
            put(None)
        except BaseException as error:
            put(error)

    def take() -> Iterator[Item]:
        while (entry := made.get()) is not None:
            if isinstance(entry, BaseException):
                raise entry
            yield entry[0]

    thread = threading.Thread(target=make, name="drawing", daemon=True)
    thread.start()
    try:
        yield take()
    finally:
        stopped.set()
        thread.join()


# Maximum number of drawn frames that wait for the encoder.
_AHEAD = 4
_LISTED = 5
# The rate of a file that stores neither its rate nor the times of its frames.
_DEFAULT_RATE = Fraction(25)
_NO_COLORSPACE, _RGB = 2, 0


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A labelled video that was written.

    Attributes:
      frames: how many it has.
      width_px, height_px: its frames' size.
      problem: a sentence about frames that are lost in the source, or "".
    """

    frames: int
    width_px: int
    height_px: int
    problem: str


def draw_video(
    index: VideoIndex,
    predictions: PredictionTable,
    file: Path,
    style: Style,
    is_stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[], object] = lambda: None,
) -> Drawn:
    """Writes the video; replaces an older one.

    Args:
      index: the video's, as `video.index.as_labelled` returned it.
      predictions: a row for each frame.
      file: *.mp4.
      style: the user's choices.
      is_stopped: asked for every packet whether to stop.
      progress: called after every frame.

    Raises:
      UserError: the numbers of frames and predictions differ, or no frame decodes.
      OSError: the file cannot be written.
      Stopped: `is_stopped` returned true. After this and every other error there is no new file.
    """
    refuse_other_length(index, predictions)
    drawing, written = _Drawing(index, predictions, style), 0
    with (
        open_h264(file, drawing.width_px, drawing.height_px, drawing.form) as writer,
        made_ahead(drawing.frames(is_stopped), _AHEAD) as frames,
    ):
        for frame, time in frames:
            writer.write(frame, time)
            written += 1
            progress()
        if not written:
            raise UserError(f"{index.path} has no frame that decodes: {_listed(drawing.lost)}")
    problem = ""
    if lost := index.frame_count - written:
        some = _listed(drawing.lost)
        problem = f"{index.path}: {lost} of {count(index.frame_count, 'frame')} cannot be drawn ({some})"
    return Drawn(written, drawing.width_px, drawing.height_px, problem)


class _Drawing:
    """The drawn frames of a video.

    Attributes:
      width_px, height_px: the drawn frames', even.
      form: how the source is stored.
      lost: {number of a frame that does not decode: a clause about it, "" if it is missing}, after the iteration.
    """

    def __init__(self, index: VideoIndex, predictions: PredictionTable, style: Style) -> None:
        self._index, self.form = index, _read_format(index)
        self.lost: dict[int, str] = {}
        size_px, tags = (index.width_px, index.height_px), (self.form.colorspace, self.form.color_range)
        poses, style, names, of_keypoints = side_by_side(predictions.poses, style)
        colours = keypoint_colours(len(names))
        self._painter = PosePainter(poses, to_yuv(colours[of_keypoints], *tags), size_px, style)
        last, self.width_px = index.frame_count - 1, even(index.width_px)
        self._caption = Caption(names, colours, self.width_px, last, self._time_s(last), tags)
        self.height_px = even(index.height_px) + self._caption.height_px

    def frames(self, is_stopped: Callable[[], bool]) -> Generator[tuple[VideoFrame, int], None, None]:
        """Yields drawn frames with their time stamps, from 0."""
        converter, index = VideoReformatter(), self._index
        for item in Decoding(index, 0, is_stopped):
            if isinstance(item, Flaw):
                if item.kind in (FlawKind.FAILED, FlawKind.LOST):
                    # A frame that fails also counts as missing once a later one arrives.
                    for number in range(item.first, item.last + 1):
                        self.lost.setdefault(number, item.text * (item.first == item.last))
                continue
            number, source = item
            if number >= index.frame_count:
                break
            self.lost.pop(number, None)
            frame, planes = new_frame(self.width_px, self.height_px)
            copy_frame(source, planes, converter, index.quarter_turns)
            self._painter.paint(planes, number)
            self._caption.paint(planes, number, self._time_s(number))
            yield frame, self._time(number)

    def _time(self, number: int) -> int:
        times = self._index.times
        return times[number] - times[0] if times else number

    def _time_s(self, number: int) -> float:
        return float(self._time(number) * self.form.time_base)


def _listed(lost: dict[int, str]) -> str:
    """Returns the clauses about lost frames, in their order; missing frames that follow each other share one."""
    clauses: list[str] = []
    numbers, place = sorted(lost), 0
    while place < len(numbers) and len(clauses) <= _LISTED:
        first = last = numbers[place]
        place += 1
        while not lost[first] and lost.get(last + 1) == "":
            last, place = last + 1, place + 1
        missing = f"frame {first} is missing" if first == last else f"frames {first} to {last} are missing"
        clauses.append(lost[first] or missing)
    return "; ".join(clauses[:_LISTED]) + "; ..." * (len(clauses) > _LISTED)


def _read_format(index: VideoIndex) -> Format:
    """Returns how a video is stored; without reliable times, its frames follow each other at its rate."""
    with open_video(index.path) as container:
        stream = video_stream(container, index.path)
        context = stream.codec_context
        # PyAV's own fractions since version 19, where 0 is unknown; before, Python's, or None.
        rate, aspect = Fraction(stream.average_rate or _DEFAULT_RATE), Fraction(context.sample_aspect_ratio or 0)
        if aspect and index.quarter_turns % 2:
            aspect = 1 / aspect
        return Format(
            time_base=Fraction(stream.time_base) if index.times and stream.time_base else 1 / rate,
            rate=rate,
            # RGB frames are converted to what readers assume for untagged files.
            colorspace=_NO_COLORSPACE if context.colorspace == _RGB else context.colorspace,
            color_range=context.color_range if is_copied(context.pix_fmt) else LIMITED_RANGE,
            color_primaries=context.color_primaries,
            color_trc=context.color_trc,
            sample_aspect_ratio=aspect or None,
        )
