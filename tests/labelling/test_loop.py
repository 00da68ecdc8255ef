"""The whole loop through the verbs: a trained run, predict, suggest, check, labels merge, train, compare."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose import labels, predict, suggest
from jaxpose.check.__main__ import main as check
from jaxpose.compare import __main__ as compare
from jaxpose.run.identity import read_config
from tests.shared_runs import move_run
from tests.small_run import call

FRAMES = 6


def _table(file: Path) -> pd.DataFrame:
    return pd.read_csv(file, header=[0, 1, 2], index_col=0)


def _sets(run: Path) -> dict[str, str]:
    rows = pd.read_csv(run / "split.csv")
    return dict(zip(rows["path"], rows["set"], strict=True))


def _errors_px(run: Path, images: list[str]) -> np.ndarray:
    table = pd.read_csv(run / "predictions_pixel_error.csv", index_col=0)
    return table.loc[images].drop(columns="set").to_numpy(float)


def _correct(project: Path, new: Path) -> list[str]:
    """Puts the true places into the new label file, as a person would, and returns its images."""
    table = _table(new / "CollectedData.csv")
    for image in table.index:
        path = Path(image)
        truth = _table(project / "ground_truth" / f"{path.parent.name}.csv")
        table.loc[image] = truth.iloc[int(path.stem.removeprefix("img"))].to_numpy()
    table.to_csv(new / "CollectedData.csv")
    return list(table.index)


@pytest.mark.slow
def test_suggested_frames_train_the_next_run(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = move_run(trained_run.parent, tmp_path)
    project, new, again = tmp_path / "project", tmp_path / "round2", tmp_path / "again"
    videos = sorted(map(str, (project / "videos").glob("*.mp4")))
    assert predict.main(["--run", str(run), *videos, "--devices", "1"]) == 0
    # The videos are those of the project.
    assert suggest.main(["--run", str(run), "--frames", str(FRAMES), "--apart", "4", "--out", str(new)]) == 0
    known = _table(project / "CollectedData.csv").index
    images = _correct(project, new)
    assert len(images) == FRAMES and not set(images) & set(known)
    assert check([str(new), "--out", str(tmp_path / "check.html")]) == 0
    capsys.readouterr()
    assert labels.main(["merge", str(new), "--project", str(project)]) == 0
    assert f"CollectedData.csv: {FRAMES} new rows" in (shown := capsys.readouterr().out) and "exactly as" not in shown
    train = f"train on them: python -m jaxpose.train {project}"
    assert shown.splitlines()[-1] == f"{train} data.split={run} train.init_from={run}"
    # In its folder, the run is named from there; of an ensemble, no network is the one to start from.
    monkeypatch.chdir(tmp_path)
    (run / "members").mkdir()
    assert labels.main(["merge", "round2", "--project", str(project)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{train} data.split={run.relative_to(tmp_path)}"
    (run / "members").rmdir()
    before = read_config(run / "config.json")
    config = dataclasses.replace(
        before,
        out=str(again),
        data=dataclasses.replace(before.data, split=str(run), keypoint_names=()),
        train=dataclasses.replace(before.train, init_from=str(run), steps=2),
    )
    assert isinstance(config, c.Config) and call(config, tmp_path) == 0
    old_sets, sets = _sets(run), _sets(again)
    assert all(sets[image] == old_sets[image] for image in known)
    assert set(images) <= sets.keys() and "train" in {sets[image] for image in images}
    trained = capsys.readouterr().out
    assert compare.main([str(run), str(again)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("all "))
    # On the frames that trained neither run.
    unseen = [image for image in known if old_sets[image] != "train"]
    errors = [_errors_px(folder, unseen) for folder in (run, again)]
    assert line.split()[1] == str(len(unseen)) == "12"
    first, last = (f"{of_run.mean():.2f} px" for of_run in errors)
    assert (
        f"compared with the parent run {run} on 12 frames that neither run was trained on, 6 of them of a vali"
        in trained
    )
    assert f": mean error {first} before, {last} now (" in trained
    changes = np.abs(np.subtract(*(of_run.reshape(12, -1).mean(axis=1) for of_run in errors)))
    assert f"\nframes that changed most: {unseen[int(changes.argmax())]} (" in trained
    assert all(f" {of_run.mean():.2f} (" in line for of_run in errors)
    assert errors[0].mean() != errors[1].mean() and np.isfinite(_errors_px(again, images)).all()
