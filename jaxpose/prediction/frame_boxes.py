"""Predicts each video frame in its own box."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxpose import geometry
from jaxpose.config import DataConfig
from jaxpose.data.boxes import LEAST_PX, clamp_boxes, describe_outside, read_video_boxes, video_box_file
from jaxpose.errors import UserError
from jaxpose.prediction.batch_runner import BatchRunner, Predictions
from jaxpose.video.video import ChunkReader, Segment, Video, read_chunks


class FrameBoxes:
    """The boxes of video frames, from <folder>/<video>_bbox.csv; reads each file once.

    Attributes:
      folder: of the files.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._lock = threading.Lock()
        self._read: dict[tuple[Path, int, int], np.ndarray] = {}

    def file_of(self, video: Path) -> Path:
        """Returns a video's file; raises UserError if it does not exist."""
        return video_box_file(self.folder, video)

    def of(self, video: Video) -> np.ndarray:
        """Returns a video's boxes (n, 4) for its frame size as read; width 0 without a box.

        Raises:
          UserError: as `video_box_file` and `read_video_boxes`.
        """
        key = video.path, video.width_px, video.height_px
        # Several threads read segments of one video.
        with self._lock:
            if key not in self._read:
                self._read[key] = read_video_boxes(self.file_of(video.path), video)
            return self._read[key]


def part_of_array(data: DataConfig, box_px: Sequence | np.ndarray, frame: np.ndarray) -> tuple[int, ...]:
    """Returns the part (x, y, width, height) of a frame (h, w) or (h, w, 3) that a run sees, () for the whole frame.

    Args:
      data: of the run.
      box_px: the frame's box for a run with `data.boxes`, otherwise empty.
      frame: the pixels.

    Raises:
      ValueError: the box is not in whole pixels, or lies outside the frame.
      UserError: the run needs a box and there is none, or vice versa.
    """
    if not data.boxes and len(box_px):
        raise UserError("boxes_px is given, but the run was trained without data.boxes; leave it out")
    if not data.boxes:
        return data.crop_px
    if not len(box_px):
        raise UserError("the run sees each frame in a box (data.boxes): give boxes_px, (x, y, width, height) each")
    box, size_px = np.asarray(box_px), (frame.shape[1], frame.shape[0])
    if box.shape != (4,) or box.dtype.kind not in "iuf" or not np.all(np.mod(box, 1) == 0):
        raise ValueError(f"boxes_px has {box_px}; a box must be four whole numbers, (x, y, width, height)")
    (clamped,) = clamp_boxes(box.astype(int)[None], size_px).tolist()
    if min(clamped[2:]) < LEAST_PX:
        raise ValueError(describe_outside(box, size_px))
    return tuple(clamped)


def stream_boxes(
    runner: BatchRunner,
    weights: tuple[dict, dict],
    video: Video,
    boxes_px: np.ndarray,
    data: DataConfig,
    segment: Segment | None,
) -> tuple[ChunkReader, Iterator[Predictions]]:
    """Returns a video's reader, which must be closed, and an iterator over the predictions of its frames.

    As in training, a five-frame network sees all five in the middle frame's box, so each frame passes through the
    backbone five times.

    Args:
      runner: the network.
      weights: its parameters and batch statistics from `BatchRunner.fold`.
      video: with the rotation to apply.
      boxes_px: (n, 4) x, y, width and height inside its frames; where width is 0, the position is NaN and the
        confidence 0.
      data: how to fit boxes into the input.
      segment: the frames to predict, None for all.
    """
    size_px, radius = (data.input_width_px, data.input_height_px), runner.radius
    affines = geometry.input_from_boxes(np.maximum(boxes_px, [0, 0, 1, 1]), size_px, data.resize)
    reader = read_chunks(
        video, affines, size_px, runner.frames_per_step, segment=segment, crop_px=boxes_px, radius=radius
    )
    first, is_box = segment.first if segment else 0, boxes_px[:, 2] > 0
    found = runner.frames(*weights, _with_affines(reader, geometry.invert(affines), first))
    return reader, _without_boxes(found, is_box, first)


def _with_affines(
    chunks: Iterable[np.ndarray], frame_from_input: np.ndarray, number: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for chunk in chunks:
        yield chunk, frame_from_input[number : number + len(chunk)]
        number += len(chunk)


def _without_boxes(found: Iterable[Predictions], is_box: np.ndarray, number: int) -> Iterator[Predictions]:
    """Yields predictions; frames without a box get position NaN and confidence 0."""
    for part in found:
        has_box = is_box[number : number + len(part["confidence"])]
        number += len(has_box)
        keypoints, confidence = part["keypoints_frame_px"], part["confidence"]
        yield part | {
            "keypoints_frame_px": np.where(has_box[:, None, None], keypoints, keypoints.dtype.type(np.nan)),
            "confidence": np.where(has_box[:, None], confidence, confidence.dtype.type(0)),
        }
