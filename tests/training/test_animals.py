"""Training on boxes around several animals, through the verbs, from the labels to the report."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxpose import load
from jaxpose.check.__main__ import main as check
from jaxpose.convert import main as convert
from jaxpose.crop import main as crop
from jaxpose.errors import UserError
from jaxpose.export.__main__ import main as export
from jaxpose.predict import main as predict
from jaxpose.prediction.evaluation import evaluate as evaluate_run
from jaxpose.run.load import read_run_config
from jaxpose.suggest import main as suggest
from tests.several_animals import IMAGES, csv_project
from tests.small_run import assert_same_run, call, log_of, make_config, train

CHANGES = {"data__split": "frame", "train__steps": 4, "log__report": True}


@pytest.fixture(scope="module")
def animals_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on two animals; copy it before you change it."""
    folder = tmp_path_factory.mktemp("animals")
    train(make_config(csv_project(folder / "mice"), folder / "run", **CHANGES))
    return folder / "run"


def test_the_order_of_the_animals_changes_no_bit(animals_run: Path, tmp_path: Path) -> None:
    project = csv_project(tmp_path / "mice", (1, 0))
    train(make_config(project, tmp_path / "run", **CHANGES))
    for part in ("", "finder"):
        assert_same_run(animals_run / part, tmp_path / "run" / part)


def test_tables_have_a_row_for_each_animal_in_pixels_of_the_frame(animals_run: Path) -> None:
    predicted = pd.read_csv(animals_run / "predictions.csv", header=[0, 1, 2], index_col=0)
    assert len(predicted) == 21 and [IMAGES[0] + "#1", IMAGES[0] + "#2"] == predicted.index[:2].tolist()
    # The animals are about 55 px apart, and a box reaches 16 px to each side.
    x = predicted.xs("x", axis=1, level=2).iloc[:2].mean(axis=1)
    assert x.iloc[1] - x.iloc[0] > 20
    config = read_run_config(animals_run)
    assert (config.data.animals, config.data.body_size_px) == (2, 20.0)
    assert (animals_run / "report.html").is_file()
    assert "animals" in log_of(animals_run) and IMAGES[0] in (animals_run / "split.csv").read_text()


def test_evaluate_gives_the_figures_of_the_training(animals_run: Path, tmp_path: Path) -> None:
    again = evaluate_run(animals_run, out=tmp_path / "again")
    first = json.loads((animals_run / "evaluation.json").read_text())["sets"]
    assert {name: one["mean_px_error"] for name, one in again.items()} == {
        name: one["mean_px_error"] for name, one in first.items()
    }
    assert sum(one["frames"] for one in again.values()) == 21


def test_a_finished_run_is_the_same_run_again(
    animals_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(animals_run, tmp_path / "run")
    config = make_config(Path(read_run_config(run).data.project), run, **CHANGES)
    assert call(config, tmp_path) == 0
    assert "finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        (export, ["--run", "{run}", "--out", "a.onnx"]),
        (crop, ["--run", "{run}", "--out", "boxes"]),
        (suggest, ["a.mp4", "--run", "{run}", "--out", "none"]),
    ],
)
def test_what_needs_one_network_is_refused(
    animals_run: Path, capsys: pytest.CaptureFixture[str], verb: Callable, arguments: list[str]
) -> None:
    code = verb([text.format(run=animals_run) for text in arguments])
    assert code == 2 and "was trained on several animals (data.animals=2)" in capsys.readouterr().err


def test_a_run_without_its_finder_says_how_to_train_one(
    animals_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(animals_run, tmp_path / "run")
    shutil.rmtree(run / "finder")
    refusal = f"has no finder: train one with jaxpose train PROJECT model.kind=finder out={run / 'finder'}"
    assert predict(["--run", str(run), "video.mp4"]) == 2
    assert refusal in capsys.readouterr().err
    network = load(run, batch_size=1, is_compiled=False)
    with pytest.raises(UserError, match="RUN was trained on boxes .* and has no finder: train one with jaxpose train"):
        network.predict(np.zeros((64, 96, 3), np.uint8))


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        (suggest, ["{project}", "--project", "{project}", "--out", "{out}"]),
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
    assert "20 usable frames; 1 row is refused" in capsys.readouterr().out
    assert "CollectedData.csv:5 (male)" in (tmp_path / "page.csv").read_text()


def test_a_run_on_one_animal_refuses_labels_of_several(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has up to 2 animals in an image, and the run was trained on images with one"):
        evaluate_run(whole, project=str(csv_project(tmp_path / "mice")), out=tmp_path / "out")
