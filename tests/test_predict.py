"""Prediction with a small real run: frames as arrays, images, videos, and all that can be wrong with them."""

import csv
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import av
import cv2
import jax
import numpy as np
import pandas as pd
import pytest

from jaxpose import predict, progress
from jaxpose.checksums import read_json, write_csv
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.run.identity import write_config
from jaxpose.run.load import read_run_config
from jaxpose.terminal import count

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def predictor(trained_run: Path) -> predict.Predictor:
    return predict.load(trained_run, devices=1, batch_size=8)


def _write_video(path: Path, source: Path, frames: int) -> Path:
    """Writes so many frames of a video again, from the start and back, in a container that may be cut anywhere."""
    with av.open(str(source)) as container:
        images = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    images += images[-2:0:-1]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=30, options={"g": "4"})
        stream.width, stream.height, stream.pix_fmt = images[0].shape[1], images[0].shape[0], "yuv420p"
        stream.codec_context.thread_count = 1
        for number in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(images[number % len(images)], format="rgb24")))
        container.mux(stream.encode())
    return path


def _session(run: Path) -> Path:
    return run.parent / "project" / "videos" / "session00.mp4"


def _images(run: Path) -> list[Path]:
    return [run.parent / "project" / name for name in read_predictions(run / "predictions.csv").poses.frames]


def _rgb(path: Path) -> np.ndarray:
    return np.ascontiguousarray(cv2.imread(str(path))[..., ::-1])


def _assert_close(found: PredictionTable, expected: PredictionTable) -> None:
    assert found.poses.frames == expected.poses.frames
    (points_px, confidence), (expected_px, wanted) = found.poses.one_animal(), expected.poses.one_animal()
    np.testing.assert_allclose(points_px, expected_px, rtol=0, atol=1e-3)
    np.testing.assert_allclose(confidence, wanted, rtol=0, atol=1e-4)


def test_a_frame_given_as_an_array_is_the_frame_of_the_project(trained_run: Path, predictor: predict.Predictor):
    expected = read_predictions(trained_run / "predictions.csv")
    assert predictor.keypoint_names == expected.poses.keypoint_names
    frames = np.stack([_rgb(path) for path in _images(trained_run)])
    for given in (frames, list(frames)):
        keypoints, confidence = predictor.predict(given)
        assert keypoints.shape == (18, 7, 2) and confidence.shape == (18, 7)
        np.testing.assert_allclose(keypoints, expected.poses.points_px[:, 0], rtol=0, atol=1e-3)
        np.testing.assert_allclose(confidence, expected.poses.one_animal()[1], rtol=0, atol=1e-4)
    one, _ = predictor.predict(frames[3:4])
    np.testing.assert_allclose(one, expected.poses.points_px[:, 0][3:4], rtol=0, atol=1e-3)


def test_a_grey_frame_is_a_colour_frame_of_equal_channels(trained_run: Path, predictor: predict.Predictor):
    grey = np.stack([_rgb(path)[..., 1] for path in _images(trained_run)[:3]])
    keypoints, confidence = predictor.predict(grey)
    again, confidence_again = predictor.predict(np.repeat(grey[..., None], 3, axis=-1))
    np.testing.assert_array_equal(keypoints, again)
    np.testing.assert_array_equal(confidence, confidence_again)


def test_frames_of_several_sizes_are_each_predicted_in_their_own_pixels(
    trained_run: Path, predictor: predict.Predictor
):
    frame = _rgb(_images(trained_run)[0])
    larger = frame.repeat(2, axis=0).repeat(2, axis=1)
    # Fitting adds 16 black rows above and below the lower one, which are in the other already.
    lower, barred = frame[16:48], frame.copy()
    barred[:16] = barred[48:] = 0
    (plain, twice, of_lower, of_barred), _ = predictor.predict([frame, larger, lower, barred])
    np.testing.assert_allclose(twice, 2 * plain + 0.5, atol=1e-3)
    np.testing.assert_allclose(of_lower, of_barred - [0, 16], atol=1e-3)


def test_no_frames_give_no_rows(predictor: predict.Predictor):
    keypoints, confidence = predictor.predict([])
    assert keypoints.shape == (0, 7, 2) and confidence.shape == (0, 7)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (np.zeros((64, 64, 3)), r"shape \(64, 64, 3\) of float64; it must be uint8"),
        (np.zeros((2, 64, 64, 3), np.float32), r"shape \(64, 64, 3\) of float32; it must be uint8"),
        (np.zeros((2, 64, 64, 4), np.uint8), r"shape \(64, 64, 4\) of uint8; it must be uint8, \(h, w, 3\) RGB"),
        (np.zeros((2, 0, 64, 3), np.uint8), r"shape \(0, 64, 3\)"),
        (np.zeros((64, 64, 1), np.uint8), r"shape \(64, 64, 1\); a frame is .* leave out an axis of 1"),
        (np.zeros((64, 64, 4), np.uint8), r"shape \(64, 64, 4\); a frame is .* alpha channel"),
    ],
)
def test_what_is_no_frame_is_refused(predictor: predict.Predictor, frames: np.ndarray, message: str):
    with pytest.raises(ValueError, match=message):
        predictor.predict(frames)


@pytest.mark.parametrize("frames", [1, 5, 33])
def test_a_video_has_a_row_for_each_frame(trained_run: Path, predictor: predict.Predictor, tmp_path: Path, frames: int):
    video = _write_video(tmp_path / "video.mkv", _session(trained_run), frames)
    keypoints, confidence = predictor.predict_video(video)
    assert keypoints.shape == (frames, 7, 2) and confidence.shape == (frames, 7)
    with av.open(str(video)) as container:
        decoded = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    np.testing.assert_allclose(keypoints, predictor.predict(decoded)[0], rtol=0, atol=1e-3)


@pytest.mark.slow
def test_videos_are_the_same_on_any_number_of_devices_and_not_predicted_twice(
    trained_run: Path, tmp_path: Path, capsys: Capture
):
    videos = tmp_path / "videos"
    videos.mkdir()
    for frames in (1, 5, 33):
        _write_video(videos / f"of{frames}.avi", _session(trained_run), frames)
    arguments = ["--run", str(trained_run), str(videos)]
    for devices, batch_size in ((1, 8), (8, 8)):
        out = ["--out", str(tmp_path / f"on{devices}"), "--devices", str(devices), "--batch_size", str(batch_size)]
        assert predict.main([*arguments, *out]) == 0
        shown = capsys.readouterr().out
        for frames in (1, 5, 33):
            assert f"of{frames}.avi: {frames} of {count(frames, 'frame')}, " in shown and "frames/s" in shown
    files = [tmp_path / "on1" / "video_preds" / f"of{frames}.csv" for frames in (1, 5, 33)]
    for file, frames in zip(files, (1, 5, 33), strict=True):
        found = read_predictions(file)
        assert found.poses.frames == [str(number) for number in range(frames)] and found.sets is None
        _assert_close(read_predictions(tmp_path / "on8" / "video_preds" / file.name), found)
    header = files[0].read_text().splitlines()[:3]
    assert [row.split(",")[:4] for row in header] == [
        ["scorer", *["heatmap_tracker"] * 3],
        ["bodyparts", *["nose"] * 3],
        ["coords", "x", "y", "likelihood"],
    ]
    # Again: one is complete, one has a row less, one was predicted with other weights of the run.
    files[1].write_text("\n".join(files[1].read_text().splitlines()[:-1]) + "\n")
    index = tmp_path / "on1" / "index.csv"
    kept = pd.read_csv(index, dtype=str, keep_default_na=False)
    kept.loc[kept["table"] == "video_preds/of33.csv", "model"] = "older"
    # What a training on these devices records.
    (facts,) = read_json(trained_run / "arithmetic.json")["stretches"]
    expected = {f"{name} {value}" for name, value in facts.items() if name not in ("from_step", "parts")}
    assert [set(cell.split("; ")) for cell in kept["arithmetic"]] == [expected] * 3
    write_csv(index, kept.drop(columns="check").to_csv(index=False))
    before = files[0].stat().st_mtime_ns
    assert predict.main([*arguments, "--out", str(tmp_path / "on1"), "--devices", "1"]) == 0
    shown = capsys.readouterr().out
    assert "of1.csv already exists (--overwrite predicts it again)" in shown
    assert "of5.avi: 5 of 5 frames" in shown and "of33.avi: 33 of 33 frames" in shown
    assert files[0].stat().st_mtime_ns == before and len(read_predictions(files[1]).poses.frames) == 5
    arguments = [*arguments, "--out", str(tmp_path / "on1"), "--devices", "1", "--overwrite"]
    assert predict.main(arguments) == 0
    assert files[0].stat().st_mtime_ns != before and "already" not in capsys.readouterr().out


def test_damaged_files_are_named_and_the_others_are_done(trained_run: Path, tmp_path: Path, capsys: Capture):
    whole = _write_video(tmp_path / "whole.avi", _session(trained_run), 20)
    cut = _write_video(tmp_path / "cut.avi", _session(trained_run), 60)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    text = tmp_path / "text.mp4"
    text.write_text("no video")
    images = tmp_path / "frames"
    images.mkdir()
    for number in (2, 10):
        shutil.copy(_images(trained_run)[number], images / f"img{number}.png")
    (images / "img3.png").write_bytes((images / "img2.png").read_bytes()[:300])
    out = tmp_path / "out"
    arguments = ["--run", str(trained_run), "--devices", "1", "--out", str(out)]
    assert predict.main([*arguments, str(cut), str(text), str(images), str(whole)]) == 4
    shown = capsys.readouterr()
    assert "whole.avi: 20 of 20 frames, " in shown.out
    assert "text.mp4 is not a readable video" in shown.err and "3 of 4 inputs failed, the others are done" in shown.err
    assert sorted(path.name for path in (out / "video_preds").iterdir()) == [
        "cut.csv.partial", "cut_temporal_norm.csv.partial", "whole.csv", "whole_temporal_norm.csv",
    ]  # fmt: skip
    rows = len((out / "video_preds" / "cut.csv.partial").read_text().splitlines()) - 3
    assert 0 < rows < 60
    assert f"cut.avi: {count(rows, 'frame')}" in shown.err or f"after {rows} of" in shown.err
    assert (
        f"its {count(rows, 'row')} {'is' if rows == 1 else 'are'} in {out / 'video_preds' / 'cut.csv.partial'}"
        in shown.err
    )
    assert "img3.png: the image does not decode" in shown.err and "2 rows of 3 images" in shown.err
    assert [path.name for path in (out / "image_preds" / "frames").iterdir()] == ["predictions.csv.partial"]
    with pytest.raises(ValueError, match="cut.avi"):
        predict.load(trained_run, devices=1).predict_video(cut)


def test_names_are_no_formulas_and_odd_images_are_named(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    monkeypatch.chdir(tmp_path)
    whole, frame = _images(trained_run)[0], _rgb(_images(trained_run)[0])
    for name in ("=f/2²10.png", "=f/2²9.png", "@g/half.jpg"):
        Path(name).parent.mkdir(exist_ok=True)
        shutil.copy(whole, name)
    cv2.imwrite("=f/strip.png", np.full((3000, 2, 3), 200, np.uint8))
    jpeg = cv2.imencode(".jpg", frame)[1].tobytes()
    Path("@g/half.jpg").write_bytes(jpeg[: 3 * len(jpeg) // 4] + b"\xff\xd9")
    Path("=v.mp4").write_text("no video")
    (tmp_path / "list.txt").write_text("@g\n")
    arguments = ["--run", str(trained_run), "--devices", "1", "--out", "out", "=f", "=v.mp4", "@list.txt"]
    assert predict.main(arguments) == 4
    shown = capsys.readouterr()
    assert (
        "@g/half.jpg: the image does not decode: it is truncated, damaged or not an image" in shown.err
        and "2 of 3 inputs failed" in shown.err
    )
    tables = [file.read_text() for file in Path("out").rglob("*.csv*")]
    rows = [row for text in tables for row in csv.reader(text.splitlines())]
    assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row)
    found = read_predictions(Path("out/image_preds/=f/predictions.csv"))
    assert found.poses.frames == ["=f/2²9.png", "=f/2²10.png", "=f/strip.png"]
    np.testing.assert_array_equal(found.poses.points_px[:, 0][0], found.poses.points_px[:, 0][1])
    # The second command knows what became of each by the index.
    assert predict.main(arguments) == 4
    shown = capsys.readouterr()
    assert "=f/2²9.png: out/image_preds/=f/predictions.csv already exists" in shown.out
    assert (
        "@g/half.jpg: the image does not decode: it is truncated, damaged or not an image" in shown.err
        and "=v.mp4 is not a readable video" in shown.err
    )


def test_images_are_rows_in_natural_order(trained_run: Path, tmp_path: Path, capsys: Capture):
    folder = tmp_path / "frames"
    folder.mkdir()
    for number, source in zip((10, 9, 100), _images(trained_run), strict=False):
        shutil.copy(source, folder / f"img{number}.png")
    (folder / "notes.txt").write_text("not looked at")
    labelled = trained_run.parent / "project" / "labeled-data" / "session01"
    arguments = [
        "--run",
        str(trained_run),
        "--devices",
        "1",
        "--out",
        str(tmp_path / "out"),
        str(folder),
        str(labelled),
    ]
    assert predict.main(arguments) == 0
    expected = read_predictions(trained_run / "predictions.csv")
    found = read_predictions(tmp_path / "out" / "image_preds" / "frames" / "predictions.csv")
    assert [Path(name).name for name in found.poses.frames] == ["img9.png", "img10.png", "img100.png"]
    np.testing.assert_allclose(found.poses.points_px[:, 0], expected.poses.points_px[[1, 0, 2], 0], rtol=0, atol=1e-3)
    # Of the run's own project: named as in its label file.
    found = read_predictions(tmp_path / "out" / "image_preds" / "session01" / "predictions.csv")
    rows = [row for row, name in enumerate(expected.poses.frames) if "session01" in name]
    assert found.poses.frames == [expected.poses.frames[row] for row in rows]
    np.testing.assert_allclose(found.poses.points_px[:, 0], expected.poses.points_px[:, 0][rows], rtol=0, atol=1e-3)
    capsys.readouterr()
    assert predict.main(arguments) == 0
    assert capsys.readouterr().out.count("already exists") == 2


def test_predictions_of_something_else_are_neither_kept_nor_replaced(
    trained_run: Path, tmp_path: Path, capsys: Capture
):
    first, second = (tmp_path / name / "x.avi" for name in "ab")
    source = _session(trained_run)
    other = next(path for path in source.parent.iterdir() if path.suffix == source.suffix and path != source)
    for video, frames in ((first, source), (second, other)):
        video.parent.mkdir()
        _write_video(video, frames, 4)
    other_run = shutil.copytree(trained_run, tmp_path / "other_run")
    config = read_run_config(other_run)
    config.train.seed += 1
    write_config(other_run / "config.json", config)
    images = _images(trained_run)
    out = tmp_path / "out"

    def call(run: Path, *more: object) -> tuple[int, str]:
        code = predict.main(["--run", str(run), "--devices", "1", "--out", str(out), *map(str, more)])
        return code, capsys.readouterr().err

    assert call(trained_run, first, images[0], images[1]) == (0, "")
    table, of_images = out / "video_preds" / "x.csv", out / "image_preds" / images[0].parent.name / "predictions.csv"
    before = table.read_bytes(), of_images.read_bytes()
    for run, given, what in (
        (trained_run, second, "x.csv already exists, of other frames"),
        (other_run, first, "x.csv already exists, of another run"),
        (other_run, images[0], "predictions.csv already exists, of another run"),
    ):
        code, shown = call(run, given)
        assert code == 4 and what in shown and "--overwrite" in shown
    assert (table.read_bytes(), of_images.read_bytes()) == before
    assert call(trained_run, second, "--overwrite") == (0, "")
    assert table.read_bytes() != before[0]
    # A copy of the run is the same run, and the folder of the images is now another one.
    assert call(Path(shutil.copytree(trained_run, tmp_path / "copy")), images[0]) == (0, "")
    assert len(read_predictions(of_images).poses.frames) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 85)])
def test_a_signal_leaves_no_half_file(
    trained_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], number: signal.Signals, code: int
):
    video = _write_video(tmp_path / "long.avi", _session(trained_run), 1500)
    folder = tmp_path / "out" / "video_preds"

    def press() -> None:
        deadline = time.monotonic() + 60
        while not any(folder.rglob("*.partial")) and time.monotonic() < deadline:
            time.sleep(0.002)
        # Without a handler it would end the tests.
        if signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler):
            os.kill(os.getpid(), number)

    pressing = threading.Thread(target=press)
    pressing.start()
    arguments = ["--run", str(trained_run), "--devices", "1", "--out", str(tmp_path / "out"), str(video)]
    # In segments of 60 frames, each written to the disk for good: the signal comes long before the last one.
    assert predict.main([*arguments, "--batch_size", "4", "--stretch_minutes", "0.03"]) == code
    pressing.join()
    shown = capfd.readouterr()
    assert (
        f"{number.name}: stopping at the next batch" in shown.err
        and "stopped by a signal; the same command continues" in shown.out
    )
    assert not list(folder.rglob("*.partial")) and not (tmp_path / "out" / ".claims").exists()
    # Whole segments stay: the same command goes on after them.
    assert not (folder / "long.csv").exists()
    assert all((part.parent / "manifest.json").is_file() for part in folder.rglob("long.csv"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("decode ", "predict", "claims"))]


def test_an_unfinished_run_predicts_from_its_checkpoints(
    trained_run: Path, predictor: predict.Predictor, tmp_path: Path
):
    run = shutil.copytree(trained_run, tmp_path / "run")
    (run / "best.safetensors").unlink()
    (run / "finished.json").unlink()
    frames = np.stack([_rgb(path) for path in _images(trained_run)[:4]])
    unfinished = predict.load(run, devices=2)
    assert unfinished.weights_label == "the weights of step 40; the run is not finished"
    np.testing.assert_allclose(unfinished.predict(frames)[0], predictor.predict(frames)[0], rtol=0, atol=1e-3)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ValueError, match="holds no whole checkpoint yet: train it first"):
        predict.load(run)


@pytest.mark.slow
def test_from_python_no_flags_are_needed(trained_run: Path):
    code = (
        "import sys, numpy as np\n"
        "from jaxpose import predict\n"
        "network = predict.load(sys.argv[1], platform='cpu')\n"
        "print(network.predict(np.zeros((2, 50, 70), np.uint8))[0].shape)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(trained_run)], capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout == "(2, 7, 2)\n", result.stderr


def test_mistakes_are_one_line_and_exit_code_2(trained_run: Path, tmp_path: Path, capsys: Capture):
    run, video = str(trained_run), str(_session(trained_run))
    other = tmp_path / "session00.avi"
    other.write_bytes(b"")
    (tmp_path / "session00.mkv").write_bytes(b"")
    (tmp_path / "list.txt").write_text("\n# nothing\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("[1")
    (tmp_path / "model.h5").write_text("")
    os.mkfifo(tmp_path / "pipe.png")
    os.symlink("loop.mp4", tmp_path / "loop.mp4")
    (tmp_path / "break\n.png").write_text("")
    for arguments, message in [
        (["--run", str(tmp_path / "nope"), video], "nope is not a run folder: it does not exist"),
        (["--run", str(tmp_path / "damaged"), video], "damaged/config.json is damaged: it cannot be read as JSON ("),
        (["--run", run], "FRAMES_OR_VIDEO is required"),
        (["--run", run, "--overwrit", video], "there is no flag --overwrit; did you mean --overwrite?"),
        (["--run", run, str(tmp_path / "model.h")], "model.h does not exist; did you mean"),
        (["--run", run, str(tmp_path / "model.h5")], "model.h5 is neither an image (.png .jpg"),
        (["--run", run, str(tmp_path / "empty")], "empty has neither images (.png"),
        (["--run", run, str(other), str(other.with_suffix(".mkv"))], "session00.mkv would both write session00.csv"),
        (["--run", run, str(tmp_path / "*.h5")], "*.h5 matches neither images (.png"),
        (["--run", run, f"@{tmp_path / 'list.txt'}"], "list.txt is empty"),
        (["--run", run, f"@{tmp_path / 'lst.txt'}"], "lst.txt cannot be read: No such file"),
        (["--run", run, "--stretch_minutes", "0", video], "--stretch_minutes is 0.0; it must be at least 0.001"),
        (["--run", run, "--decoders", "0", video], "--decoders is 0; it must be at least 1"),
        (["--run", run, video, str(Path(video).parent)], "session00.mp4 is given twice"),
        (["--run", run, "--out", str(other), video], "session00.avi, which cannot be created: File exists"),
        (["--run", run, "--out", str(tmp_path / "loop.mp4"), video], "loop.mp4, which cannot be created: "),
        (["--run", run, str(tmp_path / "pipe.png")], "pipe.png is a pipe or device, not a file"),
        (["--run", run, f"@{tmp_path / 'pipe.png'}"], "pipe.png cannot be read: it is a pipe or device, not a file"),
        (["--run", run, str(tmp_path / "loop.mp4")], "loop.mp4 cannot be read: Too many levels of symbolic links"),
        (["--run", str(tmp_path / "loop.mp4"), video], "loop.mp4 is not a run folder"),
        (["--run", run, str(tmp_path / "break*")], "break\\n.png' has the character U+000A in place"),
        (["--run", run, "--devices", "gpu:1", video], "devices asks for 'gpu:1', but the available devices are cpu:0"),
        (["--run", run, "--platform", "gpuu", video], "platform is 'gpuu'; it must be one of auto, cpu, gpu, tpu"),
        (["--run", run, "--batch_size", "many", video], "--batch_size is many; it must be a whole number"),
    ]:
        assert predict.main(arguments) == 2, arguments
        shown = capsys.readouterr()
        assert message in shown.err and shown.err.startswith("jaxpose.predict: "), (message, shown.err)
        assert len(shown.err.splitlines()) == 1 and shown.out == ""
    assert not (tmp_path / "nope").exists() and not (trained_run / "video_preds").exists()


def test_help_fits_on_a_screen():
    result = subprocess.run([sys.executable, "-m", "jaxpose.predict", "--help"], capture_output=True, text=True)
    assert result.returncode == 0 and "FRAMES_OR_VIDEO" in result.stdout and len(result.stdout.splitlines()) <= 30


def test_one_frame_is_the_frame_of_a_batch(
    trained_run: Path, predictor: predict.Predictor, caplog: pytest.LogCaptureFixture
):
    """With an axis fewer, and compiled once, whatever is read next."""
    frames = np.stack([_rgb(path) for path in _images(trained_run)[:3]])
    expected = predictor.predict(frames)
    for number, frame in enumerate(frames):
        keypoints, confidence = predictor.predict(frame)
        assert keypoints.shape == (7, 2) and confidence.shape == (7,)
        np.testing.assert_allclose(keypoints, expected[0][number], rtol=0, atol=1e-3)
        np.testing.assert_allclose(confidence, expected[1][number], rtol=0, atol=1e-4)
    grey = frames[0, ..., 1]
    np.testing.assert_array_equal(predictor.predict(grey)[0], predictor.predict(np.dstack([grey] * 3))[0])
    with jax.log_compiles():
        predictor.predict(frames[1, :50])
    assert "Compiling" not in caplog.text


def test_colours_are_read_as_rgb(trained_run: Path, predictor: predict.Predictor):
    """As the tables are, which jaxpose writes for the files; in the order of OpenCV, another result."""
    path = _images(trained_run)[0]
    expected = read_predictions(trained_run / "predictions.csv").poses.points_px[:, 0][0]
    as_opencv = cv2.imread(str(path))
    np.testing.assert_allclose(predictor.predict(as_opencv[..., ::-1])[0], expected, rtol=0, atol=1e-3)
    if not (as_opencv == as_opencv[..., ::-1]).all():
        assert np.abs(predictor.predict(as_opencv)[0] - expected).max() > 1e-2


def test_a_dataframe_is_what_pandas_reads_from_the_table(
    trained_run: Path, predictor: predict.Predictor, tmp_path: Path
):
    video = _write_video(tmp_path / "video.mkv", _session(trained_run), 5)
    options = ["--devices", "1", "--batch_size", "8", "--out", str(tmp_path)]
    assert predict.main(["--run", str(trained_run), *options, str(video)]) == 0
    table = pd.read_csv(tmp_path / "video_preds" / "video.csv", header=[0, 1, 2], index_col=0)
    found = predictor.to_dataframe(*predictor.predict_video(video))
    pd.testing.assert_frame_equal(found, table, check_exact=False, rtol=0, atol=1e-3)
    one = predictor.to_dataframe(*predictor.predict(_rgb(_images(trained_run)[0])))
    assert one.shape == (1, 21) and one.columns.equals(table.columns)


def test_without_pandas_the_extra_is_named(predictor: predict.Predictor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"needs pandas, which is not installed: pip install 'jaxpose\[pandas\]'"):
        predictor.to_dataframe(*predictor.predict([]))


def test_a_video_shows_its_progress(trained_run: Path, predictor: predict.Predictor, monkeypatch: pytest.MonkeyPatch):
    shown = []

    class Recorded(progress.Phase):
        def close(self) -> None:
            shown.append((self.title, self.done, self.total))

    monkeypatch.setattr(progress, "Phase", Recorded)
    predictor.predict_video(_session(trained_run))
    assert shown == [("predicting session00.mp4", 33, 33)]
