"""Epipolar lines compared with OpenCV's points along a ray, and its lines of cameras without distortion."""

import dataclasses
from pathlib import Path

import cv2
import numpy as np
import pytest
import scipy.io

from jaxpose.cameras.calibration_files import read_cameras
from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.epipolar import epipolar_lines
from tests.cameras.rigs import opencv_lens, opencv_pixels, rig

CRITERIA = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 200, 1e-15)


def distances_px(points: np.ndarray, line: np.ndarray) -> np.ndarray:
    """The distance of each point from a polyline."""
    start, along = line[:-1], np.diff(line, axis=0)
    off = points[:, None] - start
    share = np.clip((off * along).sum(-1) / (along**2).sum(-1), 0, 1)
    return np.linalg.norm(off - share[..., None] * along, axis=-1).min(axis=1)


@pytest.mark.parametrize("lens", [(), (-0.3, 0.1, 1e-3, -2e-3, 0.05), (-0.05, 0.02, 0.0, 0.0)])
@pytest.mark.parametrize("is_fisheye", [False, True])
def test_a_line_has_the_places_where_opencv_sees_the_ray(lens: tuple[float, ...], is_fisheye: bool) -> None:
    changes = {"distortion": np.array(lens[:4] if is_fisheye else lens), "is_fisheye": is_fisheye}
    cameras = Cameras([dataclasses.replace(camera, **changes) for camera in rig(4).each])
    shown = 0
    for point_px in np.random.default_rng(2).uniform(100, 900, (10, 2)):
        first = cameras.each[0]
        if is_fisheye:
            # OpenCV's own inverse does not always converge; a point on the ray is projected instead.
            place = cameras.undistort(np.broadcast_to(point_px, (4, 1, 2)))[0, 0]
        else:
            undistort = getattr(cv2, "undistortPointsIter", None) or cv2.undistortPoints
            pixels = point_px[None, None]
            place = undistort(pixels, first.matrix, opencv_lens(first), None, None, criteria=CRITERIA)[0, 0]
        depths = np.geomspace(1, 1e5, 400)[:, None]
        points = (depths * np.append(place, 1) - first.translation) @ first.rotation
        lines = epipolar_lines(cameras, 0, point_px, cameras.sizes_px)
        assert len(lines[0]) == 0
        for camera, line in zip(cameras.each[1:], lines[1:], strict=True):
            is_front = (points @ camera.rotation.T + camera.translation)[:, 2] > 1e-3
            there = opencv_pixels(camera, points[is_front])
            size_px = np.array(camera.size_px)
            there = there[((there >= -0.5) & (there <= size_px - 0.5)).all(axis=1)]
            assert len(line) == 0 or (np.abs(line - (size_px - 1) / 2) <= size_px / 2).all()
            if len(line) > 1 and len(there):
                # The ends are up to a 200th of the line away from the border.
                middle = there[np.abs(there - size_px / 2).max(axis=1) < 0.48 * size_px.min()]
                assert len(middle) == 0 or distances_px(middle, line).max() < 0.1
                shown += len(middle)
    assert shown > 1000


def test_without_distortion_a_line_is_the_one_of_the_fundamental_matrix() -> None:
    cameras = Cameras([dataclasses.replace(camera, distortion=np.zeros(0)) for camera in rig(3).each])
    matrices = [camera.matrix @ np.column_stack([camera.rotation, camera.translation]) for camera in cameras.each]
    first = np.append(cameras.centres[0], 1)
    for other in (1, 2):
        x, y, z = matrices[other] @ first
        cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        fundamental = cross @ matrices[other] @ np.linalg.pinv(matrices[0])
        for point_px in ((400.0, 300.0), (700.0, 512.0)):
            ((a, b, c),) = cv2.computeCorrespondEpilines(np.array([[point_px]]), 1, fundamental)[:, 0]
            line = epipolar_lines(cameras, 0, np.array(point_px), cameras.sizes_px)[other]
            assert len(line) > 1
            assert np.abs(line @ [a, b] + c).max() < 1e-3


def test_labels_of_a_real_rig_lie_on_the_lines_of_the_other_views(real_data: Path) -> None:
    file = real_data / "calibrated/six-cameras/label3d_dannce.mat"
    cameras, labels = read_cameras(file), scipy.io.loadmat(file)["labelData"][:, 0]
    # Another tool's reprojections of points in 3D, which count pixels from 1.
    pixels = np.stack([of_view["data_2d"][0, 0].reshape(-1, 2) for of_view in labels]) - 1
    sizes_px = np.full((6, 2), (1152.0, 1024.0))
    compared = 0
    for point in range(0, pixels.shape[1], 200):
        lines = epipolar_lines(cameras, 0, pixels[0, point], sizes_px)
        for there, line in zip(pixels[1:, point], lines[1:], strict=True):
            if (np.abs(there - sizes_px[0] / 2) < 0.48 * sizes_px[0]).all():
                assert distances_px(there[None], line).max() < 0.01
                compared += 1
    assert compared > 20


def test_what_no_camera_can_see_has_no_line() -> None:
    cameras = rig(3)
    assert [len(line) for line in epipolar_lines(cameras, 1, np.array([np.nan, 3]), cameras.sizes_px)] == [0, 0, 0]
    # The picture of an absent image has no size.
    sizes_px = cameras.sizes_px * [[1], [1], [0]]
    lines = epipolar_lines(cameras, 0, np.array([500.0, 400]), sizes_px)
    assert len(lines[1]) > 1 and len(lines[2]) == 0
