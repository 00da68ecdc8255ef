"""The initial weights of a run: random, of a published backbone, or of another run."""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpose.cluster.agreement import arrays_from_0, broadcast_from_0
from jaxpose.config import Config, ModelConfig, OptimConfig
from jaxpose.config.model import BACKBONES, IMAGENET, NO_WEIGHTS, PUBLISHED, feature_stride
from jaxpose.data.dataset import Dataset
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.model.pose_net import family_of, fill_backbone
from jaxpose.run.load import LoadedNetwork, load_network
from jaxpose.run.start_run import is_run, refuse_other_weights, refuse_trained_frames
from jaxpose.run.weights import checksum, fetch, find_weights, read_tensors
from jaxpose.steps.optim import rest_epochs
from jaxpose.steps.terms import DataFacts

# Loads the backbone of `model.weights`: from the hub, a file, a folder or a run.


@dataclasses.dataclass(frozen=True)
class Backbone:
    """Loaded weights of a backbone.

    Attributes:
      params: nested dict.
      statistics: nested dict of batch statistics, {} if it has none.
      message: for the user, about tensors of the file that are not used; "" if there are none.
    """

    params: dict
    statistics: dict
    message: str


# The end of timm's names of networks with group norms, the groups of each, and the prefix in DeepLabCut's snapshots.
_GN, _GN_GROUPS, _OF_DEEPLABCUT = "_gn", 32, "backbone.model."
# Next to the weights, the notes of transformers and of timm.
_NOTES = "config.json"


def load_backbone(model: ModelConfig, params: dict, statistics: dict, option: str = "model.weights") -> Backbone:
    """Returns the backbone of `model.weights`, which is a name, a file, or a folder with a file.

    Args:
      model: from the resolved config.
      params: fresh parameters of the backbone.
      statistics: fresh batch statistics of it, {} if it has none.
      option: the option that names the weights, for messages.

    Raises:
      UserError: there is no such name or file, it cannot be fetched or read, or does not fit the backbone.
    """
    weights = model.weights
    published = PUBLISHED.get(weights)
    is_timm_gn = False
    if published:
        file, source = fetch(weights), f"{option} = {weights} ({published.repository}, {published.file})"
    else:
        file = find_weights(weights, option)
        source = f"{option} = {file}"
        _refuse_other_form(file.parent, model.backbone)
        is_timm_gn = _timm_name(_read_notes(file.parent / _NOTES)).endswith(_GN)
    tensors = read_tensors(file)
    prefix = published.prefix if published else family_of(model.backbone).find_prefix(tensors, source)
    inside = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    filled = fill_backbone(model, inside, params, statistics, source)
    # The group norms of DeepLabCut are those of timm's network, too.
    if model.norm == "group" and (is_timm_gn or prefix.endswith(_OF_DEEPLABCUT)) and model.norm_groups != _GN_GROUPS:
        raise UserError(
            f"{source} is of a network with {_GN_GROUPS} groups in each norm, but model.norm_groups is "
            f"{model.norm_groups}: give model.norm_groups={_GN_GROUPS}"
        )
    return Backbone(*filled, _describe_rest(tensors, prefix, source))


def _refuse_other_form(folder: Path, backbone: str) -> None:
    """Refuses weights whose notes say that their network computes something else from the same tensors.

    Raises:
      UserError: a note next to the file contradicts the network here.
    """
    file = folder / _NOTES
    notes = _read_notes(file)
    family, kind = family_of(backbone), notes.get("model_type")
    known = {known for name in BACKBONES for known in family_of(name).MODEL_TYPES}
    if kind in known and kind not in family.MODEL_TYPES:
        raise UserError(
            f"{file} says model_type = {kind!r}, which is not the kind of {backbone}; give the "
            "model.backbone of the weights (docs/backbones.md)"
        )
    for name, value in family.published_settings(backbone).items() if kind in known else ():
        if notes.get(name, value) != value:
            raise UserError(f"{file} says {name} = {notes[name]!r}; {backbone} here has {value!r}")
    if (name := _timm_name(notes)) and not re.fullmatch(family.timm_names(backbone), name):
        raise UserError(
            f"{file} says architecture = {notes['architecture']!r}, another network than model.backbone = {backbone}; "
            "give the model.backbone of the weights (docs/backbones.md), or other weights"
        )
    if name:
        # Early files of timm have no table of their own for it.
        pixels = notes.get("pretrained_cfg", notes)
        pixels = pixels if isinstance(pixels, dict) else {}
        _refuse_other_pixels(file, pixels.get("mean"), pixels.get("std"))
    file = folder / "preprocessor_config.json"
    pixels = _read_notes(file)
    if pixels.get("do_normalize") is False:
        raise UserError(f"{file} says do_normalize = False; {_OUR_PIXELS}")
    _refuse_other_pixels(file, pixels.get("image_mean"), pixels.get("image_std"))


def _timm_name(notes: dict[str, Any]) -> str:
    """Returns timm's name of the network in its config.json, without the tag of the weights; "" without one."""
    name = notes.get("architecture")
    return name.partition(".")[0] if isinstance(name, str) else ""


_OUR_PIXELS = (
    "for a backbone from a file, jaxpose normalises pixels with the mean and deviation of ImageNet (0.485, 0.456, "
    "0.406 and 0.229, 0.224, 0.225)"
)


def _refuse_other_pixels(file: Path, mean: Any, std: Any) -> None:
    ours = ((mean, IMAGENET.mean), (std, IMAGENET.std))
    if not all(given is None or _is_close(given, of_imagenet) for given, of_imagenet in ours):
        raise UserError(
            f"{file} says that the weights were trained on pixels of mean {mean} and deviation {std}; {_OUR_PIXELS}"
        )


def _read_notes(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        notes = json.loads(read_bytes(file))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}, which should describe the weights next to it, is not JSON: {error}") from None
    return notes if isinstance(notes, dict) else {}


def _is_close(given: Any, of_imagenet: tuple[float, ...]) -> bool:
    try:
        values = 255 * np.array(given, float)
    except (TypeError, ValueError):
        return False
    return values.shape == (3,) and np.allclose(values, of_imagenet, atol=0.5)


def _describe_rest(tensors: Mapping[str, np.ndarray], prefix: str, source: str) -> str:
    """Returns a sentence about the tensors outside the backbone."""
    parts = [name.partition(".")[0] for name in tensors if not name.startswith(prefix)]
    if not parts:
        return ""
    named = ", ".join(f"{parts.count(part)} of {part}" for part in dict.fromkeys(parts))
    return f"{source}: tensors outside the backbone are not used ({named})"


# Starts from the weights of another run: takes over the parts that fit.


def transfer(
    trained: LoadedNetwork,
    names: tuple[str, ...],
    params: dict,
    statistics: dict,
    option: str = "train.init_from",
    views: tuple[str, ...] = (),
) -> tuple[dict, dict, list[str]]:
    """Returns (parameters, statistics, names of the parts that are new) of a network that starts from a trained one.

    Takes over the whole backbone, and the parts of the head that fit; keypoints in the last layer, and cameras that the
    network sees together, match by name.

    Args:
      trained: the source of the weights.
      names: keypoint names of the new network.
      params: fresh parameters of the new network.
      statistics: fresh batch statistics of the new network.
      option: the option that names the source, for messages.
      views: cameras of the new network.

    Raises:
      UserError: the backbones differ.
    """
    backbone, remade = _backbone(trained, params["backbone"], views)
    old = {"backbone": backbone, "statistics": trained.statistics}
    if _shapes(old) != _shapes({"backbone": params["backbone"], "statistics": statistics}):
        old = trained.config.model
        parts = ["backbone", "width", "norm", "norm_groups"] if BACKBONES[old.backbone].has_width else ["backbone"]
        options = " ".join(f"model.{part}={getattr(old, part)}" for part in parts)
        raise UserError(f"{option} is a run with another backbone than this one; give {options}")
    old_names = trained.config.data.keypoint_names
    taken: dict = {"backbone": backbone}
    for part in (name for name in params if name != "backbone"):
        old = trained.params.get(part, {})
        if part == "head" and "layers" in params[part] and "layers" in old:
            coarsest = _coarsest_px(trained.config.model)
            # A head with offsets has layers for the maps and for the offsets.
            taken[part] = {}
            for group, fresh in params[part].items():
                layers, missing = fresh, [f"the {group}"]
                if group in old:
                    layers, missing = _head(old[group], old_names, fresh, names, coarsest)
                taken[part][group] = layers
                remade += [name for name in missing if name not in remade]
        elif _shapes(old) == _shapes(params[part]) and old_names == names:
            taken[part] = old
        else:
            taken[part] = params[part]
            remade.append(_head_name(part))
    # A network of a different precision may keep its weights in a different type.
    cast = jax.tree.map(lambda old, new: np.asarray(old, new.dtype), (taken, trained.statistics), (params, statistics))
    return *cast, remade


def _backbone(trained: LoadedNetwork, new: dict, views: tuple[str, ...]) -> tuple[dict, list[str]]:
    """Returns a trained backbone with the vectors of the new network's cameras, and those that are new."""
    old = {name: leaf for name, leaf in trained.params["backbone"].items() if name != "views"}
    if "views" not in new:
        return old, []
    known = trained.config.data.views if "views" in trained.params["backbone"] else ()
    vectors = np.array(new["views"])
    for at, view in enumerate(views):
        if view in known:
            vectors[at] = trained.params["backbone"]["views"][known.index(view)]
    return old | {"views": vectors}, [f"the vector of the camera {view}" for view in views if view not in known]


def heads_of(params: dict) -> list[str]:
    """Returns the names of a network's heads, for messages."""
    return [_head_name(part) for part in params if part != "backbone"]


def _head_name(part: str) -> str:
    return f"the {part}" if part == "head" else f"the {part} head"


def _shapes(tree: dict) -> dict:
    return jax.tree.map(lambda leaf: leaf.shape, tree)


def _coarsest_px(model: ModelConfig) -> int:
    """Returns the stride of the maps from a head's first layer."""
    # The first layer of Lightning Pose's head gets maps of half the features' stride, and halves it again.
    return feature_stride(model) // {"pyramid": 1, "deconv": 2, "lightning_pose": 4}[model.head]


def _head(
    old: dict, old_names: tuple[str, ...], new: dict, names: tuple[str, ...], coarsest: int
) -> tuple[dict, list[str]]:
    """Returns the layers of a heatmap head, taken over where they fit, and the names of the parts that are new.

    Layer n gives maps of stride `coarsest` / 2^n. Only the last layer is not hidden. A hidden layer fits a hidden one
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
    if old_names and old_last == last and _fits(old[last], new[last]):
        layers[last], missing = _by_name(old[last], old_names, new[last], names)
        remade += [f"keypoint {name}" for name in missing]
    else:
        remade.append("the last head layer")
    return layers, remade


def _fits(old: dict, new: dict) -> bool:
    """Returns whether two last layers differ at most in their keypoints, the last axis of each array."""
    return old.keys() == new.keys() and all(old[name].shape[:-1] == new[name].shape[:-1] for name in new)


def _by_name(old: dict, old_names: tuple[str, ...], new: dict, new_names: tuple[str, ...]) -> tuple[dict, list[str]]:
    """Returns the last layer with the columns of known keypoints replaced, and the names that were unknown."""
    layer = {}
    for leaf, fresh in new.items():
        # The channels are (phase, keypoint), see `SubPixelConv`; other layers have one phase.
        columns = np.array(fresh).reshape(*fresh.shape[:-1], -1, len(new_names))
        old_columns = np.asarray(old[leaf]).reshape(*columns.shape[:-1], len(old_names))
        for column, name in enumerate(new_names):
            if name in old_names:
                columns[..., column] = old_columns[..., old_names.index(name)]
        layer[leaf] = columns.reshape(fresh.shape)
    return layer, [name for name in new_names if name not in old_names]


def describe_backbone_rate(optim: OptimConfig, facts: DataFacts) -> str:
    """Returns a line about the backbone's learning rate relative to the head's."""
    rest = rest_epochs(optim, facts.has_new_head)
    rest_steps = rest * facts.steps_per_epoch
    why = f"optim.unfreeze_epoch = {optim.unfreeze_epoch}"
    if optim.unfreeze_epoch < 0:
        why += f": {rest} epochs, because a part of the head is new"
    if rest_steps >= facts.total_steps:
        return f"rate 0 in all {facts.total_steps} steps ({why}); optim.unfreeze_epoch=0 trains it from the first step"
    highest = optim.backbone_lr_factor
    begins = min(optim.unfreeze_factor, highest)
    rate = f"{begins:g} x the head's rate"
    if begins < highest and optim.unfreeze_growth > 1:
        rate += f", growing by x {optim.unfreeze_growth:g} each epoch up to {highest:g} x"
    return f"rate 0 up to step {rest_steps} ({why}), then {rate}" if rest_steps else f"{rate}, from the first step on"


@dataclasses.dataclass(frozen=True)
class InitialWeights:
    """The weights before the first step.

    Attributes:
      params: nested dict.
      statistics: nested dict of batch statistics.
      option: the option that names their source, "" for random weights.
      sha256: checksum of the loaded weights, "" for random weights.
      trained_before: {SHA-256: path} of images that trained them and do not train here.
      has_new_head: whether a part of the head is random, next to loaded weights.
      messages: for the user, one sentence each.
    """

    params: dict
    statistics: dict
    option: str = ""
    sha256: str = ""
    trained_before: dict[str, str] = dataclasses.field(default_factory=dict)
    has_new_head: bool = False
    messages: tuple[str, ...] = ()


def load_initial_weights(config: Config, data: Dataset, params: dict, statistics: dict) -> InitialWeights:
    """Returns the initial weights that `train.init_from` or `model.weights` names, or the random ones.

    Args:
      config: resolved config.
      data: the frames and their sets.
      params: random parameters.
      statistics: fresh batch statistics.

    Raises:
      UserError: the weights cannot be read or do not fit, or frames that trained them validate or test here.
    """
    if config.train.init_from:
        return _of_run(config, data, params, statistics, "train.init_from", Path(config.train.init_from))
    if config.model.weights == NO_WEIGHTS:
        return InitialWeights(params, statistics, messages=(_start_from_random(config.model),))
    # Process 0 decides: the others need not see the path.
    if broadcast_from_0(lambda: is_run(Path(config.model.weights))):
        return _of_run(config, data, params, statistics, "model.weights", Path(config.model.weights))
    return _of_backbone(config, params, statistics)


def _start_from_random(model: ModelConfig) -> str:
    """Returns the message of a run without weights: the options that fetch a published backbone, and the page."""
    fitting = (name for name, weights in PUBLISHED.items() if weights.backbone == model.backbone)
    name = next(fitting, "resnet18_imagenet")
    other = "" if PUBLISHED[name].backbone == model.backbone else f"model.backbone={PUBLISHED[name].backbone} "
    return f"starts from random weights; {other}model.weights={name} fetches a published backbone (docs/weights.md)"


def _of_run(config: Config, data: Dataset, params: dict, statistics: dict, option: str, run: Path) -> InitialWeights:
    trained = load_network(run, for_weights=True)
    sha256 = checksum({"params": trained.params, "statistics": trained.statistics})
    if option == "model.weights":
        trained = dataclasses.replace(trained, params={"backbone": trained.params["backbone"]})
    elif trained.config.model.kind == "finder":
        raise UserError(f"{option} is {run}, a finder; give model.weights={run}, which takes over its backbone")
    refuse_other_weights(trained.config.model, config.model, run, option)
    params, statistics, remade = transfer(
        trained, config.data.keypoint_names, params, statistics, option, config.data.views
    )
    trained_before, unchecked = refuse_trained_frames(run, data.project, data.sets, option)
    messages = (*unchecked, *_describe_input(config, trained.config, option), _describe(str(run), remade))
    return InitialWeights(params, statistics, option, sha256, trained_before, bool(remade), messages)


def _describe_input(config: Config, before: Config, option: str) -> list[str]:
    """Returns a warning if the network was trained on a different input size, because animals then differ in size."""
    now, then = ((data.input_width_px, data.input_height_px) for data in (config.data, before.data))
    if now == then:
        return []
    keep = f"data.input_width_px={then[0]} data.input_height_px={then[1]}"
    return [
        f"the input has {now[0]} x {now[1]} px, but the network of {option} was trained on {then[0]} x {then[1]} px "
        f"and expects the animal at another size; {keep} keeps the size"
    ]


def _of_backbone(config: Config, params: dict, statistics: dict) -> InitialWeights:
    """Returns the weights with the backbone of `model.weights`; process 0 reads it for all."""
    like = {"params": params["backbone"], "statistics": statistics.get("backbone", {})}

    def load() -> tuple[Any, dict]:
        backbone = load_backbone(config.model, like["params"], like["statistics"])
        return backbone.message, {"params": backbone.params, "statistics": backbone.statistics}

    message, loaded = arrays_from_0(load, jax.tree.map(np.asarray, like))
    params = params | {"backbone": loaded["params"]}
    statistics = statistics | ({"backbone": loaded["statistics"]} if loaded["statistics"] else {})
    messages = tuple(filter(None, (message, _describe(config.model.weights, heads_of(params)))))
    return InitialWeights(params, statistics, "model.weights", checksum(loaded), {}, True, messages)


def _describe(source: str, remade: list[str]) -> str:
    """Returns a sentence about the origin of the initial weights."""
    new = f"; new, with random weights: {', '.join(remade)}" if remade else ""
    return f"starts from the weights of {source}{new}"
