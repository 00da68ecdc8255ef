"""The backbone of `model.weights`: from the hub, a file, a folder or a run."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.config import ModelConfig
from jaxpose.config.model import BACKBONES
from jaxpose.config.weights import IMAGENET, PUBLISHED
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.model.pose_net import family_of, fill_backbone
from jaxpose.run.hub import fetch
from jaxpose.run.tensor_file import find_weights, read_tensors


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


def load_backbone(model: ModelConfig, params: dict, statistics: dict, option: str = "model.weights") -> Backbone:
    """Returns the backbone of `model.weights`, which is a name, a file, or a folder with a file.

    Args:
      model: of the resolved config.
      params: fresh parameters of the backbone.
      statistics: fresh batch statistics of it, {} if it has none.
      option: the option that names the weights, for messages.

    Raises:
      UserError: there is no such name or file, it cannot be fetched or read, or does not fit the backbone.
    """
    weights = model.weights
    published = PUBLISHED.get(weights)
    if published:
        file, source = fetch(weights), f"{option} = {weights} ({published.repository}, {published.file})"
    else:
        file = find_weights(weights, option)
        source = f"{option} = {file}"
        _refuse_other_form(file.parent, model.backbone)
    tensors = read_tensors(file)
    prefix = published.prefix if published else family_of(model.backbone).find_prefix(tensors, source)
    inside = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return Backbone(*fill_backbone(model, inside, params, statistics, source), _describe_rest(tensors, prefix, source))


def _refuse_other_form(folder: Path, backbone: str) -> None:
    """Refuses weights whose notes say that their network computes something else from the same tensors.

    Raises:
      UserError: a note beside the file differs from what the network here does.
    """
    notes = _read_notes(folder / "config.json")
    family, kind = family_of(backbone), notes.get("model_type")
    known = {known for name in BACKBONES for known in family_of(name).MODEL_TYPES}
    if kind in known and kind not in family.MODEL_TYPES:
        raise UserError(
            f"{folder / 'config.json'} says model_type = {kind!r}, which is not the kind of {backbone}; give the "
            "model.backbone of the weights (docs/backbones.md)"
        )
    for name, value in family.published_settings(backbone).items() if kind in known else ():
        if notes.get(name, value) != value:
            raise UserError(f"{folder / 'config.json'} says {name} = {notes[name]!r}; {backbone} here has {value!r}")
    pixels = _read_notes(folder / "preprocessor_config.json")
    mean, std = pixels.get("image_mean"), pixels.get("image_std")
    if mean is not None and std is not None and not _is_imagenet(mean, std):
        raise UserError(
            f"the weights in {folder} were trained on pixels of mean {mean} and deviation {std}; jaxpose gives a "
            "backbone from a file those of ImageNet (0.485, 0.456, 0.406 and 0.229, 0.224, 0.225)"
        )


def _read_notes(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        notes = json.loads(read_bytes(file))
    except ValueError as error:
        raise UserError(f"{file}, which should describe the weights beside it, is no JSON: {error}") from None
    return notes if isinstance(notes, dict) else {}


def _is_imagenet(mean: Any, std: Any) -> bool:
    try:
        given = 255 * np.array([mean, std], float)
    except (TypeError, ValueError):
        return False
    return given.shape == (2, 3) and np.allclose(given, [IMAGENET.mean, IMAGENET.std], atol=0.5)


def _describe_rest(tensors: Mapping[str, np.ndarray], prefix: str, source: str) -> str:
    """Returns a sentence about the tensors outside of the backbone."""
    parts = [name.partition(".")[0] for name in tensors if not name.startswith(prefix)]
    if not parts:
        return ""
    named = ", ".join(f"{parts.count(part)} of {part}" for part in dict.fromkeys(parts))
    return f"{source}: tensors beside the backbone are not used ({named})"
