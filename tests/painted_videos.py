"""Videos whose frames hold their own numbers as bright cells, and their plain decode."""

import functools
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from jaxpose.config import DataConfig
from jaxpose.video.clips import ClipSource

LENGTH = 16
SIZE_PX = (64, 48)
# Each cell of a frame is a bit of its number.
CELL_PX = 16


@functools.cache
def _painted(number: int, size_px: tuple[int, int]) -> np.ndarray:
    bits = np.array([number >> bit & 1 for bit in range(12)]).reshape(3, 4)
    image = np.kron(30 + 190 * bits, np.ones((CELL_PX, CELL_PX)))[: size_px[1], : size_px[0]].astype(np.uint8)
    return np.repeat(image[..., None], 3, axis=-1)


def write(
    path: Path,
    frames: int,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    options: dict[str, str] | None = None,
    times: list[int] | None = None,
    size_px: tuple[int, int] = SIZE_PX,
    offset: int = 0,
) -> Path:
    """Writes a video whose frame i has the bits of i + offset as bright cells."""
    codec_options = options if options is not None else {"x264-params": "bframes=3:b-adapt=0:keyint=12"}
    container_options = {"movflags": "faststart"} if path.suffix in (".mp4", ".mov") else {}
    with av.open(str(path), "w", options=container_options) as container:
        stream = container.add_stream(codec, rate=25, options=codec_options)
        stream.width, stream.height, stream.pix_fmt = *size_px, pixels
        stream.codec_context.thread_count = 1
        if times:
            stream.codec_context.time_base = Fraction(1, 1000)
        for i in range(frames):
            frame = av.VideoFrame.from_ndarray(_painted(i + offset, size_px), format="rgb24")
            if times:
                frame.pts, frame.time_base = times[i], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def plain(path: Path) -> np.ndarray:
    """Returns all frames as PyAV decodes them in order."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def number_in(frame: np.ndarray) -> int:
    """Returns the number that `write` painted."""
    cells = frame[CELL_PX // 2 :: CELL_PX, CELL_PX // 2 :: CELL_PX, 1].reshape(-1) > 125
    return sum(int(bit) << place for place, bit in enumerate(cells))


def data_config(**options) -> DataConfig:
    options = {"input_width_px": SIZE_PX[0], "input_height_px": SIZE_PX[1]} | options
    return DataConfig(**options)


def windows(source: ClipSource, frame_counts: list[int], length: int = LENGTH) -> range:
    """Returns the draws of the first pass."""
    return range(sum(-(-count // length) for count in frame_counts))
