"""Published tensors of residual networks, by their names in torch, as parameters of `ResNet`."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxpose.errors import UserError
from jaxpose.quantities import listed

# The last part of a name here -> in torch.
_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
_STATISTICS = (".running_mean", ".running_var")
# Left out, because no network here reads them: the classifier, and a counter beside every pair of statistics.
_CLASSIFIER = ("fc.weight", "fc.bias")
_COUNTER = ".num_batches_tracked"
# The tensor by which a backbone is known: torchvision's name and that of transformers.
_FIRST = ("conv1.weight", "embedder.embedder.convolution.weight")
_SHOWN = 3


def fill_resnet(
    tensors: Mapping[str, np.ndarray], params: dict, statistics: dict, source: str, network: str = "the network"
) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Returns (parameters, batch statistics) of a `ResNet` that hold published tensors.

    Every tensor must have its place and every place its tensor. Only the classifier (`fc`) and the counters
    `num_batches_tracked` are left out.

    Args:
      tensors: by torchvision's names ("layer1.0.conv1.weight") or those of transformers' ResNet, without any other
        prefix; kernels (out, in, height, width).
      params: nested dict of the backbone's parameters; only their names, shapes and types count.
      statistics: nested dict of its batch statistics, likewise; {} for a network that has none (norm=group).
      source: name of the file, for messages.
      network: what the tensors are for, for messages.

    Raises:
      UserError: a tensor is absent, unknown, given twice, of another shape, not of floats or not finite, or the kinds
        of norm differ; the message names the tensors.
    """
    wanted = {"params": params, "statistics": statistics}
    shapes = {_torch_name(path): _torch_shape(like) for path, like in jax.tree_util.tree_leaves_with_path(wanted)}
    own_names = _own_names(tensors, source)
    _refuse_other_norm(shapes, own_names, source)
    own_tensors = {name: tensors[own] for name, own in own_names.items()}
    _refuse_misfit(shapes, own_tensors, own_names, f"{source} does not fit {network}")

    def fill(path: tuple, like: Any) -> np.ndarray:
        tensor = tensors[own_names[_torch_name(path)]]
        return np.asarray(tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor, like.dtype, order="C")

    filled = jax.tree_util.tree_map_with_path(fill, wanted)
    return filled["params"], filled["statistics"]


def find_resnet_prefix(tensors: Mapping[str, np.ndarray], source: str) -> str:
    """Returns what the names of the backbone's tensors begin with: "backbone." in a checkpoint of MMPose, often "".

    Raises:
      UserError: no tensor is the first of a known backbone, or several are.
    """
    found = {name[: -len(first)] for name in tensors for first in _FIRST if f".{name}".endswith(f".{first}")}
    found = sorted(prefix for prefix in found if not re.search(r"(^|\.)layer\d\.", prefix))
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{source} holds several networks: tensors under {', '.join(map(repr, found))}; give one")
    raise UserError(
        f"{source} holds no ResNet: none of its {len(tensors)} tensors is called {' or '.join(_FIRST)}; it has "
        f"{listed(list(tensors), _SHOWN)}"
    )


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


def _torch_name(path: tuple) -> str:
    # The first part of the path says whether it is a parameter or a statistic.
    *layer, leaf = [str(part.key) for part in path[1:]]
    return ".".join([*layer, _LEAVES[leaf]])


def _torch_shape(like: Any) -> tuple[int, ...]:
    shape = tuple(like.shape)
    return (shape[3], shape[2], shape[0], shape[1]) if len(shape) == 4 else shape


def _own_names(tensors: Mapping[str, np.ndarray], source: str) -> dict[str, str]:
    """Returns {torchvision's name: the file's own}, without the classifier and the counters.

    Raises:
      UserError: two tensors are one in torchvision's names.
    """
    is_transformers = any("embedder.embedder." in name for name in tensors)
    names = {own: torchvision_name(own) if is_transformers else own for own in tensors}
    norms = {name.removesuffix(_STATISTICS[0]) for name in names.values() if name.endswith(_STATISTICS[0])}
    found: dict[str, str] = {}
    for own, name in names.items():
        if name in found:
            raise UserError(f"{source} holds one tensor twice: {found[name]} and {own}")
        if name not in _CLASSIFIER and not (name.endswith(_COUNTER) and name.removesuffix(_COUNTER) in norms):
            found[name] = own
    return found


def _refuse_other_norm(shapes: Mapping[str, tuple[int, ...]], names: Mapping[str, str], source: str) -> None:
    """Raises UserError if only one of the network and the file has batch statistics."""
    has, needs = (any(name.endswith(_STATISTICS) for name in given) for given in (names, shapes))
    if has and not needs:
        raise UserError(
            f"{source} is of a network with batch normalisation, and model.norm is group: its weights would be another "
            "network. Give model.norm=shard, sync or frozen"
        )
    if needs and not has and "bn1.weight" in names:
        raise UserError(
            f"{source} holds no batch statistics: it is of a network with another kind of norm, such as group "
            "normalisation, and model.norm needs them"
        )


def _refuse_misfit(
    shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, np.ndarray], own: Mapping[str, str], fault: str
) -> None:
    """Raises UserError unless the tensors are exactly those of the shapes, and finite floats."""
    common = [name for name in shapes if name in tensors]
    misshapen = [
        f"{own[name]} {tensors[name].shape} instead of {shapes[name]}"
        for name in common
        if tensors[name].shape != shapes[name]
    ]
    problems = {
        "absent": [name for name in shapes if name not in tensors],
        "unknown": [own[name] for name in tensors if name not in shapes],
        "of another shape": misshapen,
        "not of floats": [own[name] for name in common if tensors[name].dtype.kind in "biu"],
        "not finite": [own[name] for name in common if not np.isfinite(tensors[name].astype(np.float32)).all()],
    }
    if any(problems.values()):
        clauses = "; ".join(f"{what}: {listed(names, _SHOWN)}" for what, names in problems.items() if names)
        raise UserError(f"{fault}. Tensors {clauses}")
