"""Training from the page of `jaxpose label`: label, train, look, correct, train again."""

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from jaxpose.errors import UserError
from jaxpose.label.__main__ import main
from jaxpose.label.project import open_project
from jaxpose.label.store import Store
from jaxpose.label.training import Training
from jaxpose.run.paths import CONFIG_FILE, FINISHED_FILE
from tests.browser import needs_browser, opened
from tests.label.small_projects import image_name, serving, write_project
from tests.label.test_browser import is_at, press
from tests.label.test_server import ask, post

# The smallest training, for a project of 12 images.
OPTIONS = (
    "data.input_width_px=32", "data.input_height_px=32", "model.backbone=resnet10", "model.width=8",
    "model.head_width=8", "mesh.devices=1", "train.batch_size=2", "log.report=false", "eval.predict_videos=no",
)  # fmt: skip
# A shared core takes minutes to start and compile.
LONG_MS = 400_000


def is_in(page: Page, state: str, timeout_ms: int = LONG_MS) -> None:
    """Waits until the text of the training matches."""
    expect(page.locator("#training")).to_have_text(re.compile(state), timeout=timeout_ms)


def rows(count: int) -> str:
    return "".join(f"{image_name(10 * number)},{number}.5,2,20,{number},30.125,4\n" for number in range(count))


@needs_browser
@pytest.mark.slow
def test_the_loop_of_labelling_training_and_correcting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    project = write_project(tmp_path / "p", 12, rows(9))
    with serving(project, *OPTIONS, "train.steps=4") as served, opened(served.address, 1280, 800) as page:
        is_at(page, 90)
        press(page, "p s p s p")
        expect(page.locator("#train-button")).to_have_attribute("title", re.compile("jaxpose train .*train.steps=4"))
        press(page, "Shift+T")
        expect(page.locator("#train-button")).to_have_text("Stop training")
        # It goes on without the page, and a later page finds it.
        served.kill()
        page.goto("about:blank")
        with serving(project, *OPTIONS, "train.steps=4") as again:
            page.goto(again.address)
            expect(page.locator("#train-button")).to_have_text("Stop training")
            press(page, "Shift+T")
            expect(page.locator("#message")).to_have_text("training is running; the button stops it")
            is_at(page, 100)
            is_in(page, r"^label_001: \d+\.\d\d px on 1 validation frame$")
            # The predictions of the images without labels are hollow points.
            expect(page.locator(".points g.draft")).not_to_have_count(0)
            press(page, "t r Enter")
            is_at(page, 110)
            expect(page.locator("#progress")).to_have_text("11 of 12 labelled")
            # Once more, with the corrected labels, and stopped.
            press(page, "Shift+T")
            is_in(page, "reads the data")
            page.locator("#train-button").click()
            is_in(page, "label_002 is stopped: Train continues it if no label changes")
            expect(page.locator("#train-button")).to_have_text("Train (Shift+T)")
            assert again.stop() == 0
    assert (project / "CollectedData.csv").read_text().count("labeled-data") == 11
    names = sorted(name for name in os.listdir(tmp_path / "runs/p") if not name.startswith("."))
    assert names[0] == "label_001" and (tmp_path / "runs/p/label_001/finished.json").is_file()
    record = json.loads((tmp_path / "runs/p/.label.json").read_text())
    assert record["run"] == str(tmp_path / "runs/p/label_002")


def until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_projects_of_one_name_have_trainings_of_their_own_and_a_changed_config_starts_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "c.py"
    config.write_text("")
    stores = [Store(open_project(str(write_project(tmp_path / name / "p", 2)), "CollectedData.csv")) for name in "ab"]
    anna, bob = (Training(store, str(store.project.path), ["--config", str(config)]) for store in stores)
    runs = tmp_path / "runs/p"

    def run_of(training: Training) -> Path:
        """Starts and stops a training, which leaves a run that can be continued."""
        training.start()
        run = Path(training.state()["run"])
        training.stop()
        until(lambda: training.state()["name"] == "stopped")
        run.mkdir(exist_ok=True)
        (run / CONFIG_FILE).write_text("{}")
        return run

    anna.start()
    assert bob.state()["name"] == "none"
    with pytest.raises(
        UserError, match="a run of a project named p is being trained: wait .* on the page that started"
    ):
        bob.start()
    bob.stop()
    assert anna.state()["name"] == "training"
    anna.stop()
    until(lambda: anna.state()["name"] == "stopped")
    assert [run_of(anna), run_of(anna)] == [runs / "label_001"] * 2
    config.write_text("# another learning rate")
    assert run_of(anna) == runs / "label_002"
    # The labels and the arguments are equal, but not the project.
    assert bob.state()["name"] == "none" and run_of(bob) == runs / "label_003"
    for store in stores:
        store.close()


def test_a_failed_prediction_is_reported_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(open_project(str(write_project(tmp_path / "p", 2)), "CollectedData.csv"))
    training = Training(store, str(store.project.path))
    training.start()
    run = Path(training.state()["run"])
    training.stop()
    until(lambda: training.state()["name"] == "stopped")
    run.mkdir(exist_ok=True)
    for name in (CONFIG_FILE, FINISHED_FILE):
        (run / name).write_text("{}")
    assert "label_001 is trained, and its predictions are stopped" in training.state()["text"]
    # The labels are the same, so that only the prediction is left.
    training.start()
    until(lambda: training.state()["name"] != "predicting")
    state = training.state()
    assert state["name"] == "failed" and "label_001 is trained, but did not predict" in state["text"]
    assert str(run / CONFIG_FILE) in state["text"]
    store.close()


def test_options_of_the_training_are_checked_before_the_page_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = write_project(tmp_path / "p", 1)
    for argument, problem in (
        ("train.stepz=4", "there is no option train.stepz"),
        ("out=x", "out is given, but for the runs of the page it comes from the page, which chooses the run folder"),
        ("--config=absent.py", "there is no file 'absent.py'"),
        ("train.steps=-4", "train.steps is -4"),
    ):
        assert main([str(project), argument, "--no-browser"]) == 2
        assert problem in capsys.readouterr().err


def test_a_config_that_comes_with_jaxpose_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write_project(tmp_path / "p", 1, f"{image_name(0)},1,2,3,4,5,6\n")
    monkeypatch.chdir(tmp_path)
    with serving(project, "--config", "configs/small.py") as served:
        _, headers, _ = ask(served, "/?" + urlsplit(served.address).query)
        cookie = headers["set-cookie"].partition(";")[0]
        status, _, content = post(served, cookie, "/api/train", {})
        assert (status, json.loads(content)["name"]) == (200, "training"), content
        assert post(served, cookie, "/api/stop", {})[0] == 200
