"""Projection and its inverse compared with OpenCV."""

import dataclasses

import cv2
import numpy as np
import pytest

from jaxpose.cameras.cameras import Camera, Cameras
from jaxpose.errors import UserError
from tests.cameras.rigs import opencv_lens, opencv_pixels, rig

POINTS = np.random.default_rng(1).uniform(-80, 80, (500, 3))


@pytest.mark.parametrize("lens", [(), (-0.2,), (-0.3, 0.1, 1e-3, -2e-3), (-0.3, 0.1, 1e-3, -2e-3, 0.05)])
@pytest.mark.parametrize("is_fisheye", [False, True])
def test_points_become_the_pixels_of_opencv_and_come_back(lens: tuple[float, ...], is_fisheye: bool) -> None:
    lens = lens[:4] if is_fisheye else lens
    changes = {"distortion": np.array(lens), "is_fisheye": is_fisheye}
    cameras = Cameras([dataclasses.replace(camera, **changes) for camera in rig(3).each])
    pixels = cameras.project(POINTS)
    for camera, of_one in zip(cameras.each, pixels, strict=True):
        np.testing.assert_allclose(of_one, opencv_pixels(camera, POINTS), rtol=0, atol=1e-9)
    x, y, z = cameras.camera_places(POINTS)
    np.testing.assert_allclose(cameras.undistort(pixels), np.stack([x / z, y / z], axis=-1), rtol=0, atol=1e-12)


def test_pixels_become_the_places_of_opencv() -> None:
    cameras = rig(2)
    pixels = cameras.project(POINTS)
    criteria = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 200, 1e-15)
    for camera, of_one, found in zip(cameras.each, pixels, cameras.undistort(pixels), strict=True):
        # OpenCV 5 gave undistortPoints the criteria.
        undistort = getattr(cv2, "undistortPointsIter", None) or cv2.undistortPoints
        places = undistort(of_one[:, None], camera.matrix, opencv_lens(camera), None, None, criteria=criteria)
        np.testing.assert_allclose(found, places[:, 0], rtol=0, atol=1e-9)


def test_slopes_are_those_of_finite_differences() -> None:
    both = rig(2).each
    cameras = Cameras([both[0], dataclasses.replace(both[1], is_fisheye=True, distortion=np.array([0.1, -0.02]))])
    x, y = np.random.default_rng(0).uniform(-0.6, 0.6, (2, 2, 100))
    x[:, 0] = y[:, 0] = 0
    _, _, *slopes = cameras.pixels_and_slopes(x, y)
    step = 1e-6
    for at, (dx, dy) in enumerate([(step, 0), (0, step)]):
        ahead, behind = cameras.pixels_and_slopes(x + dx, y + dy), cameras.pixels_and_slopes(x - dx, y - dy)
        for axis in range(2):
            np.testing.assert_allclose(slopes[2 * axis + at], (ahead[axis] - behind[axis]) / (2 * step), atol=1e-5)


def test_there_are_no_pixels_behind_a_camera_and_no_places_beyond_the_lens() -> None:
    cameras = rig(2)
    behind = cameras.centres[0] * 2
    assert np.isnan(cameras.project(behind[None])[0]).all()
    strong = Cameras([dataclasses.replace(camera, distortion=np.array([-0.4])) for camera in cameras.each])
    far_px = np.full((2, 1, 2), 5000.0)
    assert np.isnan(strong.undistort(far_px)).all()
    assert np.isnan(cameras.undistort(np.full((2, 1, 2), np.nan))).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"matrix": np.array([[900, 0, 0], [0, 900, 0], [640, 512, 1.0]])}, "matrix of camera c0 is .*rows must be"),
        ({"matrix": np.diag([-900.0, 900, 1])}, "positive fx and fy"),
        ({"rotation": np.diag([1.0, 1, -1])}, "the rotation of camera c0 is not a rotation: it is a mirror image"),
        ({"rotation": np.diag([1.0, 1, 1.1])}, "its rows are off by 0.21 from orthonormal ones"),
        ({"translation": np.array([0, 0, np.nan])}, "translation of camera c0 must have 3 finite numbers"),
        ({"distortion": np.arange(1.0, 9)}, "camera c0 has 8 numbers of distortion; jaxpose knows k1, k2, p1, p2, k3"),
        ({"size_px": (640, 512)}, "camera c0 has images of 640 x 512 px, but the centre of its matrix is"),
    ],
)  # fmt: skip
def test_a_wrong_camera_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    camera: Camera = dataclasses.replace(rig(2).each[0], **changes)
    with pytest.raises(UserError, match=f"^rig.toml: .*{message}"):
        camera.refuse_wrong_numbers("rig.toml")


def test_one_camera_or_two_equal_ones_are_refused() -> None:
    first, second = rig(2).each
    Cameras([first, second]).refuse_same("rig.toml")
    with pytest.raises(UserError, match="c0 and copy have the same position and direction"):
        Cameras([first, second, dataclasses.replace(first, name="copy")]).refuse_same("rig.toml")
    with pytest.raises(UserError, match="has two cameras c0"):
        Cameras([first, dataclasses.replace(second, name="c0")]).refuse_same("rig.toml")
    with pytest.raises(UserError, match="has one camera, c0"):
        Cameras([first]).refuse_same("rig.toml")
