"""A start from the weights of another run: which frames may measure it, and how fast its backbone learns."""

from pathlib import Path

from jaxpose.config import OptimConfig
from jaxpose.data.dataset import Dataset, sets_in_run
from jaxpose.training.optim import rest_epochs
from jaxpose.training.run_identity import SPLIT_FILE
from jaxpose.training.step import Plan


def refuse_trained_frames(run: Path, data: Dataset) -> list[str]:
    """Refuses to measure a network on frames that the run it starts from was trained on.

    Args:
      run: the run folder that gives the first weights.
      data: the frames and their sets.

    Returns:
      A sentence where the run does not tell its frames, else none.

    Raises:
      ValueError: a frame (same path, same bytes) trained there and validates or tests here.
    """
    file = run / SPLIT_FILE
    if not file.is_file():
        return [f"{file} is absent: frames that {run} was trained on may validate or test here, which is not checked"]
    trained = sets_in_run(data.project, file) == "train"
    counts = {name: int((trained & (data.sets == name)).sum()) for name in ("validation", "test")}
    if not any(counts.values()):
        return []
    found = " and ".join(
        f"{count} of the {len(data.rows(name))} {name} frames" for name, count in counts.items() if count
    )
    raise ValueError(
        f"train.init_from is {run}, which was trained on {found}: their errors would be too small. "
        f"--config.data.split={run} keeps each of its frames in its set"
    )


def describe_backbone_rate(optim: OptimConfig, plan: Plan) -> str:
    """Returns how the backbone's learning rate goes by the head's, a line."""
    rest = rest_epochs(optim, plan.has_new_head)
    rest_steps = rest * plan.steps_per_epoch
    why = f"optim.unfreeze_epoch = {optim.unfreeze_epoch}"
    if optim.unfreeze_epoch < 0:
        why += f": {rest} epochs, as a part of the head is new"
    if rest_steps >= plan.total_steps:
        return f"rate 0 in all {plan.total_steps} steps ({why}); optim.unfreeze_epoch=0 trains it from the first step"
    highest = optim.backbone_lr_factor
    begins = min(optim.unfreeze_factor, highest)
    rate = f"{begins:g} of the head's rate"
    if begins < highest and optim.unfreeze_growth > 1:
        rate += f", times {optim.unfreeze_growth:g} an epoch up to {highest:g} of it"
    return f"rate 0 up to step {rest_steps} ({why}), then {rate}" if rest_steps else f"{rate}, from the first step on"
