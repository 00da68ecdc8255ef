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


def slp(file: Path, tracks: dict[str, range], score: float = 0.9) -> Path:
    """A project of SLEAP of 12 frames whose tracks have an animal in some of them, 10 px from each other."""
    skeleton, video = sleap_io.Skeleton(["nose", "tail"]), sleap_io.Video("day1.mp4", open_backend=False)
    video.backend_metadata = {"type": "MediaVideo", "shape": [12, 64, 96, 3]}
    known, frames = [sleap_io.Track(name) for name in tracks], []
    for number in range(12):
        instances = [
            sleap_io.PredictedInstance.from_numpy(
                np.array([[number, 10.0 * place], [number + 5, 9]]), skeleton, np.full(2, score), score, track=track
            )
            for place, (track, of_track) in enumerate(zip(known, tracks.values(), strict=True))
            if number in of_track
        ]
        frames += [sleap_io.LabeledFrame(video, number, instances)] if instances else []
    sleap_io.Labels(frames, videos=[video], skeletons=[skeleton], tracks=known).save(str(file))
    return file


@pytest.mark.parametrize(
    "tracks",
    [{"A": range(2, 5), "B": range(5, 8)}, {"A": range(2, 8), "unused": range(0)}, {"A": range(2, 8)}],
    ids=["pieces", "unused", "one"],
)
def test_one_animal_keeps_its_tracks_from_their_first_to_their_last_frame(
    tmp_path: Path, tracks: dict[str, range], capsys: pytest.CaptureFixture[str]
) -> None:
    file = slp(tmp_path / "day1.slp", tracks)
    found = sleap_io.load_slp(str(smooth(file, "--method", "median", "--window", 1)))
    assert ("dropped: edges, and scores of instances" in capsys.readouterr().out) == (len(tracks) == 1)
    assert [track.name for track in found.tracks] == list(tracks)
    frames = {name: [] for name in tracks}
    for frame in found:
        (one,) = frame.instances
        frames[one.track.name].append(frame.frame_idx)
        np.testing.assert_array_equal(one.numpy()[:, 0], [frame.frame_idx, frame.frame_idx + 5])
    assert frames == {name: list(numbers) for name, numbers in tracks.items()}
    written = pd.read_csv(smooth(file, out="other.csv"), header=[0, 1, 2, 3], index_col=0)
    assert list(written.columns.unique("individuals")) == list(tracks)
    of_nose = written.xs(("nose", "x"), axis=1, level=("bodyparts", "coords"))
    assert list(of_nose.index[of_nose.notna().any(axis=1)]) == list(range(2, 8))


def test_one_animal_of_sleap_without_a_track_has_no_points_before_its_first_or_after_its_last(tmp_path: Path) -> None:
    labels = sleap_io.load_slp(str(slp(tmp_path / "day1.slp", {"A": range(3, 9)})), open_videos=False)
    for frame in labels:
        frame.instances[0].track = None
    labels.tracks = []
    labels.labeled_frames.pop(2)
    labels.save(str(tmp_path / "free.slp"))
    found = sleap_io.load_slp(str(smooth(tmp_path / "free.slp", "--method", "median", "--window", 1)))
    # Frame 5 is filled; frames 0 to 2 and 9 to 11 stay empty.
    noses = [frame[0].numpy()[0, 0] for frame in found]
    np.testing.assert_array_equal(noses, [*[np.nan] * 3, *range(3, 9), *[np.nan] * 3])
    written = pd.read_csv(smooth(tmp_path / "free.slp", out="free.csv"), header=[0, 1, 2], index_col=0)
    nose = written.xs("nose", axis=1, level="bodyparts").droplevel(0, axis=1)
    assert list(nose.index[nose["x"].notna()]) == list(range(3, 9)) and list(np.flatnonzero(nose["filled"])) == [5]


def test_one_individual_keeps_its_name_or_a_line_says_that_it_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    poses = table().poses
    alone = Poses(poses.keypoint_names, poses.frames, poses.points_px[:, :1], np.asarray(poses.confidence)[:, :1],
                  identity=np.asarray(poses.identity)[:, :1], individuals=NAMES[:1])  # fmt: skip
    write_individuals(tmp_path / "day1.csv", PredictionTable(Path("made"), alone, "DLC_net"))
    written = pd.read_csv(smooth(tmp_path / "day1.csv"), header=[0, 1, 2, 3], index_col=0)
    assert list(written.columns.unique("individuals")) == ["old male"]
    assert "dropped" not in capsys.readouterr().out
    smooth(tmp_path / "day1.csv", out="day1.h5")
    assert "dropped: the name old male, because deeplabcut files of one animal have none" in capsys.readouterr().out


def test_an_animal_without_scores_is_smoothed_and_a_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = slp(tmp_path / "day1.slp", {"A": range(12), "B": range(12)}, score=np.nan)
    found = sleap_io.load_slp(str(smooth(file, "--method", "median", "--window", 1)))
    printed = capsys.readouterr().out
    assert "A: 12 frames, 0 places filled, 0.0 %; it has no scores, so all its positions count" in printed
    assert [len(frame.instances) for frame in found] == [2] * 12


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--method", "none"], "--method is none; it must be kalman or median"),
        (["--method", "mean"], "--method is 'mean'; it must be one of none, median, kalman"),
        (["--window", "5"], "--window is 5, but --method is kalman: only median has a window"),
        (["--method", "median", "--window", "4"], "--window is 4; it must be odd"),
        (["--min_confidence", "2"], "--min_confidence is 2.0; it must be at most 1"),
        (["--out", "a.csv"], "--out is a.csv, which is the table to read; choose another file"),
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
