"""Checks frames that a program gives as arrays."""

from collections.abc import Sequence

import numpy as np


def refuse_misfit(frames: np.ndarray | Sequence[np.ndarray], boxes_px: Sequence | np.ndarray) -> None:
    """Checks several frames and their boxes.

    Raises:
      ValueError: there are more or fewer boxes than frames, or the frames are one with another number of channels.
    """
    if isinstance(frames, np.ndarray) and frames.ndim == 3 and frames.shape[2] in (1, 4):
        raise ValueError(
            f"frames have shape {frames.shape}; a frame is (h, w, 3) RGB or (h, w) grey: leave out an axis of 1 and an "
            "alpha channel"
        )
    if len(boxes_px) != len(frames):
        raise ValueError(f"there are {len(frames)} frames and {len(boxes_px)} boxes_px; each frame needs one")


def refuse_no_frame(frame: np.ndarray) -> None:
    """Raises ValueError unless an array is a frame: (h, w, 3) or (h, w) uint8."""
    is_image = frame.ndim == 2 or (frame.ndim == 3 and frame.shape[2] == 3)
    if frame.dtype != np.uint8 or not is_image or not frame.size:
        raise ValueError(
            f"a frame has shape {frame.shape} of {frame.dtype}; it must be uint8, (h, w, 3) RGB or (h, w) grey"
        )
