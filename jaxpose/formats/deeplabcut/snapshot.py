"""Reads the snapshot of a DeepLabCut 3 network, without executing anything in it, and the pytorch_config.yaml of it.

A network that jaxpose would compute differently is refused by the name of the key that decides it.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxpose.errors import UserError
from jaxpose.formats import torch_file
from jaxpose.text_file import read_yaml

# Names that a snapshot may contain in addition to tensors: the numbers of its metrics.
_HARMLESS = re.compile(
    r"numpy\.(?:_?core\.multiarray\.(?:scalar|_reconstruct)|dtype|ndarray|dtypes\.\w+)|_codecs\.encode"
    r"|collections\.(?:OrderedDict|defaultdict)|pathlib\.(?:_local\.)?\w+"
)


class Snapshot(NamedTuple):
    """The content of a snapshot."""

    tensors: dict[str, np.ndarray]
    """By DeepLabCut's names; real numbers are float32."""
    epoch: int
    """Epochs of its training, 0 if unknown."""


def read_snapshot(file: Path) -> Snapshot:
    """Reads a snapshot without running anything in it.

    Raises:
      UserError: the file does not exist, is not a snapshot of DeepLabCut 3, has values that are not finite, or names
        something that a snapshot does not need; or torch is not installed.
    """
    torch_file.refuse_no_file(file, "snapshot of DeepLabCut 3", "snapshot-*.pt")
    content = torch_file.load(file, _HARMLESS)
    tensors = content.get("model") if isinstance(content, dict) else None
    if not isinstance(tensors, dict) or not tensors or not all(map(torch_file.is_tensor, tensors.values())):
        raise UserError(f"{file} is not a snapshot of DeepLabCut 3: it has no table of tensors, model")
    metadata = content.get("metadata")
    epoch = metadata.get("epoch") if isinstance(metadata, dict) else None
    return Snapshot(torch_file.to_finite_arrays(file, tensors), epoch if isinstance(epoch, int) else 0)


# Backbones by timm's names.
_BACKBONES = {
    **{name: (name, False) for name in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")},
    "resnet50_gn": ("resnet50", True),
}


@dataclasses.dataclass(frozen=True)
class NetworkFacts:
    """What the config says about a network.

    Attributes:
      bodyparts: names of the keypoints, in order.
      backbone: as `model.backbone`.
      has_groups: whether its norms are group norms of 32 groups; otherwise batch norms.
      is_frozen: whether training keeps the statistics of batch norms.
      output_stride: 32 or 16.
      doublings: number of transposed convolutions of each part of the head.
      has_offsets: whether the network has location refinement.
      offset_px: unit of the offsets (locref_std).
      reach_px: pos_dist_thresh, 1.5 standard deviations of a target.
      crop_px: (width, height) of the crops that the network sees; () if it sees whole frames.
      project: the project folder on the machine of the training.
    """

    bodyparts: tuple[str, ...]
    backbone: str
    has_groups: bool
    is_frozen: bool
    output_stride: int
    doublings: int
    has_offsets: bool
    offset_px: float
    reach_px: float
    crop_px: tuple[int, ...]
    project: str


def read_network(file: Path) -> NetworkFacts:
    """Reads a pytorch_config.yaml, or the config of a SuperAnimal project, which names only the keypoints.

    Raises:
      UserError: it is not such a file, or describes a network that jaxpose cannot compute.
    """
    tree, words = read_yaml(file)
    if not isinstance(tree, dict) or not isinstance(words, dict):
        raise UserError(f"{file} is not a pytorch_config.yaml of DeepLabCut 3: it must be a table")
    if "model" not in tree and isinstance(words.get("bodyparts"), list) and not tree.get("video_sets"):
        # The ResNet-50 of SuperAnimal: deeplabcut/modelzoo/model_configs/resnet_50.yaml.
        names = _names(file, "bodyparts", words["bodyparts"])
        return NetworkFacts(names, "resnet50", True, False, 16, 1, True, 7.2801, 17.0, (256, 256), "")
    if "model" not in tree and "bodyparts" in tree:
        raise UserError(
            f"{file} is the config of a project, not of a network; give the pytorch_config.yaml in the folder of the "
            "snapshot"
        )
    return _Network(file, tree, words).facts()


def _names(file: Path, key: str, names: Any) -> tuple[str, ...]:
    """Returns the names of keypoints, as text."""
    if not isinstance(names, list) or not names:
        raise UserError(f"{file} has no {key}, the names of the keypoints; add them")
    for name in names:
        if not isinstance(name, str) or not name.strip() or names.count(name) > 1:
            raise UserError(f"{file} has {name!r} in {key}; each keypoint needs a name of its own")
    return tuple(names)


class _Network:
    """The values of a pytorch_config.yaml, by dotted key."""

    def __init__(self, file: Path, tree: dict[str, Any], words: dict[str, Any]):
        self._file, self._tree, self._words = file, tree, words

    def facts(self) -> NetworkFacts:
        self._refuse_what_differs()
        model_name = str(self._get("model.backbone.model_name"))
        if model_name not in _BACKBONES:
            self._refuse("model.backbone.model_name", f"one of {', '.join(_BACKBONES)}", "train such a network")
        backbone, has_groups = _BACKBONES[model_name]
        maps, offsets = (f"model.heads.bodypart.{part}_config" for part in ("heatmap", "locref"))
        has_offsets = bool(self._get("model.heads.bodypart.predictor.location_refinement", True) and self._get(offsets))
        doublings, width = self._doublings(maps)
        stride = int(self._get("model.backbone.output_stride", 32))
        if stride >> doublings not in (2, 4, 8):
            rule = f"as many as halve model.backbone.output_stride = {stride} to 8, 4 or 2"
            self._refuse(f"{maps}.strides", rule, "train a resnet_50 for one animal")
        if has_offsets and self._doublings(offsets) != (doublings, width):
            key = "strides" if self._doublings(offsets)[0] != doublings else "channels"
            self._refuse(f"{offsets}.{key}", f"as many as in {maps}.{key}")
        is_top_down = str(self._get("method", "bu")).lower() == "td"
        width_px, height_px = (f"data.inference.top_down_crop.{side}" for side in ("width", "height"))
        return NetworkFacts(
            self._bodyparts(),
            backbone,
            has_groups,
            self._get("model.backbone.freeze_bn_stats", True) is not False,
            stride,
            doublings,
            has_offsets,
            self._number("model.heads.bodypart.predictor.locref_std", 7.2801),
            self._number("model.heads.bodypart.target_generator.pos_dist_thresh", 17),
            (int(self._number(width_px, 256)), int(self._number(height_px, 256))) if is_top_down else (),
            str(self._get("metadata.project_path") or ""),
        )

    def _refuse_what_differs(self) -> None:
        for key, allowed, fix in (
            ("method", ("bu", "BU", "td", "TD"), "jaxpose has no network that sees poses of another one"),
            ("data.colormode", ("RGB",), "train on RGB images"),
            ("data.inference.normalize_images", (True,), "train with normalised images"),
            ("data.inference.scale_to_unit_range", (None, False), "train with normalised images only"),
            ("data.inference.resize", (None, False), "jaxpose resizes images differently; train on images of one size"),
            ("data.inference.longest_max_size", (None,), "train on images of one size"),
            ("data.inference.auto_padding", (None,), "train without it"),
            ("data.inference.top_down_crop.margin", (None, 0), "set it to 0 and enlarge the boxes by it"),
            ("metadata.unique_bodyparts", (None, []), "jaxpose predicts one animal: train without them"),
            ("metadata.with_identity", (None, False), "jaxpose predicts one animal: train without it"),
            ("model.neck", (None,), "train a network without it"),
            ("model.backbone.type", ("ResNet",), "jaxpose has DeepLabCut's ResNets only: train resnet_50"),
            ("model.backbone.output_stride", (None, 16, 32), "train with 16 or 32"),
            ("model.heads.bodypart.type", ("HeatmapHead",), "train resnet_50 for one animal"),
            ("model.heads.bodypart.predictor.type", ("HeatmapPredictor",), "train resnet_50 for one animal"),
            ("model.heads.bodypart.predictor.apply_sigmoid", (False,), "train without it"),
        ):
            if self._get(key) not in allowed:
                rule = " or ".join("absent" if value is None else str(value) for value in allowed)
                self._refuse(key, rule, fix)
        if others := [name for name in self._get("model.heads") if name != "bodypart"]:
            raise UserError(
                f"{self._file} has model.heads.{others[0]}, which jaxpose does not have: it converts only networks "
                "whose one head is bodypart"
            )

    def _doublings(self, key: str) -> tuple[int, int]:
        """Returns the number of transposed convolutions of a part of the head, and the channels between them."""
        for name, value in (("strides", 2), ("kernel_size", 3)):
            given = self._get(f"{key}.{name}")
            if not isinstance(given, list) or not given or any(one != value for one in given):
                self._refuse(f"{key}.{name}", f"[{value}, ...]", "train a resnet_50 for one animal")
        if self._get(f"{key}.final_conv"):
            self._refuse(f"{key}.final_conv", "absent", "train a head without it")
        channels = self._get(f"{key}.channels", [])
        hidden: list[Any] = channels[1:-1] if isinstance(channels, list) else [None]
        if any(not isinstance(number, int) or number != hidden[0] for number in hidden):
            self._refuse(f"{key}.channels", "a list with the same number between all layers")
        return len(self._get(f"{key}.strides")), hidden[0] if hidden else 0

    def _bodyparts(self) -> tuple[str, ...]:
        metadata = self._words.get("metadata")
        return _names(
            self._file, "metadata.bodyparts", metadata.get("bodyparts") if isinstance(metadata, dict) else None
        )

    def _number(self, key: str, default: float) -> float:
        value = self._get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            self._refuse(key, "a number above 0")
        return float(value)

    def _get(self, key: str, default: Any = None) -> Any:
        value: Any = self._tree
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return default if value is None else value

    def _refuse(self, key: str, rule: str, fix: str = "") -> None:
        end = f"; {fix}" if fix else ""
        raise UserError(f"{self._file} has {key} = {self._get(key)}; jaxpose needs {rule}{end}")
