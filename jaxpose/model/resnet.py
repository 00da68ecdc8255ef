"""Residual networks (He et al. 2016) with torchvision's parameter names, and the conversion of published weights."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxpose.config import ModelConfig
from jaxpose.config.model import feature_stride
from jaxpose.model.layers import Conv, Norm, max_pool, windowed_max_pool
from jaxpose.model.torch_weights import fill_by_name, prefix_of

# Converts published tensors of residual networks, by their names in torch, to parameters of `ResNet`.

# The tensor that identifies a backbone: torchvision's name and that of transformers.
_FIRST = ("conv1.weight", "embedder.embedder.convolution.weight")


def fill_resnet(
    tensors: Mapping[str, np.ndarray], params: dict, statistics: dict, source: str, network: str = "the network"
) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Returns (parameters, batch statistics) of a `ResNet` that hold published tensors.

    Args:
      tensors: by torchvision's names ("layer1.0.conv1.weight") or those of transformers' ResNet, without any other
        prefix; kernels (out, in, height, width).
      params: nested dict of the backbone's parameters; only their names, shapes and types count.
      statistics: nested dict of its batch statistics, likewise; {} for a network that has none (norm=group).
      source: name of the file, for messages.
      network: the network for the tensors, for messages.

    Raises:
      UserError: see `fill_by_name`.
    """
    is_transformers = any("embedder.embedder." in name for name in tensors)
    names = {own: torchvision_name(own) if is_transformers else own for own in tensors}
    return fill_by_name(tensors, names, "fc", params, statistics, source, network)


def find_resnet_prefix(tensors: Mapping[str, np.ndarray], source: str) -> str:
    """Returns the prefix of the backbone's tensor names: "backbone." in a checkpoint of MMPose, often "".

    Raises:
      UserError: no tensor is the first of a known backbone, or several are.
    """
    # Blocks also have a conv1.
    candidates = [name for name in tensors if not re.search(r"(^|\.)layer\d\.", name)]
    return prefix_of(_FIRST, tensors, candidates, source, "ResNet")


def torchvision_name(name: str) -> str:
    """Returns torchvision's name of a tensor of transformers' ResNet; any other name as it is."""
    name = name.removeprefix("resnet.")
    if match := re.fullmatch(r"embedder\.embedder\.(convolution|normalization)\.(\w+)", name):
        return f"{'conv1' if match[1] == 'convolution' else 'bn1'}.{match[2]}"
    if match := re.fullmatch(r"encoder\.stages\.(\d+)\.layers\.(\d+)\.(.+)\.(convolution|normalization)\.(\w+)", name):
        stage, block, part, kind, leaf = match.groups()
        is_conv = kind == "convolution"
        layer = f"downsample.{0 if is_conv else 1}"
        if inner := re.fullmatch(r"layer\.(\d+)", part):
            layer = f"{'conv' if is_conv else 'bn'}{int(inner[1]) + 1}"
        elif part != "shortcut":
            return name
        return f"layer{int(stage) + 1}.{block}.{layer}.{leaf}"
    return re.sub(r"^classifier\.1\.", "fc.", name)


_BLOCKS = {
    "resnet10": (1, 1, 1, 1),
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}


class Block(nnx.Module):
    """One residual block: two 3x3 convolutions, or 1x1, 3x3, 1x1 with four times the channels out.

    Args:
      in_channels: channels of the input.
      channels: channels inside.
      stride: step of the 3x3 convolution (the first of two, or the middle one as in torchvision's version 1.5).
      dilations: dilation of that convolution, and of the second 3x3 convolution of the first form.
      bottleneck: whether the block has the second form.
      norm: kind of normalisation.
      groups: groups of each norm of the kind group; 0 means one per 16 channels.
      dtypes: `dtype` and `param_dtype` of every layer.
      rng: source of the initial weights.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        stride: int,
        dilations: tuple[int, int],
        bottleneck: bool,
        norm: str,
        groups: int,
        dtypes: dict,
        rng: np.random.Generator,
    ):
        self.bottleneck = bottleneck
        out_channels = channels * (4 if bottleneck else 1)
        if bottleneck:
            forms = ((1, 1, 1), (3, stride, dilations[0]), (1, 1, 1))
        else:
            forms = ((3, stride, dilations[0]), (3, 1, dilations[1]))
        widths = [in_channels, *[channels] * (len(forms) - 1), out_channels]
        for i, form in enumerate(forms):
            setattr(self, f"conv{i + 1}", Conv(widths[i], widths[i + 1], *form, rng=rng, **dtypes))
            setattr(self, f"bn{i + 1}", Norm(widths[i + 1], norm, groups, **dtypes))
        self.downsample = nnx.List([])
        if stride != 1 or in_channels != out_channels:
            self.downsample.append(Conv(in_channels, out_channels, 1, stride, rng=rng, **dtypes))
            self.downsample.append(Norm(out_channels, norm, groups, **dtypes))

    def __call__(
        self, x: Float[Array, "b h w c"], counted: Bool[Array, " b"], count: Float[Array, ""], train: bool
    ) -> Float[Array, "b h2 w2 c2"]:
        """Returns the block's maps; see `Norm` for counted, count and train."""
        shortcut = x
        for i in range(1, 4 if self.bottleneck else 3):
            if i > 1:
                x = jax.nn.relu(x)
            x = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x), counted, count, train)
        if len(self.downsample):
            conv, norm = self.downsample
            shortcut = norm(conv(shortcut), counted, count, train)
        return jax.nn.relu(x + shortcut)


class ResNet(nnx.Module):
    """A residual network without its classifier: from frames to features at stride 32 or 16.

    At stride 16, the last stage keeps the size of its maps. From its second block on, 3x3 convolutions are dilated by
    2 instead (in a block of two such convolutions, also the first block's second one), as in timm and DeepLabCut.

    Args:
      name: resnet10, resnet18, resnet34, resnet50, resnet101 or resnet152.
      width: channels of the first stage (64 in the published networks).
      norm: kind of normalisation.
      groups: groups of each norm of the kind group; 0 means one per 16 channels.
      stride: input pixels per cell of the coarsest features, 32 or 16.
      dtype: type of the arithmetic.
      param_dtype: type of the parameters.
      rng: source of the initial weights.

    Attributes:
      level_channels: channels of the features at each level, the coarsest first.
    """

    def __init__(
        self,
        name: str,
        width: int,
        norm: str,
        groups: int = 0,
        stride: int = 32,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        bottleneck = name not in ("resnet10", "resnet18", "resnet34")
        self.conv1 = Conv(3, width, 7, 2, dtype=dtype, param_dtype=param_dtype, rng=rng)
        self.bn1 = Norm(width, norm, groups, dtype=dtype, param_dtype=param_dtype)
        dtypes = {"dtype": dtype, "param_dtype": param_dtype}
        stages, widths, channels = [], [], width
        for stage, count in enumerate(_BLOCKS[name]):
            is_dilated = stage == 3 and stride == 16
            blocks = []
            for i in range(count):
                step = 2 if stage > 0 and i == 0 and not is_dilated else 1
                dilations = (2 if i else 1, 2) if is_dilated else (1, 1)
                blocks.append(Block(channels, width << stage, step, dilations, bottleneck, norm, groups, dtypes, rng))
                channels = (width << stage) * (4 if bottleneck else 1)
            stages.append(nnx.List(blocks))
            widths.append(channels)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        # The stages whose features count: of two at the same stride, only the last.
        self.levels = (3, 1, 0) if stride == 16 else (3, 2, 1, 0)
        self.level_channels = tuple(widths[level] for level in self.levels)

    def __call__(
        self, x: Float[Array, "b h w 3"], counted: Bool[Array, " b"], count: Float[Array, ""], train: bool
    ) -> list[Float[Array, "b _ _ _"]]:
        """Returns the features of normalised frames at each level, from the coarsest to stride 4."""
        x = self.conv1(x)
        if self.bn1.is_folded:
            # The same as below: a maximum commutes with a bias and a ReLU, and here leaves less for them to do.
            x = jax.nn.relu(self.bn1(windowed_max_pool(x), counted, count, train))
        else:
            x = max_pool(jax.nn.relu(self.bn1(x, counted, count, train)))
        found = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            for block in stage:
                x = block(x, counted, count, train)
            found.append(x)
        return [found[level] for level in self.levels]


def make_backbone(model: ModelConfig, dtypes: dict[str, Any]) -> ResNet:
    """Returns a backbone of this family, with an attribute `level_channels`.

    Args:
      model: its options.
      dtypes: `dtype` of the arithmetic, `param_dtype` of the parameters, and `rng`, source of the initial weights.
    """
    return ResNet(model.backbone, model.width, model.norm, model.norm_groups, feature_stride(model), **dtypes)


def features(
    backbone: ResNet, frames: Float[Array, "b h w 3"], counted: Bool[Array, " b"], count: Float[Array, ""], train: bool
) -> list[Float[Array, "b _ _ _"]]:
    """Returns the features of normalised frames at each level, the coarsest first; for the rest see `Norm`."""
    return backbone(frames, counted, count, train)


def fill_backbone(
    model: ModelConfig, tensors: Mapping[str, np.ndarray], params: dict, statistics: dict, source: str
) -> tuple[dict, dict]:
    """Returns (parameters, batch statistics) of published tensors; see `jaxpose.model.pose_net.fill_backbone`."""
    options = f"model.backbone={model.backbone} model.width={model.width} model.norm={model.norm}"
    return fill_resnet(tensors, params, statistics, source, options)


# The kinds in the config.json of transformers, and the prefixes of a backbone's tensors.
MODEL_TYPES = ("resnet",)
find_prefix = find_resnet_prefix


def published_settings(name: str) -> dict[str, Any]:
    """Returns the settings in transformers' config.json that the tensors of the backbone do not reveal."""
    del name  # The same for all.
    return {"downsample_in_bottleneck": False, "downsample_in_first_stage": False, "hidden_act": "relu"}


def timm_names(name: str) -> str:
    """Returns the pattern of timm's names of a backbone: those of other networks with the same tensors do not match."""
    return rf"{name}(_gn)?"
