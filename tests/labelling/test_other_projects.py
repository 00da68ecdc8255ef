"""Suggested frames and checked labels of projects of DeepLabCut, SLEAP and COCO, with known values."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest
import sleap_io
import yaml
from pycocotools.coco import COCO

from jaxpose import config as c
from jaxpose import labels, suggest
from jaxpose.conversion.label_files import Target, convert_labels
from jaxpose.data.project import Project
from jaxpose.data.synthetic_animal import KEYPOINT_NAMES
from jaxpose.formats.project import read_project
from tests.check.test_check import found_in
from tests.formats.other_projects import CROP, FRAMES, KEYPOINTS, LABELLED, deeplabcut_project
from tests.formats.test_coco import coco_project
from tests.formats.test_sleap import make_labels, save
from tests.painted_videos import number_in, plain, write
from tests.predicted_runs import predicted_run, true_track

Capture = pytest.CaptureFixture[str]
LEFT, RIGHT = KEYPOINT_NAMES.index("left_hind_paw"), KEYPOINT_NAMES.index("right_hind_paw")
CROP_PX = (CROP[0], CROP[2], CROP[1] - CROP[0], CROP[3] - CROP[2])


def _track(spikes: tuple[int, ...], frames: int = FRAMES) -> np.ndarray:
    """A resting animal inside of CROP, whose first keypoint jumps; most in a frame that is labelled."""
    track = np.random.default_rng(0).normal((30, 20), 0.1, (frames, len(KEYPOINTS), 2)).round(3)
    for place, frame in enumerate((LABELLED[1], *spikes)):
        track[frame, 0] += 12 - 2 * place
    return track


def _run(folder: Path, project: Path, tracks: dict[Path, np.ndarray]) -> Path:
    tables = {video: (track, np.full(track.shape[:2], 0.75)) for video, track in tracks.items()}
    return predicted_run(folder, project, tables, keypoint_names=KEYPOINTS)


def _suggested(out: Path) -> set[tuple[str, int]]:
    images = pd.read_csv(out / "suggestions.csv")["image"]
    return {(Path(image).parent.name, int(Path(image).stem.removeprefix("img"))) for image in images}


def _read(project: Path) -> Project:
    return read_project(c.DataConfig(project=str(project)))


@pytest.mark.parametrize("embed", [False, True])
def test_suggestions_for_sleap_merge_into_its_project(tmp_path: Path, capsys: Capture, embed: bool) -> None:
    """Merged with sleap-io, as SLEAP does; then a person corrects them, and the project has two more labels."""
    project = save(make_labels(tmp_path), tmp_path / ("labels.pkg.slp" if embed else "labels.slp"), embed=embed)
    video, track = tmp_path / "cam2" / "day.mp4", _track((1, 17))
    run, out = _run(tmp_path / "run", project, {video: track}), tmp_path / "out"
    assert suggest.main(["--run", str(run), str(video), "--frames", "2", "--apart", "2", "--out", str(out)]) == 0
    # Frame 7 jumps most, but is labelled.
    assert _suggested(out) == {("cam2_day", 1), ("cam2_day", 17)}
    shown = capsys.readouterr().out
    step = f"into the project of the package {project} in SLEAP" if embed else f"merge {out} --project {project}"
    assert step in shown and "cam2_day: 2 frames" in shown
    images = {int(file.stem[3:]): cv2.imread(str(file)) for file in (out / "labeled-data/cam2_day").iterdir()}
    assert sorted(images) == [1, 17]
    assert all(number_in(image) == 100 + frame for frame, image in images.items())
    theirs, new = sleap_io.load_slp(str(project)), sleap_io.load_slp(str(out / "suggestions.slp"))
    assert [suggestion.frame_idx for suggestion in new.suggestions] == [1, 17]
    assert [Path(str(suggestion.video.filename)) for suggestion in new.suggestions] == [video] * 2
    (first, _) = (frame.instances[0] for frame in new.labeled_frames)
    assert isinstance(first, sleap_io.PredictedInstance) and first.skeleton.node_names == list(KEYPOINTS)
    np.testing.assert_allclose([frame.instances[0].numpy() for frame in new.labeled_frames], track[[1, 17]], atol=1e-3)
    np.testing.assert_allclose(first.points["score"], 0.75)
    before = project.read_bytes()
    assert labels.main(["merge", str(out), "--project", str(project)]) == 2
    assert "predicted instances count once a person has corrected them" in capsys.readouterr().err
    assert project.read_bytes() == before
    if not embed:
        theirs.merge(new)
        assert len(theirs.videos) == 2 and len(theirs.skeletons) == 1
        for frame in theirs.labeled_frames:
            if frame.video is theirs.videos[1] and frame.frame_idx in (1, 17):
                frame.instances = [sleap_io.Instance.from_numpy(frame.instances[0].numpy(), theirs.skeletons[0])]
        found = _read(save(theirs, project))
        assert len(found.poses.frames) == 8
        row = found.poses.frames.index("labels.slp/cam2_day/img00000017.bmp")
        np.testing.assert_allclose(found.keypoints_frame_px[row], track[17], atol=1e-3)


def test_the_videos_of_a_sleap_file_need_no_names(tmp_path: Path, capsys: Capture) -> None:
    """Two videos of one name: all frames are suggested that are not labelled and are apart; then those of --run."""
    made = make_labels(tmp_path)
    made.labeled_frames[2].frame_idx = FRAMES
    project, out = save(made, tmp_path / "labels.slp"), tmp_path / "out"
    arguments = ["--project", str(project), "--frames", "40", "--apart", "0", "--empty", "--out", str(out)]
    assert suggest.main(arguments) == 0
    found = _suggested(out)
    assert {name for name, _ in found} == {"cam1_day", "cam2_day"}
    assert not found & {(name, frame) for name in ("cam1_day", "cam2_day") for frame in LABELLED[:2]}
    assert "1 row of the labels cannot be used (see jaxpose check)" in capsys.readouterr().out
    image = cv2.imread(str(out / "labeled-data/cam2_day/img00000005.png"))
    assert number_in(image) == 105
    new = sleap_io.load_slp(str(out / "suggestions.slp"))
    assert len(new.suggestions) == len(found) and not new.labeled_frames
    assert suggest.main([*arguments[:-1], str(tmp_path / "other"), "--h5"]) == 2
    assert "is a file of SLEAP" in capsys.readouterr().err


def test_suggestions_for_coco_are_a_coco_file(tmp_path: Path, capsys: Capture) -> None:
    project = coco_project(tmp_path)
    video, track = tmp_path / "day2.mp4", _track((1, 14), 16)
    run, out = _run(tmp_path / "run", project, {video: track}), tmp_path / "out"
    assert suggest.main(["--run", str(run), str(video), "--frames", "2", "--apart", "2", "--out", str(out)]) == 0
    assert _suggested(out) == {("day2", 1), ("day2", 14)}
    coco = COCO(str(out / "suggestions.json"))
    (category,) = coco.loadCats(coco.getCatIds())
    assert category["keypoints"] == list(KEYPOINTS)
    for image in coco.loadImgs(coco.getImgIds()):
        frame = number_in(cv2.imread(str(out / image["file_name"]))) - 100
        (annotation,) = coco.loadAnns(coco.getAnnIds(imgIds=[image["id"]]))
        np.testing.assert_allclose(np.reshape(annotation["keypoints"], (4, 3))[:, :2], track[frame], atol=1e-3)
    np.testing.assert_allclose(_read(out / "suggestions.json").keypoints_frame_px, track[[1, 14]], atol=1e-3)
    assert labels.main(["merge", str(out), "--project", str(project)]) == 0
    assert "2 images exactly as jaxpose suggest predicted" in capsys.readouterr().out
    assert len(_read(project).poses.frames) == 8
    assert suggest.main(["--run", str(run), "--out", str(tmp_path / "other")]) == 2
    assert "VIDEO is required: the project has no videos" in capsys.readouterr().err


def _add_video(project: Path, name: str, size_px: tuple[int, int] = (64, 48)) -> Path:
    """A video with a crop in config.yaml, but without labels."""
    video = write(project / "videos" / f"{name}.mp4", FRAMES, size_px=size_px, offset=300)
    config = yaml.safe_load((project / "config.yaml").read_text())
    config["video_sets"][f"/data/{name}.mp4"] = {"crop": ", ".join(map(str, CROP))}
    (project / "config.yaml").write_text(yaml.safe_dump(config))
    return video


def test_suggestions_of_cropped_videos_are_crops_with_labels_in_their_pixels(tmp_path: Path, capsys: Capture) -> None:
    """day1 has whole images, day2 and, without labels so far, day3 have crops; predictions are in frame pixels."""
    project = tmp_path / "project"
    old = deeplabcut_project(project)
    _add_video(project, "day3")
    videos = sorted((project / "videos").glob("*.mp4"))
    tracks = {video: _track((1, 17)) + number for number, video in enumerate(videos)}
    frames = {video: (1, 17) if video.stem != "day3" else (1, 7, 17) for video in videos}
    # Outside of the crop: day2 and day3 have no such place in their images.
    for track in tracks.values():
        track[17, 3] = 4.5, 6.25
    run, out = _run(tmp_path / "run", project, tracks), tmp_path / "out"
    assert suggest.main(["--run", str(run), "--frames", "7", "--apart", "2", "--out", str(out)]) == 0
    suggested = {(video.stem, frame) for video in videos for frame in frames[video]}
    assert _suggested(out) == suggested
    expected = {}
    for video, track in tracks.items():
        x, y, width, height = (0, 0, 64, 48) if video.stem == "day1" else CROP_PX
        table = pd.read_csv(
            out / f"labeled-data/{video.stem}/CollectedData_me.csv", header=[0, 1, 2], index_col=[0, 1, 2]
        )
        of_image = track[list(frames[video])] - (x, y)
        of_image[-1, 3] = np.where(video.stem == "day1", of_image[-1, 3], np.nan)
        np.testing.assert_allclose(table.to_numpy().reshape(-1, 4, 2), of_image, atol=1e-3)
        shown = plain(video)
        for file in (out / "labeled-data" / video.stem).glob("*.png"):
            crop = shown[int(file.stem[3:]), y : y + height, x : x + width]
            np.testing.assert_array_equal(cv2.imread(str(file))[..., ::-1], crop)
        names = [f"labeled-data/{video.stem}/img{frame:08d}.png" for frame in frames[video]]
        expected |= dict(zip(names, of_image + (x, y), strict=True))
    assert labels.main(["merge", str(out), "--project", str(project)]) == 0
    found = _read(project)
    after = dict(zip(found.poses.frames, found.labelled_frame_px(), strict=True))
    assert after.keys() == {*old, *expected}
    for image, keypoints in (old | expected).items():
        np.testing.assert_allclose(after[image], keypoints, atol=1e-3)
    capsys.readouterr()
    # Merged frames are labelled now; the next ones are further down.
    assert suggest.main(["--run", str(run), "--frames", "6", "--apart", "2", "--out", str(tmp_path / "next")]) == 0
    assert not _suggested(tmp_path / "next") & suggested


def test_whole_frames_do_not_get_among_crops(tmp_path: Path, capsys: Capture) -> None:
    project, new = tmp_path / "project", tmp_path / "new"
    deeplabcut_project(project)
    file = project / "labeled-data/day2/CollectedData_me.csv"
    before = file.read_bytes()
    folder = new / "labeled-data/day2"
    folder.mkdir(parents=True)
    cv2.imwrite(str(folder / "img00000005.png"), plain(project / "videos/day2.mp4")[5])
    row = "labeled-data,day2,img00000005.png,20,12,21,13,22,14,23,15\n"
    (folder / file.name).write_text("".join(before.decode().splitlines(keepends=True)[:3]) + row)
    assert labels.main(["merge", str(new), "--project", str(project)]) == 2
    message = "img00000005.png has 64 x 48 px, but the project's images of this video have 40 x 32 (crops at (16, 8))"
    assert message in capsys.readouterr().err
    assert file.read_bytes() == before
    small = _add_video(project, "day3", (48, 32))
    assert suggest.main([str(small), "--project", str(project), "--out", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    assert "has frames of 48 x 32 px, but the project's crop of it is (x, y, width, height) = (16, 8, 40, 32)" in shown
    # Labelled images of a crop that config.yaml no longer has.
    config = (project / "config.yaml").read_text()
    (project / "config.yaml").write_text(config.replace(", ".join(map(str, CROP)), "16, 58, 8, 40"))
    video = project / "videos/day2.mp4"
    assert suggest.main([str(video), "--project", str(project), "--out", str(tmp_path / "out")]) == 2
    assert "has labels of day2, but none of its images can be used" in capsys.readouterr().err
    for image in (project / "labeled-data/day2").glob("*.png"):
        image.write_bytes(b"")
    assert suggest.main([str(video), "--project", str(project), "--out", str(tmp_path / "out")]) == 2
    assert "has labels of day2, but none of its images can be used" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_labels_in_h5_files_alone_are_not_hidden_by_a_new_csv(tmp_path: Path, capsys: Capture) -> None:
    project, out = tmp_path / "project", tmp_path / "out"
    deeplabcut_project(project, kind="h5")
    assert suggest.main(["--project", str(project), "--frames", "4", "--apart", "0", "--out", str(out)]) == 0
    file = out / "labeled-data/day1/CollectedData_me.csv"
    assert file.read_text().startswith("scorer,,,me,me,me,me") and not _suggested(out) & {("day1", 3), ("day2", 12)}
    file.write_text(file.read_text().replace(",,,,,,,,", ",1,2,3,4,5,6,7,8"))
    beside = project / "labeled-data/day1/CollectedData_me.csv"
    assert labels.main(["merge", str(file), "--project", str(project)]) == 2
    assert "read_hdf('CollectedData_me.h5').to_csv('CollectedData_me.csv')" in capsys.readouterr().err
    assert not beside.exists()
    theirs = pd.read_hdf(beside.with_suffix(".h5"))
    assert isinstance(theirs, pd.DataFrame)
    theirs.to_csv(beside)
    assert labels.main(["merge", str(file), "--project", str(project)]) == 0
    assert {f"labeled-data/day1/img{frame:02}.png" for frame in LABELLED} < set(_read(project).poses.frames)


def _poses() -> np.ndarray:
    """90 true poses of two videos in frames of 128 px, with a swap and two misplaced keypoints."""
    rng = np.random.default_rng(0)
    poses = np.concatenate([true_track(Path(f"v{number:02d}"), 400)[rng.choice(400, 45, False)] for number in (1, 2)])
    poses += rng.normal(0, 0.3, poses.shape)
    poses[20, [LEFT, RIGHT]] = poses[20, [RIGHT, LEFT]]
    poses[50, 0] += np.where(poses[50, 0] > 64, -40, 40)
    poses[75, LEFT] += np.where(poses[75, LEFT] > 64, -40, 40)
    return poses.round(2)


def _csv_project(folder: Path) -> Path:
    poses = _poses()
    images = [f"labeled-data/v{row // 45}/img{row:04d}.png" for row in range(len(poses))]
    for image in images:
        (folder / image).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / image), np.zeros((128, 128, 3), np.uint8))
    columns = pd.MultiIndex.from_product([["me"], KEYPOINT_NAMES, ["x", "y"]], names=["scorer", "bodyparts", "coords"])
    pd.DataFrame(poses.reshape(len(poses), -1), index=images, columns=columns).to_csv(folder / "CollectedData.csv")
    return folder


def _cropped_project(folder: Path, poses: np.ndarray) -> Path:
    """The same labels in a DeepLabCut project, in pixels of two different crops."""
    sets: dict[str, Any] = {}
    columns = pd.MultiIndex.from_product([["me"], KEYPOINT_NAMES, ["x", "y"]], names=["scorer", "bodyparts", "coords"])
    for video, first in enumerate(np.array([(80, 30), (20, 5)])):
        images = folder / f"labeled-data/v{video}"
        images.mkdir(parents=True)
        sets[f"v{video}.mp4"] = {"crop": f"{first[0]}, {first[0] + 190}, {first[1]}, {first[1] + 160}"}
        rows = range(45 * video, 45 * video + 45)
        for row in rows:
            cv2.imwrite(str(images / f"img{row:04d}.png"), np.zeros((160, 190, 3), np.uint8))
        index = pd.MultiIndex.from_tuples([("labeled-data", f"v{video}", f"img{row:04d}.png") for row in rows])
        # In pixels of the frame, all poses are (80, 30) further, which no distance shows.
        of_image = poses[list(rows)] + (80, 30) - first
        pd.DataFrame(of_image.reshape(45, -1), index=index, columns=columns).to_csv(images / "CollectedData_me.csv")
    config = {"Task": "t", "scorer": "me", "bodyparts": list(KEYPOINT_NAMES), "video_sets": sets}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[tuple[str, ...]]]:
    """A project of Lightning Pose, and what a check of its labels finds."""
    folder = tmp_path_factory.mktemp("checked")
    project = _csv_project(folder / "project")
    found = _check(project, folder)
    assert {row[:2] for row in found} >= {("20", "swap"), ("50", "outlier"), ("75", "outlier")} and len(found) <= 6
    return project, found


def _check(project: Path, folder: Path) -> set[tuple[str, ...]]:
    """Returns frame, kind, keypoints and text of each finding."""
    found = found_in(project, folder=folder)
    cells = found[["kind", "keypoints", "text"]].itertuples(index=False, name=None)
    # The frame among all 90; a package counts the images of each video.
    places = [45 * int(Path(image).parent.name[-1]) + int(Path(image).stem[-4:]) % 45 for image in found["image"]]
    return {(str(place), *row) for place, row in zip(places, cells, strict=True)}


@pytest.mark.parametrize(
    ("form", "name"),
    [("coco", "labels.json"), ("slp", "labels.slp"), pytest.param("slp", "labels.pkg.slp", marks=pytest.mark.slow)],
)
def test_a_check_finds_the_same_in_files_of_other_tools(
    findings: tuple[Path, set[tuple[str, ...]]], tmp_path: Path, capsys: Capture, form: str, name: str
) -> None:
    project, expected = findings
    convert_labels(c.DataConfig(project=str(project)), Target(form, tmp_path / "p" / name))
    found = _check(tmp_path / "p" / name, tmp_path)
    assert found == expected
    assert "90 usable frames; " in capsys.readouterr().out


def test_a_check_of_crops_compares_poses_in_frame_pixels(
    findings: tuple[Path, set[tuple[str, ...]]], tmp_path: Path
) -> None:
    """The crops of the two videos begin at other places; their labels differ by that, the poses do not."""
    project = tmp_path / "project"
    assert _check(_cropped_project(project, _poses()), tmp_path) == findings[1]


def test_a_wrong_row_of_sleap_is_named_by_its_frame(tmp_path: Path) -> None:
    made = make_labels(tmp_path)
    made.labeled_frames[1].instances[0].points["xy"][0] = 100, 20
    made.labeled_frames[2].frame_idx = FRAMES
    project = save(made, tmp_path / "labels.slp")
    found = found_in(project, folder=tmp_path)
    assert sorted(zip(found["kind"], found["place"], found["keypoints"], strict=True)) == [
        ("outside", f"{project}:cam1_day frame 7", "nose"),
        ("row", f"{project}:cam1_day frame {FRAMES}", ""),
    ]
