"""The choices for the length of a training, its learning rate and its batch.

The figures are of benchmarks/few_labels.py: small networks from random weights, with 10 to 40 labels.
"""

import math
from collections.abc import Iterator

from jaxpose.config import Config
from jaxpose.config.check import FRAMES_PER_SHARD
from jaxpose.config.model import BACKBONES
from jaxpose.config.optim import OptimConfig
from jaxpose.config.terms import terms
from jaxpose.config.train import NO_METRIC, TrainConfig, steps_per_epoch, total_epochs
from jaxpose.config.weights import NO_WEIGHTS
from jaxpose.init.choice import BATCH, FEW_FRAMES, Choice
from jaxpose.init.facts import Facts
from jaxpose.init.memory import largest_microbatch
from jaxpose.quantities import count

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
    reason = (
        f"At least {_LEAST_STEPS:,} steps. An epoch of {count(facts.training_frames, 'training frame')} is "
        f"{count(epoch_steps, 'step')}, and {_EPOCHS} epochs would be {count(_EPOCHS * epoch_steps, 'step')}."
    )
    if facts.training_frames <= FEW_FRAMES:
        reason += (
            " With 10 to 40 labels, training for longer gave smaller errors on most data sets (docs/few_labels.md)."
        )
    yield Choice("Length", reason, {"train.epochs": math.ceil(_LEAST_STEPS / epoch_steps)})


def validations(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields the time between validations, if a training of a settled length has far more epochs than the default."""
    epochs = total_epochs(config.train, facts.training_frames)
    if epochs >= 2 * _EPOCHS and facts.training_frames < facts.frames:
        reason = f"About {_VALIDATIONS:.0f} validations, as many as the default {_EPOCHS} epochs have."
        yield Choice("Validation", reason, {"train.val_every_epochs": float(epochs // _VALIDATIONS)})


def schedule(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields a schedule that fits any length, if the default length is too short."""
    if _is_short(facts, config):
        reason = (
            "The rate falls along a cosine. By default it halves after 150, 200 and 250 epochs, whatever the length."
        )
        yield Choice("Schedule", reason, {"optim.schedule": "cosine"})


def checkpoint(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields that the last weights are kept, if one frame would choose them, and the rate falls to 0."""
    train = config.train
    is_free = not train.early_stop_patience and train.monitor_mode == TrainConfig.monitor_mode
    if facts.validation_frames == 1 and config.optim.schedule == "cosine" and is_free:
        reason = (
            "The last weights are kept, because a single validation frame cannot tell which are best: with 10 and 20 "
            "labels, those of its lowest loss had larger errors in six of nine runs (docs/few_labels.md)."
        )
        yield Choice("Checkpoint", reason, {"train.monitor": NO_METRIC})


def rate(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields the learning rate for few labels, for the kind that was measured: ResNets from random weights, cosine."""
    is_random = config.model.weights == NO_WEIGHTS and not config.train.init_from
    optim, has_default = config.optim, BACKBONES[config.model.backbone].learning_rate == OptimConfig.lr
    is_measured = is_random and has_default and optim.name != "sgd" and optim.schedule == "cosine"
    if facts.training_frames <= FEW_FRAMES and is_measured:
        reason = (
            "Narrow networks (model.width=16) from random weights with 20 labels had smaller errors with "
            f"{_FEW_LABELS_LR} than with the default {OptimConfig.lr} on two of three data sets, and so had one of "
            "width 64 with 10 labels (benchmarks/few_labels.md)."
        )
        yield Choice("Learning rate", reason, {"optim.lr": _FEW_LABELS_LR})


def batch(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields the batch, and how many of its frames the GPU computes at once."""
    rule = f"{count(config.train.batch_size, 'frame')} make one update, on any number of devices."
    if not facts.gpu_gib:
        yield Choice("Batch", rule, {"train.batch_size": BATCH})
        return
    of_video = [term.stream for term in terms(config) if term.stream.is_video]
    clip_frames = sum(stream.per_step * stream.frames for stream in of_video)
    backbone = config.model.backbone
    most = largest_microbatch(backbone, facts.input_size_px, facts.gpu_gib, FRAMES_PER_SHARD, clip_frames)
    if most is None:
        fit = f"how many fit at once was not measured for {backbone}"
    elif most == FRAMES_PER_SHARD:
        fit = f"the {most} that are computed at once fit, by an estimate for {backbone}"
    else:
        fits = f"{most} fits" if most == 1 else f"{most} fit"
        fit = f"{fits} into a pass (another number is another run), by an estimate for {backbone}"
    yield Choice(
        "Batch",
        f"{rule} On a GPU of {facts.gpu_gib:.0f} GiB, {fit}; --dry_run shows what a step needs.",
        {"train.batch_size": BATCH, "train.microbatch_size": 0 if most in (None, FRAMES_PER_SHARD) else most},
    )


def _is_short(facts: Facts, config: Config) -> bool:
    """Returns whether the default number of epochs is too few steps, whatever length is given."""
    return _EPOCHS * steps_per_epoch(config.train, facts.training_frames) < _LEAST_STEPS
