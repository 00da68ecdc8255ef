"""The verb: tables of views become points in every format, and mistakes are named."""

import csv
import dataclasses
import json
import re
import shutil
from pathlib import Path

import cv2
import h5py
import ndx_pose
import numpy as np
import pynwb
import pytest

from jaxpose import draw
from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.triangulation import triangulate
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.formats.lightning_pose.tables import write_predictions
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.formats.sleap_files import write_analysis
from jaxpose.poses import Poses
from jaxpose.triangulate.__main__ import main
from jaxpose.triangulate.faults import find_faults
from jaxpose.triangulate.page import steady_pairs
from jaxpose.triangulate.views import Views
from tests.cameras.rigs import camera_at, rig
from tests.cameras.test_calibration_files import write_toml
from tests.painted_videos import write

FRAMES, NAMES = 20, ("nose", "tail", "paw")
RIG = rig(3)


def places() -> np.ndarray:
    """(t, k, 3): an animal that moves."""
    random = np.random.default_rng(5)
    return random.uniform(-20, 20, (1, len(NAMES), 3)) + np.cumsum(random.normal(0, 2, (FRAMES, 1, 3)), axis=0)


@pytest.fixture
def views(tmp_path: Path) -> list[str]:
    """The arguments of three views with noise of 1 px; view c1 has one outlier, c2 no tail in the frames 3 to 5."""
    pixels = RIG.project(places().reshape(-1, 3)).reshape(3, FRAMES, len(NAMES), 2)
    pixels += np.random.default_rng(6).normal(0, 1, pixels.shape)
    pixels[1, 7, 0] += 150
    pixels[2, 3:6, 1] = np.nan
    for view, points_px in zip(RIG.names, pixels, strict=True):
        confidence = np.where(np.isnan(points_px[..., 0]), np.nan, 0.9)
        write_predictions(tmp_path / f"{view}.csv", range(FRAMES), NAMES, points_px, confidence)
    return [
        f"--calibration={write_toml(tmp_path / 'calibration.toml', RIG)}",
        *(f"{view}={tmp_path / view}.csv" for view in RIG.names),
    ]


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([*map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_the_table_has_every_frame_and_says_how_sure_each_point_is(
    views: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*views, "--out", str(tmp_path / "points.csv")]) == 0
    with (tmp_path / "points.csv").open() as stream:
        _, bodyparts, coords, *rows = list(csv.reader(stream))
    assert bodyparts[1::12] == list(NAMES) and " ".join(coords[1:13]) == "x y z sd error_px views xx xy xz yy yz zz"
    assert [row[0] for row in rows] == [str(frame) for frame in range(FRAMES)]
    cells = np.array([row[1:] for row in rows], float).reshape(FRAMES, len(NAMES), 12)
    errors = np.linalg.norm(cells[..., :3] - places(), axis=-1)
    assert np.isfinite(cells).all() and np.mean(errors < 2 * cells[..., 3]) > 0.9
    np.testing.assert_allclose(np.sqrt(cells[..., [6, 9, 11]].sum(axis=-1)), cells[..., 3], rtol=1e-12)
    assert cells[7, 0, 5] == 2 and cells[7, 0, 4] > 50 and (cells[3:6, 1, 5] == 2).all()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("points.csv: 20 frames with 3 keypoints from 3 views; 60 of 60 points have a position")
    assert lines[1].startswith("standard deviation of a point: median ") and lines[1].endswith(" mm")
    noise_px = float(lines[2].removeprefix("standard deviation of a prediction: ").partition(" ")[0])
    assert abs(float(lines[2].rpartition("within ")[2].partition(" ")[0]) - 5 * noise_px) < 0.1
    assert lines[4].startswith("  c1  error: median ") and "agrees with 98.3 % of its points" in lines[4]
    assert lines[6] == f"{tmp_path / 'points.html'}: errors by view and keypoint, lengths over time, a view in 3D"
    assert len(lines) == 7


def test_frames_that_deeplabcut_could_not_decode_have_no_points(
    views: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for view in ("c0", "c1"):
        rows = (tmp_path / f"{view}.csv").read_text().splitlines()
        rows[3 + 9] = ",".join(["9", *["0.0"] * 3 * len(NAMES)])
        (tmp_path / f"{view}.csv").write_text("\n".join(rows))
    assert main([*views, "--out", str(tmp_path / "points.csv")]) == 0
    printed = capsys.readouterr()
    assert "c0.csv: 3 of 60 points have x, y and likelihood 0: missing" in printed.out + printed.err
    assert "57 of 60 points have a position" in printed.out
    assert (tmp_path / "points.csv").read_text().splitlines()[3 + 9] == "9" + "," * 12 * len(NAMES)


def test_the_reprojections_are_drawn_on_the_video_of_a_view(views: list[str], tmp_path: Path) -> None:
    out, folder = tmp_path / "points.csv", tmp_path / "back"
    assert main([*views, "--out", str(out), "--reprojections", str(folder)]) == 0
    both = ["--out", str(tmp_path / "again" / "c1.csv"), "--reprojections", str(tmp_path / "again")]
    assert main([*views, *both]) == 2 and not (tmp_path / "again").exists()
    assert sorted(file.name for file in folder.iterdir()) == ["c0.csv", "c1.csv", "c2.csv"]
    found = read_table(folder / "c1.csv")
    pixels = RIG.project(places().reshape(-1, 3))[1].reshape(FRAMES, len(NAMES), 2)
    assert np.abs(found.poses.points_px[:, 0] - pixels).max() < 5
    assert (found.poses.one_animal()[1].round(9) == 0.9).all()
    video = write(tmp_path / "c1.mp4", FRAMES)
    assert draw.main([str(video), str(folder / "c1.csv"), "--out", str(tmp_path / "drawn.mp4")]) == 0


def test_the_file_of_sleap_anipose_has_tracks_and_covariance(views: list[str], tmp_path: Path) -> None:
    assert main([*views, "--out", str(tmp_path / "points3d.h5"), "--unit", "cm"]) == 0
    with h5py.File(tmp_path / "points3d.h5") as opened:
        tracks, covariance = opened["tracks"][...], opened["covariance"][...]
        assert tracks.shape == (FRAMES, 1, len(NAMES), 3) and covariance.shape == (FRAMES, 1, len(NAMES), 3, 3)
        assert [name.decode() for name in opened["node_names"][...]] == list(NAMES)
        assert opened["views"][7, 0, 0] == 2 and opened.attrs["unit"] == "cm"
    assert np.median(np.linalg.norm(tracks[:, 0] - places(), axis=-1)) < 1


def test_the_table_of_anipose_has_its_columns(views: list[str], tmp_path: Path) -> None:
    assert main([*views, "--out", str(tmp_path / "points.csv"), "--to", "anipose"]) == 0
    with (tmp_path / "points.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == FRAMES and rows[4]["fnum"] == "4" and (rows[0]["M_00"], rows[0]["M_01"]) == ("1.0", "0.0")
    assert list(rows[0])[:6] == [f"nose_{column}" for column in ("x", "y", "z", "error", "ncams", "score")]
    found = np.array([[float(row[f"tail_{axis}"]) for axis in "xyz"] for row in rows])
    assert np.median(np.linalg.norm(found - places()[:, 1], axis=-1)) < 1
    assert rows[3]["tail_ncams"] == "2" and abs(float(rows[3]["tail_score"]) - 0.9) < 1e-9


def test_the_markers_of_trc_have_the_header_of_opensim(views: list[str], tmp_path: Path) -> None:
    assert main([*views, "--out", str(tmp_path / "points.trc"), "--fps", "50"]) == 0
    lines = [line.split("\t") for line in (tmp_path / "points.trc").read_text().splitlines()]
    assert lines[0] == ["PathFileType", "4", "(X/Y/Z)", "points.trc"]
    assert dict(zip(lines[1], lines[2], strict=True)) == {
        "DataRate": "50", "CameraRate": "50", "NumFrames": "20", "NumMarkers": "3", "Units": "mm",
        "OrigDataRate": "50", "OrigDataStartFrame": "1", "OrigNumFrames": "20",
    }  # fmt: skip
    assert lines[3] == ["Frame#", "Time", "nose", "", "", "tail", "", "", "paw", "", ""]
    assert lines[4][:5] == ["", "", "X1", "Y1", "Z1"] and lines[5] == [""]
    assert lines[6][:2] == ["1", "0.000000"] and lines[25][:2] == ["20", "0.380000"] and len(lines) == 26
    assert all(len(line) == 11 for line in lines[6:])


def test_the_nwb_file_has_the_points_and_the_calibrated_cameras(views: list[str], tmp_path: Path) -> None:
    out, start = tmp_path / "points.nwb", "--session_start=2026-05-04T14:30:00+02:00"
    assert main([*views, "--out", str(out), "--fps", "50", start]) == 0
    with pynwb.NWBHDF5IO(str(out), "r") as opened:
        content = opened.read()
        found = content.processing["behavior"]["MultiCameraPoseEstimation"]
        assert isinstance(found, ndx_pose.MultiCameraPoseEstimation) and list(found.skeleton.nodes) == list(NAMES)
        tail = found.pose_estimation_series["tail"]
        assert (tail.unit, tail.rate) == ("millimeters", 50.0) and tail.data.shape == (FRAMES, 3)
        assert np.median(np.linalg.norm(tail.data[:] - places()[:, 1], axis=-1)) < 1
        of_view = found.pose_estimations["PoseEstimation_c2"]
        np.testing.assert_array_equal(
            of_view.pose_estimation_series["nose"].data[:], read_table(tmp_path / "c2.csv").poses.points_px[:, 0, 0]
        )
        np.testing.assert_allclose(of_view.device.rotation_matrix[:], RIG.each[2].rotation, atol=1e-6)
        assert not pynwb.validate(io=opened)


def test_tables_of_any_form_go_together_and_keypoints_of_one_view_are_left_out(
    views: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One view is SLEAP's, with its keypoints in another order, and one more."""
    table = read_table(tmp_path / "c0.csv")
    names = ("paw", "nose", "tail", "whisker")
    other = Poses.of_one_animal(names, range(FRAMES), *table.poses.with_keypoints(names).one_animal())
    write_analysis(tmp_path / "c0.analysis.h5", PredictionTable(tmp_path / "x", other, "s"), None)
    assert main([*views, "--out", str(tmp_path / "first.csv")]) == 0
    views[1] = f"c0={tmp_path / 'c0.analysis.h5'}"
    # The order of the views, and that of their keypoints, change no point but in its last bits.
    assert main([views[0], *views[:0:-1], "--out", str(tmp_path / "second.csv")]) == 0
    assert "left out, because only one view has them: whisker (c0)" in capsys.readouterr().out
    first, second = ((tmp_path / name).read_text().splitlines()[3:] for name in ("first.csv", "second.csv"))
    numbers = [np.array([line.split(",") for line in lines], float) for lines in (first, second)]
    np.testing.assert_allclose(numbers[0], numbers[1], rtol=1e-6, atol=1e-6)


def test_a_table_of_another_view_is_named(views: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    views[3] = f"c2={shutil.copy(tmp_path / 'c1.csv', tmp_path / 'copy.csv')}"
    assert main([*views, "--out", str(tmp_path / "points.csv")]) == 0
    out = capsys.readouterr().out
    assert "\nwithout c2, the other views agree to " in out and "copy.csv the table of c2, and is its" in out
    pixels = read_table(tmp_path / "c0.csv").poses
    write_predictions(tmp_path / "large.csv", range(FRAMES), NAMES, 4 * pixels.points_px[:, 0], pixels.one_animal()[1])
    views[1] = f"c0={tmp_path / 'large.csv'}"
    assert main([*views, "--out", str(tmp_path / "other.csv"), "--quiet"]) == 0
    assert "large.csv lie outside of the images of camera c0 (1280 x 1024 px)" in capsys.readouterr().out


@pytest.mark.parametrize("count", [2, 5])
def test_the_two_views_whose_tables_are_swapped_are_named(count: int) -> None:
    cameras = rig(count, seed=4)
    pixels = moving(cameras)
    assert faults_of(cameras, pixels) == []
    (swapped,) = faults_of(cameras, pixels[[1, 0, *range(2, count)]])
    assert swapped.startswith("the tables of c0 and c1 are swapped: exchanged, the typical error falls from ")
    assert swapped.endswith(" px; write c0=c1.csv c1=c0.csv")


def test_swapped_tables_of_parallel_cameras_are_named_although_no_rays_meet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = camera_at("left", np.array([0.0, 0.0, -400.0]), np.random.default_rng(1), rotation=np.eye(3))
    left = dataclasses.replace(left, translation=np.array([0.0, 0.0, 400.0]))
    pair = Cameras([left, dataclasses.replace(left, name="right", translation=np.array([-60.0, 0.0, 400.0]))])
    calibration = write_toml(tmp_path / "calibration.toml", pair)
    pixels = pair.project(places().reshape(-1, 3)).reshape(2, FRAMES, len(NAMES), 2)
    for name, points_px in zip(("b", "a"), pixels, strict=True):
        write_predictions(tmp_path / f"{name}.csv", range(FRAMES), NAMES, points_px, np.ones(points_px.shape[:2]))
    tables = [f"left={tmp_path / 'a.csv'}", f"right={tmp_path / 'b.csv'}"]
    message = fails(capsys, f"--calibration={calibration}", *tables, f"--out={tmp_path / 'points.csv'}")
    assert "the tables of left and right are swapped: exchanged, the typical error falls from 1000.10 to 0.1" in message


def test_mistakes_are_one_line_each(views: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = f"--out={tmp_path / 'points.csv'}"
    calibration, first, second, third = views
    assert "has no camera c9; it has c0, c1, c2" in fails(capsys, calibration, first, third.replace("c2=", "c9="), out)
    assert "side.csv is not VIEW=TABLE; the views of" in fails(capsys, calibration, first, "side.csv", out)
    assert "c0.csv is given for c0 and for c0; each view" in fails(capsys, calibration, first, first, out)
    message = fails(capsys, calibration, first, second, second.replace("c1.csv", "c2.csv"), out)
    assert "different numbers of tables: c0 1, c1 2; give one table per view" in message
    assert "only the view c0 is given; 3D needs" in fails(capsys, calibration, first, out)
    assert "its name must end in .csv, .h5, .trc, .nwb" in fails(capsys, *views, f"--out={tmp_path / 'points.txt'}")
    assert "a file for --to trc ends in .trc" in fails(capsys, *views, out, "--to=trc")
    assert ".trc files hold the frames per second: give --fps" in fails(capsys, *views, f"--out={tmp_path / 'a.trc'}")
    assert "--fps is 30, but only .trc and .nwb files hold it" in fails(capsys, *views, out, "--fps=30")
    nwb, start = f"--out={tmp_path / 'a.nwb'}", "--session_start=2026-05-04T14:30:00+02:00"
    assert "give --session_start, such as 2026" in fails(capsys, *views, nwb, "--fps=30")
    assert "--session_start is 2026-05-04T14:30:00+02:00, but only .nwb" in fails(capsys, *views, out, start)
    poses = read_table(tmp_path / "c0.csv").poses
    points_px, confidence = poses.one_animal()
    write_predictions(tmp_path / "short.csv", range(5), NAMES, points_px[:5], confidence[:5])
    message = fails(capsys, calibration, f"c0={tmp_path / 'short.csv'}", second, out)
    assert "the tables have different numbers of frames: c0 5, c1 20" in message
    write_predictions(tmp_path / "others.csv", range(FRAMES), ("a", "b", "c"), points_px, confidence)
    message = fails(capsys, calibration, f"c0={tmp_path / 'others.csv'}", second, out)
    assert "no keypoint is in two views (c0: a, b, c; c1: nose, tail, paw)" in message
    write_predictions(tmp_path / "none.csv", range(FRAMES), NAMES, points_px * np.nan, confidence * np.nan)
    assert "nothing to triangulate" in fails(capsys, calibration, f"c0={tmp_path / 'none.csv'}", second, out)
    assert main([*views, out]) == 0
    assert main([*views, out, "--overwrite"]) == 0
    assert "points.csv already exists: --overwrite replaces it" in fails(capsys, *views, out)
    # Of the same points, the page is the same.
    assert main([*views, f"--out={tmp_path / 'points.trc'}", "--fps=30"]) == 0
    smooth = fails(capsys, *views, f"--out={tmp_path / 'points.h5'}", "--smooth")
    assert "points.html already exists" in smooth and not (tmp_path / "points.h5").exists()


def test_the_page_has_the_errors_the_lengths_and_a_view_in_3d(views: list[str], tmp_path: Path) -> None:
    assert main([*views, "--out", str(tmp_path / "points.csv")]) == 0
    text = (tmp_path / "points.html").read_text()
    assert "20 frames with 3 keypoints from 3 views" in text and "agrees with 98.3 % of its points" in text
    row = re.search(r'<th scope="row">tail</th>(.*?)</tr>', text)
    assert row and row[1].count("<td>") == 5 and row[1].endswith("<td>100.0 %</td>")
    content = re.search(r'<script type="application/json" id="content">(.*?)</script>', text)
    assert content
    figures = json.loads(content[1])["figures"]
    lengths = figures["plot-lengths"]["data"]
    assert [len(trace["y"]) for trace in lengths] == [FRAMES] * 2
    # The animal of the fixture moves as a whole: its lengths are constant.
    true = {np.linalg.norm(places()[0, one] - places()[0, other]) for one, other in ((0, 1), (0, 2), (1, 2))}
    assert all(min(abs(np.median(trace["y"]) - length) for length in true) < 1 for trace in lengths)
    space = figures["plot-space"]
    assert [trace["type"] for trace in space["data"]] == ["scatter3d", "scatter3d"]
    steps = space["layout"]["sliders"][0]["steps"]
    assert [step["label"] for step in steps] == [str(frame) for frame in range(FRAMES)]
    np.testing.assert_allclose(steps[4]["args"][0]["y"][1], places()[4, :, 1], atol=1.5)


def test_the_pairs_of_the_page_are_the_bones() -> None:
    """An arm of three bones that bend at random, with a point far away in one frame and one that is seen once."""
    random = np.random.default_rng(0)
    turns = random.normal(size=(50, 3, 3))
    bones = np.array([5.0, 4.0, 6.0])[:, None] * turns / np.linalg.norm(turns, axis=-1, keepdims=True)
    arm = np.cumsum(
        np.concatenate([random.normal(size=(50, 1, 3)), bones, np.full((50, 1, 3), np.nan)], axis=1), axis=1
    )
    arm += random.normal(0, 0.01, arm.shape)
    arm[7, 1] += 100
    arm[3, 4] = 0
    assert set(steady_pairs(arm)) == {(0, 1), (1, 2), (2, 3)}
    assert steady_pairs(arm[:3]) and not steady_pairs(np.full((5, 2, 3), np.nan))


def moving(cameras: Cameras, late: int = 0) -> np.ndarray:
    """The pixels (v, t, k, 2) of an animal that walks; the last view shows what was `late` frames before."""
    random = np.random.default_rng(8)
    path = np.cumsum(random.normal(0, 4, (80, 1, 3)), axis=0) + random.uniform(-20, 20, (1, len(NAMES), 3))
    pixels = cameras.project(path.reshape(-1, 3)).reshape(len(cameras.names), 80, len(NAMES), 2)
    pixels += random.normal(0, 1, pixels.shape)
    pixels[-1] = np.roll(pixels[-1], late, axis=0)
    return pixels[:, 10:70]


def faults_of(cameras: Cameras, pixels: np.ndarray) -> list[str]:
    tables = tuple(f"{name}.csv" for name in cameras.names)
    views = Views(cameras, tables, NAMES, pixels, np.ones(pixels.shape[:3]), np.zeros(pixels.shape))
    return find_faults(views, triangulate(cameras, *views.flat, 1.0))


@pytest.mark.parametrize("count", [3, 6])
def test_a_view_that_is_late_and_a_camera_that_was_moved_are_named(count: int) -> None:
    cameras = rig(count, seed=2)
    name = cameras.names[-1]
    assert faults_of(cameras, moving(cameras)) == []
    (late,) = faults_of(cameras, moving(cameras, 3))
    assert late.startswith(f"{name} is 3 frames late: with its rows shifted, its distance")
    (early,) = faults_of(cameras, moving(cameras, -1))
    assert early.startswith(f"{name} is 1 frame early: ")
    turn = cv2.Rodrigues(np.array([0.02, 0.03, 0.05]))[0]
    last = cameras.each[-1]
    moved = dataclasses.replace(last, rotation=turn @ last.rotation, translation=turn @ last.translation)
    (wrong,) = faults_of(Cameras([*cameras.each[:-1], moved]), moving(cameras))
    # Of three views, the pair without it still agrees; of more, the view itself does not.
    first = f"without {name}, the other views agree to " if count == 3 else f"{name} agrees with only "
    assert wrong.startswith(first) and f"is {name}.csv " in wrong
