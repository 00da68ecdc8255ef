"""The verb, on a trained run: its files, run by the examples of the documentation, and what it refuses."""

import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest

from jaxpose import load
from jaxpose.config.arguments import read_size_px
from jaxpose.errors import UserError
from jaxpose.export.__main__ import main
from jaxpose.export.command import export
from jaxpose.export.program import load_stablehlo
from jaxpose.prediction.predictor import Found, Predictor
from jaxpose.run.identity import read_config, write_config
from tests.small_run import environment

PAGE = Path(__file__).resolve().parents[2] / "docs" / "export.md"


@pytest.fixture(scope="module")
def folder(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mouse.stablehlo of the run."""
    folder = tmp_path_factory.mktemp("exported")
    with contextlib.chdir(folder):
        assert main(["--run", str(trained_run)]) == 0
    for suffix in (".stablehlo", ".stablehlo.json"):
        (folder / f"{trained_run.name}{suffix}").rename(folder / f"mouse{suffix}")
    return folder


@pytest.fixture(scope="module")
def predictor(trained_run: Path) -> Predictor:
    return load(trained_run, devices=1, batch_size=6)


@pytest.fixture(scope="module")
def frames(trained_run: Path) -> np.ndarray:
    """The labelled images of the run, RGB."""
    images = sorted((trained_run.parent / "project" / "labeled-data").rglob("*.png"))[:6]
    return np.stack([cv2.imread(str(image))[..., ::-1] for image in images])


def test_a_file_gives_the_keypoints_of_the_run(folder: Path, frames: np.ndarray, predictor: Predictor) -> None:
    content = (folder / "mouse.stablehlo").read_bytes()
    # No path of the machine that made it.
    assert str(PAGE.parents[1]).encode() not in content and b".py" not in content
    run_file = load_stablehlo(content)
    assert_same(run_file, frames, predictor, 1e-4)
    with pytest.raises(ValueError, match="shape"):
        run_file(frames[:, :-1])


def assert_same(run_file, frames: np.ndarray, predictor: Predictor, atol_px: float) -> None:
    expected: Found = predictor.predict(frames)
    for count in (6, 1, 3):
        keypoints, confidence = run_file(frames[:count])
        assert keypoints.dtype == confidence.dtype == np.float32
        np.testing.assert_allclose(keypoints, expected[0][:count], rtol=0, atol=atol_px)
        np.testing.assert_allclose(confidence, expected[1][:count], rtol=0, atol=1e-5)


def test_the_description_says_what_the_file_takes_and_gives(folder: Path, predictor: Predictor) -> None:
    notes = json.loads((folder / "mouse.stablehlo.json").read_text())
    assert notes["keypoint_names"] == list(predictor.keypoint_names)
    assert notes["weights_sha256"] == predictor.checksum and notes["weights"] == predictor.weights_label
    assert notes["frames"]["shape"] == ["batch", 64, 64, 3] and notes["network_input_px"] == [64, 64]
    assert notes["file_sha256"] == hashlib.sha256((folder / "mouse.stablehlo").read_bytes()).hexdigest()
    assert notes["check"]["keypoints_px"] < 1e-4 and notes["check"]["grey_levels"] == 0


def test_the_example_runs_the_file_without_jaxpose(folder: Path, frames: np.ndarray, predictor: Predictor) -> None:
    """It prints what the run predicts, in a process that cannot import jaxpose."""
    (code,) = re.findall(r"```python\n([^`]*jax\.export[^`]+?)```", PAGE.read_text())
    assert len(code.splitlines()) <= 10
    cv2.imwrite(str(folder / "frame.png"), frames[2][..., ::-1])
    without = f"import sys; sys.modules['jaxpose'] = None\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", without], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    keypoints, confidence = predictor.predict(frames[2])
    rows = zip(predictor.keypoint_names, keypoints.tolist(), confidence.tolist(), strict=True)
    assert done.stdout.splitlines() == [f"{name}: {x:.1f}, {y:.1f} ({sure:.2f})" for name, (x, y), sure in rows]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "mouse.tflite"], "its name must end in .stablehlo or .onnx"),
        (["--out", "new.stablehlo", "--fp16"], "--fp16 is only for ONNX files, but --out is new.stablehlo: give a"),
        (["--out", "new.stablehlo", "--batch", "1"], "--batch is only for ONNX files, but --out is new.stablehlo"),
        (["--out", "new.onnx", "--batch", "0"], "--batch is 0; it must be at least 1"),
        (["--out", "mouse.stablehlo"], "mouse.stablehlo already exists: --overwrite replaces it; or choose another"),
        (["--out", "new.stablehlo", "--frame_size", "640"], "--frame_size is '640'; it must be WIDTHxHEIGHT in px"),
        (["--out", "new.stablehlo", "--frame_size", "0x4"], "--frame_size is '0x4'; it must be WIDTHxHEIGHT in px"),
        (["--out", "new.stablehlo", "--platform", "abacus"], "platform is 'abacus'; it must be one of auto, cpu"),
        (["--out", "folder.stablehlo"], "folder.stablehlo is a folder; give another name"),
    ],
)
def test_mistakes_are_lines(
    arguments: Sequence[str],
    message: str,
    trained_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mouse.stablehlo").write_bytes(b"")
    (tmp_path / "folder.stablehlo").mkdir()
    assert main(["--run", str(trained_run), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("new.*")) and (tmp_path / "mouse.stablehlo").read_bytes() == b""


@pytest.mark.parametrize(
    ("changes", "frame_size", "message"),
    [
        ({"frame_sizes_px": (64, 64, 80, 60)}, "", "have the sizes 64x64, 80x60, and a file takes frames of one size"),
        ({"frame_sizes_px": ()}, "", "the run names no size of frames"),
        ({"boxes": "boxes.csv"}, "", "give the size of the boxes, such as --frame_size 128x128"),
        ({"crop_px": (0, 0, 64, 60)}, "63x60", "--frame_size is 63x60; the run's data.crop_px"),
    ],
)
def test_frames_whose_size_is_not_clear_are_refused(
    changes: dict, frame_size: str, message: str, trained_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    config = read_config(trained_run / "config.json")
    for name, value in changes.items():
        setattr(config.data, name, value)
    write_config(run / "config.json", config)
    shutil.copy(trained_run / "best.safetensors", run)
    with pytest.raises(UserError, match=re.escape(message)):
        export(
            run,
            tmp_path / "x.stablehlo",
            frame_size_px=read_size_px("--frame_size", frame_size) if frame_size else None,
        )


def test_missing_packages_are_named(trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, packages in (("x.stablehlo", "flatbuffers, which is"), ("x.onnx", "onnx and onnxruntime, which are")):
        with pytest.raises(UserError, match=rf"{name} needs {packages} .*'jaxpose\[export\]'"):
            export(trained_run, tmp_path / name)
