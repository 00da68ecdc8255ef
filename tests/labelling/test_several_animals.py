"""Suggested frames and merged labels of several animals, in the files of each tool."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest
import sleap_io
from pycocotools.coco import COCO

from jaxpose import labels, suggest
from jaxpose.check.__main__ import main as check
from jaxpose.labelling import labels_command
from jaxpose.tracking.review import COLUMNS
from tests.painted_videos import number_in, write
from tests.predicted_runs import predicted_run
from tests.several_animals import (
    ALONE,
    ANIMALS,
    EMPTY,
    IMAGES,
    NAMES,
    coco_file,
    csv_project,
    deeplabcut_project,
    sleap_file,
)

# Of labels in the order of their file.
pytestmark = pytest.mark.filterwarnings("ignore::pandas.errors.PerformanceWarning")
Capture = pytest.CaptureFixture[str]
FRAMES, BODY_PX = 120, 24.0
POSE = np.array([(0, 0), (4, 12), (12, 20)])
# Frames with planted faults, and what is suggested about them.
TOUCH, LOST, DOUBTFUL, UNSURE = 20, 50, 80, 100
REASONS = {
    TOUCH: "crowded",
    LOST: "unusual number of animals",
    DOUBTFUL: "doubtful track",
    UNSURE: "low confidence: left_ear",
}
OPEN: dict[str, Callable[[Path], Path]] = {
    "csv": csv_project, "deeplabcut": lambda folder: deeplabcut_project(folder, suffix=".csv"), "coco": coco_file,
    "sleap": sleap_file,
}  # fmt: skip


def animals() -> tuple[np.ndarray, np.ndarray]:
    """Two animals that stand apart except in planted frames, the right one first: points (n, 2, 3, 2), confidence."""
    random = np.random.default_rng(0)
    points = np.array([(45, 10), (10, 10)])[:, None] + POSE + random.normal(0, 0.2, (FRAMES, 2, 3, 2))
    confidence = random.normal(0.9, 0.01, (FRAMES, 2, 3))
    points[TOUCH, 0] -= (31, 0)
    points[LOST, 1] = confidence[LOST, 1] = np.nan
    confidence[UNSURE, 1, 1] = 0.2
    return points, confidence


def make_run(folder: Path, project: Path, found: tuple[np.ndarray, np.ndarray] | None = None) -> tuple[Path, Path]:
    """A run with detections of a video, by default of these animals, and a review; and the video."""
    video = write(folder / "day.mp4", FRAMES)
    run = predicted_run(folder / "run", project, {video: found or animals()},
                        keypoint_names=NAMES, animals=2, body_size_px=BODY_PX)  # fmt: skip
    row = dict.fromkeys(COLUMNS, "") | {"kind": "swap", "frame_from": DOUBTFUL, "frame_to": DOUBTFUL, "margin": 0.1}
    pd.DataFrame([row]).to_csv(run / "video_preds" / "day_tracks_review.csv", index=False)
    return run, video


def suggested(out: Path) -> dict[int, str]:
    table = pd.read_csv(out / "suggestions.csv")
    return {int(Path(image).stem[3:]): reason for image, reason in zip(table["image"], table["reason"], strict=True)}


def labels_in(out: Path, kind: str) -> dict[int, np.ndarray]:
    """The animals (a, 3, 2) of each suggested frame, from the left, as the tool of its file reads them."""
    if kind == "sleap":
        found = sleap_io.load_slp(str(out / "suggestions.slp"))
        return {int(frame.frame_idx): np.stack([one.numpy() for one in frame.instances]) for frame in found}
    if kind == "coco":
        coco = COCO(str(out / "suggestions.json"))
        images = {int(Path(one["file_name"]).stem[3:]): one["id"] for one in coco.loadImgs(coco.getImgIds())}
        of_images = {frame: coco.loadAnns(coco.getAnnIds(imgIds=[number])) for frame, number in images.items()}
        return {
            frame: np.reshape([one["keypoints"] for one in given], (-1, 3, 3))[..., :2]
            for frame, given in of_images.items()
        }
    file, index = (out / "labeled-data/day/CollectedData_me.csv", [0, 1, 2]) if kind == "deeplabcut" else (
        out / "CollectedData.csv", [0])  # fmt: skip
    table = pd.read_csv(file, header=[0, 1, 2, 3], index_col=index)
    assert list(table.columns.unique("individuals")) == list(ANIMALS)
    names = [name if isinstance(name, str) else name[-1] for name in table.index]
    cells = table.to_numpy().reshape(len(table), 2, 3, 2)
    return {
        int(Path(name).stem[3:]): of_frame[np.isfinite(of_frame[:, 0, 0])]
        for name, of_frame in zip(names, cells, strict=True)
    }


@pytest.mark.parametrize("kind", OPEN)
def test_crowded_lost_doubtful_and_unsure_frames_are_suggested(tmp_path: Path, kind: str, capsys: Capture) -> None:
    project = OPEN[kind](tmp_path / "project")
    (run, video), out = make_run(tmp_path, project), tmp_path / "out"
    arguments = ["--run", str(run), str(video), "--frames", "4", "--out", str(out)]
    assert suggest.main(arguments) == 0
    assert suggested(out) == REASONS
    found, (expected, _) = labels_in(out, kind), animals()
    assert sorted(found) == sorted(REASONS)
    for frame, given in found.items():
        from_left = expected[frame][np.argsort(expected[frame][:, 0, 0])]
        np.testing.assert_allclose(given, from_left[np.isfinite(from_left[:, 0, 0])], atol=1e-3)
        image = cv2.imread(str(out / f"labeled-data/day/img{frame:08d}.png"))
        assert number_in(image) == frame
    assert "no review" not in capsys.readouterr().out
    if kind == "coco":
        assert merge(out, project) == 0
        shown = capsys.readouterr().out
        assert "4 images newly labelled\n4 images copied" in shown
        assert "4 images exactly as jaxpose suggest predicted" in shown
    if kind == "sleap":
        assert merge(out, project) == 2
        assert "predicted instances count once a person has corrected them" in capsys.readouterr().err
    # A corrected file is not replaced; one that nobody touched is.
    assert suggest.main([*arguments, "--overwrite"]) == (0 if kind in ("csv", "deeplabcut") else 2)


def test_a_number_that_all_labels_have_is_expected_also_if_most_frames_lack_an_animal(
    tmp_path: Path, capsys: Capture
) -> None:
    project = csv_project(tmp_path / "project")
    file = project / "CollectedData.csv"
    points, confidence = animals()
    points[LOST:, 1] = confidence[LOST:, 1] = np.nan
    run, video = make_run(tmp_path, project, (points, confidence))
    (run / "video_preds" / "day_tracks_review.csv").unlink()
    arguments = ["--run", str(run), str(video), "--frames", "4", "--apart", "5", "--out"]
    # Where the labels differ, the frames around decide: only the change stands out.
    assert suggest.main([*arguments, str(tmp_path / "first")]) == 0
    assert "no review of tracks, so doubtful tracks do not count: day" in capsys.readouterr().out
    reasons = suggested(tmp_path / "first")
    assert reasons[TOUCH] == "crowded" and "unusual number of animals" not in reasons.values()
    table = pd.read_csv(file, header=[0, 1, 2, 3], index_col=0)
    table.drop(index=[IMAGES[ALONE], IMAGES[EMPTY]]).to_csv(file)
    assert suggest.main([*arguments, str(tmp_path / "second")]) == 0
    reasons = suggested(tmp_path / "second")
    assert sorted(reasons.values()) == ["crowded", *["unusual number of animals"] * 3]
    assert all(frame >= LOST for frame in reasons if frame != TOUCH)


@pytest.mark.parametrize("kind", ["csv", "coco"])
def test_suggestions_lack_what_lies_outside_of_their_image_and_animals_that_coincide(tmp_path: Path, kind: str) -> None:
    project, (points, confidence) = OPEN[kind](tmp_path / "project"), animals()
    points[UNSURE, 0, 2] = (96, 30)
    points[LOST, 0] = (-9, 5)
    points[DOUBTFUL, 1] = points[DOUBTFUL, 0]
    (run, video), out = make_run(tmp_path, project, (points, confidence)), tmp_path / "out"
    assert suggest.main(["--run", str(run), str(video), "--frames", "6", "--apart", "0", "--out", str(out)]) == 0
    found = labels_in(out, kind)
    assert [len(found[frame]) for frame in (DOUBTFUL, UNSURE)] == [1, 2]
    assert len(found[LOST]) == 0
    assert (found[UNSURE][1, 2] == 0).all() if kind == "coco" else np.isnan(found[UNSURE][1, 2]).all()
    if kind == "csv":
        assert merge(out, project) == 0


def test_a_frame_without_an_animal_has_no_unsure_or_crowded_one_as_its_reason(tmp_path: Path) -> None:
    project, (points, confidence) = csv_project(tmp_path / "project"), animals()
    points[2:], confidence[2:] = np.nan, np.nan
    run, video = make_run(tmp_path, project, (points, confidence))
    out = tmp_path / "out"
    assert suggest.main(["--run", str(run), str(video), "--frames", "9", "--apart", "10", "--out", str(out)]) == 0
    reasons = {reason for frame, reason in suggested(out).items() if frame > 10 and frame != DOUBTFUL}
    assert reasons == {"nothing stands out"}


def test_what_cannot_be_suggested_is_said(tmp_path: Path, capsys: Capture) -> None:
    project = csv_project(tmp_path / "project")
    run, video = make_run(tmp_path, project)
    review, out = run / "video_preds" / "day_tracks_review.csv", ["--out", str(tmp_path / "out")]
    shutil.copytree(run, tmp_path / "other")
    assert suggest.main(["--run", str(run), str(tmp_path / "other"), str(video), *out]) == 2
    assert "whose predictions are not combined: give one run" in capsys.readouterr().err
    review.write_text(review.read_text().replace(",80,80,", ",80,800,"))
    assert suggest.main(["--run", str(run), str(video), *out]) == 2
    assert "day_tracks_review.csv:2 names the frames 80 to 800, but its video has 120" in capsys.readouterr().err
    review.write_text("a,b\n1,2\n")
    assert suggest.main(["--run", str(run), str(video), *out]) == 2
    assert "day_tracks_review.csv:2 is not a row of a review" in capsys.readouterr().err
    points, confidence = animals()
    alone = predicted_run(tmp_path / "alone", project, {video: (points[:, 0], confidence[:, 0])}, keypoint_names=NAMES)
    assert suggest.main(["--run", str(alone), str(video), *out]) == 2
    assert "was trained on images with one: give a run of several animals" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_check_counts_suggestions_that_nobody_corrected(tmp_path: Path, capsys: Capture) -> None:
    project = csv_project(tmp_path / "project")
    (run, video), out = make_run(tmp_path, project), tmp_path / "out"
    assert suggest.main(["--run", str(run), str(video), "--frames", "4", "--out", str(out)]) == 0
    check([str(out), "--like", str(project), "--out", str(tmp_path / "first.html")])
    assert "4 rows exactly as jaxpose suggest predicted" in capsys.readouterr().out
    file = out / "CollectedData.csv"
    table = pd.read_csv(file, header=[0, 1, 2, 3], index_col=0)
    # The individuals of a frame are exchanged: that is a correction too.
    table.iloc[0] = np.roll(table.iloc[0].to_numpy(), 6)
    table.to_csv(file)
    check([str(out), "--like", str(project), "--out", str(tmp_path / "second.html")])
    assert "3 rows exactly as jaxpose suggest predicted" in capsys.readouterr().out


def other_person(folder: Path) -> tuple[Path, pd.DataFrame]:
    """A copy of the project, and its table of labels."""
    return folder, pd.read_csv(csv_project(folder) / "CollectedData.csv", header=[0, 1, 2, 3], index_col=0)


def cells_of(table: pd.DataFrame, image: str, animal: str) -> np.ndarray:
    return table.loc[image, ("me", animal)].to_numpy().reshape(3, 2)


def merge(new: Path, project: Path) -> int:
    return labels.main(["merge", str(new), "--project", str(project)])


def test_labels_of_two_people_are_matched_by_position_and_only_what_lacks_is_added(
    tmp_path: Path, capsys: Capture
) -> None:
    project = csv_project(tmp_path / "project")
    file = project / "CollectedData.csv"
    # Bytes that no program of ours writes stay, but for the rows that get cells.
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n").replace(b".0,", b".00,"))
    before = pd.read_csv(file, header=[0, 1, 2, 3], index_col=0)
    first_bytes = file.read_bytes()
    new, table = other_person(tmp_path / "new")
    # The second person exchanged the names, moved all points by 1 px, and labelled an animal that the first one lacks.
    table = exchanged(table + 1.0)
    # It nearly lies on the other one, which the second person labelled too.
    close = cells_of(before, IMAGES[ALONE], "male") - (6.25, 0)
    table.loc[IMAGES[ALONE], ("me", "male")] = close.ravel()
    # And a point that the first person lacks, but not one of the animals of another image.
    table.loc[IMAGES[1], ("me", "female", "right_ear")] = cells_of(before, IMAGES[1], "male")[1] + 9
    table.loc[IMAGES[2], ("me", "male")] = np.nan
    extra = IMAGES[0].replace("img000", "img005")
    shutil.copy(new / IMAGES[0], new / extra)
    table.loc[extra] = table.loc[IMAGES[0]]
    table.to_csv(new / "CollectedData.csv")
    assert merge(new, project) == 0
    shown = capsys.readouterr().out
    assert "labelled twice: 20 animals in 11 images, 1.4 px apart in the median, at most 1.4 px" in shown
    assert (
        "CollectedData.csv: 1 new row, 2 rows of the project changed\n1 image copied\nleft out: 1 row without any label"
        in shown
    )
    assert "other individuals: labeled-data/a/img000.png (female is male)" in shown
    added = f"their own is another animal there: {IMAGES[ALONE]} (male as female)"
    assert f"{added}\nfilled: 1 point that the project lacked" in shown
    assert "only in the project: 1 animal of these images" in shown
    after = pd.read_csv(file, header=[0, 1, 2, 3], index_col=0)
    np.testing.assert_array_equal(cells_of(after, IMAGES[ALONE], "female"), close)
    np.testing.assert_array_equal(cells_of(after, IMAGES[1], "male")[2], cells_of(before, IMAGES[1], "male")[1] + 9)
    np.testing.assert_array_equal(cells_of(after, extra, "male"), cells_of(table, extra, "male"))
    known = before.notna()
    assert (after.loc[list(IMAGES)] == before)[known].fillna(True).all(axis=None)
    lines = zip(first_bytes.splitlines(keepends=True), file.read_bytes().splitlines(keepends=True), strict=False)
    changed = [one.split(b",")[0].decode() for one, other in lines if one != other]
    assert changed == [IMAGES[1], IMAGES[ALONE]]
    assert file.with_suffix(".csv.bak").read_bytes() == first_bytes
    # Once more: all of it is there, and nothing changes.
    merged = file.read_bytes()
    assert merge(new, project) == 0
    shown = capsys.readouterr().out
    assert "already has all labels of" in shown and "labelled twice: 23 animals in 12 images" in shown
    assert file.read_bytes() == merged


def exchanged(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the names of the two animals exchanged."""
    return table.rename(columns={"male": "female", "female": "male"}, level=1)


def test_rows_that_another_program_sorts_during_a_merge_are_not_filled_by_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    project = csv_project(tmp_path / "project")
    file = project / "CollectedData.csv"
    table = pd.read_csv(file, header=[0, 1, 2, 3], index_col=0)
    table.loc[IMAGES[0], ("me", "female")] = np.nan
    table.to_csv(file)
    new, _ = other_person(tmp_path / "new")
    plan_merge = labels_command.plan_merge

    def then_a_save(*given: Any) -> Any:
        found = plan_merge(*given)
        table.iloc[::-1].to_csv(file)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(labels_command, "plan_merge", then_a_save)
        assert merge(new, project) == 2
    assert "CollectedData.csv was changed by another program" in capsys.readouterr().err
    pd.testing.assert_frame_equal(pd.read_csv(file, header=[0, 1, 2, 3], index_col=0), table.iloc[::-1])
    assert merge(new, project) == 0
    merged = pd.read_csv(file, header=[0, 1, 2, 3], index_col=0)
    assert np.isfinite(cells_of(merged, IMAGES[0], "female")).all()
    for image in set(table.index) - {IMAGES[0]}:
        np.testing.assert_array_equal(cells_of(merged, image, "female"), cells_of(table, image, "female"))


def test_an_animal_that_may_be_another_one_stops_a_merge(tmp_path: Path, capsys: Capture) -> None:
    project, (new, table) = csv_project(tmp_path / "project"), other_person(tmp_path / "new")
    before = (project / "CollectedData.csv").read_bytes()
    # The body size is 20 px: 7 px to the side are neither the same place nor another one.
    table.loc[IMAGES[ALONE], ("me", "male")] = (cells_of(table, IMAGES[ALONE], "male") + [(7.0, 0)] * 3).ravel()
    table.to_csv(new / "CollectedData.csv")
    assert merge(new, project) == 2
    assert f"male of {IMAGES[ALONE]} may be male in {project}/CollectedData.csv:12" in capsys.readouterr().err
    table.rename(columns={"female": "pup"}, level=1).to_csv(new / "CollectedData.csv")
    assert merge(new, project) == 2
    assert "the project has no individual pup; it has male, female" in capsys.readouterr().err
    one = table["me"]["female"]
    one.columns = pd.MultiIndex.from_tuples(
        [("me", *at) for at in one.columns], names=["scorer", "bodyparts", "coords"]
    )
    one.to_csv(new / "CollectedData.csv")
    assert merge(new, project) == 2
    assert "the project names animals, and these labels do not: it has male, female" in capsys.readouterr().err
    # Another picture of the same name, and another name.
    shutil.copy(new / IMAGES[0], new / IMAGES[2])
    table.rename(index={IMAGES[0]: IMAGES[0].replace("img000", "img0")}).to_csv(new / "CollectedData.csv")
    shutil.copy(new / IMAGES[0], new / IMAGES[0].replace("img000", "img0"))
    assert merge(new, project) == 2
    shown = capsys.readouterr().err
    assert f"{IMAGES[2]} in {new} differs from the image of this name in {project}" in shown
    assert f"labeled-data/a/img0.png is already labelled in {project}/CollectedData.csv:5 as {IMAGES[0]}" in shown
    assert (project / "CollectedData.csv").read_bytes() == before


def test_parts_of_one_animal_without_a_common_keypoint_are_one_or_stop_a_merge(tmp_path: Path, capsys: Capture) -> None:
    project, (new, table) = csv_project(tmp_path / "project"), other_person(tmp_path / "new")
    file, nose = project / "CollectedData.csv", ("me", "male", "nose")
    whole = table.loc[[IMAGES[ALONE]]]
    front, rear = table.copy(), whole.copy()
    front.loc[IMAGES[ALONE], ("me", "male", ["left_ear", "right_ear"])] = rear.loc[:, nose] = np.nan
    front.to_csv(file)
    before = file.read_bytes()
    exchanged(rear).to_csv(new / "CollectedData.csv")
    assert merge(new, project) == 2
    assert (
        f"female of {IMAGES[ALONE]} may be male in {file}:12, with which it shares no keypoint"
        in capsys.readouterr().err
    )
    assert file.read_bytes() == before
    rear.to_csv(new / "CollectedData.csv")
    assert merge(new, project) == 0
    shown = capsys.readouterr().out
    assert f"{file}: 1 row of the project changed\n" in shown and "filled: 2 points that the project lacked" in shown
    after = pd.read_csv(file, header=[0, 1, 2, 3], index_col=0)
    np.testing.assert_array_equal(after.loc[[IMAGES[ALONE]]], whole)


def test_a_free_individual_goes_to_the_animal_of_its_name_first(tmp_path: Path, capsys: Capture) -> None:
    project, (new, _) = csv_project(tmp_path / "project"), other_person(tmp_path / "new")
    columns = pd.MultiIndex.from_product([["me"], ["male", "female", "(a)"], NAMES, ["x", "y"]])
    columns.names = ["scorer", "individuals", "bodyparts", "coords"]
    table = pd.DataFrame(np.nan, pd.Index([IMAGES[0]]), columns)
    table.loc[IMAGES[0], ("me", "male")] = POSE.ravel() + 2.0
    table.to_csv(project / "CollectedData.csv")
    poses = {"male": POSE + [30.0, 30.0], "female": POSE + [70.0, 2.0]}
    table.loc[IMAGES[0], ("me", "male")], table.loc[IMAGES[0], ("me", "female")] = (
        one.ravel() for one in poses.values()
    )
    table.to_csv(new / "CollectedData.csv")
    assert merge(new, project) == 0
    shown = capsys.readouterr().out
    assert f"added to images of the project: {IMAGES[0]} (female)" in shown
    assert f"their own is another animal there: {IMAGES[0]} (male as (a))" in shown
    after = pd.read_csv(project / "CollectedData.csv", header=[0, 1, 2, 3], index_col=0)
    np.testing.assert_array_equal(cells_of(after, IMAGES[0], "female"), poses["female"])
    np.testing.assert_array_equal(cells_of(after, IMAGES[0], "(a)"), poses["male"])
    assert merge(new, project) == 0
    assert "already has all labels" in capsys.readouterr().out


def test_animals_of_one_keypoint_are_the_same_only_at_the_same_place(tmp_path: Path, capsys: Capture) -> None:
    project, (new, table) = csv_project(tmp_path / "project"), other_person(tmp_path / "new")
    noses = table.loc[:, table.columns.get_level_values("bodyparts") == "nose"]
    noses.drop(index=IMAGES[0]).to_csv(project / "CollectedData.csv")
    exchanged(noses).to_csv(new / "CollectedData.csv")
    assert merge(new, project) == 0
    assert "labelled twice: 19 animals in 10 images, 0.0 px apart" in capsys.readouterr().out
    (noses + 2).to_csv(new / "CollectedData.csv")
    assert merge(new, project) == 2
    shown = capsys.readouterr().err
    assert (
        f"male of {IMAGES[1]} may be male in {project}/CollectedData.csv:5, and animals of one keypoint have" in shown
    )


def test_a_merge_into_a_row_whose_points_are_all_marked_absent(tmp_path: Path, capsys: Capture) -> None:
    project, (new, _) = csv_project(tmp_path / "project"), other_person(tmp_path / "new")
    header = (
        "scorer,me,me,me,me,me,me\nindividuals,a (b),a (b),a (b),c,c,c\nbodyparts,p,p,p,p,p,p\ncoords"
        + ",x,y,visible" * 2
    )
    (project / "CollectedData.csv").write_text(f"{header}\n{IMAGES[0]},1,2,0,,,\n{IMAGES[1]},1,2,2,9,9,2\n")
    (new / "CollectedData.csv").write_text(f"{header}\n{IMAGES[0]},5,6,2,,,\n{IMAGES[1]},1,2,2,9,9,2\n")
    assert merge(new, project) == 0
    assert f"added to images of the project: {IMAGES[0]} (a (b))" in capsys.readouterr().out
    assert f"\n{IMAGES[0]},5,6,2,,,\n" in (project / "CollectedData.csv").read_text()


def test_two_animals_that_coincide_stop_a_merge_on_either_side(tmp_path: Path, capsys: Capture) -> None:
    project, (new, table) = csv_project(tmp_path / "project"), other_person(tmp_path / "new")
    double = table.copy()
    double.loc[IMAGES[1], ("me", "female")] = cells_of(table, IMAGES[1], "male").ravel()
    double.to_csv(new / "CollectedData.csv")
    assert merge(new, project) == 2
    assert f"male of {IMAGES[1]} is the same animal as female: correct or remove" in capsys.readouterr().err
    double.to_csv(project / "CollectedData.csv")
    table.to_csv(new / "CollectedData.csv")
    assert merge(new, project) == 2
    assert f"correct the row of the project first: {project}/CollectedData.csv:6 (male): " in capsys.readouterr().err


def test_suggestions_of_deeplabcut_are_merged_into_its_csv_and_h5(tmp_path: Path, capsys: Capture) -> None:
    project = deeplabcut_project(tmp_path / "project", suffix=".csv")
    (run, video), out = make_run(tmp_path, project), tmp_path / "out"
    assert suggest.main(["--run", str(run), str(video), "--frames", "3", "--out", str(out)]) == 0
    assert merge(out, project) == 0
    shown = capsys.readouterr().out
    assert "CollectedData_me.csv: 3 new rows" in shown and "3 rows exactly as jaxpose suggest predicted" in shown
    # Another person's file of the same images, with its own name.
    of_day = project / "labeled-data" / "day"
    found = pd.read_hdf(of_day / "CollectedData_me.h5")
    assert isinstance(found, pd.DataFrame)
    assert list(found.columns.names) == ["scorer", "individuals", "bodyparts", "coords"]
    other = shutil.copytree(of_day, tmp_path / "other" / "labeled-data" / "day")
    for name in ("CollectedData_me.h5", "CollectedData_me.csv"):
        (other / name).unlink()
    lost = ("labeled-data", "day", f"img{LOST:08d}.png")
    second = found.rename(columns={"me": "you"}, level=0)
    second.loc[lost, ("you", "female")] = [10.0, 10, 14, 22, 22, 30]
    second.to_csv(other / "CollectedData_you.csv")
    assert merge(tmp_path / "other", project) == 0
    assert f"added to images of the project: {'/'.join(lost)} (female)" in capsys.readouterr().out
    again = pd.read_hdf(of_day / "CollectedData_me.h5")
    assert isinstance(again, pd.DataFrame)
    assert again.loc[lost].tolist() == [*found.loc[lost].tolist()[:6], 10.0, 10, 14, 22, 22, 30]
    assert again.drop(index=[lost]).equals(found.drop(index=[lost]))
