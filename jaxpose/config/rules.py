"""Checks a config before anything is read or compiled: each option by its own rule, then the options together."""

import dataclasses
import difflib
import math
import re
import sys
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jaxpose.config import losses
from jaxpose.config.data import DataConfig, given_shares, mask_rules, resolve_preset
from jaxpose.config.model import (
    BACKBONES,
    NO_WEIGHTS,
    PUBLISHED,
    PUBLISHED_WIDTH,
    TEACHERS,
    ModelConfig,
    PretrainConfig,
    feature_stride,
    multiview_rules,
    norm_of,
)
from jaxpose.config.option import excerpt, flat_options
from jaxpose.config.paths import resolve_paths
from jaxpose.config.root import Config
from jaxpose.config.terms import terms
from jaxpose.config.train import NO_METRIC, TrainConfig
from jaxpose.errors import UserError

# Rules about a pretraining: each function yields a line for every broken rule.

_OF_MASKED, _OF_DISTILL = {"square_px", "hidden_share"}, {"teacher", "teacher_backbone"}
# Options that a method does not use.
_UNUSED = {
    "none": {*_OF_MASKED, *_OF_DISTILL, "rotate_deg", "scale_min", "scale_max"},
    "masked": _OF_DISTILL,
    "distill": _OF_MASKED,
}


def pretrain_rules(config: Config) -> Iterator[str]:
    """Yields a line for each option that does not suit a pretraining, or needs one."""
    pretrain, default = config.pretrain, PretrainConfig()
    if pretrain.scale_min > pretrain.scale_max:
        yield f"pretrain.scale_min is {pretrain.scale_min:g}, above pretrain.scale_max = {pretrain.scale_max:g}"
    for name in sorted(_UNUSED[pretrain.method]):
        if (value := getattr(pretrain, name)) != getattr(default, name):
            fits = ", ".join(method for method in ("masked", "distill") if name not in _UNUSED[method])
            yield f"pretrain.{name} is {value}, but pretrain.method is {pretrain.method}; only {fits} uses it"
    if pretrain.method == "none":
        return
    method = f"pretrain.method is {pretrain.method}"
    if pretrain.method == "distill":
        if not pretrain.teacher:
            yield f"{method}, but pretrain.teacher is empty; give a name in docs/weights.md, a file or a folder"
        published = PUBLISHED.get(pretrain.teacher)
        if published and published.backbone not in TEACHERS:
            yield f"pretrain.teacher is {pretrain.teacher}, a {published.backbone}; give a vision transformer"
        elif published and published.backbone != pretrain.teacher_backbone:
            given = f"pretrain.teacher_backbone is {pretrain.teacher_backbone}"
            yield f"pretrain.teacher is {pretrain.teacher}, but {given}; give {published.backbone}"
    if pretrain.square_px not in (8, 16, 32):
        yield f"pretrain.square_px is {pretrain.square_px}; it must be 8, 16 or 32"
    elif any(side % pretrain.square_px for side in (config.data.input_width_px, config.data.input_height_px)):
        sides = f"{config.data.input_width_px} x {config.data.input_height_px} px"
        yield f"pretrain.square_px is {pretrain.square_px}; it must divide the sides of the input, {sides}"
    if config.model.kind != "heatmap":
        yield f"{method}, but model.kind is {config.model.kind}; pretraining needs heatmap, the default"
    if config.train.shards < 0:
        yield f"{method}, but train.shards is {config.train.shards}; pretraining needs shards: leave it out"
    if norm_of(config.model) == "sync":
        yield f"{method}, but model.norm is sync; pretraining needs the norm of a shard or a frame: leave it out"
    if config.train.members > 1:
        yield f"{method}, but train.members is {config.train.members}; pretraining makes one backbone: leave it out"
    if config.data.keypoint_names:
        yield f"{method}, but data.keypoint_names is given; pretraining uses no keypoints: leave it out"
    for name in losses.all_on(config.losses):
        yield f"{method}, but losses.{name} is on; it needs labels: set its weight to 0"


# Rules about the losses on unlabelled video: each function yields a line for every broken rule.


def _factors(config: Config) -> Iterator[str]:
    """Rules about the weights of the losses: a step multiplies them in float32."""
    end, least = config.losses.anneal_end, losses.SMALLEST_FACTOR
    on_clips = losses.weights(config.losses)
    for name, weight in losses.all_on(config.losses).items():
        if 0 < weight < least:
            why = "float32 may round a smaller one to 0"
            yield f"losses.{name}.weight is {weight:g}; it must be 0 or at least {least:g}: {why}"
        if name in on_clips and weight * end > losses.LARGEST_FACTOR:
            most = f"at most {losses.LARGEST_FACTOR:g}"
            yield f"losses.anneal_end is {end:g}; times the factor {weight:g} of losses.{name} it must be {most}"


def _clips(config: Config) -> Iterator[str]:
    """Rules about the network and the clips that a loss on clips needs."""
    kind, video, on = config.model.kind, config.video, losses.weights(config.losses)
    for name in on:
        loss = getattr(config.losses, name)
        if kind == "regression" and loss.on_maps:
            yield f"losses.{name} compares heatmaps, and model.kind=regression has none: use losses.temporal"
        if kind == "heatmap_context" and video.context_sequence_length == 5 and loss.on_pairs:
            few = "video.context_sequence_length = 5 gives one prediction a clip: raise it"
            yield f"losses.{name} compares neighbours, but {few}"
    if video.scale_min > video.scale_max:
        yield f"video.scale_min is {video.scale_min:g}, above video.scale_max = {video.scale_max:g}"


def _teacher(config: Config) -> Iterator[str]:
    options = config.losses.consistency
    if options.scale_min > options.scale_max:
        low, high = f"{options.scale_min:g}", f"{options.scale_max:g}"
        yield f"losses.consistency.scale_min is {low}, above losses.consistency.scale_max = {high}"
    if not options.weight:
        return
    if config.model.kind == "regression":
        yield "losses.consistency compares heatmaps, and model.kind=regression has none: use losses.temporal"
    if config.optim.ema_decay == 0:
        yield "losses.consistency is on, but optim.ema_decay is 0; leave it out: the moving average is the teacher"


def _pca(config: Config) -> Iterator[str]:
    cameras, views, on = config.data.views, config.losses.pca_multiview.views, losses.weights(config.losses)
    if "pca_singleview" in on and cameras:
        yield "losses.pca_singleview is on, but data.views names several cameras: use losses.pca_multiview"
    for entry in views:
        if not all(name.strip() for name in entry.split(",")):
            yield f"losses.pca_multiview.views has an empty name in {entry!r}"
    if cameras and views:
        why = "data.views names several cameras, whose keypoints are all compared: give only one of the two"
        yield f"losses.pca_multiview.views is {views!r}, but {why}"
    if "pca_multiview" in on and not cameras and len(views) < 2:
        fix = "name the matching keypoints of each in losses.pca_multiview.views"
        yield f"losses.pca_multiview is on, but there is one view: {fix}"
    if config.model.views_agree:
        if config.model.kind == "regression":
            yield "model.views_agree compares heatmaps, and model.kind=regression has none: leave it out"
        if config.model.decoding != "fit":
            yield f"model.views_agree needs model.decoding=fit, and it is {config.model.decoding}"
        if cameras:
            yield "model.views_agree compares views in one frame, but data.views names several cameras: leave it out"
        elif config.data.boxes:
            why = "data.boxes cuts another part out of each: leave one of them out"
            yield f"model.views_agree compares places of whole frames, but {why}"
        elif len(views) < 2:
            fix = "name the matching keypoints of each in losses.pca_multiview.views"
            yield f"model.views_agree is on, but there is one view: {fix}"
        elif (kept := config.losses.pca_multiview.components) != 3:
            yield f"model.views_agree is on, but losses.pca_multiview.components is {kept}; views of a point need 3"
    for name in ("pca_singleview", "pca_multiview"):
        epsilon_px = getattr(config.losses, name).epsilon_px
        if epsilon_px is not None and epsilon_px < 0:
            yield f"losses.{name}.epsilon_px is {epsilon_px:g}; it must be at least 0, or none"


def _cameras(config: Config) -> Iterator[str]:
    yield from losses.camera_rules(config.losses, config.data.calibration, config.data.views)


# In the order in which their lines are shown.
LOSS_RULES: tuple[Callable[[Config], Iterable[str]], ...] = (_factors, _clips, _teacher, _pca, _cameras)


# Rules about several options, one function for each section: each yields a line for every broken rule.
#
# The rule of a single option (its type, choices and limits) is defined with the option.

# A draw (the position of a sample in the stream) is an int32.
_MOST_SAMPLES = 2**31 - 1
_SEVERAL = "frames have several animals"


def _input(config: Config) -> Iterator[str]:
    data, stride = config.data, feature_stride(config.model)
    for name, side in (("input_height_px", data.input_height_px), ("input_width_px", data.input_width_px)):
        # DeepLabCut's maps may reach beyond the input.
        if side % stride and config.model.decoding != "deeplabcut":
            yield f"data.{name} is {side}; it must be a multiple of {stride} (the backbone's stride), or 0"
    if bool(data.input_height_px) != bool(data.input_width_px):
        yield "data.input_height_px and data.input_width_px must be given together, or both be 0"
    if data.crop_px and (len(data.crop_px) != 4 or min(data.crop_px[:2]) < 0 or min(data.crop_px[2:]) < 1):
        rule = "(x, y, width, height), x and y at least 0, width and height above 0"
        yield f"data.crop_px is {data.crop_px}; it must be {rule}"
    if data.boxes and data.crop_px:
        yield f"data.boxes is {data.boxes} and data.crop_px is {data.crop_px}; both choose a part of a frame: give one"
    if data.video_boxes and not data.boxes:
        yield f"data.video_boxes is {data.video_boxes}, but data.boxes is empty: the labelled images also need boxes"
    for entry in data.video_crops_px:
        if not re.fullmatch(r".+:\d+,\d+,[1-9]\d*,[1-9]\d*", entry):
            yield f"data.video_crops_px has {entry!r}; each entry must be 'name:x,y,width,height'"
    if data.predicted_labels and not data.project.lower().endswith(".slp"):
        yield f"data.predicted_labels is True, but data.project is {data.project}; only SLEAP files (.slp) need it"
    if len(data.missing_at_px) % 2 or not all(map(math.isfinite, data.missing_at_px)):
        yield f"data.missing_at_px is {data.missing_at_px}; it must be (x, y, x, y, ...), finite numbers"
    if len(data.frame_sizes_px) % 2 or min(data.frame_sizes_px, default=1) < 1:
        rule = "(width, height, width, height, ...), all above 0"
        yield f"data.frame_sizes_px is {data.frame_sizes_px}; it must be {rule}"


def _animals(config: Config) -> Iterator[str]:
    data, default = config.data, DataConfig()
    if data.animals < 2:
        return
    for name in ("views", "crop_px", "boxes", "video_boxes"):
        if (given := getattr(data, name)) != getattr(default, name):
            yield f"data.{name} is {given!r}, but {_SEVERAL}: leave it out"
    if data.resize == "lightning_pose":
        yield f"data.resize is lightning_pose, but {_SEVERAL}: leave it out"
    if config.model.kind == "heatmap_context":
        yield f"model.kind is heatmap_context, but {_SEVERAL}, which need a network without context frames"
    if config.model.views_agree:
        yield f"model.views_agree is on, but {_SEVERAL}: leave it out"
    if config.train.members > 1:
        yield f"train.members is {config.train.members}, but {_SEVERAL}: train one network"
    if losses.on_video(config.losses) and config.video.cache not in ("auto", "off"):
        yield f"video.cache is {config.video.cache}, but {_SEVERAL}, whose clips are not cached: leave it out"


# Options of the model that only a pose network has; a finder has their defaults.
POSE_OPTIONS = ("head", "decoding", "loss", "sigma_cells", "views_agree")


def _finder(config: Config) -> Iterator[str]:
    """Rules about the network that finds animals; `_animals` has those about several animals."""
    model, default, kind = config.model, ModelConfig(), "model.kind is finder"
    if model.kind != "finder":
        return
    for name in POSE_OPTIONS:
        if (value := getattr(model, name)) != getattr(default, name):
            yield f"{kind}, but model.{name} is {value}; a finder needs {getattr(default, name)}, the default"
    if config.data.animals == 1:
        yield f"{kind}, but data.animals is 1; a finder finds several animals: leave model.kind out"
    for name in losses.on_video(config.losses):
        yield f"{kind}, but losses.{name} is on; a finder learns from labels alone: set its weight to 0"
    if config.train.init_from:
        yield f"{kind}, but train.init_from is {config.train.init_from}; give model.weights, which sets the backbone"


def refuse_for_several_animals(config: Config) -> None:
    """Checks the options that frames with several animals (`data.animals` above 1) exclude.

    Raises:
      UserError: some are given.
    """
    _refuse(list(_animals(config)))


def _split(config: Config) -> Iterator[str]:
    data = config.data
    if sum(shares := given_shares(data) or ()) > 1.0 + 1e-9:
        absent = [f"{name} = {share:g} by default" for name, share, given in
                  zip(("train_share", "val_share"), shares, (data.train_share, data.val_share), strict=True)
                  if given is None]  # fmt: skip
        hint = f" ({absent[0]}; give both)" if absent else ""
        yield f"data.train_share + data.val_share is {sum(shares):g}; it must be at most 1{hint}"
    if data.train_frames == 0:
        yield "data.train_frames is 0; above 1 it is a number of frames, below 1 a share, 1 means all"


def _names(config: Config) -> Iterator[str]:
    data = config.data
    for option, names in (("keypoint_names", data.keypoint_names), ("views", data.views)):
        for name in _repeated(names):
            yield f"data.{option} has {name!r} more than once"
    for pair in data.skeleton:
        if not re.fullmatch(".+:.+", pair):
            yield f"data.skeleton has {pair!r}; each entry must be 'name:name'"
    for pair in data.flip_pairs:
        if not re.fullmatch("[^:]+:[^:]+", pair):
            yield f"data.flip_pairs has {pair!r}; each entry must be 'left_name:right_name'"


def _augment(config: Config) -> Iterator[str]:
    augment = config.augment
    yield from mask_rules(augment, config.model.kind)
    if augment.flip_p and config.data.mirror_views:
        yield "augment.flip_p is above 0, but data.mirror_views is set: a flip would create impossible poses"
    if augment.quarter_turns == ():
        yield "augment.quarter_turns is empty; (0,) means no turn"
    for option in ("move_side", "scale", "salt_pepper_size", "emboss_strength", "clahe_tiles"):
        low, high = f"{option}_min", f"{option}_max"
        least, most = getattr(augment, low), getattr(augment, high)
        if least is not None and most is not None and least > most:
            yield f"augment.{low} is {least:g}, above augment.{high} = {most:g}"


def _model(config: Config) -> Iterator[str]:
    model = config.model
    yield from multiview_rules(model, config.data.views, config.data.boxes)
    if model.heatmap_stride not in (2, 4, 8):
        yield f"model.heatmap_stride is {model.heatmap_stride}; it must be 2, 4 or 8"
    if model.output_stride not in (0, 16):
        yield f"model.output_stride is {model.output_stride}; it must be 0 or 16"
    elif model.output_stride and BACKBONES[model.backbone].family != "resnet":
        yield f"model.output_stride is 16, but model.backbone is {model.backbone}; only a ResNet has this choice"
    if model.head == "deconv" and model.kind == "heatmap_context":
        yield "model.head is deconv, which sees one frame, but model.kind is heatmap_context: give model.head=pyramid"
    if not BACKBONES[model.backbone].has_width:
        default, why = ModelConfig(), "because only ResNets and MobileNetV2 have this choice"
        for name in ("width", "norm"):
            if (value := getattr(model, name)) != getattr(default, name):
                only = f"it must be {getattr(default, name)}, the default"
                yield f"model.{name} is {value}, but model.backbone is {model.backbone}; {only}, {why}"
        return
    if model.width % 4:
        yield f"model.width is {model.width}; it must be a multiple of 4"


def _deeplabcut(config: Config) -> Iterator[str]:
    """Rules about maps that are not of sum 1."""
    model, default = config.model, ModelConfig()
    if model.decoding != "deeplabcut":
        return
    for name, only in (("head", "deconv"), ("kind", default.kind), ("loss", default.loss)):
        if (value := getattr(model, name)) != only:
            yield f"model.decoding is deeplabcut, but model.{name} is {value}; it must be {only}"
    if config.pretrain.method != PretrainConfig.method:
        yield f"model.decoding is deeplabcut, but pretrain.method is {config.pretrain.method}; give model.decoding=fit"
    maps = [name for name in losses.weights(config.losses) if getattr(config.losses, name).on_maps]
    for name in [*maps, *["consistency"] * bool(config.losses.consistency.weight)]:
        yield f"losses.{name} compares heatmaps of sum 1, and model.decoding=deeplabcut has others: set its weight to 0"


def _weights(config: Config) -> Iterator[str]:
    model, init_from = config.model, config.train.init_from
    is_loaded = model.weights != NO_WEIGHTS
    if not model.weights:
        yield "model.weights is empty; give none for random weights"
    if norm_of(model) == "frozen" and not init_from and not is_loaded:
        yield "model.norm is frozen, which needs loaded statistics: give train.init_from=RUN or model.weights"
    if init_from and is_loaded:
        both = "both set the backbone's weights: give one"
        yield f"model.weights is {model.weights} and train.init_from is {init_from}; {both}"
    multiple = BACKBONES[model.backbone].channels_multiple
    if model.norm_groups and (model.norm != "group" or (multiple or model.width) % model.norm_groups):
        divided = f"{multiple} (for {model.backbone})" if multiple else f"model.width = {model.width}"
        rule = f"it must divide {divided}, and model.norm must be group"
        yield f"model.norm_groups is {model.norm_groups}, with model.norm = {model.norm}; {rule}"
    if not (published := PUBLISHED.get(model.weights)):
        return
    groups = published.norm_groups
    if groups and (model.norm != "group" or model.norm_groups != groups):
        needs = f"its network has groups: give model.norm=group model.norm_groups={groups}"
        yield f"model.weights is {model.weights}, but model.norm is {model.norm}; {needs}"
    if not groups and model.norm == "group":
        others = "give model.norm=shard, sync or frozen"
        yield f"model.weights is {model.weights}, of a network with batch normalisation; {others}"
    if model.backbone != published.backbone:
        yield f"model.weights is {model.weights}, but model.backbone is {model.backbone}; give {published.backbone}"
    elif model.width != PUBLISHED_WIDTH:
        yield f"model.weights is {model.weights}, but model.width is {model.width}; it must be {PUBLISHED_WIDTH}"


def _train(config: Config) -> Iterator[str]:
    train = config.train
    if train.microbatch_size > train.batch_size:
        most = f"at most train.batch_size = {train.batch_size}"
        yield f"train.microbatch_size is {train.microbatch_size}; it must be {most}"
    if train.shards > (microbatch := train.microbatch_size or train.batch_size):
        yield f"train.shards is {train.shards}, but a pass has {microbatch} frames; give at most one shard a frame"
    if train.shards > 0 and norm_of(config.model) == "sync":
        other = "give model.norm=shard (statistics over each shard), group or frozen, or train.shards=0"
        yield f"train.shards is {train.shards}, but model.norm is sync, whose sums go over all devices; {other}"
    if train.shards < 0 and norm_of(config.model) == "shard":
        yield f"model.norm is shard, but train.shards is {train.shards}; leave it out, or give model.norm=sync"
    if train.monitor == NO_METRIC:
        if train.early_stop_patience:
            needs = "an early stop needs a metric: give train.monitor=val_loss, or train.early_stop_patience=0"
            yield f"train.early_stop_patience is {train.early_stop_patience}, but train.monitor is none; {needs}"
        if train.monitor_mode != TrainConfig.monitor_mode:
            yield f"train.monitor_mode is {train.monitor_mode}, but train.monitor is none; leave the mode out"
    if not train.epochs and not train.steps:
        yield "train.epochs and train.steps are both 0; say how long to train"
    a_step = {term.stream.option: term.stream.per_step for term in terms(config)}
    for name, length in (("steps", train.steps), ("epochs", 0 if train.steps else train.epochs)):
        for option, count in a_step.items():
            # An epoch has at least one step, so the step counter cannot overflow either.
            if length * count > _MOST_SAMPLES:
                most = f"at most {_MOST_SAMPLES // count} (the samples are counted in 31 bits)"
                yield f"train.{name} is {length}; with {option} = {count} it must be {most}"
    if train.seed + train.members > 2**32:
        limit = f"below 2^32 = {2**32} (jax's seeds have 32 bits)"
        of_last = f", and the last of {train.members} members has {train.seed + train.members - 1}"
        yield f"train.seed is {train.seed}{of_last if train.members > 1 else ''}; it must be {limit}"
    if train.members > 1 and config.resume == "extend":
        yield (
            f"resume is extend, but train.members is {train.members}; an ensemble cannot be extended: give another out"
        )
    if train.members > 1:
        for option, value in (("remote_url", config.log.remote_url), ("remote_hook", config.log.remote_hook)):
            if value:
                alone = "leave it out, or train each member alone with its own train.seed and out"
                yield f"log.{option} is {value}, but an ensemble (train.members > 1) has no remote copy; {alone}"


def _optim(config: Config) -> Iterator[str]:
    optim = config.optim
    if optim.name != "sgd":
        for name in ("beta1", "beta2"):
            if getattr(optim, name) == 1:
                yield f"optim.{name} is 1; it must be below 1: with 1, the mean never changes"
        if optim.epsilon < 1e-30:
            why = "a gradient of 0 is divided by it"
            yield f"optim.epsilon is {optim.epsilon:g}; it must be at least 1e-30: {why}"
    if optim.schedule == "multistep" and list(optim.milestones_epochs) != sorted(set(optim.milestones_epochs)):
        milestones = ", ".join(f"{epoch:g}" for epoch in optim.milestones_epochs)
        yield f"optim.milestones_epochs is ({milestones}); the epochs must be ascending"


def _profile(config: Config) -> Iterator[str]:
    steps = config.log.profile_steps
    match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", steps)
    if steps and (not match or int(match[1]) >= int(match[2])):
        yield f"log.profile_steps is {steps!r}; it must be FIRST:LAST with FIRST below LAST"


def _smooth(config: Config) -> Iterator[str]:
    if config.predict.smooth_window % 2 == 0:
        window = config.predict.smooth_window
        yield f"predict.smooth_window is {window}; it must be odd: a frame and the same number on either side"


def remote_problems(config: Config) -> Iterator[str]:
    """Yields a line for each broken rule about the remote copy of the run folder."""
    # This import takes long, and most commands do not need it.
    import fsspec
    from fsspec.utils import get_protocol

    url, hook = config.log.remote_url, config.log.remote_hook
    try:
        # This only looks up the class and opens nothing.
        fsspec.get_filesystem_class(get_protocol(url))
    except ValueError:
        give = "give a folder, s3://..., gs://... or another that fsspec knows"
        yield f"log.remote_url is {url!r}; fsspec does not know this protocol: {give}"
    except ImportError as error:
        yield f"log.remote_url is {url!r}, for which a package is missing: {error}"
    if hook and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", hook):
        yield f"log.remote_hook is {hook!r}; it must be MODULE:FUNCTION, such as my_lab.copies:send"


# In the order in which their lines are shown.
RULES: tuple[Callable[[Config], Iterable[str]], ...] = (
    _input, _animals, _finder, _split, _names, _augment, _model, _deeplabcut, _weights, _train, *LOSS_RULES, _optim,
    _profile, _smooth, pretrain_rules,
)  # fmt: skip


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


# Fills in values that depend on other options, and applies all rules.

# Number of threads of a run whose bits must not depend on the number of cores.
_EXACT_THREADS = 8
_TEACHER_DECAY = 0.99
# With fewer frames, batch statistics of a shard are noisy; with more, fewer devices have work.
FRAMES_PER_SHARD = 8


def resolve(config: Config) -> Config:
    """Returns a checked copy with the preset's numbers, the shards and the threads filled in.

    Paths are resolved (see `resolve_paths`). A whole number becomes a float if its option is one: 5 and 5.0 give the
    same run folder.

    Raises:
      UserError: an option breaks a rule.
    """
    validate(config)
    train, mesh = config.train, config.mesh
    if not train.shards:
        train = dataclasses.replace(train, shards=_shards(config))
    if train.shards > 0 and not mesh.cpu_threads:
        mesh = dataclasses.replace(mesh, cpu_threads=_EXACT_THREADS)
    optim = config.optim
    if optim.ema_decay is None:
        is_taught = any(term.follows_average for term in terms(config))
        optim = dataclasses.replace(optim, ema_decay=_TEACHER_DECAY if is_taught else 0.0)
    augment = resolve_preset(config.augment)
    filled = dataclasses.replace(config, augment=augment, train=train, mesh=mesh, optim=optim)
    resolved = resolve_paths(filled)
    validate(resolved)
    return _with_floats(resolved, Config)


def _shards(config: Config) -> int:
    """Returns the number of shards that suits the config, whatever devices it will have."""
    if norm_of(config.model) == "sync":
        return 0
    return max(1, (config.train.microbatch_size or config.train.batch_size) // FRAMES_PER_SHARD)


def validate(config: Config) -> None:
    """Checks every option against its own rule and the options against each other.

    Raises:
      UserError: one line for each broken rule: the option, its value, the rule.
    """
    _refuse(_own_problems(config) or [*_problems_together(config), *remote_problems(config)])


def validate_alone(config: Config) -> None:
    """Checks every option against its own rule, in a config whose options do not fit each other yet.

    Raises:
      UserError: one line for each broken rule: the option, its value, the rule.
    """
    _refuse(_own_problems(config))


def validate_stored(config: Config) -> None:
    """Checks the config of a run that is only read: as `validate`, but `log.remote_url` need not work on this machine.

    Raises:
      UserError: one line for each broken rule: the option, its value, the rule.
    """
    _refuse(_own_problems(config) or _problems_together(config))


def _with_floats(value: Any, annotation: Any) -> Any:
    if dataclasses.is_dataclass(annotation):
        kinds = {field.name: field.type for field in dataclasses.fields(annotation)}
        changes = {name: _with_floats(getattr(value, name), kind) for name, kind in kinds.items()}
        return dataclasses.replace(value, **changes)
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return tuple(_with_floats(entry, arguments[0]) for entry in value)
    return float(value) if type(value) is int and float in (annotation, *arguments) else value


def _refuse(problems: list[str]) -> None:
    if problems:
        raise UserError("\n".join(problems))


def _own_problems(config: Config) -> list[str]:
    options = flat_options(config).items()
    return [problem for name, (field, value) in options for problem in _problems_of(name, field, value)]


def _problems_together(config: Config) -> list[str]:
    return [problem for rule in RULES for problem in rule(config)]


def _problems_of(name: str, field: dataclasses.Field, value: Any) -> Iterator[str]:
    if not _has_type(value, field.type):
        yield f"{name} is {excerpt(value)}; it must be {_type_name(field.type)}"
        return
    choices, minimum, maximum = (field.metadata[key] for key in ("choices", "minimum", "maximum"))
    if choices and value not in choices:
        near = difflib.get_close_matches(str(value), choices, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        yield f"{name} is {excerpt(value)}; it must be one of {', '.join(choices)}{hint}"
    numbers = value if isinstance(value, tuple) else (value,)
    is_real = float in (field.type, *typing.get_args(field.type))
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        # Python compares a whole number of any length; as a float it must be finite.
        if (is_real or isinstance(number, float)) and not abs(number) <= sys.float_info.max:
            yield f"{name} is {excerpt(value)}; it must be finite"
        elif minimum is not None and number < minimum:
            yield f"{name} is {excerpt(value)}; it must be at least {minimum:g}"
        elif maximum is not None and number > maximum:
            yield f"{name} is {excerpt(value)}; it must be at most {maximum:g}"


def _has_type(value: Any, annotation: Any) -> bool:
    if annotation is object:
        return True
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return isinstance(value, tuple) and all(_has_type(entry, arguments[0]) for entry in value)
    if arguments:
        return any(_has_type(value, option) for option in arguments)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, annotation)


def _type_name(annotation: Any) -> str:
    """Returns a message's words for a value of this annotation: "a whole number"."""
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "none"}
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return f"a list of entries, each {_type_name(arguments[0])}"
    if arguments:
        return " or ".join(_type_name(option) for option in arguments)
    return names.get(annotation, str(annotation))
