"""A start from the weights of another run: takes them over."""

import jax
import numpy as np

from jaxpose.config import ModelConfig, OptimConfig
from jaxpose.config.model import BACKBONES
from jaxpose.errors import UserError
from jaxpose.run.load import LoadedNetwork
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.optim import rest_epochs


def transfer(
    trained: LoadedNetwork, names: tuple[str, ...], params: dict, statistics: dict, option: str = "train.init_from"
) -> tuple[dict, dict, list[str]]:
    """Returns (parameters, statistics, names of the parts that are new) of a network that starts from a trained one.

    The whole backbone is taken over, and the parts of the head that fit; in the last layer, keypoints match by name.

    Args:
      trained: the source of the weights.
      names: keypoint names of the new network.
      params: fresh parameters of the new network.
      statistics: fresh batch statistics of the new network.
      option: the option that names the source, for messages.

    Raises:
      UserError: the backbones differ.
    """
    old = {"backbone": trained.params["backbone"], "statistics": trained.statistics}
    if _shapes(old) != _shapes({"backbone": params["backbone"], "statistics": statistics}):
        old = trained.config.model
        parts = ["backbone", "width", "norm", "norm_groups"] if BACKBONES[old.backbone].has_width else ["backbone"]
        options = " ".join(f"model.{part}={getattr(old, part)}" for part in parts)
        raise UserError(f"{option} is a run with another backbone than this one; give {options}")
    old_names = trained.config.data.keypoint_names
    taken: dict = {"backbone": trained.params["backbone"]}
    remade: list[str] = []
    for part in (name for name in params if name != "backbone"):
        old = trained.params.get(part, {})
        if part == "head" and "layers" in params[part] and "layers" in old:
            coarsest = _coarsest_px(trained.config.model)
            layers, missing = _head(old["layers"], old_names, params[part]["layers"], names, coarsest)
            taken[part] = {"layers": layers}
            remade += missing
        elif _shapes(old) == _shapes(params[part]) and old_names == names:
            taken[part] = old
        else:
            taken[part] = params[part]
            remade.append(_head_name(part))
    # A network of another precision may keep its weights in another type.
    cast = jax.tree.map(lambda old, new: np.asarray(old, new.dtype), (taken, trained.statistics), (params, statistics))
    return *cast, remade


def heads_of(params: dict) -> list[str]:
    """Returns the names of a network's heads, for messages."""
    return [_head_name(part) for part in params if part != "backbone"]


def _head_name(part: str) -> str:
    return f"the {part}" if part == "head" else f"the {part} head"


def _shapes(tree: dict) -> dict:
    return jax.tree.map(lambda leaf: leaf.shape, tree)


def _coarsest_px(model: ModelConfig) -> int:
    """Returns the stride of the maps that a head's first layer gives."""
    # The first layer of Lightning Pose's head is given maps of half the features' stride, and halves it again.
    return BACKBONES[model.backbone].stride // (4 if model.head == "lightning_pose" else 1)


def _head(
    old: dict, old_names: tuple[str, ...], new: dict, names: tuple[str, ...], coarsest: int
) -> tuple[dict, list[str]]:
    """Returns the layers of a heatmap head, with those taken over that fit, and the names of the parts that are new.

    Layer n gives maps of stride `coarsest` / 2^n. Every layer but the last is hidden. A hidden layer fits a hidden one
    of the same strides; the last layer fits only the last layer of a network of the same heatmap stride. In Lightning
    Pose's head, features of stride 16 have one layer for maps of stride 8 as for 4: their channels tell them apart.
    """
    layers, remade = dict(new), []
    old_last, last = max(old), max(new)
    for number in sorted(new):
        if number == last:
            continue
        if number < old_last and _shapes(old[number]) == _shapes(new[number]):
            layers[number] = old[number]
        else:
            remade.append(f"the head layer of stride {coarsest >> number}")
    # The last layer of a pretraining has no keypoints.
    if old_names and old_last == last and old[last]["kernel"].shape[:3] == new[last]["kernel"].shape[:3]:
        layers[last], missing = _by_name(old[last], old_names, new[last], names)
        remade += [f"keypoint {name}" for name in missing]
    else:
        remade.append("the last head layer")
    return layers, remade


def _by_name(old: dict, old_names: tuple[str, ...], new: dict, new_names: tuple[str, ...]) -> tuple[dict, list[str]]:
    """Returns the last layer with the columns of known keypoints replaced, and the names that were unknown."""
    kernel = np.array(new["kernel"])
    # The channels are (phase, keypoint), see `SubPixelConv`; a pyramid has one phase.
    columns = kernel.reshape(*kernel.shape[:3], -1, len(new_names))
    old_columns = np.asarray(old["kernel"]).reshape(*columns.shape[:4], len(old_names))
    for column, name in enumerate(new_names):
        if name in old_names:
            columns[..., column] = old_columns[..., old_names.index(name)]
    return {"kernel": kernel}, [name for name in new_names if name not in old_names]


def describe_backbone_rate(optim: OptimConfig, facts: DataFacts) -> str:
    """Returns a line about the backbone's learning rate relative to the head's."""
    rest = rest_epochs(optim, facts.has_new_head)
    rest_steps = rest * facts.steps_per_epoch
    why = f"optim.unfreeze_epoch = {optim.unfreeze_epoch}"
    if optim.unfreeze_epoch < 0:
        why += f": {rest} epochs, as a part of the head is new"
    if rest_steps >= facts.total_steps:
        return f"rate 0 in all {facts.total_steps} steps ({why}); optim.unfreeze_epoch=0 trains it from the first step"
    highest = optim.backbone_lr_factor
    begins = min(optim.unfreeze_factor, highest)
    rate = f"{begins:g} x the head's rate"
    if begins < highest and optim.unfreeze_growth > 1:
        rate += f", growing by x {optim.unfreeze_growth:g} each epoch up to {highest:g} x"
    return f"rate 0 up to step {rest_steps} ({why}), then {rate}" if rest_steps else f"{rate}, from the first step on"
