"""Calibrated cameras of a project: one rig for all sessions, or one for each; the synthetic rig against its labels."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose.cameras.calibration_files import ANIPOSE, read_cameras, write_cameras
from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.triangulation import triangulate
from jaxpose.data.project import read_project
from jaxpose.data.rigs import cameras_checksum, rigs_of_project, shown_by_other_labels
from jaxpose.data.synthetic import make_project
from jaxpose.errors import UserError

VIEWS = ("c1", "c2", "c3")


@pytest.fixture(scope="module")
def rig_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rig") / "project"
    return make_project(folder, videos=2, labelled_frames=6, video_frames=12, side_px=64, leaves=2, cameras=3)


def rigs_of(folder: Path, calibration: str = "calibrations") -> dict[str, Cameras]:
    data = c.DataConfig(project=str(folder), views=VIEWS, calibration=calibration)
    return rigs_of_project(c.Config(data=data), read_project(data))


def test_labels_of_all_views_show_points_of_the_world(rig_project: Path) -> None:
    rigs = rigs_of(rig_project)
    assert list(rigs) == ["session00", "session01"] and rigs["session00"].names == VIEWS
    assert not np.allclose(rigs["session00"].numbers, rigs["session01"].numbers)
    for session, cameras in rigs.items():
        truth = [pd.read_csv(rig_project / f"ground_truth/{session}_{view}.csv", header=[0, 1, 2]) for view in VIEWS]
        pixels = np.stack([table.to_numpy()[:, 1:].astype(float).reshape(-1, 2) for table in truth])
        found = triangulate(cameras, pixels, np.ones(pixels.shape[:2]), 1.0)
        # The files have three decimals.
        assert found.errors_px.max() < 0.002
    labels = pd.read_csv(rig_project / "CollectedData_c2.csv", header=[0, 1, 2], index_col=0)
    assert 0.02 < labels.isna().to_numpy().mean() < 0.6


def test_one_calibration_serves_all_sessions(rig_project: Path, tmp_path: Path) -> None:
    cameras = read_cameras(rig_project / "calibrations/session00.toml")
    # In any order, with a camera that is not used.
    more = dataclasses.replace(cameras.each[0], name="other", translation=np.array([0.1, 0.2, 3.0]))
    write_cameras(tmp_path / "all.toml", ANIPOSE, Cameras([more, *cameras.each[::-1]]))
    rigs = rigs_of(rig_project, str(tmp_path / "all.toml"))
    np.testing.assert_allclose(rigs["session00"].numbers, cameras.numbers, atol=1e-12)
    assert rigs["session01"] is rigs["session00"]
    assert cameras_checksum(rigs) != cameras_checksum(rigs_of(rig_project)) and cameras_checksum({}) == ""


def test_a_calibration_that_does_not_fit_is_refused_by_name(rig_project: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(rig_project, tmp_path / "project")
    calibration = folder / "calibrations/session01.toml"
    text = calibration.read_text()
    for changed, message in (
        (text.replace('"c2"', '"side"'), "session01.toml has no camera c2; it has c1, side, c3"),
        (
            text.replace('"c1"', '"c0"').replace('"c2"', '"c1"').replace('"c0"', '"c2"'),
            r"labels of c1, c2, c3 disagree by \d+.\d px with data.calibration = calibrations \(session01\)",
        ),
        (text.replace("[64, 64]", "[640, 480]"), "session01_c1/img.* has 64 x 64 pixels, but .* 640 x 480"),
    ):
        calibration.write_text(changed)
        with pytest.raises(UserError, match=message):
            rigs_of(folder)
    calibration.unlink()
    with pytest.raises(UserError, match="for session01 it has none: .* needs one, such as session01.toml"):
        rigs_of(folder)
    with pytest.raises(UserError, match="nowhere.toml does not exist"):
        rigs_of(folder, "nowhere.toml")


def test_labels_of_other_views_show_hidden_keypoints(rig_project: Path) -> None:
    data = c.DataConfig(project=str(rig_project), views=VIEWS, calibration="calibrations")
    found = read_project(data)
    rigs = rigs_of_project(c.Config(data=data), found)
    # The label of a view plays no part in what the others show there.
    seen = np.isfinite(found.measured_frame_px()).all(-1).reshape(3, -1, 7)
    moment, keypoint = np.argwhere(seen.all(axis=0))[0].tolist()
    labels_px = found.keypoints_frame_px.copy()
    labels_px[moment, keypoint] += 20
    wrong = dataclasses.replace(found, poses=dataclasses.replace(found.poses, points_px=labels_px[:, None]))
    truth_px = np.stack([_truth(rig_project, image) for image in found.images])
    shown_px = shown_by_other_labels(rigs, found)
    off_px = np.linalg.norm(shown_px - truth_px, axis=-1).reshape(3, -1, 7)
    others = seen.sum(axis=0)[None] - seen
    np.testing.assert_array_equal(np.isfinite(off_px), others == 2)
    # The files have three decimals.
    assert np.nanmax(off_px) < 0.02 and (np.isfinite(off_px) & ~seen).sum() > 5
    again_px = shown_by_other_labels(rigs, wrong)
    np.testing.assert_allclose(again_px[moment, keypoint], truth_px[moment, keypoint], atol=0.02)


def _truth(folder: Path, image: str) -> np.ndarray:
    _, video, name = image.split("/")
    table = pd.read_csv(folder / f"ground_truth/{video}.csv", header=[0, 1, 2], index_col=0)
    return table.loc[int(name[3:11])].to_numpy().reshape(-1, 2)
