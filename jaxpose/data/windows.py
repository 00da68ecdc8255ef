"""Finds the files and video frames around each labelled frame.

The frame before img0007.png is img0006.png in the same folder, unless images with consecutive numbers differ there as
much as others do. Where there is no such file, it is frame 6 of the video with the folder's name.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from jaxpose.config import DataConfig
from jaxpose.data.frame_names import FrameNames, number_at, renumbered
from jaxpose.data.neighbours import Likeness, find_likeness
from jaxpose.data.outside_links import refuse_link_out_of_project
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


def plan_windows(project: Project, data: DataConfig, radius: int, videos: Mapping[str, Path]) -> list[Window]:
    """Returns the window of each labelled frame; arguments as those of `context.load_windows`.

    Raises:
      UserError: an image next to a labelled one is a link out of the project and `data.on_bad_frame` is stop (with
        skip, it counts as absent).
    """
    indices: dict[str, VideoIndex | None] = {}
    windows = []
    folders = _Folders(project, radius)
    for row, (image, path, video) in enumerate(zip(project.poses.frames, project.paths, project.videos, strict=True)):
        files, links, place, likeness = folders.around(image)
        name = PurePosixPath(image).name
        number = None if place is None else number_at(name, place)
        near: list[Path | None] = [path if not offset else None for offset in range(-radius, radius + 1)]
        if place is not None and number is not None:
            for at in (at for at in range(len(near)) if at != radius):
                neighbour = renumbered(name, place, max(number + at - radius, 0))
                if neighbour in links and data.on_bad_frame == "stop" and not likeness.is_refuted:
                    raise UserError(f"{project.sources[row]}: a frame next to the labelled one: {links[neighbour]}")
                near[at] = files.get(neighbour)
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


def files_beside(project: Project, data: DataConfig, radius: int, videos: Mapping[str, Path]) -> list[Path]:
    """Returns the files next to the labelled images that their windows may show: images first, then videos.

    Args:
      project: the labelled frames.
      data: what to do with bad frames.
      radius: frames on either side.
      videos: the project's videos by their name without suffix.

    Raises:
      UserError: as `plan_windows`.
    """
    windows = plan_windows(project, data, radius, videos)
    images = {key[0] for window in windows for key in window.keys if key} - set(project.paths)
    return [*sorted(images), *sorted({window.index.path for window in windows if window.index})]


class _Folders:
    """The images of the folders of a project."""

    def __init__(self, project: Project, radius: int):
        self._project, self._radius = project, radius
        self._files: dict[PurePosixPath, tuple[FrameNames, dict[str, Path], dict[str, str]]] = {}
        self._chosen: dict[tuple[PurePosixPath, str], tuple[int | None, Likeness]] = {}
        # An image that lies outside of the project has only labelled ones around it.
        self._labelled: dict[PurePosixPath, dict[str, Path]] = {}
        for image, path in zip(project.poses.frames, project.paths, strict=True):
            self._labelled.setdefault(PurePosixPath(image).parent, {})[PurePosixPath(image).name] = path

    def around(self, image: str) -> tuple[dict[str, Path], dict[str, str], int | None, Likeness]:
        """Returns the files in the folder of an image by name; links out of the project by name, and why they are
        refused; the place of the number that runs, None without a number; and how alike images with consecutive
        numbers are."""
        folder, name = PurePosixPath(image).parent, PurePosixPath(image).name
        if folder not in self._files:
            files, links = _files_in(self._project.folder, folder)
            files |= self._labelled[folder]
            self._files[folder] = FrameNames(files), files, links
        names, files, links = self._files[folder]
        alike = names.of_shape(name)
        if (folder, alike[0]) not in self._chosen:
            of_shape = {other: files[other] for other in alike}
            found = [(place, find_likeness(of_shape, place, self._radius)) for place in names.places(name)]
            self._chosen[folder, alike[0]] = min(found, key=_rank, default=(None, Likeness()))
        return files, links, *self._chosen[folder, alike[0]]


def _files_in(project: Path, folder: PurePosixPath) -> tuple[dict[str, Path], dict[str, str]]:
    """Returns the files of a folder of the project by name; and the links out of it, each with the reason why not."""
    files: dict[str, Path] = {}
    links: dict[str, str] = {}
    if not (project / folder).is_dir():
        return files, links
    with os.scandir(project / folder) as entries:
        for entry in (entry for entry in entries if entry.is_file()):
            file = project / folder / entry.name
            try:
                refuse_link_out_of_project(file, (folder / entry.name).as_posix())
                files[entry.name] = file
            except UserError as error:
                links[entry.name] = str(error)
    return files, links


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
