"""`--floor` sets the world; `--check` compares a calibration with board images, or with the keypoints of an animal."""

import dataclasses
from pathlib import Path

import cv2
import numpy as np
import pytest

from jaxpose.calibrate.__main__ import main
from jaxpose.calibrate.boards import read_board
from jaxpose.cameras.calibration_files import ANIPOSE, read_cameras, write_cameras
from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.triangulation import triangulate
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.formats.lightning_pose.tables import write_predictions
from tests.calibrate.rendered import markers_of
from tests.calibrate.test_calibrate import BOARD, write_images
from tests.cameras.boards import arc
from tests.cameras.rigs import rig

NAMES, FRAMES = ("nose", "tail", "paw"), 200


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("boards") / "boards", 6)


def turned(cameras: Cameras, view: int, degrees: float) -> Cameras:
    """The cameras after one of them turned in its place."""
    turn = cv2.Rodrigues(np.deg2rad(degrees) * np.array([0.6, 0.8, 0]))[0]
    each = list(cameras.each)
    each[view] = dataclasses.replace(
        each[view], rotation=turn @ each[view].rotation, translation=turn @ each[view].translation
    )
    return Cameras(each)


def test_the_floor_is_the_board_of_a_frame(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, board = tmp_path / "calibration.toml", markers_of(read_board(BOARD))
    assert main([str(images), "--board", BOARD, "--out", str(file), "--floor", "3"]) == 0
    cameras = read_cameras(file)
    greys = [cv2.imread(str(images / name / "img003.png"), cv2.IMREAD_GRAYSCALE) for name in cameras.names]
    pixels = np.stack([board.find(grey) for grey in greys if grey is not None])
    places = triangulate(cameras, pixels, np.ones(pixels.shape[:2]), 0.5).places
    # The board is read from above, so its second axis points against y.
    np.testing.assert_allclose(places, board.corners * [1, -1, 1], atol=0.3)
    assert (cameras.centres[:, 2] > 100).all()
    arguments = [str(images), "--board", BOARD, "--out", str(file), "--overwrite", "--floor", "99"]
    assert main(arguments) == 2
    assert "--floor is 99, but no camera sees enough of the board in that frame; it is seen in 0, 1, 2" in (
        capsys.readouterr().err
    )


def test_a_calibration_is_compared_with_board_images(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    true = arc(2)
    plain = Cameras(
        [
            dataclasses.replace(camera, name=name, distortion=np.zeros(5), translation=camera.translation * 0.6)
            for name, camera in zip(("left", "right"), true.each, strict=True)
        ]
    )
    write_cameras(tmp_path / "good.toml", ANIPOSE, plain)
    assert main([str(images), "--board", BOARD, "--check", str(tmp_path / "good.toml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path / 'good.toml'} fits: no fault found"
    assert lines[1].startswith("error: median 0.0") and lines[-1].startswith("a square in 3D: median ")
    write_cameras(tmp_path / "turned.toml", ANIPOSE, turned(plain, 1, 2))
    assert main([str(images), "--board", BOARD, "--check", str(tmp_path / "turned.toml")]) == 1
    assert " px about the board: calibrate again" in capsys.readouterr().out.splitlines()[0]
    # A copy of a camera is refused by its name.
    twice = Cameras([plain.each[0], dataclasses.replace(plain.each[0], name="right")])
    write_cameras(tmp_path / "twice.toml", ANIPOSE, twice)
    assert main([str(images), "--board", BOARD, "--check", str(tmp_path / "twice.toml")]) == 2
    assert "the cameras left and right have the same position and direction" in capsys.readouterr().err


def write_tables(folder: Path, cameras: Cameras) -> list[str]:
    """The arguments VIEW=TABLE of an animal that walks, with noise of 1 px."""
    random = np.random.default_rng(3)
    path = random.uniform(-40, 40, (1, len(NAMES), 3)) + np.cumsum(random.normal(0, 8, (FRAMES, 1, 3)), axis=0)
    pixels = cameras.project(path.reshape(-1, 3)).reshape(-1, FRAMES, len(NAMES), 2)
    pixels += random.normal(0, 1, pixels.shape)
    for view, points_px in zip(cameras.names, pixels, strict=True):
        write_predictions(folder / f"{view}.csv", range(FRAMES), NAMES, points_px, np.full(points_px.shape[:2], 0.9))
    return [f"{view}={folder / view}.csv" for view in cameras.names]


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was printed, without the line of work that takes long on a busy machine."""
    return [line for line in capsys.readouterr().out.splitlines() if line != "refining ..."]


def test_keypoints_refine_a_camera_that_turned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    true, out = rig(4, seed=3), tmp_path / "refined.toml"
    tables = write_tables(tmp_path, true)
    write_cameras(tmp_path / "good.toml", ANIPOSE, true)
    assert main(["--check", str(tmp_path / "good.toml"), *tables]) == 0
    assert lines_of(capsys)[0] == f"{tmp_path / 'good.toml'} fits: no fault found"
    write_cameras(tmp_path / "turned.toml", ANIPOSE, turned(true, 2, 1.5))
    assert main(["--check", str(tmp_path / "turned.toml"), *tables, "--out", str(out)]) == 1
    lines = lines_of(capsys)
    assert "c2" in lines[0] and lines[-1].startswith(f"{out}: the refined cameras")
    refined = read_cameras(out)
    assert np.abs(refined.rotations - true.rotations).max() < 4e-3
    assert np.abs(refined.centres - true.centres).max() < 4


def test_swapped_tables_are_the_first_line_and_the_notes_of_tables_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cameras, file = rig(2, seed=2), tmp_path / "good.toml"
    write_tables(tmp_path, cameras)
    write_cameras(file, ANIPOSE, cameras)
    found = read_table(tmp_path / "c0.csv").poses
    write_predictions(tmp_path / "c0.csv", range(FRAMES), NAMES, found.points_px[:, 0], 1.2 * found.one_animal()[1])
    assert main(["--check", str(file), f"c0={tmp_path / 'c1.csv'}", f"c1={tmp_path / 'c0.csv'}"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("the tables of c0 and c1 are swapped: exchanged, the typical error falls from ")
    assert lines[-1].startswith(f"{tmp_path / 'c0.csv'}: ") and "above 1" in lines[-1]


def test_flags_that_do_not_go_together_are_refused(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*arguments: object) -> str:
        assert main([*map(str, arguments)]) == 2
        return capsys.readouterr().err

    file = tmp_path / "calibration.toml"
    write_cameras(file, ANIPOSE, arc(2))
    assert "--board is required, unless --check names a calibration" in fails(images, "--out", tmp_path / "a.toml")
    assert "--out is required" in fails(images, "--board", BOARD)
    assert "give one folder" in fails(images, images, "--board", BOARD, "--out", tmp_path / "a.toml")
    assert "--floor is 3, which --check does not use" in fails(images, "--check", file, "--floor", 3)
    assert "--check with --board writes nothing" in fails(images, "--check", file, "--board", BOARD, "--out", "a.toml")
    assert f"{file} has no camera left, right; it has c0, c1" in fails(images, "--check", file, "--board", BOARD)
    assert f"{images} is not VIEW=TABLE" in fails(images, "--check", file)
