"""The network of jaxpose's default, written in torch: what the benchmarks of prediction compare with."""

import statistics
import time
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}
WIDTH = 64


class Block(nn.Module):
    """One residual block, with batch norm."""

    def __init__(self, inside: int, channels: int, stride: int, bottleneck: bool):
        super().__init__()
        outside = channels * (4 if bottleneck else 1)
        first = _layer(inside, channels, 1, 1) if bottleneck else _layer(inside, channels, 3, stride)
        middle = [nn.ReLU(), *_layer(channels, channels, 3, stride)] if bottleneck else []
        last = _layer(channels, outside, 1 if bottleneck else 3, 1)
        self.main = nn.Sequential(*first, *middle, nn.ReLU(), *last)
        same = stride == 1 and inside == outside
        self.shortcut = nn.Identity() if same else nn.Sequential(*_layer(inside, outside, 1, stride))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.main(x) + self.shortcut(x))


def make_network(backbone: str, keypoints: int) -> Any:
    """Returns a backbone and a head of transposed convolutions, channels last, in eval mode."""
    bottleneck, channels = backbone == "resnet50", WIDTH
    layers: list[Any] = [*_layer(3, channels, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for stage, count in enumerate(BLOCKS[backbone]):
        for block in range(count):
            layers.append(Block(channels, WIDTH << stage, 2 if stage and not block else 1, bottleneck))
            channels = (WIDTH << stage) * (4 if bottleneck else 1)
    layers += [nn.PixelShuffle(2), nn.ConvTranspose2d(channels // 4, keypoints, 3, 2, 1, 1)]
    layers += [nn.ConvTranspose2d(keypoints, keypoints, 3, 2, 1, 1)]
    network = nn.Sequential(*layers).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return network.eval()


def measure_forward(backbone: str, side_px: int, batch: int, keypoints: int, calls: int) -> float:
    """Returns CPU seconds of a frame: from uint8 frames to maps, by torch.compile on one thread, median of calls."""
    torch.set_num_threads(1)
    network = make_network(backbone, keypoints)
    forward = torch.compile(lambda frames: torch.softmax(network((frames.float() - 114) / 58).flatten(2), -1))
    frames = torch.randint(0, 256, (batch, 3, side_px, side_px), dtype=torch.uint8)
    frames, spent_s = frames.contiguous(memory_format=torch.channels_last), []
    with torch.no_grad():
        for _ in range(calls + 2):
            began = time.process_time()
            forward(frames)
            spent_s.append(time.process_time() - began)
    return statistics.median(spent_s[2:]) / batch


def _layer(inside: int, outside: int, size: int, stride: int) -> list[Any]:
    return [nn.Conv2d(inside, outside, size, stride, size // 2, bias=False), nn.BatchNorm2d(outside)]
