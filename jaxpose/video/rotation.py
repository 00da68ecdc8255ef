"""Decides, by the labelled images, whether the rotation in a video file is applied.

Label tools that read videos with OpenCV extract upright frames, others take frames as they are stored. Input: a video,
and the sizes of the labelled images. Output: the video with the rotation to apply.
"""

import dataclasses
from collections.abc import Collection
from typing import TypeVar

from jaxpose.config import DataConfig
from jaxpose.video.file import Video, turned_size_px
from jaxpose.video.index import VideoIndex

AnyVideo = TypeVar("AnyVideo", Video, VideoIndex)
Sizes = Collection[tuple[int, int]]


def labelled_sizes_px(data: DataConfig) -> set[tuple[int, int]]:
    """Returns the sizes (width, height) of a run's labelled images."""
    return set(zip(data.frame_sizes_px[::2], data.frame_sizes_px[1::2], strict=True))


def as_labelled(video: AnyVideo, sizes_px: Sizes) -> AnyVideo:
    """Returns a video whose frames are read as the labelled images show them.

    The rotation in the file is not applied if labelled images have the size of the stored frames and none has that of
    the upright ones. Otherwise it is applied, also for half a turn and for square frames, which keep their size.

    Args:
      video: as `scan` or `read_index` returned it: its rotation is applied.
      sizes_px: (width, height) of labelled images.
    """
    stored = turned_size_px(video.width_px, video.height_px, video.quarter_turns)
    if not video.quarter_turns or stored not in sizes_px or (video.width_px, video.height_px) in sizes_px:
        return video
    return dataclasses.replace(video, width_px=stored[0], height_px=stored[1], quarter_turns=0)


def describe_rotation(video: AnyVideo, sizes_px: Sizes) -> str:
    """Returns a sentence about the rotation in a video file, "" if it has none; arguments as above."""
    if not video.quarter_turns:
        return ""
    shown = as_labelled(video, sizes_px)
    noted = f"{video.path}: the file stores a rotation by {90 * video.quarter_turns} degrees clockwise"
    size = f"{shown.width_px} x {shown.height_px} px"
    if not shown.quarter_turns:
        return f"{noted}; it is not applied, because the labelled images have the size of the stored frames, {size}"
    stored = turned_size_px(video.width_px, video.height_px, video.quarter_turns)
    if (shown.width_px, shown.height_px) in sizes_px and stored not in sizes_px:
        return f"{noted}; it is applied, because the labelled images have the size of the upright frames, {size}"
    return f"{noted}; it is applied, frames are {size}; the sizes of the labelled images do not decide it"
