"""Makes boxes around poses: of one size, so that the network sees the animal at one scale."""

import math

import numpy as np


def side_of_poses(poses_px: np.ndarray, ratio: float) -> int:
    """Returns the side of a square box in px, even: `ratio` times the longest side of a pose, 0 without a pose.

    Args:
      poses_px: (n, k, 2) labels, NaN where there is none.
      ratio: 1 for a box that just holds the largest pose.
    """
    known = poses_px[np.isfinite(poses_px).all(axis=-1).any(axis=-1)]
    if not len(known):
        return 0
    largest = float((np.nanmax(known, axis=1) - np.nanmin(known, axis=1)).max())
    # Video codecs have even sides.
    return 2 * math.ceil(max(ratio * (largest + 1), 2) / 2)


def centres_of_poses(poses_px: np.ndarray, confidence: np.ndarray, least: float) -> np.ndarray:
    """Returns the middle (n, 2) between the outermost keypoints of each pose, NaN where none counts.

    Args:
      poses_px: (n, k, 2).
      confidence: (n, k).
      least: keypoints with a lower confidence do not count.
    """
    counts = (np.isfinite(poses_px).all(axis=-1) & (confidence >= least))[..., None]
    low = np.where(counts, poses_px, np.inf).min(axis=1)
    high = np.where(counts, poses_px, -np.inf).max(axis=1)
    is_known = counts.any(axis=1)
    return np.where(is_known, (np.where(is_known, low, 0) + np.where(is_known, high, 0)) / 2, np.nan)


def over_time(centres_px: np.ndarray, frames: int) -> np.ndarray:
    """Returns the centres (n, 2) of consecutive frames with gaps filled, then smoothed by a running median.

    A gap is a straight line between its neighbours; before the first known centre and after the last one, it is that
    centre. The median is of `frames` frames around each one, of fewer at the ends of the video.

    Args:
      centres_px: (n, 2), NaN where unknown; one at least is known.
      frames: an odd number, 1 does not smooth.
    """
    known = np.flatnonzero(np.isfinite(centres_px).all(axis=1))
    filled = np.stack(
        [np.interp(np.arange(len(centres_px)), known, centres_px[known, axis]) for axis in (0, 1)], axis=1
    )
    margin = ((frames // 2, frames // 2), (0, 0))
    padded = np.pad(filled, margin, constant_values=np.nan)
    return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, frames, axis=0), axis=-1)


def boxes_around(centres_px: np.ndarray, side_px: int, frame_sizes_px: np.ndarray) -> np.ndarray:
    """Returns square boxes (n, 4), x, y, width and height: moved into the frame, and cut only if it is smaller.

    Args:
      centres_px: (n, 2), finite.
      side_px: of the boxes.
      frame_sizes_px: (n, 2) or (2,) width and height of the frames.
    """
    sides = np.minimum(side_px, np.broadcast_to(frame_sizes_px, centres_px.shape))
    corners = np.floor(centres_px - (sides - 1) / 2 + 0.5).astype(np.int64)
    return np.concatenate([np.clip(corners, 0, frame_sizes_px - sides), sides], axis=1)
