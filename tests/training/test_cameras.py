"""A training with calibrated cameras: what its batches hold, what is refused before it, and its bits on any devices."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpose import config as c
from jaxpose.cameras.calibration_files import read_cameras
from jaxpose.cameras.triangulation import triangulate
from jaxpose.config.terms import terms
from jaxpose.data.dataset import decode
from jaxpose.data.synthetic import make_project
from jaxpose.poses import NOT_USED, VISIBLE
from jaxpose.steps.labelled import labelled_term
from jaxpose.training.batches import batch_shapes, host_batches
from jaxpose.training.start import list_files
from tests.small_run import assert_same, call, checkpoint_of, figures_of, make_config, train, train_and_stop
from tests.training.setups import begin

OPTIONS: dict[str, Any] = {
    "data__views": ("c1", "c2", "c3"),
    "data__calibration": "calibrations",
    "data__split": "frame",
    "augment__flip_p": 0.0,
    "losses__reprojection__weight": 0.5,
    "losses__multiview_consistency__weight": 1e-3,
    "losses__anneal_init": 1.0,
    "video__clips_per_step": 3,
    "video__sequence_length": 4,
}


@pytest.fixture(scope="module")
def rig_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rig") / "project"
    return make_project(folder, videos=2, labelled_frames=5, video_frames=12, side_px=64, leaves=2, cameras=3)


def assert_same_views(run: Path, other: Path) -> None:
    assert figures_of(run) == figures_of(other)
    assert_same(checkpoint_of(run), checkpoint_of(other))
    for name in ("split.csv", *(f"predictions_{view}.csv" for view in OPTIONS["data__views"])):
        assert (run / name).read_bytes() == (other / name).read_bytes()


def config_of(project: Path, out: Path, **changes: Any) -> c.Config:
    return make_config(project, out, **OPTIONS | changes)


def test_a_batch_has_the_cameras_of_each_clip_and_the_places_that_other_labels_show(
    rig_project: Path, tmp_path: Path
) -> None:
    setup = begin(config_of(rig_project, tmp_path / "run"))
    source, draws = setup.clips["clips"].source, set()
    for _, batch in zip(range(3), host_batches(setup, 0), strict=False):
        for draw, cameras in zip(batch["clips"]["draw"].tolist(), batch["clips"]["cameras"], strict=True):
            session, _ = source.place(draw)
            draws.add(session)
            expected = read_cameras(rig_project / f"calibrations/session0{session}.toml").numbers_near_0()
            np.testing.assert_allclose(cameras, expected, rtol=1e-6, atol=1e-6)
        is_shown, is_labelled = np.isfinite(batch["reprojected_px"]).all(-1), batch["visibility"] > 0
        both = is_shown & is_labelled
        # Inputs are half as large as frames, and no label of the synthetic animal is wrong.
        np.testing.assert_allclose(batch["reprojected_px"][both], batch["keypoints_px"][both], atol=0.01)
        assert both.any() and (is_shown & ~is_labelled).any()
    assert draws == {0, 1}
    shapes = batch_shapes(setup)
    assert shapes["reprojected_px"].shape == (5, 7, 2) and shapes["clips"]["cameras"].shape == (3, 3, 23)
    assert sum(line.startswith("data.calibration,") for line in list_files(setup).splitlines()) == 1


def test_true_labels_of_turned_views_cost_nothing(rig_project: Path, tmp_path: Path) -> None:
    """Every view turns and grows on its own; the points that the labels show in space are then still those."""
    turned = {"rotate_p": 1.0, "rotate_deg": 180.0, "scale_p": 1.0, "scale_min": 0.7, "scale_max": 1.4, "flip_p": 0.0}
    options = {"model__kind": "regression", "losses__multiview_consistency__weight": 0.0, "augment__preset": "none"}
    config = config_of(
        rig_project, tmp_path / "run", **options, **{f"augment__{name}": on for name, on in turned.items()}
    )
    setup = begin(config)
    found, labels_px = setup.data.project, setup.data.project.measured_frame_px()
    truth_px = np.full_like(labels_px, np.nan)
    for moment in found.rows_of_moments().tolist():
        cameras = setup.rigs[found.videos[moment[0]].removesuffix("_c1")]
        points = triangulate(cameras, labels_px[moment], np.ones(labels_px[moment].shape[:2]), 1.0)
        truth_px[moment] = cameras.project(points.places)
    visibility = np.where(np.isfinite(truth_px).all(-1), np.int8(VISIBLE), np.int8(NOT_USED))
    poses = dataclasses.replace(found.poses, points_px=truth_px[:, None], visibility=visibility[:, None])
    found = dataclasses.replace(found, poses=poses)
    data = dataclasses.replace(setup.data, project=found, samples=decode(found, setup.config)[0])
    setup = dataclasses.replace(setup, data=data)
    term = labelled_term(terms(setup.config)[0], setup.config, setup.facts)
    for _, batch in zip(range(3), host_batches(setup, 0), strict=False):
        dealt = jax.jit(term.deal)(batch, jnp.uint32(0))
        microbatch = jax.tree.map(lambda leaf: leaf[0], dealt.microbatches)
        moved_px = microbatch["keypoints_px"]
        assert np.nanmedian(np.abs(moved_px - batch["keypoints_px"])[batch["valid"]]) > 2
        sums = term.sums(jnp.nan_to_num(moved_px)[:, None, None], microbatch).sums
        assert dealt.counts["reprojection"] > 20
        assert 0 <= float(sums["reprojection"] / dealt.counts["reprojection"]) < 1e-6


def test_a_wrong_calibration_is_refused_before_the_run_folder_is_made(
    rig_project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (rig_project / "calibrations/session00.toml").read_text()
    for name, content, message in (
        ("names.toml", text.replace('"c2"', '"side"'), "has no camera c2; it has c1, side, c3"),
        ("sizes.toml", text.replace("[64, 64]", "[640, 64]"), "has 64 x 64 pixels, but data.calibration = "),
    ):
        (tmp_path / name).write_text(content)
        config = config_of(rig_project, tmp_path / "run", data__calibration=str(tmp_path / name))
        for more in ([], ["--dry_run=data"]):
            assert call(config, tmp_path, *more) == 2
            assert message in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_has_the_same_bits_on_one_two_and_four_devices_and_after_a_stop(
    rig_project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"train__shards": 4, "train__steps": 6, "train__save_every_steps": 2, "augment__preset": "dlc-top-down"}
    runs = []
    for devices in (1, 2, 4):
        runs.append(tmp_path / f"on{devices}")
        assert train(config_of(rig_project, runs[-1], **more, mesh__devices=devices))["exit_code"] == 0
        assert_same_views(runs[-1], runs[0])
    steps = [line for line in figures_of(runs[0]) if "multiview_consistency" in line]
    assert len(steps) == 6 and all(line["reprojection_count"] > 0 for line in steps)
    assert all(0 < line["multiview_consistency"] < 100 for line in steps)
    stopped = config_of(rig_project, tmp_path / "stopped", **more)
    assert train_and_stop(stopped, 3)["exit_code"]
    assert train(stopped)["exit_code"] == 0
    assert_same_views(Path(stopped.out), runs[0])
    calibration = rig_project / "calibrations/session01.toml"
    text = calibration.read_text()
    calibration.write_text(text.replace(", 2.0]", ", 2.1]"))
    assert call(stopped, tmp_path) == 2
    calibration.write_text(text)
    assert "data.calibration gives other cameras than before" in capsys.readouterr().err
