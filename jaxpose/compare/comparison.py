"""Compares runs on the labelled frames that none of them trained on."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.compare.bootstrap import Means, bootstrap_means, interval_px
from jaxpose.compare.run_errors import Frame, RunErrors, read_run_errors
from jaxpose.config import Config, differing_keys
from jaxpose.config.option import flat_options
from jaxpose.errors import UserError

_SEED = 0
_SEED_KEY = "train.seed"


@dataclasses.dataclass(frozen=True)
class Measured:
    """The errors of a run by column: each keypoint, then all keypoints together.

    Attributes:
      run: the folder.
      counts: (k + 1,) labelled points.
      means_px: (k + 1,) mean errors in frame pixels.
      interval_px: (2, k + 1) of the means.
      difference_px: (k + 1,) mean error minus that of the first run.
      difference_interval_px: (2, k + 1).
    """

    run: Path
    counts: np.ndarray
    means_px: np.ndarray
    interval_px: np.ndarray
    difference_px: np.ndarray
    difference_interval_px: np.ndarray


@dataclasses.dataclass(frozen=True)
class Seeds:
    """Runs that differ only in train.seed.

    Attributes:
      runs: their places among the compared runs.
      means_px: (k + 1,) means of the runs' mean errors.
      deviations_px: (k + 1,) standard deviations of the runs' mean errors, with one degree of freedom less than runs.
    """

    runs: list[int]
    means_px: np.ndarray
    deviations_px: np.ndarray


@dataclasses.dataclass(frozen=True)
class Frames:
    """How many frames were compared, and how many were not.

    Attributes:
      is_paired: whether all runs are measured on the same frames.
      compared: frames of each run.
      validated: those of `compared` that validated one of the runs, and so may have chosen its checkpoint.
      trained: frames left out because they trained one of the runs.
      not_shared: frames left out because a run lacks them.
      other_labels: those of `not_shared` whose image all runs have, with other labels.
      unknown: frames left out because they were labelled after a run was trained.
    """

    is_paired: bool
    compared: list[int]
    validated: int
    trained: int
    not_shared: int
    other_labels: int
    unknown: int


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What differs between runs.

    Attributes:
      options: {option: the value of each run}.
      keypoint_names: k names that all runs have.
      other_keypoints: names that only some of the runs have.
      frames: what was compared.
      measured: the errors of each run.
      seeds: groups of runs that differ only in their seed.
    """

    options: dict[str, list[Any]]
    keypoint_names: list[str]
    other_keypoints: list[str]
    frames: Frames
    measured: list[Measured]
    seeds: list[Seeds]


def compare(runs: Sequence[Path], test_only: bool = False) -> Comparison:
    """Compares finished runs by the tables in their folders.

    If the runs share held-out frames, all of them are measured on these, and differences are paired. If they share no
    frame, each is measured on its own.

    Args:
      runs: two or more run folders.
      test_only: leave out frames that validated one of the runs.

    Raises:
      UserError: fewer than two runs, or one twice; a folder is no run, or is not evaluated; no keypoint is in all
        runs; or no frame is left.
    """
    if len(runs) < 2 or len({run.resolve() for run in runs}) < len(runs):
        raise UserError(f"{', '.join(map(str, runs)) or 'no run'}: give two or more runs, each once")
    read = [read_run_errors(run) for run in runs]
    names = [name for name in read[0].keypoint_names if all(name in run.keypoint_names for run in read)]
    if not names:
        raise UserError(f"{runs[0]} has no keypoint in common with all other runs: {', '.join(read[0].keypoint_names)}")
    chosen, frames = _choose(read, test_only)
    errors = [_errors(run, of_run, names) for run, of_run in zip(read, chosen, strict=True)]
    if frames.is_paired:
        # A point that one run did not predict is left out for all.
        is_known = np.isfinite(errors).all(axis=0)
        errors = [np.where(is_known, of_run, np.nan) for of_run in errors]
    # The same seed draws the same frames.
    means = [bootstrap_means(of_run, _SEED + place * (not frames.is_paired)) for place, of_run in enumerate(errors)]
    others = dict.fromkeys(name for run in read for name in run.keypoint_names if name not in names)
    return Comparison(
        _differing(read),
        names,
        list(others),
        frames,
        [_measure(run.run, of_run, means[0]) for run, of_run in zip(read, means, strict=True)],
        _seeds(read, means),
    )


def _choose(read: list[RunErrors], test_only: bool) -> tuple[list[list[Frame]], Frames]:
    """Returns the frames on which each run is measured."""
    trained = frozenset[str]().union(*(run.trained for run in read))
    validated = frozenset[str]().union(*(run.validated for run in read))
    every = list(dict.fromkeys(frame for run in read for frame in run.frames))
    held = {frame.image_sha256 for frame in every}
    usable = [frame for frame in every if frame.image_sha256 not in (trained | validated if test_only else trained)]
    shared = [frame for frame in usable if all(frame in run.frames for run in read)]
    is_paired = bool(shared) or any(all(frame in run.frames for run in read) for frame in every)
    chosen = [shared if is_paired else [frame for frame in usable if frame in run.frames] for run in read]
    if not all(chosen):
        empty = next(run.run for run, frames in zip(read, chosen, strict=True) if not frames)
        what = "test frame" if test_only else "validation or test frame"
        raise UserError(
            f"{'the runs share' if is_paired else f'{empty} has'} no {what}: "
            f"{len(trained & held)} of {len(held)} frames trained one of the runs. "
            "Train with data.split=RUN, so that the runs have the same split"
        )
    kept = set(shared)
    missing = {frame.image_sha256 for frame in usable if is_paired and frame not in kept}
    images = [{frame.image_sha256 for frame in run.frames} for run in read]
    frames = Frames(
        is_paired=is_paired,
        compared=[len(of_run) for of_run in chosen],
        validated=len({frame for of_run in chosen for frame in of_run if frame.image_sha256 in validated}),
        trained=len(trained & held),
        not_shared=len(missing),
        other_labels=sum(all(image in of_run for of_run in images) for image in missing),
        unknown=sum(run.unknown for run in read),
    )
    return chosen, frames


def _errors(run: RunErrors, frames: list[Frame], names: list[str]) -> np.ndarray:
    """Returns the errors (n, k) of some frames and keypoints, in their order."""
    columns = [run.keypoint_names.index(name) for name in names]
    return run.errors_px[[run.frames[frame] for frame in frames]][:, columns]


def _measure(run: Path, means: Means, first: Means) -> Measured:
    fewest = np.minimum(means.counts, first.counts)
    return Measured(
        run,
        means.counts,
        means.means_px,
        interval_px(means.resampled_px, means.counts),
        means.means_px - first.means_px,
        interval_px(means.resampled_px - first.resampled_px, fewest),
    )


def _differing(read: list[RunErrors]) -> dict[str, list[Any]]:
    configs = [run.config for run in read]
    keys = dict.fromkeys(key for other in configs[1:] for key in differing_keys(configs[0], other))
    values = [flat_options(config) for config in configs]
    return {key: [of_run[key][1] for of_run in values] for key in flat_options(Config()) if key in keys}


def _seeds(read: list[RunErrors], means: list[Means]) -> list[Seeds]:
    groups: list[list[int]] = []
    for place, run in enumerate(read):
        for group in groups:
            if _differ_in_seed(read[group[0]], run):
                group.append(place)
                break
        else:
            groups.append([place])
    found = []
    for group in groups:
        if len(group) > 1:
            of_runs = np.stack([means[place].means_px for place in group])
            found.append(Seeds(group, of_runs.mean(axis=0), of_runs.std(axis=0, ddof=1)))
    return found


def _differ_in_seed(first: RunErrors, other: RunErrors) -> bool:
    """Returns whether two runs have the same options but for the seed, and the same frames."""
    is_same = not differing_keys(first.config, other.config).keys() - {_SEED_KEY}
    return is_same and first.trained == other.trained and first.frames.keys() == other.frames.keys()
