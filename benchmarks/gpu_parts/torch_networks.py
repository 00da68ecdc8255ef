"""The same networks in torch: a backbone, a pixel shuffle, and transposed convolutions to maps at stride 4."""

import argparse
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from gpu_parts.figures import BLOCKS, PATCH_PX, VITS
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from jaxpose.model.vit import FORMS, VitForm
from jaxpose.model.vit_weights import bicubic_matrix


def make_torch_network(given: argparse.Namespace) -> nn.Module:
    """Returns the network of a cell: from normalised frames (b, 3, h, w) to logits (b, keypoints, h / 4, w / 4)."""
    if given.backbone in VITS:
        form = FORMS[given.backbone]
        last = nn.ConvTranspose2d(form.channels // 4, given.keypoints, 3, 2, 1, 1, bias=False)
        return nn.Sequential(Vit(form, given.size_px), nn.PixelShuffle(2), last)
    bottleneck, channels = given.backbone == "resnet50", given.width
    layers: list[Any] = [*_layer(3, channels, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for stage, count in enumerate(BLOCKS[given.backbone]):
        for block in range(count):
            layers.append(ResNetBlock(channels, given.width << stage, 2 if stage and not block else 1, bottleneck))
            channels = (given.width << stage) * (4 if bottleneck else 1)
    layers += [nn.PixelShuffle(2), nn.ConvTranspose2d(channels // 4, 32, 3, 2, 1, 1)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(32, given.keypoints, 3, 2, 1, 1))


def _layer(inside: int, outside: int, size: int, stride: int) -> list[Any]:
    return [nn.Conv2d(inside, outside, size, stride, size // 2, bias=False), nn.BatchNorm2d(outside)]


class ResNetBlock(nn.Module):
    """A basic block or a bottleneck of a ResNet.

    Args:
      inside: channels of the input.
      channels: the 3x3 convolution's.
      stride: the 3x3 convolution's.
      bottleneck: whether 1x1 convolutions surround it.
    """

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
        """Returns the block's output."""
        return torch.relu(self.main(x) + self.shortcut(x))


class VitBlock(nn.Module):
    """An attention (queries, keys and values by one product) and two linear maps, each after a norm.

    Args:
      form: channels, heads and epsilon.
    """

    def __init__(self, form: VitForm):
        super().__init__()
        channels = form.channels
        self.heads = form.heads
        self.norm1, self.norm2 = (nn.LayerNorm(channels, form.epsilon) for _ in range(2))
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.fc = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))

    def forward(self, x: Any) -> Any:
        """Returns the tokens (b, n, c) after the block."""
        b, n, c = x.shape
        query, key, value = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, n, c))
        return x + self.fc(self.norm2(x))


class Vit(nn.Module):
    """A vision transformer with learned positions, from frames (b, 3, h, w) to features (b, c, h / 16, w / 16).

    Args:
      form: as in jaxpose.
      size_px: side of the frames.
    """

    def __init__(self, form: VitForm, size_px: int):
        super().__init__()
        self.side = size_px // PATCH_PX
        self.patch = nn.Conv2d(3, form.channels, PATCH_PX, PATCH_PX)
        self.class_token = nn.Parameter(torch.zeros(1, 1, form.channels))
        self.positions = nn.Parameter(0.02 * torch.randn(1 + form.grid**2, form.channels))
        one = bicubic_matrix(self.side, form.grid)
        self.resize: torch.Tensor
        self.register_buffer("resize", torch.from_numpy(np.kron(one, one)).float())
        self.blocks = nn.Sequential(*[VitBlock(form) for _ in range(form.depth)])
        self.norm = nn.LayerNorm(form.channels, form.epsilon)

    def forward(self, x: Any) -> Any:
        """Returns the normalised tokens of the patches, as a map."""
        tokens = self.patch(x).flatten(2).transpose(1, 2) + self.resize @ self.positions[1:]
        first = (self.class_token + self.positions[:1]).expand(len(x), -1, -1)
        tokens = self.norm(self.blocks(torch.cat([first.to(tokens.dtype), tokens], 1)))[:, 1:]
        return tokens.transpose(1, 2).reshape(len(x), -1, self.side, self.side)
