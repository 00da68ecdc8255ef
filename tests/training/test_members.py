"""Ensembles trained in one program: each member is the run that trains it alone, bit for bit, whatever happens."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose import load, predict, suggest
from jaxpose.checksums import read_json
from jaxpose.config import differing_keys
from jaxpose.errors import UserError
from jaxpose.report import __main__ as report
from jaxpose.run.identity import read_config
from tests.shared_runs import made_once
from tests.small_run import assert_same_run, last_step, log_of, make_config, metrics_of, train, train_and_stop

MEMBERS = 3
# Frames are equalised, so members do not even share these. All runs have one program.
OPTIONS: dict[str, Any] = {
    "train__steps": 10,
    "train__val_every_epochs": 2.5,
    "train__shards": 2,
    "train__seed": 5,
    "augment__preset": "dlc",
    "augment__move_p": 0.5,
    "augment__equalize_p": 0.5,
}

Capture = pytest.CaptureFixture[str]


def ensemble_config(project: Path, out: Path, **changes: Any) -> c.Config:
    return make_config(project, out, **(OPTIONS | {"train__members": MEMBERS} | changes))


def alone_config(project: Path, out: Path, number: int, **changes: Any) -> c.Config:
    return make_config(project, out, **(OPTIONS | {"train__seed": OPTIONS["train__seed"] + number} | changes))


def members_of(run: Path, count: int = MEMBERS) -> list[Path]:
    return [run / "members" / str(number) for number in range(count)]


@pytest.fixture(scope="module")
def ensemble(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        assert train(ensemble_config(project, folder / "run"))["exit_code"] == 0

    return made_once(tmp_path_factory, "ensemble", make) / "run"


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(0, marks=pytest.mark.full),
        pytest.param(1, marks=pytest.mark.full),
        pytest.param(MEMBERS - 1, marks=pytest.mark.slow),
    ],
)
def test_a_member_is_the_run_that_trains_it_alone(project: Path, ensemble: Path, tmp_path: Path, number: int) -> None:
    alone, member = tmp_path / "alone", members_of(ensemble)[number]
    train(alone_config(project, alone, number))
    assert_same_run(member, alone)
    assert (member / "evaluation.json").read_bytes() == (alone / "evaluation.json").read_bytes()
    assert not differing_keys(read_config(member / "config.json"), read_config(alone / "config.json"))
    assert read_json(member / "finished.json", "") == read_json(alone / "finished.json", "") | {"out": str(member)}


def test_the_ensemble_logs_the_means_of_its_members(ensemble: Path) -> None:
    of_members, of_ensemble = [metrics_of(member) for member in members_of(ensemble)], metrics_of(ensemble)
    assert [line["step"] for line in of_ensemble] == [line["step"] for line in of_members[0]]
    for name in ("loss", "val_mean_px_error"):
        means = np.mean([[line[name] for line in lines if name in line] for lines in of_members], axis=0)
        np.testing.assert_allclose([line[name] for line in of_ensemble if name in line], means, rtol=1e-12)
    assert "members     3 networks, side by side on one device" in log_of(ensemble)


def test_the_results_are_the_median_of_the_members(ensemble: Path) -> None:
    columns: dict[str, Any] = {"header": [0, 1, 2], "index_col": 0}
    tables = [pd.read_csv(member / "predictions.csv", **columns) for member in members_of(ensemble)]
    median, spread = (
        pd.read_csv(ensemble / name, **columns) for name in ("predictions.csv", "predictions_ensemble.csv")
    )
    assert list(median.index) == list(tables[0].index)
    points, of_members = (
        [table.drop(columns="set", level=0).to_numpy(float).reshape(len(median), -1, 3) for table in (median, *tables)][
            :1
        ],
        [table.drop(columns="set", level=0).to_numpy(float).reshape(len(median), -1, 3) for table in tables],
    )
    np.testing.assert_allclose(points[0][..., :2], np.median(of_members, axis=0)[..., :2], rtol=1e-6)
    np.testing.assert_allclose(points[0][..., 2], np.mean(of_members, axis=0)[..., 2], rtol=1e-6)
    variance = spread.to_numpy(float).reshape(len(median), -1, 4)[..., 2:]
    np.testing.assert_allclose(variance, np.var(of_members, axis=0)[..., :2], rtol=1e-3, atol=1e-6)
    about = json.loads((ensemble / "evaluation.json").read_text())
    errors = pd.read_csv(ensemble / "predictions_pixel_error.csv", index_col=0)
    test = errors[errors["set"] == "test"].drop(columns="set").to_numpy(float)
    assert about["sets"]["test"]["mean_px_error"] == pytest.approx(np.nanmean(test), rel=1e-5)
    own = [json.loads((member / "evaluation.json").read_text())["sets"] for member in members_of(ensemble)]
    assert about["ensemble"]["members_px_error"]["test"] == pytest.approx(
        [sets["test"]["mean_px_error"] for sets in own], rel=1e-6
    )
    assert json.loads((ensemble / "calibration.json").read_text())["points"] == 42


@pytest.mark.slow
def test_a_stopped_ensemble_resumes_to_the_same_bits_though_a_member_is_behind(
    project: Path, ensemble: Path, tmp_path: Path
) -> None:
    config = ensemble_config(project, tmp_path / "run", train__save_every_steps=3)
    summary = train_and_stop(config, 4)
    assert (summary["exit_code"], summary["reason"]) == (85, "interrupted")
    # As after a kill between the saves of two members.
    saved = sorted(int(entry.name) for entry in (members_of(tmp_path / "run")[1] / "checkpoints").iterdir())
    shutil.rmtree(members_of(tmp_path / "run")[1] / "checkpoints" / str(saved[-1]))
    assert train(config)["exit_code"] == 0
    # The last one is as the first.
    for member, whole in zip(members_of(tmp_path / "run")[:2], members_of(ensemble)[:2], strict=True):
        assert_same_run(member, whole)
    assert (tmp_path / "run" / "predictions.csv").read_bytes() == (ensemble / "predictions.csv").read_bytes()
    assert f"resumes from step {saved[-2]}" in log_of(members_of(tmp_path / "run")[1])
    assert f"resumes from step {saved[-1]}" in log_of(members_of(tmp_path / "run")[0])


@pytest.mark.slow
def test_members_stop_early_each_for_itself(project: Path, tmp_path: Path) -> None:
    options = {"train__early_stop_patience": 1, "train__val_every_epochs": 1.0, "train__monitor": "loss"}
    run = tmp_path / "run"
    assert train(ensemble_config(project, run, **options))["exit_code"] == 0
    steps = [last_step(member) for member in members_of(run)]
    assert len(set(steps)) > 1, "the members stopped at the same step: this test needs other seeds"
    train(alone_config(project, tmp_path / "alone", int(np.argmin(steps)), **options))
    assert_same_run(members_of(run)[int(np.argmin(steps))], tmp_path / "alone")
    assert read_json(run / "finished.json", "")["reason"] == "early stop"


@pytest.mark.slow
def test_a_finished_ensemble_is_reported_and_another_one_is_refused(
    project: Path, ensemble: Path, tmp_path: Path, capsys: Capture
) -> None:
    run = shutil.copytree(ensemble, tmp_path / "run")
    assert train(ensemble_config(project, run))["steps"] == OPTIONS["train__steps"]
    assert "is finished; nothing to do" in capsys.readouterr().out
    with pytest.raises(UserError, match="train.members 3 -> 2"):
        train(ensemble_config(project, run, train__members=2))
    with pytest.raises(UserError, match="resume is never"):
        train(ensemble_config(project, run, resume="never"))
    (run / "members" / "2" / "mine.txt").write_text("a note")
    assert train(ensemble_config(project, run, train__members=2, resume="overwrite"))["exit_code"] == 0
    assert_same_run(members_of(run)[1], members_of(ensemble)[1])
    # What jaxpose did not write stays.
    assert [entry.name for entry in (run / "members" / "2").iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_a_verb_takes_an_ensemble_for_its_members(
    ensemble: Path, project: Path, tmp_path: Path, capsys: Capture
) -> None:
    run, video = shutil.copytree(ensemble, tmp_path / "run"), project / "videos" / "session00.mp4"
    flags = ["--devices", "1", "--batch_size", "8"]
    assert predict.main(["--run", str(run), str(video), *flags]) == 0
    columns: dict[str, Any] = {"header": [0, 1, 2], "index_col": 0}
    tables = [pd.read_csv(folder / "video_preds" / "session00.csv", **columns) for folder in (run, *members_of(run))]
    np.testing.assert_allclose(
        tables[0].to_numpy(float).reshape(33, -1, 3)[..., :2],
        np.median([table.to_numpy(float) for table in tables[1:]], axis=0).reshape(33, -1, 3)[..., :2],
    )
    out = tmp_path / "suggestions"
    # Where the members disagree depends on the processor, and 33 frames may not hold three that are further apart.
    assert suggest.main(["--run", str(run), str(video), "--frames", "3", "--apart", "1", "--out", str(out)]) == 0
    assert "session00: 3 frames" in capsys.readouterr().out
    assert report.main(["--run", str(run)]) == 0
    assert (run / "report.html").is_file()


def test_what_needs_one_network_names_a_member(ensemble: Path, project: Path, tmp_path: Path) -> None:
    named = f"an ensemble of 3 networks, but one network is needed: give one of them, such as {ensemble}/members/0"
    with pytest.raises(UserError, match=named):
        load(ensemble)
    with pytest.raises(UserError, match=named):
        train(make_config(project, tmp_path / "run", train__init_from=str(ensemble)))
    assert load(members_of(ensemble)[0], devices=1, is_compiled=False).weights_label.startswith("the weights of step")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log__remote_url": "memory://copies"}, "an ensemble .train.members > 1. has no remote copy"),
        ({"train__seed": 2**32 - 2}, "the last of 3 members has 4294967296; it must be below"),
    ],
)
def test_options_that_an_ensemble_cannot_have_are_refused(
    project: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        train(ensemble_config(project, tmp_path / "run", **options))
