"""What comes after the last step: a run that is stopped there is not finished, and the same command completes it."""

import dataclasses
import logging
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpose import config as c
from jaxpose import predict
from jaxpose.checksums import read_json
from jaxpose.data.synthetic import make_project
from jaxpose.prediction import project_videos
from jaxpose.prediction.index import Claims
from jaxpose.prediction.job import key_of
from jaxpose.training.network_training import end_reason
from tests.small_run import checkpoint_of, make_config, train, train_and_stop, train_and_stop_at
from tests.train_process import Process

STEPS = 2
# A frame a batch, because a stop is looked for after each batch.
OPTIONS: dict[str, Any] = {"train__steps": STEPS, "train__val_every_epochs": 1, "train__early_stop_patience": 1}
OPTIONS |= {"eval__predict_videos": "yes", "eval__batch_size": 1, "mesh__heartbeat_s": 1.0, "log__tensorboard": False}
TABLES = [f"session0{video}{end}.csv" for video in range(3) for end in ("", "_temporal_norm")]


@pytest.fixture(scope="module")
def project_of_longer_videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Predicting each video takes most of a second, so that a test which looks at the files can kill it in time.

    Of 200 frames, two videos were once done before a busy machine had given the signal.
    """
    folder = tmp_path_factory.mktemp("longer") / "project"
    return make_project(folder, videos=3, labelled_frames=6, video_frames=600, side_px=64)


@pytest.fixture(scope="module")
def predicted(project_of_longer_videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbs, with the project's three videos predicted."""
    run = tmp_path_factory.mktemp("predicted") / "run"
    assert train(make_config(project_of_longer_videos, run, **OPTIONS))["exit_code"] == 0
    assert sorted(file.name for file in (run / "video_preds").iterdir()) == TABLES
    return run


def assert_completed(run: Path, predicted: Path) -> None:
    """A run has ended with every byte that an undisturbed one ends with."""
    names = ["best.safetensors", "predictions.csv", "predictions_pixel_error.csv", "evaluation.json"]
    for name in [*names, *(f"video_preds/{table}" for table in TABLES)]:
        assert (run / name).read_bytes() == (predicted / name).read_bytes(), name
    assert summary_of(run) == summary_of(predicted)
    assert not list(run.glob("video_preds/*.parts")) and not (run / ".claims").exists()


def summary_of(run: Path) -> dict[str, Any]:
    return {name: value for name, value in read_json(run / "finished.json").items() if name != "out"}


def test_why_a_training_is_over_is_the_same_however_often_it_is_asked(whole: Path) -> None:
    state = checkpoint_of(whole)
    config = c.Config(train=c.TrainConfig(early_stop_patience=3))
    for step, waited, expected in ((3, 2, ""), (3, 3, "early stop"), (4, 2, "done"), (4, 3, "done")):
        changed = dataclasses.replace(state, step=np.int32(step), validations_since_best=np.int32(waited))
        assert end_reason(config, 4, changed) == expected
    config.train.early_stop_patience = 0
    assert end_reason(config, 4, dataclasses.replace(state, step=np.int32(3))) == ""


@pytest.mark.faults
def test_a_run_that_is_stopped_after_its_last_step_is_completed_by_the_same_command(
    project_of_longer_videos: Path,
    predicted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = tmp_path / "run"
    config = make_config(project_of_longer_videos, run, **OPTIONS)
    first, last = (run / "video_preds" / f"session0{video}.csv" for video in (0, 2))
    # While the last step is looked at, and after the first of three videos.
    summary = train_and_stop(config, STEPS)
    assert (summary["exit_code"], summary["reason"], summary["steps"]) == (85, "interrupted", STEPS)
    assert not (run / "predictions.csv").exists() and not (run / "finished.json").exists()
    summary = train_and_stop_at(config, "session00.mp4: 600 of 600 frames")
    assert (summary["exit_code"], summary["reason"]) == (85, "interrupted")
    assert first.exists() and not last.exists() and not (run / "finished.json").exists()
    log = (run / "train.log").read_text()
    assert log.count("stopped by a signal; training is done and saved at step 2, the same command does the rest") == 2
    # It predicts meanwhile.
    assert predict.load(run, devices=1).weights_label == "the weights of step 2; the run is not finished"
    written_ns = first.stat().st_mtime_ns
    # As a process leaves it that is killed right after it noted that the video is done.
    first.with_name(f"{first.name}.0123abcd.parts").mkdir()
    assert Claims(run, 1.0).take(f"{key_of('video_preds/session00.csv')}-join")
    # What has begun goes on, also where another machine would be too slow to begin.
    monkeypatch.setattr(project_videos, "AUTO_S", 1e-3)
    config.eval.predict_videos = "auto"
    with caplog.at_level(logging.DEBUG, "jax"):
        summary = train(config)
    assert (summary["exit_code"], summary["reason"]) == (0, "done")
    assert_completed(run, predicted)
    # Nothing is done twice: the table stays, and the train step (`update`) is not compiled.
    assert first.stat().st_mtime_ns == written_ns
    assert not [record for record in caplog.records if "jit(update)" in record.getMessage()]
    log = (run / "train.log").read_text()
    assert f"session00.mp4: {first} already exists" in log and log.count("compiled in ") == 1


@pytest.mark.faults
def test_signals_and_kills_after_the_last_step(project_of_longer_videos: Path, predicted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = make_config(project_of_longer_videos, run, **OPTIONS)
    for file, numbers, code in (
        ("predictions.csv", [signal.SIGINT], 130),
        ("video_preds/session00.csv", [signal.SIGKILL], -9),
        ("video_preds/session01.csv", [signal.SIGINT, signal.SIGINT], 130),
    ):
        process = Process(config, tmp_path)
        while process.child.poll() is None and not (run / file).exists():
            time.sleep(0.001)
        for number in numbers:
            process.child.send_signal(number)
            # Signals of one kind that come at once are one.
            time.sleep(0.01)
        found, out, err = process.end()
        assert found == code and "Traceback" not in err, (file, err)
        assert not (run / "finished.json").exists()
        in_order, at_once = "stopped by a signal; training is done and saved" in out, "leaving at once" in err
        if len(numbers) == 2:
            # The second may come when the work of the first is done.
            assert in_order or at_once
        else:
            assert (in_order, at_once) == (code == 130, False)
    code, out, err = Process(config, tmp_path).end()
    assert (code, err) == (0, "") and out.endswith(f"everything is in {run}\n")
    assert_completed(run, predicted)
