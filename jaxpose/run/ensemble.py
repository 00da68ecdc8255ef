"""Runs whose predictions can be combined."""

from collections.abc import Sequence
from pathlib import Path

from jaxpose.config import Config
from jaxpose.errors import UserError


def refuse_other_keypoints(runs: Sequence[Path], configs: Sequence[Config]) -> None:
    """Checks that the predictions of runs can be combined.

    Args:
      runs: run folders, as the user named them.
      configs: theirs.

    Raises:
      UserError: a run is named twice, or the runs differ in keypoints or views.
    """
    if len({run.resolve() for run in runs}) < len(runs):
        raise UserError(f"--run names a run twice: {', '.join(map(str, runs))}")
    for run, config in zip(runs, configs, strict=True):
        for option, noun in (("keypoint_names", "keypoints"), ("views", "views")):
            first, other = getattr(configs[0].data, option), getattr(config.data, option)
            if first != other and set(first) == set(other):
                raise UserError(f"{run} has the {noun} of {runs[0]} in another order; predict with runs of one order")
            if first != other:
                alone = [", ".join(name for name in names if name not in both) or "none" for names, both in
                         ((first, other), (other, first))]  # fmt: skip
                raise UserError(f"the runs have other {noun}: only {runs[0]} has {alone[0]}, only {run} has {alone[1]}")
