"""Suggested frames and merged labels of several animals, in the files of each tool."""

import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest
import sleap_io
from pycocotools.coco import COCO

from jaxpose import suggest
from jaxpose.check.__main__ import main as check
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


def test_what_cannot_be_suggested_is_said(tmp_path: Path, capsys: Capture) -> None:
    project = csv_project(tmp_path / "project")
    run, video = make_run(tmp_path, project)
    review, out = run / "video_preds" / "day_tracks_review.csv", ["--out", str(tmp_path / "out")]
    shutil.copytree(run, tmp_path / "other")
    assert suggest.main(["--run", str(run), str(tmp_path / "other"), str(video), *out]) == 2
    assert "whose predictions are not combined: give one run" in capsys.readouterr().err
    review.write_text(review.read_text().replace(",80,80,", ",80,800,"))
    assert suggest.main(["--run", str(run), str(video), *out]) == 2
    assert "day_tracks_review.csv:2 has the frames 80 to 800, and its video has 120" in capsys.readouterr().err
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
