"""The choices for few labelled frames: a training that is long enough, its learning rate, and a teacher on video.

The figures are of benchmarks/few_labels.py, on small networks from random weights with 10 to 40 labels.
"""

import math
from collections.abc import Iterator

from jaxpose.config import Config
from jaxpose.config.model import VITS
from jaxpose.config.train import FEW_LABELS_STEPS, TrainConfig, steps_per_epoch, total_steps
from jaxpose.config.weights import NO_WEIGHTS
from jaxpose.data.shares import most_training_frames, sizes_by_frame
from jaxpose.init.choice import Choice
from jaxpose.init.facts import Facts

# With the default batch, the epochs of more training frames than these are as many steps.
_MOST_FRAMES, _EPOCHS = 64, TrainConfig.epochs
_LR = 2e-3
_VALIDATIONS = 60


def has_few_labels(facts: Facts, config: Config) -> bool:
    """Returns whether so few frames train that the usual number of epochs is too few steps."""
    return _training_frames(facts, config) <= _MOST_FRAMES


def has_teacher(facts: Facts, config: Config) -> bool:
    """Returns whether the loss `consistency` is chosen: where it was measured, if the machine and network allow it."""
    possible = config.model.kind == "heatmap" and config.optim.ema_decay != 0 and not config.data.views
    return bool(facts.videos and facts.gpu_gib) and possible and has_few_labels(facts, config)


def teacher(facts: Facts, config: Config, title: str) -> Choice:
    """Returns the choice of the loss `consistency`, with the title of all losses on video."""
    steps = total_steps(config.train, _training_frames(facts, config))
    return Choice(
        title,
        "The network also learns what its moving average predicts in easier views of unlabelled frames, and parts of "
        "all frames are moved. With 10 to 40 labels this lowered the error on three data sets (docs/few_labels.md). "
        "It counts after a fifth of the training, and fully after three fifths. A step costs 2 to 2.5 times as much.",
        {
            "losses.consistency.weight": 1.0,
            "losses.consistency.start_steps": steps // 5,
            "losses.consistency.ramp_steps": 2 * steps // 5,
            "augment.move_p": 0.5,
        },
    )


def epochs(facts: Facts, config: Config) -> int:
    """Returns the length of the training."""
    if not has_few_labels(facts, config):
        return _EPOCHS
    return max(_EPOCHS, math.ceil(FEW_LABELS_STEPS / steps_per_epoch(config.train, _training_frames(facts, config))))


def length(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields the length of the training, `config.train.epochs`, and what follows from it."""
    few = has_few_labels(facts, config)
    options: dict[str, int | float] = {"train.epochs": config.train.epochs}
    if few:
        options["train.val_every_epochs"] = max(5.0, float(config.train.epochs // _VALIDATIONS))
    if not config.train.steps:
        yield Choice(
            "Length",
            f"{_EPOCHS} epochs, and at least {FEW_LABELS_STEPS:,} steps: an epoch of few frames is one step or two, "
            "and with 10 to 40 labels more steps had smaller errors (docs/few_labels.md). If the camera looks down on "
            "the animal: 500 epochs, or 1000.",
            options,
        )
    if few:
        reason = "The rate falls along a cosine, however long the training is."
        yield Choice("Schedule", reason, {"optim.schedule": "cosine"})
        if config.model.weights == NO_WEIGHTS and config.model.backbone not in VITS:
            reason = f"From random weights, {_LR:g} was better than the default, 1e-3 (benchmarks/README.md)."
            yield Choice("Learning rate", reason, {"optim.lr": _LR})


def _training_frames(facts: Facts, config: Config) -> int:
    if facts.frames < 2:
        # It cannot be divided, and the training says so.
        return 1
    # A split by video has about as many.
    frames, _, _ = sizes_by_frame(config.data, facts.frames)
    return min(frames, most_training_frames(config.data.train_frames, frames))
