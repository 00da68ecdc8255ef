"""How the frames of a video are fitted into the input where they are shown in clips.

With boxes, all frames of a clip show one box. Losses on clips compare maps of neighbouring frames cell by cell, and a
context network adds them up, so the frames need one affine: what moves in the clip moves in the world.
"""

import dataclasses

import numpy as np

from jaxpose import geometry
from jaxpose.config import DataConfig, crop_of_video
from jaxpose.video.index import VideoIndex

# Beyond every pixel, in both directions.
_FAR_PX = 2**40


@dataclasses.dataclass(frozen=True)
class ClipFit:
    """The part of a video's frames that clips show, and the affines that fit it into the input.

    Attributes:
      input_from_frame: (2, 3), or with boxes (n, 2, 3), of each frame.
      crop_px: (x, y, width, height), () for whole frames; or with boxes (n, 4), the same for all frames of a clip,
        width 0 where none of them has a box.
    """

    input_from_frame: np.ndarray
    crop_px: tuple[int, ...] | np.ndarray

    def affine(self, first: int) -> np.ndarray:
        """Returns input_from_frame (2, 3) of the clip with a frame."""
        return self.input_from_frame[first] if self.input_from_frame.ndim == 3 else self.input_from_frame

    def is_shown(self, first: int) -> bool:
        """Returns whether the clip with a frame has a box, or needs none."""
        return isinstance(self.crop_px, tuple) or bool(self.crop_px[first, 2])


def fit_clips(index: VideoIndex, data: DataConfig, sequence_length: int, boxes_px: np.ndarray | None) -> ClipFit:
    """Returns how clips show the frames of a video.

    Args:
      index: the video.
      data: how frames are fitted into the input, and the crop of frames without boxes.
      sequence_length: frames of a clip.
      boxes_px: (n, 4) the box of each frame, as in `boxes_of_clips`; None without boxes.
    """
    size_px = data.input_width_px, data.input_height_px
    if boxes_px is None:
        crop_px = crop_of_video(data, index.path.stem)
        frame_px = index.width_px, index.height_px
        return ClipFit(geometry.input_from_frame(frame_px, size_px, data.resize, crop_px), crop_px)
    shown_px = boxes_of_clips(boxes_px, sequence_length)
    # A clip without a box is not used, so its affine does not matter.
    affines = geometry.input_from_boxes(np.maximum(shown_px, [0, 0, 1, 1]), size_px, data.resize)
    return ClipFit(affines, shown_px)


def boxes_of_clips(boxes_px: np.ndarray, sequence_length: int) -> np.ndarray:
    """Returns for each frame (n, 4) the smallest box with the boxes of all frames of its clip.

    Clips begin at the frames 0, S, 2 S, ...; where the last one is moved back to end with the video, it shares its box
    with the clip before, as they share frames.

    Args:
      boxes_px: (n, 4) x, y, width and height of the box of each frame, width 0 without one.
      sequence_length: frames of a clip (S), at most n.
    """
    clip = np.minimum(np.arange(len(boxes_px)) // sequence_length, len(boxes_px) // sequence_length - 1)
    starts = np.flatnonzero(np.diff(clip, prepend=-1))
    is_box = boxes_px[:, 2:3] > 0
    low = np.minimum.reduceat(np.where(is_box, boxes_px[:, :2], _FAR_PX), starts)
    high = np.maximum.reduceat(np.where(is_box, boxes_px[:, :2] + boxes_px[:, 2:], -_FAR_PX), starts)
    boxes = np.concatenate([low, high - low], axis=1)
    return np.where(boxes[:, 2:3] > 0, boxes, 0)[clip]
