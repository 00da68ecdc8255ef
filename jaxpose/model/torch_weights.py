"""Published tensors of convolutional networks, by their names in torch, and their places in a backbone."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpose.errors import UserError
from jaxpose.terminal import listed

# The last part of a name here -> in torch.
_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
_STATISTICS = (".running_mean", ".running_var")
# A counter next to every pair of statistics, which no network here reads.
_COUNTER = ".num_batches_tracked"
_SHOWN = 3


def fill_by_name(
    tensors: Mapping[str, np.ndarray],
    names: Mapping[str, str],
    classifier: str,
    params: dict,
    statistics: dict,
    source: str,
    network: str,
) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Returns (parameters, batch statistics) of a backbone that hold published tensors.

    Every tensor must have its place and every place its tensor. Only the classifier and the counters
    `num_batches_tracked` are left out.

    Args:
      tensors: by their own names, without a prefix; kernels (out, in, height, width).
      names: {name of a tensor: its name in torchvision}, which is the path of its place in the backbone.
      classifier: torchvision's name of the classifier.
      params: nested dict of the backbone's parameters; only their names, shapes and types count.
      statistics: nested dict of its batch statistics, likewise; {} for a network that has none (norm=group).
      source: name of the file, for messages.
      network: the network for the tensors, for messages.

    Raises:
      UserError: a tensor is absent, unknown, given twice, of another shape, not of floats, not finite or a negative
        variance, or the kinds of norm differ; the message names the tensors.
    """
    wanted = {"params": params, "statistics": statistics}
    shapes = {_torch_name(path): _torch_shape(like) for path, like in jax.tree_util.tree_leaves_with_path(wanted)}
    own_names = _own_names(names, classifier, source)
    _refuse_other_norm(shapes, own_names, source)
    own_tensors = {name: tensors[own] for name, own in own_names.items()}
    _refuse_misfit(shapes, own_tensors, own_names, f"{source} does not fit {network}")

    def fill(path: tuple, like: Any) -> np.ndarray:
        tensor = tensors[own_names[_torch_name(path)]]
        return np.asarray(tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor, like.dtype, order="C")

    filled = jax.tree_util.tree_map_with_path(fill, wanted)
    return filled["params"], filled["statistics"]


def prefix_of(
    first: Sequence[str], tensors: Mapping[str, np.ndarray], candidates: Sequence[str], source: str, network: str
) -> str:
    """Returns what stands before the name of a backbone's first tensor.

    Args:
      first: the names that this tensor may have.
      tensors: all of the file.
      candidates: names of tensors that may be the first.
      source: name of the file, for messages.
      network: the kind of backbone, for messages.

    Raises:
      UserError: no tensor is the first of a known backbone, or several are.
    """
    found = {name[: -len(end)] for name in candidates for end in first if f".{name}".endswith(f".{end}")}
    return only_prefix(found, first, tensors, source, network)


def only_prefix(
    prefixes: set[str], first: Sequence[str], tensors: Mapping[str, np.ndarray], source: str, network: str
) -> str:
    """Returns the only one of the prefixes that were found; see `prefix_of` for the other arguments and errors."""
    found = sorted(prefixes)
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{source} holds several networks: tensors under {', '.join(map(repr, found))}; give one")
    raise UserError(
        f"{source} holds no {network}: none of its {len(tensors)} tensors is called {' or '.join(first)}; it has "
        f"{listed(list(tensors), _SHOWN)}"
    )


def _torch_name(path: tuple) -> str:
    # The first part of the path says whether it is a parameter or a statistic.
    *layer, leaf = [str(part.key) for part in path[1:]]
    return ".".join([*layer, _LEAVES[leaf]])


def _torch_shape(like: Any) -> tuple[int, ...]:
    shape = tuple(like.shape)
    return (shape[3], shape[2], shape[0], shape[1]) if len(shape) == 4 else shape


def _own_names(names: Mapping[str, str], classifier: str, source: str) -> dict[str, str]:
    """Returns {torchvision's name: the file's own}, without the classifier and the counters.

    Raises:
      UserError: two tensors are one in torchvision's names.
    """
    left_out = (f"{classifier}.weight", f"{classifier}.bias")
    norms = {name.removesuffix(_STATISTICS[0]) for name in names.values() if name.endswith(_STATISTICS[0])}
    found: dict[str, str] = {}
    for own, name in names.items():
        if name in found:
            raise UserError(f"{source} holds one tensor twice: {found[name]} and {own}")
        if name not in left_out and not (name.endswith(_COUNTER) and name.removesuffix(_COUNTER) in norms):
            found[name] = own
    return found


def _refuse_other_norm(shapes: Mapping[str, tuple[int, ...]], names: Mapping[str, str], source: str) -> None:
    """Raises UserError if only one of the network and the file has batch statistics."""
    has, needs = (any(name.endswith(_STATISTICS) for name in given) for given in (names, shapes))
    if has and not needs:
        raise UserError(
            f"{source} is of a network with batch normalisation, but model.norm is group: its weights would be another "
            "network. Give model.norm=shard, sync or frozen"
        )
    norms = [name.removesuffix(_STATISTICS[0]) for name in shapes if name.endswith(_STATISTICS[0])]
    if not has and any(f"{norm}.weight" in names for norm in norms):
        raise UserError(
            f"{source} holds no batch statistics: it is of a network with another kind of norm, such as group "
            "normalisation, and model.norm needs them"
        )


def _refuse_misfit(
    shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, np.ndarray], own: Mapping[str, str], fault: str
) -> None:
    """Raises UserError unless the tensors are exactly those of the shapes, finite floats, and no variance negative."""
    common = [name for name in shapes if name in tensors]
    misshapen = [
        f"{own[name]} {tensors[name].shape} instead of {shapes[name]}"
        for name in common
        if tensors[name].shape != shapes[name]
    ]
    floats = [name for name in common if tensors[name].dtype.kind not in "biuc"]
    problems = {
        "absent": [name for name in shapes if name not in tensors],
        "unknown": [own[name] for name in tensors if name not in shapes],
        "of another shape": misshapen,
        "not of floats": [own[name] for name in common if name not in floats],
        "not finite": [own[name] for name in floats if not np.isfinite(tensors[name].astype(np.float32)).all()],
        "negative": [own[name] for name in floats if name.endswith(_STATISTICS[1]) and (tensors[name] < 0).any()],
    }
    if any(problems.values()):
        clauses = "; ".join(f"{what}: {listed(names, _SHOWN)}" for what, names in problems.items() if names)
        raise UserError(f"{fault}. Tensors {clauses}")
