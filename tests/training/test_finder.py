"""Training a finder on whole frames with several animals, through the verbs, from the labels to the report."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxpose.data.synthetic import make_project
from jaxpose.errors import UserError
from jaxpose.predict import main as predict
from jaxpose.prediction.evaluation import evaluate as evaluate_run
from jaxpose.run.load import read_run_config
from tests.small_run import assert_same_run, log_of, make_config, metrics_of, train, train_and_stop

CHANGES = {
    "model__kind": "finder", "data__input_width_px": 0, "data__input_height_px": 0, "data__split": "frame",
    "augment__preset": "none", "optim__lr": 1e-2, "train__steps": 24, "train__batch_size": 6, "train__shards": 3,
    "train__val_every_epochs": 12.0, "train__save_every_steps": 12, "log__report": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos of 2 and 3 animals."""
    folder = tmp_path_factory.mktemp("group") / "project"
    return make_project(folder, videos=2, labelled_frames=8, video_frames=16, side_px=64, animals=3)


@pytest.fixture(scope="module")
def finder_run(group: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    run = tmp_path_factory.mktemp("finder") / "run"
    train(make_config(group, run, **CHANGES))
    return run


def test_it_trains_on_frames_and_validates_on_their_animals(finder_run: Path) -> None:
    steps = [line for line in metrics_of(finder_run) if "centre_loss" in line]
    # 6 frames train, with 2 or 3 animals each: each step has all of them.
    assert len(steps) == 24 and len({line["targets"] for line in steps}) == 1 and 12 < steps[0]["targets"] < 18
    validations = [line for line in metrics_of(finder_run) if "val_loss" in line]
    assert [line["step"] for line in validations] == [12, 24]
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
    assert found > 0 and "animals found" in log_of(finder_run) and (finder_run / "report.html").is_file()
    errors = pd.read_csv(finder_run / "predictions_pixel_error.csv", index_col=0)
    has_error = np.isfinite(errors.select_dtypes("number").to_numpy()).any(axis=1)
    assert np.count_nonzero(has_error) == found


def test_evaluate_gives_the_figures_of_the_training(finder_run: Path, tmp_path: Path) -> None:
    again = evaluate_run(finder_run, out=tmp_path / "again")
    first = json.loads((finder_run / "evaluation.json").read_text())["sets"]
    assert json.loads(json.dumps({name: one["animals"] for name, one in again.items()})) == {
        name: one["animals"] for name, one in first.items()
    }
    assert (tmp_path / "again" / "predictions.csv").read_bytes() == (finder_run / "predictions.csv").read_bytes()


def test_a_resumed_run_on_3_devices_is_the_run_on_1(group: Path, finder_run: Path, tmp_path: Path) -> None:
    config = make_config(group, tmp_path / "run", mesh__devices=3, **CHANGES)
    assert train_and_stop(config, after_step=14)["reason"] == "interrupted"
    train(config)
    assert_same_run(finder_run, tmp_path / "run")


def test_predict_refuses_a_finder_by_name(finder_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(["--run", str(finder_run), "video.mp4"]) == 2
    assert "is a finder of several animals (data.animals=3): give the run of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"model__head": "deconv"}, "model.kind is finder, and model.head is deconv; a finder needs pyramid"),
        ({"model__loss": "kl"}, "model.kind is finder, and model.loss is kl; a finder needs mse"),
        ({"model__sigma_cells": 2.0}, "model.kind is finder, and model.sigma_cells is 2"),
        ({"model__decoding": "lightning_pose"}, "model.kind is finder, and model.decoding is lightning_pose"),
        ({"data__animals": 1}, "model.kind is finder, and data.animals is 1"),
        ({"train__init_from": "RUN"}, "model.kind is finder, and train.init_from is "),
        ({"data__crop_px": (0, 0, 32, 32)}, "data.crop_px is .*, and frames have several animals"),
        ({"losses__temporal__weight": 1.0}, "losses.temporal is on, and frames have several animals"),
        ({"train__members": 2}, "train.members is 2, and frames have several animals"),
    ],
)
def test_what_a_finder_does_not_use_is_refused(group: Path, tmp_path: Path, changes: dict, refusal: str) -> None:
    with pytest.raises(UserError, match=refusal):
        train(make_config(group, tmp_path / "run", **CHANGES | changes))
    assert not (tmp_path / "run").exists()


def test_labels_of_one_animal_refuse_a_finder(whole: Path, tmp_path: Path) -> None:
    project = Path(read_run_config(whole).data.project)
    with pytest.raises(UserError, match="model.kind is finder, and no image of .* has several labelled animals"):
        train(make_config(project, tmp_path / "run", **CHANGES))


def test_another_network_does_not_start_from_the_head_of_a_finder(
    group: Path, finder_run: Path, tmp_path: Path
) -> None:
    config = make_config(group, tmp_path / "run", **CHANGES | {"model__kind": "heatmap"})
    config.train.init_from = str(finder_run)
    with pytest.raises(UserError, match="train.init_from is .*, a finder; give model.weights="):
        train(config)
