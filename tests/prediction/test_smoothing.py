"""The smoothed tables beside tables of predictions, of runs that no network made."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from jaxpose import predict
from jaxpose.config import PredictConfig
from jaxpose.data.synthetic_animal import KEYPOINT_NAMES
from jaxpose.files import sha256_of
from jaxpose.formats.lightning_pose.tables import read_predictions, write_predictions
from jaxpose.prediction.ensemble import smooth_ensembles, write_ensembles
from jaxpose.prediction.smoothing import smooth_tables
from jaxpose.run.load import read_run_config
from tests.logged import logged
from tests.predicted_runs import planted_failures, predicted_run, true_track, walking_project

FRAMES = 160
Capture = pytest.CaptureFixture[str]
COORDS = ["x", "y", "likelihood"]
OF_ENSEMBLE = ["x_ens_median", "y_ens_median", "x_ens_var", "y_ens_var"]


def read(file: Path) -> pd.DataFrame:
    """As other tools read tables of predictions."""
    return pd.read_csv(file, header=[0, 1, 2], index_col=0)


def values(table: pd.DataFrame, coord: str) -> np.ndarray:
    return table.xs(coord, level="coords", axis=1).to_numpy()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with the predictions of one video."""
    project = walking_project(tmp_path / "project", 1, FRAMES, 3)
    video = project / "videos" / "session00.mp4"
    return predicted_run(tmp_path / "run", project, {video: planted_failures(true_track(video, FRAMES), 0)})


def smooth(run: Path, **options: Any) -> Path:
    table = run / "video_preds" / "session00.csv"
    smooth_tables(PredictConfig(**options), {table: sha256_of(table)[:16]})
    return table.with_name("session00_smoothed.csv")


@pytest.mark.parametrize("method", ["median", "kalman"])
def test_a_smoothed_table_lies_beside_the_raw_one(run: Path, method: str) -> None:
    raw_file = run / "video_preds" / "session00.csv"
    before = raw_file.read_bytes()
    smooth(run, smooth="none")
    assert sorted(file.name for file in raw_file.parent.iterdir()) == ["session00.csv"]
    with logged("jaxpose.prediction") as log:
        file = smooth(run, smooth=method)
    assert raw_file.read_bytes() == before
    raw, found = read(raw_file), read(file)
    variances = ["x_posterior_var", "y_posterior_var"] if method == "kalman" else []
    assert found.columns.names == raw.columns.names and found.index.equals(raw.index)
    assert list(found.columns) == [
        ("heatmap_tracker", name, coord) for name in KEYPOINT_NAMES for coord in [*COORDS, *variances, "filled"]
    ]
    low = values(raw, "likelihood") < 0.5
    assert low.any()
    np.testing.assert_array_equal(values(found, "filled"), low.astype(int))
    np.testing.assert_array_equal(values(found, "likelihood"), values(raw, "likelihood"))
    assert log.lines == [f"{file}: {method}, {low.sum()} places filled, {100 * low.mean():.1f} %"]
    # What reads the raw table reads this one: the columns behind x, y and likelihood are left out.
    again = read_predictions(file)
    np.testing.assert_array_equal(again.poses.points_px[:, 0, :, 0], values(found, "x"))
    np.testing.assert_array_equal(again.poses.one_animal()[1], values(raw, "likelihood"))
    truth = true_track(Path("session00.mp4"), FRAMES)
    errors = [
        np.hypot(values(table, "x") - truth[..., 0], values(table, "y") - truth[..., 1]) for table in (raw, found)
    ]
    assert errors[1][low].mean() < 0.5 * errors[0][low].mean()


def test_the_same_command_keeps_a_table_and_another_one_writes_it_anew(run: Path) -> None:
    file = smooth(run, smooth="median")
    record, content, written = file.with_suffix(".json"), file.read_bytes(), file.stat().st_mtime_ns
    smooth(run, smooth="median")
    assert file.stat().st_mtime_ns == written
    # A table that was changed, or whose record is absent or damaged, is made again, with the same bytes.
    for damage in (
        lambda: file.write_bytes(content[:-1]),
        file.unlink,
        record.unlink,
        lambda: record.write_text("{}"),
        lambda: record.write_text(record.read_text().replace("median", "kalman")),
    ):
        damage()
        smooth(run, smooth="median")
        assert file.read_bytes() == content
    stricter = smooth(run, smooth="median", smooth_min_confidence=0.9).read_bytes()
    wide = smooth(run, smooth="median", smooth_window=9).read_bytes()
    other = smooth(run, smooth="kalman").read_bytes()
    assert len({content, stricter, wide, other}) == 4
    assert json.loads(record.read_text())["keypoints"][KEYPOINT_NAMES[0]]["velocity_step_var_px2"] > 0
    record.unlink()
    assert smooth(run, smooth="kalman").read_bytes() == other


def test_predict_smooths_videos_once_they_are_whole(trained_run: Path, tmp_path: Path, capsys: Capture) -> None:
    video = trained_run.parent / "project" / "videos" / "session00.mp4"
    images = trained_run.parent / "project" / "labeled-data" / "session00"
    out = tmp_path / "out"
    first = ["--run", str(trained_run), str(video), str(images), "--out", str(out), "--devices", "1"]
    raw, file = (out / "video_preds" / name for name in ("session00.csv", "session00_smoothed.csv"))
    assert predict.main(first) == 0 and not file.exists()
    before = raw.read_bytes()
    assert predict.main([*first, "--smooth", "median", "--smooth_min_confidence", "0"]) == 0
    printed = capsys.readouterr().out
    assert "images have no order in time" in printed and f"{file}: median, 0 places filled, 0.0 %" in printed
    assert raw.read_bytes() == before and len(read(file)) == len(read(raw))
    content = file.read_bytes()
    assert predict.main([*first, "--smooth", "median", "--smooth_min_confidence", "0"]) == 0
    assert file.read_bytes() == content and f"{file}: median" not in capsys.readouterr().out
    # Predicted again and not smoothed: no smoothed table of earlier predictions stays.
    assert predict.main([*first, "--overwrite"]) == 0 and raw.is_file() and not file.exists()
    for flags, message in (
        (
            ["--smooth", "kalmann"],
            "it must be one of none, median, kalman (did you mean 'kalman'?)",
        ),
        (["--smooth", "median", "--smooth_window", "4"], "--smooth_window is 4; it must be odd"),
        (
            ["--smooth", "median", "--smooth_min_confidence", "2"],
            "--smooth_min_confidence is 2.0; it must be at",
        ),
    ):
        assert predict.main([*first, *flags]) == 2
        assert message in capsys.readouterr().err


def test_a_raw_table_that_changed_is_not_smoothed(run: Path) -> None:
    file, table = smooth(run, smooth="median"), run / "video_preds" / "session00.csv"
    with logged("jaxpose.prediction") as log:
        smooth_tables(PredictConfig(smooth="median"), {table: "0" * 16})
    assert not file.exists() and not file.with_suffix(".json").exists()
    assert "session00.csv is not smoothed: it was damaged or changed by hand" in log.lines[0]
    smooth_tables(PredictConfig(smooth="median"), {table: sha256_of(table)[:16]}, stops=lambda: True)
    assert not file.exists()


def test_keypoints_that_no_frame_shows_are_empty_and_named(run: Path) -> None:
    table = run / "video_preds" / "session00.csv"
    found = read_predictions(table)
    found.poses.one_animal()[1][:, 1] = 0.2
    found.poses.points_px[:, 0][:40, 2] = found.poses.points_px[:, 0][-3:, 2] = np.nan
    write_predictions(
        table, found.poses.frames, found.poses.keypoint_names, found.poses.points_px[:, 0], found.poses.one_animal()[1]
    )
    with logged("jaxpose.prediction") as log:
        smoothed = read(smooth(run, smooth="kalman"))
    assert np.isnan(values(smoothed, "x")[:, 1]).all() and not values(smoothed, "filled")[:, 1].any()
    ends = values(smoothed, "x")[:40, 2]
    assert values(smoothed, "filled")[:40, 2].all() and np.ptp(ends) < 20
    assert (np.diff(values(smoothed, "x_posterior_var")[:40, 2]) < 0).all()
    assert log.lines[1].endswith(f"{KEYPOINT_NAMES[1]} has no prediction with a confidence of 0.5; the cells are empty")


def ensemble(tmp_path: Path, videos: dict[str, int], **data: object) -> tuple[list[Path], list[Path], Path]:
    """Three runs with predictions of videos of so many frames; the places of their tables; the folder of ensembles."""
    project = walking_project(tmp_path / "project", 1, FRAMES, 3)
    source = project / "videos" / "session00.mp4"
    paths = {name: project / "videos" / f"{name}.mp4" for name in videos}
    for path in paths.values():
        if path != source:
            path.write_bytes(source.read_bytes())
    runs = []
    for seed in range(3):
        tables = {}
        for name, frames in videos.items():
            truth = true_track(source, FRAMES)[:frames]
            tables[paths[name]] = planted_failures(truth, 10 * seed + len(tables))
        runs.append(predicted_run(tmp_path / f"run{seed}", project, tables, **data))
    out = tmp_path / "ensemble"
    outputs = {runs[0] / "video_preds" / f"{name}.csv": path for name, path in paths.items()}
    return runs, write_ensembles(runs, outputs, out), out


def test_an_ensemble_has_the_columns_of_the_ensemble_kalman_smoother(tmp_path: Path) -> None:
    runs, tables, out = ensemble(tmp_path, {"session00": FRAMES})
    config = read_run_config(runs[0])
    smooth_ensembles(PredictConfig(smooth="kalman"), config, runs, tables, out)
    file = out / "video_preds" / "session00_smoothed.csv"
    found, plain = read(file), read(out / "video_preds" / "session00.csv")
    coords = [*COORDS, *OF_ENSEMBLE, "x_posterior_var", "y_posterior_var", "filled"]
    assert list(found.columns) == [
        ("ensemble-kalman_tracker", name, coord) for name in KEYPOINT_NAMES for coord in coords
    ]
    np.testing.assert_allclose(values(found, "x_ens_median"), values(plain, "x"), rtol=1e-12)
    spread = read(out / "video_preds" / "session00_ensemble.csv")
    of_runs = values(spread, "y_ens_var") / values(plain, "likelihood")
    np.testing.assert_allclose(values(found, "y_ens_var"), of_runs, rtol=1e-9)
    assert (values(found, "x_posterior_var") > 0).all()
    truth = true_track(Path("session00.mp4"), FRAMES)
    errors = [np.hypot(values(table, "x") - truth[..., 0], values(table, "y") - truth[..., 1]).mean()
              for table in (plain, found)]  # fmt: skip
    assert errors[1] < errors[0]
    # The same again, other predictions of a run, another smoother, none.
    content, written = file.read_bytes(), file.stat().st_mtime_ns
    smooth_ensembles(PredictConfig(smooth="kalman"), config, runs, tables, out)
    assert file.stat().st_mtime_ns == written
    smooth_ensembles(PredictConfig(smooth="median"), config, runs, tables, out)
    of_median = read(file)
    assert list(of_median.columns)[:8] == [
        ("ensemble_tracker", KEYPOINT_NAMES[0], coord) for coord in [*COORDS, *OF_ENSEMBLE, "filled"]
    ]
    smooth_ensembles(PredictConfig(smooth="kalman"), config, runs, tables, out)
    assert file.read_bytes() == content
    smooth_ensembles(PredictConfig(smooth="none"), config, runs, tables, out)
    assert file.read_bytes() == content


def test_the_views_of_a_session_are_smoothed_together(tmp_path: Path) -> None:
    names = {"s1_top": FRAMES, "s1_side": FRAMES, "s2_top": 40, "s3_top": 50, "s3_side": 40}
    runs, tables, out = ensemble(tmp_path, names, views=("top", "side"))
    with logged("jaxpose.prediction") as log:
        smooth_ensembles(PredictConfig(smooth="kalman"), read_run_config(runs[0]), runs, tables, out)
    assert "warning: s2 lacks the view side, so each of its views is smoothed separately" in log.lines
    frames = "the views of a session differ in frames (s3_top 50, s3_side 40), so each is smoothed separately"
    assert f"warning: {frames}" in log.lines
    views = {}
    for name, count in names.items():
        file = out / "video_preds" / f"{name}_smoothed.csv"
        assert len(read(file)) == count
        noise = json.loads(file.with_suffix(".json").read_text())["keypoints"]
        views[name] = {of_point["views"] for of_point in noise.values()}
    assert views == {"s1_top": {2}, "s1_side": {2}, "s2_top": {1}, "s3_top": {1}, "s3_side": {1}}


def test_mirrored_views_in_one_frame_are_smoothed_together(tmp_path: Path) -> None:
    runs, tables, out = ensemble(tmp_path, {"session00": FRAMES})
    config = read_run_config(runs[0])
    config.losses.pca_multiview.views = (f"{KEYPOINT_NAMES[0]},{KEYPOINT_NAMES[2]}", ",".join(KEYPOINT_NAMES[3:5]))
    smooth_ensembles(PredictConfig(smooth="kalman"), config, runs, tables, out)
    record = json.loads((out / "video_preds" / "session00_smoothed.json").read_text())
    found = [of_point["views"] for of_point in record["keypoints"].values()]
    assert found == [2, 1, 2, 2, 2, *[1] * (len(KEYPOINT_NAMES) - 5)]
