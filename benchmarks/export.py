"""How long does one frame take with an exported file?

    python benchmarks/export.py --out benchmarks/export.jsonl

Calls `predict(frame)` of jaxpose and the file by JAX again and again and by turns, with frames of twice the network's
input and weights that nobody trained, which take as long as any. Appends one JSON line a network and way: milliseconds
of the fastest call and of the median call, CPU milliseconds of a call on all threads, the seconds of the first call,
which compiles, and the bytes of the file.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpose import config as c
from jaxpose.cluster.mesh import make_mesh, replicate
from jaxpose.export.command import random_frames
from jaxpose.export.program import frame_shape, load_stablehlo, make_fit, make_program, to_stablehlo
from jaxpose.model.pose_net import make_network
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.prediction.predictor import Predictor
from jaxpose.run.load import LoadedNetwork

NETWORKS = (("resnet18", 128), ("resnet50", 256))
KEYPOINTS = tuple(f"keypoint{number}" for number in range(17))
TURNS = 5


def main() -> int:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--calls", type=int, default=200, help="of each way")
    given = arguments.parse_args()
    device = jax.devices()[0]
    machine = {"device": device.device_kind, "platform": device.platform, "cores": os.cpu_count()}
    for backbone, side_px in NETWORKS:
        for way, found in _latencies(backbone, side_px, given.calls).items():
            line = {"backbone": backbone, "side_px": side_px, "way": way} | machine | found
            line |= {"calls": given.calls, "load": os.getloadavg()[0]}
            print(json.dumps(line), flush=True)
            with open(given.out, "a") as file:
                file.write(json.dumps(line) + "\n")
    return 0


def _latencies(backbone: str, side_px: int, calls: int) -> dict[str, dict[str, Any]]:
    frames = random_frames(8, (2 * side_px, 2 * side_px))
    network = _network(backbone, side_px)
    fit = make_fit((2 * side_px, 2 * side_px), (side_px, side_px), network.config.data.resize)
    program, shape = make_program(network, fit), frame_shape("heatmap", (2 * side_px, 2 * side_px))
    predictor = _predictor(network)
    ways: dict[str, Callable[[np.ndarray], Any]] = {"jaxpose": lambda frames: predictor.predict(frames[0])}
    content = to_stablehlo(program, shape)
    ways["file"] = load_stablehlo(content)
    first_s = {way: _seconds(call, frames[:1]) for way, call in ways.items()}
    spent_ms: dict[str, list[float]] = {way: [] for way in ways}
    cpu_s = dict.fromkeys(ways, 0.0)
    for _ in range(TURNS):
        for way, call in ways.items():
            cpu_began = time.process_time()
            spent_ms[way] += [1000 * _seconds(call, frames[i % 8 : i % 8 + 1]) for i in range(calls // TURNS)]
            cpu_s[way] += time.process_time() - cpu_began
    return {
        way: {
            "fastest_ms": round(min(spent), 2),
            "median_ms": round(statistics.median(spent), 2),
            "cpu_ms": round(1000 * cpu_s[way] / len(spent), 2),
            "first_s": round(first_s[way], 2),
            "bytes": len(content) if way == "file" else 0,
        }
        for way, spent in spent_ms.items()
    }


def _seconds(call: Callable[[np.ndarray], Any], frames: np.ndarray) -> float:
    started = time.perf_counter()
    call(frames)
    return time.perf_counter() - started


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
    runner = BatchRunner(network.config, network.graphdef, mesh, 1)
    return Predictor(network.config, runner, replicate(mesh, (network.params, network.statistics)), ["one"], {}, "")


if __name__ == "__main__":
    sys.exit(main())
