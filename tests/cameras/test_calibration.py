"""Calibration from detections: rigs of numbers alone, next to OpenCV's calibration, and chains of overlaps."""

import cv2
import numpy as np
import pytest

from jaxpose.cameras.board_poses import Detections, medoid
from jaxpose.cameras.calibration import calibrate, calibrate_alone, choose_frames
from jaxpose.cameras.calibration_faults import refuse_out_of_step
from jaxpose.errors import UserError
from tests.cameras.boards import CORNERS, SIZE_PX, SQUARE, arc, film


def blind(seen: Detections, view: int, frames: slice) -> None:
    seen.corners_px[view, frames] = np.nan


@pytest.mark.parametrize("count", [2, 5])
def test_the_cameras_of_a_rig_are_found(count: int) -> None:
    cameras = arc(count)
    found = calibrate(film(cameras, noise_px=0.1))
    for one, true in zip(found.scene.cameras.each, cameras.each, strict=True):
        assert abs(one.matrix[0, 0] / true.matrix[0, 0] - 1) < 3e-3
        assert np.abs(one.rotation - true.rotation).max() < 3e-3
        assert np.abs(one.translation - true.translation).max() < 2
    assert found.lens == "one focal length and k1"
    # The expected length of noise in x and y is 1.18 standard deviations in the median.
    assert 0.10 < np.nanmedian(found.errors_px) < 0.12 and 0.10 < np.nanmedian(found.held_out_px) < 0.125
    assert abs(np.median(found.square) - SQUARE) < 0.01


def test_a_chain_of_overlaps_connects_cameras_that_share_no_frame() -> None:
    """c0 and c1 see the first frames, c1 and c2 the middle ones, c2 and c3 the last ones."""
    cameras = arc(4)
    seen = film(cameras, 30)
    for view, (first, last) in enumerate([(0, 10), (0, 20), (10, 30), (20, 30)]):
        blind(seen, view, slice(0, first))
        blind(seen, view, slice(last, 30))
    found = calibrate(seen).scene.cameras
    assert np.abs(found.centres - cameras.centres).max() < 0.1
    blind(seen, 1, slice(10, 20))
    with pytest.raises(UserError, match="no overlap: c0, c1 never see the board in the same frame as c2, c3"):
        calibrate(seen)


def test_wrong_corners_and_poses_change_little() -> None:
    """In four of the frames one camera shows another board pose; some corners are wrong by 30 px."""
    cameras = arc(3)
    seen = film(cameras, noise_px=0.1)
    seen.corners_px[1, 3:7] = film(cameras, seed=9).corners_px[1, 3:7]
    random = np.random.default_rng(2)
    is_wrong = random.random(seen.corners_px.shape[:-1]) < 0.03
    seen.corners_px[is_wrong] += random.normal(0, 30, (is_wrong.sum(), 2))
    found = calibrate(seen).scene.cameras
    assert np.abs(found.rotations - cameras.rotations).max() < 5e-3
    assert np.abs(found.centres - cameras.centres).max() < 3


def test_the_medoid_is_one_of_the_poses_and_ignores_a_wrong_one() -> None:
    poses = np.stack(
        [np.hstack([cv2.Rodrigues(np.array([0.0, 0, turn]))[0], np.ones((3, 1))]) for turn in (0, 0.01, 3)]
    )
    assert (medoid(poses, 100.0) == poses[1]).all() or (medoid(poses, 100.0) == poses[0]).all()


def test_the_cameras_are_those_of_opencv() -> None:
    """calibrateCamera for each view, then stereoCalibrate, with the same lens; its pixels are float32."""
    seen = film(arc(2), 30)
    is_whole = np.isfinite(seen.corners_px).all(axis=(0, 2, 3))
    pixels = seen.corners_px[:, is_whole].astype(np.float32)
    flags = cv2.CALIB_FIX_PRINCIPAL_POINT | cv2.CALIB_FIX_ASPECT_RATIO | cv2.CALIB_ZERO_TANGENT_DIST
    flags |= cv2.CALIB_FIX_K2 | cv2.CALIB_FIX_K3
    board = [CORNERS.astype(np.float32)] * len(pixels[0])
    start = np.array([[700.0, 0, 319.5], [0, 700, 239.5], [0, 0, 1]])
    alone = [
        cv2.calibrateCamera(
            board, list(one), SIZE_PX, start.copy(), np.zeros(5), flags=flags | cv2.CALIB_USE_INTRINSIC_GUESS
        )
        for one in pixels
    ]
    (_, first, lens, _, _), (_, second, other, _, _) = alone
    stereo = cv2.stereoCalibrate(
        board, list(pixels[0]), list(pixels[1]), first, lens, second, other, SIZE_PX, flags=cv2.CALIB_FIX_INTRINSIC
    )
    found = calibrate(seen.part([0, 1], np.flatnonzero(is_whole))).scene.cameras
    for matrix, one in zip((first, second), found.each, strict=True):
        assert abs(matrix[0, 0] - one.matrix[0, 0]) < 0.02
    assert np.abs(found.rotations[1] - stereo[5]).max() < 1e-4
    assert np.abs(found.translations[1] - stereo[6].ravel()).max() < 0.05


def test_few_frames_cover_the_images() -> None:
    seen = film(arc(2), 400)
    chosen = choose_frames(seen, np.ones((2, 400), bool))
    assert len(chosen) == 100 and (np.diff(chosen) > 0).all()


def test_a_camera_with_too_few_frames_is_named() -> None:
    seen = film(arc(2))
    blind(seen, 1, slice(2, None))
    with pytest.raises(UserError, match="camera c1 sees the board in 2 frames; at least 3"):
        calibrate(seen)


@pytest.mark.parametrize(("held", "late"), [(1, 0), (5, 0), (5, 1), (12, 0), (12, 2)])
def test_a_late_camera_is_found_also_if_the_board_is_held_still(held: int, late: int) -> None:
    """Each place is held for some frames, so only the frames between two places show that a camera is late."""
    for seed in range(2):
        seen = film(arc(3), 4 * held + 12, noise_px=0.3, seed=seed, held=held)
        seen.corners_px[1, late:] = seen.corners_px[1, : len(seen.frames) - late].copy()
        blind(seen, 1, slice(0, late))
        poses, _ = calibrate_alone(seen)
        if late:
            with pytest.raises(UserError, match=f"out of step: camera c1 is {late} frame"):
                refuse_out_of_step(seen, poses)
        else:
            refuse_out_of_step(seen, poses)
