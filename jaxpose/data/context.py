"""Labelled frames with the frames around them, for networks that look at several.

The frame before img0007.png is img0006.png in the same folder, unless pixels refute that (`data.neighbours`). Without
such a file, it is frame 6 of the video of the folder's name, if frame 7 of that video is the labelled frame; otherwise
it is the nearest frame found. With boxes, all frames of a window show the box of the labelled one.
"""

import collections
from collections.abc import Iterator, Mapping
from pathlib import Path

import cv2
import numpy as np

from jaxpose import geometry
from jaxpose.config import DataConfig
from jaxpose.data.image_file import decode_image
from jaxpose.data.images import Frames, fit_affines, fit_key, fit_labelled, keep, read_labelled
from jaxpose.data.project import Project
from jaxpose.data.window_report import describe_windows
from jaxpose.data.windows import END, FILE, NEAREST, OTHER_VIDEO, VIDEO, ImageKey, Window, image_key, plan_windows
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.threads import map_in_threads
from jaxpose.video.range import RangeReader
from jaxpose.video.rotation import as_labelled

# Heavy compression (H.264, crf 38) changes 0.05 % of the pixels by more than 30 grey levels; in the next frame of a
# walking mouse it is 3 %, in other scenes 7 % and more.
_DIFFERENT_GREY_LEVELS, _MOST_DIFFERENT = 30, 0.005


def load_windows(
    project: Project, data: DataConfig, size_px: tuple[int, int], radius: int, videos: Mapping[str, Path]
) -> tuple[Frames, list[str]]:
    """Decodes each labelled frame with `radius` frames on either side of it, or finds them in the cache folder.

    Args:
      project: the labelled frames.
      data: how they are fitted, and the limits of memory and cache.
      size_px: (width, height) of the input.
      radius: frames on either side.
      videos: the project's videos by their name without suffix.

    Returns:
      The frames, with pixels (n, 2 radius + 1, height, width, 3), and sentences about their origins.

    Raises:
      UserError: as `images.load_frames`; or a frame next to a labelled one does not decode or is a link out of the
        project, and `data.on_bad_frame` is stop (with skip, the frame counts as absent).
      OSError: the frames are above the limit of memory, and the cache folder cannot be written.
    """
    affines, span = fit_affines(project, data, size_px), 2 * radius + 1
    windows = plan_windows(project, data, radius, videos)
    shape = (span, size_px[1], size_px[0], 3)
    row_bytes = int(np.prod(shape))

    def key() -> str:
        # Labelled frames are identified by their content; the others by name, size and modification time.
        files = [
            (str(file), (status := file.stat()).st_size, status.st_mtime_ns)
            for window in windows for file, *_ in filter(None, window.keys)
        ]  # fmt: skip
        used = [
            (window.has_video, window.number, window.index and (window.index.identity, window.index.quarter_turns))
            for window in windows
        ]
        return fit_key(project, affines, size_px, data, radius, data.on_bad_frame, files, used)

    # Each row ends with the origins of its frames, a byte each.
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
    """Decodes the frames that `load_windows` returns, keeps none, and returns the same sentences about them.

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
    # Every image is decoded once, for the first window that needs it, and held until the last one has it.
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
    """Returns an image next to the labelled one of a row, None if it has another size."""
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
    """Returns the frames of the video by their number, except missing and damaged ones.

    Frames beyond a place where frames are lost are not neighbours, so they are left out, too.
    """
    number, shown_px = window.number, project.crop_px(row)
    size = (int(project.sizes_px[row, 0]), int(project.sizes_px[row, 1]))
    # The size of a crop does not tell whether frames are rotated.
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
      window: what is wanted.
      images: the pixels of its image files, None if there is none.
      shown: frames of its video by their number, used only if one of them looks like the labelled image.
    """
    radius = len(images) // 2
    labelled, same = images[radius], shown.get(window.number or 0)
    if labelled is None or same is None or not _look_alike(same, labelled):
        shown = {}
    choices = {offset: _choose(window, offset, images[radius + offset], shown) for offset in range(-radius, radius + 1)}
    right = {offset: choice for offset, choice in choices.items() if choice}
    # Of two that are equally near, the one towards the labelled frame.
    nearest = {offset: min((abs(at - offset), abs(at), at) for at in right)[-1] for offset in choices}
    lacking = OTHER_VIDEO if window.has_video and not shown else NEAREST
    ordered = [choice or (right[nearest[offset]][0], lacking) for offset, choice in choices.items()]
    return np.stack([image for image, _ in ordered]), np.array([origin for _, origin in ordered], np.uint8)


def _choose(
    window: Window, offset: int, image: np.ndarray | None, shown: dict[int, np.ndarray]
) -> tuple[np.ndarray, int] | None:
    """Returns the frame at an offset from the labelled one and its origin, None if neither file nor video has it."""
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
