"""Animals of two sizes with the same skeleton, which turn back where motion expects them to cross."""

from pathlib import Path

import av
import cv2
import numpy as np
import pandas as pd
import pytest

from jaxpose import track as verb
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.formats.lightning_pose.tables import write_individuals
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.pose.detections import find_detections
from jaxpose.poses import Poses
from jaxpose.tracking.metrics import track_errors
from jaxpose.tracking.silhouettes import read_areas

MEETINGS, CYCLE, SIZE_PX = 8, 40, (192, 96)
BODY = np.array([[-10.0, 0.0], [0.0, 0.0], [10.0, 0.0]])


def made() -> Poses:
    """Two animals that meet and turn back again and again; where they touch, neither is detected."""
    frames = MEETINGS * CYCLE
    apart = 6 + 64 * np.abs(np.cos(np.pi * np.arange(frames) / CYCLE))
    height = 48 + 16 * np.sin(np.arange(frames) / 29)
    left, right = (np.stack([96 + side * apart, height], axis=1) for side in (-1, 1))
    points = np.stack([left, right], axis=1)[:, :, None] + BODY
    points += np.random.default_rng(0).normal(0, 0.3, points.shape)
    points[apart < 20] = np.nan
    identity = np.where(np.isfinite(points[..., 0, 0]), np.arange(2), -1)
    confidence = np.where(np.isnan(points[..., 0]), np.nan, 0.9)
    names = ("animal1", "animal2")
    return Poses(("nose", "back", "tail"), range(frames), points, confidence, identity=identity, individuals=names)


def painted(file: Path, poses: Poses, widths_px: tuple[int, int], frames: int | None = None) -> Path:
    """Writes a video in which the animals have these widths, on a background with flecks."""
    floor = np.random.default_rng(1).integers(150, 230, (SIZE_PX[1] // 4, SIZE_PX[0] // 4)).astype(np.uint8)
    floor = cv2.resize(floor, SIZE_PX, interpolation=cv2.INTER_NEAREST)
    with av.open(str(file), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": "18"})
        stream.width, stream.height, stream.pix_fmt = *SIZE_PX, "yuv420p"
        for places in poses.points_px[:frames, :, 1]:
            image = floor.copy()
            for (x, y), width in zip(places, widths_px, strict=True):
                if np.isfinite(x):
                    cv2.ellipse(image, (round(x), round(y)), (13, width // 2), 0, 0, 360, 40, -1)
            frame = np.stack([image] * 3, axis=-1).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file


def detections(folder: Path, poses: Poses) -> Path:
    file = folder / "detections.csv"
    write_individuals(file, PredictionTable(folder, poses, "net"))
    return file


def test_the_video_tells_animals_of_two_sizes_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = made()
    table, video = detections(tmp_path, truth), painted(tmp_path / "video.mp4", truth, (18, 10))
    found = {}
    for name, more in {"motion": [], "video": ["--video", str(video)], "again": ["--video", str(video)]}.items():
        out = tmp_path / f"{name}.csv"
        assert verb.main([str(table), "--animals", "2", "--out", str(out), *more]) == 0
        found[name] = out.read_bytes(), track_errors(truth, read_table(out, several=True).poses)
    assert found["motion"][1].switches > MEETINGS
    assert found["video"][1].switches == 0 and found["video"][1].idf1 == 1
    assert found["again"][0] == found["video"][0]
    assert "were measured" in capsys.readouterr().out


def test_answers_of_a_person_hold_against_the_sizes(tmp_path: Path) -> None:
    truth = made()
    table, video = detections(tmp_path, truth), painted(tmp_path / "video.mp4", truth, (18, 10))

    def tracks(name: str, *more: str) -> np.ndarray:
        """The identity (f, 2) of the left and of the right animal."""
        out = tmp_path / f"{name}.csv"
        assert verb.main([str(table), "--animals", "2", "--out", str(out), "--video", str(video), *more]) == 0
        poses = read_table(out, several=True).poses.by_identity()
        return np.argsort(poses.points_px[:, :, 1, 0], axis=1)

    before = tracks("first")
    review = pd.read_csv(tmp_path / "first_review.csv")
    row = review[review["kind"] == "swap"].index[:1]
    review["answer"] = "swap"
    review.loc[row].to_csv(tmp_path / "answers.csv", index=False)
    after = tracks("second", "--corrections", str(tmp_path / "answers.csv"))
    seen = np.flatnonzero(np.isfinite(truth.points_px[:, 0, 0, 0]))
    is_behind = seen >= int(review.loc[row[0], "frame_to"])
    is_before = seen <= int(review.loc[row[0], "frame_from"])
    # The names of the tracks may be exchanged as a whole.
    is_other = (after[seen] != before[seen]).any(axis=1)
    assert (is_other[is_before] != is_other[is_behind][0]).all() and len(set(is_other[is_behind])) == 1


def test_animals_of_one_size_keep_the_tracks_of_motion(tmp_path: Path) -> None:
    truth = made()
    table, video = detections(tmp_path, truth), painted(tmp_path / "video.mp4", truth, (14, 14))
    outs = [tmp_path / "motion.csv", tmp_path / "video.csv"]
    for out, more in zip(outs, ([], ["--video", str(video)]), strict=True):
        assert verb.main([str(table), "--animals", "2", "--out", str(out), *more]) == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_a_video_of_other_frames_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = made()
    table, video = detections(tmp_path, truth), painted(tmp_path / "video.mp4", truth, (18, 10), frames=100)
    out = tmp_path / "tracks.csv"
    assert verb.main([str(table), "--animals", "2", "--out", str(out), "--video", str(video)]) == 2
    message = capsys.readouterr().err
    assert "100 readable frames" in message and "the detections have 320" in message and not out.exists()


def test_a_detection_outside_of_the_frame_has_no_area_and_stops_nothing(tmp_path: Path) -> None:
    x_px = np.stack([np.linspace(30, 150, 12), np.full(12, 240.0)], axis=1)
    points = np.stack([x_px, np.full((12, 2), 48.0)], axis=2)[:, :, None] + BODY
    poses = Poses(("nose", "back", "tail"), range(12), points)
    found = find_detections(poses)
    areas = read_areas(painted(tmp_path / "video.mp4", poses, (18, 10)), found)
    is_outside = found.centres_px[:, 0] > SIZE_PX[0]
    assert np.isnan(areas[is_outside]).all() and (areas[~is_outside] > 50).all()
