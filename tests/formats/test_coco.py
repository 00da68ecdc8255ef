"""COCO keypoint files: labels as pycocotools reads them, where images lie, and what cannot be used."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO

from jaxpose import config as c
from jaxpose.data.dataset import describe_not_visible, match_keypoints
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.formats.project import read_label_table, read_project, refuse_absent
from jaxpose.poses import Skeleton
from jaxpose.prediction.evaluation import summarize
from jaxpose.run.status import not_visible_text
from jaxpose.training.data_check import show_data
from tests.formats.other_projects import KEYPOINTS, LABELLED, points_px
from tests.painted_videos import plain, write


def coco_project(folder: Path, images: str = "images", annotations: str = "") -> Path:
    """Writes images of two videos and their COCO file; an image without a label is last."""
    tree: dict[str, Any] = {"images": [], "annotations": [], "categories": []}
    tree["categories"] = [{"id": 3, "name": "mouse", "keypoints": list(KEYPOINTS)}, {"id": 4, "name": "box"}]
    for number, name in enumerate(("day1", "day2")):
        frames = plain(write(folder / f"{name}.mp4", 16, offset=100 * number))
        (folder / images / name).mkdir(parents=True)
        for frame, points in zip(LABELLED, points_px(number), strict=True):
            image_id = len(tree["images"]) + 10
            file_name = f"{name}/img{frame:02}.png"
            cv2.imwrite(str(folder / images / file_name), frames[frame, ..., ::-1])
            tree["images"].append({"id": image_id, "file_name": file_name, "width": 64, "height": 48})
            visible = np.where(np.isnan(points[:, 0]), 0, [2, 1, 2, 2])
            keypoints = np.column_stack([np.nan_to_num(points), visible]).ravel().tolist()
            tree["annotations"].append({"id": image_id + 90, "image_id": image_id, "category_id": 3})
            tree["annotations"][-1] |= {"keypoints": keypoints, "bbox": [0, 0, 9, 9], "area": 81, "iscrowd": 0}
    tree["images"].append({"id": 5, "file_name": "day1/unlabelled.png", "width": 64, "height": 48})
    tree["annotations"].append({"id": 1, "image_id": 5, "category_id": 3, "keypoints": [0] * 12})
    tree["annotations"].append({"id": 2, "image_id": 10, "category_id": 4, "bbox": [0, 0, 9, 9]})
    (folder / annotations).mkdir(exist_ok=True)
    return change(folder / annotations / "labels.json", lambda _: tree)


def change(file: Path, how: Any) -> Path:
    file.write_text(json.dumps(how(json.loads(file.read_text()) if file.exists() else None)))
    return file


def read(file: Path, **options) -> Project:
    return read_project(c.DataConfig(project=str(file), **options))


def test_labels_are_as_pycocotools_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = coco_project(tmp_path)
    found, coco = read(file), COCO(str(file))
    assert found.poses.keypoint_names == tuple(coco.loadCats([3])[0]["keypoints"]) and found.folder == tmp_path
    annotations = coco.loadAnns(coco.getAnnIds(catIds=[3]))[:6]
    names = ["images/" + coco.loadImgs([annotation["image_id"]])[0]["file_name"] for annotation in annotations]
    assert found.poses.frames == tuple(names) and found.videos == ("day1",) * 3 + ("day2",) * 3
    assert found.paths == tuple(tmp_path / name for name in names)
    keypoints = np.array([annotation["keypoints"] for annotation in annotations]).reshape(6, 4, 3)
    # Hidden keypoints (v = 1) have a position and are used.
    np.testing.assert_array_equal(found.visibility, np.where(keypoints[..., 2] > 0, 2, 0))
    expected = np.where(keypoints[..., 2:] > 0, keypoints[..., :2], np.nan)
    np.testing.assert_array_equal(found.labelled_frame_px(), expected)
    np.testing.assert_array_equal(found.labelled_frame_px(), np.concatenate([points_px(0), points_px(1)]))
    assert found.sources[0] == f"{file}:annotation 100" and found.notes == ("left out: 1 image without any label",)
    assert (read(file, missing="not_visible").visibility[1] == [2, 2, 1, 2]).all()
    capsys.readouterr()
    refuse_absent(c.DataConfig(project=str(file)))
    show_data(c.Config(data=c.DataConfig(project=str(file))))
    assert f"project      {tmp_path}: COCO file labels.json" in capsys.readouterr().out


@pytest.mark.parametrize(("images", "annotations"), [(".", ""), ("images", "annotations"), (".", "annotations")])
def test_images_are_found_around_the_file(tmp_path: Path, images: str, annotations: str) -> None:
    file = coco_project(tmp_path, images, annotations)
    found = read(file)
    assert found.paths[4] == tmp_path / images / "day2/img07.png"
    for before in ("/home/me/data/", "C:\\data\\"):
        change(file, lambda tree, before=before: moved(tree, before))
        assert read(file).poses.frames == found.poses.frames


def test_a_list_of_predictions_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps([{"image_id": 1, "keypoints": [1, 2, 1], "score": 0.5}]))
    with pytest.raises(UserError, match="results.json is not a COCO file: .* it is a list of predictions, without"):
        read(tmp_path / "results.json")


def test_a_training_profile_of_sleap_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "training_config.json").write_text(json.dumps({"data": {}, "model": {}, "optimization": {}}))
    with pytest.raises(UserError, match="it looks like a training profile of SLEAP: give the .slp file"):
        read(tmp_path / "training_config.json")


@pytest.mark.parametrize("prefix", ["images/val/", ""])
def test_images_two_folders_above_the_file_are_found(tmp_path: Path, prefix: str) -> None:
    """The layout of PoseTrack; another subset has images of the same names."""
    root = tmp_path / "posetrack"
    root.mkdir()
    file = coco_project(root, "images/val", "annotations")
    (root / "annotations/val").mkdir()
    file = file.rename(root / "annotations/val/000342_mpii_test.json")
    change(file, lambda tree: moved(tree, prefix))
    (root / "images/train/day2").mkdir(parents=True)
    (root / "images/train/day2/img07.png").write_bytes((root / "images/val/day1/img07.png").read_bytes())
    found = read(file)
    assert found.poses.frames[4] == "images/val/day2/img07.png" and found.paths[4] == root / found.poses.frames[4]
    # Two folders above any other file are not its project.
    (root / "others/val").mkdir(parents=True)
    file = file.rename(root / "others/val/a.json")
    reason = f"but in {root}: move the label file there" if prefix else "put it there, or remove its labels"
    with pytest.raises(UserError, match=rf"6 of 6 rows.*\n.*img03.png does not exist in .*others/val[:,] {reason}"):
        read(file)


@pytest.mark.parametrize(
    ("images", "name"),
    [
        ("images/default", "annotations/person_keypoints_default.json"),
        ("images/val2017", "annotations/person_keypoints_val2017.json"),
        ("val2017", "annotations/person_keypoints_val2017.json"),
        ("images/val", "labels/keypoints_val.json"),
        ("val", "labels.json"),
    ],
)
def test_images_are_found_in_the_folder_of_their_subset(tmp_path: Path, images: str, name: str) -> None:
    """Another subset has images of the same names; the one that the file is named after wins."""
    coco_project(tmp_path, images).rename(tmp_path / "moved.json")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    file = (tmp_path / "moved.json").rename(tmp_path / name)
    assert read(file).poses.frames[4] == f"{images}/day2/img07.png"
    other = (tmp_path / images).with_name("train")
    (other / "day2").mkdir(parents=True)
    (other / "day2/img07.png").write_bytes((tmp_path / images / "day1/img07.png").read_bytes())
    if name != "labels.json":
        assert read(file).poses.frames[4] == f"{images}/day2/img07.png"
        return
    reason = f"{tmp_path}/train/day2/img07.png and {tmp_path}/val/day2/img07.png both match day2/img07.png, but differ"
    with pytest.raises(UserError, match=f"1 of 6 rows.*\n.*annotation 104: {reason}: keep only the right one"):
        read(file)


def test_paths_of_other_machines_are_matched_by_an_end_that_tells_them_apart(tmp_path: Path) -> None:
    """Label Studio's paths; then two uploads of one name, of which the folder has one image."""
    file = coco_project(tmp_path, "images")
    expected = read(file)
    change(file, lambda tree: moved(tree, "..\\..\\label-studio\\media\\upload\\"))
    assert read(file).poses.frames == expected.poses.frames
    for image in sorted(tmp_path.glob("images/day1/*")):
        image.rename(tmp_path / "images" / image.name)
    with pytest.raises(UserError, match="6 of 6 rows.*\n.*img03.png could be .*day1.*img03.png or .*day2.*img03.png"):
        for image in sorted(tmp_path.glob("images/day2/*")):
            image.unlink()
        read(file)


def test_an_absolute_path_of_this_machine_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    file = coco_project(folder, "images")
    (tmp_path / "deep/labels").mkdir(parents=True)
    file = file.rename(tmp_path / "deep/labels/labels.json")
    change(file, lambda tree: moved(tree, f"{folder}/images/"))
    found = read(file)
    assert found.paths[4] == folder / "images/day2/img07.png" and found.poses.frames[4] == "labels.json/day2/img07.png"
    assert found.videos == ("day1",) * 3 + ("day2",) * 3


def moved(tree: dict[str, Any], before: str) -> dict[str, Any]:
    for image in tree["images"]:
        name = image["file_name"].replace("\\", "/").split("/")
        image["file_name"] = before + ("\\" if "\\" in before else "/").join(name[-2:])
    return tree


def with_annotation(**values: Any) -> Any:
    return lambda tree: tree | {"annotations": [*tree["annotations"], tree["annotations"][0] | values]}


def with_first(**values: Any) -> Any:
    return lambda tree: tree | {"annotations": [tree["annotations"][0] | values, *tree["annotations"][1:]]}


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (with_first(keypoints=[1, 2, 2]), r"annotation 100: keypoints is .*; it must be 12 numbers"),
        (with_first(keypoints=[1, 2, 3] * 4), "annotation 100: v of nose is 3; it must be 0, 1 or 2"),
        (with_first(keypoints=[float("nan"), 2, 2] * 4), "annotation 100: nose is .* must be finite"),
        (with_first(keypoints=[500, 2, 2] * 4), "annotation 100: images/day1/img03.png has 64 x 48 pixels; outside"),
        (with_first(image_id=77), "annotation 100: image_id is 77, but the file has no such image"),
        (
            lambda tree: tree | {"images": [tree["images"][0] | {"width": 128, "height": 96}, *tree["images"][1:]]},
            "annotation 100: images/day1/img03.png has 64 x 48 pixels, but it was labelled with 128 x 96",
        ),
        (
            lambda tree: tree | {"images": [tree["images"][0] | {"file_name": "day1/no.png"}, *tree["images"][1:]]},
            "annotation 100: day1/no.png does not exist in",
        ),
    ],
)
def test_a_bad_annotation_is_named_and_can_be_skipped(tmp_path: Path, how: Any, reason: str) -> None:
    file = change(coco_project(tmp_path), how)
    with pytest.raises(UserError, match=f"1 of . rows(.|\n)*labels.json:{reason}"):
        read(file)
    assert len(read(file, on_bad_frame="skip").poses.frames) in (5, 6)


def test_an_image_with_two_animals_makes_a_row_for_each(tmp_path: Path) -> None:
    file = coco_project(tmp_path)
    keypoints = json.loads(file.read_text())["annotations"][0]["keypoints"]
    other = [value + (number % 3 == 0) for number, value in enumerate(keypoints)]
    found = read(change(file, with_annotation(id=7, keypoints=other)))
    assert len(found.poses.frames) == 7 and found.most_animals == 2
    assert [name.rpartition("/")[2] for name in found.poses.frames if "day1/img03" in name] == [
        "img03.png#1",
        "img03.png#2",
    ]
    # An animal without keypoints is annotated in that image, so it is not empty.
    assert found.notes == ("left out: 1 image without any label",) and found.without_animals is None


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (lambda tree: [], "must have the lists"),
        (lambda tree: tree | {"images": [1]}, "an entry of images is 1; it must have an id"),
        (lambda tree: tree | {"annotations": []}, "no annotation with a labelled keypoint"),
        (
            lambda tree: tree | {"categories": [{"id": 3, "name": "mouse"}]},
            "annotation 100 has keypoints, but its category 3 has no list",
        ),
        (
            lambda tree: tree | {"categories": [{"id": 3, "keypoints": 4}]},
            "annotation 100 has keypoints, but its category 3 has no list",
        ),
        (with_annotation(id=7, category_id=77), "annotation 7 has keypoints, but its category 77 does not exist"),
        (
            lambda tree: tree | {"images": [*tree["images"], tree["images"][1] | {"id": tree["images"][0]["id"]}]},
            "two entries of images have the id",
        ),
        (lambda tree: tree | {"categories": [{"id": 3, "keypoints": ["a", "a"]}]}, "'a' is named twice"),
        (
            lambda tree: with_annotation(category_id=4)(
                tree | {"categories": [tree["categories"][0], {"id": 4, "name": "rat", "keypoints": ["nose"]}]}
            ),
            r"categories with different keypoints \(mouse, rat\)",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, how: Any, reason: str) -> None:
    file = change(coco_project(tmp_path), how)
    with pytest.raises(UserError, match=f"labels.json.*{reason}"):
        read(file)


def test_animals_that_share_keypoints_are_one_kind_and_convert_says_so(tmp_path: Path) -> None:
    """The skeleton has a pair that names no keypoint, and an entry that is no pair."""
    file = change(
        coco_project(tmp_path),
        lambda tree: with_annotation(id=7, image_id=5, category_id=9)(
            tree
            | {"categories": [*tree["categories"], tree["categories"][0] | {"id": 9, "name": "rat"}]}
            | {"images": [*tree["images"][:-1], tree["images"][0] | {"id": 5}]}
        ),
    )
    change(
        file,
        lambda tree: [category.update(skeleton=[[1, 2], [1, 99], "x"]) for category in tree["categories"]] and tree,
    )
    change(
        file,
        lambda tree: tree | {"annotations": [entry for entry in tree["annotations"] if entry["id"] not in (1, 100)]},
    )
    table = read_label_table(c.DataConfig(project=str(file)))
    assert table.poses.skeleton == Skeleton(edges=(("nose", "left_ear"),)) and len(table.poses.frames) == 6
    assert "4 edges that not all categories have" in table.unread and "which animals are mouse and rat" in table.unread


def test_options_of_other_layouts_are_refused(tmp_path: Path) -> None:
    file = coco_project(tmp_path)
    for options in ({"labels": "Mine.csv"}, {"views": ("top", "side")}):
        with pytest.raises(UserError, match=f"data.{next(iter(options))} is .* a COCO project, which does not use"):
            read(file, **options)
    other = tmp_path / "labels.xml"
    other.write_text("<xml/>")
    with pytest.raises(UserError, match="labels.xml is neither a folder nor a file of SLEAP"):
        refuse_absent(c.DataConfig(project=str(other)))
    text = file.read_text()
    file.write_text(text, "utf-16")
    assert len(read(file).poses.frames) == 6
    file.write_text(text.replace("mouse", "m\u00f6use"), "cp1252")
    with pytest.raises(UserError, match="^[^ ]*labels.json is not a text file in UTF-8 or UTF-16: save it as UTF-8$"):
        read(file)
    file.write_text("{")
    with pytest.raises(UserError, match="labels.json is not JSON"):
        read(file)


def test_hidden_keypoints_count_in_the_errors_and_the_figures_without_them_are_given(tmp_path: Path) -> None:
    """As in COCO's own OKS. Other projects have the same file of figures as before."""
    file = coco_project(tmp_path)
    names = KEYPOINTS[::-1]
    found = match_keypoints(read(file), names)
    is_hidden = np.array([name == KEYPOINTS[1] for name in names]) & np.isfinite(found.keypoints_frame_px[..., 0])
    np.testing.assert_array_equal(found.not_visible(), is_hidden)
    predicted = found.keypoints_frame_px + np.where(is_hidden, 3.0, 1.0)[..., None]
    config, rows = c.Config(data=c.DataConfig(keypoint_names=names)), np.arange(len(found.poses.frames))
    figures = summarize(config, found, rows, predicted, np.ones(is_hidden.shape))
    errors = np.sqrt(2) * np.where(is_hidden, 3.0, 1.0)[np.isfinite(found.keypoints_frame_px[..., 0])]
    about = figures["not_visible"]
    assert (figures["labelled_points"], about["points"], about["counted"]) == (len(errors), is_hidden.sum(), True)
    assert figures["mean_px_error"] == pytest.approx(errors.mean())
    assert about["otherwise"]["mean_px_error"] == pytest.approx(np.sqrt(2))
    assert about["otherwise"]["labelled_points"] == len(errors) - is_hidden.sum()
    assert not_visible_text(figures) == f"1.41 px without {is_hidden.sum()} points marked as not visible"
    (note,) = describe_not_visible(found)
    assert note.startswith(f"{is_hidden.sum()} points marked as not visible: the network learns their positions, and ")
    shown = dataclasses.replace(found, poses=dataclasses.replace(found.poses, columns={}))
    assert "not_visible" not in summarize(config, shown, rows, predicted, np.ones(is_hidden.shape))
    assert describe_not_visible(shown) == []
