"""Trackers through their own libraries, read back by their own readers; and trackers that fail."""

import json
import logging
import os
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jaxpose.checksums import read_json
from jaxpose.config import Config
from jaxpose.trackers import tracker as module
from jaxpose.trackers.tracker import Tracker
from tests.small_run import assert_same_run, copy_of, log_of, make_config, metrics_of, train

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from wandb.proto.wandb_internal_pb2 import Record


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a library may need long to be imported."""
    monkeypatch.setattr(module, "STOPS_S", module.ENDS_S)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store of mlflow's, which the processes of the test use."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'store'}")
    return tmp_path / "store"


def mlflow_client() -> "MlflowClient":
    from mlflow import MlflowClient  # takes seconds, and most workers need none of it

    return MlflowClient()


def make(tracker: str, folder: Path) -> Config:
    folder.mkdir(exist_ok=True)
    config = Config()
    config.data.project, config.log.tracker = "mice", tracker
    return config


def wait_until_known(folder: Path) -> None:
    """Returns once the tracker has taken the run."""
    until = time.monotonic() + 60
    while not (folder / "tracker.json").exists():
        assert time.monotonic() < until, (folder / "tracker.log").read_text()
        time.sleep(0.01)


def records_of(folder: Path) -> "list[Record]":
    """What wandb keeps of its runs in a folder for a later upload, in its own messages."""
    from tests.trackers.wandb_files import wandb_records  # imports wandb, which takes seconds

    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    return [record for file in files for record in wandb_records(file)]


def history_of(records: "list[Record]") -> list[dict]:
    rows = [record.history for record in records if record.HasField("history")]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in rows]


@pytest.mark.slow
def test_mlflow_has_the_numbers_the_config_and_the_report_and_a_resume_goes_on(store: Path, tmp_path: Path) -> None:
    run, report = tmp_path / "run", tmp_path / "report.html"
    report.write_text("<p>the report</p>")
    config = make("mlflow", run)
    with Tracker(run, config) as tracker:
        for step in (1, 2, 3):
            tracker.record(step, {"train/loss": 1 / step, "train/gradient_norm": float("nan")})
        tracker.finish("interrupted")
    with Tracker(run, config) as tracker:
        for step in (2, 3, 4):
            tracker.record(step, {"train/loss": 1 / step})
        tracker.finish("done", report)
    client = mlflow_client()
    experiment = client.get_experiment_by_name("mice")
    assert experiment
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_id == read_json(run / "tracker.json")["id"]
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["train.batch_size"] == str(config.train.batch_size)
    # Of the step that both starts took, the second one's number is the last.
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == [
        (1, 1),
        (2, 1 / 2),
        (3, 1 / 3),
        (3, 1 / 3),
        (4, 1 / 4),
    ]
    assert set(found.data.metrics) == {"train/loss"}
    (artifact,) = client.list_artifacts(found.info.run_id)
    assert artifact.path == "report.html"


def test_wandb_has_the_numbers_the_config_and_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run, report = tmp_path / "run", tmp_path / "report.html"
    report.write_text("<p>the report</p>")
    config = make("wandb", run)
    for steps, outcome in (((1, 2), "interrupted"), ((3,), "done")):
        with Tracker(run, config) as tracker:
            for step in steps:
                tracker.record(step, {"train/loss": 1 / step})
            # The results have the step of the last loss.
            tracker.record(steps[-1], {"result/test_mean_px_error": 7.0 - steps[-1]})
            tracker.finish(outcome, report if outcome == "done" else None)
    records = records_of(run)
    (*_, summary) = [item for record in records for item in record.summary.update if item.key.startswith("result")]
    assert summary.value_json == "4.0"
    (first, second) = [record.run for record in records if record.HasField("run")]
    assert first.run_id == second.run_id == read_json(run / "tracker.json")["id"]
    assert (first.project, first.display_name) == ("mice", "run")
    options = {item.key: json.loads(item.value_json) for item in first.config.update}
    assert options["train.batch_size"] == config.train.batch_size
    rows = history_of(records)
    assert [(row["_step"], row["train/loss"]) for row in rows if "train/loss" in row] == [
        (1, 1),
        (2, 1 / 2),
        (3, 1 / 3),
    ]
    (html,) = run.glob("wandb/offline-run-*/files/media/html/*.html")
    assert "the report" in html.read_text()
    # What is sent is what the page says: nothing about the machine, and no code.
    sent = [file for file in run.glob("wandb/offline-run-*/files/**/*") if file.is_file()]
    assert {file.name for file in sent} <= {html.name, "config.yaml", "wandb-summary.json"}
    assert not [record for record in records if record.HasField("stats") or record.HasField("output_raw")]


def test_a_tracker_that_fails_or_is_killed_later_is_one_warning(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    config = make("mlflow", run)
    with Tracker(run, config) as tracker:
        wait_until_known(run)
        shutil.rmtree(store)
        tracker.record(1, {"train/loss": 1.0})
        tracker.finish("done")
    (warning,) = caplog.messages
    assert "does not exist" in warning
    caplog.clear()
    with Tracker(run, config) as tracker:
        pid = tracker._process.pid  # pyright: ignore[reportOptionalMemberAccess]
        os.kill(pid, signal.SIGKILL)
        tracker.finish("done")
    (warning,) = caplog.messages
    assert "its process ended with SIGKILL" in warning
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_that_does_not_answer_neither_slows_the_run_nor_keeps_it_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "ENDS_S", 0.5)
    monkeypatch.setattr(module, "MOST_WAITING", 100)
    with socket.create_server(("127.0.0.1", 0)) as server, caplog.at_level(logging.INFO):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        with Tracker(tmp_path / "run", make("mlflow", tmp_path / "run")) as tracker:
            started = time.monotonic()
            for step in range(20_000):
                tracker.record(step, {"train/loss": 1.0})
            assert time.monotonic() - started < 2
            server.settimeout(60)
            connection, _ = server.accept()
            pid = tracker._process.pid  # pyright: ignore[reportOptionalMemberAccess]
            started = time.monotonic()
            tracker.finish("done")
            assert time.monotonic() - started < 5
            connection.close()
    (warning,) = caplog.messages
    assert "it did not accept all records within 0.5 s after training" in warning
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_signal_shortens_the_wait_and_a_damaged_id_is_named(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "STOPS_S", 0.1)
    config = make("mlflow", tmp_path / "run")
    (tmp_path / "run" / "tracker.json").write_text("{")
    with Tracker(tmp_path / "run", config) as tracker:
        started = time.monotonic()
        tracker.finish("done", hurries=lambda: True)
        assert time.monotonic() - started < module.ENDS_S / 10
    (warning,) = caplog.messages
    assert warning.startswith("log.tracker=mlflow: the tracker starts a new run: ") and "tracker.json" in warning


@pytest.mark.slow
def test_a_resumed_run_may_be_tracked_and_keeps_its_numbers(
    whole: Path, stopped: Path, project: Path, store: Path, tmp_path: Path
) -> None:
    run = copy_of(stopped, tmp_path)
    (run / "report.html").write_text("of another time")
    assert train(make_config(project, run, log__tracker="mlflow", log__report=False))["exit_code"] == 0
    assert_same_run(run, whole)
    client, known = mlflow_client(), read_json(run / "tracker.json")
    assert f"mlflow tracks this run as {known['id']}" in log_of(run)
    found = client.get_run(known["id"])
    for tag, name in (("train/loss", "loss"), ("validation/mean_px_error", "val_mean_px_error")):
        sent = {metric.step: metric.value for metric in client.get_metric_history(known["id"], tag)}
        assert sent == {
            line["step"]: line[name] for line in metrics_of(run) if name in line and line["step"] >= min(sent)
        }
    summary = json.loads((run / "finished.json").read_text())
    assert found.data.metrics["result/test_mean_px_error"] == summary["sets"]["test"]["mean_px_error"]
    assert found.data.metrics["speed/images_per_s"] > 0
    assert found.info.status == "FINISHED" and client.list_artifacts(known["id"]) == []


@pytest.mark.slow
def test_a_run_ends_well_without_its_tracker(
    whole: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'file' / 'store'}")
    (tmp_path / "file").write_text("")
    run = tmp_path / "run"
    assert train(make_config(project, run, train__steps=2, log__tracker="mlflow"))["exit_code"] == 0
    assert metrics_of(run)[:2] == metrics_of(whole)[:2]
    (warning,) = [line for line in log_of(run).splitlines() if "log.tracker" in line]
    assert "warning: log.tracker=mlflow: NotADirectoryError: " in warning and "the run continues" in warning
    assert "NotADirectoryError" in (run / "tracker.log").read_text()
    assert not (run / "tracker.json").exists()
