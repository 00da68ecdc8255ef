"""The verb: a run and its project as a page; what is missing is said, and no failure of the page fails a run."""

import dataclasses
import re
import shlex
import shutil
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpose import train as verb
from jaxpose.data import dataset
from jaxpose.files import write_atomic
from jaxpose.formats.project import read_project
from jaxpose.report import writing
from jaxpose.report.__main__ import main
from jaxpose.report.errors import worst_rows
from jaxpose.report.facts import read_facts, read_labels
from jaxpose.report.writing import first_samples
from jaxpose.run.identity import read_config, write_config
from jaxpose.run.paths import CONFIG_FILE
from tests.logged import logged


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained_run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))


def test_a_training_ends_with_its_report(trained_run: Path) -> None:
    text = (trained_run / "report.html").read_text()
    errors = [error for error in re.findall(r"<p[^>]*>(.*?)</p>", text) if "cannot be read" in error]
    assert errors == [] and "Predictions are " in text
    # Six frames each validate and test, as pictures; six of the training as the network saw them.
    assert text.count('<svg class="frame"') == 18 and text.count("data:image/jpeg;base64,") == 18
    assert re.search(r"report: \S+/report\.html; open it in a browser", (trained_run / "train.log").read_text())


def test_a_report_that_fails_is_a_warning(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("by chance")

    monkeypatch.setattr(writing, "write_report", fail)
    folder = types.SimpleNamespace(path=run, is_ours=True)
    setup = types.SimpleNamespace(
        data=types.SimpleNamespace(project=None, has_labels=True), config=read_config(run / CONFIG_FILE)
    )
    with logged("jaxpose.train") as log:
        assert verb._write_report(folder, setup) is None  # pyright: ignore
    assert log.lines == [
        "warning: the report could not be written (ZeroDivisionError: by chance); to try again: jaxpose report "
        f"{shlex.quote(str(run))}"
    ]


def test_the_verb_writes_the_page_and_names_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "pages" / "page.html"
    assert main(["--run", str(run), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    first, line = printed.out.splitlines()
    assert first.endswith(f": writes the report of {run}")
    assert re.fullmatch(rf"report: {re.escape(str(out))} \([\d.]+ MB\); open it in a browser", line)
    assert "Learning curves" in out.read_text()


def test_what_is_missing_is_said(run: Path) -> None:
    config = read_config(run / "config.json")
    config.data.project = "/projects/gone"
    write_config(run / "config.json", config)
    for name in ("finished.json", "evaluation.json", "predictions.csv", "metrics.jsonl", "train.log"):
        (run / name).unlink()
    text = writing.write_report(run).read_text()
    for sentence in ("The errors of this run are not measured yet", "has no metrics.jsonl", "has no train.log",
                     "the project /projects/gone does not exist", "has no finished predictions of videos"):  # fmt: skip
        assert sentence in text, sentence


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--run", "nowhere"], "nowhere is not a run folder: it does not exist"),
        ([], "RUN is required; see python -m jaxpose.report --help"),
        (["--run", "a", "b"], "two runs are given, b and --run a: python -m jaxpose.report takes one run"),
        (["b", "--run=a"], "two runs are given, b and --run a: python -m jaxpose.report takes one run"),
        (["a", "b"], "unexpected argument 'b': python -m jaxpose.report takes RUN and flags; see --help"),
        (["--run"], "--run needs a value: --run RUN"),
    ],
)
def test_a_mistake_is_a_line_and_exit_code_2(argv: list[str], says: str, capsys: pytest.CaptureFixture) -> None:
    assert main(argv) == 2
    assert says in capsys.readouterr().err


def test_only_its_own_pages_are_replaced(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for name, says in (("labels.csv", "ends in .html"), ("folder.html", "ends in .html"), ("a.html", "did not write")):
        out = tmp_path / name
        out.mkdir() if name.startswith("folder") else out.write_text("mine")
        assert main(["--run", str(run), "--out", str(out)]) == 2
        assert says in capsys.readouterr().err and (out.is_dir() or out.read_text() == "mine")
    for _ in range(2):
        assert main(["--run", str(run), "--out", str(tmp_path / "page.html")]) == 0


def test_a_damaged_file_is_named(run: Path, capsys: pytest.CaptureFixture) -> None:
    write_atomic(run / "split.csv", (run / "split.csv").read_bytes().replace(b"train", b"test", 1))
    assert main(["--run", str(run)]) == 2
    assert "split.csv" in capsys.readouterr().err


def test_two_runs_are_compared_on_the_frames_that_neither_trained_on(run: Path, trained_run: Path) -> None:
    text = writing.write_report(run, other=trained_run).read_text()
    assert "Comparison with another run" in text and "+0.00" in text


def test_the_worst_frames_have_the_largest_mean_errors() -> None:
    errors_px = np.array([[1.0, np.nan], [np.nan, np.nan], [9.0, 3.0], [7.0, 7.0], [2.0, 2.0]])
    assert worst_rows(errors_px, np.array([0, 1, 2, 4]), 2).tolist() == [2, 4]


def test_the_samples_are_those_of_the_training(run: Path) -> None:
    facts = read_facts(run)
    config, project = dataset.prepare(facts.config, read_project(facts.config.data))
    data = dataset.load(project, dataclasses.replace(config, data=dataclasses.replace(config.data, split=str(run))))
    labels = read_labels(facts.config.data, None)
    seen, shown = first_samples(facts, labels)
    rows = [project.poses.frames.index(image) for image in seen.frames]
    assert set(rows) == set(data.rows("train").tolist()) and len(rows) == 6
    np.testing.assert_array_equal(shown, data.samples.pixels[rows, 0])
    np.testing.assert_allclose(seen.points_px, data.samples.poses.points_px[rows], atol=1e-3)
    # Every sample is mirrored.
    facts.config.augment.flip_p = 1.0
    mirrored, of_mirrored = first_samples(facts, labels)
    np.testing.assert_allclose(of_mirrored, shown[:, :, ::-1], atol=1)
    names = facts.config.data.keypoint_names
    alone = next(place for place, name in enumerate(names) if "left" not in name and "right" not in name)
    np.testing.assert_allclose(mirrored.points_px[:, 0, alone, 0], 63 - seen.points_px[:, 0, alone, 0], atol=1e-2)
