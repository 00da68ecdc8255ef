"""Converts a snapshot of DeepLabCut 3 into a finished run.

Input: the snapshot and its pytorch_config.yaml. Output: a run folder with the same network; its maps are decoded as in
DeepLabCut.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from jaxpose.config import Config, DataConfig, ModelConfig, resolve
from jaxpose.conversion.finished_run import FinishedRun, options_of_network, refuse_used, write_run
from jaxpose.errors import UserError
from jaxpose.files import sha256_of
from jaxpose.formats.deeplabcut.project import CONFIG_FILE, is_config
from jaxpose.formats.deeplabcut.snapshot import NetworkFacts, read_network, read_snapshot
from jaxpose.formats.project import prepare
from jaxpose.model.deeplabcut import Tensors, head_parameters, head_sizes, sort_tensors
from jaxpose.model.pose_net import make_network
from jaxpose.model.resnet import fill_resnet
from jaxpose.pose.heatmap_deeplabcut import OFFSET_PX
from jaxpose.run.checkpoint import kinds, named_leaves, refuse_misfit
from jaxpose.terminal import count, listed

_logger = logging.getLogger(__name__)

_NETWORK_FILE = "pytorch_config.yaml"
_GROUPS = 32
# Where `data.boxes` of a network on crops is, unless the user says otherwise.
_BOXES = "boxes/bbox.csv"
# A project has the snapshot in dlc-models-pytorch/iteration-0/<shuffle>/train.
_LEVELS = 5


@dataclasses.dataclass(frozen=True)
class Source:
    """What the user gives.

    Attributes:
      snapshot: a snapshot-*.pt.
      config_file: the pytorch_config.yaml of its training, or the project config of a SuperAnimal; None finds the
        former next to the snapshot.
      project: the project folder; "" finds it above the snapshot or at the place that the config names.
      size_px: (width, height) of the frames; () means that of the project's labelled images.
      names: {bodypart: name of the keypoint in the run}, for bodyparts with another name.
    """

    snapshot: Path
    config_file: Path | None = None
    project: str = ""
    size_px: tuple[int, ...] = ()
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)


def convert_snapshot(source: Source, out: Path, overwrite: bool = False) -> None:
    """Writes a run folder with a snapshot's network and reports the result.

    Args:
      source: the snapshot, and what belongs to it.
      out: the run folder, absent or empty.
      overwrite: the run folder may hold a converted run.

    Raises:
      UserError: the snapshot, its config or the project cannot be used, or they do not match; or the run folder holds
        files.
    """
    out = Path(os.path.abspath(out.expanduser()))
    refuse_used(out, overwrite)
    file = source.snapshot
    snapshot = read_snapshot(file)
    config_file = source.config_file or file.parent / _NETWORK_FILE
    if not config_file.is_file():
        raise UserError(
            f"{config_file}, the config that the network was trained with, does not exist; give it with --config FILE "
            "(for a SuperAnimal, the file of its keypoints in the package deeplabcut: "
            "modelzoo/project_configs/superanimal_*.yaml)"
        )
    facts = read_network(config_file)
    tensors = sort_tensors(snapshot.tensors)
    _refuse_other_head(tensors, facts, file, config_file)
    config = _config(source, facts, _with_new_names(facts.bodyparts, source.names))
    if width := head_sizes(tensors)[2]:
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, head_width=width))
    params, statistics = _parameters(config, facts, tensors, file)
    found = {"format": "deeplabcut", "checkpoint": file.name, "sha256": sha256_of(file), "epochs": str(snapshot.epoch)}
    write_run(out, FinishedRun(config, params, statistics, 0, "", {}, found), overwrite)
    model, data = config.model, config.data
    seen = "boxes" if data.boxes else "whole frames"
    _logger.info(
        f"{file}, epoch {snapshot.epoch}, with {config_file}: {model.backbone}, {model.norm} norm, {seen} of "
        f"{data.input_width_px} x {data.input_height_px} px, {count(len(data.keypoint_names), 'keypoint')}: "
        f"{', '.join(data.keypoint_names)}"
    )
    _logger.info("jaxpose does not know which frames trained the network: all count as unused")
    boxes = [f"data.boxes={data.boxes}"] if data.boxes else []
    _logger.info(
        f"the run is in {out}; to train the whole network further: jaxpose train PROJECT train.init_from={out} "
        f"{' '.join([*options_of_network(config), *boxes])}"
    )


def _with_new_names(bodyparts: tuple[str, ...], names: Mapping[str, str]) -> tuple[str, ...]:
    if unknown := [name for name in names if name not in bodyparts]:
        raise UserError(
            f"--rename has {unknown[0]}, which the network does not predict; it predicts {', '.join(bodyparts)}"
        )
    renamed = tuple(names.get(name, name) for name in bodyparts)
    if twice := [name for name in renamed if renamed.count(name) > 1]:
        raise UserError(f"--rename gives two keypoints the name {twice[0]}; give each its own")
    return renamed


def _config(source: Source, facts: NetworkFacts, names: tuple[str, ...]) -> Config:
    """Returns the config of the run, with its input size."""
    stride = facts.output_stride >> facts.doublings
    norm = "group" if facts.has_groups else "frozen" if facts.is_frozen else "shard"
    model = ModelConfig(
        backbone=facts.backbone,
        norm=norm,
        norm_groups=_GROUPS if facts.has_groups else 0,
        output_stride=16 if facts.output_stride == 16 else 0,
        head="deconv",
        heatmap_stride=stride,
        decoding="deeplabcut",
        sigma_cells=facts.reach_px / 1.5 / stride,
    )
    data = DataConfig(keypoint_names=names)
    if facts.crop_px and not source.size_px:
        width, height = facts.crop_px
        data = dataclasses.replace(data, boxes=_BOXES, input_width_px=width, input_height_px=height)
        return resolve(Config(model=model, data=dataclasses.replace(data, project=source.project)))
    project = source.project or _find_project(source.snapshot, facts)
    if source.size_px:
        width, height = source.size_px
    else:
        width, height = _frame_size_px(project)
    data = dataclasses.replace(data, project=project, input_width_px=width, input_height_px=height)
    return resolve(Config(model=model, data=data))


def _find_project(snapshot: Path, facts: NetworkFacts) -> str:
    """Returns the project folder above a snapshot or, without one, the config's; "" if it is not on this machine."""
    folders = [*snapshot.absolute().parents[:_LEVELS], *[Path(facts.project)] * bool(facts.project)]
    return next((str(folder) for folder in folders if is_config(folder / CONFIG_FILE)), "")


def _frame_size_px(project: str) -> tuple[int, int]:
    """Returns (width, height) of the project's labelled images.

    Raises:
      UserError: there is no project, it cannot be read, or its images have several sizes.
    """
    give = "give the size of the frames to predict with --size WIDTHxHEIGHT"
    if not project:
        raise UserError(f"the project of the network is not on this machine; give --project FOLDER, or {give}")
    try:
        config, _ = prepare(resolve(Config(data=DataConfig(project=project))))
    except UserError as error:
        text = str(error).replace("data.project is", "--project is").replace("data.project=", "--project ")
        raise UserError(text) from None
    sizes = config.data.frame_sizes_px
    if len(sizes) != 2:
        pairs = [f"{width} x {height}" for width, height in zip(sizes[::2], sizes[1::2], strict=True)]
        raise UserError(
            f"the labelled images of {project} have the sizes {listed(pairs, 3)} px; DeepLabCut's network sees each at "
            f"its own size, jaxpose's all at one: {give}"
        )
    return sizes[0], sizes[1]


def _parameters(config: Config, facts: NetworkFacts, tensors: Tensors, file: Path) -> tuple[dict, dict]:
    """Returns the network's parameters and batch statistics; tensors and places must match one to one.

    Raises:
      UserError: the tensors do not fit the network in the config.
    """
    model, train = config.model, config.train
    _, params, statistics = make_network(model, len(config.data.keypoint_names), train.precision, train.seed)
    filled, of_backbone = fill_resnet(
        tensors.backbone,
        params["backbone"],
        statistics.get("backbone", {}),
        str(file),
        f"model.backbone={model.backbone}",
    )
    factor = facts.offset_px / OFFSET_PX if facts.has_offsets else 0.0
    converted = {"backbone": filled, "head": head_parameters(tensors, factor)}
    refuse_misfit(file, kinds(named_leaves(converted)), kinds(named_leaves(params)))
    return converted, {"backbone": of_backbone} if of_backbone else {}


def _refuse_other_head(tensors: Tensors, facts: NetworkFacts, file: Path, config_file: Path) -> None:
    keypoints, layers, _ = head_sizes(tensors)
    found = (keypoints, layers, bool(tensors.offsets))
    for what, seen, said in zip(
        ("keypoints", "transposed convolutions", "location refinement"),
        found,
        (len(facts.bodyparts), facts.doublings, facts.has_offsets),
        strict=True,
    ):
        if seen != said and not (what == "location refinement" and seen):
            raise UserError(
                f"{config_file} belongs to another network than {file}: {what} {said}, and {seen} in the snapshot; "
                "give its own with --config FILE"
            )
