"""Compares runs on the labelled frames that none of them trained on."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.compare.bootstrap import Means, bootstrap_means, interval_px
from jaxpose.compare.run_errors import Frame, RunErrors, Training, read_run_errors
from jaxpose.config import Config, differing_keys, harmless_keys
from jaxpose.config.option import flat_options
from jaxpose.errors import UserError

_SEED = 0
_SEED_KEY = "train.seed"


@dataclasses.dataclass(frozen=True)
class Measured:
    """The errors of a run by column: each keypoint, then all keypoints together.

    Attributes:
      run: the folder.
      frames: (k + 1,) frames that have a label.
      means_px: (k + 1,) mean errors in frame pixels.
      interval_px: (2, k + 1) of the means, NaN below LEAST_FRAMES frames.
      difference_px: (k + 1,) mean error minus that of the first run.
      difference_interval_px: (2, k + 1).
    """

    run: Path
    frames: np.ndarray
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
      training: what each run was trained on, and from.
      keypoint_names: k names that all runs have.
      other_keypoints: names that only some of the runs have.
      frames: what was compared.
      measured: the errors of each run.
      seeds: groups of runs that differ only in their seed.
    """

    options: dict[str, list[Any]]
    training: list[Training]
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
      UserError: fewer than two runs, or one twice; a folder is no run, is not evaluated or does not know its training
        frames; no keypoint is in all runs; or no frame is left.
    """
    _refuse_bad_number(runs)
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
        [run.training for run in read],
        names,
        list(others),
        frames,
        [_measure(run.run, of_run, means[0]) for run, of_run in zip(read, means, strict=True)],
        _seeds(read, means),
    )


def _refuse_bad_number(runs: Sequence[Path]) -> None:
    if len(runs) < 2:
        raise UserError(f"{f'{runs[0]} is the only run' if runs else 'no run is given'}; give two or more runs")
    earlier: dict[Path, Path] = {}
    for run in runs:
        first = earlier.setdefault(run.resolve(), run)
        if first is not run:
            also = "" if first == run else f", also as {first}"
            raise UserError(f"{run} is given twice{also}; give each run once")


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
    fewest = np.minimum(means.frames, first.frames)
    return Measured(
        run,
        means.frames,
        means.means_px,
        interval_px(means.resampled_px, means.frames),
        means.means_px - first.means_px,
        interval_px(means.resampled_px - first.resampled_px, fewest),
    )


def _differing(read: list[RunErrors]) -> dict[str, list[Any]]:
    """Returns the options that may change a number and differ, also those that differ only by an absolute path.

    To resume a run, such paths may differ, because split.csv has the checksums of the files there. Here they may be
    the difference of interest: the run that gave the weights, the split, or the project.
    """
    values, harmless = [flat_options(run.config) for run in read], harmless_keys()
    by_option = {key: [of_run[key][1] for of_run in values] for key in flat_options(Config()) if key not in harmless}
    return {key: of_runs for key, of_runs in by_option.items() if any(value != of_runs[0] for value in of_runs)}


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
    """Returns whether two runs have the same options but for the seed, the same start weights and the same frames."""
    is_same = not differing_keys(first.config, other.config).keys() - {_SEED_KEY}
    is_same &= first.training.start_sha256 == other.training.start_sha256
    return is_same and first.trained == other.trained and first.frames.keys() == other.frames.keys()
