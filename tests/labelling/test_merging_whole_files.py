"""`jaxpose labels merge` into COCO and SLEAP files: pycocotools and sleap-io read the result, and all else is kept."""

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import sleap_io
from pycocotools.coco import COCO

from jaxpose import labels, suggest
from jaxpose.config import DataConfig
from jaxpose.label.project import open_project
from jaxpose.label.store import Store
from jaxpose.labelling import merging_command
from tests.formats.other_projects import KEYPOINTS
from tests.formats.test_coco import change, coco_project
from tests.formats.test_sleap import save
from tests.label.test_store import edit
from tests.label.test_whole_files import contents, points_of, sleap_project
from tests.labelling.test_changes import killed_everywhere
from tests.painted_videos import write
from tests.several_animals import ALONE, ANIMALS, EMPTY, IMAGES, coco_file, sleap_file

Capture = pytest.CaptureFixture[str]
Tree = dict[str, Any]


def merge(new: Path, project: Path) -> int:
    return labels.main(["merge", str(new), "--project", str(project)])


def project_of(folder: Path) -> Path:
    (folder / "project").mkdir()
    return coco_project(folder / "project")


def other_day(folder: Path) -> Path:
    """Labels of images that the project lacks, with the keypoints in another order, and one image without a label."""
    folder.mkdir()
    file = coco_project(folder)
    for name in ("day1", "day2"):
        (folder / "images" / name).rename(folder / "images" / f"new_{name}")

    def how(tree: Tree) -> Tree:
        for image in tree["images"]:
            image["file_name"] = f"new_{image['file_name']}"
        tree["categories"][0]["keypoints"].reverse()
        for one in tree["annotations"]:
            if "keypoints" in one:
                one["keypoints"] = np.reshape(one["keypoints"], (-1, 3))[::-1].ravel().tolist()
        tree["annotations"][1]["segmentation"] = [[0, 0, 9, 0, 9, 9]]
        return tree

    return change(file, how)


def keypoints(file: Path) -> dict[str, dict[str, list[float]]]:
    """{image: {keypoint: x, y, v}} of the labelled images of one animal, as pycocotools reads them."""
    coco = COCO(str(file))
    (category,) = coco.loadCats([3])
    found = {}
    for one in coco.loadAnns(coco.getAnnIds(catIds=[3])):
        if one["num_keypoints"] if "num_keypoints" in one else any(one["keypoints"][2::3]):
            points = dict(zip(category["keypoints"], np.reshape(one["keypoints"], (-1, 3)).tolist(), strict=True))
            (image,) = coco.loadImgs([one["image_id"]])
            assert image["file_name"] not in found
            found[image["file_name"]] = points
    return found


def test_new_images_become_entries_of_a_coco_file_and_all_else_stays(tmp_path: Path, capsys: Capture) -> None:
    project, new = project_of(tmp_path), other_day(tmp_path / "new")
    change(project, lambda tree: tree | {"info": {"year": 2026}, "mine": [1.50, None]})
    # An image that the file lists without a label, and a neighbour of a labelled one.
    cv2.imwrite(str(tmp_path / "project/images/day1/unlabelled.png"), np.zeros((48, 64, 3), np.uint8))
    shutil.copy(tmp_path / "project/images/day1/unlabelled.png", tmp_path / "new/images/new_day1/img04.png")
    (tmp_path / "new/images/day1").mkdir()
    shutil.copy(tmp_path / "project/images/day1/unlabelled.png", tmp_path / "new/images/day1")
    change(new, lambda tree: tree | {"images": [*tree["images"], {"id": 77, "file_name": "day1/unlabelled.png"}],
           "annotations": [*tree["annotations"], {"id": 78, "image_id": 77, "category_id": 3,
                           "keypoints": [1, 2, 2, 3, 4, 1, 5, 6, 2, 0, 0, 0]}]})  # fmt: skip
    content, before, expected = project.read_bytes(), json.loads(project.read_text()), keypoints(new)
    assert merge(new, project) == 0
    shown = capsys.readouterr().out
    assert f"{project}: 7 images newly labelled\n7 images copied\nbackups of the label files: {project}.bak" in shown
    assert "left out: 1 image without any label\n" in shown
    assert "not merged: 6 annotations with a drawn box or area, 1 annotation with a segmentation\n" in shown
    assert Path(f"{project}.bak").read_bytes() == content
    after, found = json.loads(project.read_text()), keypoints(project)
    assert {name: points for name, points in found.items() if name in expected} == expected
    assert len(found) == 13
    # The annotation without keypoints is that of the image; all others are as before, and come first.
    blank = [one["id"] for one in before["annotations"]].index(1)
    changed = after["annotations"][blank]
    assert changed.keys() - before["annotations"][blank].keys() == {"num_keypoints"} and changed["image_id"] == 5
    for name, entries in before.items():
        kept = after[name][: len(entries)] if isinstance(entries, list) else after[name]
        kept = [one for one in kept if one is not changed] if name == "annotations" else kept
        assert kept == ([one for one in entries if one["id"] != 1] if name == "annotations" else entries)
    assert len({one["id"] for one in after["annotations"]}) == len(after["annotations"]) == 14
    sizes = {(one["width"], one["height"]) for one in after["images"][len(before["images"]) :]}
    assert sizes == {(64, 48)} and after.keys() == before.keys()
    for image in expected:
        copied = (tmp_path / "project/images" / image).read_bytes()
        assert copied == (tmp_path / "new/images" / image).read_bytes()
    assert (tmp_path / "project/images/new_day1/img04.png").is_file()
    # Once more: all of it is there.
    merged = project.read_bytes()
    assert merge(new, project) == 0
    assert "already has all labels of" in capsys.readouterr().out and project.read_bytes() == merged


def renamed(tree: Tree, name: str, place: int = 0) -> Tree:
    tree["images"][place]["file_name"] = name
    return tree


def moved(tree: Tree, x: float) -> Tree:
    tree["annotations"][0]["keypoints"][0] = x
    return tree


def other_kind(tree: Tree) -> Tree:
    tree["categories"].append({**tree["categories"][0], "id": 9, "name": "rat"})
    tree["annotations"][0]["category_id"] = 9
    return tree


def other_names(tree: Tree) -> Tree:
    tree["categories"][0]["keypoints"][-1] = "nos"
    return tree


@pytest.mark.parametrize(("how", "said"), [
    (lambda tree: moved(renamed(tree, "day1/img03.png"), 9), "it is already labelled in PROJECT; remove one"),
    (lambda tree: renamed(tree, "day1/img003.png"), "the project has an image images/day1/img03.png, which may be"),
    (lambda tree: renamed(tree, "day1/img07.png"), "differs from the project's image of this name"),
    (lambda tree: renamed(tree, "new_day1/img07.png"), "two entries of this image"),
    (lambda tree: renamed(tree, "../new_day1/img99.png"), "lies outside of the project folder"),
    (lambda tree: renamed(tree, "new_day1/img99.png"), "new/new_day1/img99.png does not exist"),
    (lambda tree: moved(tree, 99), "outside of its image of 64 x 48 px: tail"),
    (other_kind, "an animal has the category rat, and the labelled ones of the project are mouse"),
    (other_names, "the project has no keypoint nos; did you mean nose?"),
], ids=range(9))  # fmt: skip
def test_labels_that_do_not_fit_a_coco_file_change_nothing(
    how: Any, said: str, tmp_path: Path, capsys: Capture
) -> None:
    project, new = project_of(tmp_path), other_day(tmp_path / "new")
    (tmp_path / "new/images/day1").mkdir()
    shutil.copy(tmp_path / "project/images/day1/img03.png", tmp_path / "new/images/day1/img03.png")
    shutil.copy(tmp_path / "project/images/day1/img03.png", tmp_path / "new/images/day1/img07.png")
    change(new, how)
    before = {file: file.read_bytes() for file in (tmp_path / "project").rglob("*") if file.is_file()}
    assert merge(new, project) == 2
    assert said.replace("PROJECT", str(project)) in capsys.readouterr().err
    left = {file for file in (tmp_path / "project").rglob("*") if file.is_file()}
    assert {file for file in left if not file.name.startswith(".jaxpose")} == before.keys()
    assert all(file.read_bytes() == content for file, content in before.items())


def test_animals_of_two_people_are_matched_by_position_in_a_coco_file(tmp_path: Path, capsys: Capture) -> None:
    project, new = coco_file(tmp_path / "project"), coco_file(tmp_path / "new", animals=(1, 0))
    before, poses = json.loads(project.read_text()), {}
    alone, empty = ALONE + 1, EMPTY + 1

    def second_person(tree: Tree) -> Tree:
        for one in tree["annotations"]:
            points = np.reshape(one["keypoints"], (-1, 3)).astype(float)
            points[points[:, 2] > 0, :2] += 1
            if one["image_id"] == 2 and not points[2, 2]:
                # A point that the first person lacks.
                points[2] = [*points[1, :2] + 9, 1]
            one["keypoints"] = poses[one["id"]] = points.ravel().tolist()
        # It nearly lies on the other one, which is labelled too.
        (other,) = (one for one in before["annotations"] if one["image_id"] == alone)
        close = (np.reshape(other["keypoints"], (-1, 3)) - [6.25, 0, 0]).ravel().tolist()
        far = [40, 50, 2, 44, 50, 2, 48, 60, 1]
        for number, (image, pose) in enumerate(((alone, close), (empty, far)), 200):
            poses[number] = pose
            tree["annotations"].append({"id": number, "image_id": image, "category_id": 1, "keypoints": pose})
        tree["annotations"] = [one for one in tree["annotations"] if one["image_id"] != 3]
        return tree

    change(new, second_person)
    assert merge(new, project) == 0
    shown = capsys.readouterr().out
    assert "labelled twice: 19 animals in 10 images, 1.4 px apart in the median, at most 1.4 px" in shown
    assert f"{project}: 1 image newly labelled, 2 labelled images of the project changed\n0 images copied\n" in shown
    assert f"added to images of the project: {IMAGES[ALONE]} (new annotation 200)\nfilled: 1 point" in shown
    assert "other individuals" not in shown
    after, coco = json.loads(project.read_text()), COCO(str(project))
    (filled,) = (one for one in coco.loadAnns(coco.getAnnIds(imgIds=[2])) if one["id"] == 2)
    (old,) = (one for one in before["annotations"] if one["id"] == 2)
    assert filled["keypoints"][:6] == old["keypoints"][:6] and filled["keypoints"][8] == 1
    for image, number in ((alone, 200), (empty, 201)):
        found = coco.loadAnns(coco.getAnnIds(imgIds=[image]))
        assert found[-1]["keypoints"] == poses[number] and found[-1]["id"] in (100, 101)
    kept = [one for one in after["annotations"] if one["id"] not in (2, 100, 101)]
    assert kept == [one for one in before["annotations"] if one["id"] != 2] and after["images"] == before["images"]
    assert merge(new, project) == 0
    assert "already has all labels of" in capsys.readouterr().out
    # A file with the marks 0 and 1 has no place for hidden points; an animal that may be another one stops the merge.
    binary = change(tmp_path / "project/binary.json", lambda _: json.loads(json.dumps(before)))
    change(binary, lambda tree: tree | {"annotations": [
        one | {"keypoints": np.minimum(np.reshape(one["keypoints"], (-1, 3)), [99, 99, 1]).ravel().tolist()}
        for one in tree["annotations"]]})  # fmt: skip
    assert merge(new, binary) == 2
    assert "binary.json cannot mark right_ear as hidden: its marks are only 0 and 1" in capsys.readouterr().err
    change(new, lambda tree: tree | {"annotations": [{"id": 1, "image_id": empty, "category_id": 1,
                                                      "keypoints": [47, 50, 2, 51, 50, 2, 55, 60, 2]}]})  # fmt: skip
    assert merge(new, project) == 2
    assert f"new annotation 1 of {IMAGES[EMPTY]} may be annotation 101 in {project}, " in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["coco", "sleap"])
def test_what_another_program_saves_during_a_merge_is_not_overwritten(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    make = coco_file if kind == "coco" else sleap_file
    project, new = make(tmp_path / "project", animals=(0,)), make(tmp_path / "new")
    plan_merge, saved = merging_command.plan_merge, project.read_bytes() + b" "

    def then_a_save(*given: Any) -> Any:
        found = plan_merge(*given)
        project.write_bytes(saved)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(merging_command, "plan_merge", then_a_save)
        assert merge(new, project) == 2
    assert f"{project} was changed by another program" in capsys.readouterr().err
    assert project.read_bytes() == saved
    assert merge(new, project) == 0
    assert "the project now has images with several animals" in capsys.readouterr().out
    # A link, another kind of file, and a file without labels.
    (tmp_path / "project" / f"link{project.suffix}").symlink_to(project)
    assert merge(new, tmp_path / "project" / f"link{project.suffix}") == 2
    assert "would replace the link by a file" in capsys.readouterr().err
    assert merge(tmp_path / "new.csv", project) == 2
    assert "as the project is: write it as one with jaxpose convert labels" in capsys.readouterr().err


def labels_of(videos: list[str], frames: dict[tuple[int, int], list[np.ndarray]], file: Path) -> Path:
    """A .slp with instances (4, 2) that a person made, of the track "two"; its keypoints are in another order."""
    skeleton, track = sleap_io.Skeleton(list(KEYPOINTS[::-1])), sleap_io.Track("two")
    of_videos = [sleap_io.Video.from_filename(video) for video in videos]
    labelled = [
        sleap_io.LabeledFrame(
            of_videos[number], frame, [sleap_io.Instance.from_numpy(one[::-1], skeleton, track=track) for one in poses]
        )
        for (number, frame), poses in frames.items()
    ]
    predicted = sleap_io.PredictedInstance.from_numpy(np.ones((4, 2)), skeleton)
    labelled.append(sleap_io.LabeledFrame(of_videos[0], 17, [predicted]))
    return save(sleap_io.Labels(labelled, videos=of_videos, skeletons=[skeleton], tracks=[track]), file)


POSE = np.array([(20.25, 10), (24, 12), (28, 12), (20, 30)])


def test_frames_of_a_video_become_frames_of_a_sleap_file_and_all_else_stays(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "project").mkdir()
    project = sleap_project(tmp_path / "project")
    # The second video is another copy of the project's; one frame is a suggestion, one negative, one has a prediction.
    (tmp_path / "new/cam2").mkdir(parents=True)
    copy = shutil.copy(tmp_path / "project/cam2/day.mp4", tmp_path / "new/cam2/day.mp4")
    videos = [str(copy), str(tmp_path / "project/cam1/day.mp4")]
    given = {(0, 2): [POSE], (0, 5): [POSE + 1], (1, 9): [POSE + 2], (1, 11): [POSE + 3]}
    given[1, 11][0][3] = np.nan
    new = labels_of(videos, given, tmp_path / "new/second.slp")
    original, before, raw = project.read_bytes(), points_of(sleap_io.load_slp(str(project))), contents(project)
    assert merge(new, project) == 0
    shown = capsys.readouterr().out
    negative = "no longer marked as without animals: labels.slp/cam2_day/img00000005.bmp"
    assert f"{project}: 4 images newly labelled\n{negative}\nbackups of the label files: {project}.bak\n" in shown
    assert "left out: 1 frame whose predicted instances nobody has corrected\n" in shown
    assert Path(f"{project}.bak").read_bytes() == original
    found = sleap_io.load_slp(str(project))
    after = points_of(found)
    names = [tmp_path / f"project/{name}/day.mp4" for name in ("cam2", "cam1")]
    merged = {(str(names[video]), frame): poses[0] for (video, frame), poses in given.items()}
    for key, pose in merged.items():
        *others, (kind, track, points, _) = after.pop(key)
        assert (kind, track, points) == (sleap_io.Instance, "two", repr(pose.tolist()))
        assert others == before.pop(key, [])
    assert after == before
    assert [track.name for track in found.tracks] == ["one", "two"]
    # The confirmed prediction is replaced; the frame with an animal is not negative any more; all other tables stay.
    (confirmed,) = (frame for frame in found if frame.frame_idx == 9 and str(names[1]) == frame.video.filename)
    assert confirmed.user_instances[0].from_predicted is confirmed.predicted_instances[0]
    assert not any(frame.is_negative for frame in found)
    changed = {name for name, text in contents(project).items() if raw.get(name) != text}
    assert changed == {"frames", "instances", "points", "tracks_json", "negative_frames"}
    content = project.read_bytes()
    assert merge(new, project) == 0
    assert "already has all labels of" in capsys.readouterr().out and project.read_bytes() == content


def test_labels_that_do_not_fit_a_sleap_file_change_nothing(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "project").mkdir()
    project = sleap_project(tmp_path / "project")
    cam1, cam2 = (str(tmp_path / f"project/{name}/day.mp4") for name in ("cam1", "cam2"))
    shutil.copy(cam1, tmp_path / "night.mp4")
    (tmp_path / "cam1").mkdir()
    other = shutil.copy(cam2, tmp_path / "cam1/day.mp4")
    original = project.read_bytes()
    for videos, frames, said in (
        ([str(tmp_path / "night.mp4"), cam2], {(0, 1): [POSE]}, "no such image or video night; it has cam1_day, cam2"),
        ([cam1], {(0, 3): [POSE]}, f"it is already labelled in {project}; remove one of the two"),
        ([cam1], {(0, 99): [POSE]}, "has only the frames 0 to 19"),
        ([cam1], {(0, 1): [POSE + 40]}, "outside of its image of 64 x 48 px: "),
        ([str(other), cam2], {(0, 1): [POSE]}, "is another one than the video"),
        (
            [cam1, "gone.mp4"],
            {(0, 1): [POSE], (1, 1): [POSE]},
            "new.slp has labels in 1 frame without an image: its video",
        ),
        ([cam1], {}, "predicted instances count once a person has corrected them"),
    ):
        assert merge(labels_of(videos, frames, tmp_path / "new.slp"), project) == 2
        assert said in capsys.readouterr().err
        assert project.read_bytes() == original
    # A package has no other images than its own.
    package = save(sleap_io.load_slp(str(project)), tmp_path / "project/labels.pkg.slp", embed="user")
    assert merge(labels_of([cam1, cam2], {(0, 1): [POSE]}, tmp_path / "new.slp"), package) == 2
    assert "labels.pkg.slp holds single images of cam1_day, not frame 1" in capsys.readouterr().err
    # Two animals of one track, as a tracker's mistake leaves them.
    new = labels_of([cam1], {(0, 1): [POSE], (0, 2): [POSE, POSE + [20, 10]]}, tmp_path / "new.slp")
    assert merge(new, project) == 0
    shown = capsys.readouterr().out
    assert (
        "added without a track, because another animal there has theirs: labels.slp/cam1_day/img00000002.bmp (two)"
        in shown
    )
    (frame,) = (frame for frame in sleap_io.load_slp(str(project)) if frame.frame_idx == 2)
    assert [one.track and one.track.name for one in frame.user_instances] == ["two", None]


def test_animals_of_two_people_are_matched_by_position_in_a_sleap_file(tmp_path: Path, capsys: Capture) -> None:
    project, new = sleap_file(tmp_path / "project", animals=(0,)), sleap_file(tmp_path / "new", animals=(1, 0))
    before = sleap_io.load_slp(str(project))
    assert merge(new, project) == 0
    shown = capsys.readouterr().out
    assert "labelled twice: 11 animals in 11 images, 0.0 px apart" in shown and "(female)" in shown
    found, second = (sleap_io.load_slp(str(file)) for file in (project, new))
    for one, old, other in zip(found, before, second, strict=True):
        poses = {inst.track.name: inst.numpy() for inst in one.user_instances}
        assert poses.keys() == {inst.track.name for inst in other.user_instances}
        for inst in [*old.user_instances, *other.user_instances]:
            np.testing.assert_array_equal(poses[inst.track.name], inst.numpy())
        assert [inst.track.name for inst in one.user_instances] == [*ANIMALS[: len(poses)]]
    assert [track.name for track in found.tracks] == [*ANIMALS]


@pytest.mark.faults
def test_a_merge_into_a_coco_file_that_was_killed_anywhere_finishes_when_it_is_repeated(tmp_path: Path) -> None:
    project_of(tmp_path)
    new, work = other_day(tmp_path / "new"), tmp_path / "work"
    arguments = "merge", str(new), "--project", str(work / "labels.json")
    kills, files = killed_everywhere(tmp_path / "project", work, "labels", *arguments)
    # Six images, the label file and the copy of the one before are put into place.
    assert kills >= 8 and "labels.json.bak" in files and len([name for name in files if "/new_day" in name]) == 6


def test_suggestions_of_a_sleap_project_that_was_moved_are_labelled_and_merged(tmp_path: Path, capsys: Capture) -> None:
    project, out = tmp_path / "project/labels.slp", tmp_path / "round2"
    project.parent.mkdir()
    labels_of([str(write(tmp_path / "day.mp4", 20))], {(0, 3): [POSE]}, project)
    (tmp_path / "day.mp4").rename(project.parent / "day.mp4")
    assert suggest.main(["--project", str(project), "--frames", "2", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert (
        f"label {out / 'suggestions.slp'}, or your labelling tool), then: python -m jaxpose.labels merge {out}" in shown
    )
    # A person labels a frame of it with the page.
    store = Store(open_project(str(out / "suggestions.slp"), DataConfig().labels))
    edit(store, store.images[0], nose=(10.0, 12.0, 2))
    store.close()
    assert merge(out, project) == 0
    assert f"{project}: 1 image newly labelled\n" in capsys.readouterr().out
    assert sum(bool(frame.user_instances) for frame in sleap_io.load_slp(str(project))) == 2
