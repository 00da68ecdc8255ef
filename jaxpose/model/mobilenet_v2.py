"""MobileNetV2 (Sandler et al. 2018) with torchvision's parameter names, and the conversion of published weights."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxpose.config import ModelConfig
from jaxpose.config.model import BACKBONES, PUBLISHED_WIDTH
from jaxpose.model.depthwise import DepthwiseConv
from jaxpose.model.layers import Conv, Norm
from jaxpose.model.torch_weights import fill_by_name, prefix_of

# The paper's table 2: how many times as many channels inside a block, channels out, blocks, stride of the first one.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_FIRST_CHANNELS, _LAST_CHANNELS = 32, 1280
# Channels are multiples of it.
_DIVISOR = BACKBONES["mobilenet_v2"].channels_multiple


def channels_at(width: int, published: int) -> int:
    """Returns the channels of a network of this `model.width` where the published one has so many."""
    wanted = published * width / PUBLISHED_WIDTH
    channels = max(_DIVISOR, int(wanted + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    # Rounding takes away at most a tenth.
    return channels + _DIVISOR if channels < 0.9 * wanted else channels


class Block(nnx.Module):
    """An inverted residual: a 1x1 convolution to more channels, a depthwise 3x3 one, and a 1x1 one to few channels.

    Args:
      in_channels: channels of the input.
      out_channels: channels of the output.
      expansion: channels inside over those of the input; with 1, there is no first convolution.
      stride: step of the 3x3 convolution.
      norm: kind of normalisation.
      groups: groups of each norm of the kind group; 0 means one per 16 channels.
      dtypes: `dtype` and `param_dtype` of every layer.
      rng: source of the initial weights.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        expansion: int,
        stride: int,
        norm: str,
        groups: int,
        dtypes: dict,
        rng: np.random.Generator,
    ):
        inside = in_channels * expansion
        self.stride = stride
        self.has_shortcut = stride == 1 and in_channels == out_channels
        layers: list[Any] = []
        if expansion > 1:
            conv = Conv(in_channels, inside, 1, rng=rng, **dtypes)
            layers.append(nnx.List([conv, Norm(inside, norm, groups, **dtypes)]))
        conv = DepthwiseConv(inside, stride, rng=rng, **dtypes)
        layers.append(nnx.List([conv, Norm(inside, norm, groups, **dtypes)]))
        layers += [Conv(inside, out_channels, 1, rng=rng, **dtypes), Norm(out_channels, norm, groups, **dtypes)]
        self.conv: nnx.List[Any] = nnx.List(layers)

    def __call__(
        self, x: Float[Array, "b h w c"], counted: Bool[Array, " b"], count: Float[Array, ""], train: bool
    ) -> Float[Array, "b h2 w2 c2"]:
        """Returns the block's maps; see `Norm` for counted, count and train."""
        shortcut = x
        *hidden, conv, norm = self.conv
        for layers in hidden:
            x = _activated(layers, x, counted, count, train)
        x = norm(conv(x), counted, count, train)
        return x + shortcut if self.has_shortcut else x


class MobileNetV2(nnx.Module):
    """MobileNetV2 without its classifier: from frames to features at stride 32.

    Args:
      width: 64 for the published channels; all but the last scale with it, in multiples of 8.
      norm: kind of normalisation.
      groups: groups of each norm of the kind group; 0 means one per 16 channels.
      dtype: type of the arithmetic.
      param_dtype: type of the parameters.
      rng: source of the initial weights.

    Attributes:
      level_channels: channels of the features at each level, the coarsest first.
    """

    def __init__(
        self,
        width: int,
        norm: str,
        groups: int = 0,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        dtypes: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype}
        channels = channels_at(width, _FIRST_CHANNELS)
        first = [Conv(3, channels, 3, 2, rng=rng, **dtypes), Norm(channels, norm, groups, **dtypes)]
        layers: list[Any] = [nnx.List(first)]
        levels = []
        for expansion, published, count, step in _STAGES:
            if step == 2:
                levels.append(channels)
            for number in range(count):
                out, stride = channels_at(width, published), 1 if number else step
                layers.append(Block(channels, out, expansion, stride, norm, groups, dtypes, rng))
                channels = out
        last = channels_at(max(width, PUBLISHED_WIDTH), _LAST_CHANNELS)
        layers.append(nnx.List([Conv(channels, last, 1, rng=rng, **dtypes), Norm(last, norm, groups, **dtypes)]))
        self.features: nnx.List[Any] = nnx.List(layers)
        self.level_channels = (last, *reversed(levels))

    def __call__(
        self, x: Float[Array, "b h w 3"], counted: Bool[Array, " b"], count: Float[Array, ""], train: bool
    ) -> list[Float[Array, "b _ _ _"]]:
        """Returns the features of normalised frames at each level, from stride 32 to stride 2."""
        first, *blocks, last = self.features
        x = _activated(first, x, counted, count, train)
        levels = []
        for block in blocks:
            if block.stride == 2:
                levels.append(x)
            x = block(x, counted, count, train)
        return [_activated(last, x, counted, count, train), *reversed(levels)]


def _activated(layers: Any, x: jax.Array, counted: jax.Array, count: jax.Array, train: bool) -> jax.Array:
    conv, norm = layers
    return jax.nn.relu6(norm(conv(x), counted, count, train))


def make_backbone(model: ModelConfig, dtypes: dict[str, Any]) -> MobileNetV2:
    """Returns a backbone of this family; see `jaxpose.model.resnet.make_backbone`."""
    return MobileNetV2(model.width, model.norm, model.norm_groups, **dtypes)


def features(
    backbone: MobileNetV2,
    frames: Float[Array, "b h w 3"],
    counted: Bool[Array, " b"],
    count: Float[Array, ""],
    train: bool,
) -> list[Float[Array, "b _ _ _"]]:
    """Returns the features at each level, the coarsest first; see `jaxpose.model.resnet.features`."""
    return backbone(frames, counted, count, train)


# The tensor that identifies a backbone: torchvision's name and timm's.
_FIRST = ("features.0.0.weight", "conv_stem.weight")


def fill_backbone(
    model: ModelConfig, tensors: Mapping[str, np.ndarray], params: dict, statistics: dict, source: str
) -> tuple[dict, dict]:
    """Returns (parameters, batch statistics) of published tensors; see `jaxpose.model.pose_net.fill_backbone`."""
    options = f"model.backbone={model.backbone} model.width={model.width} model.norm={model.norm}"
    names = {name: torchvision_name(name) for name in tensors}
    return fill_by_name(tensors, names, "classifier.1", params, statistics, source, options)


def find_prefix(tensors: Mapping[str, np.ndarray], source: str) -> str:
    """Returns the prefix of the names of the backbone's tensors, often "".

    Raises:
      UserError: no tensor is the first of a known backbone, or several are.
    """
    return prefix_of(_FIRST, tensors, list(tensors), source, "MobileNetV2")


def torchvision_name(name: str) -> str:
    """Returns torchvision's name of a tensor of timm's MobileNetV2; any other name as it is."""
    outside = {"conv_stem": "features.0.0", "bn1": "features.0.1", "conv_head": "features.18.0", "bn2": "features.18.1"}
    layer, _, leaf = name.rpartition(".")
    if layer in outside:
        return f"{outside[layer]}.{leaf}"
    if match := re.fullmatch(r"blocks\.([0-6])\.(\d)\.(\w+)", layer):
        stage, number, part = int(match[1]), int(match[2]), match[3]
        block = 1 + sum(count for _, _, count, _ in _STAGES[:stage]) + number
        if part in (parts := _TIMM_PARTS[stage > 0]):
            return f"features.{block}.conv.{parts[part]}.{leaf}"
    return f"classifier.1.{leaf}" if layer == "classifier" else name


# timm's name of a layer of a block -> its place in torchvision's: of the first block, and of the others.
_TIMM_PARTS = (
    {"conv_dw": "0.0", "bn1": "0.1", "conv_pw": "1", "bn2": "2"},
    {"conv_pw": "0.0", "bn1": "0.1", "conv_dw": "1.0", "bn2": "1.1", "conv_pwl": "2", "bn3": "3"},
)


# transformers' own MobileNetV2 has other padding, and so is another network.
MODEL_TYPES = ()


def published_settings(name: str) -> dict[str, Any]:
    """Returns the settings in transformers' config.json that the tensors of the backbone do not reveal: none."""
    del name
    return {}


def timm_names(name: str) -> str:
    """Returns the pattern of timm's names of a backbone, of any width."""
    del name  # There is one.
    return r"mobilenetv2_\d+"
