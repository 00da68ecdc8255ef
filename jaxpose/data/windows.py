"""Finds the files and video frames around each labelled frame.

The frame before img0007.png is img0006.png in the same folder, unless images with consecutive numbers differ there as
much as others do. Where there is no such file, it is frame 6 of the video with the folder's name.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from jaxpose.data.frame_names import FrameNames, number_at, renumbered
from jaxpose.data.neighbours import Likeness, find_likeness
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.video.index import VideoIndex, read_index

# The origin of a frame: an image file; the video; a repeated frame at the end of the video; the nearest frame, because
# the frame does not exist; or the nearest frame, because the video does not show the labelled frame.
FILE, VIDEO, END, NEAREST, OTHER_VIDEO = range(5)

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
      likeness: of images in its folder with consecutive numbers; refuted ones have no key.
      refuted: how many of them lie around this frame.
    """

    number: int | None
    keys: list[ImageKey | None]
    index: VideoIndex | None
    has_video: bool
    likeness: Likeness
    refuted: int


def plan_windows(project: Project, radius: int, videos: Mapping[str, Path]) -> list[Window]:
    """Returns the window of each labelled frame; arguments as those of `context.load_windows`."""
    indices: dict[str, VideoIndex | None] = {}
    windows = []
    folders = _Folders(project, radius)
    for row, (image, path, video) in enumerate(zip(project.images, project.paths, project.videos, strict=True)):
        files, place, likeness = folders.around(image)
        name = PurePosixPath(image).name
        number = None if place is None else number_at(name, place)
        near: list[Path | None] = [path if not offset else None for offset in range(-radius, radius + 1)]
        if place is not None and number is not None:
            for at in (at for at in range(len(near)) if at != radius):
                near[at] = files.get(renumbered(name, place, max(number + at - radius, 0)))
        refuted = sum(file is not None for file in near) - 1 if likeness.is_refuted else 0
        keys = [
            image_key(project, row, file) if file and (at == radius or not refuted) else None
            for at, file in enumerate(near)
        ]
        has_video = number is not None and None in keys and video in videos
        if has_video and video not in indices:
            indices[video] = _read_index(videos[video])
        windows.append(Window(number, keys, indices[video] if has_video else None, has_video, likeness, refuted))
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


class _Folders:
    """The images of the folders of a project."""

    def __init__(self, project: Project, radius: int):
        self._project, self._radius = project, radius
        self._files: dict[PurePosixPath, tuple[FrameNames, dict[str, Path]]] = {}
        self._chosen: dict[tuple[PurePosixPath, str], tuple[int | None, Likeness]] = {}
        # An image that lies outside of the project has only labelled ones around it.
        self._labelled: dict[PurePosixPath, dict[str, Path]] = {}
        for image, path in zip(project.images, project.paths, strict=True):
            self._labelled.setdefault(PurePosixPath(image).parent, {})[PurePosixPath(image).name] = path

    def around(self, image: str) -> tuple[dict[str, Path], int | None, Likeness]:
        """Returns the files in the folder of an image by name, the place of the number that runs, None without a
        number, and how alike images with consecutive numbers are."""
        folder, name = PurePosixPath(image).parent, PurePosixPath(image).name
        if folder not in self._files:
            files = _files_in(self._project.folder / folder) | self._labelled[folder]
            self._files[folder] = FrameNames(files), files
        names, files = self._files[folder]
        alike = names.of_shape(name)
        if (folder, alike[0]) not in self._chosen:
            of_shape = {other: files[other] for other in alike}
            found = [(place, find_likeness(of_shape, place, self._radius)) for place in names.places(name)]
            self._chosen[folder, alike[0]] = min(found, key=_rank, default=(None, Likeness()))
        return files, *self._chosen[folder, alike[0]]


def _files_in(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as entries:
        return {entry.name: folder / entry.name for entry in entries if entry.is_file()}


def _rank(found: tuple[int | None, Likeness]) -> tuple[int, float]:
    """Returns a key that is least for the place where consecutive images are most alike; unknown goes before unlike."""
    likeness = found[1]
    if not likeness.is_known:
        return 1, 0.0
    return (2 if likeness.is_refuted else 0), likeness.near / likeness.far


def _read_index(path: Path) -> VideoIndex | None:
    try:
        return read_index(path)
    except UserError:
        return None
