"""How many frames per second does `jaxpose predict` deliver from several videos at once, decoding included?"""

import argparse
import concurrent.futures
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import av
import numpy as np
from gpu_parts.figures import versions
from gpu_parts.first_step import train_command

from jaxpose.data.synthetic import make_project

WIDTH_PX, HEIGHT_PX = 640, 480


def measure_videos(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the frames per second of the command, with its start-up and without.

    The command runs with short videos, and with others three times as long; the rate without start-up is the difference
    of the frames over the difference of the seconds. It also returns the rate of decoding alone, with as many threads.
    """
    short, long = given.video_frames, 3 * given.video_frames
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = _make_run(folder, given)
        seconds = {}
        for frames in (short, short, long):  # the first command compiles, and is not counted
            videos = _write_videos(folder / f"videos{frames}", frames, given.videos)
            seconds[frames] = _predict_s(run, videos, folder, given)
        decode_s = _decode_s(videos, given)
    line = {"framework": "jaxpose", **versions(), "av": av.__version__}
    names = ("backbone", "width", "size_px", "batch", "precision", "videos", "video_frames", "decoders")
    line |= {name: getattr(given, name) for name in names}
    rates = {
        "without_start": given.videos * (long - short) / (seconds[long] - seconds[short]),
        "with_start": given.videos * long / seconds[long],
        "decoding_alone": given.videos * long / decode_s,
    }
    return line | {"frames": given.videos * long, "seconds": seconds[long], "frames_per_s": rates}


def _make_run(folder: Path, given: argparse.Namespace) -> Path:
    """Trains a network for one step, which takes as long to predict as any other."""
    project = make_project(folder / "project", videos=4, labelled_frames=8, video_frames=16, side_px=128)
    _run(train_command(project, folder / "run", given, "train.steps=1"), folder)
    return folder / "run"


def _predict_s(run: Path, videos: list[Path], folder: Path, given: argparse.Namespace) -> float:
    command = [sys.executable, "-m", "jaxpose", "predict", "--run", str(run), *map(str, videos), "--overwrite"]
    command += ["--platform", given.platform, "--devices", "1", "--batch_size", str(given.batch)]
    command += ["--decoders", str(given.decoders), "--out", str(folder / "predictions")]
    started = time.monotonic()
    _run(command, folder)
    return time.monotonic() - started


def _run(command: list[str], folder: Path) -> None:
    environment = os.environ | {"JAXPOSE_CACHE": str(folder / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {(done.stdout + done.stderr)[-500:]}")


def _write_videos(folder: Path, frames: int, count: int) -> list[Path]:
    """Writes videos (H.264, crf 23, a key frame every 250 frames), each in a thread of its own."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"video{number}.mp4" for number in range(count)]
    absent = [(number, path) for number, path in enumerate(paths) if not path.exists()]
    with concurrent.futures.ThreadPoolExecutor(max(1, count)) as pool:
        list(pool.map(lambda item: _write_video(item[0], item[1], frames), absent))
    return paths


def _write_video(number: int, path: Path, frames: int) -> None:
    """Writes smooth shapes, without noise, that drift at a speed and in a direction of the video's own."""
    y, x = np.mgrid[: 2 * HEIGHT_PX, : 2 * WIDTH_PX].astype(np.float32)
    waves = [np.sin(x / (17 + 3 * number)) + np.cos(y / (23 + channel * 5)) for channel in range(3)]
    scene = (127 + 60 * np.stack(waves, axis=-1)).clip(0, 255).astype(np.uint8)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=30, options={"crf": "23", "g": "250", "threads": "1"})
        stream.width, stream.height, stream.pix_fmt = WIDTH_PX, HEIGHT_PX, "yuv420p"
        for frame in range(frames):
            left = int((0.5 + 0.5 * np.sin(frame / (40 + number))) * WIDTH_PX)
            top = int((0.5 + 0.5 * np.cos(frame / (60 - number))) * HEIGHT_PX)
            view = np.ascontiguousarray(scene[top : top + HEIGHT_PX, left : left + WIDTH_PX])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(view, format="rgb24")))
        container.mux(stream.encode())


def _decode_s(videos: list[Path], given: argparse.Namespace) -> float:
    """Returns the seconds that PyAV takes to decode and resize all frames, with one thread for each decoder."""

    def decode(path: Path) -> None:
        with av.open(str(path)) as container:
            container.streams.video[0].thread_count = 1
            for frame in container.decode(video=0):
                frame.to_ndarray(format="rgb24", width=given.size_px, height=given.size_px)

    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(given.decoders) as pool:
        list(pool.map(decode, videos))
    return time.monotonic() - started
