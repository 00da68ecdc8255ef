"""What a smoother returns, as arrays."""

from typing import NamedTuple

import numpy as np

from jaxpose.pose.smooth import FILLED, POSTERIOR_VAR, Noise
from jaxpose.poses import Poses


class Arrays(NamedTuple):
    """Smoothed places (n, k, 2), which are filled (n, k), the variances (n, k, 2), and the noise of each keypoint."""

    keypoints_frame_px: np.ndarray
    is_filled: np.ndarray
    var_px2: np.ndarray | None
    noise: Noise


def arrays(found: tuple[Poses, Noise]) -> Arrays:
    poses, noise = found
    columns = {name: values[:, 0] for name, values in poses.columns.items()}
    has_variance = POSTERIOR_VAR[0] in columns
    variance = np.stack([columns[name] for name in POSTERIOR_VAR], axis=-1) if has_variance else None
    return Arrays(poses.points_px[:, 0], columns[FILLED] > 0, variance, noise)
