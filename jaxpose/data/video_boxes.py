"""The boxes of the frames of videos, <video>_bbox.csv: a row for each frame."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.config import DataConfig, project_folder
from jaxpose.data.boxes import LEAST_PX, clamp_boxes, describe_outside, read_boxes
from jaxpose.errors import UserError
from jaxpose.video.file import scan
from jaxpose.video.index import VideoIndex, read_index
from jaxpose.video.rotation import as_labelled, labelled_sizes_px
from jaxpose.video.video import Video


def video_boxes_folder(data: DataConfig) -> Path | None:
    """Returns the folder with the boxes of the videos of a run, None without boxes."""
    if not data.boxes:
        return None
    return project_folder(data.project) / (data.video_boxes or PurePosixPath(data.boxes).parent)


def box_file_name(video: Path) -> str:
    """Returns the name of the file with the boxes of a video's frames."""
    return f"{video.stem}_bbox.csv"


def video_box_file(folder: Path, video: Path) -> Path:
    """Returns the file with the boxes of a video's frames.

    Raises:
      UserError: it does not exist.
    """
    file = folder / box_file_name(video)
    if not file.is_file():
        raise UserError(f"{video} needs boxes, but there is no file {file}; jaxpose crop makes it")
    return file


def read_video_boxes(file: Path, video: Video | VideoIndex) -> np.ndarray:
    """Returns the boxes (n, 4) of the frames of a video, inside of its frames, width 0 without one.

    Args:
      file: as `video_box_file` returned it.
      video: with the size of its frames as they are read.

    Raises:
      UserError: the file is not such a CSV or has other frames than the video, no frame has a box, or a box lies
        outside of its frame.
    """
    table, size_px = read_boxes(file), (video.width_px, video.height_px)
    for number, (name, line) in enumerate(zip(table.names, table.lines, strict=True)):
        if name != str(number):
            raise UserError(f"{file}:{line}: the first cell is {name!r}; it must be {number}, the number of the frame")
    rows, frames = len(table.names), video.frame_count if isinstance(video, VideoIndex) else video.expected_frames
    if rows != frames:
        # Without reading all of it, a video may announce more frames than it has.
        frames = read_index(video.path).frame_count
    if rows != frames:
        raise UserError(f"{file} has {rows} rows, but {video.path} has {frames} frames; each frame needs a row")
    is_box = table.boxes_px[:, 2] > 0
    if not is_box.any():
        raise UserError(f"{file} has no box at all; without one, the network sees nothing of {video.path}")
    clamped = clamp_boxes(table.boxes_px, size_px)
    outside = np.flatnonzero(is_box & (clamped[:, 2:].min(axis=1) < LEAST_PX)).tolist()
    if outside:
        more = f"; so do {len(outside) - 1} more" if len(outside) > 1 else ""
        place = f"{file}:{table.lines[outside[0]]}"
        raise UserError(f"{place}: {describe_outside(table.boxes_px[outside[0]], size_px)}{more}")
    return np.where(is_box[:, None], clamped, 0)


def describe_boxes(data: DataConfig, files: Sequence[Path]) -> list[str]:
    """Returns sentences about the boxes of a run, and each reason why a video cannot be predicted in its boxes.

    Args:
      data: of the run.
      files: the videos of the project.
    """
    folder, labelled_px = video_boxes_folder(data), labelled_sizes_px(data)
    if not folder:
        return []
    notes = [f"{data.boxes}: the network sees the part of each image that lies in its box"]
    for file in files:
        try:
            read_video_boxes(video_box_file(folder, file), as_labelled(scan(file), labelled_px))
        except UserError as error:
            notes.append(f"{file.name} will not be predicted: {error}")
    return notes


def boxes_of_videos(data: DataConfig, files: Sequence[Path]) -> dict[Path, np.ndarray]:
    """Returns {video: boxes (n, 4)} of the videos of clips, as `read_video_boxes` does; {} without boxes.

    Raises:
      UserError: as `read_video_boxes`, or a video has no file of boxes.
    """
    folder, labelled_px = video_boxes_folder(data), labelled_sizes_px(data)
    if not folder:
        return {}
    indexes = [as_labelled(read_index(file), labelled_px) for file in files]
    return {index.path: read_video_boxes(video_box_file(folder, index.path), index) for index in indexes}
