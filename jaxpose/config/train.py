"""Options of the training: length, batch, initial weights, validation, saving, stopping, optimizer and devices."""

import dataclasses

from jaxpose.config.option import Section, option
from jaxpose.errors import UserError

# Metrics that a run logs in a validation, and in a training step.
METRICS = (
    "val_loss", "val_mean_px_error", "loss", "gradient_norm", "learning_rate", "backbone_learning_rate", "targets",
    "skipped_in_row",
)  # fmt: skip
# A value of train.monitor.
NO_METRIC = "none"


@dataclasses.dataclass
class TrainConfig(Section):
    batch_size: int = option(
        16,
        "labelled frames (model.kind=multiview: moments) per update, over all devices and hosts",
        minimum=1,
        common=True,
    )
    microbatch_size: int = option(0, "frames per pass, over all devices; 0 = the whole batch", minimum=0, common=True)
    shards: int = option(
        0,
        "number of parts into which a pass is divided, so that results have the same bits on any number of devices "
        "and processes. 0 = one for every 8 frames of a pass or, with the batch norm model.norm=sync, none. -1 = "
        "none: one part for each device; results are then equal up to rounding",
        minimum=-1,
        maximum=1024,
    )
    epochs: int = option(300, "length of training in epochs of ceil(frames / batch_size) steps", minimum=0, common=True)
    steps: int = option(0, "length of training in steps; replaces epochs if above 0", minimum=0, common=True)
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
        "run folder with the initial weights of backbone and head; keypoints are matched by name. For the backbone "
        "only, use model.weights",
        is_path=True,
        common=True,
    )
    val_every_epochs: float = option(
        5.0,
        "epochs (fractions allowed) between validations; rounded to steps, at least one",
        minimum=1e-6,
        common=True,
    )
    monitor: str = option(
        "val_loss",
        "metric that selects the best checkpoint and triggers early stopping. none = keep the last weights",
        choices=(*METRICS, NO_METRIC),
    )
    monitor_mode: str = option("min", "whether a smaller (min) or larger (max) value is better", choices=("min", "max"))
    early_stop_patience: int = option(
        0, "stop after this many validations without improvement; 0 = never", minimum=0, common=True
    )
    save_every_minutes: float = option(
        3.0, "minutes between checkpoints; training continues while they are written", minimum=0.0, harmless=True
    )
    save_every_steps: int = option(
        0,
        "steps between checkpoints; training waits until each is written. Replaces the minutes if above 0",
        minimum=0,
        harmless=True,
    )
    max_skipped_steps: int = option(10, "stop the run after this many non-finite steps in a row", minimum=1)


def steps_per_epoch(train: TrainConfig, frames: int) -> int:
    """Returns the number of steps that see every training frame once."""
    return -(-frames // train.batch_size)


def steps_between_validations(train: TrainConfig, epoch_steps: int) -> int:
    """Returns the number of steps from one validation to the next."""
    return max(1, round(train.val_every_epochs * epoch_steps))


def chooses_by_validation(monitor: str) -> bool:
    """Returns whether the metric `monitor` is measured on validation frames."""
    return monitor.startswith("val_")


def keeps_last(train: TrainConfig, has_validation: bool) -> bool:
    """Returns whether a run keeps its last weights, because no metric chooses, or it has no frames to measure."""
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


# The optimizer. Time is counted in optimizer steps; options may give it in epochs.


@dataclasses.dataclass
class OptimConfig(Section):
    name: str = option("adam", "optimizer", choices=("adam", "adamw", "sgd"))
    lr: float = option(
        1e-3, "learning rate of the head, for a batch of optim.lr_reference_batch", minimum=0.0, common=True
    )
    lr_scale: str = option(
        "none",
        "factor of the learning rate: none = 1, linear = batch / reference batch, sqrt = the square root of that",
        choices=("none", "linear", "sqrt"),
    )
    lr_reference_batch: int = option(16, "batch size that optim.lr was chosen for", minimum=1)
    schedule: str = option(
        "multistep", "how the learning rate falls", choices=("constant", "multistep", "cosine"), common=True
    )
    milestones_epochs: tuple[float, ...] = option(
        (150.0, 200.0, 250.0),
        "multistep: epochs (fractions allowed) after which the learning rate is multiplied by optim.gamma",
        minimum=0.0,
        common=True,
    )
    gamma: float = option(0.5, "multistep: factor at each milestone", minimum=0.0)
    warmup_steps: int = option(0, "steps over which the learning rate rises linearly from 0", minimum=0)
    momentum: float = option(0.9, "sgd: momentum", minimum=0.0, maximum=1.0)
    beta1: float = option(0.9, "adam and adamw: decay of the mean gradient", minimum=0.0, maximum=1.0)
    beta2: float = option(0.999, "adam and adamw: decay of the mean squared gradient", minimum=0.0, maximum=1.0)
    epsilon: float = option(1e-8, "adam and adamw: added to the divisor", minimum=0.0)
    weight_decay: float = option(0.01, "adamw: weight decay", minimum=0.0)
    decay_norm_and_bias: bool = option(False, "adamw: also decay norms and biases")
    backbone_lr_factor: float = option(1.0, "the backbone's final rate divided by the head's", minimum=0.0)
    unfreeze_epoch: int = option(
        -1,
        "the backbone's rate is 0 before this epoch; -1 = 20 if weights are loaded but part of the head is new, else 0",
        minimum=-1,
        common=True,
    )
    unfreeze_factor: float = option(0.1, "the backbone's rate divided by the head's at that epoch", minimum=0.0)
    unfreeze_growth: float = option(1.5, "growth of that factor per epoch, up to backbone_lr_factor", minimum=1.0)
    clip_norm: float = option(
        0.0, "a gradient with a larger norm is scaled down to this norm; 0 = no limit", minimum=0.0
    )
    ema_decay: float | None = option(
        None,
        "decay of the moving average of parameters and statistics that validation and prediction use; 0 = off. None: "
        "0.99 with losses.consistency, which uses it as the teacher, else 0",
        minimum=0.0,
        maximum=1.0,
    )


# The devices and processes of a run.

# The only axis of the device mesh; batches are sharded over it.
AXIS = "data"


@dataclasses.dataclass
class MeshConfig(Section):
    platform: str = option(
        "auto",
        "kind of device; if the machine has none of this kind, the run fails",
        choices=("auto", "cpu", "gpu", "tpu"),
        harmless=True,
        common=True,
    )
    devices: object = option(
        "auto",
        "auto = all; a number; a list such as '0,2' or '[1,3]'; a name 'gpu:1'; a glob 'GPU:*'; or 're:' and a regular "
        "expression that matches whole names",
        harmless=True,
        common=True,
    )
    deterministic: bool = option(False, "GPU: use only operations that repeat bit for bit (slower)", common=True)
    cpu_threads: int = option(
        0,
        "CPU: threads for the arithmetic of each process; the number affects the last bits. 0 = one for each allowed "
        "core or, with train.shards, 8",
        minimum=0,
        maximum=1024,
    )
    coordinator: str = option(
        "",
        "several processes: HOST:PORT of process 0; '' = from the environment",
        harmless=True,
    )
    processes: int = option(
        0, "number of processes; 0 = from the environment, 1 = only this one", minimum=0, harmless=True
    )
    process: int = option(-1, "index of this process; -1 = from the environment", minimum=-1, harmless=True)
    start_s: float = option(
        300.0, "several processes: seconds to wait for all processes to connect", minimum=1.0, harmless=True
    )
    heartbeat_s: float = option(
        30.0,
        "several processes: seconds of silence after which a process counts as lost and the run ends",
        minimum=1.0,
        harmless=True,
    )
