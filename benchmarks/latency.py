"""How long does one frame take, from an array to its keypoints?

    python benchmarks/latency.py --out benchmarks/latency.jsonl

Calls `predict(frame)` repeatedly, with frames of twice the network's input and untrained weights, which take as long as
any, in turns with the bare network: the compiled program of batch 1 up to the maps, with its input on the device.
Appends one JSON line a network: milliseconds of the fastest call and of the median call, CPU milliseconds of a call on
all threads, the same of the bare network, the median ratio of a pair of calls (CPU), and the seconds of the first call,
which compiles.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxpose import config as c
from jaxpose.cluster.mesh import make_mesh, replicate
from jaxpose.model.pose_net import apply_network, make_network
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.prediction.predictor import Predictor
from jaxpose.steps.predict_step import forward_options

NETWORKS = (("mobilenet_v2", 128), ("resnet18", 128), ("resnet50", 256))
KEYPOINTS = tuple(f"keypoint{number}" for number in range(17))


def main() -> int:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--calls", type=int, default=200)
    given = arguments.parse_args()
    for backbone, side_px in NETWORKS:
        device = jax.devices()[0]
        found = {"backbone": backbone, "side_px": side_px, "device": device.device_kind, "platform": device.platform}
        found |= _latency(backbone, side_px, given.calls)
        found |= {"calls": given.calls, "load": os.getloadavg()[0], "cores": os.cpu_count()}
        print(json.dumps(found), flush=True)
        with open(given.out, "a") as file:
            file.write(json.dumps(found) + "\n")
    return 0


def _latency(backbone: str, side_px: int, calls: int) -> dict[str, float]:
    predictor, forward = make_predictor(backbone, side_px)
    frames = np.random.default_rng(0).integers(0, 256, (8, 2 * side_px, 2 * side_px, 3), np.uint8)
    started = time.monotonic()
    predictor.predict(frames[0])
    first_s = time.monotonic() - started
    spent_ms, cpu_ms, forward_ms = [], [], []
    forward()
    for call in range(calls):
        started, cpu_began = time.perf_counter(), time.process_time()
        predictor.predict(frames[call % len(frames)])
        cpu_ended = time.process_time()
        spent_ms.append(1000 * (time.perf_counter() - started))
        forward()
        cpu_ms.append(1000 * (cpu_ended - cpu_began))
        forward_ms.append(1000 * (time.process_time() - cpu_ended))
    found = {
        "fastest_ms": min(spent_ms),
        "median_ms": statistics.median(spent_ms),
        "cpu_ms": statistics.median(cpu_ms),
        "forward_cpu_ms": statistics.median(forward_ms),
        "over_forward": statistics.median(a / b for a, b in zip(cpu_ms, forward_ms, strict=True)),
        "first_s": first_s,
    }
    return {name: round(value, 2) for name, value in found.items()}


def make_predictor(backbone: str, side_px: int, width: int = 64) -> tuple[Predictor, Callable[[], object]]:
    """Returns a predictor with random weights, and a function that runs its bare network on one frame."""
    config = c.Config(
        data=c.DataConfig(project="none", input_height_px=side_px, input_width_px=side_px, keypoint_names=KEYPOINTS),
        model=c.ModelConfig(backbone=backbone, width=width),
    )
    graphdef, params, batch_statistics = make_network(config.model, len(KEYPOINTS), config.train.precision, 0)
    mesh = make_mesh(jax.devices()[:1])
    runner = BatchRunner(config, graphdef, mesh, config.eval.batch_size)
    predictor = Predictor(config, runner, replicate(mesh, (params, batch_statistics)), ["one"], {}, "random")
    frame, counted, one = jnp.zeros((1, 1, side_px, side_px, 3)), jnp.ones((1, 1), bool), jnp.ones(())
    bare = jax.jit(
        lambda weights, frame: apply_network(graphdef, weights[0], weights[1], [frame], [counted], one, False, True)[0],
        compiler_options=forward_options(mesh.devices.flat[0].platform),
    )
    return predictor, lambda: jax.block_until_ready(bare(predictor.folded_weights, frame))


if __name__ == "__main__":
    sys.exit(main())
