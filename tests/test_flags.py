"""Flags that several verbs share: the run, and negative numbers behind a flag."""

import os
import re
import shutil
from pathlib import Path

import pytest

from jaxpose import convert, labels, load, suggest, watch
from jaxpose.check import __main__ as check
from jaxpose.compare import __main__ as compare
from jaxpose.config.arguments import Arguments
from jaxpose.entry import evaluate_arguments, split_runs
from jaxpose.errors import UserError
from jaxpose.init import __main__ as init
from jaxpose.report import __main__ as report
from jaxpose.run.identity import refuse_no_run
from jaxpose.run.paths import run_folder
from tests.test_entry import verb_without

Capture = pytest.CaptureFixture[str]


def make_run(folder: Path, started_s: int, is_finished: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    os.utime(folder / "config.json", (started_s, started_s))
    if is_finished:
        (folder / "finished.json").write_text("{}")
    return folder


def test_a_folder_of_runs_stands_for_its_newest_finished_run(tmp_path: Path, capsys: Capture) -> None:
    runs = tmp_path / "runs"
    newest = make_run(runs / "aa", 30)
    make_run(runs / "bb", 20)
    make_run(runs / "cc", 40, is_finished=False)
    (runs / "notes").mkdir()
    assert split_runs([str(runs), str(runs / "bb")], ["x.mp4"]) == ([newest, runs / "bb"], ["x.mp4"])
    assert capsys.readouterr().out == f"{runs}: the newest run is {newest}\n"
    assert run_folder(str(runs / "bb")) == str(runs / "bb") and capsys.readouterr().out == ""
    # A folder without a run stays as it is: the verb says what is wrong with it.
    assert run_folder(str(tmp_path / "absent")) == str(tmp_path / "absent")
    # So does a folder of projects with runs.
    assert run_folder(str(tmp_path)) == str(tmp_path)
    with pytest.raises(UserError, match=f"it has no config.json; there are {newest}, {runs / 'bb'}, "):
        refuse_no_run(tmp_path)
    unfinished = make_run(tmp_path / "new" / "a", 1, is_finished=False)
    assert run_folder(str(tmp_path / "new")) == str(unfinished)


def test_every_verb_and_load_take_a_folder_of_runs(trained_run: Path, tmp_path: Path, capsys: Capture) -> None:
    """The first folder has an older run, which is no run at all; a training that goes on is only for jaxpose watch."""
    for name in ("first", "second"):
        make_run(tmp_path / name / "older", 1)
        shutil.copytree(trained_run, tmp_path / name / "newest", ignore=shutil.ignore_patterns("checkpoints"))
    first, second, out = (str(tmp_path / name) for name in ("first", "second", "out"))
    running = make_run(tmp_path / "second" / "running", 2_000_000_000, is_finished=False)
    starts = {
        "compare": lambda: compare.main([first, second]),
        "report": lambda: report.main([first, "--compare", second, "--out", f"{out}.html"]),
        "convert": lambda: convert.main(["predictions", first, "--to", "csv", "--out", out]),
        "suggest": lambda: suggest.main(["--run", first, second, "--out", f"{out}s"]),
        "load": lambda: load(first, is_compiled=False),
    }
    says = [f"{folder}: the newest run is {folder}/newest\n" for folder in (first, second)]
    for verb, start in starts.items():
        start()
        out_text = capsys.readouterr().out
        assert [line in out_text for line in says] == [True, verb in ("compare", "report", "suggest")], (verb, out_text)
    assert watch.main([second]) == 2
    out_text, err = capsys.readouterr()
    assert out_text == f"{second}: the newest run is {running}\n" and f"{running}/config.json" in err
    assert watch.main([first]) == 0
    assert re.match(rf"{first}: the newest run is {first}/newest\n.* finished\n", capsys.readouterr().out)


def test_a_project_that_does_not_exist_is_one_sentence_in_every_verb(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(project.parent)
    place = project.parent / "projekt"
    out = str(tmp_path / "x.html")
    for main, arguments, name in (
        (check.main, ["projekt", "--out", out], "PROJECT"),
        (check.main, ["project", "--like", "projekt", "--out", out], "--like"),
        (init.main, ["projekt", "--out", str(tmp_path / "x.py")], "PROJECT"),
        (convert.main, ["labels", "projekt", "--to", "csv", "--out", str(tmp_path / "x.csv")], "PROJECT"),
        (suggest.main, ["--project", "projekt", "--out", str(tmp_path / "new")], "--project"),
        (labels.main, ["merge", "new", "--project", "projekt"], "--project"),
    ):
        assert main(arguments) == 2
        says = f"{name} is 'projekt', but {place} does not exist; did you mean {project}?\n"
        assert capsys.readouterr().err.endswith(says)
    for verb, *more in (("train", "--dry_run=data"), ("pretrain",)):
        code, _, err = verb_without(("jax",), f"jaxpose.{verb}", "projekt", *more)
        says = f"PROJECT is 'projekt', but {place} does not exist; did you mean {project}?\n"
        assert (code, err) == (2, f"jaxpose.{verb}: {says}")


def test_a_run_is_given_with_its_flag_or_without(tmp_path: Path) -> None:
    run = str(make_run(tmp_path / "run", 1))
    for argv in ([run, "--out", "x"], ["--run", run, "--out", "x"], ["--out", "x", run], [f"--run={run}", "--out=x"]):
        given = evaluate_arguments().read(argv)
        assert (given.run, given.out) == (run, "x")
    assert evaluate_arguments().read([run, "--out=x", "--out", "y"]).out == "y"
    with pytest.raises(UserError, match="two runs are given, a and --run b: "):
        evaluate_arguments().read(["--run", "b", "a"])


@pytest.mark.parametrize("value", ["-1", "-0.5", "-.5", "-1e-3", "-2.", "-1,5"])
def test_a_negative_number_behind_a_flag_is_its_value(value: str) -> None:
    arguments = Arguments("jaxpose.doctor", "Checks.")
    arguments.add_argument("--shift")
    arguments.add_argument("--all", action="store_true")
    assert arguments.read(["--shift", value]).shift == arguments.read([f"--shift={value}"]).shift == value
    with pytest.raises(UserError, match=f"unexpected argument '{re.escape(value)}'"):
        arguments.read(["--all", value])
    with pytest.raises(UserError, match="there is no flag -x"):
        arguments.read(["--shift", "-x"])


def test_every_mistake_in_the_arguments_has_its_line(capsys: Capture) -> None:
    given = ["labels", "a", "--to", "h5", "--ou=x", "--overwrite=1", "data.lables=x", "--scorer"]
    assert convert.main(given) == 2
    assert [line.removeprefix("jaxpose.convert labels: ") for line in capsys.readouterr().err.splitlines()] == [
        "there is no option data.lables; did you mean data.labels?",
        "--to is h5; it must be one of csv, deeplabcut, coco, slp, nwb",
        "there is no flag --ou; did you mean --out?",
        "--overwrite takes no value, but was given 1",
        "--scorer needs a value: --scorer NAME",
    ]
    assert convert.main(["predictions", "a", "b", "--session_start=x"]) == 2
    assert [line.removeprefix("jaxpose.convert predictions: ") for line in capsys.readouterr().err.splitlines()] == [
        "--to is required; see python -m jaxpose.convert predictions --help",
        "--out is required; see python -m jaxpose.convert predictions --help",
        "unexpected argument 'b': python -m jaxpose.convert predictions takes TABLE_OR_RUN and flags; see --help",
    ]
    assert suggest.main(["--frames", "x", "--apart=y", "--frames=3"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "jaxpose.suggest: --frames is x; it must be a whole number",
        "jaxpose.suggest: --apart is y; it must be a whole number",
    ]
