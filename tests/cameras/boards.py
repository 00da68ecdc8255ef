"""A rig on an arc that looks at a moving board, and the pixels of its corners, made from numbers alone."""

import cv2
import numpy as np

from jaxpose.cameras.board_poses import Detections
from jaxpose.cameras.cameras import Camera, Cameras

SIZE_PX, SQUARE = (640, 480), 20.0
_X, _Y = np.meshgrid(np.arange(1, 8), np.arange(1, 6))
CORNERS = SQUARE * np.stack([_X.ravel(), _Y.ravel(), np.zeros(_X.size)], axis=-1)


def arc(count: int) -> Cameras:
    """Cameras 700 from the origin, 20 degrees from each other; the first one is the world."""
    cameras = []
    for at in range(count):
        random = np.random.default_rng(at)
        turn = cv2.Rodrigues(np.array([0.05 * at, np.deg2rad(20) * at, 0.1 * at]))[0]
        matrix = np.array([[700.0 + 40 * at, 0, 319.5], [0, 700.0 + 40 * at, 239.5], [0, 0, 1]])
        lens = np.array([random.uniform(-0.25, -0.1), 0, 0, 0, 0])
        away = np.array([0, 0, 700.0])
        cameras.append(Camera(f"c{at}", matrix, turn, away - turn @ away, lens, SIZE_PX))
    return Cameras(cameras)


def film(cameras: Cameras, frames: int = 24, noise_px: float = 0.0, seed: int = 0, held: int = 1) -> Detections:
    """What cameras see of a board that is held in `held` frames at each of several places that they look at."""
    random = np.random.default_rng(seed)
    places, normals = [], []
    for _ in range(frames):
        if len(places) % held == 0:
            turn = cv2.Rodrigues(random.uniform(-0.5, 0.5, 3))[0]
            centre = np.array([0, 0, 700.0]) + random.uniform(-60, 60, 3)
        normals.append(turn[:, 2])
        places.append((CORNERS - CORNERS.mean(axis=0)) @ turn.T + centre)
    pixels = cameras.project(np.concatenate(places)).reshape(len(cameras.names), frames, len(CORNERS), 2)
    pixels += random.normal(0, noise_px, pixels.shape) if noise_px else 0
    is_outside = np.any((pixels < 0) | (pixels > np.array(SIZE_PX) - 1), axis=-1)
    pixels[is_outside] = np.nan
    # A camera behind the board sees nothing of it.
    rays = np.stack([place.mean(axis=0) for place in places]) - cameras.centres[:, None]
    pixels[np.einsum("vti,ti->vt", rays, np.stack(normals)) < 0] = np.nan
    sizes = (SIZE_PX,) * len(cameras.names)
    return Detections(cameras.names, sizes, CORNERS, SQUARE, tuple(range(frames)), pixels)
