"""The set-up of a training: its frames, initial weights, lengths and clips, and messages for the user."""

import dataclasses

import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxpose.cluster.agreement import broadcast_from_0
from jaxpose.cluster.devices import other_threads
from jaxpose.config import Config
from jaxpose.config import train as lengths
from jaxpose.config.check import FRAMES_PER_SHARD
from jaxpose.config.losses import weights
from jaxpose.config.model import norm_of
from jaxpose.data.dataset import Dataset, describe_not_visible
from jaxpose.data.flip_pairs import flip_permutation, refuse_unknown_names
from jaxpose.data.images import outside_parts
from jaxpose.data.report import left_out_title
from jaxpose.model.pose_net import make_network
from jaxpose.pose.pca import from_json, to_json
from jaxpose.run.pca import Subspaces, agreeing_views
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.layout import microbatch_size
from jaxpose.threads import THREADS_VARIABLE
from jaxpose.training.clip_setup import ClipStreams, check_losses_on_video, open_clip_streams
from jaxpose.training.fit_pca import fit_subspaces
from jaxpose.training.initial_weights import load_initial_weights


@dataclasses.dataclass(frozen=True)
class Setup:
    """The set-up of a training, before anything is compiled.

    Attributes:
      config: the resolved config, with all options that depend on the project filled in.
      mesh: the devices.
      data: the labelled frames and their sets.
      graphdef: definition of the network.
      facts: about the data, for the compiled step.
      clips: the streams of unlabelled clips, none without a loss on video.
      params: nested dict of parameters before the first step.
      statistics: nested dict of batch statistics.
      weights_option: the option that names the source of the initial weights, "" if they are random.
      weights_sha256: checksum of what that source gave, "" if they are random.
      trained_before: {SHA-256: path} of images that trained those weights and do not train here.
      subspaces: of the training labels' poses, by the name of their loss.
      messages: for the user, one sentence each.
      teacher: parameters of the network whose features a distillation follows; None without one.
      teacher_sha256: checksum of them, "" without one.
    """

    config: Config
    mesh: Mesh
    data: Dataset
    graphdef: nnx.GraphDef
    params: dict
    statistics: dict
    facts: DataFacts
    clips: ClipStreams
    weights_option: str
    weights_sha256: str
    trained_before: dict[str, str]
    subspaces: Subspaces
    messages: list[str]
    teacher: dict | None = None
    teacher_sha256: str = ""


def make_setup(config: Config, mesh: Mesh, data: Dataset) -> Setup:
    """Makes or loads the initial weights and plans the training; compiles nothing.

    Raises:
      UserError: data.flip_pairs names an unknown keypoint or leaves a keypoint without a partner; the weights to start
        from cannot be read, do not fit, or were trained on frames that validate or test here; an early stop has no
        validation frames; or a loss on clips does not fit the keypoints, the labels or the videos.
    """
    train, names = config.train, config.data.keypoint_names
    refuse_unknown_names(names, config.data.flip_pairs)
    permutation = flip_permutation(names, config.data.flip_pairs) if config.augment.flip_p else None
    graphdef, params, statistics = make_network(config.model, len(names), train.precision, train.seed)
    messages = _describe_frames(config, data)
    initial = load_initial_weights(config, data, params, statistics)
    frames = len(data.rows("train"))
    total_steps = lengths.total_steps(train, frames)
    messages += [*initial.messages, *describe_limits(config, mesh, data, total_steps)]
    subspaces, sentences = _fit_on_process_0(config, data)
    messages += sentences
    width, height = data.size_px
    facts = DataFacts(
        size_px=(height, width),
        passes=-(-train.batch_size // microbatch_size(train)),
        steps_per_epoch=lengths.steps_per_epoch(train, frames),
        total_steps=total_steps,
        has_new_head=initial.has_new_head,
        flip_permutation=permutation,
        pca={name: pca for name, pca in subspaces.items() if name in weights(config.losses)},
        views=agreeing_views(config.model, subspaces),
    )
    messages += check_losses_on_video(config, facts)
    clips, sentences = open_clip_streams(config, "a loss on unlabelled video is on")
    messages += sentences
    return Setup(
        config, mesh, data, graphdef, initial.params, initial.statistics, facts, clips, initial.option,
        initial.sha256, initial.trained_before, subspaces, messages,
    )  # fmt: skip


def _describe_frames(config: Config, data: Dataset) -> list[str]:
    """Returns messages about the labelled frames."""
    problems = data.project.problems
    left_out = [left_out_title(data.project), *problems] if problems else []
    messages = [*data.project.notes, *left_out, *data.messages, *describe_not_visible(data.project)]
    is_labelled = np.isfinite(data.project.measured_frame_px()).all(axis=-1)
    if outside := (outside_parts(data.project, config.data.crop_px) & is_labelled).sum():
        part = "their boxes" if config.data.boxes else f"data.crop_px = {config.data.crop_px}"
        messages.append(
            f"{outside} of {is_labelled.sum()} labels lie outside of {part}: they are not trained on, but count in "
            "every error"
        )
    return messages


def describe_limits(config: Config, mesh: Mesh, data: Dataset, total_steps: int) -> list[str]:
    """Returns messages about what this training does not measure, trace or promise.

    Raises:
      UserError: early stopping is on, but there are no validation frames.
    """
    train, messages = config.train, []
    lengths.refuse_blind_stop(train, len(data.rows("validation")) > 0)
    if not len(data.rows("validation")):
        last = ", and the last weights are kept" if lengths.keeps_last(train, has_validation=False) else ""
        if data.has_labels:
            messages.append(f"no validation frames: nothing is measured during training{last}")
    if config.log.profile_steps and int(config.log.profile_steps.partition(":")[0]) > total_steps:
        messages.append(f"log.profile_steps={config.log.profile_steps} begins after the last step: nothing is traced")
    if threads := other_threads(config.mesh, list(mesh.devices.flat)):
        messages.append(
            f"JAX was started before with {threads} threads, not {config.mesh.cpu_threads}: the last bits are those of "
            f"{threads} threads; set {THREADS_VARIABLE}={config.mesh.cpu_threads} before JAX starts"
        )
    if 0 < train.shards < mesh.size:
        messages.append(
            f"train.shards is {train.shards}, so {mesh.size - train.shards} of {mesh.size} devices compute nothing; "
            f"{_more_shards(config, mesh.size)} uses all, with other numbers"
        )
    return messages


def _more_shards(config: Config, devices: int) -> str:
    """Returns the option that gives every device a shard."""
    is_batch_norm = norm_of(config.model) == "shard"
    frames = FRAMES_PER_SHARD * devices
    if not is_batch_norm or microbatch_size(config.train) >= frames:
        return f"train.shards={devices}"
    # Batch statistics of fewer frames are noisy, so more shards need more frames.
    return f"train.{'microbatch' if config.train.batch_size >= frames else 'batch'}_size={frames}"


def _fit_on_process_0(config: Config, data: Dataset) -> tuple[Subspaces, list[str]]:
    """Returns the result of `fit_subspaces` on process 0, with a message about each subspace."""

    def fit() -> tuple[dict[str, dict], list[str]]:
        subspaces, messages = fit_subspaces(config, data)
        return {name: to_json(pca) for name, pca in subspaces.items()}, messages

    # Another machine may round the last digit differently.
    stored, messages = broadcast_from_0(fit)
    subspaces = {name: from_json(pca) for name, pca in stored.items()}
    kept = [
        f"{name}: {len(pca.components)} of {len(pca.mean_px)} components are kept, errors below "
        f"{pca.epsilon_px:.2f} px cost nothing"
        for name, pca in subspaces.items()
        if name in weights(config.losses)
    ]
    return subspaces, [*messages, *kept]
