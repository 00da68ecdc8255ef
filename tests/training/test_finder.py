"""Several animals through the verbs, from the labels to tracks: a run holds a finder and a pose network."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest

from jaxpose import load
from jaxpose.check.__main__ import main as check
from jaxpose.checksums import write_csv
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.convert import main as convert
from jaxpose.crop import main as crop
from jaxpose.data.synthetic import make_project
from jaxpose.errors import UserError
from jaxpose.export.__main__ import main as export
from jaxpose.predict import main as predict
from jaxpose.prediction.animals import Network, find_in_video
from jaxpose.prediction.evaluation import evaluate as evaluate_run
from jaxpose.report.__main__ import main as report
from jaxpose.run.load import read_run_config
from jaxpose.run.weights import export_parameters, load_parameters
from jaxpose.training import animal_clips
from jaxpose.video.index import VideoIndex
from tests.several_animals import ALONE, IMAGES, csv_project
from tests.small_run import (
    assert_same_run,
    call,
    last_step,
    log_of,
    make_config,
    metrics_of,
    train,
    train_and_stop_when,
)

# The pose network also learns from clips of the animals that the finder finds.
CHANGES = {
    "data__split": "frame", "augment__preset": "none", "optim__lr": 1e-2, "train__steps": 60, "train__batch_size": 6,
    "train__shards": 3, "train__val_every_epochs": 30.0, "train__save_every_steps": 30, "log__report": True,
    "losses__temporal__weight": 1e-3, "losses__anneal_start_epochs": 0.0, "losses__anneal_init": 1.0,
    "video__sequence_length": 2,
}  # fmt: skip
FINDER = CHANGES | {"model__kind": "finder", "losses__temporal__weight": 0.0}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos of 2 and 3 animals."""
    folder = tmp_path_factory.mktemp("group") / "project"
    return make_project(folder, videos=2, labelled_frames=8, video_frames=16, side_px=64, animals=3)


@pytest.fixture(scope="module")
def run(group: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; copy it before you change it."""
    run = tmp_path_factory.mktemp("group_run") / "run"
    assert train(make_config(group, run, **CHANGES))["exit_code"] == 0
    return run


@pytest.fixture(scope="module")
def finder_run(run: Path) -> Path:
    """Its finder."""
    return run / "finder"


def test_a_run_holds_both_networks(run: Path, finder_run: Path) -> None:
    for folder, kind in ((run, "heatmap"), (finder_run, "finder")):
        assert read_run_config(folder).model.kind == kind
        validations = [line for line in metrics_of(folder) if "val_loss" in line]
        assert validations and ("val_recall" in validations[0]) == (kind == "finder")
        assert all((folder / name).is_file() for name in ("finished.json", "best.safetensors", "evaluation.json"))
    # The names animal1, animal2 in the labels are numbers.
    assert not (run / "individuals.json").exists()
    # One report, of both.
    assert "test, whole images: " in (run / "report.html").read_text() and not (finder_run / "report.html").exists()


def test_the_finder_trains_on_frames_and_validates_on_their_animals(finder_run: Path) -> None:
    steps = [line for line in metrics_of(finder_run) if "centre_loss" in line]
    # 6 frames train, with 2 or 3 animals each: each step has all of them.
    assert len(steps) == 60 and len({line["targets"] for line in steps}) == 1 and 12 < steps[0]["targets"] < 18
    validations = [line for line in metrics_of(finder_run) if "val_loss" in line]
    assert [line["step"] for line in validations] == [30, 60]
    assert {"val_recall", "val_false_per_frame", "val_oks_ap", "val_mean_px_error"} <= validations[0].keys()
    assert validations[1]["val_loss"] < validations[0]["val_loss"]
    # The body size is about 15 px, and becomes at least 32 px.
    data = read_run_config(finder_run).data
    assert data.animals == 3 and data.input_width_px == data.input_height_px
    assert 0 <= data.input_width_px - 64 * 32 / data.body_size_px < 32


def test_tables_have_a_row_for_each_labelled_animal_and_nothing_where_it_was_missed(finder_run: Path) -> None:
    sets = json.loads((finder_run / "evaluation.json").read_text())["sets"]
    table = pd.read_csv(finder_run / "predictions.csv", header=[0, 1, 2], index_col=0)
    points = table.xs("x", axis=1, level=2).apply(pd.to_numeric)
    about = [figures["animals"] for figures in sets.values()]
    assert len(table) == sum(figures["animals"] for figures in about) == 40
    assert int(points.isna().all(axis=1).sum()) == sum(figures["missed"] for figures in about)
    assert sum(figures["frames"] for figures in about) == 16
    found = sum(figures["animals"] - figures["missed"] for figures in about)
    assert found > 0 and "animals found" in log_of(finder_run)
    errors = pd.read_csv(finder_run / "predictions_pixel_error.csv", index_col=0)
    has_error = np.isfinite(errors.select_dtypes("number").to_numpy()).any(axis=1)
    assert np.count_nonzero(has_error) == found


def test_clips_show_the_animals_that_the_finder_found(group: Path, run: Path, finder_run: Path) -> None:
    boxes = pd.read_csv(run / "clip_boxes.csv")
    assert list(boxes.columns) == ["video", "tracklet", "frame", "x", "y", "h", "w", "check"]
    assert set(boxes.video) <= {"session00", "session01"} and boxes.h.nunique() == boxes.w.nunique() == 1
    # One box of an animal in a frame; the nearest animal is where the box is, also from frame to frame.
    assert not boxes.duplicated(["video", "tracklet", "frame"]).any()
    near = []
    for name, of_video in boxes.groupby("video"):
        truth = pd.read_csv(group / "ground_truth" / f"{name}.csv", header=[0, 1, 2, 3], index_col=0)
        centres_px = truth.to_numpy().reshape(len(truth), 3, -1, 2).mean(axis=2)
        middles_px = of_video[["x", "y"]].to_numpy() + (boxes.w[0] - 1) / 2
        apart = np.linalg.norm(centres_px[of_video.frame] - middles_px[:, None], axis=2)
        near += np.nanmin(apart, axis=1).tolist()
    assert np.median(near) < 5
    steps = [line for line in metrics_of(run) if "temporal" in line]
    assert len(steps) == 60 and all(line["temporal_count"] == 7 for line in steps) and "tracklets; " in log_of(run)
    # The finder learns from labels alone.
    assert not (finder_run / "clip_boxes.csv").exists() and "temporal" not in metrics_of(finder_run)[0]
    assert read_run_config(finder_run).losses.temporal.weight == 0


def test_a_training_goes_on_only_with_the_boxes_that_it_began_with(group: Path, run: Path, tmp_path: Path) -> None:
    again = shutil.copytree(run, tmp_path / "run")
    file, longer = again / "clip_boxes.csv", CHANGES | {"train__steps": 62, "log__report": False, "resume": "extend"}
    kept = file.read_bytes()
    file.write_bytes(kept.replace(b",24,24,", b",26,26,", 1) if b",24,24," in kept else kept + b"a")
    with pytest.raises(UserError, match=r"clip_boxes.csv.* was damaged, changed by hand.*resume=overwrite"):
        train(make_config(group, again, **longer))
    write_csv(file, "video,tracklet,frame,x,y,h,w\nday1,0,0,0,0,24,24\n")
    with pytest.raises(
        UserError, match="clip_boxes.csv has boxes of day1, but .* are session00, session01: .*name them"
    ):
        train(make_config(group, again, **longer | {"resume": "auto"}))
    file.unlink()
    with pytest.raises(UserError, match="clip_boxes.csv is gone, so this run cannot continue with the same clips"):
        train(make_config(group, again, **longer | {"resume": "auto"}))
    file.write_bytes(kept)
    assert train(make_config(group, again, **longer | {"resume": "auto"}))["steps"] == 62
    assert file.read_bytes() == kept


def test_a_search_that_was_killed_goes_on_with_the_video_that_was_not_finished(
    group: Path, run: Path, finder_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = tmp_path / "run"
    shutil.copytree(finder_run, again / "finder")
    for name in ("config.json", "split.csv"):
        shutil.copy(run / name, again)
    config = make_config(group, again, **CHANGES | {"log__report": False, "train__steps": 60})
    searched: list[str] = []
    is_killed_in = [2]

    class Killed(BaseException):
        pass

    def find(finder: Network, index: VideoIndex, stretches: Sequence[tuple[int, int]]) -> Iterator[Any]:
        searched.append(index.path.stem)
        for number, found in enumerate(find_in_video(finder, index, stretches)):
            if len(searched) in is_killed_in and number == 0:
                raise Killed
            yield found

    monkeypatch.setattr(animal_clips, "find_in_video", find)
    with pytest.raises(Killed):
        train(config)
    parts = again / "clip_boxes.parts"
    assert [file.name for file in parts.iterdir()] == ["0.json"] and not (again / "clip_boxes.csv").exists()
    # Boxes that another finder found do not count, such as the same one before resume=extend trained it on.
    weights = again / "finder" / "best.safetensors"
    kept = weights.read_bytes()
    values, notes = load_parameters(weights)
    first = next(iter(values["params"].values()))
    while isinstance(next(iter(first.values())), dict):
        first = next(iter(first.values()))
    next(iter(first.values()))[:] *= 0.5
    export_parameters(weights, values, notes)
    is_killed_in[:] = [3]
    with pytest.raises(Killed):
        train(config)
    assert searched == ["session00", "session01", "session00"]
    weights.write_bytes(kept)
    # A file of another video does not count, whatever its name.
    shutil.copy(parts / "0.json", parts / "1.json")
    train(config)
    assert searched[3:] == ["session01"] and not parts.exists()
    assert (again / "clip_boxes.csv").read_bytes() == (run / "clip_boxes.csv").read_bytes()


def test_videos_in_which_nothing_can_be_followed_are_refused(group: Path, tmp_path: Path) -> None:
    config = make_config(group, tmp_path / "run", **CHANGES | {"log__report": False, "video__sequence_length": 16})
    config.train.steps = config.train.save_every_steps = 1
    with pytest.raises(UserError, match="the finder found .*, so the losses on video would learn nothing: .* to 0"):
        train(config)


def test_evaluate_gives_the_figures_of_the_finder(group: Path, finder_run: Path, tmp_path: Path) -> None:
    # Images without animals are in no figure.
    project = shutil.copytree(group, tmp_path / "project")
    with (project / "CollectedData.csv").open("r+") as labels:
        cells = labels.readlines()[-1].count(",")
        for image in ("labeled-data/empty/img0.png", "labeled-data/empty/img1.png"):
            labels.write(image + "," * cells + "\n")
            (project / image).parent.mkdir(exist_ok=True)
            cv2.imwrite(str(project / image), np.full((64, 64, 3), 60 + len(list((project / image).parent.iterdir()))))
    again = evaluate_run(finder_run, project=str(project), out=tmp_path / "again")
    first = json.loads((finder_run / "evaluation.json").read_text())["sets"]
    assert json.loads(json.dumps({name: one["animals"] for name, one in again.items()})) == {
        name: one["animals"] for name, one in first.items()
    }
    assert (tmp_path / "again" / "predictions.csv").read_bytes() == (finder_run / "predictions.csv").read_bytes()


@pytest.mark.slow
def test_a_resumed_run_on_3_devices_is_the_run_on_1(group: Path, run: Path, tmp_path: Path) -> None:
    again = tmp_path / "run"
    config = make_config(group, again, mesh__devices=3, **CHANGES)
    for stopped in (again / "finder", again):
        summary = train_and_stop_when(config, lambda stopped=stopped: last_step(stopped) >= 32)
        assert (summary["reason"], summary["exit_code"], summary["out"]) == ("interrupted", 85, str(again))
    train(config)
    for part in ("finder", ""):
        assert_same_run(run / part, again / part)
    # The pose network had not begun when its finder was stopped.
    assert "no whole checkpoint" not in log_of(again)


@pytest.mark.slow
def test_a_dry_run_shows_both_networks(group: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert call(make_config(group, out, **CHANGES), tmp_path, "--dry_run") == 0
    _, of_finder, of_pose = capsys.readouterr().out.split("run folder   ")
    for shown, folder, cells in ((of_finder, out / "finder", "one map of centres"), (of_pose, out, "one map of")):
        assert shown.startswith(f"{folder}: would start\n") and cells in shown
    assert "maps of centres" not in of_pose and not out.exists()


def test_the_order_of_the_animals_changes_no_bit(group: Path, run: Path, tmp_path: Path) -> None:
    project = shutil.copytree(group, tmp_path / "project")
    table = pd.read_csv(project / "CollectedData.csv", header=[0, 1, 2, 3], index_col=0)
    individuals = table.columns.unique(1)
    assert len(individuals) == 3
    table[[column for name in individuals[::-1] for column in table.columns if column[1] == name]].to_csv(
        project / "CollectedData.csv"
    )
    train(make_config(project, tmp_path / "run", **CHANGES | {"log__report": False}))
    for part in ("", "finder"):
        assert_same_run(run / part, tmp_path / "run" / part)


def test_tables_have_a_row_for_each_animal_in_pixels_of_the_frame(group: Path, run: Path) -> None:
    predicted = pd.read_csv(run / "predictions.csv", header=[0, 1, 2], index_col=0)
    labels = pd.read_csv(group / "CollectedData.csv", header=[0, 1, 2, 3], index_col=0)
    assert len(predicted) == 40
    for image, (_, row) in zip((name.split("#")[0] for name in predicted.index), predicted.iterrows(), strict=True):
        labelled_px = labels.loc[image].to_numpy(float).reshape(3, -1, 2)
        present = np.isfinite(labelled_px).all((1, 2))
        centre_px = np.array([row.xs(axis, level=2).mean() for axis in "xy"], float)
        # A box reaches 16 px to each side.
        assert np.linalg.norm(labelled_px[present].mean(1) - centre_px, axis=1).min() < 24
    means = predicted.xs("x", axis=1, level=2).mean(axis=1)
    assert [name.split("#")[1] for name in predicted.index[:2]] == ["1", "2"] and means.nunique() == 40
    image = predicted.index[0].split("#")[0]
    assert "animals" in log_of(run) and image in (run / "split.csv").read_text()


def test_evaluate_gives_the_figures_of_the_animals(run: Path, tmp_path: Path) -> None:
    again = evaluate_run(run, out=tmp_path / "again")
    first = json.loads((run / "evaluation.json").read_text())["sets"]
    assert {name: one["mean_px_error"] for name, one in again.items()} == {
        name: one["mean_px_error"] for name, one in first.items()
    }
    assert sum(one["frames"] for one in again.values()) == 40


def test_predict_refuses_a_finder_by_name(finder_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(["--run", str(finder_run), "video.mp4"]) == 2
    assert "is a finder of several animals (data.animals=3): give the run of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"model__head": "deconv"}, "model.kind is finder, but model.head is deconv; a finder needs pyramid"),
        ({"model__loss": "kl"}, "model.kind is finder, but model.loss is kl; a finder needs mse"),
        ({"model__sigma_cells": 2.0}, "model.kind is finder, but model.sigma_cells is 2"),
        ({"model__decoding": "lightning_pose"}, "model.kind is finder, but model.decoding is lightning_pose"),
        ({"data__animals": 1}, "model.kind is finder, but data.animals is 1"),
        ({"train__init_from": "RUN"}, "model.kind is finder, but train.init_from is "),
        ({"data__crop_px": (0, 0, 32, 32)}, "data.crop_px is .*, but frames have several animals"),
        (
            {"losses__consistency__weight": 1.0},
            "model.kind is finder, but losses.consistency is on; a finder learns from",
        ),
        (
            CHANGES | {"model__kind": "heatmap", "video__cache": "folder"},
            "video.cache is folder, but frames have several animals, whose clips are not cached: leave it out",
        ),
        ({"train__members": 2}, "train.members is 2, but frames have several animals"),
    ],
)
def test_what_a_finder_does_not_use_is_refused(group: Path, tmp_path: Path, changes: dict, refusal: str) -> None:
    with pytest.raises(UserError, match=refusal):
        train(make_config(group, tmp_path / "run", **FINDER | changes))
    assert not (tmp_path / "run").exists()


def test_labels_of_one_animal_refuse_a_finder(whole: Path, tmp_path: Path) -> None:
    project = Path(read_run_config(whole).data.project)
    with pytest.raises(UserError, match="model.kind is finder, and no image of .* has several labelled animals"):
        train(make_config(project, tmp_path / "run", **FINDER))


def test_another_network_does_not_start_from_the_head_of_a_finder(
    group: Path, finder_run: Path, tmp_path: Path
) -> None:
    config = make_config(group, tmp_path / "run", **CHANGES)
    config.train.init_from = str(finder_run)
    with pytest.raises(UserError, match="train.init_from is .*, a finder; give model.weights="):
        train(config)


def test_a_video_becomes_tracks(group: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = group / "videos" / "session01.mp4"
    out = shutil.copytree(run, tmp_path / "run")
    arguments = ["--run", str(out), str(video), "--animals", "at-most:3", "--to", "slp"]
    assert predict([*arguments, "--devices", "1", "--labeled"]) == 0
    assert (out / "labeled_videos" / "session01_tracks_labeled.mp4").is_file()
    found = read_table(out / "video_preds" / "session01_detections.csv", several=True)
    tracks = read_table(out / "video_preds" / "session01_tracks.slp", several=True)
    assert 0 < len(tracks.poses.individuals) <= 3 and len(found.poses.frames) == 16
    assert (out / "video_preds" / "session01_tracks_review.csv").is_file()
    assert report([str(out)]) == 0
    page = (out / "report.html").read_text()
    assert "There are no traces" not in page and "video_preds/session01_tracks_review.csv" in page
    # The tracks are kept in one form, because the review and a person's corrections are of that file.
    review = out / "video_preds" / "session01_tracks_review.csv"
    listed = review.read_bytes()
    places = min(listed.count(b"\n") - 1, 20)
    assert page.count("<p><code>jaxpose label ") == places and places <= page.count("data:image/jpeg;base64,")
    review.write_text("a person's answers")
    assert predict(["--run", str(out), str(video), "--devices", "1", "--to", "csv"]) == 0
    command = f"jaxpose convert predictions {tracks.file} --to csv --out {tracks.file.with_suffix('.csv')}"
    assert command in capsys.readouterr().out and review.read_text() == "a person's answers"
    assert not tracks.file.with_suffix(".csv").exists()
    review.write_bytes(listed)
    # A person's correction stays, whatever a copy of the folder made of the times.
    corrected = out / "video_preds" / "session01_tracks.slp"
    corrected.write_bytes(b"corrected")
    os.utime(corrected, (0, 0))
    assert predict([*arguments, "--devices", "1"]) == 0
    assert corrected.read_bytes() == b"corrected"
    assert "session01_tracks.slp is older than its detections" in capsys.readouterr().err
    # The number of devices changes no bit, and Python gives the detections of the command.
    assert predict([*arguments, "--devices", "3", "--out", str(tmp_path / "3")]) == 0
    for name in ("session01_detections.csv", "session01_tracks_review.csv"):
        assert (tmp_path / "3" / "video_preds" / name).read_bytes() == (out / "video_preds" / name).read_bytes()
    points_px, confidence = load(run, devices=1, is_compiled=False).predict_video(video)
    assert points_px.shape == (16, 3, len(found.poses.keypoint_names), 2)
    known = np.isfinite(points_px)
    assert known.any() and np.array_equal(points_px[known], found.poses.points_px[np.isfinite(found.poses.points_px)])
    assert np.array_equal(np.isfinite(confidence), known[..., 0])


@pytest.mark.parametrize(
    ("flags", "refusal"),
    [
        (["--animals", "4"], "--animals is 4, but .* finds at most 3 animals in a frame: train it with data.animals=4"),
        (["--animals", "two"], "--animals is two; it must be a whole number from 1"),
        (["--to", "nwb"], "--to is nwb; it must be one of csv, deeplabcut, sleap-analysis, slp"),
        (["--smooth", "median"], "--smooth is median, but .* predicts several animals"),
    ],
)
def test_flags_that_do_not_fit_are_refused(
    group: Path, run: Path, capsys: pytest.CaptureFixture[str], flags: list[str], refusal: str
) -> None:
    assert predict(["--run", str(run), str(group / "videos" / "session01.mp4"), *flags]) == 2
    assert re.search(refusal, capsys.readouterr().err)


@pytest.mark.parametrize("flag", ["--animals", "--to"])
def test_a_run_of_one_animal_has_no_tracks(whole: Path, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert predict(["--run", str(whole), "video.mp4", flag, "2"]) == 2
    assert f"{flag} is 2, but {whole} was trained on images with one animal" in capsys.readouterr().err


def test_a_finished_run_is_the_same_run_again(
    group: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = shutil.copytree(run, tmp_path / "run")
    assert call(make_config(group, again, **CHANGES), tmp_path) == 0
    assert "finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        (export, ["--run", "{run}", "--out", "a.onnx"]),
        (crop, ["--run", "{run}", "--out", "boxes"]),
    ],
)
def test_what_needs_one_network_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], verb: Callable, arguments: list[str]
) -> None:
    code = verb([text.format(run=run) for text in arguments])
    assert code == 2 and "was trained on several animals (data.animals=3)" in capsys.readouterr().err


def test_a_run_without_its_finder_says_how_to_train_one(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(alone / "finder")
    refusal = f"has no finder: train one with jaxpose train PROJECT model.kind=finder out={alone / 'finder'}"
    assert predict(["--run", str(alone), "video.mp4"]) == 2
    assert refusal in capsys.readouterr().err
    network = load(alone, batch_size=1, is_compiled=False)
    with pytest.raises(UserError, match="RUN was trained on boxes .* and has no finder: train one with jaxpose train"):
        network.predict(np.zeros((64, 96, 3), np.uint8))


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        (convert, ["labels", "{project}", "--to", "coco", "--out", "{out}.json"]),
    ],
)
def test_commands_on_labels_of_one_animal_refuse_those_of_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: Callable, arguments: list[str]
) -> None:
    project, out = csv_project(tmp_path / "mice"), tmp_path / "out"
    assert verb([text.format(project=project, out=out) for text in arguments]) == 2
    assert "CollectedData.csv has up to 2 animals in an image; this command reads only" in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


def test_check_looks_at_each_animal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = csv_project(tmp_path / "mice")
    table = pd.read_csv(project / "CollectedData.csv", header=[0, 1, 2, 3], index_col=0)
    table.loc[IMAGES[0], ("me", "male", "nose", "x")] = 200
    table.to_csv(project / "CollectedData.csv")
    assert check([str(project), "--out", str(tmp_path / "page.html")]) == 1
    shown = capsys.readouterr().out
    assert "20 usable animals in 11 images; 1 row is refused" in shown
    assert f"2 images have fewer than 2 ({IMAGES[0]}, {IMAGES[ALONE]}): are all animals labelled there?" in shown
    assert "CollectedData.csv:5 (male)" in (tmp_path / "page.csv").read_text()


def test_a_run_on_one_animal_refuses_labels_of_several(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has up to 2 animals in an image, and the run was trained on images with one"):
        evaluate_run(whole, project=str(csv_project(tmp_path / "mice")), out=tmp_path / "out")
