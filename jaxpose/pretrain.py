"""Pretrains a backbone on the videos of a project, without labels: `jaxpose pretrain PROJECT`."""

if __name__ == "__main__":
    # This comes before the imports below, which take seconds.
    from jaxpose.__main__ import start

    start("pretrain")

import dataclasses
from typing import Any, Literal

from jaxpose.config import Config
from jaxpose.config.command_line import Options
from jaxpose.train import run, train

# An epoch of all video frames is far longer than one of labelled frames, and a fresh backbone has nothing to preserve.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "pretrain": {"method": "masked"},
    "train": {"steps": 3000},
    "optim": {"schedule": "cosine", "unfreeze_epoch": 0, "unfreeze_factor": 1.0},
}


def pretrain(config: Config, *, dry_run: bool | Literal["memory"] = False) -> dict[str, Any]:
    """Trains a backbone on the frames of a project's videos and writes the run folder; see `train`.

    Args:
      config: the options; not changed. See `as_pretraining` for those that are filled in.
      dry_run: as in `train`.

    Returns:
      The run's summary, as `train` returns it, without sets.

    Raises:
      UserError, Diverged, UnusableClips: as `train` does.
    """
    return train(as_pretraining(config), dry_run=dry_run)


def as_pretraining(config: Config) -> Config:
    """Returns a copy in which options at their defaults get a pretraining's defaults: see `_DEFAULTS`."""
    changed = config
    for section, own in _DEFAULTS.items():
        given, usual = getattr(config, section), getattr(Config(), section)
        fitting = {name: value for name, value in own.items() if getattr(given, name) == getattr(usual, name)}
        if section == "train" and given.epochs != usual.epochs:
            fitting = {}
        changed = dataclasses.replace(changed, **{section: dataclasses.replace(given, **fitting)})
    return changed


def main(config: Config, options: Options) -> int:
    """Runs the verb, as one of several processes if the environment says so, and returns its exit code."""
    return run("jaxpose.pretrain", as_pretraining(config), options)
