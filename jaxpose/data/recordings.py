"""Compares the labelled images with the videos of their names: a video of other frames is another recording."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from jaxpose.data.named_files import of_name
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.threads import map_in_threads
from jaxpose.video.file import Video, scan
from jaxpose.video.recording import has_proportions

# As DeepLabCut and Lightning Pose name the images that they take from videos. Other names may hold other numbers.
_FRAME_NAME = re.compile(r"img([0-9]+)")


def check_recordings(found: Project, files: Mapping[str, Path], threads: int) -> list[str]:
    """Compares the images of each folder with the video of that name, if there is one.

    Args:
      found: the labelled images.
      files: the project's videos by their name without suffix.
      threads: that read the videos.

    Returns:
      Sentences about videos that end before a labelled frame.

    Raises:
      UserError: no image of a folder has the proportions of the frames of its video, upright or as they are stored.
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
    shown = {tuple(found.sizes_px[row].tolist()) for row in rows if not found.crop_px(row)}
    shapes = [frame_px, frame_px[::-1]] if video.quarter_turns % 2 else [frame_px]
    if shown and not any(has_proportions(size_px, shape) for size_px in shown for shape in shapes):
        width, height = min(shown)
        raise UserError(
            f"the labelled images of {name} have {width} x {height} pixels, but the frames of {video.path} have "
            f"{frame_px[0]} x {frame_px[1]}: it is another recording; put the right one there, or rename this one"
        )
    stems = [(int(match[1]), row) for row in rows if (match := _FRAME_NAME.fullmatch(_stem(found, row)))]
    last, row = max(stems, default=(-1, 0))
    if last < video.expected_frames:
        return []
    return [
        f"{video.path} has {video.expected_frames} frames, but {found.images[row]} is a later one: it was cut, or is "
        "another recording"
    ]


def _stem(found: Project, row: int) -> str:
    return PurePosixPath(found.images[row]).stem
