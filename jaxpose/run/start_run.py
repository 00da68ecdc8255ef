"""The run that a training starts from (`train.init_from`, `model.weights`), as far as its files tell without a network.

Nothing here imports jax.
"""

from pathlib import Path

import numpy as np

from jaxpose.codes import TEST, TRAIN, VALIDATION
from jaxpose.config import Config, ModelConfig
from jaxpose.config.weights import pixel_scale
from jaxpose.data.project import Project
from jaxpose.data.split import read_split
from jaxpose.errors import UserError
from jaxpose.run.ensemble import refuse_ensemble
from jaxpose.run.identity import read_config, refuse_no_run
from jaxpose.run.paths import (
    CHECKPOINT_MANIFESTS,
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    MEMBERS_FOLDER,
    PARAMETERS_FILE,
    SPLIT_FILE,
)


def is_run(place: Path) -> bool:
    """Returns whether a folder given as `model.weights` is a run folder."""
    return (place / PARAMETERS_FILE).exists() or any(
        (place / name).is_dir() for name in (CHECKPOINTS_FOLDER, MEMBERS_FOLDER)
    )


def refuse_no_weights(run: Path) -> Config:
    """Returns the config of a run that holds weights of one network.

    Raises:
      UserError: the folder is no run, its config is damaged, it is an ensemble, or it holds no weights yet.
    """
    refuse_no_run(run)
    config = read_config(run / CONFIG_FILE)
    refuse_ensemble(run, config)
    if not (run / PARAMETERS_FILE).is_file() and not any(run.glob(CHECKPOINT_MANIFESTS)):
        raise UserError(no_checkpoint(run))
    return config


def no_checkpoint(run: Path) -> str:
    """Returns what to say about a run without any weights."""
    return f"{run} holds no whole checkpoint yet: train it first"


def refuse_other_weights(before: ModelConfig, now: ModelConfig, run: Path, option: str) -> None:
    """Checks that a network can start from the weights of a run, as far as their options tell.

    Args:
      before: of the run.
      now: of the network.
      run: the run.
      option: that names the run, for messages.

    Raises:
      UserError: the networks differ in their groups of norms, or in the scale of their pixels.
    """
    if before.norm_groups != now.norm_groups:
        groups = f"norm_groups = {before.norm_groups}, and model.norm_groups is {now.norm_groups}"
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
