"""The verb: a folder of board videos or images becomes a calibration; mistakes are named."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from jaxpose.calibrate.__main__ import main
from jaxpose.calibrate.boards import read_board
from jaxpose.calibrate.recordings import find_recordings
from jaxpose.cameras.calibration_files import read_cameras
from jaxpose.errors import UserError
from tests.calibrate.rendered import markers_of, render
from tests.cameras.boards import arc

BOARD = "charuco:6x5:20:15"


def write_images(folder: Path, frames: int = 8) -> Path:
    """Two cameras without distortion, 20 degrees apart; the file names of one begin at frame 1."""
    board, random = markers_of(read_board(BOARD)), np.random.default_rng(0)
    for name in ("left", "right"):
        (folder / name).mkdir(parents=True)
    for frame in range(frames):
        turn = cv2.Rodrigues(random.uniform(-0.5, 0.5, 3))[0]
        middle = np.array([0, 0, 420.0]) + random.uniform(-20, 20, 3) - turn @ [60, 50, 0]
        plane = np.column_stack([turn[:, 0], turn[:, 1], middle])
        for name, camera in zip(("left", "right"), arc(2).each, strict=True):
            near = camera.translation * 420 / 700
            there = camera.matrix @ np.column_stack(
                [camera.rotation @ plane[:, 0], camera.rotation @ plane[:, 1], camera.rotation @ plane[:, 2] + near]
            )
            if name == "right" and frame == 0:
                continue
            cv2.imwrite(str(folder / name / f"img{frame:03d}.png"), render(board, there, camera.size_px))
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("boards") / "boards")


def test_images_with_the_same_number_belong_together(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "calibration.toml"
    assert main([str(images), "--board", BOARD, "--out", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{file}: 2 cameras from 7 frames"
    found, true = read_cameras(file), arc(2)
    assert found.names == ("left", "right") and (found.sizes_px == [640, 480]).all()
    assert np.abs(found.rotations - true.rotations).max() < 0.01
    assert abs(np.linalg.norm(found.centres[1] - found.centres[0]) / (np.linalg.norm(true.centres[1]) * 0.6) - 1) < 0.01


def test_the_number_that_varies_is_the_frame_number(tmp_path: Path) -> None:
    frames = {"left": (0, 1, 2, 3, 12), "right": (0, 2, 3, 12)}
    for name, wanted in frames.items():
        (tmp_path / name).mkdir()
        for frame in wanted:
            # The last number is that of the camera; the right one lacks frame 1.
            (tmp_path / name / f"{frame:04d}_cam{len(name)}.png").touch()
    found = find_recordings(tmp_path)
    assert {name: tuple(found[name].images) for name in frames} == frames
    # Without numbers, only complete folders go together.
    for name, wanted in frames.items():
        for file, letter in zip(sorted((tmp_path / name).iterdir()), "abcde"[: len(wanted)], strict=True):
            file.rename(tmp_path / name / f"{letter}.png")
    with pytest.raises(UserError, match=r"contain no frame number.*\(left 5, right 4\)"):
        find_recordings(tmp_path)
    (tmp_path / "left" / "e.png").unlink()
    assert [sorted(one.images) for one in find_recordings(tmp_path).values()] == [[0, 1, 2, 3]] * 2


def test_mistakes_are_one_line_each(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(folder: Path, *others: str) -> str:
        out = [] if "--out" in others else ["--out", str(tmp_path / "calibration.toml")]
        board = [] if "--board" in others else ["--board", BOARD]
        assert main([str(folder), *board, *out, *others]) == 2
        return capsys.readouterr().err

    assert "its name must end in .toml" in fails(images, "--out", str(tmp_path / "calibration.csv"))
    assert "is not a folder; give the folder with a board video of each camera" in fails(tmp_path / "absent")
    assert "has 0 recordings (none); it must have a video" in fails(tmp_path)
    assert "--board is 6x5; it must be charuco:" in fails(images, "--board", "6x5")
    mixed = tmp_path / "mixed"
    for name in ("left", "right"):
        (mixed / name).mkdir(parents=True)
        for file in sorted((images / name).iterdir())[:4]:
            (mixed / name / file.name).write_bytes(file.read_bytes())
    cv2.imwrite(str(mixed / "left" / "img001.png"), np.zeros((10, 20), np.uint8))
    assert "the frames of camera left must have one size, not 20 x 10, 640 x 480" in fails(mixed)
    # The images of one camera are flipped.
    for file in (mixed / "left").iterdir():
        image = cv2.imread(str(images / "left" / file.name))
        assert image is not None
        cv2.imwrite(str(file), image[:, ::-1])
    assert "mirrored: camera left sees the board charuco:6x5:20:15 only in mirror images" in fails(mixed)
    (tmp_path / "calibration.toml").write_text("")
    assert "calibration.toml already exists: --overwrite replaces it" in fails(images)
