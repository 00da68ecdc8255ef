"""What a training begins with: the first weights, the length, what learns from video, and what the user should know."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxpose.cluster.agreement import broadcast_from_0
from jaxpose.config import Config
from jaxpose.config import train as lengths
from jaxpose.config.losses import LossesConfig, weights
from jaxpose.config.video import frames_per_clip
from jaxpose.data.dataset import Dataset
from jaxpose.data.flip_pairs import flip_permutation, refuse_unknown_names
from jaxpose.data.images import outside_crop
from jaxpose.data.sessions import clip_sessions
from jaxpose.errors import UserError
from jaxpose.model.pose_net import make_network
from jaxpose.pose.pca import from_json, to_json
from jaxpose.run.load import load_network
from jaxpose.run.pca import Subspaces
from jaxpose.run.weights import checksum
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.layout import microbatch_size
from jaxpose.steps.optim import clip_loss_factor
from jaxpose.training.fit_pca import fit_subspaces
from jaxpose.training.transfer import refuse_trained_frames, transfer
from jaxpose.video.clips import ClipSource, open_clips

# What each temporal loss calls the difference that costs nothing.
_EPSILONS = {"temporal": "epsilon_px", "temporal_heatmap_mse": "epsilon", "temporal_heatmap_kl": "epsilon"}


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a training begins with, before anything is compiled.

    Attributes:
      graphdef: definition of the network.
      params: nested dict of parameters.
      statistics: nested dict of batch statistics.
      facts: what the step knows of the data.
      clips: the unlabelled clips, or None where no loss is on them.
      weights_sha256: checksum of the weights that `train.init_from` gives, "" without.
      trained_before: {SHA-256: path} of images that trained those weights and do not train here.
      subspaces: of the training labels' poses, by the name of their loss.
      messages: what the user should know, one sentence each.
    """

    graphdef: nnx.GraphDef
    params: dict
    statistics: dict
    facts: DataFacts
    clips: ClipSource | None
    weights_sha256: str
    trained_before: dict[str, str]
    subspaces: Subspaces
    messages: list[str]


def make_setup(config: Config, mesh: Mesh, data: Dataset) -> Setup:
    """Makes or loads the first weights and plans the training; compiles nothing.

    Raises:
      ValueError: data.flip_pairs names what is no keypoint, flips have no complete pairing, `train.init_from` does not
        fit or was trained on frames that measure it here, there is nothing to stop early by, or a loss on clips does
        not fit the keypoints, the labels or the videos.
    """
    train, names = config.train, config.data.keypoint_names
    refuse_unknown_names(names, config.data.flip_pairs)
    permutation = flip_permutation(names, config.data.flip_pairs) if config.augment.flip_p else None
    graphdef, params, statistics = make_network(config.model, len(names), train.precision, train.seed)
    frames = len(data.rows("train"))
    steps_per_epoch, total_steps = lengths.steps_per_epoch(train, frames), lengths.total_steps(train, frames)
    messages = list(data.project.problems)
    if messages:
        rows = len(messages) + len(data.sets)
        messages.insert(0, f"{len(messages)} of {rows} rows of {data.project.label_file} are left out:")
    messages += [*data.messages, *_labels_outside(config, data)]
    weights_sha256, trained_before = "", {}
    remade: list[str] = []
    if train.init_from:
        trained = load_network(Path(train.init_from))
        weights_sha256 = checksum({"params": trained.params, "statistics": trained.statistics})
        params, statistics, remade = transfer(trained, names, params, statistics)
        trained_before, untold = refuse_trained_frames(Path(train.init_from), data)
        messages += untold
        messages.append(
            f"starts from the weights of {train.init_from}" + (f"; made anew: {', '.join(remade)}" if remade else "")
        )
    else:
        messages.append(
            "starts from random weights: with few labelled frames expect clearly larger errors than from a pretrained "
            "backbone (train.init_from=RUN starts from a run of yours)"
        )
    if not len(data.rows("validation")):
        last = ", and the last weights are kept" if train.monitor.startswith("val_") else ""
        if train.early_stop_patience and last:
            raise UserError(
                f"train.early_stop_patience is {train.early_stop_patience}, but no frame validates: raise "
                "data.val_share, look at data.split, or set it to 0"
            )
        messages.append(f"no frame validates: nothing is measured on the way{last}")
    if config.log.profile_steps and int(config.log.profile_steps.partition(":")[0]) > total_steps:
        messages.append(f"log.profile_steps={config.log.profile_steps} begins after the last step: nothing is traced")
    if config.model.norm == "local" and mesh.size > 1:
        messages.append("model.norm=local: the numbers of this run depend on the number of devices")
    width, height = data.size_px
    # The first process's for all: another machine may round the last digit otherwise.
    told, unfitted = broadcast_from_0(lambda: _fit_subspaces(config, data))
    subspaces, on = {name: from_json(stored) for name, stored in told.items()}, weights(config.losses)
    messages += unfitted
    for name, pca in subspaces.items():
        messages.append(
            f"{name}: {len(pca.components)} of {len(pca.mean_px)} components are kept, errors below "
            f"{pca.epsilon_px:.2f} px cost nothing"
        )
    clips = None
    if on:
        _refuse_epsilons(config.losses, len(names))
        if reason := _why_they_never_count(config.losses, total_steps, steps_per_epoch):
            messages.append(f"the losses on clips never count: {reason}")
        video = config.video
        frames = frames_per_clip(video, config.model)
        clips = open_clips(clip_sessions(config.data, video), frames, config.data, video.cache)
        messages += clips.notes
    facts = DataFacts(
        size_px=(height, width),
        passes=-(-train.batch_size // microbatch_size(train)),
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        has_new_head=bool(remade),
        flip_permutation=permutation,
        pca={name: pca for name, pca in subspaces.items() if name in on},
    )
    return Setup(graphdef, params, statistics, facts, clips, weights_sha256, trained_before, subspaces, messages)


def _fit_subspaces(config: Config, data: Dataset) -> tuple[dict[str, dict], list[str]]:
    """Returns what `fit_subspaces` does, as JSON can hold it."""
    subspaces, messages = fit_subspaces(config, data)
    return {name: to_json(pca) for name, pca in subspaces.items()}, messages


def _why_they_never_count(losses: LossesConfig, total_steps: int, steps_per_epoch: int) -> str:
    """Returns why the factor of the losses on clips is 0 up to the last step, and what to change, or ""."""

    def ends_at_zero(losses: LossesConfig) -> bool:
        return not clip_loss_factor(losses, jnp.int32(total_steps - 1), steps_per_epoch)

    if not ends_at_zero(losses):
        return ""
    if not losses.anneal_end:
        return "losses.anneal_end, the largest value of their factor, is 0; raise it"
    if not losses.anneal_increase_per_epoch:
        return (
            "their factor begins at losses.anneal_init = 0, and losses.anneal_increase_per_epoch is 0; raise one of "
            "the two"
        )
    until = f"their factor is 0 up to the last step, {total_steps}, in epoch {-(-total_steps // steps_per_epoch)}"
    if ends_at_zero(dataclasses.replace(losses, anneal_start_epochs=0.0)):
        return f"{until}, as it grows from 0 with every whole epoch; train longer, or raise losses.anneal_init"
    return f"{until}; lower losses.anneal_start_epochs = {losses.anneal_start_epochs:g}, or train longer"


def _refuse_epsilons(losses: LossesConfig, keypoints: int) -> None:
    """Raises ValueError where a temporal loss that is on has neither one epsilon nor one for each keypoint."""
    for name, option in _EPSILONS.items():
        count = len(getattr(getattr(losses, name), option))
        if name in weights(losses) and count not in (1, keypoints):
            raise UserError(
                f"losses.{name}.{option} has {count} numbers for {keypoints} keypoints; give one, or one per keypoint"
            )


def _labels_outside(config: Config, data: Dataset) -> list[str]:
    """Returns what is to be said of labels that the crop leaves out."""
    labelled_frame_px = data.project.labelled_frame_px()
    labelled = np.isfinite(labelled_frame_px).all(axis=-1).sum()
    outside = outside_crop(labelled_frame_px, config.data.crop_px).sum()
    if not outside:
        return []
    return [
        f"{outside} of {labelled} labels lie outside of data.crop_px: {config.data.crop_px}, they are not "
        "trained on and count in every error"
    ]
