"""The list of `jaxpose check`: what it finds, where, and that the page marks the same."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxpose.check.__main__ import main
from jaxpose.data.synthetic_animal import KEYPOINT_NAMES
from tests.check.test_check import found_in, write_image
from tests.data.test_orientation import label_csv
from tests.predicted_runs import true_track

Capture = pytest.CaptureFixture[str]
LEFT, RIGHT = KEYPOINT_NAMES.index("left_hind_paw"), KEYPOINT_NAMES.index("right_hind_paw")
COLUMNS = pd.MultiIndex.from_product([["me"], KEYPOINT_NAMES, ["x", "y"]], names=["scorer", "bodyparts", "coords"])


def _walked(folder: Path) -> tuple[np.ndarray, list[str]]:
    """180 true poses with noise, as labels of images of 128 px."""
    rng = np.random.default_rng(0)
    tracks = [true_track(Path(f"session{number:02d}"), 400)[rng.choice(400, 60, replace=False)] for number in range(3)]
    poses = np.concatenate(tracks)
    images = [f"labeled-data/v{row // 60}/img{row:04d}.png" for row in range(len(poses))]
    for image in images:
        write_image(folder / image, (128, 128))
    return poses + rng.normal(0, 0.3, poses.shape), images


def test_planted_mistakes_are_found(tmp_path: Path, capsys: Capture) -> None:
    poses, images = _walked(tmp_path / "project")
    poses[20, [LEFT, RIGHT]] = poses[20, [RIGHT, LEFT]]
    for place, point in ((50, 0), (75, LEFT), (140, 2)):
        poses[place, point] += np.where(poses[place, point] > 64, -40, 40)
    poses[90, 1] = 140, 60
    poses[3, 4], poses[7] = np.nan, np.nan
    file = tmp_path / "project" / "CollectedData.csv"
    pd.DataFrame(poses.reshape(len(poses), -1), index=images, columns=COLUMNS).to_csv(file)
    (tmp_path / "project" / images[120]).unlink()
    found = found_in(tmp_path / "project", folder=tmp_path)
    rows = {int(Path(image).stem[3:]): row for image, row in zip(found["image"], found.itertuples(), strict=True)}
    assert rows[20].kind == "swap" and rows[20].keypoints == "left_hind_paw right_hind_paw"
    for place, point in ((50, 0), (75, LEFT), (140, 2)):
        assert (rows[place].kind, rows[place].keypoints) == ("outlier", KEYPOINT_NAMES[point])
        assert rows[place].place == f"{file}:{place + 4}"
    kinds = found[found["image"] == images[90]]["kind"]
    assert "outside" in set(kinds) and rows[120].kind == "row" and "does not exist" in rows[120].text
    # At most a few of 174 right poses are doubted.
    assert len(set(rows) - {20, 50, 75, 140, 90, 120}) <= 4
    shown = capsys.readouterr().out
    assert "178 usable frames; 2 rows are refused (1 with points outside of the image); " in shown
    assert "(1 with left and right exchanged)" in shown and f"{file}:24: {images[20]}: left and right look" in shown


def test_a_few_new_labels_are_checked_against_the_poses_of_the_project(tmp_path: Path, capsys: Capture) -> None:
    """Too few for a PCA of their own: 8 rows of 14 coordinates."""
    poses, images = _walked(tmp_path / "project")
    poses[3, [LEFT, RIGHT]] = poses[3, [RIGHT, LEFT]]
    poses[5, 0] += 40
    # A mistake in the old labels is not reported here.
    poses[100, 2] += 40
    for name, rows in (("new", slice(0, 8)), ("project", slice(8, None))):
        (tmp_path / name).mkdir(exist_ok=True)
        table = pd.DataFrame(poses[rows].reshape(-1, 2 * len(KEYPOINT_NAMES)), index=images[rows], columns=COLUMNS)
        table.to_csv(tmp_path / name / "CollectedData.csv")
    shutil.copytree(tmp_path / "project/labeled-data/v0", tmp_path / "new/labeled-data/v0")
    assert found_in(tmp_path / "new", folder=tmp_path).empty
    assert "Poses are not compared: 8 labelled poses" in capsys.readouterr().out
    found = found_in(tmp_path / "new", "--like", tmp_path / "project", folder=tmp_path).set_index("image")
    assert found.loc[images[3], "kind"] == "swap" and found.loc[images[5], "keypoints"] == KEYPOINT_NAMES[0]
    assert len(found) == 2
    assert "8 usable frames; 0 rows are refused; 2 poses look unlike the others" in capsys.readouterr().out
    # A label file that is only evaluated is checked with the others.
    shutil.copy(tmp_path / "new/CollectedData.csv", tmp_path / "project/CollectedData_new.csv")
    found = found_in(tmp_path / "project", folder=tmp_path).set_index("image")
    assert {found.loc[images[3], "kind"], found.loc[images[100], "kind"]} == {"swap", "outlier"}
    assert found.loc[images[3], "place"] == f"{tmp_path}/project/CollectedData_new.csv:7"
    assert f"{images[3]} <span class=set>new</span>" in (tmp_path / "check.html").read_text()


def test_a_check_that_is_not_possible_is_said(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "CollectedData.csv").write_text(
        "scorer,me,me,me,me\nbodyparts,nose,nose,tail,tail\ncoords,x,y,x,y\nlabeled-data/v/img1.png,3,4,5,6\n"
    )
    write_image(tmp_path / "labeled-data" / "v" / "img1.png")
    assert found_in(tmp_path, folder=tmp_path).empty
    shown = capsys.readouterr().out
    assert "left and right are not compared: no name of nose, tail contains a side; data.flip_pairs=" in shown
    assert "Poses are not compared: 1 labelled poses of 4 coordinates; a PCA needs" in shown
    assert "--like PROJECT adds the poses of earlier labels" in shown
    # What was not checked is not counted as right.
    assert "1 usable frame; 0 rows are refused; poses are not compared\n" in shown and "(0 findings)" in shown


def test_options_decide_what_is_found_as_in_a_training(tmp_path: Path) -> None:
    """An image with an EXIF orientation, and points that stand for missing ones."""
    project = label_csv(tmp_path / "project", 6).project
    undecided = main([project, "--out", str(tmp_path / "check.html")])
    assert undecided == 2 and not (tmp_path / "check.csv").exists()
    assert found_in(project, "data.orientation=stored", folder=tmp_path).empty
    (tmp_path / "csv/labeled-data/v").mkdir(parents=True)
    rows = [f"labeled-data/v/{number}.png" for number in range(3)]
    for row in rows:
        write_image(tmp_path / "csv" / row)
    header = "scorer,me,me,me,me\nbodyparts,nose,nose,tail,tail\ncoords,x,y,x,y\n"
    text = header + "".join(f"{row},3,4,{99 if row == rows[1] else 5},99\n" for row in rows)
    (tmp_path / "csv/CollectedData.csv").write_text(text.replace(",5,99", ",5,6"))
    assert list(found_in(tmp_path / "csv", folder=tmp_path)["kind"]) == ["outside"]
    assert found_in(tmp_path / "csv", "data.missing_at_px=99,99", folder=tmp_path).empty
