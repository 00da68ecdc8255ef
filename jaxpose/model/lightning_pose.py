"""Converts the tensors of a Lightning Pose network to parameters of `PoseNet`, exactly.

Its transposed convolutions (3x3, stride 2, padding 1, output padding 1) become sub-pixel ones. The bias of the last
layer before a softmax over the map has no effect, and `HeatmapHead` has none.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxpose.errors import UserError
from jaxpose.terminal import listed

# The children of its `Sequential` backbone that have tensors, by torchvision's names.
_BACKBONE_CHILDREN = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}
_SINGLE = re.compile(r"(?:head\.)?(?:head_sf\.)?upsampling_layers(?:_sf)?\.([123]\.(?:weight|bias))")
_CONTEXT = re.compile(r"(?:head\.head_mf|crnn)\.((?:W_pre|W_[fb]|H_[fb]\.[01])\.(?:weight|bias))")
# The recurrent head lists its layers twice.
_CONTEXT_LIST = re.compile(r"(?:head\.head_mf\.layers|crnn\.layers|upsampling_layers_rnn)\.([0-4])\.(.+)")
_CONTEXT_LAYERS = ("W_pre", "W_f", "H_f", "W_b", "H_b")

_VIT, _VIEWS = "backbone.vision_encoder.", "view_embeddings"
# (place, phase, tap) of a transposed convolution along one axis; all other values of the sub-pixel kernel are 0.
_TAPS = ((0, 0, 1), (0, 1, 2), (1, 1, 0))
# Numbers per keypoint between the two convolutions of a recurrence step.
_INNER = 16
_SHOWN = 5


class Tensors(NamedTuple):
    """The tensors of a network, each under one name."""

    backbone: dict[str, np.ndarray]
    """Of a ResNet by torchvision's names, or of a vision transformer by those of transformers."""
    single: dict[str, np.ndarray]
    """Of the head that sees one frame, such as "1.weight"; layer 0 is a pixel shuffle."""
    context: dict[str, np.ndarray]
    """Of the recurrent head, such as "W_f.weight"; empty without one."""
    views: dict[str, np.ndarray]
    """Of a network that sees v cameras, "views" (v, c); empty without them."""

    @property
    def is_vit(self) -> bool:
        """Whether the backbone is a vision transformer."""
        return any(name.startswith("embeddings.") for name in self.backbone)


def sort_tensors(tensors: Mapping[str, np.ndarray]) -> Tensors:
    """Returns tensors grouped by their part of the network.

    Args:
      tensors: by their names in any version of the tool.

    Raises:
      UserError: a name is unknown, or two names of one tensor have different values.
    """
    found, unknown = Tensors({}, {}, {}, {}), []
    for name, value in tensors.items():
        part, key = _place(name, found)
        if part is None:
            unknown.append(name)
        elif key in part and not np.array_equal(part[key], value):
            raise UserError(f"the checkpoint has two different tensors for {key}; the second one is {name}")
        else:
            part[key] = value
    if unknown:
        raise UserError(
            f"the checkpoint has tensors that jaxpose does not know: {listed(unknown, _SHOWN)}; it converts "
            "networks of model_type heatmap and heatmap_multiview_transformer, and heatmap_mhcrnn with a ResNet"
        )
    return found


def head_options(tensors: Tensors) -> tuple[str, int, int, int]:
    """Returns (model.kind, model.heatmap_stride, model.head_width, number of keypoints), as the heads show them.

    Raises:
      UserError: they are not the heads of a heatmap network.
    """
    widths = [weight.shape[1] for weight, _ in _single_layers(tensors)]
    kind = "multiview" if tensors.views else "heatmap_context" if tensors.context else "heatmap"
    # A pixel shuffle and each layer double the sides of the features.
    stride = (16 if tensors.is_vit else 32) >> (1 + len(widths))
    return kind, stride, widths[0], widths[-1]


def head_parameters(tensors: Tensors) -> dict[str, dict]:
    """Returns the parameters of the heads, as nested dicts of numpy arrays with the names of `PoseNet`.

    Raises:
      UserError: a tensor is absent or has a shape that the tool does not give it.
    """
    layers = [sub_pixel(weight, bias) for weight, bias in _single_layers(tensors)]
    del layers[-1]["bias"]
    found: dict[str, dict] = {"head": {"layers": dict(enumerate(layers))}}
    if context := tensors.context:
        found["context"] = {
            "layers": {0: sub_pixel(*_transposed(context, "W_pre."))},
            "forward_input": sub_pixel(*_transposed(context, "W_f.")),
            "backward_input": sub_pixel(*_transposed(context, "W_b.")),
            "forward_step": _cell_step(context, "H_f."),
            "backward_step": _cell_step(context, "H_b."),
        }
    return found


def sub_pixel(weight: np.ndarray, bias: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the parameters of the `SubPixelConv` that equals a transposed convolution.

    Args:
      weight: (c, k, 3, 3), of stride 2, padding 1 and output padding 1.
      bias: (k,).
    """
    c, k = weight.shape[:2]
    kernel = np.zeros((2, 2, c, 2, 2, k), weight.dtype)
    for row, phase_row, tap_row in _TAPS:
        for column, phase_column, tap_column in _TAPS:
            kernel[row, column, :, phase_row, phase_column] = weight[:, :, tap_row, tap_column]
    return {"kernel": kernel.reshape(2, 2, c, 4 * k), "bias": bias}


def _place(name: str, found: Tensors) -> tuple[dict[str, np.ndarray] | None, str]:
    """Returns the part of a tensor and its name there; None for an unknown name."""
    child, _, rest = name.removeprefix("backbone.").partition(".")
    if name.startswith("backbone.") and child in _BACKBONE_CHILDREN:
        return found.backbone, f"{_BACKBONE_CHILDREN[child]}.{rest}"
    if name.startswith(_VIT):
        return found.backbone, name.removeprefix(_VIT)
    if name == _VIEWS:
        return found.views, "views"
    if match := _SINGLE.fullmatch(name):
        return found.single, match[1]
    if match := _CONTEXT_LIST.fullmatch(name):
        name = f"crnn.{_CONTEXT_LAYERS[int(match[1])]}.{match[2]}"
    if match := _CONTEXT.fullmatch(name):
        return found.context, match[1]
    return None, name


def _single_layers(tensors: Tensors) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns (weight, bias) of the transposed convolutions of the head that sees one frame."""
    count = max((int(name[0]) for name in tensors.single), default=0)
    if not count:
        raise UserError("the checkpoint has no upsampling_layers, the head of a heatmap network")
    return [_transposed(tensors.single, f"{layer}.") for layer in range(1, count + 1)]


def _transposed(part: dict[str, np.ndarray], layer: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns weight and bias of a transposed convolution (c, k, 3, 3)."""
    weight = part.get(f"{layer}weight", np.zeros(()))
    return _pair(part, layer, (*weight.shape[:2], 3, 3), weight.shape[1:2])


def _cell_step(context: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Returns the parameters of the `CellStep` that equals a grouped convolution and a transposed one."""
    keypoints = context.get(f"{name}1.bias", np.zeros(0)).size
    shape = (_INNER * keypoints, 1, 2, 2)
    (into, into_bias), (out, out_bias) = (
        _pair(context, f"{name}{n}.", shape, (size,)) for n, size in ((0, _INNER * keypoints), (1, keypoints))
    )
    return {
        "into": into.reshape(keypoints, _INNER, 4).transpose(2, 1, 0),
        "into_bias": into_bias.reshape(keypoints, _INNER).T,
        "out": out.reshape(keypoints, _INNER, 4).transpose(1, 2, 0),
        "out_bias": out_bias,
    }


def _pair(
    part: dict[str, np.ndarray], layer: str, weight_shape: tuple[int, ...], bias_shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    for name, shape in ((f"{layer}weight", weight_shape), (f"{layer}bias", bias_shape)):
        if name not in part:
            raise UserError(f"the head of the checkpoint has no tensor {name}")
        if part[name].shape != shape or not all(shape):
            raise UserError(f"the head of the checkpoint has {name} of shape {part[name].shape}; it must be {shape}")
    return part[f"{layer}weight"], part[f"{layer}bias"]
