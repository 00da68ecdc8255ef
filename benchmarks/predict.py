"""How fast is a video predicted on one core, compared with its forward passes and its decoding alone?

    taskset -c 0 python benchmarks/predict.py --data PATH --out benchmarks/predict.jsonl
    taskset -c 0 python benchmarks/predict.py --run RUN --video VIDEO --out benchmarks/predict.jsonl

The example video, re-encoded as H.264, is predicted as by `jaxpose predict`, tables included, with untrained weights,
which take as long as any. In turns with it, the same video is only decoded and fitted into the input. For comparison,
the forward pass of the same network in torch (eval mode, torch.compile, one thread, the same batch). The bound is
1 / (forward pass of torch + decoding); for a tiny network, 1 / decoding. All are CPU seconds of a frame.
With start-up, the rate counts all CPU time of a process from its start: imports, compiling, one pass over the video.
Each network has a process of its own. Appends one JSON line for each.

With --run, a run of several animals, predicts the first frames of a video with its finder and pose network, and in
turns with one network of the same backbone on whole frames in full size.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from json_lines import append_line

# (backbone, width, side of the input, size of the video, frames of it)
CASES = {
    "resnet18": ("resnet18", 64, 128, (640, 480), 480),
    "resnet50": ("resnet50", 64, 256, (640, 480), 64),
    "tiny": ("resnet10", 8, 64, (1280, 1024), 320),
}
SHARE = 0.9


def measure_jaxpose(case: str, data: Path, turns: int) -> dict[str, object]:
    """Returns frames per CPU second of prediction and of decoding alone."""
    import jax
    from latency import make_predictor
    from video import EXAMPLE, write_scaled

    from jaxpose import geometry
    from jaxpose.prediction.video_tables import predict_segment
    from jaxpose.video.video import read_chunks, scan

    backbone, width, side_px, size_px, frames = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JAXPOSE_CACHE"] = folder
        path, before = Path(folder) / "video.mp4", time.process_time()
        write_scaled(data / EXAMPLE, path, size_px, frames)
        writing_s = time.process_time() - before
        predictor, _ = make_predictor(backbone, side_px, width)
        affine, batch = geometry.input_from_frame(size_px, (side_px, side_px), "pad"), predictor.runner.frames_per_step
        predicting_s, decoding_s, started_s = [], [], 0.0
        # The first turn compiles.
        for turn in range(turns + 1):
            began = time.process_time()
            rows = predict_segment(predictor, scan(path), None, Path(folder) / f"{turn}.csv")
            between = time.process_time()
            decoded = sum(len(chunk) for chunk in read_chunks(scan(path), affine, (side_px, side_px), batch))
            ended = time.process_time()
            if (rows, decoded) != (frames, frames):
                raise RuntimeError(f"{rows} rows and {decoded} frames of {frames}")
            if turn:
                predicting_s.append((between - began) / frames)
                decoding_s.append((ended - between) / frames)
            else:
                started_s = between - writing_s
    return {
        "batch": batch,
        "predicting_ms": [1000 * value for value in sorted(predicting_s)],
        "decoding_ms": [1000 * value for value in sorted(decoding_s)],
        "frames_per_cpu_s": 1 / statistics.median(predicting_s),
        "with_start_up": frames / started_s,
        "platform": jax.devices()[0].platform,
    }


def measure_animals(run: Path, file: Path, frames: int, turns: int) -> dict[str, object]:
    """Returns the CPU ms of a frame with a run of several animals, and with one network on whole frames."""
    from latency import make_predictor

    from jaxpose.prediction.predictor import load
    from jaxpose.prediction.video_tables import predict_segment
    from jaxpose.video.index import read_index
    from jaxpose.video.video import Segment, scan

    predictor, video = load(run, devices=1, platform="cpu"), scan(file)
    segment = Segment(read_index(file), 0, frames)
    model, side_px = predictor.config.model, max(video.width_px, video.height_px)
    whole, _ = make_predictor(model.backbone, side_px, model.width)
    kinds, spent_s = {"animals": predictor, "whole": whole}, {"animals": list[float](), "whole": list[float]()}
    with tempfile.TemporaryDirectory() as folder:
        # The first turn compiles.
        for turn in range(turns + 1):
            for kind, one in kinds.items():
                began = time.process_time()
                rows = predict_segment(one, video, segment, Path(folder, f"{kind}{turn}.csv"))
                spent_s[kind].append(time.process_time() - began)
                if rows != frames:
                    raise RuntimeError(f"{rows} rows of {frames} frames")
    line: dict[str, object] = {"backbone": model.backbone, "side_px": side_px, "frames": frames}
    line |= {f"{kind}_ms": sorted(1000 * s / frames for s in spent[1:]) for kind, spent in spent_s.items()}
    return line | {"ratio": statistics.median(spent_s["animals"][1:]) / statistics.median(spent_s["whole"][1:])}


def measure_torch(case: str, batch: int, calls: int) -> dict[str, object]:
    """Returns the CPU ms of a frame in torch."""
    import torch  # pyright: ignore[reportMissingImports]
    from gpu_parts.torch_networks import make_torch_network
    from latency import KEYPOINTS

    backbone, width, side_px, _, _ = CASES[case]
    about = argparse.Namespace(backbone=backbone, width=width, size_px=side_px, keypoints=len(KEYPOINTS))
    torch.set_num_threads(1)
    network = make_torch_network(about).to(memory_format=torch.channels_last).eval()  # pyright: ignore[reportCallIssue]
    forward = torch.compile(lambda frames: torch.softmax(network((frames.float() - 114) / 58).flatten(2), -1))
    frames = torch.randint(0, 256, (batch, 3, side_px, side_px), dtype=torch.uint8)
    frames, spent_s = frames.contiguous(memory_format=torch.channels_last), []
    with torch.no_grad():
        for _ in range(calls + 2):
            began = time.process_time()
            forward(frames)
            spent_s.append(time.process_time() - began)
    return {"torch_forward_ms": 1000 * statistics.median(spent_s[2:]) / batch}


def main(argv: list[str]) -> int:
    """Measures each case in processes of its own; returns 1 if one is below its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the example project")
    parser.add_argument("--run", type=Path, help="a run of several animals")
    parser.add_argument("--video", type=Path, help="the video that it predicts")
    parser.add_argument("--frames", type=int, default=32, help="of this video")
    parser.add_argument("--out", type=Path, help="JSON lines, appended to")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--part", choices=("jaxpose", "torch"), help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=tuple(CASES), help="only this one")
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if not (given.data or (given.run and given.video)):
        parser.error("pass --data, or --run and --video")
    if given.part:
        measured = (
            measure_jaxpose(given.case, given.data, given.turns)
            if given.part == "jaxpose"
            else measure_torch(given.case, given.batch, 3 * given.turns)
        )
        print(json.dumps(measured))
        return 0
    if given.run:
        _add(given.out, argv, measure_animals(given.run, given.video, given.frames, given.turns))
        return 0
    is_reached = True
    for case in [given.case] if given.case else CASES:
        line: dict[str, Any] = {"case": case} | _part(argv, case, "jaxpose")
        forward_ms = 0.0
        if case != "tiny":
            line |= _part(argv, case, "torch", "--batch", str(line["batch"]))
            forward_ms = line["torch_forward_ms"]
        line["bound"] = 1000 / (forward_ms + statistics.median(line["decoding_ms"]))
        line["share_of_bound"] = line["frames_per_cpu_s"] / line["bound"]
        is_reached &= line["share_of_bound"] >= SHARE
        _add(given.out, argv, line)
    return 0 if is_reached else 1


def _add(file: Path | None, argv: list[str], line: dict) -> None:
    """Prints a measurement, and appends it to a file."""
    command = shlex.join(["python", "benchmarks/predict.py", *argv])
    versions = {name: importlib.metadata.version(name) for name in ("jaxpose", "jax", "jaxlib", "av", "torch")}
    machine = {"machine": platform.machine(), "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    line = {"command": command} | line | versions | machine
    print(json.dumps(line), flush=True)
    if file:
        append_line(file, line)


def _part(argv: list[str], case: str, part: str, *more: str) -> dict:
    command = [sys.executable, __file__, *argv, "--case", case, "--part", part, *more]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
