"""Converts a Lightning Pose checkpoint into a finished run.

Input: the checkpoint, and the config.yaml and predictions.csv that Lightning Pose left next to it. Output: a run folder
with the same network; its maps are decoded as in Lightning Pose.
"""

import dataclasses
import logging
import os
from pathlib import Path

import numpy as np

from jaxpose.config import Config, resolve
from jaxpose.config.model import BACKBONES, views_at_once
from jaxpose.conversion.finished_run import FinishedRun, options_of_network, refuse_used, write_run
from jaxpose.data import dataset
from jaxpose.data.label_files import label_file_of_view
from jaxpose.data.project import Project
from jaxpose.data.split import read_split, split_text
from jaxpose.errors import UserError
from jaxpose.files import sha256_of
from jaxpose.formats.lightning_pose.checkpoint import read_checkpoint
from jaxpose.formats.lightning_pose.config import read_config
from jaxpose.formats.project import prepare
from jaxpose.model.lightning_pose import Tensors, head_options, head_parameters, sort_tensors
from jaxpose.model.pose_net import make_network
from jaxpose.model.resnet import fill_resnet
from jaxpose.model.vit_weights import lightning_pose_parameters
from jaxpose.poses import TRAIN, UNUSED
from jaxpose.run.checkpoint import kinds, named_leaves, refuse_misfit
from jaxpose.run.pca import Subspaces
from jaxpose.terminal import count
from jaxpose.training.setup import fit_subspaces

_logger = logging.getLogger(__name__)

# Lightning Pose writes its config into the run folder (older versions into .hydra), and the checkpoint into
# tb_logs/<name>/version_0/checkpoints below it.
_CONFIG_NAMES = ("config.yaml", ".hydra/config.yaml")
_LEVELS = 5
_GIVE_CONFIG = "give the config.yaml that it was trained with: --config FILE"
_PREDICTIONS = "predictions.csv"


def convert_checkpoint(
    checkpoint: Path, out: Path, config_file: Path | None = None, project: str = "", overwrite: bool = False
) -> None:
    """Writes a run folder with a checkpoint's network and reports the result.

    Args:
      checkpoint: a *.ckpt file of a heatmap network, of a heatmap_mhcrnn one with a ResNet, or of a multi-view
        transformer.
      out: the run folder, absent or empty.
      config_file: the training's config.yaml; None finds it next to the checkpoint or in a folder above.
      project: the project folder; "" means the folder in the config, if it exists on this machine.
      overwrite: the run folder may hold a converted run.

    Raises:
      UserError: the checkpoint, its config or the project cannot be used, or they do not match; or the run folder holds
        files.
    """
    out = Path(os.path.abspath(out.expanduser()))
    refuse_used(out, overwrite)
    found = read_checkpoint(checkpoint)
    tensors = sort_tensors(found.tensors)
    config_file = config_file or _find_config(checkpoint)
    config, frames = _with_project(_read_config(config_file, tensors), project)
    params, statistics = _parameters(config, tensors, checkpoint)
    sets = _read_sets(frames, config, config_file.parent) if frames else None
    text, subspaces = "", {}
    if frames and sets is not None:
        text, subspaces = split_text(frames, sets), _fit_subspaces(config, frames, sets)
    source = {"format": "lightning-pose", "checkpoint": checkpoint.name, "sha256": sha256_of(checkpoint)}
    write_run(out, FinishedRun(config, params, statistics, found.step, text, subspaces, source), overwrite)
    model, data = config.model, config.data
    _logger.info(
        f"{checkpoint}, step {found.step}, with {config_file}: {model.backbone}, {model.kind}, "
        f"{count(len(data.keypoint_names), 'keypoint')}, {data.input_width_px} x {data.input_height_px} px"
    )
    _logger.info(_describe_sets(frames, sets, config_file.parent))
    _logger.info(
        f"the run is in {out}; to train the whole network further: jaxpose train PROJECT train.init_from={out} "
        f"{' '.join(options_of_network(config))}"
    )


def _find_config(checkpoint: Path) -> Path:
    folders = checkpoint.absolute().parents[:_LEVELS]
    files = (folder / name for folder in folders for name in _CONFIG_NAMES)
    if file := next((file for file in files if file.is_file()), None):
        return file
    raise UserError(f"there is no config.yaml next to {checkpoint} or in a folder above; {_GIVE_CONFIG}")


def _read_config(file: Path, tensors: Tensors) -> Config:
    """Returns a training's config, including network options that only its tensors reveal.

    Raises:
      UserError: the config does not belong to a network with these tensors.
    """
    # The importer's messages are about a new training, with options that differ here.
    config, _ = read_config(file, is_trained=True)
    if not config.data.input_width_px:
        raise UserError(f"{file} has no data.image_resize_dims, the size of the network's input; {_GIVE_CONFIG}")
    if config.data.boxes:
        raise UserError(
            f"{file} has data.bbox_file; jaxpose does not read boxes of single frames for a converted network, whose "
            "windows of context frames show other boxes than here"
        )
    model = config.model
    kind, stride, width, _ = head_options(tensors)
    if (model.kind, model.heatmap_stride) != (kind, stride):
        raise UserError(
            f"{file} describes a network with model.kind {model.kind} and stride {model.heatmap_stride}, but the "
            f"checkpoint has {kind} and stride {stride}; {_GIVE_CONFIG}"
        )
    model = dataclasses.replace(model, head="lightning_pose", head_width=width, decoding="lightning_pose")
    data = dataclasses.replace(config.data, resize="lightning_pose")
    return resolve(dataclasses.replace(config, model=model, data=data))


def _with_project(config: Config, project: str) -> tuple[Config, Project | None]:
    """Fills in all options that depend on the project; returns the config, and the project if there is one."""
    folder = project or config.data.project
    if not project and not (folder and Path(folder).is_dir()):
        if not config.data.keypoint_names:
            raise UserError("the config has no data.keypoint_names; give the project folder with --project FOLDER")
        return config, None
    data = dataclasses.replace(config.data, project=folder)
    try:
        return prepare(resolve(dataclasses.replace(config, data=data)))
    except UserError as error:
        # jaxpose train calls it PROJECT or data.project=FOLDER, this verb --project FOLDER.
        text = str(error).replace("data.project=", "--project ").replace("data.project is", "--project is")
        raise UserError(text.replace("PROJECT is", "--project is")) from None


def _parameters(config: Config, tensors: Tensors, checkpoint: Path) -> tuple[dict, dict]:
    """Returns the network's parameters and batch statistics; tensors and places must match one to one.

    Raises:
      UserError: the tensors do not fit the network in the config.
    """
    names, train = config.data.keypoint_names, config.train
    keypoints = head_options(tensors)[3]
    if len(names) != keypoints:
        raise UserError(
            f"the checkpoint {checkpoint} predicts {count(keypoints, 'keypoint')}, but its config names {len(names)}; "
            f"{_GIVE_CONFIG}"
        )
    views, backbone = views_at_once(config.model, config.data.views), config.model.backbone
    _, params, statistics = make_network(config.model, len(names), train.precision, train.seed, views)
    seen = len(tensors.views.get("views", [None]))
    if seen != views:
        raise UserError(
            f"the checkpoint {checkpoint} sees {seen} cameras, but its config names {views} in data.view_names; "
            f"{_GIVE_CONFIG}"
        )
    if BACKBONES[backbone].family == "vit":
        filled = lightning_pose_parameters(tensors.backbone, backbone, str(checkpoint))
        filled |= tensors.views
    else:
        filled, statistics["backbone"] = fill_resnet(
            tensors.backbone, params["backbone"], statistics["backbone"], str(checkpoint), f"model.backbone={backbone}"
        )
    converted = {"backbone": filled} | head_parameters(tensors)
    refuse_misfit(checkpoint, kinds(named_leaves(converted)), kinds(named_leaves(params)))
    return converted, statistics


def _read_sets(frames: Project, config: Config, folder: Path) -> np.ndarray | None:
    """Returns each frame's set (n,) in the training, `unused` if it was not part of it; None if unknown.

    Raises:
      UserError: a prediction table cannot be read, or belongs to another project.
    """
    files = [folder / label_file_of_view(_PREDICTIONS, view) for view in config.data.views or ("",)]
    if not all(file.is_file() for file in files):
        return None
    known = {path: name for file in files for path, name in read_split(file).sets.items()}
    sets = np.array([known.get(image, UNUSED) for image in frames.poses.frames])
    if not (sets == TRAIN).any():
        raise UserError(
            f"{files[0]} has no training frame of {frames.folder}: does it belong to another project? Give "
            "--project FOLDER"
        )
    return sets


def _fit_subspaces(config: Config, frames: Project, sets: np.ndarray) -> Subspaces:
    samples, _ = dataset.decode(frames, config)
    size_px = config.data.input_width_px, config.data.input_height_px
    try:
        subspaces, messages = fit_subspaces(config, dataset.Dataset(frames, sets, samples, size_px))
    except UserError as error:
        subspaces, messages = {}, [f"no PCA of poses is fitted: {error}"]
    for message in messages:
        _logger.info(message)
    return subspaces


def _describe_sets(frames: Project | None, sets: np.ndarray | None, folder: Path) -> str:
    if sets is not None:
        names, counts = np.unique(sets, return_counts=True)
        listed = ", ".join(f"{number} {name}" for name, number in zip(names.tolist(), counts.tolist(), strict=True))
        return f"sets of the frames, from {folder}: {listed}"
    if frames:
        missing = f"{folder} has no {_PREDICTIONS}"
    else:
        missing = "the project is not on this machine (--project FOLDER)"
    return f"{missing}, so jaxpose does not know which frames trained the network: all count as {UNUSED}"
