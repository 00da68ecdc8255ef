"""What does a network that looks at five frames cost, compared with single frames and with torch?

    taskset -c 0 python benchmarks/context.py --out benchmarks/context.jsonl

Train steps of resnet18 at 128 px in float32, as jaxpose.train compiles them, with one batch that is already on the
device: 8 and 40 single frames; 8 windows of five frames, which are 40; and these with a clip of 16 frames. Then the
prediction of 32 frames, and, if torch is installed, the train step for 40 single frames in torch.compile, on one
thread. All take turns. Appends one JSON line for each: CPU milliseconds of a step, the median, the least and the most,
the milliseconds of each frame that goes through the backbone, and the median ratio to the same turn's 40 (of a
prediction: 32) single frames.
"""

import argparse
import importlib.util
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from gpu_parts.figures import host, versions

from jaxpose import config as c
from jaxpose.cluster.devices import compile_options, keep_memory, start_backend
from jaxpose.cluster.mesh import make_mesh, put_batch, replicate
from jaxpose.data.loader import Samples
from jaxpose.model.pose_net import make_network
from jaxpose.poses import Poses
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.steps.layout import clip_shards
from jaxpose.steps.predict_step import build_predict, forward_options
from jaxpose.steps.state import initial_state
from jaxpose.steps.terms import DataFacts
from jaxpose.steps.train_step import build_train_step
from jaxpose.training.batches import empty_clips

BACKBONE, SIDE_PX, KEYPOINTS, CLIP, PREDICTED = "resnet18", 128, 17, 16, 32
SINGLE, CONTEXT = "heatmap", "heatmap_context"
MESH = c.MeshConfig(platform="cpu", devices=1)

# A call, and the frames that it passes through the backbone.
Work = tuple[Callable[[], None], int]


def train_step(kind: str, batch: int, preset: str = "none", clips: int = 0) -> Work:
    """Returns the train step for a batch of labelled frames, or windows, and clips."""
    config = c.Config(
        augment=c.AugmentConfig(preset=preset, flip_p=0.0),
        model=c.ModelConfig(kind=kind, backbone=BACKBONE, head="lightning_pose", norm="sync"),
        video=c.VideoConfig(context_sequence_length=CLIP),
        train=c.TrainConfig(batch_size=batch),
        mesh=MESH,
    )
    config.losses.temporal.weight = 1e-3 * clips
    config, mesh = c.resolve(config), make_mesh(start_backend(MESH))
    graphdef, params, batch_statistics = make_network(config.model, KEYPOINTS, config.train.precision, seed=0)
    rng, span = np.random.default_rng(0), 5 if kind == CONTEXT else 1
    rows = Samples(
        pixels=rng.integers(0, 256, (batch, span, SIDE_PX, SIDE_PX, 3), np.uint8),
        poses=Poses.of_one_animal(
            [str(place) for place in range(KEYPOINTS)],
            range(batch),
            rng.uniform(0, SIDE_PX - 1, (batch, KEYPOINTS, 2)).astype(np.float32),
            visibility=np.full((batch, KEYPOINTS), 2, np.int8),
            pixels="input",
        ),
        frame_from_input=np.tile(np.eye(2, 3, dtype=np.float32), (batch, 1, 1)),
    ).batch(np.arange(batch), np.arange(batch))
    if clips:
        rows["clips"] = empty_clips(clip_shards(0, clips, 1, 1, CLIP, span // 2), 1, (SIDE_PX, SIDE_PX))
        rows["clips"]["frames"][:] = rng.integers(0, 256, rows["clips"]["frames"].shape)
        rows["clips"]["valid"][:] = True
    held = {"state": replicate(mesh, initial_state(params, batch_statistics, config))}
    on_device, seed = put_batch(mesh, rows), replicate(mesh, np.uint32(0))
    facts = DataFacts(size_px=(SIDE_PX, SIDE_PX), passes=1, steps_per_epoch=100, total_steps=100_000)
    lowered = build_train_step(config, graphdef, mesh, facts).lower(held["state"], on_device, seed)
    step = lowered.compile(compile_options(MESH, list(mesh.devices.flat)))

    def take_step() -> None:
        held["state"], _ = step(held["state"], on_device, seed)
        jax.block_until_ready(held["state"])

    return take_step, span * batch + CLIP * clips


def predict_step(kind: str) -> Work:
    """Returns the predict step for that many frames of a video: alone, or as a sequence with two more at either end."""
    config = c.Config(model=c.ModelConfig(kind=kind, backbone=BACKBONE, head="lightning_pose", norm="sync"))
    mesh = make_mesh(start_backend(MESH))
    graphdef, *weights = make_network(config.model, KEYPOINTS, config.train.precision, seed=0)
    folded = BatchRunner(config, graphdef, mesh, PREDICTED).fold(*weights)
    shape = (1, PREDICTED + 4) if kind == CONTEXT else (PREDICTED, 1)
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, SIDE_PX, SIDE_PX, 3), np.uint8)
    affines = np.tile(np.eye(2, 3, dtype=np.float32), (len(pixels), 1, 1))
    batch = put_batch(mesh, {"frames": pixels, "frame_from_input": affines})
    step = jax.jit(build_predict(config, graphdef), compiler_options=forward_options("cpu"))
    return lambda: jax.block_until_ready(step(*folded, batch)), shape[0] * shape[1]


def torch_step(batch: int) -> Work:
    """Returns the train step for single frames in torch."""
    import torch  # pyright: ignore[reportMissingImports]
    from gpu_parts.torch_step import torch_training

    torch.set_num_threads(1)
    given = argparse.Namespace(backbone=BACKBONE, width=64, size_px=SIDE_PX, batch=batch, keypoints=KEYPOINTS)
    given.precision, given.platform = "f32", "cpu"
    take_steps = torch_training(given)
    return lambda: take_steps(1), batch


def cells() -> dict[str, tuple[Work, str]]:
    """Returns the workloads by name, each with the name of the one it is compared with."""
    labels, frames = "40 single frames", f"prediction of {PREDICTED} frames, single"
    found = {
        labels: (train_step(SINGLE, 40), labels),
        "8 single frames": (train_step(SINGLE, 8), labels),
        "8 windows of 5 frames": (train_step(CONTEXT, 8), labels),
        "8 windows of 5 frames, augmented (dlc)": (train_step(CONTEXT, 8, "dlc"), labels),
        f"8 windows of 5 frames and a clip of {CLIP}": (train_step(CONTEXT, 8, clips=1), labels),
        frames: (predict_step(SINGLE), frames),
        f"prediction of {PREDICTED} frames, windows of 5": (predict_step(CONTEXT), frames),
    }
    if importlib.util.find_spec("torch"):
        found["torch.compile, 40 single frames"] = (torch_step(40), labels)
    return found


def main() -> int:
    """Measures, prints and appends."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--turns", type=int, default=10, help="after 3 to warm up")
    given = arguments.parse_args()
    keep_memory(MESH)
    measured = cells()
    spent_ms: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(given.turns + 3):
        for name, ((call, _), _) in measured.items():
            began = time.process_time()
            call()
            spent_ms[name].append(1000 * (time.process_time() - began))
    about: dict[str, Any] = {"command": shlex.join(["python", *sys.argv]), **versions(), **host()}
    about |= {"backbone": BACKBONE, "side_px": SIDE_PX, "turns": given.turns, "load": os.getloadavg()[0]}
    for name, ((_, frames), base) in measured.items():
        cpu_ms, beside = spent_ms[name][3:], spent_ms[base][3:]
        median = statistics.median(cpu_ms)
        found = {"what": name, "frames": frames, "cpu_ms": [round(ms) for ms in (median, min(cpu_ms), max(cpu_ms))]}
        found |= {"cpu_ms_per_frame": round(median / frames, 1)}
        found["ratio"] = round(statistics.median(a / b for a, b in zip(cpu_ms, beside, strict=True)), 3)
        print(json.dumps(found), flush=True)
        with given.out.open("a") as file:
            file.write(json.dumps(found | about) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
