"""Checks whether a video file is the recording that a label file describes."""

import dataclasses
from pathlib import Path

import cv2

from jaxpose.errors import UserError
from jaxpose.terminal import count
from jaxpose.video.index import AnyVideo, VideoIndex, as_labelled, read_index

# Libraries round rates and estimate them from timestamps.
_RATE_TOLERANCE = 0.005


@dataclasses.dataclass(frozen=True)
class Recording:
    """A label file's facts about a video; None if unknown.

    Attributes:
      name: the path in the label file.
      frame_count: number of frames.
      size_px: (width, height) of the frames.
      fps: frames per second.
    """

    name: str
    frame_count: int | None = None
    size_px: tuple[int, int] | None = None
    fps: float | None = None


def read_recording(path: Path, recording: Recording) -> VideoIndex:
    """Returns the index of a recording's file, with frames rotated as labelled.

    Raises:
      UserError: the file is not a video, or as `check_recording`.
    """
    return check_recording(read_index(path), recording)


def check_recording(video: AnyVideo, recording: Recording) -> AnyVideo:
    """Returns a video from `scan` or `read_index` with frames rotated as labelled.

    Raises:
      UserError: it is another recording: its frame count, size or rate differs.
    """
    video = as_labelled(video, [recording.size_px] if recording.size_px else [])
    refuse_other(video.path, recording, (video.width_px, video.height_px))
    shown = video.frame_count if isinstance(video, VideoIndex) else video.expected_frames
    counts, rates = [shown, video.announced_frames], [video.fps]
    if recording.frame_count not in (None, *counts) or not _has_rate(recording.fps, rates):
        # Most label tools read videos with OpenCV, which estimates missing values.
        opened = cv2.VideoCapture(str(video.path))
        counts.append(round(opened.get(cv2.CAP_PROP_FRAME_COUNT)))
        rates.append(opened.get(cv2.CAP_PROP_FPS))
        opened.release()
    if recording.frame_count not in (None, *counts):
        raise UserError(_describe(video.path, recording, count(shown, "frame"), f"{recording.frame_count:,}"))
    if not _has_rate(recording.fps, rates):
        raise UserError(_describe(video.path, recording, f"{rates[0]:g} frames/s", f"{recording.fps:g}"))
    return video


def refuse_other(path: Path, recording: Recording, size_px: tuple[int, int], frame_count: int | None = None) -> None:
    """Checks a file that another library opened.

    Args:
      path: the file.
      recording: the facts in the label file.
      size_px: (width, height) of the file's frames.
      frame_count: their number; None = not checked.

    Raises:
      UserError: the size or number of frames differs.
    """
    if recording.size_px not in (None, size_px):
        shown, said = (f"{width} x {height} px" for width, height in (size_px, recording.size_px))
        raise UserError(_describe(path, recording, f"frames of {shown}", said))
    if frame_count is not None and recording.frame_count not in (None, frame_count):
        raise UserError(_describe(path, recording, count(frame_count, "frame"), f"{recording.frame_count:,}"))


def has_proportions(size_px: tuple[int, int], frame_px: tuple[int, int]) -> bool:
    """Returns whether an image of (width, height) px has the same proportions as frames of that size.

    Rounding to whole pixels changes a resized frame's proportions by less than a pixel.
    """
    (width, height), (frame_width, frame_height) = size_px, frame_px
    return abs(width * frame_height - height * frame_width) <= max(frame_width, frame_height)


def _has_rate(fps: float | None, rates: list[float]) -> bool:
    return fps is None or any(abs(rate - fps) <= _RATE_TOLERANCE * fps for rate in rates)


def _describe(path: Path, recording: Recording, there: str, said: str) -> str:
    named = "it" if recording.name == str(path) else recording.name
    return (
        f"{path} has {there}, but {named} had {said} when it was labelled: it is another recording, or was cut or "
        "converted since; put the original there, or replace the video in the label tool"
    )
