"""Points that stand for a missing label, in the label files of every tool."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from jaxpose.check.__main__ import main as check
from jaxpose.config import Config, DataConfig, validate
from jaxpose.data.label_table import LabelTable, describe_repeats
from jaxpose.errors import UserError
from jaxpose.formats import coco, sleap_files
from jaxpose.formats.deeplabcut import tables as deeplabcut
from jaxpose.formats.lightning_pose import tables as lightning_pose
from jaxpose.formats.project import read_label_table, read_project
from jaxpose.poses import Poses

NAMES, IMAGES = ("nose", "ear", "tail"), tuple(f"labeled-data/day1/img{i}.png" for i in range(5))
TOOLS = ["lightning_pose", "folder", "deeplabcut_csv", "deeplabcut_h5", "coco", "sleap"]
NO_LABELS_NOTE = "4 labels at exactly (-1, -1) count as missing"
CORNER_NOTE = "labels at exactly (0, 0): nose in 1 of 5, ear in 2 of 5; if this place stands for a missing point, give "


def placed_px() -> np.ndarray:
    """Returns labels (5, 3, 2): the tail is absent as -1, -1 in four images, and others are at 0, 0."""
    points = np.random.default_rng(0).uniform(2, 30, (5, 3, 2)).round(2)
    points[1:, 2] = -1
    points[0, 0] = points[2:4, 1] = 0
    return points


def write_project(folder: Path, tool: str, points: np.ndarray, mark: int = 2) -> Path:
    """Writes images and labels with this mark of visibility, and returns the project."""
    for image in IMAGES:
        (folder / image).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / image), np.full((32, 40, 3), 100, np.uint8))
    marks = np.where(np.isnan(points[..., 0]), 0, mark).astype(np.int8)
    poses = Poses.of_one_animal(NAMES, IMAGES, points, visibility=marks, pixels="image")
    paths, sizes_px = tuple(folder / image for image in IMAGES), dict.fromkeys(IMAGES, (40, 32))
    labels = LabelTable(folder, poses, paths, ("day1",) * 5, sizes_px=sizes_px, scorer="me")
    if tool in ("lightning_pose", "folder"):
        lightning_pose.write_labels(folder / ("CollectedData.csv" if tool == "lightning_pose" else "a.csv"), labels)
    elif tool == "coco":
        coco.write_labels(folder / "labels.json", labels)
        # Files of others do not say that their marks are 0, 1 and 2.
        tree = json.loads((folder / "labels.json").read_text())
        tree.pop("keypoint_marks", None)
        (folder / "labels.json").write_text(json.dumps(tree))
        return folder / "labels.json"
    elif tool == "sleap":
        sleap_files.write_labels_slp(folder / "labels.slp", labels)
        return folder / "labels.slp"
    else:
        deeplabcut.write_labels(folder, labels)
        for file in folder.glob("labeled-data/*/CollectedData*"):
            if not tool.endswith(file.suffix[1:]):
                file.unlink()
    return folder


@pytest.mark.parametrize("tool", TOOLS)
def test_a_point_at_minus_one_is_missing_and_places_that_repeat_are_reported(tmp_path: Path, tool: str) -> None:
    project = str(write_project(tmp_path, tool, placed_px()))
    found = read_project(DataConfig(project=project))
    assert (found.visibility == 2).sum(axis=0).tolist() == [5, 5, 1]
    assert np.isnan(found.keypoints_frame_px[1:, 2]).all()
    assert found.notes == (NO_LABELS_NOTE, f"{CORNER_NOTE}data.missing_at_px=0,0")
    given = DataConfig(project=project, missing_at_px=(0.0, 0.0, 7.0, 7.5), missing="not_visible")
    table = read_label_table(given)
    expected = np.full((5, 3), 2)
    expected[1:, 2] = expected[0, 0] = expected[2:4, 1] = 1
    np.testing.assert_array_equal(table.visibility, expected)
    assert table.notes == (
        NO_LABELS_NOTE,
        "3 labels at exactly (0, 0) count as missing (data.missing_at_px=0,0)",
        "0 labels at exactly (7, 7.5) count as missing (data.missing_at_px=7,7.5)",
    )
    assert found.labels_checksums() != read_project(given).labels_checksums()


def test_any_place_where_a_keypoint_repeats_is_reported(tmp_path: Path) -> None:
    """From three labels on; two of one keypoint, or three of three keypoints, may coincide."""
    points = np.arange(30).reshape(5, 3, 2) + 0.5
    points[:3, 0], points[:2, 1], points[4, 2] = (12.25, 30), (5, 6), (5, 6)
    (note,) = read_project(DataConfig(project=str(write_project(tmp_path, "lightning_pose", points)))).notes
    assert note.startswith("labels at exactly (12.25, 30): nose in 3 of 5; ") and note.endswith("=12.25,30")


def test_labels_at_whole_pixels_of_a_keypoint_that_hardly_moves_are_not_reported() -> None:
    points = np.random.default_rng(0).normal((50, 60), 0.8, (200, 1, 2)).round()
    labelled = np.ones((200, 1), bool)
    assert describe_repeats(["nose"], points, labelled) == []
    points[::10] = 100, 5
    (sentence,) = describe_repeats(["nose"], points, labelled)
    assert sentence.startswith("labels at exactly (100, 5): nose in 20 of 200; ")


def test_the_real_labels_have_no_such_place(real_data: Path) -> None:
    assert read_label_table(DataConfig(project=str(real_data / "mirror-mouse-example"))).notes == ()


@pytest.mark.parametrize("tool", ["lightning_pose", "deeplabcut_csv"])
def test_a_check_names_them(tmp_path: Path, tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    project = write_project(tmp_path / "p", tool, placed_px())
    check([str(project), "--out", str(tmp_path / "check.html")])
    said = capsys.readouterr().out
    assert NO_LABELS_NOTE in said and CORNER_NOTE in said


@pytest.mark.parametrize("tool", TOOLS)
def test_names_that_differ_only_in_their_unicode_form_are_refused(
    tmp_path: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.formats.test_missing_points.NAMES", ("nose", "\u00f6hr", "o\u0308hr"))
    project = str(write_project(tmp_path, tool, placed_px()))
    with pytest.raises(UserError, match=r"the keypoints '\\xf6hr' and 'o\\u0308hr' look alike"):
        read_label_table(DataConfig(project=project))


@pytest.mark.parametrize("tool", ["lightning_pose", "coco"])
def test_a_file_whose_marks_are_only_0_and_1_has_visible_labels(tmp_path: Path, tool: str) -> None:
    points = placed_px()
    points[:, 1] = np.nan
    table = read_label_table(DataConfig(project=str(write_project(tmp_path, tool, points, mark=1))))
    assert (table.visibility == 2).sum(axis=0).tolist() == [5, 0, 1] and not table.poses.columns
    assert "the marks of visibility are only 0 and 1: 1 counts as labelled and visible" in table.notes


@pytest.mark.parametrize("places", [(1.0,), (0.0, float("nan")), (0.0, 0.0, 1.0)])
def test_places_are_pairs_of_numbers(places: tuple[float, ...]) -> None:
    config = Config()
    config.data.missing_at_px = places
    with pytest.raises(UserError, match="data.missing_at_px is .*; it must be "):
        validate(config)
