"""What does drawing a video cost?

    python benchmarks/draw.py --data PATH --out benchmarks/draw.jsonl

The first 300 frames of the example video are encoded again at several sizes (H.264, crf 23). Then they are decoded and
encoded as jaxpose.draw encodes, by PyAV alone, and drawn with 17 keypoints and a skeleton of 16 lines, without a trail
and with one of 10 frames: in turns, in seconds of the clock and of all threads. The drawn frames are also decoded and
encoded again: moving marks, and the lines of text below, cost the encoder more than plain frames. The bar is on the
clock: drawing takes at most 1.3 times as long as decoding and encoding the same, drawn frames. Appends one JSON line.
"""

import argparse
import contextlib
import functools
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from av.video.reformatter import VideoReformatter

from jaxpose.drawing.labelled_video import draw_video
from jaxpose.drawing.pose_painter import Style
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.poses import Poses
from jaxpose.video.encoding import Format, open_h264
from jaxpose.video.index import read_index

EXAMPLE = "mirror-mouse-example/videos/test_vid.mp4"
SIZES_PX, FRAMES, KEYPOINTS = ((640, 480), (1280, 1024)), 300, 17
BASE, AGAIN, BAR = "decode + encode", "decode + encode: ", 1.3
TRAILS = {"draw": 0, "draw, trail of 10": 10}


def write_scaled(source: Path, target: Path, size_px: tuple[int, int]) -> None:
    """Writes the first FRAMES frames of a video in another size."""
    converter = VideoReformatter()
    with av.open(str(source)) as container, av.open(str(target), "w") as output:
        stream = output.add_stream("libx264", rate=30, options={"crf": "23", "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = *size_px, "yuv420p"
        for number, frame in zip(range(FRAMES), container.decode(video=0), strict=False):
            scaled = converter.reformat(frame, *size_px, format="yuv420p")
            scaled.pts, scaled.time_base = number, 1 / Fraction(30)
            output.mux(stream.encode(scaled))
        output.mux(stream.encode())


def encode_again(source: Path, target: Path) -> None:
    """Decodes a video and encodes its frames as jaxpose.draw does, without a change."""
    with av.open(str(source)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        context, base = stream.codec_context, stream.time_base
        if not base or not stream.average_rate:
            raise RuntimeError(f"{source} has no times")
        tags = context.colorspace, context.color_range, context.color_primaries, context.color_trc
        form = Format(Fraction(base), Fraction(stream.average_rate), *tags, None)
        with open_h264(target, stream.width, stream.height, form) as writer:
            for frame in container.decode(stream):
                writer.write(frame, frame.pts or 0)


def walking_poses(size_px: tuple[int, int]) -> PredictionTable:
    """Returns predictions of an animal that covers a third of the frame and walks in a circle."""
    random = np.random.default_rng(0)
    pose = random.uniform(-1 / 6, 1 / 6, (KEYPOINTS, 2)) * size_px
    angle = np.linspace(0, 8 * np.pi, FRAMES)
    centre = (0.5 + 0.3 * np.stack([np.cos(angle), np.sin(angle)], axis=1)) * size_px
    points = centre[:, None] + pose + random.normal(0, 1, (FRAMES, KEYPOINTS, 2))
    names = tuple(f"keypoint {place}" for place in range(KEYPOINTS))
    confidence = random.uniform(0.2, 1, points.shape[:2])
    return PredictionTable(Path("poses"), Poses.of_one_animal(names, range(FRAMES), points, confidence))


def measure(folder: Path, example: Path, size_px: tuple[int, int], repeats: int) -> dict[str, list[float]]:
    """Returns for each way six medians, each by the clock and of all threads: the seconds, the share of BASE, and the
    share of decoding and encoding its drawn frames."""
    path, target = folder / f"{size_px[0]}.mp4", folder / "out.mp4"
    write_scaled(example, path, size_px)
    index, poses = read_index(path), walking_poses(size_px)
    names = poses.poses.keypoint_names
    edges = tuple(zip(names[:-1], names[1:], strict=True))
    drawn = {name: folder / f"drawn{trail}.mp4" for name, trail in TRAILS.items()}
    ways: dict[str, Callable[[], object]] = {BASE: lambda: encode_again(path, target)}
    for name, trail in TRAILS.items():
        style = Style(trail=trail, edges=edges)
        ways[name] = functools.partial(draw_video, index, poses, drawn[name], style)
        ways[AGAIN + name] = functools.partial(encode_again, drawn[name], target)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            clock, cpu = time.monotonic(), time.process_time()
            way()
            seconds[name].append((time.monotonic() - clock, time.process_time() - cpu))
            if read_index(drawn.get(name, target)).frame_count != FRAMES:
                raise RuntimeError(f"{name} wrote other frames")
    found = {}
    for name, each in seconds.items():
        medians = [statistics.median(one[kind] for one in each) for kind in (0, 1)]
        shares = [
            statistics.median(one[kind] / base[kind] for one, base in zip(each, seconds[of], strict=True))
            for of in (BASE, AGAIN + name if name in drawn else name)
            for kind in (0, 1)
        ]
        found[name] = [round(value, 3) for value in (*medians, *shares)]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="What does drawing a video cost?")
    parser.add_argument("--data", type=Path, required=True, help="folder with the example project")
    parser.add_argument("--repeats", type=int, default=5, help="turns; the median counts")
    parser.add_argument("--out", type=Path, help="file to append the JSON line to")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Keeps the index of these files out of the user's cache.
        os.environ["JAXPOSE_CACHE"] = folder
        found = {
            f"{size_px[0]} x {size_px[1]}": measure(Path(folder), given.data / EXAMPLE, size_px, given.repeats)
            for size_px in SIZES_PX
        }
    print(
        f"| {FRAMES:,} frames | | s | CPU s | of {BASE} | CPU | of the drawn | CPU |\n|---|---|---|---|---|---|---|---|"
    )
    for size, ways in found.items():
        for name, medians in ways.items():
            print(f"| {size} | {name} | {' | '.join(f'{median:.2f}' for median in medians)} |")
    notes = {"command": shlex.join(["python", *sys.argv]), "av": av.__version__, "opencv": cv2.__version__}
    line = json.dumps(notes | {"frames": FRAMES, "keypoints": KEYPOINTS, "seconds_cpu_shares": found})
    print(line)
    with given.out.open("a") if given.out else contextlib.nullcontext() as stream:
        if stream:
            stream.write(line + "\n")
    worst = max(ways[name][4] for ways in found.values() for name in TRAILS)
    if worst > BAR:
        print(f"drawing takes {worst:.2f} times as long as {BASE} of the same; the bar is {BAR}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
