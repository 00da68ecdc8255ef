"""Reads, writes and makes bounding boxes in pixels of the frame. The network sees only the part inside a box.

Input: CSV files in the layout of Lightning Pose, with a row for each labelled image or each frame of a video: its path
or its number, then x, y (the top left pixel), h and w. Output: boxes (x, y, width, height) inside frames.
"""

import csv
import dataclasses
import hashlib
import io
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.config import DataConfig, project_folder
from jaxpose.data.cells import one_name, parse_number, path_cell, path_of_cell, spelling_note
from jaxpose.data.label_files import ENDINGS, label_file_of_view
from jaxpose.data.labels import EMPTY
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.text_file import read_unicode
from jaxpose.video.file import scan
from jaxpose.video.index import VideoIndex, as_labelled, labelled_sizes_px, read_index
from jaxpose.video.video import Video

# In column order; h comes before w.
_COLUMNS = ("x", "y", "h", "w")
# A box must hold at least this many rows and columns of its frame; images of one pixel are refused for the same reason.
LEAST_PX = 2


@dataclasses.dataclass(frozen=True)
class BoxTable:
    """The rows of a box file.

    Attributes:
      file: the CSV.
      names: n cells of the first column: image paths or frame numbers.
      lines: n line numbers in the file, starting at 1.
      boxes_px: (n, 4) int64 (x, y, width, height), rounded to whole pixels; width 0 without a box.
    """

    file: Path
    names: tuple[str, ...]
    lines: tuple[int, ...]
    boxes_px: np.ndarray

    def inside(self, row: int, frame_size_px: tuple[int, int]) -> tuple[int, ...]:
        """Returns the part (x, y, width, height) of a box that lies in its frame of (width, height).

        Raises:
          UserError: the row has no box, or the box lies outside the frame.
        """
        place = f"{self.file}:{self.lines[row]}"
        if not self.boxes_px[row, 2]:
            raise UserError(f"{place} has no box for {self.names[row]}")
        (box,) = clamp_boxes(self.boxes_px[row : row + 1], frame_size_px).tolist()
        if min(box[2:]) < LEAST_PX:
            raise UserError(f"{place}: {describe_outside(self.boxes_px[row], frame_size_px)}")
        return tuple(box)


def clamp_boxes(boxes_px: np.ndarray, frame_size_px: tuple[int, int]) -> np.ndarray:
    """Returns the parts of boxes (n, 4) inside a frame of (width, height); a box outside has a side of 0."""
    low = np.clip(boxes_px[:, :2], 0, frame_size_px)
    high = np.clip(boxes_px[:, :2] + boxes_px[:, 2:], 0, frame_size_px)
    return np.concatenate([low, high - low], axis=1)


def describe_outside(box_px: np.ndarray, frame_size_px: tuple[int, int]) -> str:
    """Returns a clause about a box that covers fewer than two rows or columns of its frame."""
    x, y, width, height = box_px.tolist()
    return (
        f"the box x = {x}, y = {y}, w = {width}, h = {height} lies outside of the frame of {frame_size_px[0]} x "
        f"{frame_size_px[1]} px, or has less than {LEAST_PX} of its rows or columns in it"
    )


def box_file_of_labels(data: DataConfig, labels: str, view: str) -> Path:
    """Returns the box file of a label file.

    For CollectedData_new.csv, it is bbox_new.csv next to bbox.csv, if it exists.

    Args:
      data: names the file in `boxes`.
      labels: name of the label file, including the view.
      view: of the labels, "" with one camera.
    """
    folder, file = project_folder(data.project), PurePosixPath(data.boxes)
    stem = PurePosixPath(labels).stem
    for ending in ENDINGS:
        extra = label_file_of_view(file.with_name(f"{file.stem}{ending}{file.suffix}").as_posix(), view)
        if stem.endswith(ending) and (folder / extra).is_file():
            return folder / extra
    return folder / label_file_of_view(data.boxes, view)


def read_boxes(file: Path) -> BoxTable:
    """Reads a box file. Fractional numbers are rounded; a row with four empty cells has no box.

    Raises:
      UserError: the file does not exist or is not a valid box CSV; the message names the line.
    """
    try:
        reader = csv.reader(
            io.StringIO(read_unicode(file, "CSV file", "boxes have the columns x, y, h and w"), newline="")
        )
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise UserError(f"the box file {file} does not exist; jaxpose crop writes one") from None
    except csv.Error as error:
        raise UserError(f"{file} is not a CSV file: {error}") from None
    header = rows[0][1] if rows else []
    if sorted(header[1:]) != sorted(_COLUMNS):
        rule = "it must be a column without a name, then x, y, h and w"
        raise UserError(f"{file} has the header {','.join(header)!r}; {rule}")
    columns = [header.index(name, 1) for name in ("x", "y", "w", "h")]
    boxes = [_read_box(file, line, row, columns, len(header)) for line, row in rows[1:]]
    return BoxTable(
        file,
        tuple(path_of_cell(row[0]) for _, row in rows[1:]),
        tuple(line for line, _ in rows[1:]),
        np.array(boxes, np.int64).reshape(-1, 4),
    )


def read_image_boxes(file: Path) -> tuple[BoxTable, dict[str, int]]:
    """Returns the boxes of images, and {path: row}; paths have forward slashes.

    Raises:
      UserError: as `read_boxes`, or an image has two rows.
    """
    table, rows = read_boxes(file), dict[str, int]()
    for row, name in enumerate(table.names):
        path = PurePosixPath(name.replace("\\", "/")).as_posix()
        if path in rows:
            raise UserError(f"{file}:{table.lines[row]}: {path} already has a box in line {table.lines[rows[path]]}")
        rows[path] = row
    return table, rows


def write_boxes(file: Path, names: Sequence[str], boxes_px: np.ndarray) -> None:
    """Writes a file that `read_boxes` reads.

    Args:
      file: the CSV.
      names: n image paths or frame numbers.
      boxes_px: (n, 4) whole numbers (x, y, width, height).
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["", *_COLUMNS])
    for name, (x, y, width, height) in zip(names, boxes_px.tolist(), strict=True):
        writer.writerow([path_cell(name), x, y, height, width])
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, text.getvalue().encode())


def boxes_checksum(boxes_px: Sequence[Sequence[int]] | np.ndarray, *of_videos: np.ndarray) -> str:
    """Returns the SHA-256 of boxes in hexadecimal, "" without boxes.

    Args:
      boxes_px: n boxes (x, y, width, height) of the labelled frames, in order.
      of_videos: (m, 4) boxes of each video of clips, in order.
    """
    if not len(boxes_px):
        return ""
    parts = [np.asarray(part, "<i8") for part in (boxes_px, *of_videos)]
    digest = hashlib.sha256(repr([part.shape for part in parts]).encode())
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


def _read_box(file: Path, line: int, row: list[str], columns: list[int], width: int) -> list[int]:
    """Returns x, y, width and height of a row, zeros without a box.

    Raises:
      UserError: the row is not a box.
    """
    if len(row) != width:
        raise UserError(f"{file}:{line}: {len(row)} cells instead of {width}")
    cells = [row[column] for column in columns]
    is_empty = [cell.lower() in EMPTY for cell in cells]
    if all(is_empty):
        return [0, 0, 0, 0]
    try:
        # Rounds halves up; Python's round would go to the even number.
        box = [math.floor(parse_number(cell) + 0.5) for cell in cells]
    except (ValueError, OverflowError):
        raise UserError(
            f"{file}:{line}: x, y, w, h are {', '.join(cells)}; they must be numbers, or all empty"
        ) from None
    if min(box[2:]) < 1 or max(map(abs, box)) > 2**31:
        raise UserError(f"{file}:{line}: w and h are {cells[2]} and {cells[3]}; both must be at least 1 pixel")
    return box


# Makes boxes of one size around poses, so that the network always sees the animal at the same scale.


def side_of_poses(poses_px: np.ndarray, ratio: float) -> int:
    """Returns the even side of a square box in px: `ratio` times the longest side of a pose, 0 without a pose.

    Args:
      poses_px: (n, k, 2) labels, NaN where missing.
      ratio: 1 makes a box that just holds the largest pose.
    """
    known = poses_px[np.isfinite(poses_px).all(axis=-1).any(axis=-1)]
    if not len(known):
        return 0
    largest = float((np.nanmax(known, axis=1) - np.nanmin(known, axis=1)).max())
    # Video codecs need even sides.
    return 2 * math.ceil(max(ratio * (largest + 1), 2) / 2)


def centres_of_poses(poses_px: np.ndarray, confidence: np.ndarray, least: float) -> np.ndarray:
    """Returns the midpoint (n, 2) of the outermost keypoints of each pose, NaN where no keypoint counts.

    Args:
      poses_px: (n, k, 2).
      confidence: (n, k).
      least: ignores keypoints with a lower confidence.
    """
    counts = (np.isfinite(poses_px).all(axis=-1) & (confidence >= least))[..., None]
    low = np.where(counts, poses_px, np.inf).min(axis=1)
    high = np.where(counts, poses_px, -np.inf).max(axis=1)
    is_known = counts.any(axis=1)
    return np.where(is_known, (np.where(is_known, low, 0) + np.where(is_known, high, 0)) / 2, np.nan)


def over_time(centres_px: np.ndarray, frames: int) -> np.ndarray:
    """Fills gaps in the centres (n, 2) of consecutive frames, then smooths them with a running median.

    A straight line fills a gap; the first and last known centres extend to the ends of the video. The median spans
    `frames` frames around each frame, fewer at the ends.

    Args:
      centres_px: (n, 2), NaN where unknown; at least one is known.
      frames: an odd number; 1 does not smooth.
    """
    known = np.flatnonzero(np.isfinite(centres_px).all(axis=1))
    filled = np.stack(
        [np.interp(np.arange(len(centres_px)), known, centres_px[known, axis]) for axis in (0, 1)], axis=1
    )
    margin = ((frames // 2, frames // 2), (0, 0))
    padded = np.pad(filled, margin, constant_values=np.nan)
    return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, frames, axis=0), axis=-1)


def boxes_around(centres_px: np.ndarray, side_px: int, frame_sizes_px: np.ndarray) -> np.ndarray:
    """Returns square boxes (n, 4) (x, y, width, height), moved into the frame, cut only if it is smaller.

    Args:
      centres_px: (n, 2), finite.
      side_px: of the boxes.
      frame_sizes_px: (n, 2) or (2,) width and height of the frames.
    """
    sides = np.minimum(side_px, np.broadcast_to(frame_sizes_px, centres_px.shape))
    corners = np.floor(centres_px - (sides - 1) / 2 + 0.5).astype(np.int64)
    return np.concatenate([np.clip(corners, 0, frame_sizes_px - sides), sides], axis=1)


# Boxes of video frames, <video>_bbox.csv: a row for each frame.


def video_boxes_folder(data: DataConfig) -> Path | None:
    """Returns the folder with the video boxes of a run, None without boxes."""
    if not data.boxes:
        return None
    return project_folder(data.project) / (data.video_boxes or PurePosixPath(data.boxes).parent)


def box_file_name(video: Path) -> str:
    """Returns the name of a video's box file."""
    return f"{video.stem}_bbox.csv"


def video_box_file(folder: Path, video: Path) -> Path:
    """Returns a video's box file.

    Raises:
      UserError: it does not exist.
    """
    file = folder / box_file_name(video)
    if not file.is_file():
        raise UserError(f"{video} needs boxes, but {file} does not exist; jaxpose crop writes it")
    return file


def refuse_shared_boxes(videos: Iterable[Path]) -> None:
    """Raises UserError if two videos would take their boxes from one file, on some system."""
    seen: dict[str, Path] = {}
    for video in videos:
        other = seen.setdefault(one_name(video.stem), video)
        if os.path.realpath(other) != os.path.realpath(video):
            note = spelling_note(other.stem, video.stem)
            raise UserError(
                f"{other} and {video} have the same name{note}, so both would take their boxes from "
                f"{box_file_name(video)}: rename one of them and its boxes (jaxpose predict also takes them in two "
                "calls, each with its own --boxes)"
            )


def read_video_boxes(file: Path, video: Video | VideoIndex) -> np.ndarray:
    """Returns the boxes (n, 4) of a video's frames, cut to the frame; width 0 without a box.

    Args:
      file: from `video_box_file`.
      video: with its frame size as read.

    Raises:
      UserError: the file is not a valid box CSV, its frames are not those of the video, no frame has a box, or a box
        lies outside its frame.
    """
    table, size_px = read_boxes(file), (video.width_px, video.height_px)
    for number, (name, line) in enumerate(zip(table.names, table.lines, strict=True)):
        if name != str(number):
            raise UserError(f"{file}:{line}: the first cell is {name!r}; it must be {number}, the frame number")
    rows, frames = len(table.names), video.frame_count if isinstance(video, VideoIndex) else video.expected_frames
    if rows != frames:
        # A video may announce more frames than it has; only reading all of it shows this.
        frames = read_index(video.path).frame_count
    if rows != frames:
        raise UserError(f"{file} has {rows} rows, but {video.path} has {frames} frames; each frame needs a row")
    is_box = table.boxes_px[:, 2] > 0
    if not is_box.any():
        raise UserError(f"{file} contains no boxes, so the network would see nothing of {video.path}")
    clamped = clamp_boxes(table.boxes_px, size_px)
    outside = np.flatnonzero(is_box & (clamped[:, 2:].min(axis=1) < LEAST_PX)).tolist()
    if outside:
        more = f"; so do {len(outside) - 1} more" if len(outside) > 1 else ""
        place = f"{file}:{table.lines[outside[0]]}"
        raise UserError(f"{place}: {describe_outside(table.boxes_px[outside[0]], size_px)}{more}")
    return np.where(is_box[:, None], clamped, 0)


def describe_boxes(data: DataConfig, files: Sequence[Path]) -> list[str]:
    """Returns sentences about the boxes of a run, and the reason for each video that has no usable boxes.

    Args:
      data: of the run.
      files: the videos of the project.
    """
    folder, labelled_px = video_boxes_folder(data), labelled_sizes_px(data)
    if not folder:
        return []
    notes = [f"{data.boxes}: the network sees the part of each image that lies in its box"]
    try:
        refuse_shared_boxes(files)
    except UserError as error:
        return [*notes, f"the videos will not be predicted: {error}"]
    for file in files:
        try:
            read_video_boxes(video_box_file(folder, file), as_labelled(scan(file), labelled_px))
        except UserError as error:
            notes.append(f"{file.name} will not be predicted: {error}")
    return notes


def boxes_of_videos(data: DataConfig, files: Sequence[Path]) -> dict[Path, np.ndarray]:
    """Returns {video: boxes (n, 4)} for the videos of clips, as `read_video_boxes` does; {} without boxes.

    Raises:
      UserError: as `read_video_boxes`, or a video has no box file, or two have one.
    """
    folder, labelled_px = video_boxes_folder(data), labelled_sizes_px(data)
    if not folder:
        return {}
    refuse_shared_boxes(files)
    indexes = [as_labelled(read_index(file), labelled_px) for file in files]
    return {index.path: read_video_boxes(video_box_file(folder, index.path), index) for index in indexes}
