"""Compares runs on labelled frames that none of them was trained on."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.compare.run_errors import Frame, RunErrors, Training, read_run_errors
from jaxpose.config import Config, DataConfig, differing_keys, harmless_keys
from jaxpose.config.option import flat_options
from jaxpose.data.label_table import LabelTable
from jaxpose.data.labels import labels_checksum
from jaxpose.errors import UserError
from jaxpose.formats.project import read_label_tables
from jaxpose.run.paths import run_folder
from jaxpose.terminal import count

# Chooses the frames to compare: those that no run was trained on, measured from the same labels.


@dataclasses.dataclass(frozen=True)
class Frames:
    """How many frames were compared or left out.

    Attributes:
      is_paired: whether all runs are measured on the same frames.
      compared: number of frames of each run.
      validated: compared frames that validated any run, and so may have selected its checkpoint.
      trained: frames left out because they trained a run.
      not_shared: frames left out because a run lacks them.
      other_labels: images that all runs have but measured from different labels; left out if the runs share others.
      unknown: frames left out because they were labelled after a run was trained.
    """

    is_paired: bool
    compared: list[int]
    validated: int
    trained: int
    not_shared: int
    other_labels: int
    unknown: int


def choose_frames(read: list[RunErrors], test_only: bool) -> tuple[list[list[Frame]], Frames]:
    """Returns the frames on which each run is measured, and their numbers.

    Args:
      read: the runs.
      test_only: leaves out frames that validated any run.

    Raises:
      UserError: no frame is left.
    """
    trained = frozenset[str]().union(*(run.trained for run in read))
    validated = frozenset[str]().union(*(run.validated for run in read))
    every = list(dict.fromkeys(frame for run in read for frame in run.frames))
    held = {frame.image_sha256 for frame in every}
    usable = [frame for frame in every if frame.image_sha256 not in (trained | validated if test_only else trained)]
    shared = [frame for frame in usable if all(frame in run.frames for run in read)]
    is_paired = bool(shared) or any(all(frame in run.frames for run in read) for frame in every)
    chosen = [shared if is_paired else [frame for frame in usable if frame in run.frames] for run in read]
    kept = set(shared)
    missing = {frame.image_sha256 for frame in usable if is_paired and frame not in kept}
    images = [{frame.image_sha256 for frame in run.frames} for run in read]
    not_same = {frame.image_sha256 for frame in usable if frame not in kept}
    other_labels = sum(all(image in of_run for of_run in images) for image in not_same)
    if not all(chosen):
        empty = next(run.run for run, frames in zip(read, chosen, strict=True) if not frames)
        what = "test frame" if test_only else "validation or test frame"
        fix = "Train with data.split=RUN, so that the runs have the same split"
        if other_labels:
            fix = (
                f"{count(other_labels, 'other image')} would count, but the runs measured them from different labels: "
                "jaxpose evaluate --run RUN uses the current labels"
            )
        raise UserError(
            f"{'the runs share' if is_paired else f'{empty} has'} no {what}: "
            f"{len(trained & held)} of {len(held)} frames were used to train one of the runs. {fix}"
        )
    frames = Frames(
        is_paired=is_paired,
        compared=[len(of_run) for of_run in chosen],
        validated=len({frame for of_run in chosen for frame in of_run if frame.image_sha256 in validated}),
        trained=len(trained & held),
        not_shared=len(missing),
        other_labels=other_labels,
        unknown=sum(run.unknown for run in read),
    )
    return chosen, frames


# The current labels of a run's project, to find errors measured from other labels; opens no images.


@dataclasses.dataclass(frozen=True)
class LabelsToday:
    """How the current labels relate to the compared frames of a run.

    Attributes:
      changed: number of frames with other labels today, or none.
      unread: why that is unknown, or "".
    """

    changed: int
    unread: str


def compare_with_today(read: Sequence[RunErrors], chosen: Sequence[Iterable[Frame]]) -> list[LabelsToday]:
    """Returns, for each run, how many compared frames have other labels than when its errors were measured.

    Args:
      read: the runs.
      chosen: the compared frames of each run.
    """
    tables: dict[str, list[LabelTable] | str] = {}
    found = []
    for run, frames in zip(read, chosen, strict=True):
        data = run.config.data
        if (key := repr(data)) not in tables:
            tables[key] = _read(data)
        found.append(_compare(run, frames, tables[key]))
    return found


def _read(data: DataConfig) -> list[LabelTable] | str:
    """Returns a project's labels, a table for each view, or why they cannot be read."""
    if not data.project:
        return "the run names no project"
    if not Path(data.project).exists():
        return f"the project {data.project} does not exist"
    try:
        return read_label_tables(data)
    except (UserError, OSError) as error:
        return f"the project {data.project} cannot be read ({str(error).splitlines()[0]})"


def _compare(run: RunErrors, frames: Iterable[Frame], tables: list[LabelTable] | str) -> LabelsToday:
    if isinstance(tables, str):
        return LabelsToday(0, tables)
    today = {image: sums for table in tables for image, sums in _checksums(table, run.keypoint_names).items()}
    measured = {run.images[run.frames[frame]]: frame.labels_sha256 for frame in frames}
    if not any(image in today for image in measured):
        return LabelsToday(0, f"the project {run.config.data.project} has none of these frames")
    return LabelsToday(sum(sha256 not in today.get(image, ()) for image, sha256 in measured.items()), "")


def _checksums(table: LabelTable, names: Sequence[str]) -> Mapping[str, list[str]]:
    """Returns {image: SHA-256 of its labels} for a run's keypoints.

    If an image may show a crop or the whole frame (only its size would tell), there are two.
    """
    points_px, visibility = table.poses.with_keypoints(names).labels()
    found = {}
    for row, image in enumerate(table.poses.frames):
        crop_px = table.crops_px.get(table.videos[row], ())
        offsets_px = [(0, 0), *([crop_px[:2]] if crop_px else [])]
        found[image] = [labels_checksum(names, points_px[row] + offset, visibility[row]) for offset in offsets_px]
    return found


# How points marked as not visible affect the errors of compared runs.


@dataclasses.dataclass(frozen=True)
class NotVisible:
    """A run's points marked as not visible, on the compared frames and keypoints.

    Attributes:
      points: their number.
      counted: whether the comparison's errors count them.
      mean_px: the mean error over all keypoints with the opposite choice, NaN without values.
    """

    points: int
    counted: bool
    mean_px: float


def measure_not_visible(errors_px: list[np.ndarray], otherwise_px: list[np.ndarray]) -> list[NotVisible]:
    """Returns the effect in each run, [] if no run has such points.

    Args:
      errors_px: (n, k) of each run.
      otherwise_px: (n, k) of each run, as `RunErrors.otherwise_px`.
    """
    found = []
    for errors, otherwise in zip(errors_px, otherwise_px, strict=True):
        left_out = np.isnan(errors) & np.isfinite(otherwise)
        counted = np.isfinite(errors) & np.isnan(otherwise)
        known = otherwise[np.isfinite(otherwise)]
        mean_px = float(known.mean()) if known.size else float("nan")
        found.append(NotVisible(int((left_out | counted).sum()), bool(counted.any()), mean_px))
    return found if any(one.points for one in found) else []


# Mean errors with bootstrap intervals: resamples whole frames, with all keypoints, with replacement.

RESAMPLES = 10_000
PERCENT = 95
# Fewer frames give no interval: their resamples hardly differ, whatever other frames would show.
LEAST_FRAMES = 5
# Bounds the memory of the resamples.
_AT_ONCE = 500


@dataclasses.dataclass(frozen=True)
class Means:
    """Mean errors by column: each keypoint, then all keypoints together.

    Attributes:
      means_px: (k + 1,) NaN in a column without values.
      frames: (k + 1,) number of frames with a value in each column; in the last, with any value.
      resampled_px: (resamples, k + 1) means of drawn frames; NaN if no drawn frame has a value.
    """

    means_px: np.ndarray
    frames: np.ndarray
    resampled_px: np.ndarray


def bootstrap_means(errors_px: np.ndarray, seed: int, resamples: int = RESAMPLES) -> Means:
    """Returns the mean of each keypoint over frames and of all values, with the means of resampled frames.

    Args:
      errors_px: (n, k), NaN where missing.
      seed: determines the drawn frames. With the same seed, arrays of the same n are resampled by the same frames, so
        differences of their resampled means are paired.
      resamples: number of draws of n frames.
    """
    count = len(errors_px)
    present = np.isfinite(errors_px)
    columns = np.where(present, errors_px, 0), present.astype(np.float64)
    sums, numbers = (np.concatenate([part, part.sum(axis=1, keepdims=True)], axis=1) for part in columns)
    rng = np.random.default_rng(seed)
    parts = []
    for first in range(0, resamples, _AT_ONCE):
        times = np.zeros((min(_AT_ONCE, resamples - first), count))
        if count:
            drawn = rng.integers(count, size=times.shape)
            np.add.at(times, (np.arange(len(times))[:, None], drawn), 1)
        parts.append(_ratio(times @ sums, times @ numbers))
    return Means(_ratio(sums.sum(axis=0), numbers.sum(axis=0)), (numbers > 0).sum(axis=0), np.concatenate(parts))


def interval_px(resampled_px: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Returns percentile intervals (2, m) of resampled means; NaN below LEAST_FRAMES frames.

    Args:
      resampled_px: (resamples, m).
      frames: (m,) frames in each mean.
    """
    edges = np.full((2, resampled_px.shape[1]), np.nan)
    tail = (100 - PERCENT) / 2
    for column in np.flatnonzero(frames >= LEAST_FRAMES).tolist():
        edges[:, column] = np.nanpercentile(resampled_px[:, column], [tail, 100 - tail])
    return edges


def mean_by_frame(errors_px: np.ndarray) -> np.ndarray:
    """Returns the mean error (n,) of each frame of (n, k), NaN without values."""
    present = np.isfinite(errors_px)
    return _ratio(np.where(present, errors_px, 0).sum(axis=1), present.sum(axis=1))


def _ratio(sums: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    return np.divide(sums, numbers, out=np.full(sums.shape, np.nan), where=numbers > 0)


_SEED = 0
_SEED_KEY = "train.seed"


@dataclasses.dataclass(frozen=True)
class Measured:
    """A run's errors by column: each keypoint, then all keypoints together.

    Attributes:
      run: the folder.
      frames: (k + 1,) number of frames with a label.
      means_px: (k + 1,) mean errors in frame pixels.
      interval_px: (2, k + 1) of the means, NaN below LEAST_FRAMES frames.
      difference_px: (k + 1,) mean error minus the first run's.
      difference_interval_px: (2, k + 1).
      images: n names of the compared frames.
      frames_px: (n,) mean error of each compared frame, NaN without values.
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
      runs: their indices among the compared runs.
      means_px: (k + 1,) means of the runs' mean errors.
      deviations_px: (k + 1,) standard deviations of the runs' mean errors, with runs - 1 degrees of freedom.
    """

    runs: list[int]
    means_px: np.ndarray
    deviations_px: np.ndarray


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The differences between runs.

    Attributes:
      options: {option: value in each run}.
      training: the training data and initial weights of each run.
      keypoint_names: k names that all runs have.
      other_keypoints: names that only some runs have.
      frames: the compared frames.
      measured: the errors of each run.
      seeds: groups of runs that differ only in their seed.
      not_visible: the effect of points marked as not visible in each run; [] if no run has such points.
      today: how many compared frames of each run have changed labels.
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
    """Compares finished runs by their tables.

    If the runs share held-out frames, all are measured on these and differences are paired. Otherwise, each run is
    measured on its own.

    Args:
      runs: two or more run folders; a folder of runs means its newest run.
      test_only: leaves out validation frames of the runs.

    Raises:
      UserError: fewer than two runs, or a repeated run; a folder is not a run, has no evaluation or does not record its
        training frames; no keypoint is in all runs; or no frame is left.
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
    """Returns the errors (n, k) of the given frames and keypoints, in order."""
    columns = [run.keypoint_names.index(name) for name in names]
    return errors_px[[run.frames[frame] for frame in frames]][:, columns]


def _known_in_all(errors_px: list[np.ndarray]) -> list[np.ndarray]:
    """Returns the errors (n, k) of runs on the same frames; a point that any run did not predict is NaN for all."""
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
    """Returns the differing options that may change results, including those that differ only by an absolute path.

    When a run resumes, such paths may differ, because split.csv has the files' checksums. Here they may be the
    difference of interest: the run that gave the weights, the split or the project.
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
    """Returns whether two runs have the same options (except the seed), initial weights and frames."""
    is_same = not differing_keys(first.config, other.config).keys() - {_SEED_KEY}
    is_same &= first.training.start_sha256 == other.training.start_sha256
    return is_same and first.trained == other.trained and first.frames.keys() == other.frames.keys()
