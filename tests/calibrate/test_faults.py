"""Real board videos: their calibration meets its bars, and each fault planted in their corners is named first."""

import contextlib
import dataclasses
import io
import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from jaxpose.calibrate.__main__ import main
from jaxpose.calibrate.boards import read_board
from jaxpose.calibrate.recordings import detect, find_recordings
from jaxpose.cameras.board_poses import Detections
from jaxpose.cameras.calibration import calibrate
from jaxpose.cameras.calibration_check import check_board
from jaxpose.cameras.calibration_files import read_cameras
from jaxpose.cameras.cameras import Cameras
from jaxpose.errors import UserError

BACK, MID, SIDE, TOP = range(4)
BOARD = "charuco:8x11:24:18.75"


@pytest.fixture(scope="module")
def real(real_data: Path) -> Detections:
    """The corners of four cameras in 21 frames."""
    return detect(read_board(BOARD), find_recordings(real_data / "calibrated" / "four-cameras"))


def test_cameras_whose_names_differ_only_in_case_are_refused(tmp_path: Path) -> None:
    for name in ("Side", "side"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(b"")
    with pytest.raises(
        UserError, match=r"has Side and side \(Side and side differ only in the case of their letters\)"
    ):
        find_recordings(tmp_path)


def fault(real: Detections, points_px: np.ndarray, views: tuple[int, ...] = (BACK, MID, SIDE, TOP)) -> str:
    planted = dataclasses.replace(real, corners_px=points_px)
    with pytest.raises(UserError) as raised:
        calibrate(planted.part(views, np.arange(len(real.frames))))
    return str(raised.value)


def late(points_px: np.ndarray, view: int, frames: int) -> np.ndarray:
    """The corners if a camera started so many frames before the others."""
    planted = points_px.copy()
    planted[view] = np.nan
    if frames > 0:
        planted[view, frames:] = points_px[view, :-frames]
    else:
        planted[view, :frames] = points_px[view, -frames:]
    return planted


def test_two_identical_cameras_are_named(real: Detections) -> None:
    planted = real.corners_px.copy()
    planted[MID] = planted[BACK]
    assert fault(real, planted).startswith("identical: cameras back and mid show the board at the same pixels")


def test_a_mirrored_camera_is_named(real: Detections) -> None:
    planted = real.corners_px.copy()
    planted[TOP, ..., 0] = real.sizes_px[TOP][0] - 1 - planted[TOP, ..., 0]
    assert fault(real, planted).startswith("mirrored: camera top sees the corners of the board in mirror order")


@pytest.mark.parametrize(
    ("view", "frames", "what"), [(SIDE, 1, "side is 1 frame late"), (BACK, -3, "back is 3 frames early")]
)
def test_a_camera_out_of_step_is_named(real: Detections, view: int, frames: int, what: str) -> None:
    assert fault(real, late(real.corners_px, view, frames)).startswith(f"out of step: camera {what}: ")


def test_of_two_cameras_out_of_step_the_second_is_named(real: Detections) -> None:
    planted = late(real.corners_px, MID, 2)
    assert fault(real, planted, (BACK, MID)).startswith("out of step: camera mid is 2 frames late: ")


def test_a_camera_without_overlap_is_named(real: Detections) -> None:
    planted = real.corners_px.copy()
    planted[SIDE, :12] = np.nan
    planted[[BACK, MID, TOP], 12:] = np.nan
    assert fault(real, planted).startswith("no overlap: side never sees the board in the same frame as back, mid, top")


@pytest.fixture(scope="module")
def calibrated(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The file that the verb writes, next to its page, and what it prints."""
    file, out = tmp_path_factory.mktemp("calibrated") / "calibration.toml", io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([str(real_data / "calibrated" / "four-cameras"), "--board", BOARD, "--out", str(file)]) == 0
    return file, out.getvalue()


@pytest.fixture(scope="module")
def cameras(calibrated: tuple[Path, str]) -> Cameras:
    return read_cameras(calibrated[0])


def test_the_real_boards_meet_the_bars(calibrated: tuple[Path, str]) -> None:
    """Held out: median 0.21 px; a square: 0.07 mm."""
    file, out = calibrated
    held_out = re.search(r"on held-out frames: median (\S+) px", out)
    square = re.search(r"a square in 3D: median (\S+) mm, .* half of the squares are off by less than (\S+) mm", out)
    assert held_out and square
    assert float(held_out[1]) <= 0.21 and float(square[2]) <= 0.07 and abs(float(square[1]) - 24) < 0.02
    assert read_cameras(file).names == ("back", "mid", "side", "top")
    page = file.with_suffix(".html").read_text()
    assert "Keypoints shown" not in page
    assert page.count('<svg class="frame"') == 3 and page.count("median error in px</span>") == 1
    assert re.search(r"<td>0\.\d\d \(\d+\)</td>", page) and "<figcaption>side, frame " in page


def test_a_good_calibration_has_no_fault(real: Detections, cameras: Cameras) -> None:
    found = check_board(cameras, real)
    assert found.faults == [] and np.nanmedian(found.errors_px) < 0.21 and np.nanmedian(found.expected_px) < 0.6


def test_half_a_pixel_of_old_corners_is_named(real: Detections, cameras: Cameras) -> None:
    """The corners that OpenCV found in these images in 2022 lie 0.48 px further down and to the right."""
    (fault,) = check_board(cameras, dataclasses.replace(real, corners_px=real.corners_px - 0.48)).faults
    assert fault.startswith("half a pixel: with corners half a pixel below and to the right of the detected ones")
    (fault,) = check_board(cameras, dataclasses.replace(real, corners_px=real.corners_px + 0.48)).faults
    assert fault.startswith("half a pixel: with corners half a pixel above and to the left of the detected ones")


def test_a_wrong_length_is_named(real: Detections, cameras: Cameras) -> None:
    wrong = dataclasses.replace(real, corners=real.corners * 25 / 24, square=25.0)
    (fault,) = check_board(cameras, wrong).faults
    assert fault.startswith("wrong length: a square measures 24 in 3D, but 25 by --board (-4.0 %)")


@pytest.mark.parametrize("view", [BACK, SIDE])
def test_a_camera_that_was_moved_is_named(real: Detections, cameras: Cameras, view: int) -> None:
    turn = cv2.Rodrigues(np.array([0.01, 0.02, 0.0]))[0]
    each = list(cameras.each)
    each[view] = dataclasses.replace(
        each[view], rotation=turn @ each[view].rotation, translation=turn @ each[view].translation
    )
    (fault,) = check_board(Cameras(each), real).faults
    assert fault.startswith(f"moved: camera {real.names[view]} sees the board ")
