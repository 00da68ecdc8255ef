"""How fast are videos read, and what does learning from them cost?

    python benchmarks/video.py --data PATH --out benchmarks/video.jsonl

The example video is encoded again at 640 x 480 (H.264, crf 23, a key frame every 250 frames) and read in several ways,
one after the other, in turns, each with one thread: by PyAV alone, and by jaxpose into an input of 256 px, as clips are
read for training. All are measured in CPU time, which other work on the machine changes little, and compared within a
turn. The bar compares like with like: PyAV's own resizing to 256 px against ours, which keeps the shape. The
time to index an hour of video is measured on the same packets, repeated.

Then the training steps of the example project (resnet18, 128 px), with one batch that is already loaded, on one core: 8
labelled frames and a clip of 16, and 8 windows of five frames, with the augmentation and without. For comparison, the
reference trainer's, without its augmentation. Appends one JSON line.
"""

import argparse
import contextlib
import itertools
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import cv2
import jax
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter

from jaxpose import config as c
from jaxpose import geometry
from jaxpose.cluster.devices import start_backend
from jaxpose.cluster.mesh import make_mesh
from jaxpose.data import dataset
from jaxpose.training.batches import host_batches
from jaxpose.training.compiled_run import compile_step, put_on_devices
from jaxpose.training.setup import make_setup
from jaxpose.video.decoding import RangeReader
from jaxpose.video.file import scan, to_rgb
from jaxpose.video.index import VideoIndex, read_index
from jaxpose.video.packets import open_video, video_stream

EXAMPLE = "mirror-mouse-example/videos/test_vid.mp4"
SIZE_PX, INPUT_PX = (640, 480), (256, 256)
HOUR_FRAMES = 30 * 3600
LIKE_FOR_LIKE = "PyAV, decode and convert to 256 px"
OURS = "jaxpose, clips of 256 px"
# The share of PyAV's rate that jaxpose must reach.
LEAST_SHARE = 0.85
# CPU ms of a step of Lightning Pose 2.4.0 (torch 2.13, one thread of a Xeon with AVX-512), without augmentation.
REFERENCE_MS = {"8 labelled + 16 unlabelled frames": 1467, "8 windows of 5 frames": 1850}
SEMI_SUPERVISED, CONTEXT = REFERENCE_MS


def write_scaled(source: Path, target: Path, size_px: tuple[int, int] = SIZE_PX, frames: int | None = None) -> None:
    """Re-encodes a video, or its first frames, at another size."""
    converter = VideoReformatter()
    with av.open(str(source)) as container, av.open(str(target), "w") as output:
        stream = output.add_stream("libx264", rate=container.streams.video[0].average_rate, options={"crf": "23"})
        stream.width, stream.height = size_px
        stream.pix_fmt, stream.gop_size = "yuv420p", 250
        for frame in itertools.islice(container.decode(video=0), frames):
            output.mux(stream.encode(converter.reformat(frame, *size_px, format="yuv420p")))
        output.mux(stream.encode())


def write_hour(source: Path, target: Path) -> None:
    """Writes the packets of a video over and over, to an hour at 30 frames per second."""
    with av.open(str(source)) as container, av.open(str(target), "w") as output:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        copy = output.add_stream_from_template(stream)
        times = sorted(packet.pts for packet in packets if packet.pts is not None)
        length = len(times) * (times[1] - times[0])
        for start in range(0, HOUR_FRAMES // len(packets) * length, length):
            for packet in packets:
                again = av.Packet(bytes(packet))
                again.pts, again.dts = (packet.pts or 0) + start, (packet.dts or 0) + start
                again.time_base, again.is_keyframe, again.stream = packet.time_base, packet.is_keyframe, copy
                output.mux(again)


def by_pyav(path: Path, use: Callable[[VideoFrame, VideoReformatter], Any]) -> int:
    """Decodes a video with one thread and hands each frame to a function; returns the number of frames."""
    converter, count = VideoReformatter(), 0
    with open_video(path) as container:
        stream = video_stream(container, path)
        stream.codec_context.thread_count = 1
        for frame in container.decode(stream):
            use(frame, converter)
            count += 1
    return count


def resized(frame: VideoFrame, converter: VideoReformatter) -> Any:
    """Returns a frame at INPUT_PX as PyAV resizes it, which changes its shape."""
    return converter.reformat(frame, *INPUT_PX, format="rgb24", threads=1).to_ndarray()


def as_clips(index: VideoIndex) -> int:
    """Reads all frames as training does; returns their number."""
    affine = geometry.input_from_frame((index.width_px, index.height_px), INPUT_PX, "pad")
    return sum(1 for _ in RangeReader(index, 0, index.frame_count, affine, INPUT_PX))


def measure_decoding(folder: Path, example: Path, repeats: int) -> dict[str, Any]:
    """Returns frames per CPU second of each way to read the video, and what the index of an hour takes."""
    path = folder / "scaled.mp4"
    write_scaled(example, path)
    index = read_index(path)
    ways: dict[str, Callable[[], int]] = {
        "PyAV, decode": lambda: by_pyav(path, lambda frame, converter: None),
        "PyAV, decode and convert at full size": lambda: by_pyav(path, to_rgb),
        LIKE_FOR_LIKE: lambda: by_pyav(path, resized),
        OURS: lambda: as_clips(index),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            started = time.process_time()
            count = way()
            rates[name].append(count / (time.process_time() - started))
            if count != scan(path).announced_frames:
                raise RuntimeError(f"{name} read {count} frames of {scan(path).announced_frames}")
    hour = folder / "hour.mp4"
    write_hour(path, hour)
    started = time.monotonic()
    frames = read_index(hour).frame_count
    shares = {
        name: statistics.median(ours / one for ours, one in zip(rates[OURS], rates[name], strict=True)) for name in ways
    }
    return {
        "frames_per_cpu_second": {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "jaxpose_over": {name: round(share, 3) for name, share in shares.items()},
        "index_of_an_hour": {"frames": frames, "seconds": round(time.monotonic() - started, 3)},
    }


def step_config(project: Path, what: str, is_augmented: bool) -> c.Config:
    """Returns the config of a training of which one step is measured."""
    config = c.Config(
        data=c.DataConfig(
            project=str(project),
            input_height_px=128,
            input_width_px=128,
            resize="stretch",
            train_share=0.95,
            val_share=0.05,
        ),
        augment=c.AugmentConfig(preset="dlc" if is_augmented else "none"),
        model=c.ModelConfig(backbone="resnet18"),
        video=c.VideoConfig(cache="off"),
        train=c.TrainConfig(steps=1000, batch_size=8),
        mesh=c.MeshConfig(platform="cpu", devices=1),
    )
    if not is_augmented:
        video = config.video
        video.rotate_deg = video.brightness_max = video.contrast_max = video.noise_max = 0.0
        video.scale_min = video.scale_max = 1.0
    if what == SEMI_SUPERVISED:
        config.losses.temporal.weight, config.losses.anneal_init = 1e-3, 1.0
    else:
        config.model.kind = "heatmap_context"
    return config


def measure_step(config: c.Config, repeats: int) -> list[float]:
    """Returns the CPU ms of each of some steps, in rising order, after one to warm up."""
    config = c.resolve(config)
    mesh = make_mesh(start_backend(config.mesh))
    config, project = dataset.prepare(config)
    data = dataset.load(project, config)
    run = compile_step(put_on_devices(make_setup(config, mesh, data)))
    step, found = run.step, []
    assert step is not None  # `compile_step` compiles it
    held = step.hold(run.state)
    batch = step.put(next(host_batches(run.setup, 0)))
    for _ in range(repeats + 1):
        started = time.process_time()
        held, _ = step(held, batch)
        jax.block_until_ready(held)
        found.append(1000 * (time.process_time() - started))
    return sorted(found[1:])


def measure_steps(project: Path, repeats: int) -> dict[str, dict[str, Any]]:
    """Returns CPU ms of each step: the median, the least and the most, with augmentation and without."""
    # Before the backend starts: it makes a thread for each core.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    lines: dict[str, dict[str, Any]] = {}
    for what, reference_ms in REFERENCE_MS.items():
        lines[what] = {"reference": reference_ms}
        for name, is_augmented in (("plain", False), ("augmented", True)):
            found = measure_step(step_config(project, what, is_augmented), repeats)
            lines[what][name] = [round(ms, 1) for ms in (statistics.median(found), found[0], found[-1])]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="How fast are videos read, and what does learning from them cost?")
    parser.add_argument("--data", type=Path, required=True, help="folder with the example project")
    parser.add_argument("--repeats", type=int, default=5, help="turns; the median counts")
    parser.add_argument("--out", type=Path, help="file to append the JSON line to")
    given = parser.parse_args()
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as folder:
        # Keeps the index of these files out of the user's cache.
        os.environ["JAXPOSE_CACHE"] = folder
        decoding = measure_decoding(Path(folder), given.data / EXAMPLE, given.repeats)
        steps = measure_steps((given.data / EXAMPLE).parents[1], 4 * given.repeats)
    print(f"| {SIZE_PX[0]} x {SIZE_PX[1]} | frames per CPU second | jaxpose over it |\n|---|---|---|")
    for name, rate in decoding["frames_per_cpu_second"].items():
        print(f"| {name} | {rate:.0f} | {decoding['jaxpose_over'][name]:.2f} |")
    print(f"index of an hour: {decoding['index_of_an_hour']['seconds']} s")
    print("| step | CPU ms without augmentation (least, most) | with it | reference, without |\n|---|---|---|---|")
    for what, ms in steps.items():
        plain, augmented = ("{:.0f} ({:.0f}, {:.0f})".format(*ms[name]) for name in ("plain", "augmented"))
        print(f"| {what} | {plain} | {augmented} | {ms['reference']} |")
    notes = {"command": shlex.join(["python", *sys.argv]), "av": av.__version__, "jax": jax.__version__}
    line = json.dumps(notes | {"decoding": decoding, "cpu_ms_per_step": steps})
    print(line)
    with given.out.open("a") if given.out else contextlib.nullcontext() as stream:
        if stream:
            stream.write(line + "\n")
    share = decoding["jaxpose_over"][LIKE_FOR_LIKE]
    if share < LEAST_SHARE:
        print(f"{OURS}: {share:.2f} of the rate of {LIKE_FOR_LIKE!r}; the bar is {LEAST_SHARE}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
