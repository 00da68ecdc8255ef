"""A rotation that a video file notes: every reader follows the labelled images, and otherwise shows frames upright."""

import dataclasses
import struct
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from jaxpose import config as c
from jaxpose.data import dataset
from jaxpose.data.context import load_windows
from jaxpose.data.project import read_project
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.predict import load
from jaxpose.predict import main as predict
from jaxpose.video.clips import open_clips
from jaxpose.video.index import read_index
from jaxpose.video.video import Segment, read_chunks, scan
from tests.painted_videos import data_config, plain
from tests.random_predictor import predictor_of

FRAMES = 20
# The matrix of ISO 14496-12, 8.3.2, (a, b, c, d), by quarter turns clockwise.
MATRICES = [(1, 0, 0, 1), (0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0)]
SIZES_PX = {"wide": (64, 48), "square": (48, 48)}


def note_rotation(path: Path, turns: int) -> Path:
    """Notes quarter turns in an mp4."""
    content, (a, b, c_, d) = bytearray(path.read_bytes()), MATRICES[turns]
    # The matrix of version 0 lies 40 bytes behind the box's name.
    at = content.index(b"tkhd") + 4 + 40
    content[at : at + 36] = struct.pack(">9i", a << 16, b << 16, 0, c_ << 16, d << 16, 0, 0, 0, 1 << 30)
    path.write_bytes(content)
    return path


def write(path: Path, turns: int, size_px: tuple[int, int]) -> Path:
    """Writes a video whose frames look the same from no two sides."""
    width, height = size_px
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"x264-params": "keyint=6:bframes=0"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for i in range(FRAMES):
            image = np.zeros((height, width, 3), np.uint8)
            image[: height // 2, :, 0], image[:, : width // 2, 1] = 200, 120
            image[i : i + 8, i : i + 8] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    return note_rotation(path, turns)


def by_opencv(path: Path) -> list[np.ndarray]:
    capture, frames = cv2.VideoCapture(str(path)), []
    while (found := capture.read())[0]:
        frames.append(found[1][..., ::-1])
    capture.release()
    return frames


def chunks_of(path: Path, segment: Segment | None = None) -> np.ndarray:
    video = scan(path)
    return np.concatenate(list(read_chunks(video, np.eye(2, 3), (video.width_px, video.height_px), 7, segment=segment)))


@pytest.mark.parametrize("shape", SIZES_PX)
@pytest.mark.parametrize("turns", range(4))
def test_frames_are_as_opencv_shows_them(tmp_path: Path, turns: int, shape: str) -> None:
    path = write(tmp_path / "turned.mp4", turns, SIZES_PX[shape])
    upright = np.rot90(plain(path), -turns, (1, 2))
    video, index = scan(path), read_index(path)
    assert (video.width_px, video.height_px) == (index.width_px, index.height_px) == upright.shape[2:0:-1]
    np.testing.assert_array_equal(chunks_of(path), upright)
    np.testing.assert_array_equal(chunks_of(path, Segment(index, 7, 15)), upright[7:15])
    source = open_clips([(path,)], FRAMES, data_config(input_width_px=video.width_px, input_height_px=video.height_px))
    clip = source.frames(0)
    assert clip is not None
    np.testing.assert_array_equal(clip[0], upright)
    assert sum("stores a rotation by" in note for note in source.notes) == bool(turns)
    shown = by_opencv(path)
    # Another converter of colours; a turn more or less changes a quarter of the picture by 120 levels and more.
    assert len(shown) == FRAMES and shown[0].shape == upright[0].shape
    assert np.abs(np.array(shown).astype(int) - upright).mean() < 6


def project_of(folder: Path, video: Path, images: np.ndarray) -> c.DataConfig:
    """A project with a labelled image out of a video."""
    place = folder / "labeled-data" / video.stem
    place.mkdir(parents=True)
    cv2.imwrite(str(place / "img9.png"), images[9][..., ::-1])
    rows = f"labeled-data/{video.stem}/img9.png,1,1\n"
    (folder / "CollectedData.csv").write_text("scorer,me,me\nbodyparts,nose,nose\ncoords,x,y\n" + rows)
    return c.DataConfig(project=str(folder))


@pytest.mark.parametrize(("turns", "labelled"), [(1, "stored"), (3, "stored"), (1, "upright"), (3, "upright")])
def test_readers_follow_the_labelled_images(tmp_path: Path, turns: int, labelled: str) -> None:
    path = write(tmp_path / "turned.mp4", turns, (64, 48))
    frames = np.rot90(plain(path), -turns if labelled == "upright" else 0, (1, 2))
    data = project_of(tmp_path, path, frames)
    prepared, project = dataset.prepare(c.Config(data=data))
    size_px = frames.shape[2], frames.shape[1]
    assert prepared.data.frame_sizes_px == size_px
    windows, messages = load_windows(project, data, size_px, 2, {path.stem: path})
    np.testing.assert_array_equal(windows.pixels[0], frames[7:12])
    noted = f"{path}: the file stores a rotation by {90 * turns} degrees clockwise; it is "
    decided = f"{'not ' * (labelled == 'stored')}applied, because the labelled images have the size of the {labelled} "
    assert messages[1:] == [f"{noted}{decided}frames, {size_px[0]} x {size_px[1]} px"]
    data = dataclasses.replace(prepared.data, input_width_px=size_px[0], input_height_px=size_px[1])
    source = open_clips([(path,)], FRAMES, data)
    clip = source.frames(0)
    assert clip is not None and source.notes[0] == messages[1]
    np.testing.assert_array_equal(clip[0], frames)
    assert read_project(data).sizes_px.tolist() == [list(size_px)]


def test_videos_are_predicted_as_the_labelled_images_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, predictor = write(tmp_path / "turned.mp4", 1, (64, 48)), predictor_of("heatmap")
    stored, config = plain(path), predictor.config
    for sizes_px, is_upright in (((), True), ((48, 64), True), ((64, 48), False), ((64, 48, 48, 64), True)):
        data = dataclasses.replace(config.data, frame_sizes_px=sizes_px)
        predictor.config = dataclasses.replace(config, data=data)
        expected = predictor.predict(np.rot90(stored, -1, (1, 2)) if is_upright else stored)
        for ours, theirs in zip(predictor.predict_video(path), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-3)
    # Once for a video, however often it is read.
    assert len(caplog.messages) == 1 and "stores a rotation by 90 degrees clockwise; it is applied" in caplog.text


def test_the_command_line_says_what_it_does(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source, *_) = sorted((trained_run.parent / "project" / "videos").glob("*.mp4"))
    path = tmp_path / "turned.mp4"
    path.write_bytes(source.read_bytes())
    note_rotation(path, 2)
    assert predict(["--run", str(trained_run), str(path), "--devices", "1", "--out", str(tmp_path / "out")]) == 0
    predictor = load(trained_run, devices=1)
    assert predictor.config.data.frame_sizes_px == (64, 64)
    table = read_predictions(tmp_path / "out" / "video_preds" / "turned.csv")
    found, _ = predictor.predict(np.rot90(plain(path), 2, (1, 2)))
    np.testing.assert_allclose(table.poses.points_px[:, 0], found, atol=1e-2)
    said = "stores a rotation by 180 degrees clockwise; it is applied, so frames are 64 x 64 px"
    assert capsys.readouterr().err.count(said) == 1
