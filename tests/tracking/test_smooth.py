"""`jaxpose smooth`: each track gets the bits of the smoother of one animal, and keeps its form and its name."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sleap_io

from jaxpose import convert
from jaxpose import smooth as verb
from jaxpose.config import PredictConfig
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.files import sha256_of
from jaxpose.formats.lightning_pose.tables import write_individuals, write_predictions
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.poses import Poses
from jaxpose.prediction.smoothing import smooth_tables
from tests.test_convert_animals import project
from tests.tracking.test_tracks import made

NAMES = ("old male", "female", "pup")


def table(order: tuple[int, ...] = (0, 1, 2)) -> PredictionTable:
    """Three animals with gaps, some unsure points, and a pup that appears late and leaves early."""
    poses = made(frames=120)
    points, confidence = poses.points_px.copy(), np.array(poses.confidence)
    points[:30, 2] = points[100:, 2] = confidence[:30, 2] = confidence[100:, 2] = np.nan
    confidence[::7, 0, 1] = 0.1
    confidence[np.isnan(points[..., 0])] = np.nan
    points, confidence = points[:, list(order)], confidence[:, list(order)]
    identity = np.where(np.isfinite(points[..., 0]).any(axis=2), np.arange(3), -1)
    names = tuple(NAMES[animal] for animal in order)
    poses = Poses(poses.keypoint_names, poses.frames, points, confidence, identity=identity, individuals=names)
    return PredictionTable(Path("made"), poses, "DLC_net")


def smooth(file: Path, *flags: object, out: str = "") -> Path:
    out_flags = ["--out", str(file.parent / out)] if out else []
    assert verb.main([str(file), *map(str, flags), *out_flags]) == 0
    return file.parent / out if out else file.with_name(file.name.replace(".", "_smoothed.", 1))


def arrays(poses: Poses) -> tuple[np.ndarray, np.ndarray]:
    return poses.points_px, np.asarray(poses.confidence)


def write_alone(file: Path, animal: int, rows: slice = slice(None)) -> Path:
    """The table of one animal without a name."""
    poses = table().poses
    points, confidence = poses.points_px[rows, animal], np.asarray(poses.confidence)[rows, animal]
    write_predictions(file, range(len(points)), poses.keypoint_names, points, confidence, "net")
    return file


@pytest.mark.parametrize("flags", [("--method", "median", "--window", 7), ("--min_confidence", 0.3)])
def test_each_track_has_the_bits_of_its_animal_alone_in_any_order(tmp_path: Path, flags: tuple) -> None:
    for number, order in enumerate([(0, 1, 2), (2, 0, 1)]):
        write_individuals(tmp_path / f"{number}.csv", table(order))
    first, second = (read_table(smooth(tmp_path / f"{number}.csv", *flags), several=True).poses for number in range(2))
    assert first.individuals == NAMES and second.individuals == ("pup", "old male", "female")
    for animal, rows in enumerate([slice(None), slice(None), slice(30, 100)]):
        alone = read_table(smooth(write_alone(tmp_path / f"of{animal}.csv", animal, rows), *flags)).poses
        np.testing.assert_array_equal(first.points_px[rows, animal], alone.points_px[:, 0])
        np.testing.assert_array_equal(first.confidence[rows, animal], alone.confidence[:, 0])
        for found, expected in zip(
            (second.points_px, second.confidence), (first.points_px, first.confidence), strict=True
        ):
            np.testing.assert_array_equal(found[:, (animal + 1) % 3], expected[:, animal])
    # All gaps of an animal are filled, and it is nowhere before it appears or after it leaves.
    assert np.isfinite(first.points_px[:, :2]).all() and np.isnan(table().poses.points_px[:, :2]).any()
    is_there = np.asarray(np.isfinite(first.points_px[:, 2]).all(axis=(1, 2)))
    assert is_there[30:100].all() and not is_there[:30].any() and not is_there[100:].any()


@pytest.mark.parametrize("method", ["kalman", "median"])
def test_a_table_of_one_animal_gets_the_bytes_that_predict_writes(tmp_path: Path, method: str) -> None:
    file = write_alone(tmp_path / "day1.csv", 0)
    of_verb = smooth(file, "--method", method, out="other.csv")
    smooth_tables(PredictConfig(smooth=method), {file: sha256_of(file)[:16]})
    assert of_verb.read_bytes() == (tmp_path / "day1_smoothed.csv").read_bytes()


@pytest.mark.parametrize(("form", "ending"), [("csv", "CSV"), ("deeplabcut", "h5"), ("sleap-analysis", "analysis.h5")])
def test_a_table_comes_back_in_its_form(tmp_path: Path, form: str, ending: str) -> None:
    unique = Poses.of_one_animal(("door",), range(120), np.full((120, 1, 2), 3.0), np.ones((120, 1)))
    given = dataclasses.replace(table(), unique=None if form == "sleap-analysis" else unique)
    write_individuals(tmp_path / "first.csv", given)
    expected = read_table(smooth(tmp_path / "first.csv", "--method", "median"), several=True).poses
    file = tmp_path / f"day1.{ending}"
    assert convert.main(["predictions", str(tmp_path / "first.csv"), "--to", form, "--out", str(file)]) == 0
    found = smooth(file, "--method", "median")
    assert found.name == f"day1_smoothed.{ending}"
    again = read_table(found, several=True)
    np.testing.assert_array_equal(again.poses.points_px, expected.points_px)
    np.testing.assert_array_equal(again.poses.confidence, expected.confidence)
    assert again.poses.individuals == NAMES and (again.unique is None) == (form == "sleap-analysis")
    if form == "deeplabcut":
        content = pd.read_hdf(found)
        assert isinstance(content, pd.DataFrame)
        assert list(content.columns.get_level_values("individuals").unique()) == [*NAMES, "single"]
        np.testing.assert_array_equal(content["DLC_net"]["pup"]["tail"]["y"], expected.points_px[:, 2, 2, 1])


def test_a_sleap_project_keeps_its_skeleton_tracks_and_video(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project(tmp_path)
    after = sleap_io.load_slp(str(smooth(file, "--method", "median", "--min_confidence", 0)))
    printed = capsys.readouterr().out
    assert [track.name for track in after.tracks] == ["female", "male"] and after.videos[0].filename == "day1.mp4"
    assert after.skeletons[0].edge_names == [("nose", "tail")]
    assert "dropped: 2 animals without a track\nsmoothed as well: 1 animal that a person placed" in printed
    # Of frame 1, the male's gap is filled: the median of frames 0, 2 and 3, between those of 0 and 2.
    males = {frame.frame_idx: one for frame in after for one in frame.instances if one.track.name == "male"}
    assert sorted(males) == [0, 1, 2, 3]
    np.testing.assert_allclose(males[1].numpy(), (males[0].numpy() + males[2].numpy()) / 2, rtol=1e-12)
    assert males[1].score == 0 and np.isnan(males[1].numpy(scores=True)[:, 2]).all()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--method", "none"], "--method is none; it must be kalman or median"),
        (["--method", "mean"], "--method is 'mean'; it must be one of none, median, kalman"),
        (["--window", "5"], "--window is 5, but --method is kalman: only median has a window"),
        (["--method", "median", "--window", "4"], "--window is 4; it must be odd"),
        (["--min_confidence", "2"], "--min_confidence is 2.0; it must be at most 1"),
        (["--out", "a.csv"], "--out is a.csv, which is the table to smooth; choose another file"),
        (["--out", "b.nwb"], "--out is b.nwb; its name must end in one of .slp, .h5, .analysis.h5, .csv, .parquet"),
        (["--out", "b.slp"], "b.slp, but a.csv does not name its video, which .slp files describe: write an .h5"),
        (["--out", "b.parquet"], "a.csv has 3 animals; parquet files that jaxpose writes hold one"),
        (["--out", "taken.csv"], "taken.csv"),
    ],
)
def test_mistakes(
    tmp_path: Path, flags: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_individuals(Path("a.csv"), table())
    Path("taken.csv").write_text("mine")
    assert verb.main(["a.csv", *flags]) == 2
    assert text in capsys.readouterr().err
    assert Path("taken.csv").read_text() == "mine" and sorted(file.name for file in tmp_path.iterdir()) == [
        "a.csv", "taken.csv",
    ]  # fmt: skip
