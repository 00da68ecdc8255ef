"""Flags that several verbs share: the run, and negative numbers behind a flag."""

import os
from pathlib import Path

import pytest

from jaxpose.config.arguments import Arguments
from jaxpose.errors import UserError
from jaxpose.flags import evaluate_arguments, split_runs
from jaxpose.run.identity import refuse_no_run
from jaxpose.run.run_argument import run_folder

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
    assert split_runs([str(runs), str(runs / "bb")], ["x.mp4"], "") == ([newest, runs / "bb"], ["x.mp4"])
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


def test_a_run_is_given_with_its_flag_or_without(tmp_path: Path) -> None:
    run = str(make_run(tmp_path / "run", 1))
    for argv in ([run, "--out", "x"], ["--run", run, "--out", "x"], ["--out", "x", run], [f"--run={run}", "--out=x"]):
        given = evaluate_arguments().read(argv)
        assert (given.run, given.out) == (run, "x")
    with pytest.raises(UserError, match="two runs are given, a and --run b: "):
        evaluate_arguments().read(["--run", "b", "a"])


@pytest.mark.parametrize("value", ["-1", "-0.5", "-.5", "-1e-3", "-2.", "-1,5"])
def test_a_negative_number_behind_a_flag_is_its_value(value: str) -> None:
    arguments = Arguments("jaxpose.doctor", "Checks.")
    arguments.add_argument("--shift")
    arguments.add_argument("--all", action="store_true")
    assert arguments.read(["--shift", value]).shift == arguments.read([f"--shift={value}"]).shift == value
    with pytest.raises(UserError, match=f"there is no flag {value}"):
        arguments.read(["--all", value])
    with pytest.raises(UserError, match="there is no flag -x"):
        arguments.read(["--shift", "-x"])
