"""docs/live.py on an exported run: every frame of a video at its pace, dropped frames, and what it refuses."""

import csv
import importlib.util
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import onnx
import pytest

from jaxpose.export.__main__ import main
from jaxpose.export.onnx_file import load_onnx
from tests.small_run import environment

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "live.py"
COUNT, FPS = 12, 10


@pytest.fixture(scope="module")
def folder(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mouse.onnx of a run, and a video of labelled images."""
    folder = tmp_path_factory.mktemp("live")
    assert main(["--run", str(trained_run), "--out", str(folder / "mouse.onnx")]) == 0
    images = sorted((trained_run.parent / "project" / "labeled-data").rglob("*.png"))[:COUNT]
    write_video(folder / "video.avi", [cv2.imread(str(image)) for image in images])
    return folder


def write_video(file: Path, frames: Sequence[Any], fps: float = FPS) -> None:
    """Without loss, so that the frames read are those written."""
    writer = cv2.VideoWriter(str(file), cv2.VideoWriter.fourcc(*"FFV1"), fps, frames[0].shape[1::-1])
    for frame in frames:
        writer.write(frame)
    writer.release()


def live(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """The script as it runs where jaxpose and jax are not installed."""
    code = "import runpy, sys; sys.modules['jaxpose'] = sys.modules['jax'] = None; "
    code += "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120)


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("live", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_pose_of_a_video_is_saved(folder: Path) -> None:
    done = live(folder, "mouse.onnx", "video.avi", "--out", "poses.csv")
    assert done.returncode == 0, done.stderr
    assert "latency p50 " in done.stdout and " ms, p99 " in done.stdout
    with open(folder / "poses.csv") as file:
        header, *rows = csv.reader(file)
    table = np.array(rows, float)
    numbers = table[:, 0].astype(int)
    assert f"{len(rows)} frames predicted, {COUNT - len(rows)} dropped" in done.stdout
    assert len(rows) > COUNT // 2 and (np.diff(numbers) > 0).all() and numbers[-1] == COUNT - 1
    # Frames arrive at the video's pace.
    np.testing.assert_allclose(np.diff(table[:, 1]), np.diff(numbers) / FPS, atol=0.09)
    reader = cv2.VideoCapture(str(folder / "video.avi"))
    frames = np.stack([reader.read()[1][..., ::-1] for _ in range(COUNT)])
    keypoints, confidence = load_onnx((folder / "mouse.onnx").read_bytes())(frames)
    expected = np.concatenate([keypoints, confidence[..., None]], -1)[numbers]
    np.testing.assert_allclose(table[:, 2:], expected.reshape(len(rows), -1), rtol=1e-5, atol=1e-4)
    assert header[:5] == ["frame", "time_s", "nose_x", "nose_y", "nose_confidence"]


class Slow:
    """Takes longer for a pose than the next frame takes to arrive."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def process(self, pose: np.ndarray, **kwargs: Any) -> None:
        self.seen.append((kwargs["frame"], time.time() - kwargs["frame_time"]))
        time.sleep(2.5 / FPS)


def test_a_slow_processor_gets_the_newest_frame(folder: Path) -> None:
    processor = Slow()
    summary = script().run(str(folder / "mouse.onnx"), str(folder / "video.avi"), processor)
    assert len(processor.seen) == len(summary.latencies_ms) <= COUNT // 2
    assert summary.dropped == COUNT - len(processor.seen) and processor.seen[-1][0] == COUNT - 1
    assert min(summary.latencies_ms) >= 2500 / FPS


def test_sources_and_files_that_do_not_fit_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    write_video(folder / "large.avi", [np.zeros((96, 128, 3), np.uint8)])
    model = onnx.load(folder / "mouse.onnx")
    del model.metadata_props[:]
    onnx.save(model, folder / "other.onnx")
    model = onnx.load(folder / "mouse.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, folder / "two.onnx")
    for arguments, message in (
        (("mouse.onnx", "absent.avi"), "absent.avi cannot be opened"),
        (("mouse.onnx", "99"), "camera 99 cannot be opened"),
        (("mouse.onnx", "large.avi"), "large.avi has frames of 128x96 px, and the file takes 64x64: export it with "),
        (("other.onnx", "video.avi"), "other.onnx was not written by jaxpose export"),
        (("absent.onnx", "video.avi"), "absent.onnx cannot be read"),
        (("two.onnx", "video.avi"), "two.onnx takes 2 frames at once, and a live frame comes alone: export it without"),
        (("mouse.onnx", "video.avi", "--out", "absent/poses.csv"), f"there is no folder {folder / 'absent'}: make it"),
        (("mouse.onnx", "video.avi", "--out", str(folder)), f"--out is {folder}, but it is a folder"),
    ):
        with pytest.raises(SystemExit, match=re.escape(message)):
            script().main([*arguments])
