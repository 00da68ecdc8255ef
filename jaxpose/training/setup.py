"""Prepares a training: its frames, initial weights, length and clips, and messages for the user."""

import dataclasses
import functools
import types
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxpose import geometry
from jaxpose.cluster.agreement import broadcast_from_0
from jaxpose.cluster.devices import other_threads
from jaxpose.config import Config, DataConfig
from jaxpose.config import train as lengths
from jaxpose.config.losses import LossesConfig, PcaMultiviewConfig, refuse_epsilons, weights
from jaxpose.config.model import norm_of, views_at_once
from jaxpose.config.rules import FRAMES_PER_SHARD
from jaxpose.config.terms import terms
from jaxpose.data.boxes import boxes_of_videos
from jaxpose.data.dataset import Dataset, describe_not_visible
from jaxpose.data.images import outside_parts
from jaxpose.data.inputs import clip_sessions
from jaxpose.data.loader import ReprojectedSamples, Samples, moments_of_rows
from jaxpose.data.report import left_out_title
from jaxpose.data.rigs import Rigs, refuse_other_size, rigs_of_project, session_of, shown_by_other_labels
from jaxpose.data.skeleton import flip_permutation, refuse_unknown_names
from jaxpose.errors import UserError
from jaxpose.model.pose_net import make_network
from jaxpose.pose.pca import Pca, columns_of, fit_multiview, fit_singleview, from_json, parts_of, to_json
from jaxpose.run.pca import VIEWS_AGREE, Subspaces, agreeing_views, side_by_side
from jaxpose.steps.layout import microbatch_size
from jaxpose.steps.optim import clip_loss_factor
from jaxpose.steps.terms import DataFacts
from jaxpose.terminal import count
from jaxpose.threads import THREADS_VARIABLE
from jaxpose.training.initial_weights import load_initial_weights
from jaxpose.video.clips import ClipSource, UnusableClips, open_clips
from jaxpose.video.index import Stopped

# Fits the PCA subspaces of poses to the training labels, for losses and metrics.

# Least number of body parts that all views show in labelled frames: with fewer, the relation of the views would be
# chance.
_FEWEST_PLACES = 10


def fit_subspaces(config: Config, data: Dataset) -> tuple[Subspaces, list[str]]:
    """Returns the subspaces by the name of their loss, fitted to the training labels in frame pixels, and messages.

    A subspace is fitted if its loss is on, or if its keypoints or views are named; then it only measures predictions.
    If such a subspace cannot be fitted, it is left out, and a message gives the reason. That of `model.views_agree` is
    in pixels of the network's input.

    Raises:
      UserError: a keypoint does not exist or is named twice, the labels are too few for a loss that is on or for
        `model.views_agree`, or it keeps all components.
    """
    on, names, losses = weights(config.losses), config.data.keypoint_names, config.losses
    labels = data.labelled_frame_px(data.rows("train"))
    fitted: Subspaces = {}
    messages: list[str] = []

    def fit(name: str, make: Callable[[], Pca]) -> None:
        try:
            fitted[name] = make()
        except UserError as error:
            if name in on:
                raise
            messages.append(f"{name} is not measured: {error}")

    if "pca_singleview" in on or losses.pca_singleview.keypoints:
        chosen = losses.pca_singleview.keypoints or names
        columns = columns_of(chosen, names, "losses.pca_singleview.keypoints")
        if config.data.views:
            messages.append("pca_singleview is not measured: data.views names several cameras")
        else:
            fit("pca_singleview", lambda: fit_singleview(labels, columns, losses.pca_singleview))
    if config.data.views and "pca_multiview" in on:
        # A row has the keypoints of all views of a moment.
        keypoints, views = len(names), len(config.data.views)
        rows = moments_of_rows(data.rows("train"), data.project.rows_of_moments())
        moments = side_by_side(data.project.labelled_frame_px(), rows)
        cameras = [tuple(range(view * keypoints, (view + 1) * keypoints)) for view in range(views)]
        fit("pca_multiview", lambda: fit_multiview(moments, cameras, losses.pca_multiview))
    elif losses.pca_multiview.views:
        option = "losses.pca_multiview.views"
        entries = [tuple(name.strip() for name in entry.split(",")) for entry in losses.pca_multiview.views]
        # Check all views at once, because no keypoint may be in two of them.
        columns_of([name for entry in entries for name in entry], names, option)
        mirrors = [columns_of(entry, names, option) for entry in entries]
        fit("pca_multiview", lambda: fit_multiview(labels, mirrors, losses.pca_multiview))
        if config.model.views_agree:
            frame_from_input = data.samples.frame_from_input[data.rows("train")].astype(np.float64)
            fitted[VIEWS_AGREE], message = _fit_relation(labels, frame_from_input, mirrors, losses.pca_multiview)
            messages.append(message)
    return fitted, messages


def _fit_relation(
    labels_frame_px: np.ndarray,
    frame_from_input: np.ndarray,
    views: Sequence[Sequence[int]],
    options: PcaMultiviewConfig,
) -> tuple[Pca, str]:
    """Returns the subspace of the views that agree, and a message about it.

    In the input, unlike in the frame, a place of the arena is the same whatever the size of the frames.
    """
    labels_px = geometry.apply(geometry.invert(frame_from_input), labels_frame_px)
    places = int(np.isfinite(labels_px).all(-1)[:, np.array(parts_of(views))].all(-1).sum())
    parts = f"{count(len(views[0]), 'body part')} in {len(views)} views"
    if places < _FEWEST_PLACES:
        raise UserError(
            "model.views_agree learns how the views are related from places that all of them show, and needs "
            f"{_FEWEST_PLACES}; the training labels have {places}, of {parts}: label more frames, or leave it out"
        )
    scale = float(np.median(geometry.scale(frame_from_input)))
    source = f"from the deviations at {places} labelled places"
    if options.epsilon_px is not None:
        source = "losses.pca_multiview.epsilon_px"
        options = dataclasses.replace(options, epsilon_px=options.epsilon_px / scale)
    pca = fit_multiview(labels_px, views, options)
    return pca, f"views agree on {parts} within {pca.epsilon_px * scale:.2f} px of the frame ({source})"


# The unlabelled video of a training: its clips and single frames, opened and checked before the first step.


@dataclasses.dataclass(frozen=True)
class ClipStream:
    """An endless stream of clips of one length.

    Attributes:
      source: reads them.
      per_step: clips of an update.
      frames: per whole clip.
      cameras: of each session and view, float32 (sessions, v, NUMBERS), as `jaxpose.cameras.cameras.Rig` takes them;
        None without a loss that needs them.
    """

    source: ClipSource
    per_step: int
    frames: int
    cameras: np.ndarray | None = None


# By their name in a batch: see `jaxpose.config.terms.Stream`.
ClipStreams = dict[str, ClipStream]


def open_clip_streams(
    config: Config, why: str, rigs: Rigs = types.MappingProxyType({})
) -> tuple[ClipStreams, list[str]]:
    """Returns the streams of video of the objective's terms, if any, and messages for the user.

    Args:
      config: the run's config.
      why: why they are needed, for a message.
      rigs: the cameras of each session.

    Raises:
      UserError: there is no video to draw clips from.
    """
    video, wanted = config.video, [term.stream for term in terms(config) if term.stream.is_video]
    if not wanted:
        return {}, []
    sessions = clip_sessions(config.data, video, why)
    boxes_px = boxes_of_videos(config.data, [file for session in sessions for file in session])
    streams = {}
    for stream in wanted:
        source = open_clips(sessions, stream.frames, config.data, video.cache, boxes_px, stream.mixed_blocks)
        needs_cameras = stream.name == "clips" and config.losses.multiview_consistency.weight
        cameras = _cameras_of(source, rigs, config.data) if needs_cameras else None
        streams[stream.name] = ClipStream(source, stream.per_step, stream.frames, cameras)
    # The clips of several animals are other parts of the videos, and not in the cache.
    sources = [stream.source for stream in streams.values()] if config.data.animals < 2 else []
    return streams, list(dict.fromkeys(note for source in sources for note in source.notes))


def _cameras_of(source: ClipSource, rigs: Rigs, data: DataConfig) -> np.ndarray:
    """Returns the cameras of each session of clips, as in `ClipStream`."""
    found = []
    for indexes in source.sessions:
        cameras = rigs[session_of(indexes[0].path.stem, data.views)]
        for view, index in enumerate(indexes):
            refuse_other_size(cameras, view, (index.width_px, index.height_px), index.path, data)
        found.append(cameras.numbers_near_0())
    return np.array(found, np.float32)


def check_losses_on_video(config: Config, facts: DataFacts) -> list[str]:
    """Returns messages about losses on unlabelled video that never count.

    Raises:
      UserError: a loss on clips does not fit the keypoints.
    """
    losses, messages = config.losses, []
    refuse_epsilons(losses, len(config.data.keypoint_names))
    if weights(losses) and (reason := _why_they_never_count(losses, facts.total_steps, facts.steps_per_epoch)):
        messages.append(f"the losses on clips never take effect: {reason}")
    if losses.consistency.weight and losses.consistency.start_steps >= facts.total_steps:
        start = f"losses.consistency.start_steps is {losses.consistency.start_steps}"
        steps = f"the run has {facts.total_steps} steps"
        messages.append(f"the teacher never takes effect: {start}, and {steps}; lower it, or train longer")
    return messages


def close_clips(streams: ClipStreams) -> None:
    """Ends all decoding, in every thread, at the next frame; a signal handler may call it."""
    for stream in streams.values():
        stream.source.close()


def require_usable_clips(streams: ClipStreams, step: int) -> None:
    """Raises UnusableClips on all processes if process 0 finds no usable clip of a stream from a step on."""

    def find() -> str:
        try:
            for stream in streams.values():
                stream.source.require_usable(step * stream.per_step)
        except UnusableClips as error:
            return str(error)
        except Stopped:
            pass  # a signal: the loop ends before its first step
        return ""

    if text := broadcast_from_0(find):
        raise UnusableClips(text)


def _why_they_never_count(losses: LossesConfig, total_steps: int, steps_per_epoch: int) -> str:
    """Returns why the factor of the losses on clips is 0 up to the last step, and the fix; "" if it is not."""

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


@dataclasses.dataclass(frozen=True)
class Setup:
    """The set-up of a training, before anything is compiled.

    Attributes:
      config: the resolved config, with all options that depend on the project filled in.
      mesh: the devices.
      data: the labelled frames and their sets.
      graphdef: definition of the network.
      facts: about the data, for the compiled step.
      clips: the streams of unlabelled clips, none without a loss on video; of several animals, those of whole frames
        until `jaxpose.training.animal_clips` replaces them.
      params: nested dict of parameters before the first step.
      statistics: nested dict of batch statistics.
      weights_option: the option that names the source of the initial weights, "" if they are random.
      weights_sha256: checksum of the weights from that source, "" if they are random.
      trained_before: {SHA-256: path} of images that trained those weights and do not train here.
      subspaces: fitted to the training labels, by the name of their loss.
      messages: for the user, one sentence each.
      teacher: parameters of a distillation's teacher; None without one.
      teacher_sha256: their checksum, "" without one.
      rigs: the cameras of each session, {} without `data.calibration`.
      animal_clips: a phrase about the animals in the videos, "" without clips of several animals.
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
    rigs: Rigs = dataclasses.field(default_factory=dict)
    animal_clips: str = ""

    @functools.cached_property
    def samples(self) -> Samples:
        """The frames that the training draws from: those of `data`, with what its losses need besides."""
        samples = self.data.samples
        if not self.config.losses.reprojection.weight:
            return samples
        shown_px = shown_by_other_labels(self.rigs, self.data.project)
        shown_px = geometry.apply(geometry.invert(samples.frame_from_input.astype(np.float64)), shown_px)
        return ReprojectedSamples(**vars(samples), reprojected_px=shown_px.astype(np.float32))


def drawn_rows(data: Dataset) -> np.ndarray:
    """Returns the rows (n,) that train, or (n, v) those of the views of each moment if the network sees them together.

    A step draws from the first axis. A row is -1 where a moment lacks a view.
    """
    rows, moments = data.sample_rows("train"), data.samples.moments
    return rows if moments is None else moments_of_rows(rows, moments)


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
    views = views_at_once(config.model, config.data.views)
    graphdef, params, statistics = make_network(config.model, len(names), train.precision, train.seed, views)
    messages = _describe_frames(config, data)
    initial = load_initial_weights(config, data, params, statistics)
    frames = len(drawn_rows(data))
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
    rigs = rigs_of_project(config, data.project)
    clips, sentences = open_clip_streams(config, "a loss on unlabelled video is on", rigs)
    messages += sentences
    is_later = bool(clips) and config.data.animals > 1
    return Setup(
        config, mesh, data, graphdef, initial.params, initial.statistics, facts, clips, initial.option,
        initial.sha256, initial.trained_before, subspaces, messages, rigs=rigs,
        animal_clips="the finder looks for animals in the videos once it is trained" * is_later,
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
    """Returns messages about everything that this training does not measure, trace or promise.

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
        f"{pca.epsilon_px:.2f} px are not penalised"
        for name, pca in subspaces.items()
        if name in weights(config.losses)
    ]
    return subspaces, [*messages, *kept]
