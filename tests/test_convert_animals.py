"""Predictions of several animals: each form comes back with the same numbers, and opens in the tools of its makers."""

import dataclasses
import sys
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pynwb
import pytest
import sleap_io

from jaxpose import convert, smooth, to_xarray, track
from jaxpose.checksums import write_csv
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.errors import UserError
from jaxpose.files import sha256_of
from jaxpose.formats.lightning_pose.tables import write_individuals, write_predictions
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.poses import Poses
from jaxpose.prediction.index import COLUMNS
from tests.index_row import row
from tests.painted_videos import write as write_video

NAMES, FRAMES = ("nose", "tail"), 6


def made(individuals: tuple[str, ...] = ("female", "male")) -> PredictionTable:
    """Two animals; the second is absent from frame 1, both are from frame 4, and a point is missing in frame 2."""
    random = np.random.default_rng(0)
    points = random.uniform(0, 60, (FRAMES, 2, 2, 2))
    confidence = random.uniform(0.2, 1, (FRAMES, 2, 2))
    points[1, 1] = points[4] = points[2, 0, 1] = np.nan
    confidence[np.isnan(points[..., 0])] = np.nan
    identity = np.where(np.isfinite(points[..., 0]).any(axis=2), [0, 1], -1)
    poses = Poses(NAMES, range(FRAMES), points, confidence, identity=identity, individuals=individuals)
    return PredictionTable(Path("made"), poses, "DLC_net")


def project(folder: Path) -> Path:
    """A SLEAP project with tracks, scores, a corrected instance, an empty frame, and an instance without a track."""
    skeleton = sleap_io.Skeleton(list(NAMES), edges=[("nose", "tail")], name="fly")
    shape = [FRAMES, 48, 64, 1]
    video = sleap_io.Video("day1.mp4", backend_metadata={"type": "MediaVideo", "shape": shape}, open_backend=False)
    tracks = [sleap_io.Track("female"), sleap_io.Track("male")]
    table, frames = made(), []
    for frame in range(FRAMES):
        instances = [
            sleap_io.PredictedInstance.from_numpy(
                table.poses.points_px[frame, animal], skeleton, table.poses.confidence[frame, animal], 0.5 + animal,
                track=tracks[animal] if frame < 5 else None,
            )
            for animal in range(2)
            if table.poses.identity[frame, animal] >= 0
        ]  # fmt: skip
        if frame == 3:
            instances.append(sleap_io.Instance.from_numpy(np.full((2, 2), 7.0), skeleton, track=tracks[1]))
            instances[-1].from_predicted = instances[1]
        frames.append(sleap_io.LabeledFrame(video=video, frame_idx=frame, instances=instances))
    labels = sleap_io.Labels(frames, videos=[video], skeletons=[skeleton], tracks=tracks)
    labels.save(str(folder / "day1.slp"), embed=False)
    return folder / "day1.slp"


def run(*arguments: object) -> int:
    return convert.main(["predictions", *map(str, arguments)])


def same(found: Poses, expected: Poses) -> None:
    assert found.keypoint_names == expected.keypoint_names and found.individuals == expected.individuals
    np.testing.assert_array_equal(found.points_px, expected.points_px)
    np.testing.assert_array_equal(found.confidence, expected.confidence)
    np.testing.assert_array_equal(found.identity, expected.identity)


@pytest.mark.parametrize("ending", ["csv", "h5", "analysis.h5"])
def test_a_table_with_individuals_comes_back(tmp_path: Path, ending: str) -> None:
    table = made()
    write_individuals(tmp_path / "first.csv", table)
    same(read_table(tmp_path / "first.csv", several=True).poses, table.poses)
    form = {"csv": "csv", "h5": "deeplabcut", "analysis.h5": "sleap-analysis"}[ending]
    file, back = tmp_path / f"second.{ending}", tmp_path / "back.csv"
    assert run(tmp_path / "first.csv", "--to", form, "--out", file) == 0
    same(read_table(file, several=True).poses, table.poses)
    assert run(file, "--to", "csv", "--out", back) == 0
    assert back.read_bytes() == (tmp_path / "first.csv").read_bytes()


def test_pandas_reads_the_individuals_as_deeplabcut_does(tmp_path: Path) -> None:
    table = made()
    unique = Poses.of_one_animal(("door",), range(FRAMES), np.full((FRAMES, 1, 2), 3.0), np.ones((FRAMES, 1)))
    write_individuals(tmp_path / "a.csv", dataclasses.replace(table, unique=unique))
    assert run(tmp_path / "a.csv", "--to", "deeplabcut", "--out", tmp_path / "a.h5") == 0
    of_csv = pd.read_csv(tmp_path / "a.csv", header=[0, 1, 2, 3], index_col=0)
    of_h5 = pd.read_hdf(tmp_path / "a.h5")
    for found in (of_csv, of_h5):
        assert isinstance(found, pd.DataFrame)
        assert found.columns.names == ["scorer", "individuals", "bodyparts", "coords"]
        assert list(found.columns.get_level_values(1).unique()) == ["female", "male", "single"]
        assert list(found["DLC_net"]["single"].columns) == [("door", coord) for coord in ("x", "y", "likelihood")]
        np.testing.assert_array_equal(found["DLC_net"]["male"]["tail"]["x"], table.poses.points_px[:, 1, 1, 0])
    again = read_table(tmp_path / "a.h5", several=True)
    same(again.poses, table.poses)
    assert again.unique is not None and again.unique.keypoint_names == ("door",)


def test_a_sleap_project_keeps_tracks_scores_a_persons_instances_and_empty_frames(tmp_path: Path) -> None:
    file = project(tmp_path)
    assert run(file, "--to", "slp", "--out", tmp_path / "again.slp") == 0
    before, after = sleap_io.load_slp(str(file)), sleap_io.load_slp(str(tmp_path / "again.slp"))
    assert [frame.frame_idx for frame in after] == list(range(FRAMES)) and not after[4].instances
    assert [track.name for track in after.tracks] == ["female", "male"]
    assert after.skeletons[0].edge_names == [["nose", "tail"]] or after.skeletons[0].edge_names == [("nose", "tail")]
    assert after.videos[0].filename == "day1.mp4" and after.videos[0].shape[0] == FRAMES
    for one, other in zip(before, after, strict=True):
        expected = [instance for instance in one.instances if not (one.frame_idx == 3 and instance is one.instances[1])]
        found = sorted(
            other.instances, key=lambda instance: [i.numpy()[0, 0] for i in expected].index(instance.numpy()[0, 0])
        )
        for first, second in zip(expected, found, strict=True):
            np.testing.assert_array_equal(first.numpy(), second.numpy())
            assert type(first) is type(second) and getattr(first, "score", 0) == getattr(second, "score", 0)
            assert (first.track and first.track.name) == (second.track and second.track.name)


def test_tracks_of_sleap_that_share_no_frame_are_two_individuals(tmp_path: Path) -> None:
    labels = sleap_io.load_slp(str(project(tmp_path)))
    for frame in labels:
        turn = ("female", "male")[frame.frame_idx % 2]
        frame.instances = [one for one in frame.predicted_instances if one.track and one.track.name == turn]
    labels.save(str(tmp_path / "turns.slp"), embed=False)
    expected = np.full((FRAMES, 2, 2, 2), np.nan)
    for frame in labels:
        for instance in frame.instances:
            expected[frame.frame_idx, frame.frame_idx % 2] = instance.numpy()
    assert np.isfinite(expected[:, 0]).any() and np.isfinite(expected[:, 1]).any()
    for form, ending in {"csv": "csv", "deeplabcut": "h5", "sleap-analysis": "analysis.h5"}.items():
        file = tmp_path / f"turns.{ending}"
        assert run(tmp_path / "turns.slp", "--to", form, "--out", file) == 0
        found = read_table(file, several=True).poses
        assert found.individuals == ("female", "male")
        np.testing.assert_array_equal(found.points_px[:FRAMES], expected)
    assert list(to_xarray(tmp_path / "turns.slp").individual) == ["female", "male"]


def test_a_frame_that_a_sleap_project_lists_twice_has_the_instances_of_both(tmp_path: Path) -> None:
    file = project(tmp_path)
    labels, twice = sleap_io.load_slp(str(file)), tmp_path / "twice.slp"
    first = labels[0]
    first.instances, other = first.instances[:1], first.instances[1:]
    labels.labeled_frames.append(sleap_io.LabeledFrame(video=first.video, frame_idx=0, instances=other))
    labels.save(str(twice), embed=False)
    assert sum(frame.frame_idx == 0 for frame in sleap_io.load_slp(str(twice))) == 2
    same(read_table(twice, several=True).poses, read_table(file, several=True).poses)


def test_nwb_has_a_pose_estimation_for_each_individual(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, out = made(), tmp_path / "day1.nwb"
    write_individuals(tmp_path / "day1.csv", table)
    video = write_video(tmp_path / "day1.mp4", FRAMES)
    command = (
        "--to", "nwb", "--video", video, "--session_start", "2026-05-04T14:30:00+02:00", "--out", out
    )  # fmt: skip
    assert run(tmp_path / "day1.csv", *command) == 0
    with pynwb.NWBHDF5IO(str(out), "r") as opened:
        module = opened.read().processing["behavior"]
        assert sorted(module.data_interfaces) == ["PoseEstimation_female", "PoseEstimation_male", "Skeletons"]
        for animal, individual in enumerate(table.poses.individuals):
            estimation = module[f"PoseEstimation_{individual}"]
            assert estimation.scorer == "DLC_net" and list(estimation.skeleton.nodes) == list(NAMES)
            for place, name in enumerate(NAMES):
                np.testing.assert_array_equal(estimation[name].data[:], table.poses.points_px[:, animal, place])
                np.testing.assert_array_equal(estimation[name].confidence[:], table.poses.confidence[:, animal, place])
    assert pynwb.validate(path=str(out)) == []
    write_individuals(tmp_path / "day1.csv", made(("a/b", "c")))
    assert run(tmp_path / "day1.csv", *command, "--overwrite") == 2
    assert "'a/b' has a / or :, which NWB does not allow in names; rename it" in capsys.readouterr().err


def test_tracks_are_a_dataset_in_the_layout_of_movement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, file = made(), tmp_path / "day1.csv"
    write_individuals(file, table)
    found = to_xarray(file, fps=25)
    assert found.position.dims == ("time", "space", "keypoint", "individual")
    assert found.confidence.dims == ("time", "keypoint", "individual")
    assert found.attrs["fps"] == 25 and found.attrs["time_unit"] == "seconds" and found.attrs["ds_type"] == "poses"
    male = found.sel(individual="male", keypoint="tail")
    np.testing.assert_array_equal(male.position.sel(space="y"), table.poses.points_px[:, 1, 1, 1])
    np.testing.assert_array_equal(male.confidence, table.poses.confidence[:, 1, 1])
    np.testing.assert_array_equal(found.sel(time=0.04).confidence, table.poses.confidence[1].T)
    assert run(project(tmp_path), "--to", "sleap-analysis", "--out", tmp_path / "a.analysis.h5") == 0
    again = to_xarray(tmp_path / "a.analysis.h5")
    assert again.time.values.tolist() == list(range(FRAMES)) and again.attrs["time_unit"] == "frames"
    for fps in (-1, "30", np.nan):
        with pytest.raises(UserError, match=f"fps is {fps!r}; it must be a positive number, or 0 for times in frames"):
            to_xarray(file, fps=fps)  # pyright: ignore[reportArgumentType]
    one = PredictionTable(tmp_path, dataclasses.replace(table.poses.at([0]), individuals=()))
    write_predictions(
        tmp_path / "one.csv", range(1), NAMES, one.poses.points_px[:, 0], one.poses.confidence[:, 0], "net"
    )
    assert to_xarray(tmp_path / "one.csv").individual.values.tolist() == ["id_0"]
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(
        UserError, match=r"a Dataset needs xarray, which is not installed: pip install 'jaxpose\[xarray"
    ):
        to_xarray(file)


def test_what_a_form_cannot_hold_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = project(tmp_path)
    assert run(file, "--to", "csv", "--out", tmp_path / "a.csv") == 0
    out = capsys.readouterr().out
    assert "2 animals without a track; the score of each animal; the mark of 1 animal that a person placed" in out
    with h5py.File(tmp_path / "b.analysis.h5", "w") as opened:
        opened["x"] = 0
    assert run(file, "--to", "parquet", "--out", tmp_path / "a.parquet") == 2
    assert (
        "has 2 animals; parquet files that jaxpose writes hold one: choose csv, deeplabcut," in capsys.readouterr().err
    )


def test_animals_without_tracks_have_no_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = sleap_io.load_slp(str(project(tmp_path)))
    for frame in labels:
        for instance in frame.instances:
            instance.track = None
    labels.tracks = []
    labels.save(str(tmp_path / "untracked.slp"), embed=False)
    assert run(tmp_path / "untracked.slp", "--to", "csv", "--out", tmp_path / "a.csv") == 2
    assert "has several animals without tracks; jaxpose track makes their tracks" in capsys.readouterr().err


def results(folder: Path, forms: tuple[str, ...] = ("csv",)) -> Path:
    """A results folder of jaxpose predict: detections, the surest animal first, tracks, and the video."""
    (tables := folder / "run" / "video_preds").mkdir(parents=True)
    video = write_video(folder / "day1.mp4", FRAMES)
    tracks = made(("animal1", "animal2"))
    mixed = np.where(np.arange(FRAMES) % 2 == 0, [[0], [1]], [[1], [0]]).T
    points, sure = (
        np.take_along_axis(values, mixed.reshape(FRAMES, 2, *[1] * (values.ndim - 2)), axis=1)
        for values in (tracks.poses.points_px, tracks.poses.confidence)
    )
    identity = np.where(np.isfinite(points[..., 0]).any(axis=2), [0, 1], -1)
    poses = dataclasses.replace(tracks.poses, points_px=points, confidence=sure, identity=identity)
    write_individuals(table := tables / "day1_detections.csv", dataclasses.replace(tracks, poses=poses))
    write_individuals(tables / "day1_tracks.csv", tracks)
    for form in forms[1:]:
        (tables / f"day1_tracks.{form}").write_bytes(b"")
    of_table = row(
        path=str(video), table=f"video_preds/{table.name}", size=video.stat().st_size, table_sha256=sha256_of(table)
    )
    write_csv(
        folder / "run" / "index.csv", pd.DataFrame([dataclasses.asdict(of_table)], columns=COLUMNS).to_csv(index=False)
    )
    return folder / "run"


@pytest.mark.parametrize("form", ["csv", "deeplabcut", "sleap-analysis", "slp"])
def test_of_a_run_the_tracks_are_converted_not_the_detections(tmp_path: Path, form: str) -> None:
    folder, out = results(tmp_path), tmp_path / "out"
    assert run(folder, "--to", form, "--out", out) == 0
    # DeepLabCut finds tracks by this name, in a project with several animals.
    names = {"deeplabcut": "day1DLC_net_el.h5", "sleap-analysis": "day1_tracks.analysis.h5"}
    found = read_table(out / names.get(form, f"day1_tracks.{form}"), several=True).placed().poses
    same(found, made(("animal1", "animal2")).poses)


def test_the_places_of_detections_are_no_tracks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = results(tmp_path)
    detections = folder / "video_preds" / "day1_detections.csv"
    for verb in (
        ["--to", "deeplabcut", "--out", str(tmp_path / "a.h5")],
        [
            "--to",
            "nwb",
            "--session_start",
            "2026-05-04T14:30:00+02:00",
            "--video",
            str(tmp_path / "day1.mp4"),
            "--out",
            str(tmp_path / "a.nwb"),
        ],
    ):
        assert run(detections, *verb) == 2
        assert "day1_detections.csv has several animals without tracks; jaxpose track makes" in capsys.readouterr().err
    assert smooth.main([str(detections)]) == 2
    assert run(detections, "--to", "slp", "--video", tmp_path / "day1.mp4", "--out", tmp_path / "a.slp") == 0
    instances = [one for frame in sleap_io.load_slp(str(tmp_path / "a.slp")) for one in frame.instances]
    assert len(instances) == 9 and not any(one.track for one in instances)
    (folder / "video_preds" / "day1_tracks.csv").unlink()
    assert run(folder, "--to", "csv", "--out", tmp_path / "out") == 2
    assert "day1_detections.csv has no tracks; make them with jaxpose track" in capsys.readouterr().err


def test_of_tracks_in_two_forms_a_person_chooses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = results(tmp_path, ("csv", "slp"))
    assert run(folder, "--to", "csv", "--out", tmp_path / "out") == 2
    assert "has the tracks day1_tracks.csv and day1_tracks.slp; give the file to convert" in capsys.readouterr().err


def test_detections_of_a_run_become_tracks_with_their_video(tmp_path: Path) -> None:
    folder, out = results(tmp_path), tmp_path / "fixed.slp"
    detections = folder / "video_preds" / "day1_detections.csv"
    assert track.main([str(detections), "--animals", "2", "--out", str(out)]) == 0
    labels = sleap_io.load_slp(str(out))
    assert labels.videos[0].filename == str(tmp_path / "day1.mp4") and len(labels.tracks) == 2


def test_pickles_of_deeplabcut_are_refused_with_the_function_that_writes_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "day1DLC_full.pickle").write_bytes(b"\x80\x04.")
    assert run(tmp_path / "day1DLC_full.pickle", "--to", "csv", "--out", tmp_path / "a.csv") == 2
    assert "deeplabcut.stitch_tracklets(config, [video]) writes its animals to an .h5 table" in capsys.readouterr().err


def test_a_verb_of_one_animal_refuses_several(tmp_path: Path) -> None:
    from jaxpose.errors import UserError

    write_individuals(tmp_path / "a.csv", made())
    with pytest.raises(UserError, match="has 2 animals; give a table of one animal"):
        read_table(tmp_path / "a.csv")


@pytest.mark.parametrize("ending", ["csv", "h5"])
def test_placeholders_of_deeplabcut_are_missing(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [["DLC_net"], ["female", "male"], list(NAMES), ["x", "y", "likelihood"]]
    columns = pd.MultiIndex.from_product(names, names=["scorer", "individuals", "bodyparts", "coords"])
    cells = np.random.default_rng(0).uniform(0.1, 0.9, (FRAMES, 2, 2, 3))
    cells[1], cells[2, 1], cells[3, 0, 1] = 0, -1, 0
    # These are points: at the corner with a likelihood, and elsewhere without.
    cells[4, 0, 0], cells[4, 0, 1], cells[4, 1, 0] = (0, 0, 0.3), (5, 7, 0), (-1, -1, 0.3)
    table = pd.DataFrame(cells.reshape(FRAMES, -1), index=range(FRAMES), columns=columns)
    file, copied = tmp_path / f"day1.{ending}", cells.copy()
    table.to_csv(file) if ending == "csv" else table.to_hdf(file, key="df_with_missing")
    copied[2, 1] = np.nan
    assert run(file, "--to", "sleap-analysis", "--out", tmp_path / "a.analysis.h5") == 0
    assert f"{file}: 2 of 24 points have x, y and likelihood -1: missing\n" in capsys.readouterr().out
    with h5py.File(tmp_path / "a.analysis.h5") as opened:
        np.testing.assert_array_equal(opened["tracks"][:].transpose(3, 0, 2, 1), copied[..., :2])
        np.testing.assert_array_equal(opened["point_scores"][:].transpose(2, 0, 1), copied[..., 2])
    copied[1, ..., :2] = copied[3, 0, 1, :2] = np.nan
    assert track.main([str(file), "--animals", "2", "--out", str(tmp_path / "tracks.csv")]) == 0
    assert f"{file}: 5 of 24 points have x, y and likelihood 0: missing\n" in capsys.readouterr().out
    found = read_table(tmp_path / "tracks.csv", several=True).poses.points_px
    assert np.isnan(found[1]).all() and {3, 4} <= {*np.flatnonzero(np.isfinite(found).any(axis=(1, 2, 3)))}
    for frame, animal in np.argwhere(np.isfinite(found[..., 0]).any(axis=2)):
        assert any(np.array_equal(found[frame, animal], one, equal_nan=True) for one in copied[frame, ..., :2])
    assert (
        smooth.main([str(file), "--method", "median", "--min_confidence", "0", "--out", str(tmp_path / "s.csv")]) == 0
    )
    assert "5 of 24 points have x, y and likelihood 0: missing" in capsys.readouterr().out
    assert (np.abs(read_table(tmp_path / "s.csv", several=True).poses.points_px[1]) > 0).all()


def test_labels_of_several_animals_are_no_table_of_predictions(tmp_path: Path) -> None:
    names = [["me"], ["female", "male"], list(NAMES), ["x", "y"]]
    columns = pd.MultiIndex.from_product(names, names=["scorer", "individuals", "bodyparts", "coords"])
    pd.DataFrame(np.ones((2, 8)), index=["a.png", "b.png"], columns=columns).to_csv(tmp_path / "labels.csv")
    with pytest.raises(UserError, match="labels.csv is a label file, without likelihood columns"):
        read_table(tmp_path / "labels.csv", several=True)
    pd.DataFrame(np.ones((2, 8)), index=[0, 1], columns=columns).to_hdf(tmp_path / "labels.h5", key="df_with_missing")
    with pytest.raises(UserError, match="labels.h5 is a label file, without likelihood columns"):
        read_table(tmp_path / "labels.h5", several=True)
