"""How many images per second does the train step do on this device?

    python benchmarks/gpu.py --platform gpu --out benchmarks/gpu.jsonl

The step is the one that jaxpose.train compiles, on one device, with one batch that is already there: the figure
includes neither loading nor copying. After a warm-up, the time of `--steps` steps is taken `--repeats` times. Then,
where torch is installed, the same work in torch: the same backbone, a head of transposed convolutions, softmax, MSE and
Adam, with channels_last, autocast and torch.compile. Appends one JSON line for each of the two.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpose import config as c
from jaxpose.cluster.devices import compile_options, start_backend
from jaxpose.cluster.mesh import make_mesh, put_batch, replicate
from jaxpose.data.loader import Samples
from jaxpose.model.pose_net import make_network
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.optim import make_optimizer
from jaxpose.steps.state import initial_state
from jaxpose.steps.train_step import build_train_step

PRECISIONS = ("bf16", "tf32", "f32")
# TFLOP/s without sparsity, from the data sheets; --peak_tflops gives those of another device.
PEAK_TFLOPS = {
    "NVIDIA H200": {"bf16": 989, "tf32": 495, "f32": 67},
    "NVIDIA H100 80GB HBM3": {"bf16": 989, "tf32": 495, "f32": 67},
    "NVIDIA A100-SXM4-80GB": {"bf16": 312, "tf32": 156, "f32": 19.5},
    "NVIDIA A100-SXM4-40GB": {"bf16": 312, "tf32": 156, "f32": 19.5},
}
BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}
MIB = 2**20


def forward_flops(params: dict, size_px: int) -> int:
    """Returns the FLOP of the convolutions for one image, forward: two for each multiplication.

    Args:
      params: parameters of the network, as `make_network` gives them.
      size_px: side of the square input, a multiple of 32.
    """
    total = 0
    for path, kernel in jax.tree_util.tree_leaves_with_path(params):
        names = [part.key for part in path]
        if kernel.ndim != 4:
            continue
        if names[0] == "head":
            side = size_px // 16 * 2 ** names[2]
        elif names[1] == "conv1":
            side = size_px // 2
        else:
            stage, block = int(names[1].removeprefix("layer")), params["backbone"][names[1]][names[2]]
            side = size_px // 2 ** (stage + 1)
            # The first convolution of a bottleneck comes before the stride.
            if stage > 1 and names[2] == 0 and names[3] == "conv1" and "conv3" in block:
                side *= 2
        total += 2 * kernel.size * side**2
    return total


def measure_jaxpose(given: argparse.Namespace) -> dict[str, Any]:
    """Returns what the train step of jaxpose does on the device."""
    config = c.resolve(
        c.Config(
            augment=c.AugmentConfig(preset=given.preset),
            model=c.ModelConfig(backbone=given.backbone, width=given.width, norm=given.norm),
            train=c.TrainConfig(batch_size=given.batch, precision=given.precision),
            mesh=c.MeshConfig(platform=given.platform, devices=1),
        )
    )
    mesh = make_mesh(start_backend(config.mesh))
    device = mesh.devices.flat[0]
    side, points = given.size_px, given.keypoints
    graphdef, params, statistics = make_network(config.model, points, given.precision, seed=0)
    flops = 3 * given.batch * forward_flops(params, side)
    state = replicate(mesh, initial_state(params, statistics, make_optimizer(config.optim), False))
    rng = np.random.default_rng(0)
    samples = Samples(
        pixels=rng.integers(0, 256, (given.batch, 1, side, side, 3), np.uint8),
        keypoints_px=rng.uniform(0, side - 1, (given.batch, points, 2)).astype(np.float32),
        visibility=np.full((given.batch, points), 2, np.int8),
        frame_from_input=np.tile(np.eye(2, 3, dtype=np.float32), (given.batch, 1, 1)),
    )
    batch = put_batch(mesh, samples.batch(np.arange(given.batch), np.arange(given.batch)))
    facts = DataFacts(size_px=(side, side), passes=1, steps_per_epoch=100, total_steps=100_000)
    started = time.perf_counter()
    compiled = build_train_step(config, graphdef, mesh, facts).lower(state, batch).compile(
        compile_options(config.mesh, [device])
    )  # fmt: skip
    compile_s = time.perf_counter() - started

    def take_steps(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state, _ = compiled(state, batch)
        jax.block_until_ready(state)

    speeds = _speeds(take_steps, given)
    memory, in_use = compiled.memory_analysis(), device.memory_stats() or {}
    counted = (compiled.cost_analysis() or {}).get("flops", 0.0)
    line = {"framework": "jaxpose", "device": device.device_kind, "platform": device.platform}
    line |= {name: importlib.metadata.version(name) for name in ("jaxpose", "jax", "jaxlib")}
    line |= _figures(given, device.device_kind, speeds, {"compiled": counted, "analytic": flops}, compile_s)
    line["temporary_mib"] = memory.temp_size_in_bytes / MIB if memory else None
    line["peak_mib"] = in_use["peak_bytes_in_use"] / MIB if "peak_bytes_in_use" in in_use else None
    return line


def measure_torch(given: argparse.Namespace) -> dict[str, Any]:
    """Returns what the same work does in torch."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch import nn  # pyright: ignore[reportMissingImports]

    is_gpu = torch.cuda.is_available() and given.platform != "cpu"
    device = torch.device("cuda" if is_gpu else "cpu")
    torch.set_float32_matmul_precision("highest" if given.precision == "f32" else "high")
    torch.backends.cudnn.allow_tf32 = given.precision != "f32"
    torch.backends.cudnn.benchmark = True

    def layer(inside: int, outside: int, size: int, stride: int) -> list[Any]:
        return [nn.Conv2d(inside, outside, size, stride, size // 2, bias=False), nn.BatchNorm2d(outside)]

    class Block(nn.Module):
        def __init__(self, inside: int, channels: int, stride: int, bottleneck: bool):
            super().__init__()
            outside = channels * (4 if bottleneck else 1)
            first = layer(inside, channels, 1, 1) if bottleneck else layer(inside, channels, 3, stride)
            middle = [nn.ReLU(), *layer(channels, channels, 3, stride)] if bottleneck else []
            last = layer(channels, outside, 1 if bottleneck else 3, 1)
            self.main = nn.Sequential(*first, *middle, nn.ReLU(), *last)
            same = stride == 1 and inside == outside
            self.shortcut = nn.Identity() if same else nn.Sequential(*layer(inside, outside, 1, stride))

        def forward(self, x: Any) -> Any:
            return torch.relu(self.main(x) + self.shortcut(x))

    bottleneck, channels = given.backbone == "resnet50", given.width
    layers: list[Any] = [*layer(3, channels, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for stage, count in enumerate(BLOCKS[given.backbone]):
        for block in range(count):
            layers.append(Block(channels, given.width << stage, 2 if stage and not block else 1, bottleneck))
            channels = (given.width << stage) * (4 if bottleneck else 1)
    layers += [nn.PixelShuffle(2), nn.ConvTranspose2d(channels // 4, 32, 3, 2, 1, 1)]
    layers += [nn.ConvTranspose2d(32, given.keypoints, 3, 2, 1, 1)]
    # torch's own types leave this argument out.
    network = nn.Sequential(*layers).to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    side = given.size_px
    frames = torch.randint(0, 256, (given.batch, 3, side, side), dtype=torch.uint8, device=device)
    frames = frames.contiguous(memory_format=torch.channels_last)
    targets = torch.rand(given.batch, given.keypoints, side // 4, side // 4, device=device)

    def loss_of(frames: Any, targets: Any) -> Any:
        with torch.autocast(device.type, torch.bfloat16, enabled=given.precision == "bf16"):
            logits = network((frames.float() - 114) / 58)
        maps = torch.softmax(logits.float().flatten(2), -1)
        return torch.mean((maps - targets.flatten(2)) ** 2)

    compiled = torch.compile(loss_of)

    def take_steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            compiled(frames, targets).backward()
            optimizer.step()
        if is_gpu:
            torch.cuda.synchronize()

    started = time.perf_counter()
    take_steps(1)
    compile_s = time.perf_counter() - started
    speeds = _speeds(take_steps, given)
    name = torch.cuda.get_device_name() if is_gpu else "cpu"
    _, params, _ = make_network(c.ModelConfig(backbone=given.backbone, width=given.width), given.keypoints, "f32", 0)
    flops = {"analytic": 3 * given.batch * forward_flops(params, side)}
    line = {"framework": "torch", "device": name, "platform": device.type, "torch": torch.__version__}
    line |= _figures(given, name, speeds, flops, compile_s)
    line["peak_mib"] = torch.cuda.max_memory_allocated() / MIB if is_gpu else None
    return line


def _speeds(take_steps: Callable[[int], None], given: argparse.Namespace) -> np.ndarray:
    """Returns the images per second of each repeat (n,)."""
    take_steps(given.warmup)
    seconds = []
    for _ in range(given.repeats):
        started = time.perf_counter()
        take_steps(given.steps)
        seconds.append(time.perf_counter() - started)
    return given.batch * given.steps / np.array(seconds)


def _figures(
    given: argparse.Namespace, device: str, speeds: np.ndarray, step_flops: dict[str, float], compile_s: float
) -> dict[str, Any]:
    """Returns the part of a JSON line that every framework has; step_flops counts a step by each way of counting."""
    median = float(np.median(speeds))
    peak = given.peak_tflops or PEAK_TFLOPS.get(device, {}).get(given.precision)
    names = ("backbone", "width", "size_px", "batch", "precision", "norm", "preset", "keypoints", "steps", "repeats")
    return {
        **{name: getattr(given, name) for name in names},
        "images_per_s": {"median": median, "least": float(speeds.min()), "most": float(speeds.max())},
        "step_ms": 1000 * given.batch / median,
        "gflop_per_step": {name: flops / 1e9 for name, flops in step_flops.items()},
        "peak_tflops": peak,
        "mfu": {name: median / given.batch * flops / 1e12 / peak if peak else None
                for name, flops in step_flops.items()},
        "compile_s": compile_s,
    }  # fmt: skip


def read(argv: list[str]) -> argparse.Namespace:
    """Returns the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--platform", default="auto", choices=("auto", "cpu", "gpu"))
    parser.add_argument("--framework", default="both", choices=("both", "jaxpose", "torch"))
    parser.add_argument("--backbone", default="resnet50", choices=tuple(BLOCKS))
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--size_px", type=int, default=256, help="side of the input, a multiple of 32")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--precision", default="bf16", choices=PRECISIONS)
    parser.add_argument("--norm", default="sync", choices=("sync", "group"))
    parser.add_argument("--preset", default="none", choices=("none", "dlc"), help="augmentation")
    parser.add_argument("--keypoints", type=int, default=17)
    parser.add_argument("--warmup", type=int, default=10, help="steps before the first repeat")
    parser.add_argument("--steps", type=int, default=50, help="steps of a repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peak_tflops", type=float, help="of the device in this precision, for the MFU")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Measures, prints and appends a line for each framework."""
    given = read(argv)
    if given.framework == "both":
        # Each in a process of its own: jax reserves most of the memory of a GPU.
        for framework in ("jaxpose", "torch"):
            subprocess.run([sys.executable, __file__, *argv, "--framework", framework], check=True)
        return 0
    if given.framework == "torch" and importlib.util.find_spec("torch") is None:
        print("torch not installed")
        return 0
    if given.framework == "torch" and (given.norm, given.preset) != ("sync", "none"):
        print("torch not measured: the comparison is with --norm sync --preset none")
        return 0
    line = measure_jaxpose(given) if given.framework == "jaxpose" else measure_torch(given)
    line = {"command": shlex.join(["python", "benchmarks/gpu.py", *argv]), **line}
    with given.out.open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    speed = line["images_per_s"]
    print(
        f"{line['framework']}: {speed['median']:.1f} images/s ({speed['least']:.1f} to {speed['most']:.1f}) on "
        f"{line['device']}, compiled in {line['compile_s']:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
