"""`model.views_agree` through the verbs: what training writes, `load`, and an exported file decode alike."""

import dataclasses
from pathlib import Path

import cv2
import numpy as np
import pytest

from jaxpose.errors import UserError
from jaxpose.export.command import export
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.predict import load
from jaxpose.run.identity import read_config, write_config
from jaxpose.run.paths import CONFIG_FILE, SUBSPACES_FILE
from tests.small_run import copy_of, make_config, train

VIEWS = ("left_front_paw,left_hind_paw", "right_front_paw,right_hind_paw")


@pytest.fixture(scope="module")
def agreeing(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of few steps; the paws of a side stand for a view."""
    options = {"losses__pca_multiview__views": VIEWS, "model__views_agree": True, "train__steps": 6}
    run = tmp_path_factory.mktemp("agreeing") / "run"
    assert train(make_config(project, run, **options))["exit_code"] == 0
    return run


def predicted(run: Path, project: Path) -> tuple[np.ndarray, np.ndarray]:
    """The keypoints that the loaded run predicts on its labelled frames, and those in its table."""
    table = read_predictions(run / "predictions.csv")
    frames = []
    for name in table.poses.frames:
        picture = cv2.imread(str(project / name))
        assert picture is not None
        frames.append(picture[..., ::-1])
    points_px, _ = load(run).predict(np.stack(frames))
    return points_px, table.poses.points_px[:, 0]


def test_a_loaded_run_predicts_what_training_wrote(agreeing: Path, project: Path, tmp_path: Path) -> None:
    loaded_px, written_px = predicted(agreeing, project)
    # Labelled frames are predicted without folded norms.
    np.testing.assert_allclose(loaded_px, written_px, atol=0.01)
    other = copy_of(agreeing, tmp_path)
    config = read_config(other / CONFIG_FILE)
    (other / CONFIG_FILE).unlink()
    write_config(
        other / CONFIG_FILE, dataclasses.replace(config, model=dataclasses.replace(config.model, views_agree=False))
    )
    alone_px, _ = predicted(other, project)
    is_seen = np.isin(config.data.keypoint_names, ",".join(VIEWS).split(","))
    off_px = np.linalg.norm(alone_px - loaded_px, axis=-1).max(axis=0)
    assert off_px[is_seen].max() > 0.1 and off_px[~is_seen].max() < 0.01


def test_an_exported_file_holds_the_agreement(agreeing: Path, tmp_path: Path) -> None:
    """`export` compares the file with the run, and refuses a file that differs."""
    export(agreeing, tmp_path / "network.stablehlo")
    assert (tmp_path / "network.stablehlo").is_file()


def test_frames_of_another_size_agree_alike(agreeing: Path, project: Path) -> None:
    """The relation of the views is not tied to the size of the labelled frames."""
    name = read_predictions(agreeing / "predictions.csv").poses.frames[0]
    picture = cv2.imread(str(project / name))
    assert picture is not None
    run = load(agreeing)
    (small_px,), small = run.predict(picture[None, ..., ::-1])
    (large_px,), large = run.predict(np.kron(picture, np.ones((2, 2, 1), np.uint8))[None, ..., ::-1])
    # Averages over four times the pixels round elsewhere.
    np.testing.assert_allclose(large_px, 2 * small_px + 0.5, atol=0.2)
    np.testing.assert_allclose(large, small, atol=0.01)


def test_a_run_without_its_subspaces_is_refused(agreeing: Path, tmp_path: Path) -> None:
    run = copy_of(agreeing, tmp_path)
    (run / SUBSPACES_FILE).unlink()
    with pytest.raises(UserError, match="pca.json is absent, and model.views_agree needs it: put the original file ba"):
        load(run)


@pytest.mark.parametrize(
    ("views", "says"),
    [
        (("left_front_paw", "right_front_paw"), "needs 10; the training labels have 6, of 1 body part in 2 views: lab"),
        (("left_front_paw,nose", "right_front_paw"), "the views have 2, 1 keypoints; two or more views of the same nu"),
    ],
)
def test_views_that_too_few_labels_show_are_refused(
    views: tuple[str, ...], says: str, project: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=says):
        train(make_config(project, tmp_path / "run", losses__pca_multiview__views=views, model__views_agree=True))
