"""How long to train, on how much at once, from which weights, and when to validate, save and stop."""

import dataclasses

from jaxpose.config.option import Section, option
from jaxpose.errors import UserError

# Metrics that a run logs: of a validation, and of a training step.
METRICS = (
    "val_loss", "val_mean_px_error", "loss", "gradient_norm", "learning_rate", "backbone_learning_rate", "targets",
    "skipped_in_row",
)  # fmt: skip
# As train.monitor.
NO_METRIC = "none"


@dataclasses.dataclass
class TrainConfig(Section):
    batch_size: int = option(16, "labelled frames per update, over all devices and hosts", minimum=1, common=True)
    microbatch_size: int = option(0, "frames per pass, over all devices; 0 = the whole batch", minimum=0, common=True)
    shards: int = option(
        0,
        "parts of a pass that are computed alike on any devices, so that results have the same bits on any number of "
        "devices and processes. 0 = one for every 8 frames of a pass or, with the batch norm model.norm=sync, none. "
        "-1 = none: one part for each device; results are then equal up to rounding",
        minimum=-1,
        maximum=1024,
    )
    epochs: int = option(
        300, "length of the training in epochs of ceil(frames / batch_size) steps", minimum=0, common=True
    )
    steps: int = option(0, "length of the training in steps; replaces epochs if above 0", minimum=0, common=True)
    seed: int = option(0, "seed of the initial weights and of the augmentation", minimum=0, common=True)
    members: int = option(
        1,
        "networks of an ensemble, trained side by side on the same batches: member m is the run with "
        "train.seed + m, in members/m of the run folder. 1 = a single network",
        minimum=1,
        maximum=64,
        common=True,
    )
    precision: str = option(
        "f32",
        "arithmetic of the network: f32 (exact), tf32, bf16, or f64 (for checks, CPU only)",
        choices=("f32", "tf32", "bf16", "f64"),
        common=True,
    )
    init_from: str = option(
        "",
        "run folder to take all initial weights from, of backbone and head; keypoints are matched by name. For the "
        "backbone alone: model.weights",
        is_path=True,
        common=True,
    )
    val_every_epochs: float = option(
        5.0,
        "epochs (also fractions) between validations; rounded to steps, at least one",
        minimum=1e-6,
        common=True,
    )
    monitor: str = option(
        "val_loss",
        "metric that selects the best checkpoint and decides when to stop early. none = the last weights are kept",
        choices=(*METRICS, NO_METRIC),
    )
    monitor_mode: str = option("min", "whether a smaller (min) or larger (max) value is better", choices=("min", "max"))
    early_stop_patience: int = option(
        0, "stop after this many validations without improvement; 0 = never", minimum=0, common=True
    )
    save_every_minutes: float = option(
        3.0, "minutes between checkpoints, which are written while training continues", minimum=0.0, harmless=True
    )
    save_every_steps: int = option(
        0,
        "steps between checkpoints; training waits until each is written. Replaces the minutes if above 0",
        minimum=0,
        harmless=True,
    )
    max_skipped_steps: int = option(10, "number of non-finite steps in a row that stops the run", minimum=1)


def steps_per_epoch(train: TrainConfig, frames: int) -> int:
    """Returns the number of steps that see every training frame once."""
    return -(-frames // train.batch_size)


def steps_between_validations(train: TrainConfig, epoch_steps: int) -> int:
    """Returns the number of steps from one validation to the next."""
    return max(1, round(train.val_every_epochs * epoch_steps))


def chooses_by_validation(monitor: str) -> bool:
    """Returns whether the metric `monitor` is one of the validation frames."""
    return monitor.startswith("val_")


def keeps_last(train: TrainConfig, has_validation: bool) -> bool:
    """Returns whether a run keeps its last weights, because no metric chooses, or none of frames that there are."""
    return train.monitor == NO_METRIC or (chooses_by_validation(train.monitor) and not has_validation)


def refuse_blind_stop(train: TrainConfig, has_validation: bool) -> None:
    """Raises UserError if early stopping is on, but there are no validation frames that could stop a run."""
    if train.early_stop_patience and not has_validation and keeps_last(train, has_validation):
        raise UserError(
            f"train.early_stop_patience is {train.early_stop_patience}, but there are no validation frames: "
            "raise data.val_share, check data.split, or set train.early_stop_patience to 0"
        )


def total_steps(train: TrainConfig, frames: int) -> int:
    """Returns the length of a training in steps."""
    return train.steps or train.epochs * steps_per_epoch(train, frames)


def total_epochs(train: TrainConfig, frames: int) -> float:
    """Returns the length of a training in epochs."""
    return total_steps(train, frames) / steps_per_epoch(train, frames)
