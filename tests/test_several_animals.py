"""Several animals from one command to tracks: training, prediction and tracks of a group, through the verbs."""

import re
from pathlib import Path

import numpy as np
import pytest

from jaxpose import load
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.data.synthetic import make_project
from jaxpose.predict import main as predict
from tests.small_run import make_config, train

BOTH = {
    "data__split": "frame", "augment__preset": "none", "optim__lr": 1e-2, "train__steps": 24, "train__batch_size": 6,
    "train__shards": 3,
}  # fmt: skip
FINDER = {"model__kind": "finder", "data__input_width_px": 0, "data__input_height_px": 0}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos of 2 and 3 animals."""
    folder = tmp_path_factory.mktemp("group") / "project"
    return make_project(folder, videos=2, labelled_frames=8, video_frames=16, side_px=64, animals=3)


@pytest.fixture(scope="module")
def run(group: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; copy it before you change it."""
    run = tmp_path_factory.mktemp("run") / "run"
    train(make_config(group, run, **BOTH))
    train(make_config(group, run / "finder", **BOTH | FINDER))
    return run


def test_a_video_becomes_tracks(group: Path, run: Path, tmp_path: Path) -> None:
    video = group / "videos" / "session01.mp4"
    out = tmp_path / "out"
    arguments = ["--run", str(run), str(video), "--animals", "at-most:3", "--to", "slp"]
    assert predict([*arguments, "--devices", "1", "--out", str(out)]) == 0
    found = read_table(out / "video_preds" / "session01_detections.csv", several=True)
    tracks = read_table(out / "video_preds" / "session01_tracks.slp", several=True)
    assert 0 < len(tracks.poses.individuals) <= 3 and len(found.poses.frames) == 16
    assert (out / "video_preds" / "session01_tracks_review.csv").is_file()
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
        (["--smooth", "median"], "--smooth is median, but .* is of several animals"),
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
