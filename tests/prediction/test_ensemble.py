"""Predictions of several runs together, read as the Ensemble Kalman Smoother's commands read them."""

import re
import shlex
import shutil
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

from jaxpose import predict, suggest
from jaxpose.run.identity import write_config
from jaxpose.run.load import read_run_config
from jaxpose.run.weights import export_parameters, load_parameters

Capture = pytest.CaptureFixture[str]


def _member(trained: Path, folder: Path, seed: int, **data: object) -> Path:
    """The run with other weights, as if another seed had trained it."""
    run = shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
    parameters, notes = load_parameters(run / "best.safetensors")
    rng = np.random.default_rng(seed)

    def move(value: np.ndarray) -> np.ndarray:
        return value + (0.03 * rng.normal(size=value.shape)).astype(value.dtype)

    moved = jax.tree.map(move, parameters["params"])
    metadata = {name: value for name, value in notes.items() if name != "sha256"}
    export_parameters(run / "best.safetensors", parameters | {"params": moved}, metadata)
    config = read_run_config(run)
    config.train.seed, config.out = seed, str(run)
    for name, value in data.items():
        setattr(config.data, name, value)
    write_config(run / "config.json", config)
    return run


def _read(file: Path) -> pd.DataFrame:
    """As `eks` does: the first row of columns names the model, every keypoint has x, y and likelihood."""
    return pd.read_csv(file, header=[0, 1, 2], index_col=0)


def test_the_ensemble_is_the_median_and_the_variance_of_its_members(
    trained_run: Path, tmp_path: Path, capsys: Capture
) -> None:
    runs = [_member(trained_run, tmp_path / f"seed{seed}", seed) for seed in range(3)]
    video = trained_run.parent / "project" / "videos" / "session00.mp4"
    images = trained_run.parent / "project" / "labeled-data" / "session00"
    out, inputs = tmp_path / "ensemble", [str(video), str(images)]
    flags = ["--devices", "1", "--batch_size", "8", "--out", str(out), "--smooth", "kalman", "--labeled"]
    assert predict.main(["--run", *map(str, runs), *inputs, *flags]) == 0
    drawn = [file.relative_to(tmp_path) for file in tmp_path.rglob("*.mp4")]
    assert drawn == [Path("ensemble/labeled_videos/session00_labeled.mp4")]
    printed = capsys.readouterr().out
    command = re.search(r"eks singlecam --input-files (.+)", printed)
    assert command and [Path(file) for file in shlex.split(command[1])] == [
        run / "video_preds" / "session00.csv" for run in runs
    ]
    for place in ("video_preds/session00", "image_preds/session00/predictions"):
        members = [_read(run / f"{place}.csv") for run in runs]
        values = np.stack([member.to_numpy().reshape(len(member), -1, 3) for member in members])
        assert not np.allclose(values[0], values[1])
        table = _read(out / f"{place}.csv")
        assert list(table.columns.droplevel(0)) == list(members[0].columns.droplevel(0))
        assert table.index.equals(members[0].index)
        found = table.to_numpy().reshape(len(table), -1, 3)
        np.testing.assert_allclose(found[..., :2], np.median(values[..., :2], axis=0), rtol=1e-12)
        np.testing.assert_allclose(found[..., 2], values[..., 2].mean(axis=0), rtol=1e-12)
        spread = _read(out / f"{place}_ensemble.csv")
        names = list(dict.fromkeys(members[0].columns.get_level_values(1)))
        for k, name in enumerate(names):
            of_point = spread["ensemble_tracker"][name]
            for axis, coord in enumerate("xy"):
                np.testing.assert_allclose(of_point[f"{coord}_ens_median"], found[:, k, axis], rtol=1e-12)
                np.testing.assert_allclose(of_point[f"{coord}_ens_var"], values[..., k, axis].var(axis=0), atol=1e-9)
    # The ensemble of the video is smoothed, and not the tables of the runs.
    smoothed = out / "video_preds" / "session00_smoothed.csv"
    assert f"{smoothed}: kalman" in printed and len(_read(smoothed)) == len(_read(out / "video_preds/session00.csv"))
    assert not list(tmp_path.glob("seed*/**/*_smoothed.*")) and not list(out.glob("image_preds/**/*_smoothed.*"))
    # The tables of the runs are where jaxpose.suggest looks for them.
    suggested = tmp_path / "suggested"
    arguments = ["--run", *map(str, runs), str(video), "--frames", "2", "--out", str(suggested)]
    assert suggest.main(arguments) == 0 and len(pd.read_csv(suggested / "suggestions.csv")) == 2


def test_runs_that_do_not_fit_are_refused(trained_run: Path, tmp_path: Path, capsys: Capture) -> None:
    video = str(trained_run.parent / "project" / "videos" / "session00.mp4")
    names = read_run_config(trained_run).data.keypoint_names
    turned = _member(trained_run, tmp_path / "turned", 0, keypoint_names=names[::-1])
    other = _member(trained_run, tmp_path / "other", 0, keypoint_names=("snout", *names[1:]))
    first, again = str(trained_run), str(trained_run.parent / "run")
    for arguments, message in (
        (["--run", first, str(turned), video], f"{turned} has the keypoints of {first} in a different order"),
        (
            ["--run", first, str(other), video],
            f"different keypoints: only {first} has {names[0]}, only {other} has snout",
        ),
        (["--run", first, again, video], "--run names a run twice"),
        (["--run", first, "--run", again, video], "--run names a run twice"),
        (["--run", first, str(_member(trained_run, tmp_path / "b", 1)), video, "--out", first], "which holds a run or"),
        (["--run", first, str(other)], "FRAMES_OR_VIDEO is required; see python -m jaxpose.predict --help"),
    ):
        assert predict.main(arguments) == 2, arguments
        assert message in capsys.readouterr().err
    assert not (trained_run / "video_preds").exists()
