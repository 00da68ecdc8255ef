"""A start from the weights of another run: which frames may measure it, and how fast its backbone learns."""

from pathlib import Path

import numpy as np

from jaxpose.config import OptimConfig
from jaxpose.data.dataset import Dataset
from jaxpose.data.split import read_split
from jaxpose.run.identity import SPLIT_FILE
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.optim import rest_epochs


def refuse_trained_frames(run: Path, data: Dataset) -> tuple[dict[str, str], list[str]]:
    """Refuses to measure a network on frames that the run it starts from, or one before that, was trained on.

    Args:
      run: the run folder that gives the first weights.
      data: the frames and their sets.

    Returns:
      {SHA-256: path} of images that trained those weights and do not train here, and a sentence where the run does not
      tell its frames.

    Raises:
      ValueError: a frame (same bytes) trained there and validates or tests here.
    """
    file = run / SPLIT_FILE
    if not file.is_file():
        absent = f"{file} is absent: frames that {run} was trained on may validate or test here, which is not checked"
        return {}, [absent]
    known = read_split(file, is_of_run=True)
    images, checksums = data.project.images, data.project.checksums
    # An image that lies twice in a project may train and test: where that run knew it so, it is no news.
    trained = np.array(
        [
            checksum in known.trained_before or known.set_of_same(image, checksum) == "train"
            for image, checksum in zip(images, checksums, strict=True)
        ]
    )
    counts = {name: int((trained & (data.sets == name)).sum()) for name in ("validation", "test")}
    if any(counts.values()):
        found = " and ".join(
            f"{count} of the {len(data.rows(name))} {name} frames" for name, count in counts.items() if count
        )
        raise ValueError(
            f"train.init_from is {run}, which was trained on {found}: their errors would be too small. "
            f"--config.data.split={run} keeps each of its frames in its set"
        )
    here = {checksums[row] for row in data.rows("train")}
    return {checksum: image for checksum, image in known.trained().items() if checksum not in here}, []


def describe_backbone_rate(optim: OptimConfig, facts: DataFacts) -> str:
    """Returns how the backbone's learning rate goes by the head's, a line."""
    rest = rest_epochs(optim, facts.has_new_head)
    rest_steps = rest * facts.steps_per_epoch
    why = f"optim.unfreeze_epoch = {optim.unfreeze_epoch}"
    if optim.unfreeze_epoch < 0:
        why += f": {rest} epochs, as a part of the head is new"
    if rest_steps >= facts.total_steps:
        return f"rate 0 in all {facts.total_steps} steps ({why}); optim.unfreeze_epoch=0 trains it from the first step"
    highest = optim.backbone_lr_factor
    begins = min(optim.unfreeze_factor, highest)
    rate = f"{begins:g} of the head's rate"
    if begins < highest and optim.unfreeze_growth > 1:
        rate += f", times {optim.unfreeze_growth:g} an epoch up to {highest:g} of it"
    return f"rate 0 up to step {rest_steps} ({why}), then {rate}" if rest_steps else f"{rate}, from the first step on"
