"""Prediction files, compared byte by byte with a real run of Lightning Pose and with pandas."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.tables import (
    PredictionWriter,
    read_errors,
    read_predictions,
    write_errors,
    write_predictions,
)


def _values(frames: int, keypoints: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return (
        rng.uniform(-5, 400, (frames, keypoints, 2)).astype(np.float32),
        rng.uniform(0, 1, (frames, keypoints)).astype(np.float32),
    )


def test_a_real_file_read_and_written_again_is_the_same_bytes(real_data: Path, tmp_path: Path) -> None:
    real = real_data / "lightning-pose-run" / "predictions.csv"
    predictions = read_predictions(real)
    poses, (keypoints, confidence) = predictions.poses, predictions.poses.one_animal()
    assert keypoints.shape == (90, 17, 2) and confidence.shape == (90, 17)
    assert poses.frames[0] == "labeled-data/img01.png" and poses.keypoint_names[-1] == "obsLow_bot"
    assert predictions.sets is not None
    assert [predictions.sets.count(name) for name in ("train", "validation", "test")] == [72, 9, 9]
    for dtype in (np.float32, np.float64):
        again = tmp_path / f"{np.dtype(dtype)}.csv"
        values = keypoints.astype(dtype), confidence.astype(dtype)
        write_predictions(again, poses.frames, poses.keypoint_names, *values, sets=predictions.sets)
        assert again.read_bytes() == real.read_bytes()


@pytest.mark.parametrize("name", ["pixel_error", "pca_singleview_error", "pca_multiview_error"])
def test_real_errors_written_again_are_the_same_bytes(name: str, real_data: Path, tmp_path: Path) -> None:
    real = real_data / "lightning-pose-run" / f"predictions_{name}.csv"
    # As text: how pandas itself parses numbers differs between its versions.
    table = pd.read_csv(real, index_col=0, dtype=str)
    errors = table.iloc[:, :-1].fillna("nan").to_numpy().astype(np.float64)
    assert np.isnan(errors).any()
    write_errors(tmp_path / "e.csv", list(table.index), list(table.columns[:-1]), errors, list(table["set"]))
    assert (tmp_path / "e.csv").read_bytes() == real.read_bytes()


def test_a_video_has_frame_numbers_and_no_set_and_pandas_reads_it(tmp_path: Path) -> None:
    keypoints, confidence = _values(5, 2)
    keypoints[1, 0] = np.nan
    file = tmp_path / "video_preds" / "a.csv"
    write_predictions(file, range(5), ["nose, tip", "tail"], keypoints, confidence, scorer="mine")
    table = pd.read_csv(file, header=[0, 1, 2], index_col=0)
    assert list(table.index) == [0, 1, 2, 3, 4] and table.columns.get_level_values(0).unique() == ["mine"]
    np.testing.assert_array_equal(table["mine"]["nose, tip"][["x", "y"]].to_numpy(np.float32), keypoints[:, 0])
    np.testing.assert_array_equal(table["mine"]["tail"]["likelihood"].to_numpy(np.float32), confidence[:, 1])
    assert table.isna().to_numpy().sum() == 2
    found = read_predictions(file)
    assert found.poses.frames == ["0", "1", "2", "3", "4"] and found.poses.keypoint_names == ("nose, tip", "tail")
    assert found.sets is None and found.scorer == "mine"
    read, read_confidence = found.poses.one_animal()
    np.testing.assert_array_equal(read.astype(np.float32), keypoints)
    np.testing.assert_array_equal(read_confidence.astype(np.float32), confidence)
    table.to_csv(tmp_path / "pandas.csv")
    assert read_predictions(tmp_path / "pandas.csv").poses.frames == found.poses.frames


def test_rows_appended_in_parts_make_the_same_file_and_it_appears_only_when_whole(tmp_path: Path) -> None:
    keypoints, confidence = _values(7, 3)
    names = ["a", "b", "c"]
    write_predictions(tmp_path / "whole.csv", range(7), names, keypoints, confidence)
    file = tmp_path / "parts.csv"
    with PredictionWriter(file, names) as writer:
        for start, stop in ((0, 3), (3, 3), (3, 7)):
            writer.append(range(start, stop), keypoints[start:stop], confidence[start:stop])
        assert not file.exists()
    assert file.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.csv", "whole.csv"]


def test_after_an_error_the_old_file_stays_and_the_rows_are_kept_apart_where_asked_for(tmp_path: Path) -> None:
    keypoints, confidence = _values(2, 1)
    file = tmp_path / "a.csv"
    write_predictions(file, [0], ["a"], keypoints[:1], confidence[:1])
    before = file.read_bytes()
    partial = tmp_path / "a.csv.partial"
    for keeps_rows in (False, True):
        with pytest.raises(KeyboardInterrupt):
            with PredictionWriter(file, ["a"], keeps_rows=keeps_rows) as writer:
                writer.append([0, 1], keypoints, confidence)
                raise KeyboardInterrupt
        assert file.read_bytes() == before and partial.exists() == keeps_rows
        assert len(list(tmp_path.iterdir())) == 1 + keeps_rows
    assert read_predictions(partial).poses.frames == ["0", "1"]


def test_no_frames_make_a_file_of_headers(tmp_path: Path) -> None:
    write_predictions(tmp_path / "a.csv", [], ["a"], np.zeros((0, 1, 2)), np.zeros((0, 1)), sets=[])
    predictions = read_predictions(tmp_path / "a.csv")
    assert predictions.poses.points_px[:, 0].shape == (0, 1, 2) and predictions.sets == []


@pytest.mark.parametrize(
    ("index", "keypoints", "confidence", "sets", "message"),
    [
        ([0, 1], (2, 3, 2), (2, 3), None, r"shape \(2, 3, 3\) and no sets do not fit 2 frames with 2 keypoints"),
        ([0], (2, 2, 2), (2, 2), None, "do not fit 1 frames"),
        ([0], (1, 2, 3), (1, 2), None, r"must be \(n, k, 2\)"),
        (["a"], (1, 2, 2), (1, 2), ["val"], "'val' is not a set; the sets are train, validation, test, unused"),
        (["a"], (1, 2, 2), (1, 2), ["test", "test"], "2 sets do not fit 1 frames"),
    ],
)
def test_what_does_not_fit_is_refused(
    index: list, keypoints: tuple, confidence: tuple, sets: list | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        write_predictions(tmp_path / "a.csv", index, ["a", "b"], np.zeros(keypoints), np.zeros(confidence), sets=sets)
    assert not (tmp_path / "a.csv").exists()


def test_sets_in_some_rows_only_are_refused(tmp_path: Path) -> None:
    with PredictionWriter(tmp_path / "a.csv", ["a"]) as writer:
        with pytest.raises(ValueError, match="the file has no column for them"):
            writer.append([0], np.zeros((1, 1, 2)), np.zeros((1, 1)), ["train"])


HEADER = "scorer,s,s,s\nbodyparts,a,a,a\ncoords,x,y,likelihood\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.csv is empty"),
        ("a,b\n1,2\n", "must start with scorer, bodyparts, coords, not with a; 1: is it a table of predictions"),
        ("scorer,s,s\nbodyparts,a,a\ncoords,x,y\n", "a.csv is a label file"),
        ("scorer,s,s,s\nbodyparts,a,a,b\ncoords,x,y,likelihood\n", "columns x, y, likelihood in this order"),
        (HEADER + "0,1,2,3\n1,1,2\n", "row 5: 3 cells instead of 4"),
        (HEADER + "0,1,2,\udcff\n", "is not text in UTF-8 or UTF-16"),
        ("\0\0ftyp\0", "a.csv is not a CSV file$"),
        (HEADER + "0,1,two,3\n", "row 4, y of a: 'two' is not a number; correct the cell, or empty it"),
    ],
)
def test_a_file_that_is_no_prediction_file_is_refused_with_its_row(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text, errors="surrogateescape")
    with pytest.raises(ValueError, match=message):
        read_predictions(tmp_path / "a.csv")
    with pytest.raises(ValueError, match="the prediction file .* does not exist"):
        read_predictions(tmp_path / "b.csv")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_table_of_a_windows_program_is_read(tmp_path: Path, encoding: str) -> None:
    text = HEADER.replace("a,a,a", "\u00e4,\u00e4,\u00e4") + "0,1,2,3\r\n"
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    found = read_predictions(tmp_path / "a.csv")
    assert found.poses.frames == ["0"] and found.poses.points_px[:, 0].tolist() == [[[1, 2]]]


@pytest.mark.parametrize("content", [b",nose\n0,\xff\n", b"\0\0 ftypisom"])
def test_a_file_that_is_no_file_of_errors_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UserError, match="a.csv(:| is not a UTF-8 CSV file$)"):
        read_errors(tmp_path / "a.csv")
