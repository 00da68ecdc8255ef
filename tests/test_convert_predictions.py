"""Predictions of videos as files of other tools: each read back by the library of that tool, number by number."""

import datetime
import json
import pickle
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow.parquet
import pynwb
import pytest
import sleap_io
from scipy import signal

from jaxpose import convert
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.errors import UserError
from jaxpose.formats.deeplabcut.tables import write_predictions as write_deeplabcut
from jaxpose.formats.lightning_pose.tables import write_predictions
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.formats.sleap_files import write_analysis
from jaxpose.poses import Poses
from jaxpose.prediction.index import COLUMNS
from tests.painted_videos import SIZE_PX, write

FRAMES, NAMES = 12, ("nose", "left ear", "Schwanz_ä")


def made() -> tuple[np.ndarray, np.ndarray]:
    """Keypoints and confidence with every kind of gap; the last frame has no keypoint at all."""
    random = np.random.default_rng(0)
    points = random.uniform(-2, 64, (FRAMES, len(NAMES), 2))
    confidence = random.uniform(0, 1, (FRAMES, len(NAMES)))
    points[3, 1] = points[5] = points[-1] = np.nan
    confidence[4, 2] = confidence[5] = np.nan
    points[0, 0], confidence[0, 0] = (0, 0), 0
    return points, confidence


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_predictions(tmp_path / "day1.csv", range(FRAMES), NAMES, *made())
    return tmp_path / "day1.csv"


@pytest.fixture
def video(tmp_path: Path) -> Path:
    (tmp_path / "films").mkdir()
    return write(tmp_path / "films" / "day1.mp4", FRAMES)


def run(*arguments: object) -> int:
    return convert.main(["predictions", *map(str, arguments)])


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(*arguments) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("form", ["sleap-analysis", "csv", "deeplabcut"])
def test_scores_above_1_become_1_with_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    """SLEAP's scores are peaks of heatmaps, which nothing limits to 1; the other forms may come from such a file."""
    points, confidence = made()
    confidence[1, 0], confidence[2, 1], confidence[2, 2] = 1.0126, 1.3, 1.0005
    name = {"sleap-analysis": "day.analysis.h5", "csv": "day.csv", "deeplabcut": "day.h5"}[form]
    file = tmp_path / name
    write_scores(file, points, confidence)
    assert run(file, "--to", "parquet", "--out", tmp_path / "out.parquet") == 0
    assert f"{file}: 2 of 36 scores are above 1 (the largest is 1.3); read as 1\n" in capsys.readouterr().out
    found = read_table(tmp_path / "out.parquet")
    np.testing.assert_array_equal(found.poses.one_animal()[1], np.minimum(confidence, 1))
    np.testing.assert_array_equal(found.poses.points_px[:, 0], points)
    confidence[3, 0] = 57
    write_scores(file, points, confidence)
    assert ": nose: the likelihood is 57; it must be 0 to 1" in fails(
        capsys, file, "--to", "csv", "--out", tmp_path / "b.csv"
    )


def write_scores(file: Path, points: np.ndarray, confidence: np.ndarray) -> None:
    """Writes a table with the writer of its form, which limits nothing."""
    predictions = PredictionTable(file, Poses.of_one_animal(NAMES, range(len(points)), points, confidence), "DLC_x")
    file.unlink(missing_ok=True)
    if file.suffix == ".csv":
        write_predictions(file, range(FRAMES), NAMES, points, confidence)
    elif file.name.endswith(".analysis.h5"):
        write_analysis(file, predictions, None)
    else:
        write_deeplabcut(file, predictions, "DLC_x", None)


def test_deeplabcut_finds_the_table_and_its_filter_can_rewrite_it(table: Path, video: Path, tmp_path: Path) -> None:
    """The names, the index, the columns and the form of the file that DeepLabCut's filterpredictions works with."""
    assert run(table, "--to", "deeplabcut", "--video", video, "--out", tmp_path) == 0
    file = tmp_path / "day1DLC_jaxpose.h5"
    found = pd.read_hdf(file)
    assert isinstance(found, pd.DataFrame) and found.columns.names == ["scorer", "bodyparts", "coords"]
    assert list(found.columns) == [("DLC_jaxpose", name, coord) for name in NAMES for coord in ("x", "y", "likelihood")]
    assert list(found.index) == list(range(FRAMES)) and set(found.dtypes) == {np.dtype(np.float64)}
    points, confidence = made()
    cells = found.to_numpy().reshape(FRAMES, -1, 3)
    np.testing.assert_array_equal(cells[..., :2], points)
    np.testing.assert_array_equal(cells[..., 2], confidence)
    with pd.HDFStore(file, "r") as store:
        # pandas 2, which DeepLabCut has, cannot read the other form from pandas 3.
        assert store.keys() == ["/df_with_missing"] and not store.get_storer("df_with_missing").is_table
    # As its median filter does.
    filtered, coords = found.copy(), found.columns.get_level_values("coords") != "likelihood"
    filtered.loc[:, coords] = found.loc[:, coords].apply(signal.medfilt, args=(5,), axis=0)
    filtered.to_hdf(tmp_path / "day1DLC_jaxpose_filtered.h5", key="df_with_missing", format="table", mode="w")
    # And its create_labeled_video.
    about = pickle.loads((tmp_path / "day1DLC_jaxpose_meta.pickle").read_bytes())["data"]
    assert about["cropping"] is False and about["cropping_parameters"] == [0, SIZE_PX[0], 0, SIZE_PX[1]]
    assert (about["nframes"], about["fps"], about["Scorer"]) == (FRAMES, 25.0, "DLC_jaxpose")
    assert run(table, "--to", "deeplabcut", "--video", video, "--scorer", "DLC_äЖ😀", "--out", tmp_path) == 0
    assert pickle.loads((tmp_path / "day1DLC_äЖ😀_meta.pickle").read_bytes())["data"]["Scorer"] == "DLC_äЖ😀"


def test_the_scorer_of_a_deeplabcut_project_is_kept_on_the_way_there_and_back(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(table, "--to", "deeplabcut", "--scorer", "DLC_snail", "--out", tmp_path / "there.h5") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1] == "dropped: the scorer heatmap_tracker, replaced by DLC_snail"
    assert out[2].startswith("create_labeled_video of DeepLabCut also needs <table>_meta.pickle: give --video")
    assert run(tmp_path / "there.h5", "--to", "csv", "--out", tmp_path / "back.csv") == 0
    assert capsys.readouterr().out.splitlines()[1] == "dropped: nothing"
    assert table.read_text().replace("heatmap_tracker", "DLC_snail") == (tmp_path / "back.csv").read_text()
    assert run(tmp_path / "back.csv", "--to", "deeplabcut", "--out", tmp_path) == 0
    assert (tmp_path / "backDLC_snail.h5").is_file()
    message = fails(capsys, table, "--to", "deeplabcut", "--scorer", "snail", "--out", tmp_path)
    assert "DeepLabCut's scorers begin with DLC" in message
    (tmp_path / "day_skeleton.csv").write_bytes(table.read_bytes())
    message = fails(capsys, tmp_path / "day_skeleton.csv", "--to", "deeplabcut", "--out", tmp_path)
    assert "DeepLabCut would not find day_skeletonDLC_jaxpose.h5: it reserves 'skeleton' in names" in message


@pytest.mark.parametrize("pandas_form", ["fixed", "table"])
def test_tables_of_deeplabcut_itself_become_csv(tmp_path: Path, pandas_form: str) -> None:
    points, confidence = made()
    columns = pd.MultiIndex.from_product(
        [["DLC_x"], NAMES, ["x", "y", "likelihood"]], names=["scorer", "bodyparts", "coords"]
    )
    cells = np.concatenate([points, confidence[..., None]], axis=2).reshape(FRAMES, -1)
    pd.DataFrame(cells, columns=columns).to_hdf(tmp_path / "a.h5", key="df_with_missing", format=pandas_form)
    assert run(tmp_path / "a.h5", "--to", "csv", "--out", tmp_path / "a.csv") == 0
    found = read_table(tmp_path / "a.csv")
    np.testing.assert_array_equal(found.poses.points_px[:, 0], points)
    np.testing.assert_array_equal(found.poses.one_animal()[1], confidence)
    assert found.scorer == "DLC_x" and found.poses.keypoint_names == NAMES


def test_a_sleap_project_has_an_instance_in_each_frame(table: Path, video: Path, tmp_path: Path) -> None:
    assert run(table, "--to", "slp", "--video", video, "--out", tmp_path / "day1.slp") == 0
    labels = sleap_io.load_slp(str(tmp_path / "day1.slp"))
    points, confidence = made()
    assert [frame.frame_idx for frame in labels.labeled_frames] == list(range(FRAMES))
    assert labels.skeletons[0].node_names == list(NAMES)
    found = np.stack([frame.predicted_instances[0].numpy(scores=True) for frame in labels.labeled_frames])
    np.testing.assert_array_equal(found[..., :2], points)
    np.testing.assert_array_equal(found[..., 2], confidence)
    assert labels.videos[0].filename == str(video) and labels.videos[0].shape == (FRAMES, 48, 64, 3)
    assert labels.provenance["scorer"] == "heatmap_tracker"
    assert "partial" not in json.dumps(labels.provenance, default=str)
    # Pixel centres: the number that SLEAP stores for (0, 0) is that of the centre of the first pixel.
    with h5py.File(tmp_path / "day1.slp") as opened:
        assert opened["metadata"].attrs["format_id"] >= 1.1 and tuple(opened["pred_points"][0])[:2] == (0, 0)


def test_a_sleap_project_comes_back_with_the_frames_that_lack_an_instance(
    table: Path, video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, back = tmp_path / "day1.slp", tmp_path / "back.csv"
    assert run(table, "--to", "slp", "--video", video, "--out", file) == 0
    assert run(file, "--to", "csv", "--out", back) == 0 and back.read_bytes() == table.read_bytes()
    # SLEAP writes only the frames in which it found the animal.
    labels = sleap_io.load_slp(str(file))
    labels.labeled_frames = labels.labeled_frames[2:8]
    labels.save(str(file))
    points, confidence = made()
    read = read_table(file)
    np.testing.assert_array_equal(read.poses.points_px[:, 0][2:8], points[2:8])
    np.testing.assert_array_equal(read.poses.one_animal()[1][2:8], confidence[2:8])
    assert (
        read.poses.one_animal()[1].shape == (FRAMES, len(NAMES))
        and np.isnan(read.poses.one_animal()[1][[0, 1, *range(8, FRAMES)]]).all()
    )
    capsys.readouterr()
    for frame in labels.labeled_frames:
        frame.instances = []
    labels.save(str(file))
    assert f"{file} has no predicted instance, so it is not a table" in fails(
        capsys, file, "--to", "csv", "--out", back
    )


def test_an_analysis_file_without_scores_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "old.analysis.h5"
    with h5py.File(file, "w") as content:
        content["tracks"], content["node_names"] = np.zeros((1, 2, 1, 5)), np.array([b"nose"])
    assert run(file, "--to", "csv", "--out", tmp_path / "a.csv") == 2
    assert "has tracks but no point_scores, as an old SLEAP wrote it; export it again" in capsys.readouterr().err


def test_the_analysis_file_is_read_by_sleap_io_and_comes_back(
    table: Path, video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out" / "day1.analysis.h5"
    assert run(table, "--to", "sleap-analysis", "--video", video, "--out", tmp_path / "out") == 0
    points, confidence = made()
    with h5py.File(file) as opened:
        assert opened["tracks"].shape == (1, 2, len(NAMES), FRAMES)
        np.testing.assert_array_equal(opened["tracks"][0].T.swapaxes(1, 2).transpose(0, 2, 1), points)
        np.testing.assert_array_equal(opened["point_scores"][0].T, confidence)
        occupied = np.isfinite(points).all(-1).any(-1)
        np.testing.assert_array_equal(opened["track_occupancy"][:, 0], occupied)
    labels = sleap_io.load_analysis_h5(str(file))
    assert [frame.frame_idx for frame in labels.labeled_frames] == np.flatnonzero(occupied).tolist()
    found = np.stack([frame.instances[0].numpy() for frame in labels.labeled_frames])
    np.testing.assert_array_equal(found, points[occupied])
    assert labels.videos[0].filename == str(video)
    # Every set of axes that sleap-io writes is read.
    for preset in ("matlab", "standard"):
        sleap_io.save_analysis_h5(labels, str(tmp_path / f"{preset}.analysis.h5"), preset=preset)
        again = read_table(tmp_path / f"{preset}.analysis.h5")
        np.testing.assert_array_equal(again.poses.points_px[:, 0][: FRAMES - 1], points[:-1])
        assert again.poses.keypoint_names == NAMES
    # SLEAP itself writes an animal without a track without a name.
    with h5py.File(tmp_path / "matlab.analysis.h5", "r+") as opened:
        del opened["track_names"]
        opened["track_names"] = []
    again = read_table(tmp_path / "matlab.analysis.h5")
    np.testing.assert_array_equal(again.poses.points_px[:, 0][: FRAMES - 1], points[:-1])
    capsys.readouterr()
    assert run(file, "--to", "csv", "--out", tmp_path / "back.csv") == 0
    assert "dropped: edges, the name of the track, and scores of instances" in capsys.readouterr().out
    assert (tmp_path / "back.csv").read_text() == table.read_text()


def test_parquet_holds_the_same_bits(table: Path, tmp_path: Path) -> None:
    assert run(table, "--to", "parquet", "--out", tmp_path / "a.parquet") == 0
    points, confidence = made()
    found = pd.read_parquet(tmp_path / "a.parquet")
    assert list(found.columns[:4]) == ["frame", "nose_x", "nose_y", "nose_likelihood"]
    np.testing.assert_array_equal(found["frame"], np.arange(FRAMES))
    for place, name in enumerate(NAMES):
        np.testing.assert_array_equal(found[f"{name}_y"], points[:, place, 1])
        np.testing.assert_array_equal(found[f"{name}_likelihood"], confidence[:, place])
    # NaN is a number here, not a gap: other readers would tell them apart.
    assert pyarrow.parquet.read_table(tmp_path / "a.parquet")["nose_x"].null_count == 0
    assert run(tmp_path / "a.parquet", "--to", "csv", "--out", tmp_path / "back.csv") == 0
    assert (tmp_path / "back.csv").read_text() == table.read_text()
    deep = pyarrow.parquet.read_table(tmp_path / "a.parquet").replace_schema_metadata({b"jaxpose": b"[" * 100_000})
    pyarrow.parquet.write_table(deep, tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b.parquet is not a readable parquet table of jaxpose: .*recursion"):
        read_table(tmp_path / "b.parquet")


@pytest.mark.parametrize("steady", [True, False])
def test_nwb_has_every_frame_at_its_time(table: Path, tmp_path: Path, steady: bool) -> None:
    times_ms = [0, 40, 80, 200, 203, 300, 340, 999, 1002, 1500, 1501, 1700]
    video = write(tmp_path / "day1.mp4", FRAMES) if steady else write(tmp_path / "day1.mkv", FRAMES, times=times_ms)
    start = "2026-05-04T14:30:00+02:00"
    out = tmp_path / "day1.nwb"
    assert run(table, "--to", "nwb", "--video", video, "--session_start", start, "--out", out) == 0
    points, confidence = made()
    with pynwb.NWBHDF5IO(str(out), "r") as opened:
        content = opened.read()
        assert content.session_start_time == datetime.datetime.fromisoformat(start)
        estimation = content.processing["behavior"]["PoseEstimation"]
        assert list(estimation.skeleton.nodes) == list(NAMES) and estimation.scorer == "heatmap_tracker"
        assert list(estimation.source_video.external_file) == [str(video)]
        assert list(estimation.source_video.dimension) == list(SIZE_PX)
        for place, name in enumerate(NAMES):
            series = estimation[name]
            np.testing.assert_array_equal(series.data[:], points[:, place])
            np.testing.assert_array_equal(series.confidence[:], confidence[:, place])
            if steady:
                assert (series.rate, series.starting_time) == (25.0, 0.0)
            else:
                np.testing.assert_allclose(series.timestamps[:], np.array(times_ms) / 1000, atol=1e-9)


def test_a_run_becomes_a_file_for_each_of_its_videos(
    table: Path, video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from jaxpose.checksums import write_csv
    from jaxpose.files import sha256_of

    results = tmp_path / "results"
    header, rows = dict(zip(COLUMNS, COLUMNS, strict=True)), []
    for place in ("a", "b"):
        file = results / "video_preds" / place / "day1.csv"
        file.parent.mkdir(parents=True)
        file.write_bytes(table.read_bytes())
        row = dict.fromkeys(COLUMNS, "0") | {"path": str(video), "size": str(video.stat().st_size), "state": "done"}
        rows.append(row | {"table": f"video_preds/{place}/day1.csv", "table_sha256": sha256_of(file)[:16]})
    write_csv(results / "index.csv", "\n".join(",".join(row[name] for name in COLUMNS) for row in [header, *rows]))
    assert run(results, "--to", "deeplabcut", "--out", tmp_path / "out") == 0
    assert len(list((tmp_path / "out").glob("[ab]/day1DLC_jaxpose_meta.pickle"))) == 2
    # Again, as after a kill: what is there stays, and what is not is made.
    made = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in (tmp_path / "out").rglob("*.*")}
    first, *_, last = sorted(made)
    first.unlink()
    assert run(results, "--to", "deeplabcut", "--out", tmp_path / "out") == 0
    assert first.read_bytes() == made[first][0] and last.stat().st_mtime_ns == made[last][1]
    last.write_bytes(b"mine")
    message = fails(capsys, results, "--to", "deeplabcut", "--out", tmp_path / "out")
    assert f"{last} already exists: --overwrite replaces it; or choose another --out" in message
    assert last.read_bytes() == b"mine"
    assert run(results, "--to", "deeplabcut", "--out", tmp_path / "out", "--overwrite") == 0
    assert {file: file.read_bytes() for file in made} == {file: content for file, (content, _) in made.items()}
    assert {*(tmp_path / "out").rglob("*.*")} == {*made}
    assert "has 2 tables; give a folder" in fails(capsys, results, "--to", "deeplabcut", "--out", tmp_path / "out.h5")
    (results / "video_preds/b/day1.csv").write_text("changed")
    assert "b/day1.csv is absent, damaged or changed" in fails(capsys, results, "--to", "parquet", "--out", tmp_path)
    assert run(results, "--to", "parquet", "--video", video, "--out", tmp_path / "one.parquet") == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\n3,", "\n4,", "row 7: the frame is '4'; it must be 3"),
        ("\n0,0.0,", "\n0,inf,", "row 4: nose: x or y is infinite"),
        ("\n0,0.0,", "\n0,,", "row 4: nose: it has only one of x and y"),
        ("\n0,0.0,0.0,0.0", "\n0,0.0,0.0,7.5", "row 4: nose: the likelihood is "),
        ("\n0,0.0,", "\n0,1_0,", "row 4, x of nose: '1_0' is not a number"),
        (
            "\n3,",
            "\nlabeled-data/a.png,",
            "row 7: the frame is 'labeled-data/a.png'; it must be 3: a table of a video",
        ),
        ("left ear", "nose", "two keypoints 'nose'"),
    ],
)
def test_a_wrong_cell_is_named(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    assert old in table.read_text()
    table.write_text(table.read_text().replace(old, new))
    error = fails(capsys, table, "--to", "parquet", "--out", tmp_path / "a.parquet")
    assert f"{table}" in error and message in error and not (tmp_path / "a.parquet").exists()


def test_a_wrong_byte_is_named(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bit in the exponent of a number; one in the structure of the file."""
    for form, suffix in (("deeplabcut", ".h5"), ("sleap-analysis", ".analysis.h5"), ("parquet", ".parquet")):
        file = tmp_path / f"a{suffix}"
        assert run(table, "--to", form, "--out", file) == 0
        file.write_bytes(file.read_bytes()[:-40])
        error = fails(capsys, file, "--to", "csv", "--out", tmp_path / "back.csv")
        assert f"{file} is no" in error and "Traceback" not in error
    points, confidence = made()
    confidence[7, 1] = 1e300
    write_predictions(table, range(FRAMES), NAMES, points, confidence)
    (tmp_path / "b.h5").unlink(missing_ok=True)
    columns = pd.MultiIndex.from_product([["DLC"], NAMES, ["x", "y", "likelihood"]])
    cells = np.concatenate([points, confidence[..., None]], axis=2).reshape(FRAMES, -1)
    pd.DataFrame(cells, columns=columns).to_hdf(tmp_path / "b.h5", key="a", format="table")
    error = fails(capsys, tmp_path / "b.h5", "--to", "csv", "--out", tmp_path / "back.csv")
    assert "b.h5, row 8: left ear: the likelihood is " in error


def test_mistakes_in_the_arguments_are_named(
    table: Path, video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert "--to is h5; it must be one of csv, deeplabcut, " in fails(capsys, table, "--to", "h5", "--out", out)
    assert "slp files describe the video of" in fails(capsys, table, "--to", "slp", "--out", out)
    assert "give --session_start, such as" in fails(capsys, table, "--to", "nwb", "--video", video, "--out", out)
    start = ("--session_start", "2026-05-04T14:30:00+00:00")
    assert "only --to nwb uses it" in fails(capsys, table, "--to", "csv", *start, "--out", out)
    assert "with a time zone, such as" in fails(
        capsys, table, "--to", "nwb", "--session_start", "2026-05-04", "--out", out
    )
    assert "only --to deeplabcut uses" in fails(capsys, table, "--to", "csv", "--scorer", "DLC", "--out", out)
    other = write(tmp_path / "other.mp4", FRAMES + 1)
    message = fails(capsys, table, "--to", "slp", "--video", other, "--out", out)
    assert f"has {FRAMES + 1} frames, but {table} has {FRAMES} rows: is it another video?" in message
    assert "its name must end in one of .csv" in fails(capsys, video, "--to", "parquet", "--out", out)
    assert "has no index.csv" in fails(capsys, tmp_path, "--to", "parquet", "--out", out)
    assert not out.exists()
    message = fails(capsys, table, "--to", "csv", "--out", tmp_path / "t.parquet")
    assert "the name of a file for parquet; for csv it must be a folder, or a file whose name ends in .csv" in message
    assert not (tmp_path / "t.parquet").exists()
    pd.DataFrame({"a": [1.0]}).to_hdf(tmp_path / "other.h5", key="a")
    message = fails(capsys, tmp_path / "other.h5", "--to", "csv", "--out", out)
    assert (
        "not a table of DeepLabCut: its header must have the rows scorer, bodyparts, coords, and it has 1 row"
        in message
    )
