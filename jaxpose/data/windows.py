"""Finds the files and video frames around each labelled frame.

The frame before img0007.png is img0006.png in the same folder. Where there is no such file, it is frame 6 of the video
with the folder's name.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.video.index import VideoIndex, read_index

# (file, width, height, box): an image, the size of the labelled frame, which it must have, and the labelled one's box.
ImageKey = tuple[Path, int, int, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Window:
    """The sources of the frames around a labelled frame.

    Attributes:
      number: of the labelled frame, None if its name has none.
      keys: the images at the 2 r + 1 offsets from it, None if there is no file.
      index: the video with the folder's name, if a frame of it is needed and it can be read.
      has_video: there is such a video and a frame of it is needed.
    """

    number: int | None
    keys: list[ImageKey | None]
    index: VideoIndex | None
    has_video: bool


def plan_windows(project: Project, radius: int, videos: Mapping[str, Path]) -> list[Window]:
    """Returns the window of each labelled frame; arguments as those of `context.load_windows`."""
    indices: dict[str, VideoIndex | None] = {}
    windows = []
    path_of = dict(zip(project.images, project.paths, strict=True))
    for row, (image, path, video) in enumerate(zip(project.images, project.paths, project.videos, strict=True)):
        name = PurePosixPath(image).name
        number = frame_number(name)
        keys: list[ImageKey | None] = []
        for offset in range(-radius, radius + 1):
            near = path
            if offset and number is not None:
                # An image that lies outside of the project has only labelled ones beside it.
                beside = PurePosixPath(image).with_name(renumbered(name, max(number + offset, 0))).as_posix()
                near = path_of.get(beside, project.folder / beside)
            is_there = not offset or (number is not None and near.is_file())
            keys.append(image_key(project, row, near) if is_there else None)
        has_video = number is not None and None in keys and video in videos
        if has_video and video not in indices:
            indices[video] = _read_index(videos[video])
        windows.append(Window(number, keys, indices[video] if has_video else None, has_video))
    return windows


def image_key(project: Project, row: int, file: Path) -> ImageKey:
    """Returns the key of an image in the window of a row."""
    width, height = project.sizes_px[row].tolist()
    return file, width, height, project.part_px(row, ())


def files_beside(project: Project, radius: int, videos: Mapping[str, Path]) -> list[Path]:
    """Returns the files beside the labelled images that their windows may show: images first, then videos.

    Args:
      project: the labelled frames.
      radius: frames on either side.
      videos: the project's videos by their name without suffix.
    """
    windows = plan_windows(project, radius, videos)
    images = {key[0] for window in windows for key in window.keys if key} - set(project.paths)
    return [*sorted(images), *sorted({window.index.path for window in windows if window.index})]


def frame_number(name: str) -> int | None:
    """Returns the frame number in an image's name: its first group of digits, None if there is none."""
    match = re.search("[0-9]+", Path(name).stem)
    return int(match[0]) if match else None


def renumbered(name: str, number: int) -> str:
    """Returns an image's name with another frame number, padded with as many zeros: img07.png, 8 is img08.png."""
    return re.sub("[0-9]+", lambda match: str(number).zfill(len(match[0])), name, count=1)


def _read_index(path: Path) -> VideoIndex | None:
    try:
        return read_index(path)
    except UserError:
        return None
