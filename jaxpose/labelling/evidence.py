"""How unusual each keypoint of each frame is, by several signals, all on one scale."""

from collections.abc import Sequence

import numpy as np

from jaxpose.poses import Poses

# Signals by the name that the user sees.
JUMP, POSE, CONFIDENCE, SPREAD = "jump", "unusual pose", "low confidence", "runs differ"
# Columns of poses: the distance from plausible poses, and the standard deviation over several runs.
POSE_ERROR_PX, SPREAD_PX = "pose_error_px", "spread_px"
# Robust standard deviations; a value below is usual.
_USUAL = 3.0
# The smallest standard deviation: px, and for confidence a share.
_LEAST_PX, _LEAST_SHARE = 0.5, 0.05
# Frames on either side of a frame whose median it is compared with.
_RADIUS = 5
# Frames whose neighbours are in memory together.
_AT_ONCE = 20_000
# The weight of usual values, which orders frames without a sign of failure.
_USUAL_WEIGHT = 0.01


def find_evidence(recordings: Sequence[Poses]) -> tuple[list[str], list[np.ndarray]]:
    """Returns the names of the signals, and for each recording the evidence (n, signals, keypoints), at least 0.

    A signal is scaled by its median and its median absolute deviation over all recordings, keypoint by keypoint. So a
    recording in which everything fails does not look usual. The evidence is the logarithm of what exceeds the usual.

    Args:
      recordings: with the same keypoints; the columns POSE_ERROR_PX and SPREAD_PX, where all have them, are signals.
    """
    points = [poses.one_animal() for poses in recordings]
    signals = {
        JUMP: [_jumps_px(points_px) for points_px, _ in points],
        CONFIDENCE: [1 - confidence for _, confidence in points],
        POSE: [poses.columns.get(POSE_ERROR_PX) for poses in recordings],
        SPREAD: [poses.columns.get(SPREAD_PX) for poses in recordings],
    }
    names, scaled = [], []
    for name, values in signals.items():
        known = [found.reshape(len(found), -1) for found in values if found is not None]
        if len(known) == len(values):
            least = _LEAST_SHARE if name == CONFIDENCE else _LEAST_PX
            names.append(name)
            scaled.append(_scaled(np.concatenate(known), least))
    ends = np.cumsum([len(poses.frames) for poses in recordings])[:-1]
    return names, np.split(np.stack(scaled, axis=1), ends)


def _jumps_px(keypoints_px: np.ndarray) -> np.ndarray:
    """Returns how far each keypoint (n, k, 2) is from where its neighbours in time suggest, (n, k) in pixels.

    The larger of two distances: from the median of the frames around it, which shows short failures, and half of the
    larger step into or out of the frame beyond the usual motion, which shows the ends of long ones.
    """
    padded = np.pad(keypoints_px, ((_RADIUS, _RADIUS), (0, 0), (0, 0)), mode="reflect")
    from_median = np.empty(keypoints_px.shape[:2])
    for first in range(0, len(keypoints_px), _AT_ONCE):
        block = keypoints_px[first : first + _AT_ONCE]
        shifts = range(first, first + 2 * _RADIUS + 1)
        around = np.stack([padded[shift : shift + len(block)] for shift in shifts])
        from_median[first : first + len(block)] = np.linalg.norm(block - np.median(around, axis=0), axis=-1)
    steps = np.linalg.norm(np.diff(keypoints_px, axis=0), axis=-1)
    if not len(steps):
        return from_median
    largest = np.maximum(np.pad(steps, ((1, 0), (0, 0))), np.pad(steps, ((0, 1), (0, 0))))
    return np.maximum(from_median, largest / 2)


def _scaled(values: np.ndarray, least: float) -> np.ndarray:
    """Returns values (n, k) as about 0 where they are usual or NaN, and more the further out they are."""
    # A keypoint that no pose contains has no error of poses.
    values = np.where(np.isnan(values).all(axis=0), 0, values)
    centre = np.nanmedian(values, axis=0)
    spread = np.maximum(1.4826 * np.nanmedian(np.abs(values - centre), axis=0), least)
    out = np.nan_to_num((values - centre) / spread)
    return np.log1p(np.maximum(out - _USUAL, 0)) + _USUAL_WEIGHT * np.clip(out / _USUAL, 0, 1)
