"""Reads a finished run's errors on labelled frames from its folder; builds no network."""

import dataclasses
from pathlib import Path

import numpy as np

from jaxpose.config import Config
from jaxpose.config.model import NO_WEIGHTS
from jaxpose.data.split import WEIGHTS, KnownSplit, read_split
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.tables import ErrorTable, read_errors
from jaxpose.poses import SETS, VALIDATION
from jaxpose.run.identity import read_config, read_split_rows, refuse_no_run, refuse_pretraining
from jaxpose.run.paths import CONFIG_FILE, FINISHED_FILE, SPLIT_FILE
from jaxpose.run.status import (
    CONVERTED,
    NOT_VISIBLE_ERROR,
    Evaluated,
    read_evaluated,
    read_of_one_evaluation,
    read_summary,
)


@dataclasses.dataclass(frozen=True)
class Frame:
    """A labelled frame: two runs have the same frame if image and labels are the same, whatever the path.

    Attributes:
      image_sha256: of the image.
      labels_sha256: of its labels.
    """

    image_sha256: str
    labels_sha256: str


@dataclasses.dataclass(frozen=True)
class Training:
    """A run's training data and initial weights.

    Attributes:
      set_sizes: {set: labelled frames}.
      start: the run, file or published weights that it started from, "" for random weights.
      start_sha256: of these weights, "" for random weights.
      is_converted: another tool trained the network, so `start` is unknown.
    """

    set_sizes: dict[str, int]
    start: str
    start_sha256: str
    is_converted: bool


@dataclasses.dataclass(frozen=True)
class RunErrors:
    """The errors of a run.

    Attributes:
      run: the folder.
      config: of the run.
      training: its training data and initial weights.
      keypoint_names: k names.
      frames: n entries {frame: row of `errors_px`}.
      images: n names of their images.
      errors_px: (n, k) float64 in frame pixels, NaN where a keypoint is not labelled.
      otherwise_px: (n, k) the same with the opposite choice for points marked as not visible: with them if `errors_px`
        is without, and vice versa.
      trained: SHA-256 of the images that trained the run, or the runs that it started from.
      validated: SHA-256 of the images that selected its checkpoint.
      unknown: rows of the table that split.csv lacks: frames labelled after the training.
    """

    run: Path
    config: Config
    training: Training
    keypoint_names: list[str]
    frames: dict[Frame, int]
    images: list[str]
    errors_px: np.ndarray
    otherwise_px: np.ndarray
    trained: frozenset[str]
    validated: frozenset[str]
    unknown: int


def read_run_errors(run: Path) -> RunErrors:
    """Reads the errors of a run.

    Raises:
      UserError: the folder is not a run, or a pretraining; the run has no error table or does not record its training
        frames; or a file is damaged or belongs to another run.
    """
    refuse_no_run(run)
    return read_of_one_evaluation(run, lambda: _read_run_errors(run))


def _read_run_errors(run: Path) -> RunErrors:
    if not (run / SPLIT_FILE).is_file():
        raise UserError(
            f"{run} has no {SPLIT_FILE}, so its training frames are unknown, and it cannot be compared; a run "
            "that jaxpose convert wrote has them if the project was given"
        )
    config = read_config(run / CONFIG_FILE)
    refuse_pretraining(run, config)
    split = read_split(run / SPLIT_FILE, is_of_run=True)
    names = list(config.data.keypoint_names)
    frames: dict[Frame, int] = {}
    rows: list[tuple[np.ndarray, np.ndarray]] = []
    images: list[str] = []
    unknown = 0
    for view in config.data.views or ("",):
        file = run / f"{_stem(view)}_pixel_error.csv"
        table, evaluated = _read_table(file, run, names), read_evaluated(run)
        otherwise_px = _otherwise(run, view, table, names, evaluated)
        for row, (image, name) in enumerate(zip(table.index, table.sets or (), strict=True)):
            frame, of_run = _frame(image, split, evaluated)
            if not of_run:
                unknown += 1
                continue
            if of_run != name:
                raise UserError(
                    f"{file}: {image} is in the set {name}, but {run / SPLIT_FILE} has it in {of_run}; "
                    f"the table is not of this run: write it again with jaxpose evaluate --run {run}"
                )
            # Two copies of an image with the same labels are one frame.
            if frame not in frames:
                frames[frame] = len(rows)
                rows.append((table.errors_px[row], otherwise_px[row]))
                images.append(image)
    validated = {split.checksums[image] for image, name in split.sets.items() if name == VALIDATION}
    errors_px, otherwise_px = np.array(rows).reshape(-1, 2, len(names)).swapaxes(0, 1)
    training, trained = _read_training(run, config, split), frozenset(split.trained())
    return RunErrors(
        run, config, training, names, frames, images, errors_px, otherwise_px, trained, frozenset(validated), unknown,
    )  # fmt: skip


def _stem(view: str) -> str:
    return "_".join(part for part in ("predictions", view) if part)


def _frame(image: str, split: KnownSplit, evaluated: Evaluated) -> tuple[Frame, str]:
    """Returns a frame with the labels that its errors were measured from, and its set, or ""."""
    frame = Frame(evaluated.images.get(image, ""), evaluated.labels.get(image, ""))
    return frame, split.set_of_same(image, frame.image_sha256)


def _read_training(run: Path, config: Config, split: KnownSplit) -> Training:
    of_frames = list(split.sets.values())
    weights = "" if config.model.weights == NO_WEIGHTS else config.model.weights
    rows = read_split_rows(run).values()
    return Training(
        {name: of_frames.count(name) for name in SETS},
        config.train.init_from or weights,
        next((row["sha256"] for row in rows if row["set"] == WEIGHTS), ""),
        (run / FINISHED_FILE).is_file() and read_summary(run).get("reason") == CONVERTED,
    )


def _read_table(file: Path, run: Path, names: list[str]) -> ErrorTable:
    if not file.is_file():
        raise UserError(f"{run} has no {file.name}: finish the training, or write it with jaxpose evaluate --run {run}")
    read_evaluated(run).refuse_changed(file.name)
    table = read_errors(file)
    if table.keypoint_names != names or table.sets is None:
        raise UserError(
            f"{file} is not of this run: its columns must be {', '.join(names)} and set; write it again with "
            f"jaxpose evaluate --run {run}"
        )
    return table


def _otherwise(run: Path, view: str, table: ErrorTable, names: list[str], evaluated: Evaluated) -> np.ndarray:
    """Returns a table's errors (n, k) with the opposite choice for points marked as not visible."""
    name = f"{_stem(view)}_{NOT_VISIBLE_ERROR}.csv"
    if name not in evaluated.files:
        return table.errors_px
    marked_px = _read_table(run / name, run, names).errors_px
    return np.where(np.isnan(marked_px), table.errors_px, np.where(np.isnan(table.errors_px), marked_px, np.nan))
