"""Compares runs on the labelled frames that none of them trained on."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.compare.bootstrap import Means, bootstrap_means, interval_px, mean_by_frame
from jaxpose.compare.frames import Frames, choose_frames
from jaxpose.compare.labels_today import LabelsToday, compare_with_today
from jaxpose.compare.not_visible import NotVisible, measure_not_visible
from jaxpose.compare.run_errors import Frame, RunErrors, Training, read_run_errors
from jaxpose.config import Config, differing_keys, harmless_keys
from jaxpose.config.option import flat_options
from jaxpose.errors import UserError
from jaxpose.run.run_argument import run_folder

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
      images: n names of the compared frames.
      frames_px: (n,) mean error of each compared frame, NaN without a number.
    """

    run: Path
    frames: np.ndarray
    means_px: np.ndarray
    interval_px: np.ndarray
    difference_px: np.ndarray
    difference_interval_px: np.ndarray
    images: list[str]
    frames_px: np.ndarray


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
      not_visible: of each run, what its points marked as not visible would change; [] if no run has such points.
      today: of each run, how many of its compared frames have other labels now.
    """

    options: dict[str, list[Any]]
    training: list[Training]
    keypoint_names: list[str]
    other_keypoints: list[str]
    frames: Frames
    measured: list[Measured]
    seeds: list[Seeds]
    not_visible: list[NotVisible]
    today: list[LabelsToday]


def compare(runs: Sequence[Path], test_only: bool = False) -> Comparison:
    """Compares finished runs by the tables in their folders.

    If the runs share held-out frames, all of them are measured on these, and differences are paired. If they share no
    frame, each is measured on its own.

    Args:
      runs: two or more run folders; a folder of runs stands for its newest.
      test_only: leave out frames that validated one of the runs.

    Raises:
      UserError: fewer than two runs, or one twice; a folder is no run, is not evaluated or does not know its training
        frames; no keypoint is in all runs; or no frame is left.
    """
    runs = [Path(run_folder(run)) for run in runs]
    _refuse_bad_number(runs)
    read = [read_run_errors(run) for run in runs]
    names = [name for name in read[0].keypoint_names if all(name in run.keypoint_names for run in read)]
    if not names:
        raise UserError(f"{runs[0]} has no keypoint in common with all other runs: {', '.join(read[0].keypoint_names)}")
    chosen, frames = choose_frames(read, test_only)
    errors = [_errors(run, run.errors_px, of_run, names) for run, of_run in zip(read, chosen, strict=True)]
    otherwise = [_errors(run, run.otherwise_px, of_run, names) for run, of_run in zip(read, chosen, strict=True)]
    if frames.is_paired:
        errors, otherwise = _known_in_all(errors), _known_in_all(otherwise)
    # The same seed draws the same frames.
    means = [bootstrap_means(of_run, _SEED + place * (not frames.is_paired)) for place, of_run in enumerate(errors)]
    others = dict.fromkeys(name for run in read for name in run.keypoint_names if name not in names)
    return Comparison(
        _differing(read),
        [run.training for run in read],
        names,
        list(others),
        frames,
        [
            _measure(run, of_run, means[0], [run.images[run.frames[frame]] for frame in of_frames], of_errors)
            for run, of_run, of_frames, of_errors in zip(read, means, chosen, errors, strict=True)
        ],
        _seeds(read, means),
        measure_not_visible(errors, otherwise),
        compare_with_today(read, chosen),
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


def _errors(run: RunErrors, errors_px: np.ndarray, frames: list[Frame], names: list[str]) -> np.ndarray:
    """Returns the errors (n, k) of some frames and keypoints, in their order."""
    columns = [run.keypoint_names.index(name) for name in names]
    return errors_px[[run.frames[frame] for frame in frames]][:, columns]


def _known_in_all(errors_px: list[np.ndarray]) -> list[np.ndarray]:
    """Returns the errors (n, k) of runs on the same frames; a point that one run did not predict is NaN for all."""
    is_known = np.isfinite(errors_px).all(axis=0)
    return [np.where(is_known, of_run, np.nan) for of_run in errors_px]


def _measure(run: RunErrors, means: Means, first: Means, images: list[str], errors_px: np.ndarray) -> Measured:
    fewest = np.minimum(means.frames, first.frames)
    return Measured(
        run.run,
        means.frames,
        means.means_px,
        interval_px(means.resampled_px, means.frames),
        means.means_px - first.means_px,
        interval_px(means.resampled_px - first.resampled_px, fewest),
        images,
        mean_by_frame(errors_px),
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
