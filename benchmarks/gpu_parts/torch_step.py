"""The same work in torch: channels_last, autocast, torch.compile, cudnn.benchmark."""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from gpu_parts.figures import MIB, figures, forward_flops, speeds_of
from gpu_parts.torch_networks import make_torch_network

from jaxpose import config as c
from jaxpose.model.pose_net import make_network


def measure_torch_step(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of the train step in torch."""
    return _measured(given, _device(given), torch_training(given), passes=3)


def torch_training(given: argparse.Namespace) -> Callable[[int], None]:
    """Returns the function that takes some train steps: forward and backward pass, and Adam."""
    device, network, frames = _prepare(given)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    maps_side = given.size_px // 4
    targets = torch.rand(given.batch, given.keypoints, maps_side, maps_side, device=device)

    def loss_of(frames: Any, targets: Any) -> Any:
        maps = torch.softmax(_logits(network, frames, given).flatten(2), -1)
        return torch.mean((maps - targets.flatten(2)) ** 2)

    compiled = torch.compile(loss_of)

    def take_steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            compiled(frames, targets).backward()
            optimizer.step()
        _wait(device)

    return take_steps


def measure_torch_predict(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of a prediction in torch: forward pass, softmax, and the highest cell of each map."""
    device, network, frames = _prepare(given)
    network.eval()

    def find(frames: Any) -> Any:
        return torch.softmax(_logits(network, frames, given).flatten(2), -1).max(-1)

    compiled = torch.compile(find)

    def take_steps(count: int) -> None:
        with torch.inference_mode():
            for _ in range(count):
                compiled(frames)
        _wait(device)

    return _measured(given, device, take_steps, passes=1)


def _device(given: argparse.Namespace) -> Any:
    is_gpu = torch.cuda.is_available() and given.platform != "cpu"
    return torch.device("cuda" if is_gpu else "cpu")


def _prepare(given: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Returns (device, network, frames uint8 (b, 3, h, w)), both channels_last."""
    device = _device(given)
    torch.set_float32_matmul_precision("highest" if given.precision == "f32" else "high")
    torch.backends.cudnn.allow_tf32 = given.precision != "f32"
    torch.backends.cudnn.benchmark = True
    # torch's own types omit this argument.
    network = make_torch_network(given).to(device, memory_format=torch.channels_last)  # pyright: ignore
    shape = (given.batch, 3, given.size_px, given.size_px)
    frames = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
    return device, network, frames.contiguous(memory_format=torch.channels_last)


def _logits(network: Any, frames: Any, given: argparse.Namespace) -> Any:
    with torch.autocast(frames.device.type, torch.bfloat16, enabled=given.precision == "bf16"):
        return network((frames.float() - 114) / 58).float()


def _wait(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _measured(given: argparse.Namespace, device: Any, take_steps: Any, passes: int) -> dict[str, Any]:
    """Returns the line of steps that take as many FLOP as some forward passes."""
    started = time.perf_counter()
    take_steps(1)
    compile_s = time.perf_counter() - started
    speeds = speeds_of(take_steps, given)
    is_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name() if is_gpu else "cpu"
    model = c.ModelConfig(backbone=given.backbone, width=given.width, head="lightning_pose")
    _, params, _ = make_network(model, given.keypoints, "f32", 0)
    flops = {"analytic": passes * given.batch * forward_flops(params, given.size_px)}
    line = {"framework": "torch", "device": name, "platform": device.type, "torch": torch.__version__}
    line |= figures(given, name, speeds, flops, compile_s)
    line["peak_mib"] = torch.cuda.max_memory_allocated() / MIB if is_gpu else None
    return line
