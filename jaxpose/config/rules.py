"""Rules about several options, one function for each section: each yields a line for every broken rule.

The rule of a single option (its type, choices and limits) is defined with the option.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import fsspec
from fsspec.utils import get_protocol

from jaxpose.config.data import given_shares
from jaxpose.config.loss_rules import LOSS_RULES
from jaxpose.config.model import BACKBONES, ModelConfig, norm_of
from jaxpose.config.pretrain_rules import pretrain_rules
from jaxpose.config.root import Config
from jaxpose.config.terms import terms
from jaxpose.config.train import NO_METRIC, TrainConfig
from jaxpose.config.weights import NO_WEIGHTS, PUBLISHED, PUBLISHED_WIDTH

# A draw (the position of a sample in the stream) is an int32.
_MOST_SAMPLES = 2**31 - 1


def _input(config: Config) -> Iterator[str]:
    data, stride = config.data, BACKBONES[config.model.backbone].stride
    for name, side in (("input_height_px", data.input_height_px), ("input_width_px", data.input_width_px)):
        if side % stride:
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
        yield f"data.predicted_labels is True, and data.project is {data.project}; only SLEAP files (.slp) need it"
    if len(data.missing_at_px) % 2 or not all(map(math.isfinite, data.missing_at_px)):
        yield f"data.missing_at_px is {data.missing_at_px}; it must be (x, y, x, y, ...), finite numbers"
    if len(data.frame_sizes_px) % 2 or min(data.frame_sizes_px, default=1) < 1:
        rule = "(width, height, width, height, ...), all above 0"
        yield f"data.frame_sizes_px is {data.frame_sizes_px}; it must be {rule}"


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
    if model.heatmap_stride not in (2, 4, 8):
        yield f"model.heatmap_stride is {model.heatmap_stride}; it must be 2, 4 or 8"
    if not BACKBONES[model.backbone].has_width:
        default = ModelConfig()
        for name in ("width", "norm"):
            if (value := getattr(model, name)) != getattr(default, name):
                only = f"it must be {getattr(default, name)}, the default, because only ResNets have this choice"
                yield f"model.{name} is {value}, and model.backbone is {model.backbone}; {only}"
        return
    if model.width % 4:
        yield f"model.width is {model.width}; it must be a multiple of 4"


def _weights(config: Config) -> Iterator[str]:
    model, init_from = config.model, config.train.init_from
    is_loaded = model.weights != NO_WEIGHTS
    if not model.weights:
        yield "model.weights is empty; give none for random weights"
    if norm_of(model) == "frozen" and not init_from and not is_loaded:
        yield "model.norm is frozen, which needs loaded statistics: give train.init_from=RUN or model.weights"
    if init_from and is_loaded:
        both = "both say where the backbone's weights come from: give one"
        yield f"model.weights is {model.weights} and train.init_from is {init_from}; {both}"
    if model.norm_groups and (model.norm != "group" or model.width % model.norm_groups):
        rule = f"it must divide model.width = {model.width}, and model.norm must be group"
        yield f"model.norm_groups is {model.norm_groups}, and model.norm is {model.norm}; {rule}"
    if not (published := PUBLISHED.get(model.weights)):
        return
    groups = published.norm_groups
    if groups and (model.norm != "group" or model.norm_groups != groups):
        needs = f"its network has groups: give model.norm=group model.norm_groups={groups}"
        yield f"model.weights is {model.weights}, and model.norm is {model.norm}; {needs}"
    if not groups and model.norm == "group":
        others = "give model.norm=shard, sync or frozen"
        yield f"model.weights is {model.weights}, of a network with batch normalisation; {others}"
    if model.backbone != published.backbone:
        yield f"model.weights is {model.weights}, and model.backbone is {model.backbone}; give {published.backbone}"
    elif model.width != PUBLISHED_WIDTH:
        yield f"model.weights is {model.weights}, and model.width is {model.width}; it must be {PUBLISHED_WIDTH}"


def _train(config: Config) -> Iterator[str]:
    train = config.train
    if train.microbatch_size > train.batch_size:
        most = f"at most train.batch_size = {train.batch_size}"
        yield f"train.microbatch_size is {train.microbatch_size}; it must be {most}"
    if train.shards > (microbatch := train.microbatch_size or train.batch_size):
        yield f"train.shards is {train.shards}, and a pass has {microbatch} frames; give at most one shard a frame"
    if train.shards > 0 and norm_of(config.model) == "sync":
        other = "give model.norm=shard (statistics over each shard), group or frozen, or train.shards=0"
        yield f"train.shards is {train.shards}, and model.norm is sync, whose sums go over all devices; {other}"
    if train.shards < 0 and norm_of(config.model) == "shard":
        yield f"model.norm is shard, and train.shards is {train.shards}; leave it out, or give model.norm=sync"
    if train.monitor == NO_METRIC:
        if train.early_stop_patience:
            needs = "an early stop needs a metric: give train.monitor=val_loss, or train.early_stop_patience=0"
            yield f"train.early_stop_patience is {train.early_stop_patience}, and train.monitor is none; {needs}"
        if train.monitor_mode != TrainConfig.monitor_mode:
            yield f"train.monitor_mode is {train.monitor_mode}, and train.monitor is none; leave the mode out"
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
        yield f"resume is extend, and train.members is {train.members}; no ensemble can be extended: give another out"
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
        yield f"predict.smooth_window is {window}; it must be odd: a frame and as many on either side"


def remote_problems(config: Config) -> Iterator[str]:
    """Yields a line for each broken rule about the remote copy of the run folder."""
    url, hook = config.log.remote_url, config.log.remote_hook
    try:
        # This only looks up the class and opens nothing.
        fsspec.get_filesystem_class(get_protocol(url))
    except ValueError:
        give = "give a folder, s3://..., gs://... or another that fsspec knows"
        yield f"log.remote_url is {url!r}; fsspec knows no such protocol: {give}"
    except ImportError as error:
        yield f"log.remote_url is {url!r}, for which a package is missing: {error}"
    if hook and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", hook):
        yield f"log.remote_hook is {hook!r}; it must be MODULE:FUNCTION, such as my_lab.copies:send"


# In the order in which their lines are shown.
RULES: tuple[Callable[[Config], Iterable[str]], ...] = (
    _input, _split, _names, _augment, _model, _weights, _train, *LOSS_RULES, _optim, _profile, _smooth,
    pretrain_rules,
)  # fmt: skip


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)
