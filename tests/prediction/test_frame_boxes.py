"""Predictions inside of boxes: the same as of the same crops, in frame pixels, and again when the boxes change."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxpose import predict
from jaxpose.data.boxes import write_boxes
from jaxpose.errors import UserError
from jaxpose.prediction.frame_boxes import FrameBoxes
from jaxpose.prediction.predictor import Predictor
from jaxpose.prediction.video_tables import predict_segment
from jaxpose.run.identity import read_config, write_config
from jaxpose.video.index import read_index
from jaxpose.video.video import Segment, scan
from tests.painted_videos import plain, write
from tests.random_predictor import predictor_of
from tests.shared_runs import move_run

FRAMES, CROP_PX = 40, (14, 4, 30, 40)


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("boxes") / "a.mp4", FRAMES)


@pytest.fixture(scope="module", params=["heatmap", "heatmap_context"])
def predictor(request: pytest.FixtureRequest) -> Predictor:
    return predictor_of(request.param)


def boxes_px(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    corners = np.stack([rng.integers(0, 34, FRAMES), rng.integers(0, 18, FRAMES)], axis=1)
    return np.concatenate([corners, rng.integers(20, 31, (FRAMES, 2))], axis=1)


def boxed(predictor: Predictor, folder: Path, boxes: np.ndarray) -> Predictor:
    """The network with the boxes of the video, as those of its run."""
    write_boxes(folder / "a_bbox.csv", [str(number) for number in range(FRAMES)], boxes)
    predictor.config.data.boxes, predictor.config.data.crop_px = "bbox.csv", ()
    predictor.boxes = FrameBoxes(folder)
    return predictor


def cropped(predictor: Predictor) -> Predictor:
    predictor.config.data.boxes, predictor.config.data.crop_px, predictor.boxes = "", CROP_PX, None
    return predictor


def test_one_box_for_all_frames_is_the_crop(predictor: Predictor, video: Path, tmp_path: Path) -> None:
    found = boxed(predictor, tmp_path, np.tile(CROP_PX, (FRAMES, 1))).predict_video(video)
    expected = cropped(predictor).predict_video(video)
    for part, of_crop in zip(found, expected, strict=True):
        if predictor.config.model.kind == "heatmap":
            np.testing.assert_array_equal(part, of_crop)
        else:
            # Windows go through a program of their own, which may round differently.
            np.testing.assert_allclose(part, of_crop, rtol=0, atol=1e-3)


def test_each_frame_is_predicted_in_its_box(predictor: Predictor, video: Path, tmp_path: Path) -> None:
    boxes = boxes_px()
    keypoints, confidence = boxed(predictor, tmp_path, boxes).predict_video(video)
    frames = plain(video)
    low, high = boxes[:, None, :2] - 1, boxes[:, None, :2] + boxes[:, None, 2:] + 1
    assert confidence.shape == (FRAMES, 3) and np.isfinite(keypoints).all()
    # Padding about a box that is not square is 5 px at most.
    assert ((keypoints > low - 10) & (keypoints < high + 10)).all()
    if predictor.config.model.kind == "heatmap":
        alone, sure = predictor.predict(frames, boxes)
        np.testing.assert_array_equal(keypoints, alone)
        np.testing.assert_array_equal(confidence, sure)
        one, _ = predictor.predict(frames[7], boxes[7])
        np.testing.assert_allclose(one, keypoints[7], rtol=0, atol=1e-3)
    else:
        # The window of frame 20, through the box of frame 20, as labelled frames have it in training.
        cropped(predictor).config.data.crop_px = tuple(boxes[20].tolist())
        np.testing.assert_allclose(predictor.predict_video(video)[0][20], keypoints[20], rtol=0, atol=1e-3)


def test_a_part_of_a_video_has_the_rows_of_the_whole(predictor: Predictor, video: Path, tmp_path: Path) -> None:
    whole = boxed(predictor, tmp_path, boxes_px()).predict_video(video)[0]
    reader, found = predictor.stream(scan(video), Segment(read_index(video), 24, 36))
    np.testing.assert_array_equal(np.concatenate([part for part, _ in found]), whole[23:36])
    reader.close()


def test_a_frame_without_a_box_has_no_position_and_no_confidence(
    predictor: Predictor, video: Path, tmp_path: Path
) -> None:
    boxes, gaps = boxes_px(), [0, 11, 12, 39]
    every = boxed(predictor, tmp_path / "every", boxes).predict_video(video)[0]
    file = tmp_path / "some" / "a_bbox.csv"
    boxed(predictor, file.parent, boxes)
    lines = file.read_text().splitlines()
    for gap in gaps:
        lines[1 + gap] = f"{gap},,,,"
    file.write_text("\n".join(lines))
    assert predict_segment(predictor, scan(video), None, tmp_path / "a.csv") == FRAMES
    table = pd.read_csv(tmp_path / "a.csv", header=[0, 1, 2], index_col=0)
    values = table.to_numpy().reshape(FRAMES, 3, 3)
    is_gap = np.isin(np.arange(FRAMES), gaps)
    assert np.isnan(values[is_gap, :, :2]).all() and (values[is_gap, :, 2] == 0).all()
    np.testing.assert_allclose(values[~is_gap, :, :2], every[~is_gap], rtol=0, atol=1e-3)
    steps = pd.read_csv(tmp_path / "a_temporal_norm.csv", index_col=0).to_numpy()
    assert np.flatnonzero(np.isnan(steps).any(axis=1)).tolist() == [0, 1, 11, 12, 13, 39]


def test_arrays_need_their_boxes(predictor: Predictor, video: Path, tmp_path: Path) -> None:
    frame = plain(video)[0]
    with pytest.raises(UserError, match="boxes_px is given, but the run was trained without data.boxes"):
        cropped(predictor).predict(frame, (0, 0, 20, 20))
    boxed(predictor, tmp_path, boxes_px())
    with pytest.raises(UserError, match="sees each frame in a box"):
        predictor.predict(frame)
    with pytest.raises(UserError, match="sees each frame in a box"):
        predictor.predict([frame, frame])
    with pytest.raises(ValueError, match="there are 2 frames and 1 boxes_px"):
        predictor.predict([frame, frame], [(0, 0, 20, 20)])
    # As numpy reads a file of boxes.
    of_floats, of_integers = predictor.predict(frame, (0.0, 0.0, 20.0, 20.0)), predictor.predict(frame, (0, 0, 20, 20))
    np.testing.assert_array_equal(of_floats[0], of_integers[0])
    for wrong in ((1, 2, 3), (0.5, 0, 20, 20), (np.nan, 0, 20, 20), (64, 0, 20, 20)):
        with pytest.raises(ValueError, match="four whole numbers|lies outside of the frame"):
            predictor.predict(frame, wrong)


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """A run on boxes, by its config; its network was trained on whole frames."""
    run = move_run(trained_run.parent, tmp_path)
    config = read_config(run / "config.json")
    config.data.boxes = "boxes/bbox.csv"
    write_config(run / "config.json", config)
    return run


def test_the_command_predicts_again_when_the_boxes_change(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = run.parent / "project" / "videos" / "session00.mp4"
    out, folder = tmp_path / "out", tmp_path / "boxes"
    arguments = ["--run", str(run), str(video), "--out", str(out), "--batch_size", "8", "--devices", "1"]
    # Without files of boxes, nothing is predicted on whole frames.
    assert predict.main(arguments) == 4
    assert "session00.mp4 needs boxes, but " in capsys.readouterr().err
    assert predict.main([*arguments, "--boxes", str(tmp_path / "none")]) == 2
    boxes = np.tile((4, 4, 40, 40), (33, 1))
    numbers = [str(number) for number in range(33)]
    write_boxes(folder / "session00_bbox.csv", numbers[:-1], boxes[:-1])
    arguments += ["--boxes", str(folder)]
    assert predict.main(arguments) == 4
    assert "has 32 rows" in capsys.readouterr().err
    write_boxes(folder / "session00_bbox.csv", numbers, boxes)
    assert predict.main(arguments) == 0
    table = out / "video_preds" / "session00.csv"
    first = table.read_bytes()
    assert predict.main(arguments) == 0 and "already exists" in capsys.readouterr().out
    write_boxes(folder / "session00_bbox.csv", numbers, boxes + [10, 10, 0, 0])
    os.utime(folder / "session00_bbox.csv", (1, 1))
    assert predict.main(arguments) == 0 and table.read_bytes() != first
    image = next((run.parent / "project" / "labeled-data").rglob("*.png"))
    assert predict.main([*arguments[:2], str(image), "--out", str(out)]) == 2
    assert "sees each frame in a box" in capsys.readouterr().err


def test_boxes_for_a_run_on_whole_frames_are_refused(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = trained_run.parent / "project" / "videos" / "session00.mp4"
    assert predict.main(["--run", str(trained_run), str(video), "--boxes", str(tmp_path)]) == 2
    assert "was trained without data.boxes" in capsys.readouterr().err
