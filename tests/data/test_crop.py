"""A crop in a padded input: black around it in every reader, no targets outside of it; frames are as the same video."""

import copy
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import av
import cv2
import jax
import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose import geometry
from jaxpose.cluster.mesh import make_mesh, replicate
from jaxpose.data import dataset
from jaxpose.data.image_file import decode_image
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.prediction.predictor import Predictor
from jaxpose.prediction.video_tables import predict_images
from jaxpose.run.load import load_network
from jaxpose.video.clips import open_clips
from jaxpose.video.video import read_chunks, scan
from tests.small_run import make_config, metrics_of, train

SIDE_PX, CROP_PX = 64, (20, 6, 30, 48)
# Two crops with one affine: the wider one is as high, about the same centre.
WIDER_PX = (15, 6, 40, 48)


@pytest.fixture(scope="module")
def run(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on crops of frames of 64 px in inputs of 32 px; augmentation moves the border of the crop."""
    # The program is that of tests/test_train.py, which knows nothing of the crop.
    run = tmp_path_factory.mktemp("crop") / "run"
    config = make_config(project, run, data__crop_px=CROP_PX, train__steps=6)
    assert train(config)["exit_code"] == 0
    return run


@pytest.fixture(scope="module")
def predictor(run: Path) -> Predictor:
    """Its network, read as Lightning Pose reads its own."""
    trained = load_network(run)
    config = dataclasses.replace(
        trained.config, model=dataclasses.replace(trained.config.model, decoding="lightning_pose")
    )
    mesh = make_mesh(jax.devices()[:1])
    weights = replicate(mesh, (trained.params, trained.statistics))
    return Predictor(config, BatchRunner(config, trained.graphdef, mesh, 8), weights, [], {}, trained.label)


@pytest.fixture(scope="module")
def video(project: Path) -> tuple[Path, np.ndarray]:
    """A video and its frames."""
    path = project / "videos" / "session00.mp4"
    with av.open(str(path)) as container:
        return path, np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def test_arrays_images_and_labelled_frames_are_predicted_as_the_same_frames_of_a_video(
    project: Path, predictor: Predictor, video: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    """Lightning Pose's rule depends on the size of the frame, which here is not that of the input."""
    path, frames = video
    expected, sure = predictor.predict_video(path)
    keypoints, confidence = predictor.predict(frames)
    np.testing.assert_array_equal(keypoints, expected)
    np.testing.assert_array_equal(confidence, sure)
    images = [tmp_path / f"{number:03}.png" for number in range(len(frames))]
    for image, frame in zip(images, frames, strict=True):
        cv2.imwrite(str(image), frame[..., ::-1])
    file = tmp_path / "predictions.csv"
    assert predict_images(predictor, images, file, lambda: False, lambda _: None) == len(frames)
    np.testing.assert_allclose(read_predictions(file).poses.points_px[:, 0], expected, rtol=0, atol=1e-4)
    config, found = dataset.prepare(predictor.config)
    samples, _ = dataset.decode(found, config)
    labelled = predictor.runner.labelled(*predictor.weights, samples, np.arange(len(found.poses.frames)))
    again, _ = predictor.predict([decode_image(image.read_bytes()) for image in found.paths])
    np.testing.assert_allclose(again, labelled["keypoints_frame_px"], rtol=0, atol=1e-4)


def test_an_image_that_is_the_crop_of_its_video_is_predicted_in_pixels_of_the_whole_frame(
    predictor: Predictor, video: tuple[Path, np.ndarray], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As DeepLabCut crops: the labelled images show a part of the frames, the video is whole."""
    x, y, width, height = CROP_PX
    cropping = copy.copy(predictor)
    data = dataclasses.replace(cropping.config.data, crop_px=(), video_crops_px=(f"day1:{x},{y},{width},{height}",))
    cropping.config = dataclasses.replace(cropping.config, data=data)
    found = {}
    for name, part in (("day1", np.s_[:, y : y + height, x : x + width]), ("other", np.s_[:])):
        folder = tmp_path / name
        folder.mkdir()
        images = [folder / f"{number}.png" for number in range(len(video[1]))]
        for image, frame in zip(images, video[1][part], strict=True):
            cv2.imwrite(str(image), np.ascontiguousarray(frame[..., ::-1]))
        with caplog.at_level("INFO", logger="jaxpose"):
            predict_images(cropping, images, folder / "predictions.csv", lambda: False, lambda _: None)
        found[name] = read_predictions(folder / "predictions.csv").poses.points_px[:, 0]
    shutil.copy(video[0], tmp_path / "day1.mp4")
    with caplog.at_level("INFO", logger="jaxpose"):
        expected, _ = cropping.predict_video(tmp_path / "day1.mp4")
    np.testing.assert_allclose(found["day1"], expected, rtol=0, atol=1e-3)
    assert not np.allclose(found["other"], expected, atol=1)
    assert caplog.text.count(f"day1: the network sees the crop of {width} x {height} px at ({x}, {y})") == 2


def test_what_surrounds_the_crop_changes_no_prediction(predictor: Predictor, video: tuple[Path, np.ndarray]) -> None:
    x, y, width, height = CROP_PX
    other = np.random.default_rng(0).integers(0, 256, video[1].shape, np.uint8)
    other[:, y : y + height, x : x + width] = video[1][:, y : y + height, x : x + width]
    np.testing.assert_array_equal(predictor.predict(other)[0], predictor.predict(video[1])[0])


def test_labels_outside_of_the_crop_are_no_targets_and_count_in_every_error(run: Path, project: Path) -> None:
    labels = pd.read_csv(project / "CollectedData.csv", header=[0, 1, 2], index_col=0)
    points = labels.to_numpy(np.float64).reshape(len(labels), -1, 2)
    # Pixel 10 begins at 9.5.
    low = np.array(CROP_PX[:2]) - 0.5
    inside = np.all((points >= low) & (points <= low + CROP_PX[2:]), axis=-1)
    sets = pd.read_csv(run / "split.csv", index_col="path")["set"].loc[labels.index].to_numpy()
    # Augmentation may move a label out of the input, but none into it.
    targets = [line["targets"] for line in metrics_of(run) if "targets" in line]
    assert 0 < max(targets) <= inside[sets == "train"].sum() < inside[sets == "train"].size / 2
    said = f"{(~inside).sum()} of {inside.size} labels lie outside of data.crop_px"
    assert said in (run / "train.log").read_text()
    errors = pd.read_csv(run / "predictions_pixel_error.csv", index_col=0).drop(columns="set")
    assert errors.notna().to_numpy().all()


@pytest.fixture
def white(tmp_path: Path) -> c.Config:
    """A project of white frames: one labelled, its neighbours in a video."""
    folder = tmp_path / "white"
    for name in ("labeled-data/s", "videos"):
        (folder / name).mkdir(parents=True)
    frame = np.full((SIDE_PX, SIDE_PX, 3), 255, np.uint8)
    cv2.imwrite(str(folder / "labeled-data" / "s" / "img5.png"), frame)
    cv2.imwrite(str(folder / "labeled-data" / "s" / "img6.png"), frame)
    with av.open(str(folder / "videos" / "s.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=30)
        stream.width = stream.height = SIDE_PX
        stream.pix_fmt = "yuv420p"
        for _ in range(12):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    header = "scorer,me,me,me,me\nbodyparts,in,in,out,out\ncoords,x,y,x,y\n"
    (folder / "CollectedData.csv").write_text(f"{header}labeled-data/s/img5.png,20,20,5,20\n")
    return make_config(folder, tmp_path / "none", data__crop_px=CROP_PX, data__memory_limit_gib=0.0)


def labelled(config: c.Config) -> np.ndarray:
    return dataset.decode(dataset.prepare(config)[1], config)[0].pixels[:, 0]


def windows(config: c.Config) -> np.ndarray:
    """The labelled frame, one beside it, and three of the video."""
    config.model.kind = "heatmap_context"
    samples, messages = dataset.decode(dataset.prepare(config)[1], config)
    assert "1 of 1 have 5 correct frames (1 of them with some from video)" in messages[0]
    return samples.pixels[0]


def clips(config: c.Config, cache: str) -> np.ndarray:
    path = Path(config.data.project) / "videos" / "s.mp4"
    found = open_clips([(path,)], 4, config.data, cache).frames(0)
    assert found is not None
    return found[0]


def chunks(config: c.Config) -> np.ndarray:
    data = config.data
    affine = geometry.input_from_frame((SIDE_PX, SIDE_PX), (32, 32), data.resize, data.crop_px)
    video = scan(Path(data.project) / "videos" / "s.mp4")
    return np.concatenate(list(read_chunks(video, affine, (32, 32), 5, crop_px=data.crop_px)))


@pytest.mark.parametrize(
    "read",
    [labelled, windows, lambda config: clips(config, "off"), lambda config: clips(config, "auto"), chunks],
    ids=["images", "windows", "clips", "cached clips", "video"],
)
def test_every_reader_shows_the_crop_alone(white: c.Config, read: Callable[[c.Config], np.ndarray]) -> None:
    # 48 px become 32, and 30 become 20: 6 black columns on either side; of the wider crop 40 become 27.
    shown = read(white)
    assert (shown[:, :, 6:26] > 250).all() and not shown[:, :, :6].any() and not shown[:, :, 26:].any()
    # What is cached is not taken for another crop.
    white.data.crop_px = WIDER_PX
    assert (read(white)[:, :, 3:29] > 250).all()


def test_samples_know_which_labels_the_crop_leaves_out(white: c.Config) -> None:
    found = dataset.prepare(white)[1]
    assert dataset.decode(found, white)[0].poses.labels()[1].tolist() == [[2, 0]]
    # As it is labelled, it is evaluated.
    assert found.visibility.tolist() == [[2, 2]]
