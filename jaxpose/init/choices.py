"""Chooses options for a project, with reasons: Lightning Pose's rules of thumb and our benchmark results."""

import copy
import dataclasses
import functools
import json
import math
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxpose import __version__
from jaxpose.config import Config
from jaxpose.config.losses import LossesConfig, weights
from jaxpose.config.model import BACKBONES, NO_WEIGHTS, PUBLISHED, ModelConfig
from jaxpose.config.rules import FRAMES_PER_SHARD
from jaxpose.config.terms import terms
from jaxpose.config.train import NO_METRIC, OptimConfig, TrainConfig, steps_per_epoch, total_epochs, total_steps
from jaxpose.data.frame_names import NEAR_FRAMES
from jaxpose.errors import UserError
from jaxpose.init.facts import VIDEOS_TO_SPLIT_BY, Facts, left_right_pairs, mirrored_views, usual_split
from jaxpose.init.microbatch import largest_microbatch
from jaxpose.run.start_run import is_run
from jaxpose.terminal import count

# A choice for a project, with its reason.

# Frames per update.
BATCH = 16
# With that batch and more training frames than this, 300 epochs are at least 1,500 steps.
FEW_FRAMES = 64


@dataclasses.dataclass(frozen=True)
class Choice:
    """Options that belong together.

    Attributes:
      title: a line such as "Size of the network's input".
      reason: sentences; may name changes.
      options: {dotted name: value}.
    """

    title: str
    reason: str
    options: dict[str, Any]


# Choices about the network: backbone, weights, norm, and agreement of views.

_FRAMES_FOR_RESNET50 = 200
# From benchmarks/pretrained.py.
_SMALL, _SMALL_WEIGHTS = "mobilenet_v2", "mobilenet_v2_imagenet"
_SMALL_STEPS, _MEASURED_FRAME_PX = 500, 512
# From benchmarks/few_labels.py, with and without views_agree.
_FRAMES_FOR_VIEWS = 10


def network_choices(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields the choices about the network with a settled backbone."""
    backbone, weights = config.model.backbone, config.model.weights
    if _is_small_network(config):
        yield from _small_network()
    else:
        yield from _network(facts, backbone, weights)
    if views := () if config.data.views else mirrored_views(facts.keypoint_names):
        yield _views(facts, config, views)
    if (rate := BACKBONES[backbone].learning_rate) != OptimConfig.lr:
        reason = "Lightning Pose's advice for vision transformers; the default, 1e-3, is for ResNets and MobileNetV2."
        yield Choice("Learning rate", reason, {"optim.lr": rate})


def _network(facts: Facts, backbone: str, weights: str) -> Iterator[Choice]:
    if weights in PUBLISHED:
        reason = f"The backbone of {weights}."
    elif backbone == "resnet50":
        reason = "The usual size for hundreds of labelled frames and a GPU."
    else:
        fit = "few labels" if facts.gpu_gib else "a machine without a GPU"
        reason = (
            f"resnet18 trains fast and suits {fit}; configs/small.py has its error with 72 frames. Try resnet50 "
            f"with {_FRAMES_FOR_RESNET50} frames and a GPU."
        )
    yield Choice("Network", reason, {"model.backbone": backbone})
    if weights == NO_WEIGHTS:
        names = " or ".join(name for name, published in PUBLISHED.items() if published.backbone == backbone)
        reason = "Random, so that the same command works offline." + (
            f" Published weights usually need fewer labels: {names}, downloaded once from the Hugging Face Hub "
            "(docs/weights.md). We have not measured how much they help here."
            if names
            else ""
        )
        yield Choice("Initial weights", reason, {"model.weights": NO_WEIGHTS})
    elif BACKBONES[backbone].has_width:
        yield _norm(weights)


def _small_network() -> Iterator[Choice]:
    yield Choice(
        "Network and initial weights",
        "A small network with ImageNet weights, which are downloaded once from the Hugging Face Hub. With 10 and 20 "
        "labels and torchvision's weights, it had 0.71 and 0.82 of the error of a resnet18 from random weights on "
        "lips, and the same error on a mouse, in half the time (benchmarks/pretrained.md). Without internet access: "
        "docs/weights.md, or `jaxpose init PROJECT model.weights=none`.",
        {"model.backbone": _SMALL, "model.weights": _SMALL_WEIGHTS},
    )
    reason = "The whole network trains from the first step, as in that benchmark."
    yield Choice("Fine-tuning", reason, {"optim.unfreeze_epoch": 0, "optim.unfreeze_factor": 1.0})


def _views(facts: Facts, config: Config, views: tuple[tuple[str, ...], ...]) -> Choice:
    named = {"losses.pca_multiview.views": tuple(map(",".join, views))}
    title = "Views that agree"
    reason = ""
    if facts.frames < _FRAMES_FOR_VIEWS:
        reason = f"not measured below {_FRAMES_FOR_VIEWS} labelled frames"
    elif config.model.kind == "regression" or config.model.decoding != "fit":
        reason = "the chosen network has no heatmaps to compare, or decodes them as Lightning Pose does"
    elif config.losses.pca_multiview.components != 3:
        reason = "it needs losses.pca_multiview.components=3"
    elif config.data.boxes:
        reason = "data.boxes cuts a different part out of each frame"
    elif facts.animals > 1:
        reason = "frames have several animals"
    elif facts.sizes > 1:
        reason = f"the labelled images have {facts.sizes} sizes, perhaps from cameras at other positions"
    if reason:
        return Choice(title, f"Off: {reason}.", {"model.views_agree": False, **named})
    reason = (
        "The prediction in one view also uses the other view of the body part, so that similar paws are not confused. "
        "This lowered the error of the mouse example with 10 to 40 labels (docs/few_labels.md); we have not measured "
        "other data. Set it to False if these are not views of one body."
    )
    return Choice(title, reason, {"model.views_agree": True, **named})


def _norm(weights: str) -> Choice:
    if weights in PUBLISHED and PUBLISHED[weights].norm_groups:
        groups = PUBLISHED[weights].norm_groups
        reason = f"The network was trained with {groups} groups."
        return Choice("Norm", reason, {"model.norm": "group", "model.norm_groups": groups})
    reason = f"Keeps the loaded statistics, which are better than those of {BATCH} frames of one experiment."
    return Choice("Norm", reason, {"model.norm": "frozen"})


def _is_small_network(config: Config) -> bool:
    """Returns whether it is the small network from published weights: by their name, of a file or of its folder."""
    weights, place = config.model.weights, Path(config.model.weights).expanduser()
    return config.model.backbone == _SMALL and (weights == _SMALL_WEIGHTS or (place.exists() and not is_run(place)))


def weights_for(facts: Facts, config: Config) -> str:
    """Returns the initial weights that the labels and the machine suggest."""
    model, usual = config.model, ModelConfig()
    is_usual = (model.kind, model.width, model.norm) == (usual.kind, usual.width, usual.norm)
    is_measured = is_usual and facts.training_frames <= FEW_FRAMES and not config.train.init_from
    return _SMALL_WEIGHTS if is_measured and not facts.gpu_gib else NO_WEIGHTS


def backbone_for(facts: Facts, config: Config) -> str:
    """Returns the backbone that the weights suggest, or else the labels and the machine.

    Raises:
      UserError: the weights are a file or a folder.
    """
    weights = config.model.weights
    if weights in PUBLISHED:
        return PUBLISHED[weights].backbone
    if weights != NO_WEIGHTS:
        raise UserError(f"model.weights is {weights}; give its network too, such as model.backbone={_SMALL}")
    has_many = facts.frames >= _FRAMES_FOR_RESNET50 and facts.training_frames > FEW_FRAMES
    return "resnet50" if facts.gpu_gib and has_many else "resnet18"


# Choices about losses on unlabelled video.

_TITLE = "Losses on video"
_OFTEN_LABELLED = 0.5
# From the benchmark in configs/semi_supervised.py.
_WEIGHT = 3e-4
_JUMPS = f"With a weight of {_WEIGHT:g}, losses.temporal penalises jumps of the predictions."
# From benchmarks/few_labels.py.
_MOVE_P = 0.5


def losses_on_video(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields losses on video: with few labels student-teacher consistency, else clip losses."""
    if not facts.videos:
        reason = f"Off: the project has no videos. {_JUMPS}"
        yield Choice(_TITLE, reason, {"losses.temporal.weight": 0.0})
        return
    if facts.animals > 1:
        reason = "Off: not measured with several animals."
        yield Choice(_TITLE, reason, {"losses.temporal.weight": 0.0})
        return
    few = facts.training_frames <= FEW_FRAMES and _can_have_a_teacher(config)
    if few and (facts.gpu_gib or _is_small_network(config)):
        yield from _consistency(facts, config)
    elif not facts.gpu_gib:
        also = f" With few labels, losses.consistency.weight=1 and augment.move_p={_MOVE_P} may be worth that." * few
        reason = f"Off: without a GPU, a step would take twice as long. {_JUMPS}{also}"
        yield Choice(_TITLE, reason, {"losses.temporal.weight": 0.0})
    else:
        yield from _on_clips(facts, config)
        yield from _start(facts, config)


def settings_of_losses(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields the settings of clip losses with given weights."""
    on = weights(config.losses)
    for choice in _on_clips(facts, config):
        if any(f"losses.{name}.weight" in choice.options for name in on):
            yield choice
    if on:
        yield from _start(facts, config)


def _can_have_a_teacher(config: Config) -> bool:
    # Several cameras and context frames would work but were not measured.
    return config.model.kind == "heatmap" and not config.data.views and config.optim.ema_decay != 0


def _consistency(facts: Facts, config: Config) -> Iterator[Choice]:
    steps = total_steps(config.train, facts.training_frames)
    if _is_small_network(config):
        measured = (
            "this lowered the errors of this network on lips with 10 labels from 8.5 to 7.6 px and with 20 from 7.1 to "
            "6.7 px, and on a mouse from 15.7 to 10.3 px and from 10.1 to 7.6 px (benchmarks/pretrained.md)"
        )
    else:
        measured = (
            "this lowered the errors of narrow networks (model.width=16) from random weights with 10 labels on three "
            "data sets, and with 20 on most of them; those of networks of width 64 with 10 labels on two "
            "(docs/few_labels.md)"
        )
    yield Choice(
        "A teacher on unlabelled video",
        "The network also learns, in harder views of unlabelled frames, what the moving average of its weights "
        f"predicts in easier ones. Together with moved parts, {measured}. A step costs 2 to 3 times as much. A weight "
        "of 0 turns the loss off.",
        {
            "losses.consistency.weight": 1.0,
            "losses.consistency.start_steps": steps // 5,
            "losses.consistency.ramp_steps": 2 * steps // 5,
        },
    )
    reason = "Parts of a frame move within it, so that the network does not learn only the few labelled poses."
    yield Choice("Moved parts", reason, {"augment.move_p": _MOVE_P})


def _on_clips(facts: Facts, config: Config) -> Iterator[Choice]:
    yield Choice(
        f"{_TITLE}: jumps",
        "Jumps of more than epsilon_px between two frames are penalised: here 5 % of the long side. Set it "
        "to more than "
        "the animal really moves from frame to frame. A weight of 0 turns a loss off.",
        {
            "losses.temporal.weight": _WEIGHT,
            "losses.temporal.epsilon_px": (float(max(5, round(0.05 * max(facts.frame_size_px)))),),
        },
    )
    known = f"{count(facts.training_frames, 'training frame')}, {count(len(facts.keypoint_names), 'keypoint')}"
    if facts.training_frames < 2 * len(facts.keypoint_names):
        reason = f"Off: learning poses takes at least twice as many training frames as keypoints ({known})."
        yield Choice(f"{_TITLE}: poses", reason, {"losses.pca_singleview.weight": 0.0})
        return
    if config.data.views or mirrored_views(facts.keypoint_names):
        yield Choice(
            f"{_TITLE}: agreement of the views",
            f"Views of a point in space have 3 dimensions; predictions outside of them are penalised ({known}).",
            {"losses.pca_multiview.weight": _WEIGHT, "losses.pca_multiview.components": 3},
        )
    if not config.data.views:
        yield _poses(facts, known)


def _start(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields when clip losses begin, if training has far more epochs than the default."""
    epochs = total_epochs(config.train, facts.training_frames)
    if epochs >= 2 * TrainConfig.epochs:
        longer = epochs / TrainConfig.epochs
        reason = (
            "They start, and grow to their weights, at the same fractions of training as with the default "
            "{TrainConfig.epochs} epochs, because the network must predict well first."
        )
        options = {
            "losses.anneal_start_epochs": round(LossesConfig.anneal_start_epochs * longer, 1),
            "losses.anneal_increase_per_epoch": LossesConfig.anneal_increase_per_epoch / longer,
        }
        yield Choice(f"{_TITLE}: start", reason, options)


def _poses(facts: Facts, known: str) -> Choice:
    shares = zip(facts.keypoint_names, facts.labelled_shares, strict=True)
    often = tuple(name for name, share in shares if share >= _OFTEN_LABELLED)
    left_out = len(facts.keypoint_names) - len(often)
    more = f" Keypoints labelled in less than half of the frames are left out: {left_out}." if left_out else ""
    return Choice(
        f"{_TITLE}: poses",
        f"Poses unlike any labelled one are penalised; there are enough labels to learn them ({known}).{more} If there "
        "are other keypoints, such as obstacles, list only those of the body.",
        {"losses.pca_singleview.weight": _WEIGHT, "losses.pca_singleview.keypoints": often if left_out else ()},
    )


# Choices about training length, learning rate and batch.
#
# The numbers are from benchmarks/few_labels.py: small networks from random weights, with 10 to 40 labels.

_EPOCHS, _LEAST_STEPS = TrainConfig.epochs, 1500
_VALIDATIONS = _EPOCHS / TrainConfig.val_every_epochs
_FEW_LABELS_LR = 2e-3


def length(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields the length in epochs."""
    if config.train.steps:
        return
    epoch_steps = steps_per_epoch(config.train, facts.training_frames)
    if not _is_short(facts, config):
        reason = f"{_EPOCHS} epochs. If the camera looks down on the animal: 500, or 1000."
        yield Choice("Length", reason, {"train.epochs": _EPOCHS})
        return
    is_few, is_small = facts.training_frames <= FEW_FRAMES, _is_small_network(config)
    least_steps = _SMALL_STEPS if is_few and is_small else _LEAST_STEPS
    reason = (
        f"At least {least_steps:,} steps. An epoch of {count(facts.training_frames, 'training frame')} is "
        f"{count(epoch_steps, 'step')}, and {_EPOCHS} epochs would be {count(_EPOCHS * epoch_steps, 'step')}."
    )
    if is_few and is_small:
        reason += " With 10 labels, twice as many steps of this network gained little (benchmarks/pretrained.md)."
    elif is_few:
        reason += (
            " With 10 to 40 labels, training for longer gave smaller errors on most data sets (docs/few_labels.md)."
        )
    yield Choice("Length", reason, {"train.epochs": math.ceil(least_steps / epoch_steps)})


def validations(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields the validation interval, if a settled length has far more epochs than the default."""
    epochs = total_epochs(config.train, facts.training_frames)
    if epochs >= 2 * _EPOCHS and facts.training_frames < facts.frames:
        reason = f"About {_VALIDATIONS:.0f} validations, as many as the default {_EPOCHS} epochs have."
        yield Choice("Validation", reason, {"train.val_every_epochs": float(epochs // _VALIDATIONS)})


def schedule(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields a schedule for any length, if the default length is too short."""
    if _is_short(facts, config):
        reason = (
            "The rate falls along a cosine. By default it halves after 150, 200 and 250 epochs, whatever the length."
        )
        yield Choice("Schedule", reason, {"optim.schedule": "cosine"})


def checkpoint(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields keeping the last weights, if one frame would select them and the rate falls to 0."""
    train = config.train
    is_free = not train.early_stop_patience and train.monitor_mode == TrainConfig.monitor_mode
    if facts.validation_frames == 1 and config.optim.schedule == "cosine" and is_free:
        reason = (
            "The last weights are kept, because a single validation frame cannot tell which are best: with 10 and 20 "
            "labels, those of its lowest loss had larger errors in six of nine runs (docs/few_labels.md)."
        )
        yield Choice("Checkpoint", reason, {"train.monitor": NO_METRIC})


def rate(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields the learning rate for few labels, in the measured cases: random weights or the small network, cosine."""
    optim, has_default = config.optim, BACKBONES[config.model.backbone].learning_rate == OptimConfig.lr
    is_small = _is_small_network(config)
    is_known = (config.model.weights == NO_WEIGHTS or is_small) and not config.train.init_from
    is_measured = is_known and has_default and optim.name != "sgd" and optim.schedule == "cosine"
    if facts.training_frames <= FEW_FRAMES and is_measured and is_small:
        reason = (
            "With 20 labels, half this rate gave larger errors; twice this rate did not (benchmarks/pretrained.md)."
        )
        yield Choice("Learning rate", reason, {"optim.lr": _FEW_LABELS_LR})
    elif facts.training_frames <= FEW_FRAMES and is_measured:
        reason = (
            "Narrow networks (model.width=16) from random weights with 20 labels had smaller errors with "
            f"{_FEW_LABELS_LR} than with the default {OptimConfig.lr} on two of three data sets, and so had one of "
            "width 64 with 10 labels (benchmarks/few_labels.md)."
        )
        yield Choice("Learning rate", reason, {"optim.lr": _FEW_LABELS_LR})


def batch(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields the batch, and how many of its frames the GPU takes at once."""
    rule = f"{count(config.train.batch_size, 'frame')} make one update, on any number of devices."
    if not facts.gpu_gib:
        yield Choice("Batch", rule, {"train.batch_size": BATCH})
        return
    of_video = [term.stream for term in terms(config) if term.stream.is_video]
    clip_frames = sum(stream.per_step * stream.frames for stream in of_video)
    backbone = config.model.backbone
    most = largest_microbatch(backbone, facts.input_size_px, facts.gpu_gib, FRAMES_PER_SHARD, clip_frames)
    if most is None:
        fit = f"we have not measured how many fit at once for {backbone}"
    elif most == FRAMES_PER_SHARD:
        fit = f"by an estimate for {backbone}, the {most} that are computed at once fit"
    else:
        fits = f"{most} fits" if most == 1 else f"{most} fit"
        fit = f"by an estimate for {backbone}, {fits} into a pass (a different number makes a different run)"
    yield Choice(
        "Batch",
        f"{rule} On a GPU of {facts.gpu_gib:.0f} GiB, {fit}; --dry_run shows the needs of a step.",
        {"train.batch_size": BATCH, "train.microbatch_size": 0 if most in (None, FRAMES_PER_SHARD) else most},
    )


def _is_short(facts: Facts, config: Config) -> bool:
    """Returns whether the default epochs give too few steps, whatever length is given."""
    return _EPOCHS * steps_per_epoch(config.train, facts.training_frames) < _LEAST_STEPS


def make_choices(facts: Facts, config: Config, settled: list[str]) -> list[Choice]:
    """Returns the choices in page order.

    Args:
      facts: about the project and the machine.
      config: the settled options, and defaults for all others.
      settled: dotted names of the settled options; no choice touches them.

    Raises:
      UserError: a file or a folder of weights without a backbone.
    """
    config = copy.deepcopy(config)
    if not {"model.backbone", "model.weights"} & set(settled):
        config.model.weights = weights_for(facts, config)
    if "model.backbone" not in settled:
        config.model.backbone = backbone_for(facts, config)
    # Each rule sees the choices of earlier rules.
    rules = [_input, _split, _augment, network_choices, length, validations]
    if not {"optim.milestones_epochs", "optim.gamma"} & set(settled):
        rules.append(schedule)
    are_losses_given = any(re.fullmatch(r"losses\.\w+\.weight", name) for name in settled)
    rules += [checkpoint, rate, settings_of_losses if are_losses_given else losses_on_video, batch]
    found: list[Choice] = []
    for rule in rules:
        chosen = [
            dataclasses.replace(choice, options={name: v for name, v in choice.options.items() if name not in settled})
            for choice in rule(facts, config)
            if not set(choice.options) <= set(settled)
        ]
        config = apply(chosen, config)
        found += chosen
    given = {name: functools.reduce(getattr, name.split("."), config) for name in settled}
    return ([Choice("Given on the command line", "", given)] if given else []) + found


def apply(choices: list[Choice], config: Config) -> Config:
    """Returns a copy of a config with the options of the choices."""
    changed = copy.deepcopy(config)
    for choice in choices:
        for name, value in choice.options.items():
            *sections, option = name.split(".")
            setattr(functools.reduce(getattr, sections, changed), option, value)
    return changed


def _input(facts: Facts, config: Config) -> Iterator[Choice]:
    title, (width, height) = "Size of the network's input", facts.input_size_px
    is_free = not (config.data.input_width_px or config.data.input_height_px)
    is_measured = not facts.gpu_gib and facts.training_frames <= FEW_FRAMES and _is_small_network(config)
    if is_free and is_measured and max(facts.frame_size_px) <= _MEASURED_FRAME_PX:
        yield Choice(
            title,
            f"The frames have {facts.size()}. Without a GPU, 128 px suit frames of up to {_MEASURED_FRAME_PX} px: on a "
            "mouse in frames of 406 px, 192 px lowered the median error from 4.7 to 3.8 px and the mean error hardly, "
            "and took more than twice the time (benchmarks/pretrained.md).",
            {"data.input_width_px": 128, "data.input_height_px": 128},
        )
        return
    yield Choice(
        title,
        f"The frames have {facts.size()}. The rule: 128 px if the short side "
        "is below 192, 384 px if the long side is above 1024 and there are more than 500 labelled frames, else 256. "
        "A larger input locates small keypoints more exactly; time and memory grow with its area.",
        {"data.input_width_px": width, "data.input_height_px": height},
    )


def _split(facts: Facts, _: Config) -> Iterator[Choice]:
    few = "below 60 labelled frames, 5 % are for validation and there is no test set"
    many = "80 % train, 10 % choose the checkpoint, and 10 % are the test set"
    shares = few if facts.frames < 60 else many
    split = usual_split(facts.labelled_videos)
    if split == "video":
        reason = (
            f"The labels are from {facts.labelled_videos} videos. Whole videos are held out, because frames "
            "of one video "
            f"look alike, so the test error is that of new videos: {shares}."
        )
    else:
        reason = (
            f"By moments of video: {shares}. Labelled frames at most {NEAR_FRAMES} frames apart look alike and stay in "
            f"one set. Labels of {VIDEOS_TO_SPLIT_BY} videos or more would be split by video."
        )
    yield Choice("Split", reason, {"data.split": split})


def _augment(facts: Facts, config: Config) -> Iterator[Choice]:
    if config.data.views:
        reason = "dlc-mv changes the light but moves no pixels, so it preserves the geometry between the cameras."
        yield Choice("Augmentation", reason, {"augment.preset": "dlc-mv"})
        return
    yield Choice(
        "Augmentation",
        "Rotation, elastic fields, crops, blur and changes of light. If the camera looks down on an animal that turns "
        "to all sides, set dlc-top-down.",
        {"augment.preset": "dlc"},
    )
    pairs, problem = left_right_pairs(facts.keypoint_names)
    if views := mirrored_views(facts.keypoint_names):
        yield Choice(
            "Mirrored views",
            f"By the names, a frame shows {len(views)} views of one body, as in a mirror: "
            f"{'; '.join(', '.join(view) for view in views)}. A flip would create impossible poses, so flips are off.",
            {"data.mirror_views": True},
        )
    elif pairs:
        yield Choice(
            "Flips",
            "These keypoints are pairs by their names. Half of the frames are flipped, and the pairs swapped. "
            "Set flip_p to 0 if the arena has a left and a right side.",
            {"data.flip_pairs": pairs, "augment.flip_p": 0.5},
        )
    else:
        yield Choice("Flips", f"None: {problem}. Name pairs in data.flip_pairs to flip.", {"augment.flip_p": 0.0})


# The text of a config file: each choice below its reason.

_WIDTH = 116


def page(choices: list[Choice], facts: Facts, project: str, file: str) -> str:
    """Returns the text of the file.

    Args:
      choices: in page order.
      facts: for the first lines.
      project: absolute path of the project.
      file: the file name, for commands in the text.
    """
    # For use inside triple quotes.
    shown = shlex.quote(file).replace("\\", "\\\\").replace('"', '\\"')
    lines = [
        *textwrap.wrap(f'"""A config for one project: {facts.sentence()}.', _WIDTH),
        "",
        f"Written by jaxpose {__version__}. Each choice has its reason: change it if you know better. All",
        "other options have their defaults; jaxpose train --help_options lists them.",
        "",
        f"Command:  jaxpose train --config {shown} --dry_run    (checks the data, shows the cost of a step)",
        f"          jaxpose train --config {shown}",
        '"""',
        "",
        "from jaxpose.config import Config",
        "",
        "",
        f"def get_config(project: str = {_literal(project)}) -> Config:",
        '    """Returns the config."""',
        "    config = Config()",
        "    config.data.project = project",
    ]
    for choice in choices:
        comment = f"{choice.title}. {choice.reason}".strip()
        lines += ["", *textwrap.wrap(comment, _WIDTH, initial_indent="    # ", subsequent_indent="    # ")]
        for name, value in choice.options.items():
            lines += _assignment(name, value)
    return "\n".join([*lines, "    return config", ""])


def _literal(value: Any) -> str:
    """Returns a value as Python text, with double quotes."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _assignment(name: str, value: Any) -> list[str]:
    line = f"    config.{name} = {_literal(value)}"
    if len(line) <= _WIDTH or not isinstance(value, tuple):
        return [line]
    return [f"    config.{name} = (", *[f"        {_literal(entry)}," for entry in value], "    )"]
