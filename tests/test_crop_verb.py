"""jaxpose crop: boxes that follow the predictions of a run, which a second run reads."""

from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest

from jaxpose import crop, predict
from jaxpose.data import dataset
from jaxpose.data.boxes import boxes_around, centres_of_poses, over_time, read_boxes, read_video_boxes, side_of_poses
from jaxpose.data.synthetic_animal import KEYPOINT_NAMES
from jaxpose.formats.lightning_pose.tables import write_predictions
from jaxpose.run.identity import read_config
from jaxpose.video.video import scan
from tests import painted_videos
from tests.predicted_runs import predicted_run
from tests.shared_runs import move_run


def test_gaps_and_jumps_are_smoothed_as_pandas_does() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(0, 5, (50, 2)).cumsum(axis=0)
    centres[[0, 1, 7, 8, 9, 30, 49]] = np.nan
    table = pd.DataFrame(centres).interpolate(limit_direction="both")
    for frames in (1, 3, 5, 51, 101):
        expected = table.rolling(frames, center=True, min_periods=1).median()
        np.testing.assert_allclose(over_time(centres, frames), expected.to_numpy(), atol=1e-12)


def test_a_box_has_the_side_of_the_largest_pose() -> None:
    poses = np.array([[(0, 0), (10, 5), (np.nan, np.nan)], [(0, 0), (3, 24), (1, 1)], [(np.nan, np.nan)] * 3])
    # Keypoints 24 px apart cover 25 pixels.
    assert side_of_poses(poses, 1.0) == 26 and side_of_poses(poses, 2.0) == 50
    assert side_of_poses(poses[2:], 2.0) == 0


def test_only_sure_keypoints_count() -> None:
    poses = np.array([[(0.0, 0.0), (10.0, 4.0), (99.0, 99.0)], [(1.0, 1.0)] * 3])
    confidence = np.array([[0.9, 0.5, 0.1], [0.0, 0.1, 0.2]])
    centres = centres_of_poses(poses, confidence, 0.5)
    assert centres[0].tolist() == [5, 2] and np.isnan(centres[1]).all()


def test_boxes_are_moved_into_the_frame() -> None:
    centres = np.array([(10.0, 10.0), (0.0, 30.0), (63.0, 47.0), (10.5, 10.5)])
    boxes = boxes_around(centres, 20, np.array([64, 48]))
    # Pixels 0 to 19 have their centre at 9.5; one half is rounded upwards.
    assert boxes.tolist() == [[1, 1, 20, 20], [0, 21, 20, 20], [44, 28, 20, 20], [1, 1, 20, 20]]
    assert boxes_around(centres[:1], 60, np.array([64, 48])).tolist() == [[0, 0, 60, 48]]


@pytest.fixture(scope="module")
def predicted(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the run, with predictions of one of its three videos."""
    run = move_run(trained_run.parent, tmp_path_factory.mktemp("predicted"))
    video = run.parent / "project" / "videos" / "session01.mp4"
    assert predict.main(["--run", str(run), str(video), "--batch_size", "8", "--devices", "1"]) == 0
    return run


def test_a_second_run_reads_the_boxes_of_the_first(
    predicted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "boxes"
    assert crop.main(["--run", str(predicted), "--out", str(out), "--ratio", "1.2", "--confidence", "0"]) == 0
    said = capsys.readouterr().out
    quiet = ["--ratio", "1.2", "--confidence", "0", "--overwrite", "--quiet"]
    assert crop.main(["--run", str(predicted), "--out", str(out), *quiet]) == 0
    assert "train in them" in said and "train in them" not in capsys.readouterr().out
    assert sorted(file.name for file in out.iterdir()) == ["bbox.csv", "bbox_new.csv", "session01_bbox.csv"]
    assert "no boxes of session00.mp4" in said and f"data.boxes={out / 'bbox.csv'}" in said
    config = read_config(predicted / "config.json")
    config.data.boxes = str(out / "bbox.csv")
    found = dataset.prepare(config)[1]
    assert found.notes[0] == f"{out / 'bbox.csv'}: the network sees the part of each image that lies in its box"
    missing = found.notes[1:]
    assert [note.partition(":")[0] for note in missing] == [
        f"session0{number}.mp4 will not be predicted" for number in (0, 2)
    ]
    lines = (out / "session01_bbox.csv").read_text().splitlines()
    (out / "session01_bbox.csv").write_text("\n".join([*lines[:-1], ""]))
    short = dataset.prepare(config)[1].notes[2]
    assert "session01.mp4 will not be predicted" in short and "has 32 rows, but" in short and "33 frames" in short
    (out / "session01_bbox.csv").write_text("\n".join([*lines, ""]))
    sides = np.array(found.boxes_px)[:, 2:]
    assert (sides == sides[0, 0]).all() and sides[0, 0] % 2 == 0
    # Each box is about the predicted pose, where the frame lets it.
    table = pd.read_csv(predicted / "predictions.csv", header=[0, 1, 2], index_col=0).iloc[:, :-1].astype(float)
    points = table.to_numpy().reshape(len(table), -1, 3)[..., :2]
    middle = (points.min(axis=1) + points.max(axis=1)) / 2
    boxes = read_boxes(out / "bbox.csv")
    assert list(boxes.names) == list(table.index)
    corner = np.clip(np.floor(middle - (sides[0, 0] - 1) / 2 + 0.5), 0, 64 - sides[0, 0])
    np.testing.assert_array_equal(boxes.boxes_px[:, :2], corner)
    video = predicted.parent / "project" / "videos" / "session01.mp4"
    of_video = read_video_boxes(out / "session01_bbox.csv", scan(video))
    assert of_video.shape == (33, 4) and (of_video[:, 2:] == sides[0, 0]).all()


def test_videos_alone_and_what_is_refused(predicted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    videos, out = predicted.parent / "project" / "videos", tmp_path / "boxes"

    def code(*arguments: str, out: Path = out) -> int:
        return crop.main(["--run", str(predicted), "--out", str(out), "--confidence", "0", *arguments])

    assert code(str(videos / "session01.mp4"), "--size", "24", "--keypoints", "nose", "--smooth", "1") == 0
    (file,) = out.iterdir()
    table = pd.read_csv(predicted / "video_preds" / "session01.csv", header=[0, 1, 2], index_col=0)
    nose = table.xs("nose", axis=1, level=1).to_numpy()[:, :2]
    boxes = pd.read_csv(file, index_col=0)
    np.testing.assert_array_equal(boxes[["x", "y"]], np.clip(np.floor(nose - 11), 0, 40))
    assert (boxes[["w", "h"]] == 24).all(axis=None)
    refused = {
        ("--size", "24"): "already exists: --overwrite replaces it",
        ("--size", "24", "--ratio", "2"): "give one",
        ("--size", "1"): "--size is 1; it must be at least 2",
        ("--ratio", "0"): "--ratio is 0; it must be above 0",
        ("--smooth", "4"): "--smooth is 4; it must be an odd number",
        ("--confidence", "2"): "--confidence is 2; it must be 0 to 1",
        ("--keypoints", "nose,ear"): "--keypoints has 'ear'; the run has",
        ("--confidence", "1", "--size", "24", "--overwrite"): "no frame of .* has a keypoint with a confidence of 1",
    }
    for arguments, reason in refused.items():
        assert code(str(videos / "session01.mp4"), *arguments) == 2
        error = capsys.readouterr().err
        assert pd.Series([error]).str.contains(reason).all(), error
    assert code(str(videos / "session01.mp4"), "--size", "26", "--overwrite") == 0
    assert code(str(videos / "session02.mp4")) == 2
    assert "has no finished predictions" in capsys.readouterr().err


def test_videos_whose_boxes_would_be_one_file_on_some_systems_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    videos = [tmp_path / "x" / "day1.mp4", tmp_path / "y" / "Day1.mp4"]
    for video in videos:
        video.parent.mkdir()
        painted_videos.write(video, 3, size_px=(64, 64))
    shape = (3, len(KEYPOINT_NAMES))
    run = predicted_run(
        tmp_path / "run", tmp_path, {video: (np.full((*shape, 2), 9.0), np.ones(shape)) for video in videos}
    )
    assert crop.main(["--run", str(run), "--out", str(tmp_path / "out"), "--size", "24", *map(str, videos)]) == 2
    alike = "(day1_bbox.csv and Day1_bbox.csv differ only in the case of their letters)"
    assert f"{videos[0]} and {videos[1]} have the same name {alike}, and so would" in capsys.readouterr().err


def test_each_camera_has_boxes_of_its_own_size(tmp_path: Path) -> None:
    """Poses that nobody predicted: 20 px wide from above, 8 px from the side."""
    names, extents = ("nose", "tail_base"), {"top": 20, "side": 8}
    project, images = tmp_path / "project", {}
    for view, extent in extents.items():
        images[view] = [f"labeled-data/s_{view}/img{number}.png" for number in range(3)]
        (project / "labeled-data" / f"s_{view}").mkdir(parents=True)
        for image in images[view]:
            cv2.imwrite(str(project / image), np.zeros((48, 64, 3), np.uint8))
        rows = "".join(f"{image},10,12,{10 + extent},12\n" for image in images[view])
        header = "scorer,me,me,me,me\nbodyparts,nose,nose,tail_base,tail_base\ncoords,x,y,x,y\n"
        (project / f"CollectedData_{view}.csv").write_text(header + rows)
    (project / "videos").mkdir()
    video = painted_videos.write(project / "videos" / "s_side.mp4", 12)
    points = np.stack([np.full((12, 2), 30.0), np.full((12, 2), 35.0)], axis=1)
    tables = {video: (points, np.ones((12, 2)))}
    run = predicted_run(tmp_path / "run", project, tables, views=("top", "side"), keypoint_names=names)
    for view, extent in extents.items():
        labelled = np.tile([(10.0, 12.0), (10.0 + extent, 12.0)], (3, 1, 1))
        # Unsure poses of labelled images count all the same.
        write_predictions(run / f"predictions_{view}.csv", images[view], names, labelled, np.zeros((3, 2)))
    out = tmp_path / "boxes"
    assert crop.main(["--run", str(run), "--out", str(out)]) == 0
    top, side = (read_boxes(out / f"bbox_{view}.csv").boxes_px.tolist() for view in extents)
    # Twice 21 and 9 pixels; the former is moved into the frame.
    assert top == [[0, 0, 42, 42]] * 3 and side == [[6, 4, 18, 18]] * 3
    of_video = read_video_boxes(out / "s_side_bbox.csv", scan(video))
    assert of_video.tolist() == [[24, 24, 18, 18]] * 12
    config = read_config(run / "config.json")
    config.data.boxes = str(out / "bbox.csv")
    assert dataset.prepare(config)[1].boxes_px == tuple(map(tuple, top + side))
