"""Converts the tensors of a DeepLabCut 3 network to parameters of `PoseNet`, exactly."""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxpose.errors import UserError
from jaxpose.terminal import listed

_BACKBONE = "backbone.model."
_HEAD = re.compile(r"heads\.bodypart\.(heatmap|locref)_head\.deconv_layers\.(\d+)\.(weight|bias)")
_SHOWN = 5
# The tensors of a layer, and their places in a `Deconv`.
_LEAVES = {"weight": "kernel", "bias": "bias"}

Layers = dict[int, dict[str, np.ndarray]]


class Tensors(NamedTuple):
    """The tensors of a network."""

    backbone: dict[str, np.ndarray]
    """By torchvision's names."""
    maps: Layers
    """The transposed convolutions that end in the maps, as parameters of `Deconv`."""
    offsets: Layers
    """Those that end in the offsets, {} without location refinement; the last channels are (keypoint, x or y)."""


def sort_tensors(tensors: Mapping[str, np.ndarray]) -> Tensors:
    """Returns tensors grouped by their part of the network.

    Args:
      tensors: by DeepLabCut's names.

    Raises:
      UserError: a name or shape is unknown, or there is no head.
    """
    found, unknown = Tensors({}, {}, {}), []
    for name, value in tensors.items():
        match = _HEAD.fullmatch(name)
        if name.startswith(_BACKBONE):
            found.backbone[name.removeprefix(_BACKBONE)] = value
        elif match and value.shape[2:] in ((), (3, 3)):
            # A ReLU stands between two layers.
            layer = (found.maps if match[1] == "heatmap" else found.offsets).setdefault(int(match[2]) // 2, {})
            layer[_LEAVES[match[3]]] = value.transpose(2, 3, 0, 1) if value.ndim == 4 else value
        else:
            unknown.append(name)
    if unknown or not found.maps:
        reason = f"tensors that jaxpose does not know: {listed(unknown, _SHOWN)}" if unknown else "no heatmap_head"
        raise UserError(
            f"the snapshot has {reason}; it converts ResNets with one head, bodypart, of transposed convolutions (3x3)"
        )
    for layers in (found.maps, found.offsets):
        for number, layer in layers.items():
            if layer.keys() != {"kernel", "bias"} or number >= len(layers):
                raise UserError("the head of the snapshot lacks the weight or the bias of a transposed convolution")
    return found


def head_sizes(tensors: Tensors) -> tuple[int, int, int]:
    """Returns (number of keypoints, number of layers, channels between them, 0 for a single layer)."""
    last = len(tensors.maps) - 1
    return tensors.maps[last]["bias"].size, last + 1, tensors.maps[0]["bias"].size if last else 0


def head_parameters(tensors: Tensors, offset_factor: float) -> dict[str, Layers]:
    """Returns the parameters of the head, with the names of `DeconvHead`.

    Args:
      tensors: of the network.
      offset_factor: unit of the network's offsets, as a multiple of the one here; 0 for a network without offsets,
        which here are 0 everywhere.
    """
    keypoints, count, _ = head_sizes(tensors)
    offsets = {number: dict(layer) for number, layer in (tensors.offsets or tensors.maps).items()}
    for leaf, value in offsets[count - 1].items():
        if not tensors.offsets:
            value = np.repeat(value, 2, axis=-1)
        channels = value.reshape(*value.shape[:-1], keypoints, 2).swapaxes(-1, -2)
        offsets[count - 1][leaf] = channels.reshape(value.shape) * np.float32(offset_factor)
    return {"layers": dict(tensors.maps), "offsets": offsets}
