"""A rig of cameras around the synthetic animal, which walks on a floor: its joints in 3D, and in the pixels of each.

The floor is the plane of x and y, as seen from above; z points down, so heights are negative. The unit is the side of
the floor.
"""

import numpy as np

from jaxpose.cameras.cameras import Camera, Cameras
from jaxpose.data.synthetic_animal import Leaf

# Above the floor, of an animal of size 1; hip, knee and paw are those of every limb.
_HEIGHTS = {
    "middle": 0.07, "neck": 0.075, "nose": 0.055, "tail_base": 0.065, "tail_1": 0.05, "tail_2": 0.04, "tail_3": 0.03,
    "hip": 0.055, "knee": 0.05, "paw": 0.01,
}  # fmt: skip
# How much of its walk the animal keeps, so that all cameras see it.
_WALK = 0.5
_DISTANCE = 2.0
# Pixels of a length of 1 at the middle of the floor, for each pixel of the side of a frame.
SCALE = 0.9


def make_rig(rng: np.random.Generator, count: int, side_px: int) -> Cameras:
    """Returns cameras in a ring above the floor, named c1, c2, ...; each has its own height, lens and focal length."""
    cameras = []
    for number in range(count):
        turn = 2 * np.pi * (number + rng.uniform(-0.2, 0.2)) / count
        rise = rng.uniform(0.6, 1.1)
        centre = _DISTANCE * np.array([np.cos(rise) * np.cos(turn), np.cos(rise) * np.sin(turn), -np.sin(rise)])
        forward = -centre / _DISTANCE
        right = np.cross([0.0, 0.0, 1.0], forward)
        right /= np.linalg.norm(right)
        rotation = np.stack([right, np.cross(forward, right), forward])
        focal, (x, y) = SCALE * _DISTANCE * side_px * rng.uniform(0.95, 1.05), rng.normal(side_px / 2, 1, 2)
        matrix = np.array([[focal, 0, x], [0, focal, y], [0, 0, 1]])
        lens = np.array([rng.uniform(-0.3, 0.0), 0.0, *rng.normal(0, 2e-3, 2), 0.0])
        cameras.append(Camera(f"c{number + 1}", matrix, rotation, -rotation @ centre, lens, (side_px, side_px)))
    return Cameras(cameras)


def lifted(joints: dict[str, np.ndarray], size: float) -> dict[str, np.ndarray]:
    """Returns the joints (frames, 3) of an animal that stands on the floor.

    Args:
      joints: from `walk` in a frame of 1 px.
      size: of the animal.
    """
    rest = (1 - _WALK) * joints["middle"]
    heights = {joint: _HEIGHTS[joint if joint in _HEIGHTS else joint.rpartition("_")[2]] for joint in joints}
    return {
        joint: np.column_stack([places - rest, np.full(len(places), -size * heights[joint])])
        for joint, places in joints.items()
    }


def pixels_of(cameras: Cameras, joints: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Returns the joints (frames, 2) in pixels of each camera."""
    places = cameras.project(np.concatenate(list(joints.values()))).reshape(len(cameras.names), len(joints), -1, 2)
    return [dict(zip(joints, of_camera, strict=True)) for of_camera in places]


def is_unseen(points_px: np.ndarray, leaves: list[Leaf], side_px: int) -> np.ndarray:
    """Returns which points (k, 2) of a frame a leaf hides, or lie outside of the frame."""
    unseen = np.any((points_px < -0.5) | (points_px > side_px - 0.5), axis=-1)
    for leaf in leaves:
        along = leaf.tip_px - leaf.stem_px
        share = ((points_px - leaf.stem_px) @ along / (along @ along)).clip(0, 1)
        off_px = np.linalg.norm(points_px - leaf.stem_px - share[:, None] * along, axis=-1)
        unseen = unseen | (off_px < leaf.radius_px * (1 - 0.6 * share))
    return np.asarray(unseen)
