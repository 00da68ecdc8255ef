"""Checks the run that a training starts from (`train.init_from`, `model.weights`), from its files alone.

Nothing here imports jax.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxpose.config import Config, ModelConfig
from jaxpose.config.model import pixel_scale
from jaxpose.data.project import Project
from jaxpose.data.split import read_split
from jaxpose.errors import UserError
from jaxpose.poses import TEST, TRAIN, VALIDATION
from jaxpose.run.identity import read_config, refuse_no_run
from jaxpose.run.paths import (
    CHECKPOINT_MANIFESTS,
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    MEMBERS_FOLDER,
    PARAMETERS_FILE,
    SPLIT_FILE,
)

# Runs whose predictions can be combined, and the members of an ensemble.


def refuse_other_keypoints(runs: Sequence[Path], configs: Sequence[Config]) -> None:
    """Checks that the predictions of runs can be combined.

    Args:
      runs: run folders, as the user named them.
      configs: theirs.

    Raises:
      UserError: a run is named twice, or the runs differ in keypoints or views.
    """
    if len({run.resolve() for run in runs}) < len(runs):
        raise UserError(f"--run names a run twice: {', '.join(map(str, runs))}")
    for run, config in zip(runs, configs, strict=True):
        for option, noun in (("keypoint_names", "keypoints"), ("views", "views")):
            first, other = getattr(configs[0].data, option), getattr(config.data, option)
            if first != other and set(first) == set(other):
                raise UserError(
                    f"{run} has the {noun} of {runs[0]} in a different order; give runs with the same order"
                )
            if first != other:
                alone = [", ".join(name for name in names if name not in both) or "none" for names, both in
                         ((first, other), (other, first))]  # fmt: skip
                raise UserError(
                    f"the runs have different {noun}: only {runs[0]} has {alone[0]}, only {run} has {alone[1]}"
                )


def member_folders(run: Path, config: Config) -> list[Path]:
    """Returns the run folders of the members of an ensemble, in their order; [] for a run of one network.

    Args:
      run: the run folder.
      config: this folder's.
    """
    if config.train.members == 1:
        return []
    return [run / MEMBERS_FOLDER / str(number) for number in range(config.train.members)]


def with_members(runs: Sequence[Path]) -> list[Path]:
    """Returns run folders, with each ensemble replaced by its members.

    Raises:
      UserError: the config of a run is damaged.
    """
    found = []
    for run in runs:
        config = read_config(run / CONFIG_FILE) if (run / CONFIG_FILE).is_file() else None
        found += (config and member_folders(run, config)) or [run]
    return found


def refuse_ensemble(run: Path, config: Config) -> None:
    """Raises UserError if a run folder holds an ensemble, where one network is needed."""
    if members := member_folders(run, config):
        raise UserError(
            f"{run} holds an ensemble of {len(members)} networks, but one network is needed: give one of them, such as "
            f"{members[0]}"
        )


def is_run(place: Path) -> bool:
    """Returns whether a folder given as `model.weights` is a run folder."""
    return (place / PARAMETERS_FILE).exists() or any(
        (place / name).is_dir() for name in (CHECKPOINTS_FOLDER, MEMBERS_FOLDER)
    )


def refuse_no_weights(run: Path) -> Config:
    """Returns the config of a run that holds weights of one network.

    Raises:
      UserError: the folder is not a run, its config is damaged, it is an ensemble, or it holds no weights yet.
    """
    refuse_no_run(run)
    config = read_config(run / CONFIG_FILE)
    refuse_ensemble(run, config)
    if not (run / PARAMETERS_FILE).is_file() and not any(run.glob(CHECKPOINT_MANIFESTS)):
        raise UserError(no_checkpoint(run))
    return config


def no_checkpoint(run: Path) -> str:
    """Returns the message about a run without any weights."""
    return f"{run} holds no whole checkpoint yet: train it first"


def refuse_other_weights(before: ModelConfig, now: ModelConfig, run: Path, option: str) -> None:
    """Checks that a network can start from the weights of a run, as far as their options show.

    Args:
      before: the run's.
      now: the network's.
      run: the run.
      option: the one that names the run, for messages.

    Raises:
      UserError: the networks differ in their groups of norms, in the scale of their pixels, or, if the head is also
        taken over, in the stride of their features or in the tokens that see all cameras.
    """
    if option == "train.init_from" and before.output_stride != now.output_stride:
        stride = f"output_stride = {before.output_stride}, but model.output_stride is {now.output_stride}"
        raise UserError(f"{option} is {run}, a run with {stride}: give the same")
    if option == "train.init_from" and before.kind == now.kind == "multiview":
        for name in ("class_token", "joint_layers"):
            old, new = json.dumps(getattr(before, name)), json.dumps(getattr(now, name))
            if old != new:
                raise UserError(
                    f"{option} is {run}, a run with {name} = {old}, but model.{name} is {new}: give the same"
                )
    if before.norm_groups != now.norm_groups:
        groups = f"norm_groups = {before.norm_groups}, but model.norm_groups is {now.norm_groups}"
        raise UserError(f"{option} is {run}, a run with {groups}: give the same")
    if pixel_scale(before.weights) != pixel_scale(now.weights):
        raise UserError(
            f"{option} is {run}, whose backbone was trained on pixels of another mean and deviation "
            f"(model.weights = {before.weights}); a run from it would change them"
        )


def refuse_trained_frames(
    run: Path, found: Project, sets: np.ndarray, option: str = "train.init_from"
) -> tuple[dict[str, str], list[str]]:
    """Refuses to validate or test a network on frames that trained its initial weights, in that run or an earlier one.

    Args:
      run: the run folder with the initial weights.
      found: n frames.
      sets: (n,) text, their sets.
      option: the option that names the run, for messages.

    Returns:
      {SHA-256: path} of images that trained those weights and do not train here, and a sentence if the run's list of
      frames is absent.

    Raises:
      UserError: a frame (same bytes, or same pixels as such a frame) trained there and validates or tests here.
    """
    file = run / SPLIT_FILE
    if not file.is_file():
        absent = f"{file} is absent: frames that {run} was trained on may validate or test here, which is not checked"
        return {}, [absent]
    known = read_split(file, is_of_run=True)
    images, checksums = found.poses.frames, found.checksums
    # An image that is in a project twice may both train and test, as it did in that run.
    there = np.array([known.set_of_same(*pair) for pair in zip(images, checksums, strict=True)])
    trained = np.isin(checksums, list(known.trained_before)) | (there == TRAIN)
    # The run's file of an image may be in this project next to another file with the same pixels.
    pixel_checksums = np.array(found.pixel_checksums)
    trained |= np.isin(pixel_checksums, pixel_checksums[trained]) & (there == "")
    counts = {name: int((trained & (sets == name)).sum()) for name in (VALIDATION, TEST)}
    if any(counts.values()):
        measuring = " and ".join(
            f"{count} of the {(sets == name).sum()} {name} frames" for name, count in counts.items() if count
        )
        raise UserError(
            f"{option} is {run}, which was trained on {measuring}: their errors would be too small. "
            f"data.split={run} keeps each of its frames in its set"
        )
    here = {checksums[row] for row in np.flatnonzero(sets == TRAIN)}
    return {checksum: image for checksum, image in known.trained().items() if checksum not in here}, []
