"""The errors of a finished run on its labelled frames, read from its folder; no network is built."""

import dataclasses
from pathlib import Path

import numpy as np

from jaxpose.codes import VALIDATION
from jaxpose.config import Config
from jaxpose.data.split import read_split
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.error_table import ErrorTable, read_errors
from jaxpose.run.identity import read_config, refuse_no_run
from jaxpose.run.paths import CONFIG_FILE, SPLIT_FILE


@dataclasses.dataclass(frozen=True)
class Frame:
    """A labelled frame: two runs have the same frame if its image and its labels are the same, whatever its path.

    Attributes:
      image_sha256: of the image.
      labels_sha256: of its labels.
    """

    image_sha256: str
    labels_sha256: str


@dataclasses.dataclass(frozen=True)
class RunErrors:
    """The errors of a run.

    Attributes:
      run: the folder.
      config: of the run.
      keypoint_names: k names.
      frames: {frame: row of `errors_px`}, n of them.
      errors_px: (n, k) float64 in frame pixels, NaN where a keypoint is not labelled.
      trained: SHA-256 of the images that trained the run, or the runs that it started from.
      validated: SHA-256 of the images that chose its checkpoint.
      unknown: rows of the table that split.csv lacks: frames that were labelled after the training.
    """

    run: Path
    config: Config
    keypoint_names: list[str]
    frames: dict[Frame, int]
    errors_px: np.ndarray
    trained: frozenset[str]
    validated: frozenset[str]
    unknown: int


def read_run_errors(run: Path) -> RunErrors:
    """Reads the errors of a run.

    Raises:
      UserError: the folder is no run; the run has no table of errors; or a file is damaged, or is not of this run.
    """
    refuse_no_run(run)
    config = read_config(run / CONFIG_FILE)
    split = read_split(run / SPLIT_FILE, is_of_run=True)
    names = list(config.data.keypoint_names)
    frames: dict[Frame, int] = {}
    rows: list[np.ndarray] = []
    unknown = 0
    for view in config.data.views or ("",):
        file = run / f"{'_'.join(part for part in ('predictions', view) if part)}_pixel_error.csv"
        table = _read_table(file, run, names)
        for image, errors, name in zip(table.index, table.errors_px, table.sets or (), strict=True):
            if image not in split.sets:
                unknown += 1
                continue
            if split.sets[image] != name:
                raise UserError(
                    f"{file}: {image} is in the set {name}, but {run / SPLIT_FILE} has it in {split.sets[image]}; "
                    f"the table is not of this run: write it again with python -m jaxpose.evaluate --run {run}"
                )
            frame = Frame(split.checksums[image], split.labels_checksums[image])
            # Two copies of one image with the same labels are one frame.
            if frame not in frames:
                frames[frame] = len(rows)
                rows.append(errors)
    validated = {split.checksums[image] for image, name in split.sets.items() if name == VALIDATION}
    errors_px = np.stack(rows) if rows else np.empty((0, len(names)))
    return RunErrors(run, config, names, frames, errors_px, frozenset(split.trained()), frozenset(validated), unknown)


def _read_table(file: Path, run: Path, names: list[str]) -> ErrorTable:
    if not file.is_file():
        raise UserError(
            f"{run} has no {file.name}: finish the training, or write it with python -m jaxpose.evaluate --run {run}"
        )
    table = read_errors(file)
    if table.keypoint_names != names or table.sets is None:
        raise UserError(
            f"{file} is not of this run: its columns must be {', '.join(names)} and set; write it again with python -m "
            f"jaxpose.evaluate --run {run}"
        )
    return table
