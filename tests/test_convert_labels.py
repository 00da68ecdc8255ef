"""Labels as files of other tools: each read back by the library of that tool, and by jaxpose."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pynwb
import pytest
import sleap_io
from pycocotools.coco import COCO

from jaxpose import config as c
from jaxpose import convert
from jaxpose.data.image_file import decode_image
from jaxpose.formats.project import read_label_table, read_project
from tests.formats.other_projects import CROP, KEYPOINTS, LABELLED, deeplabcut_project, points_px
from tests.formats.test_coco import change, coco_project
from tests.formats.test_sleap import make_labels, save
from tests.painted_videos import SIZE_PX, number_in

NAMES = ("nose", "left ear", "ä")
IMAGES = ("labeled-data/day1/img0007.png", "labeled-data/day1/img0100.png", "labeled-data/day2/img0003.png")
# Visible; hidden with and without a position; not used with and without one; visible.
VISIBILITY = np.array([[2, 1, 0], [1, 0, 2], [2, 2, 2]])
GAPS = np.array([[0, 0, 0], [1, 1, 0], [0, 0, 0]], bool)


def points_of_project() -> np.ndarray:
    points = np.random.default_rng(1).uniform(0, 30, (3, 3, 2))
    points[GAPS] = np.nan
    points[2, 0] = 0
    return points


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of Lightning Pose whose file says which keypoints are visible."""
    folder = tmp_path / "project"
    rows = [["scorer", *["me"] * 9], ["bodyparts", *np.repeat(NAMES, 3)], ["coords", *["x", "y", "visible"] * 3]]
    for number, (image, points, marks) in enumerate(zip(IMAGES, points_of_project(), VISIBILITY, strict=True)):
        (folder / image).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / image), np.full((32, 40, 3), 50 * number, np.uint8))
        cells = [
            [*("" if np.isnan(x) else repr(float(x)) for x in point), mark]
            for point, mark in zip(points, marks, strict=True)
        ]
        rows.append([image, *sum(cells, [])])
    (folder / "CollectedData.csv").write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    return folder


def run(*arguments: object) -> int:
    return convert.main(["labels", *map(str, arguments)])


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(*arguments) == 2
    return capsys.readouterr().err


def test_a_label_file_comes_back_as_it_was(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "CollectedData.csv"
    assert run(project, "--to", "csv", "--out", out) == 0
    assert capsys.readouterr().out.splitlines()[2] == "dropped: nothing"
    assert out.read_text() == (project / "CollectedData.csv").read_text()
    assert [(out.parent / image).read_bytes() for image in IMAGES] == [(project / name).read_bytes() for name in IMAGES]


def test_deeplabcut_reads_the_visible_keypoints(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "dlc"
    assert run(project, "--to", "deeplabcut", "--out", out) == 0
    assert capsys.readouterr().out.splitlines()[2] == (
        "dropped: 1 position of keypoints that are not visible; 1 mark of keypoints as not visible; "
        "1 position of keypoints that are not used"
    )
    files = [out / "labeled-data" / video / "CollectedData_me.h5" for video in ("day1", "day2")]
    found = pd.concat([pd.read_hdf(file, "df_with_missing") for file in files])
    assert list(found.index) == [tuple(image.split("/")) for image in IMAGES]
    assert found.columns.names == ["scorer", "bodyparts", "coords"]
    assert list(found.columns) == [("me", name, coord) for name in NAMES for coord in "xy"]
    expected = np.where((VISIBILITY == 2)[..., None], points_of_project(), np.nan)
    np.testing.assert_array_equal(found.to_numpy().reshape(3, 3, 2), expected)
    for file in files:
        text = pd.read_csv(file.with_suffix(".csv"), header=[0, 1, 2], index_col=[0, 1, 2])
        np.testing.assert_array_equal(text, pd.read_hdf(file))
    table = read_label_table(c.DataConfig(project=str(out)))
    np.testing.assert_array_equal(table.keypoints_image_px, expected)
    assert table.poses.frames == IMAGES and len(table.notes) == 1 and all(path.is_file() for path in table.paths)


def test_coco_has_hidden_keypoints_and_boxes(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "coco" / "labels.json"
    assert run(project, "--to", "coco", "--out", out) == 0
    assert "dropped: 1 mark of keypoints as not visible; 1 position of" in capsys.readouterr().out
    coco, points = COCO(str(out)), points_of_project()
    assert [coco.imgs[number]["file_name"] for number in sorted(coco.imgs)] == list(IMAGES)
    assert coco.imgs[1]["width"] == 40 and coco.imgs[1]["height"] == 32
    assert tuple(coco.cats[1]["keypoints"]) == NAMES and coco.dataset["info"]["contributor"] == "me"
    found = np.array([coco.anns[number]["keypoints"] for number in sorted(coco.anns)]).reshape(3, 3, 3)
    np.testing.assert_array_equal(found[..., 2], [[2, 1, 0], [0, 0, 2], [2, 2, 2]])
    used = found[..., 2] > 0
    np.testing.assert_array_equal(found[..., :2][used], points[used])
    assert (found[..., :2][~used] == 0).all()
    for number, annotation in coco.anns.items():
        placed = points[annotation["image_id"] - 1][used[number - 1]]
        np.testing.assert_allclose(annotation["bbox"], [*placed.min(0), *np.ptp(placed, axis=0)], rtol=1e-12)
        assert annotation["num_keypoints"] == len(placed)
    table = read_label_table(c.DataConfig(project=str(out)))
    np.testing.assert_array_equal(table.keypoints_image_px[used], points[used])
    np.testing.assert_array_equal(np.isfinite(table.keypoints_image_px[..., 0]), used)


@pytest.mark.parametrize("name", ["labels.slp", "labels.pkg.slp"])
def test_sleap_has_a_sequence_of_images_for_each_video(project: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "sleap" / name
    assert run(project, "--to", "slp", "--out", out) == 0
    assert (out.parent / IMAGES[0]).exists() == (name == "labels.slp")
    labels = sleap_io.load_slp(str(out))
    assert labels.skeletons[0].node_names == list(NAMES) and len(labels.videos) == 2
    assert [frame.frame_idx for frame in labels.labeled_frames] == [0, 1, 0]
    points = points_of_project()
    kept = (VISIBILITY == 2) | ((VISIBILITY == 1) & ~GAPS)
    found = np.stack([frame.user_instances[0].numpy(invisible_as_nan=False) for frame in labels.labeled_frames])
    np.testing.assert_array_equal(found, np.where(kept[..., None], points, np.nan))
    visible = np.stack([frame.user_instances[0].points["visible"] for frame in labels.labeled_frames])
    np.testing.assert_array_equal(visible, VISIBILITY == 2)
    assert [int(frame.image[0, 0, 0]) for frame in labels.labeled_frames] == [0, 50, 100]
    table = read_label_table(c.DataConfig(project=str(out)))
    expected = np.where((VISIBILITY == 2)[..., None], points, np.nan)
    np.testing.assert_array_equal(table.keypoints_image_px, expected)
    assert [int(decode_image(path.read_bytes())[0, 0, 0]) for path in table.paths] == [0, 50, 100]


def test_nwb_has_a_training_frame_for_each_image(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, start = tmp_path / "nwb" / "labels.nwb", "2026-05-04T14:30:00+02:00"
    assert run(project, "--to", "nwb", "--session_start", start, "--out", out) == 0
    assert "dropped: 1 position of keypoints that are not visible; 1 mark" in capsys.readouterr().out
    points = np.where((VISIBILITY == 2)[..., None], points_of_project(), np.nan)
    with pynwb.NWBHDF5IO(str(out), "r") as opened:
        content = opened.read()
        assert content.session_start_time.isoformat() == start
        module = content.processing["behavior"]
        assert list(module["Skeletons"]["animal"].nodes) == list(NAMES)
        frames = module["PoseTraining"].training_frames.training_frames.values()
        assert {frame.annotator for frame in frames} == {"me"}
        images = []
        for frame in frames:
            image = frame.source_video.external_file[int(frame.source_video_frame_index)]
            images.append(Path(image).relative_to(out.parent).as_posix())
            (instance,) = frame.skeleton_instances.skeleton_instances.values()
            row = IMAGES.index(images[-1])
            np.testing.assert_array_equal(instance.node_locations[:], points[row])
            np.testing.assert_array_equal(instance.node_visibility[:], VISIBILITY[row] == 2)
    assert sorted(images) == sorted(IMAGES)
    assert "give --session_start" in fails(capsys, project, "--to", "nwb", "--out", tmp_path / "a.nwb")


@pytest.mark.parametrize("form", ["deeplabcut", "coco", "slp", "csv"])
def test_crops_of_deeplabcut_keep_the_pixels_of_their_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    deeplabcut_project(tmp_path / "dlc", "both")
    out = tmp_path / "new" / {"coco": "a.json", "slp": "a.slp", "csv": "a.csv"}.get(form, "")
    assert run(tmp_path / "dlc", "--to", form, "--out", out) == 0
    assert "the place of 3 cropped images in their frames" in capsys.readouterr().out
    data = c.DataConfig(project=str(out if form in ("coco", "slp") else out.parent if form == "csv" else out))
    before, after = read_label_table(c.DataConfig(project=str(tmp_path / "dlc"))), read_label_table(data)
    np.testing.assert_array_equal(after.keypoints_image_px, before.keypoints_image_px)
    np.testing.assert_allclose(after.keypoints_image_px[3:], points_px(1) - (CROP[0], CROP[2]), atol=1e-9)
    assert [path.read_bytes() for path in after.paths] == [path.read_bytes() for path in before.paths]
    assert after.poses.keypoint_names == KEYPOINTS and after.videos == before.videos
    assert after.scorer == "me"


def test_frames_of_a_sleap_video_become_png_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = save(make_labels(tmp_path), tmp_path / "labels.slp")
    assert run(file, "--to", "deeplabcut", "--scorer", "you", "--out", tmp_path / "dlc") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "left out: 1 frame without labels made by a person"
    assert out[-1] == "dropped: 2 predicted instances; 2 links to videos, whose labelled frames are kept as images"
    table = read_label_table(c.DataConfig(project=str(tmp_path / "dlc")))
    assert table.scorer == "you" and table.poses.frames[0] == "labeled-data/cam1_day/img00000003.png"
    images = [decode_image(path.read_bytes()) for path in table.paths]
    assert [number_in(image) for image in images] == [*LABELLED, *(100 + frame for frame in LABELLED)]
    assert images[0].shape == (SIZE_PX[1], SIZE_PX[0], 3)
    np.testing.assert_array_equal(table.keypoints_image_px, np.concatenate([points_px(0), points_px(1)]))
    # The same command again, and then another image in the place of one of its images.
    again = ("--to", "deeplabcut", "--scorer", "you", "--out", tmp_path / "dlc")
    whole = {path: path.read_bytes() for path in (tmp_path / "dlc").rglob("*.*")}
    table.paths[0].unlink()
    for path in (tmp_path / "dlc").rglob("CollectedData*"):
        path.unlink()
    assert run(file, *again) == 0 and run(file, *again) == 0
    assert {path: path.read_bytes() for path in (tmp_path / "dlc").rglob("*.*")} == whole
    labels = next((tmp_path / "dlc").rglob("*.csv"))
    labels.write_bytes(b"mine")
    assert f"{labels} already exists: --overwrite replaces it" in fails(capsys, file, *again)
    assert run(file, *again, "--overwrite") == 0 and labels.read_bytes() == whole[labels]
    assert run(file, "--to", "coco", "--out", tmp_path / "dlc" / "labels.json") == 0
    cv2.imwrite(str(table.paths[0]), np.zeros((4, 4, 3), np.uint8))
    message = fails(capsys, file, "--to", "csv", "--out", tmp_path / "dlc" / "labels.csv")
    assert f"{table.paths[0]} already exists and differs from" in message


def dropped_line(capsys: pytest.CaptureFixture[str]) -> str:
    return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("dropped: "))


@pytest.mark.parametrize("name", ["a.json", "a.slp", "a.pkg.slp"])
def test_hidden_positions_come_back_from_the_files_that_hold_them(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Another image has only hidden positions, which SLEAP does not train; each file is trained as before."""
    labels = project / "CollectedData.csv"
    (project / "labeled-data/day2/img0009.png").write_bytes((project / IMAGES[0]).read_bytes())
    labels.write_text(labels.read_text() + "labeled-data/day2/img0009.png,5.0,6.5,1,,,0,,,0\n")
    other, back = tmp_path / "other" / name, tmp_path / "back" / "CollectedData.csv"
    assert run(project, "--to", "coco" if name == "a.json" else "slp", "--out", other) == 0
    out = capsys.readouterr().out.splitlines()
    use = "trains them at their positions" if name == "a.json" else "does not train them"
    assert out[-1] == (
        "note: 2 keypoints marked as not visible: jaxpose trains the network to be unsure there in the project, and "
        f"{use} in the new file"
    )
    assert run(other, "--to", "csv", "--out", back) == 0
    assert dropped_line(capsys) == "dropped: nothing"
    before, after = (read_label_table(c.DataConfig(project=str(file.parent))) for file in (labels, back))
    rows = [[Path(image).name for image in after.poses.frames].index(Path(image).name) for image in before.poses.frames]
    kept = (before.visibility == 2) | ((before.visibility == 1) & np.isfinite(before.keypoints_image_px[..., 0]))
    np.testing.assert_array_equal(after.visibility[rows], np.where(kept, before.visibility, 0))
    expected = np.where(kept[..., None], before.keypoints_image_px, np.nan)
    np.testing.assert_array_equal(after.keypoints_image_px[rows], expected)
    assert after.scorer == "me"
    # What training reads has not changed: COCO's hidden keypoints are visible, those of SLEAP not labelled.
    found = read_project(c.DataConfig(project=str(other)))
    assert len(found.poses.frames) == (4 if name == "a.json" else 3)
    assert sorted(np.unique(found.visibility)) == [0, 2]
    trained = kept if name == "a.json" else before.visibility == 2
    assert np.isfinite(found.labelled_frame_px()).all(axis=-1).sum() == trained.sum()


def with_more(tree: dict[str, Any]) -> dict[str, Any]:
    tree["categories"][0] |= {"skeleton": [[1, 4], [2, 4]], "supercategory": "rodent"}
    crowd = {"id": 3, "image_id": 10, "category_id": 3, "iscrowd": 1, "keypoints": [1, 1, 2] * 4}
    tree["annotations"] = [*tree["annotations"], crowd]
    tree["annotations"][0]["segmentation"] = [[0, 0, 0, 9, 9, 9]]
    return tree | {"info": {"contributor": "Bo", "year": 2026}, "licenses": []}


def test_coco_files_keep_marks_skeleton_animal_and_labeller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "coco").mkdir()
    file = change(coco_project(tmp_path / "coco"), with_more)
    assert run(file, "--to", "coco", "--out", tmp_path / "new" / "a.json") == 0
    assert dropped_line(capsys) == (
        "dropped: 1 image without a label; 1 crowd; 2 annotations without a keypoint; 6 annotations with a drawn box "
        "or area; 1 annotation with a segmentation; 1 kind of animals without a label; the ids, replaced by a "
        "count from 1; the entries info.year, categories.supercategory"
    )
    before, after = COCO(str(file)), COCO(str(tmp_path / "new" / "a.json"))
    (category,) = after.loadCats(after.getCatIds())
    assert category["skeleton"] == [[1, 4], [2, 4]] and category["name"] == "mouse"
    assert after.dataset["info"]["contributor"] == "Bo"
    keypoints = [before.anns[number]["keypoints"] for number in range(100, 106)]
    assert [after.anns[number]["keypoints"] for number in sorted(after.anns)] == keypoints
    assert {*np.array(keypoints).reshape(-1, 3)[:, 2]} == {0, 1, 2}
    assert run(tmp_path / "new" / "a.json", "--to", "coco", "--out", tmp_path / "again" / "a.json") == 0
    assert dropped_line(capsys) == "dropped: nothing"
    assert (tmp_path / "again" / "a.json").read_bytes() == (tmp_path / "new" / "a.json").read_bytes()
    assert run(file, "--to", "csv", "--out", tmp_path / "csv" / "a.csv") == 0
    assert dropped_line(capsys).startswith("dropped: 2 edges of the skeleton; the animal's name mouse; 1 image without")


def test_sleap_files_keep_hidden_points_and_the_skeleton(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = make_labels(tmp_path / "videos")
    labels.skeletons[0].name = "fly"
    labels.skeletons[0].add_edge("nose", "tail")
    labels.skeletons[0].add_symmetry("tail", "nose")
    for frame in labels.labeled_frames[:2]:
        frame.user_instances[0].points["visible"][1] = False
    labels.labeled_frames[0].user_instances[0].track = sleap_io.Track("a")
    labels.update()
    labels.suggestions.append(sleap_io.SuggestionFrame(labels.videos[0], 11))
    file = save(labels, tmp_path / "labels.slp")
    out = tmp_path / "new" / "labels.pkg.slp"
    assert run(file, "--to", "slp", "--out", out) == 0
    assert dropped_line(capsys) == (
        "dropped: 2 predicted instances; 1 track; 1 suggested frame; 2 links to videos, whose labelled frames are kept "
        "as images"
    )
    before, after = sleap_io.load_slp(str(file)), sleap_io.load_slp(str(out))
    (skeleton,) = after.skeletons
    assert skeleton.name == "fly" and skeleton.edge_names == [("nose", "tail")]
    assert skeleton.symmetry_names == before.skeletons[0].symmetry_names
    kept = [frame.user_instances[0] for frame in before.labeled_frames if frame.user_instances]
    written = [frame.user_instances[0] for frame in after.labeled_frames]
    for one, other in zip(kept, written, strict=True):
        points = one.numpy(invisible_as_nan=False)
        np.testing.assert_array_equal(other.numpy(invisible_as_nan=False), points)
        np.testing.assert_array_equal(other.points["visible"], one.points["visible"] & np.isfinite(points[:, 0]))
    assert run(out, "--to", "deeplabcut", "--out", tmp_path / "dlc") == 0
    assert dropped_line(capsys) == (
        "dropped: 2 positions of keypoints that are not visible; 1 edge of the skeleton; 1 symmetric pair of the "
        "skeleton; the animal's name fly"
    )


def test_the_skeleton_of_deeplabcut_goes_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deeplabcut_project(tmp_path / "dlc")
    assert run(tmp_path / "dlc", "--to", "coco", "--out", tmp_path / "coco" / "a.json") == 0
    assert dropped_line(capsys) == "dropped: the place of 3 cropped images in their frames; all else in config.yaml"
    edge = [KEYPOINTS.index("nose") + 1, KEYPOINTS.index("tail") + 1]
    assert COCO(str(tmp_path / "coco" / "a.json")).cats[1]["skeleton"] == [edge]
    start = ("--session_start", "2026-05-04T14:30:00+02:00")
    assert run(tmp_path / "coco" / "a.json", "--to", "nwb", *start, "--out", tmp_path / "nwb" / "a.nwb") == 0
    with pynwb.NWBHDF5IO(str(tmp_path / "nwb" / "a.nwb"), "r") as opened:
        skeleton = opened.read().processing["behavior"]["Skeletons"]["animal"]
        assert (skeleton.edges[:] + 1).tolist() == [edge]
    capsys.readouterr()
    assert run(tmp_path / "dlc", "--to", "csv", "--out", tmp_path / "csv" / "a.csv") == 0
    assert "dropped: 1 edge of the skeleton; the place of" in capsys.readouterr().out


def test_a_project_is_not_changed(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file CollectedData.csv would make a project of Lightning Pose of that of DeepLabCut, without its crops."""
    deeplabcut_project(tmp_path / "dlc")
    before = sorted((tmp_path / "dlc").rglob("*"))
    for given in (tmp_path / "dlc", tmp_path / "dlc" / "config.yaml"):
        message = fails(capsys, given, "--to", "csv", "--out", tmp_path / "dlc" / "CollectedData.csv")
        assert f"in the project {tmp_path / 'dlc'} itself; choose a place outside of it" in message
    message = fails(capsys, project, "--to", "csv", "--out", tmp_path / "dlc" / "CollectedData.csv")
    assert "dlc is a DeepLabCut project, whose own labels would no longer be read" in message
    assert sorted((tmp_path / "dlc").rglob("*")) == before
    message = fails(capsys, tmp_path / "dlx", "--to", "csv", "--out", tmp_path / "a" / "a.csv")
    dlx, dlc = tmp_path / "dlx", tmp_path / "dlc"
    assert message.endswith(f"PROJECT is '{dlx}', but {dlx} does not exist; did you mean {dlc}?\n")


def test_mistakes_are_named(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = fails(capsys, project, "--to", "coco", "--out", tmp_path / "a")
    assert "it must be a file whose name ends in .json" in message
    labels = project / "CollectedData.csv"
    labels.write_text(labels.read_text().replace("0100.png,", "0100.png,x"))
    message = fails(capsys, project, "--to", "coco", "--out", tmp_path / "a.json")
    assert "1 of 3 rows of" in message and f"{labels}:5: x of nose is 'x', not a number" in message
    assert "has no CollectedData_top.csv" in fails(
        capsys, project, "--to", "csv", "--out", tmp_path / "a.csv", "data.labels=CollectedData_top.csv"
    )
    assert not (tmp_path / "a.json").exists()


def test_options_say_how_the_labels_are_read(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "a.csv"
    labels = project / "CollectedData.csv"
    labels.write_text(labels.read_text().replace("0100.png,", "0100.png,x"))
    # One place in the last image is (0, y).
    (x, y), *_ = points_of_project()[2]
    given = ["data.on_bad_frame=skip", f"data.missing_at_px={float(x)!r},{float(y)!r}"]
    assert run(project, "--to", "csv", *given, "--out", out) == 0
    assert f"left out: {labels}:5: x of nose is 'x'" in capsys.readouterr().out
    found = read_label_table(c.DataConfig(project=str(out.parent)))
    assert found.poses.frames == (IMAGES[0], IMAGES[2]) and np.isnan(found.keypoints_image_px[1, 0]).all()
    message = fails(capsys, project, "--to", "csv", "--out", out, "data.train_share=0.5")
    assert "data.train_share does not change how labels are read; convert labels takes data.labels, data.or" in message
    assert "there is no option data.orientatoin; did you mean data.orientation" in fails(
        capsys, project, "--to", "csv", "--out", out, "data.orientatoin=upright"
    )
    assert "data.orientation is 'up'; it must be one of" in fails(
        capsys, project, "--to", "csv", "--out", out, "data.orientation=up"
    )


def test_predictions_that_a_person_has_proofread_are_converted(tmp_path: Path) -> None:
    labels = make_labels(tmp_path)
    labels.labeled_frames = labels.labeled_frames[-1:]
    out = tmp_path / "new" / "a.csv"
    assert run(save(labels, tmp_path / "p.slp"), "data.predicted_labels=True", "--to", "csv", "--out", out) == 0
    np.testing.assert_array_equal(
        read_label_table(c.DataConfig(project=str(out.parent), labels="a.csv")).keypoints_image_px, np.ones((1, 4, 2))
    )


def test_an_image_that_leads_out_of_the_project_is_not_copied(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = tmp_path / "private.png"
    (project / IMAGES[0]).rename(private)
    (project / IMAGES[0]).symlink_to(private)
    assert f"{IMAGES[0]} is a link to {private}" in fails(capsys, project, "--to", "coco", "--out", tmp_path / "a.json")
    assert not (tmp_path / "labeled-data").exists()
