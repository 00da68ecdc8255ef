"""The choices for unlabelled video: the losses on it."""

from collections.abc import Iterator

from jaxpose.config import Config
from jaxpose.config.losses import LossesConfig, weights
from jaxpose.config.train import TrainConfig, total_epochs, total_steps
from jaxpose.init.choice import FEW_FRAMES, Choice
from jaxpose.init.facts import Facts
from jaxpose.init.names import mirrored_views
from jaxpose.quantities import count

_TITLE = "Losses on video"
_OFTEN_LABELLED = 0.5
# Of the benchmark in configs/semi_supervised.py.
_WEIGHT = 3e-4
_JUMPS = f"With a weight of {_WEIGHT:g}, losses.temporal penalises jumps of the predictions."
# Of benchmarks/few_labels.py.
_MOVE_P = 0.5


def losses_on_video(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields losses on video: with few labels the consistency of a student with its teacher, else those on clips."""
    if not facts.videos:
        reason = f"Off: the project has no videos. {_JUMPS}"
        yield Choice(_TITLE, reason, {"losses.temporal.weight": 0.0})
        return
    few = facts.training_frames <= FEW_FRAMES and _can_have_a_teacher(config)
    if not facts.gpu_gib:
        also = f" With few labels, losses.consistency.weight=1 and augment.move_p={_MOVE_P} may be worth that." * few
        reason = f"Off: without a GPU, a step would take twice as long. {_JUMPS}{also}"
        yield Choice(_TITLE, reason, {"losses.temporal.weight": 0.0})
    elif few:
        yield from _consistency(facts, config)
    else:
        yield from _on_clips(facts, config)
        yield from _start(facts, config)


def settings_of_losses(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields the settings of the losses on clips whose weights are given."""
    on = weights(config.losses)
    for choice in _on_clips(facts, config):
        if any(f"losses.{name}.weight" in choice.options for name in on):
            yield choice
    if on:
        yield from _start(facts, config)


def _can_have_a_teacher(config: Config) -> bool:
    # Several cameras and context frames can, but were not measured.
    return config.model.kind == "heatmap" and not config.data.views and config.optim.ema_decay != 0


def _consistency(facts: Facts, config: Config) -> Iterator[Choice]:
    steps = total_steps(config.train, facts.training_frames)
    yield Choice(
        "A teacher on unlabelled video",
        "The network also learns, in harder views of unlabelled frames, what the moving average of its weights "
        "predicts in easier ones. Together with moved parts, this lowered the errors of narrow networks "
        "(model.width=16) from random weights with 10 labels on three data sets, and with 20 on most of them; those of "
        "networks of width 64 with 10 labels on two (docs/few_labels.md). A step costs 2 to 3 times as much. A weight "
        "of 0 switches the loss off.",
        {
            "losses.consistency.weight": 1.0,
            "losses.consistency.start_steps": steps // 5,
            "losses.consistency.ramp_steps": 2 * steps // 5,
        },
    )
    reason = (
        "Parts of a frame change their place in it, so that the network does not learn the few labelled poses alone."
    )
    yield Choice("Moved parts", reason, {"augment.move_p": _MOVE_P})


def _on_clips(facts: Facts, config: Config) -> Iterator[Choice]:
    yield Choice(
        f"{_TITLE}: jumps",
        "Predictions that jump between two frames cost something beyond epsilon_px: 5 % of the long side here. Choose "
        "it above what the animal really moves from frame to frame. A weight of 0 switches a loss off.",
        {
            "losses.temporal.weight": _WEIGHT,
            "losses.temporal.epsilon_px": (float(max(5, round(0.05 * max(facts.frame_size_px)))),),
        },
    )
    known = f"{count(facts.training_frames, 'training frame')}, {count(len(facts.keypoint_names), 'keypoint')}"
    if facts.training_frames < 2 * len(facts.keypoint_names):
        reason = f"Off: to learn poses takes at least twice as many training frames as keypoints ({known})."
        yield Choice(f"{_TITLE}: poses", reason, {"losses.pca_singleview.weight": 0.0})
        return
    if config.data.views or mirrored_views(facts.keypoint_names):
        yield Choice(
            f"{_TITLE}: agreement of the views",
            f"Views of a point in space have 3 dimensions; predictions that leave them cost something ({known}).",
            {"losses.pca_multiview.weight": _WEIGHT, "losses.pca_multiview.components": 3},
        )
    if not config.data.views:
        yield _poses(facts, known)


def _start(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields when the losses on clips begin, if a training has far more epochs than the default."""
    epochs = total_epochs(config.train, facts.training_frames)
    if epochs >= 2 * TrainConfig.epochs:
        longer = epochs / TrainConfig.epochs
        reason = (
            "They begin, and grow to their weights, in the same parts of the training as with the default "
            f"{TrainConfig.epochs} epochs: the network must predict well first."
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
    more = f" Keypoints that less than half of the frames have are left out: {left_out}." if left_out else ""
    return Choice(
        f"{_TITLE}: poses",
        f"Poses unlike any labelled one cost something; there are enough labels to know them ({known}).{more} Name the "
        "keypoints of the body alone if there are others, such as obstacles.",
        {"losses.pca_singleview.weight": _WEIGHT, "losses.pca_singleview.keypoints": often if left_out else ()},
    )
