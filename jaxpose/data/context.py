"""Loads the frames around each labelled frame, for networks that see several.

The frame before img0007.png is img0006.png in the same folder, unless the pixels contradict that (`data.neighbours`).
Without such a file, it is frame 6 of the video with the folder's name, if frame 7 of that video is the labelled frame;
otherwise it is the nearest available frame. With boxes, all frames of a window show the box of the labelled one.
"""

import collections
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import cv2
import numpy as np

from jaxpose import geometry
from jaxpose.config import DataConfig
from jaxpose.data.checked_table import refuse_link_out_of_project
from jaxpose.data.frame_names import FrameNames, Likeness, find_likeness, number_at, renumbered
from jaxpose.data.image_file import decode_image
from jaxpose.data.images import Frames, fit_affines, fit_key, fit_labelled, keep, read_labelled
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.terminal import count
from jaxpose.threads import map_in_threads
from jaxpose.video.decoding import RangeReader
from jaxpose.video.index import VideoIndex, as_labelled, describe_rotation, read_index

# Finds the image files and video frames around each labelled frame.
#
# The frame before img0007.png is img0006.png in the same folder, unless images there with consecutive numbers differ as
# much as any others. Without such a file, it is frame 6 of the video with the folder's name.

# The origin of a frame: an image file; the video; a repeated frame at the end of the video; or the nearest frame,
# because the frame does not exist, or because the video does not show the labelled frame.
FILE, VIDEO, END, NEAREST, OTHER_VIDEO = range(5)

# (file, width, height, box): an image, and the size and box of the labelled frame.
ImageKey = tuple[Path, int, int, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Window:
    """The sources of the frames around a labelled frame.

    Attributes:
      number: of the labelled frame, None if its name has none.
      keys: the images at the 2 r + 1 offsets from it, None without a file.
      index: the video with the folder's name, if readable and needed.
      has_video: whether such a video exists and is needed.
      likeness: of images in the folder with consecutive numbers; refuted neighbours have no key.
      refuted: number of refuted neighbours around this frame.
    """

    number: int | None
    keys: list[ImageKey | None]
    index: VideoIndex | None
    has_video: bool
    likeness: Likeness
    refuted: int


def plan_windows(project: Project, data: DataConfig, radius: int, videos: Mapping[str, Path]) -> list[Window]:
    """Returns the window of each labelled frame; arguments as in `load_windows`.

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
    """Returns the key of an image in a row's window."""
    width, height = project.sizes_px[row].tolist()
    return file, width, height, project.part_px(row, ())


def files_beside(project: Project, data: DataConfig, radius: int, videos: Mapping[str, Path]) -> list[Path]:
    """Returns the other files that the windows of labelled images may show: images first, then videos.

    Args:
      project: the labelled frames.
      data: how to treat bad frames.
      radius: frames on either side.
      videos: {name without suffix: file} of the project's videos.

    Raises:
      UserError: as `plan_windows`.
    """
    windows = plan_windows(project, data, radius, videos)
    images = {key[0] for window in windows for key in window.keys if key} - set(project.paths)
    return [*sorted(images), *sorted({window.index.path for window in windows if window.index})]


class _Folders:
    """The images in the folders of a project."""

    def __init__(self, project: Project, radius: int):
        self._project, self._radius = project, radius
        self._files: dict[PurePosixPath, tuple[FrameNames, dict[str, Path], dict[str, str]]] = {}
        self._chosen: dict[tuple[PurePosixPath, str], tuple[int | None, Likeness]] = {}
        # Outside the project, only labelled images are neighbours.
        self._labelled: dict[PurePosixPath, dict[str, Path]] = {}
        for image, path in zip(project.poses.frames, project.paths, strict=True):
            self._labelled.setdefault(PurePosixPath(image).parent, {})[PurePosixPath(image).name] = path

    def around(self, image: str) -> tuple[dict[str, Path], dict[str, str], int | None, Likeness]:
        """Returns what the folder of an image holds: {name: file}; {name: why refused} for links out of the project;
        the place of the running number, None without one; and how alike images with consecutive numbers are."""
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
    """Returns {name: file} of a folder of the project, and {name: why refused} for links out of the project."""
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
    """Returns a sort key: places with the most alike consecutive images first, unknown places before unlike ones."""
    likeness = found[1]
    if not likeness.is_known:
        return 1, 0.0
    return (2 if likeness.is_refuted else 0), likeness.near / likeness.far


def _read_index(path: Path) -> VideoIndex | None:
    try:
        return read_index(path)
    except UserError:
        return None


# Describes the frames around labelled ones: their sources and the checks made.


def describe_windows(
    project: Project, windows: list[Window], origins: np.ndarray, videos: Mapping[str, Path]
) -> list[str]:
    """Returns sentences about the frames in windows.

    Args:
      project: n labelled frames.
      windows: of these frames.
      origins: (n, 2 r + 1), of the frames in each window.
      videos: {name without suffix: file} of the project's videos.
    """
    counts = _describe(project, windows, origins, videos)
    return [*counts, *_describe_refuted(project, windows), *_describe_rotations(project, windows)]


def _describe_rotations(project: Project, windows: list[Window]) -> list[str]:
    """Returns a sentence for each video with a rotation."""
    sizes_px: dict[Path, set[tuple[int, int]]] = {}
    indices: dict[Path, VideoIndex] = {}
    for row, (window, (width, height)) in enumerate(zip(windows, project.sizes_px.tolist(), strict=True)):
        if window.index:
            indices[window.index.path] = window.index
            of_frames = sizes_px.setdefault(window.index.path, set())
            of_frames.update([] if project.crop_px(row) else [(width, height)])
    return list(filter(None, (describe_rotation(index, sizes_px[path]) for path, index in indices.items())))


def _describe_refuted(project: Project, windows: list[Window]) -> list[str]:
    """Returns a sentence for each folder whose images are not neighbours although their numbers are."""
    refuted: dict[str, list[Window]] = {}
    for image, window in zip(project.poses.frames, windows, strict=True):
        if window.refuted:
            refuted.setdefault(PurePosixPath(image).parent.as_posix(), []).append(window)
    return [
        f"{folder}: images with consecutive numbers are not used as neighbours in {count(len(found), 'window')}: they "
        f"differ by {found[0].likeness.near:.2g} grey levels, images of other moments by {found[0].likeness.far:.2g}, "
        "so they do not show consecutive frames; put the video of that name into the folder of the videos"
        for folder, found in refuted.items()
    ]


def _describe(project: Project, windows: list[Window], origins: np.ndarray, videos: Mapping[str, Path]) -> list[str]:
    """Returns sentences about window frames, from their origins (n, 2 r + 1)."""
    whole, filled = (origins <= VIDEO).all(axis=1), (origins >= NEAREST).any(axis=1)
    at_end, from_video = ~whole & ~filled, (whole & (origins == VIDEO).any(axis=1)).sum()
    parts = [
        f"context windows: {whole.sum()} of {len(origins)} have {origins.shape[1]} correct frames "
        f"({from_video} of them with some from video)"
    ]
    if at_end.any():
        parts.append(f"{at_end.sum()} repeat the first or last frame of their video")
    if filled.any():
        parts.append(f"{filled.sum()} are filled with the nearest frame")
    beside = np.delete(origins == FILE, origins.shape[1] // 2, axis=1).any(axis=1)
    is_compared = np.array([window.likeness.is_known for window in windows])
    if beside.any():
        compared = (beside & is_compared).sum()
        parts.append(f"{beside.sum()} have neighbours in image files, by name, and {compared} of these by their pixels")
    messages = [", ".join(parts)]
    refused = (origins == OTHER_VIDEO).any(axis=1)
    of_video = np.array(project.videos)
    for name in sorted(set(of_video[refused].tolist())):
        messages.append(
            f"{videos[name]} is not used for {(refused & (of_video == name)).sum()} of {(of_video == name).sum()} "
            "windows: it cannot be read there, or its frame of that number does not show the labelled image"
        )
    return messages


# Heavy compression (H.264, crf 38) changes 0.05 % of the pixels by more than 30 grey levels; the next frame of a
# walking mouse changes 3 %, other scenes 7 % and more.
_DIFFERENT_GREY_LEVELS, _MOST_DIFFERENT = 30, 0.005


def load_windows(
    project: Project, data: DataConfig, size_px: tuple[int, int], radius: int, videos: Mapping[str, Path]
) -> tuple[Frames, list[str]]:
    """Decodes each labelled frame with `radius` frames on either side, or reads them from the cache folder.

    Args:
      project: the labelled frames.
      data: how to fit frames, and the limits of memory and cache.
      size_px: (width, height) of the input.
      radius: frames on either side.
      videos: {name without suffix: file} of the project's videos.

    Returns:
      The frames, with pixels (n, 2 radius + 1, height, width, 3), and sentences about their origins.

    Raises:
      UserError: as `images.load_frames`; or a frame next to a labelled one does not decode or is a link out of the
        project, and `data.on_bad_frame` is stop (with skip, the frame counts as absent).
      OSError: the frames exceed the memory limit and the cache folder cannot be written.
    """
    affines, span = fit_affines(project, data, size_px), 2 * radius + 1
    windows = plan_windows(project, data, radius, videos)
    shape = (span, size_px[1], size_px[0], 3)
    row_bytes = int(np.prod(shape))

    def key() -> str:
        # Content identifies labelled frames; name, size and modification time identify the others.
        files = [
            (str(file), (status := file.stat()).st_size, status.st_mtime_ns)
            for window in windows for file, *_ in filter(None, window.keys)
        ]  # fmt: skip
        used = [
            (window.has_video, window.number, window.index and (window.index.identity, window.index.quarter_turns))
            for window in windows
        ]
        return fit_key(project, affines, size_px, data, radius, data.on_bad_frame, files, used)

    # Each row ends with the origins of its frames, one byte each.
    rows = (
        np.concatenate([pixels.ravel(), origin]) for pixels, origin in _fill(project, data, windows, affines, shape)
    )
    kept = keep((len(windows), row_bytes + span), rows, key, data)
    pixels, origins = kept[:, :row_bytes].reshape(len(windows), *shape), np.asarray(kept[:, row_bytes:])
    frames = Frames(pixels, geometry.invert(affines).astype(np.float32), affines)
    return frames, describe_windows(project, windows, origins, videos)


def check_windows(
    project: Project, data: DataConfig, size_px: tuple[int, int], radius: int, videos: Mapping[str, Path]
) -> list[str]:
    """Decodes the frames that `load_windows` returns without keeping them; returns the same sentences.

    Raises:
      UserError: as `load_windows`.
    """
    windows = plan_windows(project, data, radius, videos)
    shape = (2 * radius + 1, size_px[1], size_px[0], 3)
    filled = _fill(project, data, windows, fit_affines(project, data, size_px), shape)
    return describe_windows(project, windows, np.stack([origin for _, origin in filled]), videos)


def _fill(
    project: Project, data: DataConfig, windows: list[Window], affines: np.ndarray, shape: tuple[int, ...]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the pixels (2 r + 1, height, width, 3) of each window and the origins of its frames (2 r + 1,)."""
    size_px, radius = (shape[2], shape[1]), shape[0] // 2
    uses = collections.Counter(key for window in windows for key in window.keys if key)
    # Each image is decoded once, for the first window that needs it, and held until the last such window is done.
    held: dict[ImageKey, np.ndarray | None] = {}
    wanted: list[list[ImageKey]] = []
    for window in windows:
        wanted.append([key for key in dict.fromkeys(window.keys) if key and key not in held])
        held.update(dict.fromkeys(wanted[-1]))
    labelled = {path: row for row, path in enumerate(project.paths)}

    def decode(row: int) -> tuple[dict[ImageKey, np.ndarray | None], dict[int, np.ndarray]]:
        images: dict[ImageKey, np.ndarray | None] = {}
        for key in wanted[row]:
            beside = labelled.get(key[0])
            if beside is not None and key == image_key(project, beside, key[0]):
                images[key] = read_labelled(project, beside, affines[beside], size_px, data)
            else:
                images[key] = _read_beside(project, row, key, affines[row], size_px, data)
        part_px = project.part_px(row, data.crop_px)
        return images, _read_video(project, row, windows[row], affines[row], size_px, radius, part_px)

    decoded = map_in_threads(decode, range(len(windows)), data.threads, "decoding images")
    for window, (images, shown) in zip(windows, decoded, strict=True):
        held.update(images)
        yield _join(window, [held[key] if key else None for key in window.keys], shown)
        for key in window.keys:
            if key:
                uses[key] -= 1
                if not uses[key]:
                    del held[key]


def _read_beside(
    project: Project, row: int, key: ImageKey, affine: np.ndarray, size_px: tuple[int, int], data: DataConfig
) -> np.ndarray | None:
    """Returns an image next to a row's labelled image, None if it differs in size."""
    file, width, height, _ = key
    try:
        image = decode_image(read_bytes(file, most_bytes=None), project.pixel_rule(data.white))
    except UserError as error:
        if data.on_bad_frame == "skip":
            return None
        raise UserError(
            f"{project.sources[row]}: {file}, a frame next to the labelled one: {error}; remove it"
        ) from None
    if image.shape[:2] != (height, width):
        return None
    return fit_labelled(project, row, image, affine, size_px, data.resize, project.part_px(row, data.crop_px))


def _read_video(
    project: Project,
    row: int,
    window: Window,
    affine: np.ndarray,
    size_px: tuple[int, int],
    radius: int,
    crop_px: tuple[int, ...],
) -> dict[int, np.ndarray]:
    """Returns {number: frame} of the video, without missing and damaged frames.

    Frames beyond a gap of lost frames are not neighbours, so they are also left out.
    """
    number, shown_px = window.number, project.crop_px(row)
    size = (int(project.sizes_px[row, 0]), int(project.sizes_px[row, 1]))
    # The size of a crop does not show whether frames are rotated.
    index = as_labelled(window.index, [] if shown_px else [size]) if window.index else None
    if index is None or number is None:
        return {}
    frame_px = (index.width_px, index.height_px)
    if np.any(np.add(shown_px[:2], shown_px[2:]) > frame_px) if shown_px else frame_px != size:
        return {}
    first = max([number - radius, 0, *(leap for leap in index.leaps if leap <= number)])
    end = min([number + radius + 1, index.frame_count, *(leap for leap in index.leaps if leap > number)])
    reader = RangeReader(index, first, end, affine, size_px, crop_px=shown_px or crop_px)
    frames = dict(reader)
    for damage in reader.damage:
        frames = {at: frame for at, frame in frames.items() if not damage.first <= at <= damage.last}
    return frames


def _join(
    window: Window, images: list[np.ndarray | None], shown: dict[int, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a window (2 r + 1, height, width, 3) and the origins of its frames (2 r + 1,).

    Args:
      window: the wanted frames.
      images: the pixels of its image files, None without a file.
      shown: {number: frame} of its video, used only if one of them looks like the labelled image.
    """
    radius = len(images) // 2
    labelled, same = images[radius], shown.get(window.number or 0)
    if labelled is None or same is None or not _look_alike(same, labelled):
        shown = {}
    choices = {offset: _choose(window, offset, images[radius + offset], shown) for offset in range(-radius, radius + 1)}
    right = {offset: choice for offset, choice in choices.items() if choice}
    # On a tie, prefers the frame closer to the labelled one.
    nearest = {offset: min((abs(at - offset), abs(at), at) for at in right)[-1] for offset in choices}
    lacking = OTHER_VIDEO if window.has_video and not shown else NEAREST
    ordered = [choice or (right[nearest[offset]][0], lacking) for offset, choice in choices.items()]
    return np.stack([image for image, _ in ordered]), np.array([origin for _, origin in ordered], np.uint8)


def _choose(
    window: Window, offset: int, image: np.ndarray | None, shown: dict[int, np.ndarray]
) -> tuple[np.ndarray, int] | None:
    """Returns the frame at an offset from the labelled one and its origin; None if file and video lack it."""
    wanted = (window.number or 0) + offset
    existing = max(wanted, 0)
    if image is not None:
        return image, FILE if existing == wanted else END
    if not shown or not window.index:
        return None
    existing = min(existing, window.index.frame_count - 1)
    return (shown[existing], VIDEO if existing == wanted else END) if existing in shown else None


def _look_alike(frame: np.ndarray, image: np.ndarray) -> bool:
    grey, other = (cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY) for pixels in (frame, image))
    return bool((cv2.absdiff(grey, other) > _DIFFERENT_GREY_LEVELS).mean() <= _MOST_DIFFERENT)
