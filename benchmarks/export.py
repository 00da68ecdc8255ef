"""How long does one frame take with an exported file?

    python benchmarks/export.py --out benchmarks/export.jsonl --threads 1

Calls `predict(frame)` of jaxpose, the .stablehlo file by JAX and the .onnx file by onnxruntime again and again and by
turns, with frames of twice the network's input and weights that nobody trained, which take as long as any. Appends one
JSON line for each network, number of frames and way: milliseconds of the fastest and of the median call, the least CPU
milliseconds of a call on all threads, the seconds of the first call, and the bytes of the file.

    python benchmarks/export.py --out benchmarks/export.jsonl --run RUN --images FOLDER

Exports a run instead, and appends for each file how far its keypoints are from the run's on the images below a folder,
in pixels of the frame; also in OpenVINO, if it is installed.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import jax
import numpy as np
import onnxruntime

from jaxpose import config as c
from jaxpose import load
from jaxpose.cluster.mesh import make_mesh, replicate
from jaxpose.export.command import export, random_frames
from jaxpose.export.frame_fit import make_fit
from jaxpose.export.onnx_file import load_onnx, to_onnx
from jaxpose.export.program import frame_shape, load_stablehlo, make_program, to_stablehlo
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.model.pose_net import make_network
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.prediction.predictor import Predictor
from jaxpose.run.load import LoadedNetwork

NETWORKS = (("mobilenet_v2", 128), ("resnet18", 128), ("resnet50", 256), ("vit_small", 256))
KEYPOINTS = tuple(f"keypoint{number}" for number in range(17))
FRAMES = (1, 8)


def main() -> int:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--calls", type=int, default=40, help="of each way with one frame; a quarter of 8 frames")
    arguments.add_argument("--threads", type=int, default=2, help="cores that the process may use")
    arguments.add_argument("--run", type=Path, help="compare the files of this run with it, instead of times")
    arguments.add_argument("--images", type=Path, help="folder of PNG images of the size of the run's labelled ones")
    given = arguments.parse_args()
    # Before the first thread starts, so it holds for all of them.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])
    if given.run:
        for line in _distances(given.run, given.images):
            _append(line, given.out)
        return 0
    device = jax.devices()[0]
    machine = {"device": device.device_kind, "platform": device.platform, "threads": given.threads}
    for backbone, side_px in NETWORKS:
        for line in _latencies(backbone, side_px, given.calls, given.threads):
            line = {"backbone": backbone, "side_px": side_px} | machine | line | {"load": round(os.getloadavg()[0], 1)}
            _append(line, given.out)
    return 0


def _append(line: dict[str, Any], out: Path) -> None:
    print(json.dumps(line), flush=True)
    with open(out, "a") as file:
        file.write(json.dumps(line) + "\n")


def _distances(run: Path, images: Path) -> Iterator[dict[str, Any]]:
    """Yields the distances between the keypoints of each file of a run and the run's own."""
    frames = np.stack([np.asarray(cv2.imread(str(image)))[..., ::-1] for image in sorted(images.rglob("*.png"))])
    expected, sure = load(run, devices=1).predict(frames)
    for name, fp16 in (("mouse.stablehlo", False), ("mouse.onnx", False), ("half.onnx", True)):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / name
            export(run, file, fp16=fp16)
            content = file.read_bytes()
            ways: dict[str, Callable[[bytes], Any]] = (
                {"jax": load_stablehlo} if file.suffix == ".stablehlo" else {"onnxruntime": load_onnx}
            )
            if name == "mouse.onnx" and importlib.util.find_spec("openvino"):
                ways["openvino"] = _load_openvino
            for way, load_file in ways.items():
                line = {"file": name, "way": way, "frames": len(frames), "bytes": len(content)}
                try:
                    distances = np.linalg.norm(load_file(content)(frames)[0] - expected, axis=-1)
                except RuntimeError as error:
                    yield line | {"refused": str(error)}
                    continue
                line |= {"median_px": float(np.median(distances)), "largest_px": float(distances.max())}
                yield line | {"largest_sure_px": float(distances[sure >= 0.5].max(initial=0))}


def _load_openvino(content: bytes) -> Callable[[np.ndarray], list[np.ndarray]]:
    import openvino  # pyright: ignore[reportMissingImports]

    core = openvino.Core()
    compiled = core.compile_model(core.read_model(content), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda frames: [compiled(np.ascontiguousarray(frames))[place] for place in (0, 1)]


def _latencies(backbone: str, side_px: int, calls: int, threads: int) -> Iterator[dict[str, Any]]:
    frames = random_frames(max(FRAMES), (2 * side_px, 2 * side_px))
    network = _network(backbone, side_px)
    fit = make_fit((2 * side_px, 2 * side_px), (side_px, side_px), network.config.data.resize)
    program, shape = make_program(network, fit), frame_shape("heatmap", (2 * side_px, 2 * side_px))
    predictor = _predictor(network)
    with pinned_settings("f32"):
        content = {"stablehlo": to_stablehlo(program, shape), "onnx": to_onnx(program, shape, None, {})}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Otherwise threads that wait count as computing, for long on a busy machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(content["onnx"], options, providers=["CPUExecutionProvider"])
    ways: dict[str, Callable[[np.ndarray], Any]] = {
        "jaxpose": lambda frames: predictor.predict(frames[0] if len(frames) == 1 else frames),
        "stablehlo": load_stablehlo(content["stablehlo"]),
        "onnx": lambda frames: session.run(None, {"frames": frames}),
    }
    for count in FRAMES:
        first_s = {way: _seconds(call, frames[:count])[0] for way, call in ways.items()}
        spent: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(calls if count == 1 else calls // 4):
            for way, call in ways.items():
                spent[way].append(_seconds(call, frames[:count]))
        for way, found in spent.items():
            wall_s, cpu_s = zip(*found, strict=True)
            yield {
                "frames": count,
                "way": way,
                "fastest_ms": round(1000 * min(wall_s), 2),
                "median_ms": round(1000 * statistics.median(wall_s), 2),
                "cpu_ms": round(1000 * min(cpu_s), 2),
                "first_s": round(first_s[way], 2),
                "bytes": len(content.get(way, b"")),
                "calls": len(found),
            }


def _seconds(call: Callable[[np.ndarray], Any], frames: np.ndarray) -> tuple[float, float]:
    """Returns how long a call takes, by the clock and on all threads together."""
    started, cpu_began = time.perf_counter(), time.process_time()
    call(frames)
    return time.perf_counter() - started, time.process_time() - cpu_began


def _network(backbone: str, side_px: int) -> LoadedNetwork:
    config = c.Config(
        data=c.DataConfig(project="none", input_height_px=side_px, input_width_px=side_px, keypoint_names=KEYPOINTS),
        model=c.ModelConfig(backbone=backbone),
    )
    graphdef, *weights = make_network(config.model, len(KEYPOINTS), config.train.precision, 0)
    params, batch_statistics = jax.tree.map(np.asarray, weights)
    return LoadedNetwork(config, graphdef, params, batch_statistics, "random")


def _predictor(network: LoadedNetwork) -> Predictor:
    mesh = make_mesh(jax.devices()[:1])
    runner = BatchRunner(network.config, network.graphdef, mesh, max(FRAMES))
    return Predictor(network.config, runner, replicate(mesh, (network.params, network.statistics)), ["one"], {}, "")


if __name__ == "__main__":
    sys.exit(main())
