"""How the gradient moves the parameters. Time is counted in optimizer steps; epochs are a way to write a number."""

import dataclasses

from jaxpose.config.option import Section, option


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
        "multistep: epochs (also fractions) after which the learning rate is multiplied by optim.gamma",
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
    decay_norm_and_bias: bool = option(False, "adamw: decay norms and biases too")
    backbone_lr_factor: float = option(1.0, "the backbone's final rate divided by the head's", minimum=0.0)
    unfreeze_epoch: int = option(
        -1,
        "the backbone's rate is 0 before this epoch; -1 = 20 if a run from loaded weights has a part of the head new, "
        "else 0",
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
        "0.99 with losses.consistency, whose teacher it is, else 0",
        minimum=0.0,
        maximum=1.0,
    )
