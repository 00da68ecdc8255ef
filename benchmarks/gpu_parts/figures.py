"""The figures of every line of the GPU benchmark: speeds, FLOP, peak, versions and hardware."""

import argparse
import importlib.metadata
import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

PRECISIONS = ("bf16", "tf32", "f32")
# TFLOP/s without sparsity, from the data sheets; --peak_tflops sets those of another device.
PEAK_TFLOPS = {
    "NVIDIA H200": {"bf16": 989, "tf32": 495, "f32": 67},
    "NVIDIA H100 80GB HBM3": {"bf16": 989, "tf32": 495, "f32": 67},
    "NVIDIA A100-SXM4-80GB": {"bf16": 312, "tf32": 156, "f32": 19.5},
    "NVIDIA A100-SXM4-40GB": {"bf16": 312, "tf32": 156, "f32": 19.5},
}
BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}
VITS = ("vit_small", "vit_base")
PATCH_PX = 16
MIB = 2**20


def forward_flops(params: dict, size_px: int) -> int:
    """Returns the FLOP of the convolutions and matrix products for one image, forward: two for each multiplication.

    Args:
      params: parameters of the network, as `make_network` gives them.
      size_px: side of the square input, a multiple of 32.
    """
    is_vit = "patch" in params["backbone"]
    total = _attention_flops(params["backbone"], size_px) if is_vit else 0
    for path, kernel in jax.tree_util.tree_leaves_with_path(params):
        names = [part.key for part in path]
        if names[-1] != "kernel" or kernel.ndim not in (2, 4):
            continue
        if names[0] == "head":
            places = _places_of_head(params["head"]["layers"], names[2], size_px, PATCH_PX if is_vit else 32)
        elif is_vit:
            # The class token goes through all layers except the patches'.
            places = (size_px // PATCH_PX) ** 2 + (names[1] != "patch")
        elif names[1] == "conv1":
            places = (size_px // 2) ** 2
        else:
            stage, block = int(names[1].removeprefix("layer")), params["backbone"][names[1]][names[2]]
            side = size_px // 2 ** (stage + 1)
            # The first convolution of a bottleneck comes before the stride.
            if stage > 1 and names[2] == 0 and names[3] == "conv1" and "conv3" in block:
                side *= 2
            places = side**2
        total += 2 * kernel.size * places
    return total


def _places_of_head(layers: dict, number: int, size_px: int, feature_stride: int) -> int:
    """Returns the cells that a layer of a head is applied to."""
    if "conv" in layers[0]:
        # In a pyramid, the last layer has the cells of the one before.
        side = size_px // feature_stride * 2 ** min(number, max(layers) - 1)
    else:
        side = 2 * size_px // feature_stride * 2**number
    return side**2


def _attention_flops(backbone: dict, size_px: int) -> int:
    """Returns the FLOP of the products of queries with keys, and of weights with values, of all blocks."""
    tokens, channels = (size_px // PATCH_PX) ** 2 + 1, backbone["patch"]["kernel"].shape[1]
    return len(backbone["blocks"]) * 2 * 2 * tokens**2 * channels


def speeds_of(take_steps: Callable[[int], None], given: argparse.Namespace) -> np.ndarray:
    """Returns the images per second of each repeat (n,)."""
    take_steps(given.warmup)
    seconds = []
    for _ in range(given.repeats):
        started = time.perf_counter()
        take_steps(given.steps)
        seconds.append(time.perf_counter() - started)
    return given.batch * given.steps / np.array(seconds)


def spread(speeds: np.ndarray) -> dict[str, float]:
    """Returns the median, the least and the most."""
    return {"median": float(np.median(speeds)), "least": float(speeds.min()), "most": float(speeds.max())}


def figures(
    given: argparse.Namespace, device: str, speeds: np.ndarray, step_flops: dict[str, float], compile_s: float
) -> dict[str, Any]:
    """Returns the part of a JSON line that every framework has; step_flops counts a step by each way of counting."""
    median = float(np.median(speeds))
    peak = given.peak_tflops or PEAK_TFLOPS.get(device, {}).get(given.precision)
    names = ("backbone", "width", "size_px", "batch", "precision", "norm", "preset", "keypoints", "steps", "repeats")
    return {
        **{name: getattr(given, name) for name in names},
        "images_per_s": spread(speeds),
        "step_ms": 1000 * given.batch / median,
        "gflop_per_step": {name: flops / 1e9 for name, flops in step_flops.items()},
        "peak_tflops": peak,
        "mfu": {name: median / given.batch * flops / 1e12 / peak if peak else None
                for name, flops in step_flops.items()},
        "compile_s": compile_s,
    }  # fmt: skip


def versions() -> dict[str, str]:
    """Returns the versions of the packages that decide the speed."""
    names = ("jaxpose", "jax", "jaxlib")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}


def host() -> dict[str, Any]:
    """Returns the processor, its cores and their load now."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": model[1] if model else platform.machine(), "cores": cores, "load": os.getloadavg()[0]}
