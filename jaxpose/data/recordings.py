"""Compares the labelled images with the videos of their names: a video of other frames is another recording."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.data.checked_table import describe_resized
from jaxpose.data.image_file import decode_image
from jaxpose.data.named_files import of_name
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.threads import map_in_threads
from jaxpose.video.file import Video, scan
from jaxpose.video.index import read_index
from jaxpose.video.range import RangeReader
from jaxpose.video.recording import has_proportions

# As DeepLabCut and Lightning Pose name the images that they take from videos. Other names may hold other numbers.
_FRAME_NAME = re.compile(r"img([0-9]+)")
# Frames of one scene differ little, even if the number of an image is not quite that of its frame.
_COMPARED_IMAGES, _LEAST_CORRELATION = 3, 0.5


def check_recordings(found: Project, files: Mapping[str, Path], threads: int) -> list[str]:
    """Compares the images of each folder with the video of that name, if there is one.

    Args:
      found: the labelled images.
      files: the project's videos by their name without suffix.
      threads: that read the videos.

    Returns:
      Sentences about images of another size than the frames, and about videos that end before a labelled frame, which
      the notes of the project do not have yet.

    Raises:
      UserError: no image of a folder has the proportions of the frames of its video, upright or as they are stored; or
        the images are crops from the corner of larger frames and do not show it.
    """
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(found.videos):
        rows.setdefault(name, []).append(row)
    named = {name: file for name in rows if (file := of_name(name, files))}
    videos = zip(named, map_in_threads(_look, list(named.values()), threads, "comparing the videos"), strict=True)
    return [note for name, video in videos if video for note in _compare(found, name, rows[name], video)]


def _look(file: Path) -> Video | None:
    try:
        return scan(file)
    except UserError:
        return None  # reported where the video is needed


def _compare(found: Project, name: str, rows: list[int], video: Video) -> list[str]:
    frame_px = (video.width_px, video.height_px)
    shown = [tuple(found.sizes_px[row].tolist()) for row in rows if not found.crop_px(row)]
    shapes = [frame_px, frame_px[::-1]] if video.quarter_turns % 2 else [frame_px]
    fitting = [size_px for size_px in shown if any(has_proportions(size_px, shape) for shape in shapes)]
    if shown and not fitting:
        width, height = min(shown)
        raise UserError(
            f"the labelled images of {name} have {width} x {height} pixels, but the frames of {video.path} have "
            f"{frame_px[0]} x {frame_px[1]}: it is another recording; put the right one there, or rename this one"
        )
    resized = sum(size_px not in shapes for size_px in fitting)
    notes = [describe_resized(name, resized, frame_px)] * bool(resized)
    numbers = [(int(match[1]), row) for row in rows if (match := _FRAME_NAME.fullmatch(_stem(found, row)))]
    _refuse_other_corner(found, name, numbers, video)
    last, row = max(numbers, default=(-1, 0))
    if last >= video.expected_frames:
        notes.append(
            f"{video.path} has {video.expected_frames} frames, but {found.poses.frames[row]} is a later one: it was "
            "cut, or is another recording"
        )
    return [note for note in notes if note not in found.notes]


def _refuse_other_corner(found: Project, name: str, numbers: list[tuple[int, int]], video: Video) -> None:
    """Refuses a video whose frames do not show the images at their corner, where the images are crops from there.

    DeepLabCut writes the crop 0, width, 0, height for whole frames: then a larger video is another recording.

    Args:
      found: the labelled images.
      name: of the video.
      numbers: (frame, row) of its images.
      video: its file.
    """
    corners = [(number, row) for number, row in numbers if found.crop_px(row)[:2] == (0, 0)][:_COMPARED_IMAGES]
    alike = [_is_corner(found, row, number, video) for number, row in corners]
    if False in alike and True not in alike:
        _, _, width, height = found.crop_px(corners[0][1])
        raise UserError(
            f"the labelled images of {name} have {width} x {height} pixels and do not show the corner of the frames of "
            f"{video.path}, which have {video.width_px} x {video.height_px}: it is another recording; put the right "
            "one there, or rename this one"
        )


def _is_corner(found: Project, row: int, number: int, video: Video) -> bool | None:
    """Returns whether an image looks like the corner of a frame, None if that cannot be seen."""
    _, _, width, height = found.crop_px(row)
    try:
        image = decode_image(
            read_bytes(found.paths[row], most_bytes=None), found.pixel_rule(found.white), is_known=True
        )
        index = read_index(video.path)
    except (UserError, OSError):
        return None
    last = min(number + 1, index.frame_count)
    frames = dict(RangeReader(index, number, last, np.eye(2, 3), (width, height))) if number < last else {}
    if number not in frames or not image.std() or not frames[number].std():
        return None
    return bool(np.corrcoef(image.ravel(), frames[number].ravel())[0, 1] >= _LEAST_CORRELATION)


def _stem(found: Project, row: int) -> str:
    return PurePosixPath(found.poses.frames[row]).stem
