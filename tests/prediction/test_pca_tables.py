"""The tables of how far predictions lie from poses that occur, of images and of videos of several cameras."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxpose import predict
from jaxpose.config.losses import PcaMultiviewConfig, PcaSingleviewConfig
from jaxpose.files import sha256_of
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.pose.pca import Pca, errors_px, fit_multiview, fit_singleview
from jaxpose.prediction.project_videos import write_moment_errors
from jaxpose.run.identity import write_config
from jaxpose.run.load import read_run_config
from jaxpose.run.pca import save_subspaces
from tests.logged import logged

VIEWS = ("top", "left_top")
Capture = pytest.CaptureFixture[str]
SINGLE = fit_singleview(np.random.default_rng(1).normal(32, 9, (40, 7, 2)), range(7), PcaSingleviewConfig(components=3))
MULTI = fit_multiview(
    np.random.default_rng(2).normal(32, 9, (40, 14, 2)), (range(7), range(7, 14)), PcaMultiviewConfig()
)


@pytest.fixture
def run_with(trained_run: Path, tmp_path: Path) -> Callable[..., Path]:
    """A function that copies the run with these cameras and subspaces."""

    def copy(views: tuple[str, ...], subspaces: dict[str, Pca]) -> Path:
        run = Path(shutil.copytree(trained_run, tmp_path / "run"))
        config = read_run_config(run)
        config.data.views = views
        write_config(run / "config.json", config)
        save_subspaces(run, subspaces)
        return run

    return copy


def call(run: Path, *inputs: Path, overwrite: bool = False) -> int:
    more = ["--overwrite"] if overwrite else []
    return predict.main(["--run", str(run), "--devices", "1", *more, *map(str, inputs)])


def read_errors(file: Path) -> np.ndarray:
    return pd.read_csv(file, index_col=0).to_numpy()


def test_images_are_measured_as_videos_are(trained_run: Path, run_with: Callable[..., Path]) -> None:
    run = run_with((), {"pca_singleview": SINGLE})
    labelled = trained_run.parent / "project" / "labeled-data" / "session01"
    assert call(run, labelled) == 0
    folder = run / "image_preds" / "session01"
    names = {path.name for path in folder.iterdir()}
    assert names == {"predictions.csv", "predictions_pca_singleview_error.csv"}
    wanted = errors_px(SINGLE, read_predictions(folder / "predictions.csv").poses.points_px[:, 0])
    np.testing.assert_allclose(
        read_errors(folder / "predictions_pca_singleview_error.csv"), wanted, rtol=1e-3, atol=1e-3
    )


def test_moments_are_measured_once_every_view_of_a_session_is_there(
    trained_run: Path, run_with: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    run = run_with(VIEWS, {"pca_multiview": MULTI})
    videos = trained_run.parent / "project" / "videos"
    top, left = tmp_path / "s9_top.mp4", tmp_path / "s9_left_top.mp4"
    shutil.copy(videos / "session00.mp4", top)
    shutil.copy(videos / "session01.mp4", left)
    tables = [run / "video_preds" / f"s9_{view}.csv" for view in VIEWS]
    errors = [file.with_name(f"{file.stem}_pca_multiview_error.csv") for file in tables]

    assert call(run, left) == 0
    assert "session s9 has no pca_multiview errors: the view top is not predicted" in capsys.readouterr().err
    assert not any(file.exists() for file in errors)

    assert call(run, top, left) == 0
    assert "no pca_multiview errors" not in capsys.readouterr().err
    moments = np.concatenate([read_predictions(file).poses.points_px[:, 0] for file in tables], axis=1)
    wanted = errors_px(MULTI, moments)
    assert wanted.shape == (33, 14)
    for file, of_view in zip(errors, np.split(wanted, 2, axis=1), strict=True):
        np.testing.assert_allclose(read_errors(file), of_view, rtol=1e-3, atol=1e-3)

    # One view again, of which nothing is new: what was measured stays.
    assert call(run, top) == 0
    assert all(file.exists() for file in errors)

    # A view that fails: the errors of before are of other predictions.
    left.write_bytes(b"no video")
    assert call(run, top, left, overwrite=True) == 4
    assert "session s9 has no pca_multiview errors: the view left_top is not predicted" in capsys.readouterr().err
    assert not any(file.exists() for file in errors)


def test_views_of_unequal_length_are_told(run_with: Callable[..., Path], trained_run: Path, capsys: Capture) -> None:
    run = run_with(VIEWS, {"pca_multiview": MULTI})
    predictor = predict.load(run, devices=1)
    folder = run / "video_preds"
    folder.mkdir()
    rows = (trained_run / "predictions.csv").read_text().splitlines(keepends=True)
    tables = [folder / f"s9_{view}.csv" for view in VIEWS]
    for table, count in zip(tables, (9, 7), strict=True):
        table.write_text("".join(rows[: 3 + count]))
    with logged("jaxpose.prediction") as log:
        write_moment_errors(predictor, {table: sha256_of(table)[:16] for table in tables})
    assert log.lines == [
        "warning: session s9 has no pca_multiview errors: its views differ in length: top 9, left_top 7"
    ]
