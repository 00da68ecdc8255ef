"""The planes of a frame in 4:2:0: poses are drawn on them as they are decoded, so no frame becomes RGB and back.

An H.264 frame needs even sides; a frame with an odd one gets a copy of its last column or row.
"""

import cv2
import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter

from jaxpose.video.file import TURNS

PIXELS = "yuv420p"
# The second is the name of the first with the full range of values.
_COPIED = (PIXELS, "yuvj420p")
LIMITED_RANGE = 1

# Luma (h, w), blue and red difference (h / 2, w / 2), all uint8.
Planes = list[np.ndarray]


def is_copied(pixel_format: str | None) -> bool:
    """Returns whether frames of a pixel format are drawn as they are; others are converted, to the limited range."""
    return pixel_format in _COPIED


def even(side_px: int) -> int:
    """Returns a side, or the next one if it is odd."""
    return side_px + side_px % 2


def new_frame(width_px: int, height_px: int) -> tuple[VideoFrame, Planes]:
    """Returns a frame of any content, and its planes, which can be written to; both sides must be even."""
    frame = VideoFrame(width_px, height_px, PIXELS)
    return frame, _views(frame)


def copy_frame(source: VideoFrame, planes: Planes, converter: VideoReformatter, quarter_turns: int) -> None:
    """Copies a decoded frame into the top left of planes. The decoder still needs the frame, so it is not drawn on.

    Args:
      source: as decoded, in any pixel format.
      planes: of a frame that is at least as large, after the quarter turns.
      converter: used for all frames of a video.
      quarter_turns: clockwise, 0 to 3.
    """
    if not is_copied(source.format.name):
        # The encoder needs the other cores.
        source = converter.reformat(source, format=PIXELS, dst_color_range=LIMITED_RANGE, threads=1)
    for plane, image in zip(planes, _views(source), strict=True):
        # The colours of a turned frame with an odd side move by up to a pixel, as their plane is a copy, too.
        turned = cv2.rotate(image, TURNS[quarter_turns]) if quarter_turns else image
        height, width = turned.shape
        plane[:height, :width] = turned
        # The last column and row again, for an odd side. What is drawn below the frame comes later.
        plane[:height, width:] = turned[:, -1:]
        plane[height : height + 1] = plane[height - 1]


def _views(frame: VideoFrame) -> Planes:
    views = []
    for plane in frame.planes:
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
        views.append(rows[: plane.height, : plane.width])
    return views
