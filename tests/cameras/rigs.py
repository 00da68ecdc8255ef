"""Rigs of cameras on a sphere around the origin, made from numbers alone."""

import cv2
import numpy as np

from jaxpose.cameras.cameras import Camera, Cameras


def camera_at(name: str, centre: np.ndarray, random: np.random.Generator, **others: object) -> Camera:
    """A camera that looks at the origin, rolled at random."""
    forward = -centre / np.linalg.norm(centre)
    right = np.cross(forward, random.normal(size=3))
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    matrix = np.array([[900.0 + random.uniform(0, 200), 0, 640], [0, 950, 510], [0, 0, 1]])
    distortion = np.array([-0.3, 0.12, 1e-3, -2e-3, -0.02]) * random.uniform(0.5, 1)
    made = Camera(name, matrix, rotation, -rotation @ centre, distortion, (1280, 1024))
    return Camera(**{**vars(made), **others})


def rig(count: int, seed: int = 0, distance: float = 400.0) -> Cameras:
    random = np.random.default_rng(seed)
    places = random.normal(size=(count, 3))
    centres = distance * places / np.linalg.norm(places, axis=1, keepdims=True)
    return Cameras([camera_at(f"c{at}", centre, random) for at, centre in enumerate(centres)])


def opencv_pixels(camera: Camera, points: np.ndarray) -> np.ndarray:
    """The pixels (n, 2) of points (n, 3), by OpenCV."""
    turn = cv2.Rodrigues(camera.rotation)[0]
    if camera.is_fisheye:
        lens = np.pad(camera.distortion, (0, 4))[:4]
        return cv2.fisheye.projectPoints(points[:, None], turn, camera.translation, camera.matrix, lens)[0][:, 0]
    return cv2.projectPoints(points, turn, camera.translation, camera.matrix, opencv_lens(camera))[0][:, 0]


def opencv_lens(camera: Camera) -> np.ndarray:
    """The five numbers of a lens that OpenCV takes."""
    return np.pad(camera.distortion, (0, 5))[:5]
