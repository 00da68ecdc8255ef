"""Evaluation of a small real run: files, figures and tables, the same on any number of devices."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest

from jaxpose import evaluate
from jaxpose.compare.__main__ import main as compare_main
from jaxpose.compare.comparison import compare
from jaxpose.compare.listing import format_comparison
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.report.__main__ import main as report_main
from jaxpose.report.writing import write_report
from jaxpose.run.folder import lock_folder
from jaxpose.run.identity import read_config, write_config
from jaxpose.run.status import error_text
from tests.disks import full_disk


def _labels(run: Path, file: str = "CollectedData.csv") -> pd.DataFrame:
    return pd.read_csv(run.parent / "project" / file, header=[0, 1, 2], index_col=0)


def _errors(run: Path, predictions: Path) -> np.ndarray:
    """The errors (n, k) of a file of predictions, by pandas and numpy alone."""
    table = pd.read_csv(predictions, header=[0, 1, 2], index_col=0)
    predicted = table["heatmap_tracker"].to_numpy(np.float64).reshape(len(table), -1, 3)[..., :2]
    truth = _labels(run).loc[table.index].to_numpy(np.float64).reshape(predicted.shape)
    return np.linalg.norm(predicted - truth, axis=-1)


def test_training_leaves_predictions_as_lightning_pose_writes_them(trained_run: Path):
    """The three rows of its header; tests/formats reads whole files of that tool."""
    with (trained_run / "predictions.csv").open(newline="") as stream:
        rows = list(csv.reader(stream))
    names = list(dict.fromkeys(_labels(trained_run).columns.get_level_values(1)))
    assert rows[:3] == [
        ["scorer", *["heatmap_tracker"] * 3 * len(names), "set"],
        ["bodyparts", *(name for name in names for _ in range(3)), ""],
        ["coords", *["x", "y", "likelihood"] * len(names), ""],
    ]
    assert [row[0] for row in rows[3:]] == list(_labels(trained_run).index)
    split = pd.read_csv(trained_run / "split.csv", index_col="path")["set"]
    assert [row[-1] for row in rows[3:]] == list(split.loc[_labels(trained_run).index])


def test_errors_and_figures_are_those_of_the_predictions(trained_run: Path):
    errors = _errors(trained_run, trained_run / "predictions.csv")
    written = pd.read_csv(trained_run / "predictions_pixel_error.csv", index_col=0)
    np.testing.assert_allclose(written.drop(columns="set").to_numpy(np.float64), errors, rtol=1e-9)
    content = json.loads((trained_run / "evaluation.json").read_text())
    assert set(content["sets"]) == {"train", "validation", "test", "CollectedData_new.csv"}
    for name in ("train", "validation", "test"):
        expected = errors[(written["set"] == name).to_numpy()]
        figures = content["sets"][name]
        assert figures["frames"] == 6 and figures["labelled_points"] == expected.size
        np.testing.assert_allclose(figures["mean_px_error"], expected.mean(), rtol=1e-9)
        np.testing.assert_allclose(figures["rms_px_error"], np.sqrt((expected**2).mean()), rtol=1e-9)
        assert figures["pck_px"][1]["micro"] == pytest.approx((expected < 5).mean())
    assert content["sets"] == json.loads((trained_run / "finished.json").read_text())["sets"]


def test_the_network_learned_something_and_baselines_stand_beside_it(trained_run: Path):
    content = json.loads((trained_run / "evaluation.json").read_text())
    truth = _labels(trained_run).to_numpy(np.float64).reshape(18, -1, 2)
    sets = read_predictions(trained_run / "predictions.csv").sets
    train, test = np.array(sets) == "train", np.array(sets) == "test"
    mean = np.linalg.norm(truth[test] - truth[train].mean(axis=0), axis=-1).mean()
    assert content["baselines"]["of"] == "test"
    assert content["baselines"]["mean_px_error"]["mean position"] == pytest.approx(mean)
    assert "blob centroid + mean offset" in content["baselines"]["mean_px_error"]
    # Memorised after 40 steps on 6 frames: the errors of the tests here are not those of noise.
    assert content["sets"]["train"]["mean_px_error"] < 8


def test_extra_labels_are_taken_by_the_name_of_their_columns(trained_run: Path):
    new = read_predictions(trained_run / "predictions_new.csv")
    whole = read_predictions(trained_run / "predictions.csv")
    assert new.poses.keypoint_names == whole.poses.keypoint_names and new.sets is None
    rows = [whole.poses.frames.index(name) for name in new.poses.frames]
    np.testing.assert_allclose(new.poses.points_px[:, 0], whole.poses.points_px[:, 0][rows], atol=1e-3)
    errors = pd.read_csv(trained_run / "predictions_new_pixel_error.csv", index_col=0)
    expected = _errors(trained_run, trained_run / "predictions.csv")[
        rows, whole.poses.keypoint_names.index("tail_base")
    ]
    assert tuple(errors.columns) == whole.poses.keypoint_names
    np.testing.assert_allclose(errors["tail_base"], expected, atol=2e-3)
    assert errors.drop(columns="tail_base").isna().all(axis=None)
    log = (trained_run / "train.log").read_text()
    assert (
        "CollectedData_new.csv has no nose, neck, left_front_paw" in log and "has snout, which the run does not" in log
    )


@pytest.mark.parametrize(("devices", "batch_size"), [("1", "5"), ("8", "16")])
def test_the_verb_gives_the_same_files_on_any_number_of_devices(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], devices: str, batch_size: str
):
    arguments = ["--run", str(trained_run), "--out", str(tmp_path / "new"), "--devices", devices]
    assert evaluate.main([*arguments, "--batch_size", batch_size]) == 0
    for name in ("predictions.csv", "predictions_new.csv"):
        ours, theirs = read_predictions(tmp_path / "new" / name), read_predictions(trained_run / name)
        assert (ours.poses.frames, ours.sets) == (theirs.poses.frames, theirs.sets)
        np.testing.assert_allclose(ours.poses.points_px[:, 0], theirs.poses.points_px[:, 0], rtol=0, atol=1e-3)
        np.testing.assert_allclose(ours.poses.one_animal()[1], theirs.poses.one_animal()[1], rtol=0, atol=1e-4)
    assert (tmp_path / "new" / "predictions_new_pixel_error.csv").is_file()
    shown = capsys.readouterr().out
    assert f"{trained_run} (the weights of step 40) on {devices} x cpu" in shown
    assert "test set: 42 labelled points in 6 frames" in shown
    assert "mean position" in shown and "blob centroid + mean offset" in shown
    table = shown.splitlines()[shown.splitlines().index(next(s for s in shown.splitlines() if "frames  points" in s)) :]
    assert [row.split()[0] for row in table[1:5]] == ["train", "validation", "test", "CollectedData_new.csv"]


def test_the_figures_of_the_training_come_out_again_bit_for_bit(trained_run: Path, tmp_path: Path) -> None:
    evaluate.evaluate(trained_run, out=tmp_path / "out", devices=1)
    for name in ("predictions.csv", "predictions_pixel_error.csv", "predictions_new.csv", "evaluation.json"):
        assert (tmp_path / "out" / name).read_bytes() == (trained_run / name).read_bytes(), name


def test_from_python_the_errors_go_to_the_callers_log(
    trained_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level("INFO", logger="jaxpose"):
        evaluate.evaluate(str(trained_run), labels="CollectedData_new.csv", out=str(tmp_path), devices=1)
    assert "CollectedData_new.csv has no nose" in caplog.text and "3 labelled points in" in caplog.text


def test_a_full_disk_is_one_line(trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with full_disk():
        assert evaluate.main(["--run", str(trained_run), "--out", str(tmp_path), "--devices", "1"]) == 1
    expected = f"jaxpose.evaluate: {tmp_path}/predictions.csv: File too large\n"
    assert capsys.readouterr().err == expected and not list(tmp_path.iterdir())


def test_frames_that_were_not_in_the_run_are_unused(trained_run: Path, tmp_path: Path):
    project = shutil.copytree(trained_run.parent / "project", tmp_path / "moved")
    changed = _labels(trained_run).index[0]
    cv2.imwrite(str(project / changed), np.zeros((64, 64, 3), np.uint8))
    results = evaluate.evaluate(trained_run, project=str(project), out=tmp_path / "out", devices=1)
    found = read_predictions(tmp_path / "out" / "predictions.csv")
    assert found.sets is not None and found.sets[0] == "unused"
    assert found.sets[1:] == read_predictions(trained_run / "predictions.csv").sets[1:]
    assert results["unused"]["frames"] == 1 and sum(results[name]["frames"] for name in ("train", "test")) >= 11


def _with_marks(trained_run: Path, folder: Path) -> tuple[Path, np.ndarray]:
    """The project of the run with a column visible: 1 for the nose of every second image. Returns the marks (n, k)."""
    project = shutil.copytree(trained_run.parent / "project", folder)
    labels = _labels(trained_run)
    names = list(dict.fromkeys(labels.columns.get_level_values(1)))
    marks = np.zeros((len(labels), len(names)), bool)
    marks[::2, names.index("nose")] = True
    for place, name in enumerate(names):
        labels["synthetic", name, "visible"] = np.where(marks[:, place], 1, 2)
    labels.to_csv(project / "CollectedData.csv")
    return project, marks


def test_points_marked_as_not_visible_are_left_out_of_every_figure_and_shown_with_them(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project, marks = _with_marks(trained_run, tmp_path / "marked")
    run = shutil.copytree(trained_run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    assert evaluate.main(["--run", str(run), "--project", str(project), "--devices", "1"]) == 0
    shown = capsys.readouterr().out
    errors = _errors(trained_run, trained_run / "predictions.csv")
    table = pd.read_csv(run / "predictions_pixel_error.csv", index_col=0)
    test = (table["set"] == "test").to_numpy()
    np.testing.assert_allclose(table.drop(columns="set").to_numpy(np.float64), np.where(marks, np.nan, errors), 1e-9)
    hidden = pd.read_csv(run / "predictions_not_visible_pixel_error.csv", index_col=0).drop(columns="set")
    np.testing.assert_allclose(hidden.to_numpy(np.float64), np.where(marks, errors, np.nan), rtol=1e-9)
    figures = json.loads((run / "evaluation.json").read_text())["sets"]["test"]
    before = json.loads((trained_run / "evaluation.json").read_text())["sets"]["test"]
    about = figures.pop("not_visible")
    assert (about["points"], about["counted"], about["otherwise"]) == (3, False, before)
    kept = errors[test][~marks[test]]
    assert figures["mean_px_error"] == pytest.approx(kept.mean()) and figures["labelled_points"] == 39
    assert figures["pck_px"][1]["micro"] == pytest.approx((kept < 5).mean())
    other = f"{before['mean_px_error']:.2f} px with 3 points marked as not visible"
    assert f"test: {other}" in shown
    assert error_text(figures | {"not_visible": about}) == f"{kept.mean():.2f} px (mean over 6 frames; {other})"
    # The report and a comparison say which figure is the first one, and have the other one.
    text = write_report(run).read_text()
    assert "test, with not visible" in text and "are left out of all other figures of this page" in text
    copy = shutil.copytree(run, tmp_path / "copy")
    found = compare([run, copy])
    held_out = (table["set"] != "train").to_numpy()
    assert [(one.points, one.counted) for one in found.not_visible] == [(6, False)] * 2
    assert found.not_visible[0].mean_px == pytest.approx(errors[held_out].mean())
    assert f"A: 6 points left out above, with them {errors[held_out].mean():.2f} px" in format_comparison(found)
    # Labels without marks leave no such table.
    evaluate.evaluate(run, devices=1)
    assert not (run / "predictions_not_visible_pixel_error.csv").exists()
    assert (run / "evaluation.json").read_bytes() == (trained_run / "evaluation.json").read_bytes()


def test_a_comparison_counts_frames_of_other_labels_and_notices_a_change_by_hand(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = shutil.copytree(trained_run.parent / "project", tmp_path / "project")
    run = shutil.copytree(trained_run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    sets = pd.read_csv(run / "predictions_pixel_error.csv", index_col=0)["set"]
    changed = sets.index[sets == "test"][0]
    labels = _labels(trained_run)
    labels.loc[changed, labels.columns[:2]] += 0.25
    labels.to_csv(project / "CollectedData.csv")
    evaluate.evaluate(run, project=str(project), devices=1)
    capsys.readouterr()
    # split.csv has the old labels of both runs, and the second one is measured from the new ones.
    assert compare_main([str(trained_run), str(run)]) == 0
    shown = capsys.readouterr().out
    assert "compared: the same 11 frames" in shown
    assert "left out: 1 image that the runs measured from different labels" in shown
    assert "jaxpose evaluate --run RUN" in shown and "earlier version" not in shown
    # With no other frame in common, each run is compared by its own labels, and that is said.
    labels.iloc[:, :2] += 0.25
    labels.to_csv(project / "CollectedData.csv")
    evaluate.evaluate(run, project=str(project), devices=1)
    capsys.readouterr()
    assert compare_main([str(trained_run), str(run)]) == 0
    assert "compared by each run's own labels: 12 images that the runs measured" in capsys.readouterr().out
    for name in ("predictions_pixel_error.csv", "predictions.csv", "evaluation.json"):
        content = (run / name).read_bytes()
        (run / name).write_bytes(content.replace(b"\n", b"\r\n"))
        assert report_main(["--run", str(run)]) == 0, name
        (run / name).write_bytes(content.replace(b"1", b"2", 1))
        assert report_main(["--run", str(run)]) == 2
        assert f"{run / name} was damaged or changed by hand" in capsys.readouterr().err
        if "error" in name:
            assert compare_main([str(trained_run), str(run)]) == 2
            assert f"{name} was damaged or changed by hand" in capsys.readouterr().err
        (run / name).write_bytes(content)


def test_a_label_file_alone_leaves_the_rest_as_it_is(trained_run: Path, tmp_path: Path):
    results = evaluate.evaluate(trained_run, labels="CollectedData_new.csv", out=tmp_path, devices=1)
    assert list(results) == ["CollectedData_new.csv"] and results["CollectedData_new.csv"]["labelled_points"] == 3
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["predictions_new.csv", "predictions_new_pixel_error.csv"]


def _foreign_project(trained_run: Path, folder: Path) -> Path:
    project = shutil.copytree(trained_run.parent / "project", folder)
    for image in project.glob("labeled-data/*/*.png"):
        cv2.imwrite(str(image), 255 - cv2.imread(str(image)))
    return project


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", "{tmp}/nope"], "nope is not a run folder: it does not exist"),
        (["--run", "{tmp}/damaged"], "damaged/config.json is damaged: it cannot be read as JSON ("),
        ([], "RUN is required"),
        (["--run", "{run}", "--lables=a.csv"], "there is no flag --lables; did you mean --labels?"),
        (["--run", "{run}", "--labels", "a.csv"], "has no a.csv; its CSV files are CollectedData.csv"),
        (["--run", "{run}", "--project", "{tmp}/foreignn"], "did you mean"),
        (["--run", "{run}", "--project", "{tmp}/foreign"], "give --out FOLDER to keep the run's own predictions"),
        (["--run", "{run}", "--out", "{tmp}/file"], "file, which cannot be created: File exists"),
        (["--run", "{run}", "--devices", "9"], "devices asks for 9 devices, but the available devices are cpu:0"),
        (["--run", "{run}", "--devices=0"], "number 0 write '[0]', for the CPU --platform=cpu)"),
        (["--run", "{run}", "--batch_size", "0"], "batch_size is 0; it must be at least 1"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    _foreign_project(trained_run, tmp_path / "foreign")
    (tmp_path / "file").write_text("")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text('{"data": {"proj')
    assert evaluate.main([argument.format(run=trained_run, tmp=tmp_path) for argument in arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.err.startswith("jaxpose.evaluate: ")
    assert len(shown.err.splitlines()) == 1 and shown.out == ""


def test_a_run_that_is_still_training_keeps_its_own_evaluation(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(trained_run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    lock = lock_folder(run)
    assert evaluate.main(["--run", str(run)]) == 2
    os.close(lock)
    assert f"a run is being trained in {run}" in capsys.readouterr().err


def test_a_project_that_moved_is_asked_for(trained_run: Path, tmp_path: Path):
    run = shutil.copytree(trained_run, tmp_path / "run")
    config = read_config(run / "config.json")
    config.data.project = str(tmp_path / "gone")
    write_config(run / "config.json", config)
    with pytest.raises(ValueError, match="gone, does not exist; give its folder with --project FOLDER"):
        evaluate.evaluate(run)


def test_labels_without_a_known_keypoint_are_refused(trained_run: Path, tmp_path: Path):
    project = shutil.copytree(trained_run.parent / "project", tmp_path / "project")
    labels = _labels(trained_run).iloc[:, :2].rename(columns={"nose": "snout"})
    labels.to_csv(project / "CollectedData_new.csv")
    with pytest.raises(ValueError, match="has the keypoints snout; it needs one of nose, neck"):
        evaluate.evaluate(trained_run, project=str(project), labels="CollectedData_new.csv", out=tmp_path / "out")


def _as_two_cameras(trained_run: Path, folder: Path) -> Path:
    """A run of two cameras beside its project: session00 is what the top camera saw and session01 the bottom one."""
    labels = _labels(trained_run)
    for view, session in (("top", "session00"), ("bot", "session01")):
        of_view = labels[labels.index.str.contains(session)]
        of_view.index = of_view.index.str.replace(session, f"s_{view}")
        of_view.to_csv(folder / f"CollectedData_{view}.csv")
        of_view.iloc[2:4].to_csv(folder / f"CollectedData_{view}_new.csv")
        images = trained_run.parent / "project" / "labeled-data" / session
        shutil.copytree(images, folder / "labeled-data" / f"s_{view}")
    run = shutil.copytree(trained_run, folder / "run")
    config = read_config(run / "config.json")
    config.data.project, config.data.views = str(folder), ("top", "bot")
    write_config(run / "config.json", config)
    return run


def test_each_camera_has_its_predictions(trained_run: Path, tmp_path: Path):
    run, out = _as_two_cameras(trained_run, tmp_path), tmp_path / "out"
    results = evaluate.evaluate(run, out=out, devices=1)
    assert "unused" not in results and results["CollectedData_new.csv"]["frames"] == 4
    stems = [f"predictions_{view}{ending}" for view in ("top", "bot") for ending in ("", "_new")]
    names = {f"{stem}{kind}.csv" for stem in stems for kind in ("", "_pixel_error")}
    assert {path.name for path in out.iterdir()} == names | {"evaluation.json", "evaluated.json"}
    whole = read_predictions(trained_run / "predictions.csv")
    for first, view in ((0, "top"), (6, "bot")):
        found = read_predictions(out / f"predictions_{view}.csv")
        numbers = [Path(name).name for name in whole.poses.frames[first : first + 6]]
        assert found.poses.frames == [f"labeled-data/s_{view}/{name}" for name in numbers]
        # The pictures are those of the run under other names.
        assert whole.sets is not None and found.sets == whole.sets[first : first + 6]
        np.testing.assert_allclose(found.poses.points_px[:, 0], whole.poses.points_px[first : first + 6, 0], atol=1e-3)
        new = read_predictions(out / f"predictions_{view}_new.csv")
        assert new.poses.frames == found.poses.frames[2:4]
        np.testing.assert_allclose(new.poses.points_px[:, 0], found.poses.points_px[:, 0][2:4], atol=1e-3)
        errors = pd.read_csv(out / f"predictions_{view}_pixel_error.csv", index_col=0)
        expected = _errors(trained_run, trained_run / "predictions.csv")[first : first + 6]
        np.testing.assert_allclose(errors.drop(columns="set").to_numpy(np.float64), expected, atol=2e-3)

    alone = tmp_path / "alone"
    evaluate.evaluate(run, labels="CollectedData_new.csv", out=alone, devices=1)
    assert {path.name for path in alone.iterdir()} == {name for name in names if "new" in name}


def test_help_fits_on_a_screen():
    result = subprocess.run([sys.executable, "-m", "jaxpose.evaluate", "--help"], capture_output=True, text=True)
    assert result.returncode == 0 and "--run RUN" in result.stdout and len(result.stdout.splitlines()) < 30
