"""Runs whose predictions can be combined, and the members of an ensemble."""

from collections.abc import Sequence
from pathlib import Path

from jaxpose.config import Config
from jaxpose.errors import UserError
from jaxpose.run.identity import read_config
from jaxpose.run.paths import CONFIG_FILE, MEMBERS_FOLDER


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


def member_folders(run: Path, config: Config) -> list[Path]:
    """Returns the run folders of the members of an ensemble, in their order; [] for a run of one network.

    Args:
      run: the run folder.
      config: of this folder.
    """
    if config.train.members == 1:
        return []
    return [run / MEMBERS_FOLDER / str(number) for number in range(config.train.members)]


def with_members(runs: Sequence[Path]) -> list[Path]:
    """Returns run folders with the members of each ensemble in its place.

    Raises:
      UserError: the config of a run is damaged.
    """
    found = []
    for run in runs:
        config = read_config(run / CONFIG_FILE) if (run / CONFIG_FILE).is_file() else None
        found += (config and member_folders(run, config)) or [run]
    return found


def refuse_ensemble(run: Path, config: Config) -> None:
    """Raises UserError if a run folder holds an ensemble, where one network is needed."""
    if members := member_folders(run, config):
        raise UserError(
            f"{run} holds an ensemble of {len(members)} networks, and one network is needed: give one of them, such as "
            f"{members[0]}"
        )
