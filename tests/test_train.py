"""Training as its user sees it, from Python and by the verb, on small real runs.

All runs share their compiled programs (see tests/conftest.py), so what differs between them is mostly what is not part
of the compiled step: where they stop, what they watch, which frames they read.
"""

import copy
import json
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import cv2
import jax
import numpy as np
import pandas as pd
import pytest

from jaxpose.config import from_json
from jaxpose.config.train import METRICS
from jaxpose.prediction.predictor import load
from jaxpose.progress import phase
from jaxpose.run.load import read_run_config
from jaxpose.run.log import tag_of
from jaxpose.run.weights import load_parameters
from jaxpose.steps.state import evaluated_weights
from tests.cut_images import cut
from tests.log_files import events_of
from tests.small_run import (
    assert_same,
    call,
    checkpoint_of,
    files_in,
    forget_programs,
    log_of,
    make_config,
    metrics_of,
    train,
)


def test_each_step_is_compiled_once(whole: Path):
    compilations = json.loads((whole.parent / "compilations.json").read_text())
    # The programs of a shard, and that of 8 validations and an evaluation, whose last batches are not full.
    for program in ("prepare", "gradients", "update", "evaluate"):
        assert compilations.count(f"jit({program})") == 1, program
    # The first parameters and the optimizer's state are made on the host.
    assert compilations[0] == "jit(prepare)"


def test_metrics_are_those_that_can_be_monitored_and_agree_with_the_evaluation(whole: Path):
    lines = metrics_of(whole)
    steps, validations = [line for line in lines if "loss" in line], [line for line in lines if "val_loss" in line]
    assert [line["step"] for line in steps] == [*range(1, 41)]
    assert [line["step"] for line in validations] == [*range(10, 41, 10)]
    assert {name for line in lines for name in line} == {"step", *METRICS}
    best = min(validations, key=lambda line: line["val_loss"])
    summary = json.loads((whole / "finished.json").read_text())
    assert summary["best_step"] == best["step"]
    assert summary["sets"]["validation"]["mean_px_error"] == pytest.approx(best["val_mean_px_error"], rel=1e-5)
    assert f"best weights: step {best['step']} (lowest val_loss)" in log_of(whole)


def test_without_a_monitor_the_last_weights_are_kept_and_validation_is_only_shown(
    whole: Path, project: Path, tmp_path: Path
):
    """And validation does not depend on the batch of predictions: it would change the rounding."""
    run = tmp_path / "run"
    options: dict[str, Any] = {"train__steps": 12, "eval__batch_size": 1, "log__report": True}
    last = train(make_config(project, run, train__monitor="none", **options))
    assert (last["best_step"], last["steps"]) == (12, 12)
    assert "best weights: step 12 (the last step)" in log_of(run)
    # It validates at its end, which `whole` does not do there.
    assert metrics_of(run)[:-1] == [line for line in metrics_of(whole) if line["step"] <= 12]
    params, _ = evaluated_weights(checkpoint_of(run))
    assert_same(load_parameters(run / "best.safetensors")[0]["params"], params)
    assert "of step 12 (the last step)" in (run / "report.html").read_text()


def test_lines_of_progress_begin_with_the_loss(whole: Path):
    line = next(line for line in log_of(whole).splitlines() if " step 20/40  50%" in line)
    losses = {entry["step"]: entry["loss"] for entry in metrics_of(whole) if "loss" in entry}
    assert f"  50%  loss {losses[20]:.4g}  gradient_norm " in line
    assert len(line) < 180 and "backbone" not in line


def test_start_block_and_messages(whole: Path):
    text = log_of(whole)
    for part in ("6 train, 6 validation, 6 test", "resnet10, width 8, shard norm, 81,664 parameters", "1 x cpu",
                 "one map of 8 x 8 cells", "5 frames a step in one pass, at most 5 at once", "40 steps; an epoch is 2",
                 "MiB of checkpoints", "GFLOP", "starts from random weights", f"everything is in {whole}"):  # fmt: skip
        assert part in text, part


def test_tensorboard_has_the_metrics_and_predicted_frames(whole: Path):
    values = [(event.step, value) for event in events_of(whole) for value in event.summary.value]
    scalars = {(step, value.tag): value.simple_value for step, value in values if value.HasField("simple_value")}
    for line in metrics_of(whole):
        for name in line.keys() - {"step"}:
            assert scalars[line["step"], tag_of(name)] == pytest.approx(line[name], rel=1e-6)
    assert {tag.partition("/")[0] for _, tag in scalars} == {"train", "validation", "learning_rate", "speed", "result"}
    assert [step for step, tag in scalars if tag == "speed/images_per_s"] == [*range(2, 41)]
    summary = json.loads((whole / "finished.json").read_text())
    error_px = summary["sets"]["test"]["mean_px_error"]
    assert scalars[40, "result/test_mean_px_error"] == pytest.approx(error_px, rel=1e-6)
    (page,) = [value for _, value in values if value.tag == "config"]
    assert page.metadata.plugin_data.plugin_name == "text"
    assert from_json(page.tensor.string_val[0].decode()) == read_run_config(whole)
    pictures = [(step, value) for step, value in values if value.HasField("image")]
    assert {(step, value.tag) for step, value in pictures} == {
        (step, f"validation/{n}") for step in range(10, 41, 10) for n in range(3)
    }
    for _, value in pictures:
        picture = cv2.imdecode(np.frombuffer(value.image.encoded_image_string, np.uint8), cv2.IMREAD_COLOR)
        assert picture is not None and picture.shape == (256, 256, 3)


@pytest.mark.slow
def test_profiler_is_stopped_however_the_run_ends(whole: Path, stopped: Path):
    for run in (whole, stopped):
        assert list((run / "profile").rglob("*.xplane.pb")), run
        assert f"the profiler's trace is in {run}/profile" in log_of(run)


def test_dry_run_tells_the_cost_and_writes_nothing(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    project = shutil.copytree(project, tmp_path / "own")
    rows = (project / "CollectedData.csv").read_text().splitlines()
    names = [row.partition(",")[0] for row in rows[3:]]
    shutil.copy(project / names[0], project / names[0].replace("img", "copy"))
    rows += [rows[3].replace("img", "copy"), rows[3].replace("img", "gone")]
    (project / "CollectedData.csv").write_text("\n".join(rows) + "\n")
    sets = [f"{name},{'train' if place < 8 else 'validation'}" for place, name in enumerate(names)]
    sets += [f"{names[0].replace('img', 'copy')},validation"]
    (project / "sets.csv").write_text("\n".join(["path,set", *sets]) + "\n")
    options = {"data__split": "sets.csv", "data__on_bad_frame": "skip", "log__profile_steps": "30:40"}
    config = make_config(project, Path("run"), train__steps=0, train__epochs=7, **options)
    before, compiled = files_in(tmp_path).keys() | {"experiment.py"}, []
    monkeypatch.setattr("jaxpose.training.compiled_run.phase", lambda title: compiled.append(title) or phase(title))
    assert call(config, tmp_path, "--dry_run") == 0
    shown = capsys.readouterr().out
    assert compiled == ["compiling the training step"] and "--dry_run=memory finds the largest one" in shown
    # What the report on the data has is not said again at the end.
    for part in ("validation frames has the same image as a training frame", "gone", "cannot be used"):
        assert shown.count(part) == 1, (part, shown)
    assert "rows of" not in shown
    for part in ("run folder   run: would start\n", "14 steps; an epoch is 2", "81,664 parameters",
                 "log.profile_steps=30:40 begins after the last step"):  # fmt: skip
        assert part in shown
    row = next(line.split() for line in shown.splitlines() if line.startswith("step "))
    assert float(row[row.index("MiB") - 1]) > 0 and float(row[row.index("GFLOP") - 1]) > 0
    assert files_in(tmp_path).keys() == before


@pytest.mark.parametrize("split", ["frame", "moment", "video", "sets.csv"])
def test_a_dry_run_of_the_data_says_how_to_get_a_test_set(
    split: str, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    own = shutil.copytree(project, tmp_path / "own")
    names = pd.read_csv(own / "CollectedData.csv", header=[0, 1, 2], index_col=0).index
    rows = [f"{name},{'train' if place else 'validation'}\n" for place, name in enumerate(names)]
    (own / "sets.csv").write_text("path,set\n" + "".join(rows))
    shares: dict[str, Any] = {"data__train_share": 0.7, "data__val_share": 0.3}
    assert call(make_config(own, tmp_path / "run", data__split=split, **shares), tmp_path, "--dry_run=data") == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("test ")]
    assert "no test set, so no error is measured on frames that did not choose the checkpoint: " in row
    advice = {
        "frame": "data.train_share=0.7 data.val_share=0.1 leave 5 frames for it",
        "moment": "data.train_share=0.7 data.val_share=0.1 leave about 5 frames for it",
        "video": "data.train_share=0.8 data.val_share=0.1",
        "sets.csv": "some frames the set test in ",
    }
    assert advice[split] in row
    asked: dict[str, Any] = {"data__train_share": 0.7, "data__val_share": 0.1}
    assert call(make_config(own, tmp_path / "run", data__split="frame", **asked), tmp_path, "--dry_run=data") == 0
    assert "no test set" not in capsys.readouterr().out
    labels = (own / "CollectedData.csv").read_text().splitlines(keepends=True)
    (own / "CollectedData.csv").write_text("".join(labels[:11]))
    assert call(make_config(own, tmp_path / "run", data__split="frame", **asked), tmp_path, "--dry_run=data") == 0
    assert "a test set has at least 5 frames, too many to take from 8: label more frames" in capsys.readouterr().out


def spoil(project: Path, folder: Path) -> Path:
    """A copy of the project with two bad rows, empty cells, cells that are not to be used, and a split of its own."""
    project = shutil.copytree(project, folder / "spoilt")
    labels = pd.read_csv(project / "CollectedData.csv", header=[0, 1, 2], index_col=0)
    images = list(labels.index)
    labels.loc[images[0], ("synthetic", "neck", ["x", "y"])] = np.nan
    labels["synthetic", "nose", "visible"] = 2
    # In frames that validate: places that mean nothing.
    labels.loc[images[6:9], ("synthetic", "nose", "x")] = 3.0
    labels.loc[images[6:9], ("synthetic", "nose", "visible")] = 0
    # The last rows: an image that is gone, and one whose checksums are right, but half of its pixels are missing.
    labels.loc["cut.png"] = labels.iloc[0]
    (project / "cut.png").write_bytes(cut((project / images[0]).read_bytes(), 0.5))
    labels.to_csv(project / "CollectedData.csv")
    (project / images[17]).unlink()
    sets = ["train"] * 6 + ["validation"] * 6 + ["test"] * 6
    (project / "sets.csv").write_text("path,set\n" + "".join(f"{i},{s}\n" for i, s in zip(images, sets, strict=True)))
    return project


def test_bad_frames_crop_stretch_and_a_split_by_file_from_another_thread(project: Path, tmp_path: Path):
    project, run = spoil(project, tmp_path), tmp_path / "run"
    config = make_config(project, run, data__split="sets.csv", data__on_bad_frame="skip", data__missing="not_visible",
                         data__resize="stretch", data__crop_px=(4, 0, 60, 64), train__steps=0, train__epochs=2,
                         train__val_every_epochs=1)  # fmt: skip
    given = copy.deepcopy(config)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    summaries: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: summaries.append(train(config)))
    thread.start()
    while thread.is_alive():
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
        thread.join(0.05)
    assert summaries[0]["steps"] == 4 and config == given
    log = log_of(run)
    assert f"2 of 19 rows of {project}/CollectedData.csv are left out:" in log
    assert "CollectedData.csv:22: cut.png: the image does not decode" in log
    assert "CollectedData.csv:21: labeled-data/session02/img00000027.png does not exist" in log
    assert "6 train, 6 validation, 5 test" in log and "(resize: stretch)" in log
    lines = metrics_of(run)
    assert [line["step"] for line in lines if "val_loss" in line] == [2, 4]
    # An error is counted where something is labelled, and in pixels of the frame.
    predicted = pd.read_csv(run / "predictions.csv", header=[0, 1, 2], index_col=0)["heatmap_tracker"]
    labels = pd.read_csv(project / "CollectedData.csv", header=[0, 1, 2], index_col=0)["synthetic"]
    rows = list(labels.index[6:12])
    names = list(dict.fromkeys(labels.columns.get_level_values(0)))
    points, truth = (
        np.stack([t.loc[rows, n][["x", "y"]].to_numpy(np.float64) for n in names], 1) for t in (predicted, labels)
    )
    errors_px = np.linalg.norm(points - truth, axis=-1)
    errors_px[:3, names.index("nose")] = np.nan
    best = min((line for line in lines if "val_loss" in line), key=lambda line: line["val_loss"])
    assert best["val_mean_px_error"] == pytest.approx(np.nanmean(errors_px), rel=1e-4)
    assert summaries[0]["sets"]["validation"]["labelled_points"] == 39


def test_split_of_a_run_keeps_its_rows_and_nothing_to_validate_is_no_error(whole: Path, project: Path, tmp_path: Path):
    """The rows of `whole` keep their sets, as far as they are still there: those that validated are not."""
    more = shutil.copytree(project, tmp_path / "project")
    labels = pd.read_csv(more / "CollectedData.csv", header=[0, 1, 2], index_col=0)
    table = pd.read_csv(whole / "split.csv", index_col="path")["set"]
    labels = labels[(table.loc[labels.index] != "validation").to_numpy()]
    labels.to_csv(more / "CollectedData.csv")
    run = tmp_path / "run"
    summary = train(make_config(more, run, data__split=str(whole), train__steps=3))
    sets = pd.read_csv(run / "split.csv", index_col="path")["set"]
    assert sets.equals(table.loc[labels.index])
    assert (summary["steps"], summary["best_step"]) == (3, 3) and "validation" not in summary["sets"]
    assert "no validation frames: nothing is measured during training, and the last weights are kept" in log_of(run)
    assert "best weights: step 3 (the last step)" in log_of(run)
    assert not any("val_loss" in line for line in metrics_of(run))


@pytest.mark.slow
def test_settings_of_the_process_change_no_number_and_stay_as_they_were(whole: Path, project: Path, tmp_path: Path):
    others = {
        "jax_enable_x64": True,
        "jax_threefry_partitionable": False,
        "jax_random_seed_offset": 5,
        "jax_default_prng_impl": "rbg",
        "jax_default_matmul_precision": "bfloat16",
        "jax_softmax_custom_jvp": True,
        "jax_disable_jit": True,
        "jax_debug_nans": True,
    }
    frames = np.full((2, 64, 64, 3), 90, np.uint8)
    expected = load(whole, devices=1).predict(frames)
    before = {name: jax.config.values[name] for name in others}
    for name, value in others.items():
        jax.config.update(name, value)
    forget_programs()
    try:
        train(make_config(project, tmp_path / "run", train__steps=2, log__tensorboard=False))
        found = load(whole, devices=1).predict(frames)
        assert {name: jax.config.values[name] for name in others} == others
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    losses = [[line["loss"] for line in metrics_of(run) if "loss" in line][:2] for run in (whole, tmp_path / "run")]
    assert losses[0] == losses[1] and len(losses[0]) == 2
