"""Writes H.264 videos, with a timestamp for each frame, to a file that gets its name when complete."""

import contextlib
import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
from av.container import OutputContainer
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from jaxpose.errors import UserError
from jaxpose.files import replace_whole

_ENCODER = "libx264"
# Almost no visible loss; a slower preset takes several times longer for a slightly smaller file.
_OPTIONS = {"preset": "veryfast", "crf": "20"}
# Puts the header first, so that a browser can start playing while the file loads.
_CONTAINER_OPTIONS = {"movflags": "faststart"}
SUFFIX = ".mp4"


@dataclasses.dataclass(frozen=True)
class Format:
    """How to store a video, apart from its pixels.

    Attributes:
      time_base: seconds per timestamp unit.
      rate: mean frames per second.
      colorspace, color_range, color_primaries, color_trc: colour tags, as FFmpeg's numbers.
      sample_aspect_ratio: pixel width divided by pixel height, None if unknown.
    """

    time_base: Fraction
    rate: Fraction
    colorspace: int
    color_range: int
    color_primaries: int
    color_trc: int
    sample_aspect_ratio: Fraction | None


class H264Writer:
    """Encodes frames into an open file; `open_h264` creates it."""

    def __init__(self, file: Path, container: OutputContainer, stream: VideoStream) -> None:
        self._file, self._container, self._stream = file, container, stream

    def write(self, frame: VideoFrame, time: int) -> None:
        """Adds a frame shown from `time` on, in time base units; times ascend.

        Raises:
          OSError: the file cannot be written.
        """
        frame.pts, frame.time_base = time, self._stream.codec_context.time_base
        with _system_errors(self._file):
            self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Writes the encoder's remaining frames and the end of the file.

        Raises:
          OSError: the file cannot be written.
        """
        with _system_errors(self._file):
            self._container.mux(self._stream.encode())
            self._container.close()


@contextlib.contextmanager
def open_h264(file: Path, width_px: int, height_px: int, form: Format) -> Iterator[H264Writer]:
    """A context for writing a video; after an error, there is no file.

    Args:
      file: the file to write, *.mp4; its folder is created.
      width_px, height_px: of the frames, even.
      form: how to store the video.

    Raises:
      UserError: PyAV has no encoder for H.264.
      OSError: the file cannot be written.
    """
    if _ENCODER not in av.codecs_available:
        raise UserError(f"{file} is H.264, but this PyAV has no {_ENCODER}: pip install --force-reinstall av")
    with replace_whole(file) as unfinished:
        with _system_errors(file):
            container = av.open(str(unfinished), "w", options=_CONTAINER_OPTIONS)
        try:
            stream = container.add_stream(_ENCODER, rate=form.rate, options=_OPTIONS)
            stream.width, stream.height, stream.pix_fmt = width_px, height_px, "yuv420p"
            context = stream.codec_context
            context.time_base = form.time_base
            for name in ("colorspace", "color_range", "color_primaries", "color_trc"):
                setattr(context, name, getattr(form, name))
            if form.sample_aspect_ratio:
                context.sample_aspect_ratio = form.sample_aspect_ratio
            writer = H264Writer(file, container, stream)
            yield writer
            writer.finish()
        finally:
            # After an error, the rest is removed.
            with contextlib.suppress(FFmpegError):
                container.close()


@contextlib.contextmanager
def _system_errors(file: Path) -> Iterator[None]:
    """Turns an FFmpeg write error, such as a full disk, into an OSError that names the file."""
    try:
        yield
    except FFmpegError as error:
        raise OSError(error.errno, error.strerror or str(error), str(file)) from None
