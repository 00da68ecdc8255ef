"""Detected corners of a board, the board's pose in a camera, and the poses of cameras relative to each other."""

import dataclasses
from collections.abc import Sequence

import cv2
import numpy as np

from jaxpose.cameras.cameras import Camera

# A pose needs this many corners.
LEAST_CORNERS = 6
# Corners of one row have no pose: the smaller spread of the corners, in squares.
_LEAST_SPREAD = 0.5


@dataclasses.dataclass(frozen=True)
class Detections:
    """Corners of a board in the frames of v cameras.

    Attributes:
      names: of the cameras.
      sizes_px: (width, height) of the images of each camera.
      corners: (n, 3), places of the corners on the board, z = 0.
      square: length of a square, in the unit of the corners.
      frames: the t numbers of the frames.
      corners_px: (v, t, n, 2), NaN where a corner was not detected.
    """

    names: tuple[str, ...]
    sizes_px: tuple[tuple[int, int], ...]
    corners: np.ndarray
    square: float
    frames: tuple[int, ...]
    corners_px: np.ndarray

    def part(self, views: Sequence[int], frames: np.ndarray) -> "Detections":
        """Returns the detections of some cameras in some frames, both by place."""
        return dataclasses.replace(
            self, names=tuple(self.names[view] for view in views),
            sizes_px=tuple(self.sizes_px[view] for view in views),
            frames=tuple(np.array(self.frames)[frames].tolist()), corners_px=self.corners_px[list(views)][:, frames],
        )  # fmt: skip


def has_pose(detections: Detections, pixels: np.ndarray) -> bool:
    """Returns whether pixels (n, 2) of one image are enough for a pose."""
    seen = detections.corners[np.isfinite(pixels[:, 0]), :2]
    if len(seen) < LEAST_CORNERS:
        return False
    spread = np.linalg.svd(seen - seen.mean(axis=0), compute_uv=False)[1] / np.sqrt(len(seen))
    return bool(spread >= _LEAST_SPREAD * detections.square)


def pose_in(camera: Camera, corners: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Returns the pose (3, 4) of the board in a camera at the origin; of the two that fit a plane, the better one."""
    is_seen = np.isfinite(pixels[:, 0])
    _, turns, places, _ = cv2.solvePnPGeneric(
        corners[is_seen], pixels[is_seen], camera.matrix, camera.distortion, flags=cv2.SOLVEPNP_IPPE
    )
    return np.hstack([cv2.Rodrigues(turns[0])[0], places[0]])


def shared_frames(is_posed: np.ndarray) -> np.ndarray:
    """Returns in how many frames (v, v) each two cameras have a pose, of whether (v, t) each has one."""
    return is_posed.astype(int) @ is_posed.T.astype(int)


def connected(pairs: np.ndarray) -> list[list[int]]:
    """Returns the groups of places that a matrix (v, v) of pairs connects."""
    groups: list[list[int]] = []
    for start in range(len(pairs)):
        if any(start in group for group in groups):
            continue
        group, new = {start}, {start}
        while new:
            new = {other for one in new for other in np.flatnonzero(pairs[one]).tolist()} - group
            group |= new
        groups.append(sorted(group))
    return groups


def relative_poses(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the poses (t, 3, 4) from the first camera to the second, by the board's poses (t, 3, 4) in both."""
    rotations = second[:, :, :3] @ first[:, :, :3].transpose(0, 2, 1)
    places = second[:, :, 3] - np.einsum("tij,tj->ti", rotations, first[:, :, 3])
    return np.concatenate([rotations, places[..., None]], axis=-1)


def spread_of(poses: np.ndarray, length: float) -> np.ndarray:
    """Returns the distances (t, t) between poses (t, 3, 4): a turn counts as the arc at a length."""
    flat = poses[:, :, :3].reshape(len(poses), 9)
    # The squared norm of the difference of two rotations is 6 - 2 times their product, and twice the squared angle.
    turns = np.sqrt(np.maximum(3 - flat @ flat.T, 0))
    return turns * length + np.linalg.norm(poses[:, None, :, 3] - poses[:, :, 3], axis=-1)


def medoid(poses: np.ndarray, length: float) -> np.ndarray:
    """Returns the pose (3, 4) with the least sum of distances to the others."""
    return poses[int(np.argmin(spread_of(poses, length).sum(axis=0)))]
