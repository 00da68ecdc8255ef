"""The median and the variance of the predictions of several runs, as tables.

The tables of the runs themselves have the form that the commands of the Ensemble Kalman Smoother read, one file of each
run; the names of the columns here are those of its results.
"""

import csv
import io
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxpose.data.cells import path_cell
from jaxpose.data.views import view_of_video
from jaxpose.errors import UserError
from jaxpose.files import read_bytes, sha256_of, write_atomic
from jaxpose.formats.lightning_pose.tables import read_predictions, write_predictions
from jaxpose.poses import Poses
from jaxpose.prediction.index_row import DONE, parse_rows
from jaxpose.prediction.listing import OutputFiles
from jaxpose.prediction.table_files import remove_smoothed
from jaxpose.run.paths import INDEX_FILE

SCORER = "ensemble_tracker"
ENSEMBLE = "_ensemble"
_COORDS = ("x_ens_median", "y_ens_median", "x_ens_var", "y_ens_var")

_logger = logging.getLogger(__name__)


def write_ensembles(runs: Sequence[Path], outputs: OutputFiles, out: Path) -> list[Path]:
    """Writes the ensemble of each input that all runs have predicted, and returns the inputs' tables below a run.

    <table>.csv has the median of x and y over the runs and the mean of the confidence; <table>_ensemble.csv has the
    median again and the variance, in px^2, with n in the denominator. An input that a run has not predicted is left
    out, with a warning.

    Args:
      runs: run folders with their tables.
      outputs: the tables of the first run, with their inputs.
      out: folder of the ensembles.

    Raises:
      UserError: runs have predicted other frames of one input.
      DamagedFile: a table or an index was changed.
      OSError: a file cannot be written.
    """
    indices = [parse_rows(run / INDEX_FILE, read_bytes(run / INDEX_FILE)) for run in runs]
    written = []
    for table in outputs:
        name = table.relative_to(runs[0])
        rows = [index.get(name.as_posix()) for index in indices]
        done = [row for row in rows if row and row.state == DONE]
        if len(done) < len(runs):
            _logger.warning(f"{out / name} is not written: {len(runs) - len(done)} of {len(runs)} runs lack {name}")
            continue
        if len({row.files for row in done}) > 1:
            raise UserError(f"{name} is of other files in {runs[0]} than in another run; predict it with --overwrite")
        for run, row in zip(runs, done, strict=True):
            if not sha256_of(run / name).startswith(row.table_sha256):
                raise UserError(f"{run / name} was damaged or changed by hand; --overwrite predicts it again")
        before = sha256_of(out / name) if (out / name).is_file() else ""
        _write(out / name, [read_predictions(run / name).poses for run in runs])
        if sha256_of(out / name) != before:
            remove_smoothed(out / name)  # it is of other predictions
        written.append(name)
    return written


def smoother_command(runs: Sequence[Path], tables: Sequence[Path], views: Sequence[str]) -> str:
    """Returns the command that smooths the first video, or session, with the Ensemble Kalman Smoother; "" for images.

    Args:
      runs: run folders.
      tables: as `write_ensembles` returned them.
      views: names of the cameras.
    """
    videos = [table for table in tables if table.name != "predictions.csv"]
    if not videos:
        return ""
    names, kind = [videos[0]], "singlecam"
    if views:
        session = videos[0].stem.removesuffix(f"_{view_of_video(videos[0].stem, views)}")
        names = [videos[0].with_name(f"{session}_{view}.csv") for view in views]
        kind = f"multicam --camera-names {' '.join(views)}"
    files = " ".join(shlex.quote(str(run / name)) for run in runs for name in names)
    return f"eks {kind} --input-files {files}"


def _write(file: Path, tables: Sequence[Poses]) -> None:
    first = tables[0]
    if any(table.frames != first.frames or table.keypoint_names != first.keypoint_names for table in tables):
        raise UserError(f"{file.name}: the runs have predicted other frames; predict it again with --overwrite")
    places = np.stack([table.points_px[:, 0] for table in tables])
    median, variance = np.median(places, axis=0), places.var(axis=0)
    confidence = np.mean([table.one_animal()[1] for table in tables], axis=0)
    write_predictions(file, first.frames, first.keypoint_names, median, confidence, SCORER)
    write_ensemble_table(
        file.with_name(f"{file.stem}{ENSEMBLE}.csv"), first.frames, first.keypoint_names, median, variance
    )


def write_ensemble_table(
    file: Path, index: Sequence[str], names: Sequence[str], median: np.ndarray, variance: np.ndarray
) -> None:
    """Writes the median and the variance of x and y of each keypoint.

    Args:
      file: the table.
      index: names of n frames.
      names: of k keypoints.
      median: (n, k, 2), px.
      variance: (n, k, 2), px^2.

    Raises:
      OSError: the file cannot be written.
    """
    text, count = io.StringIO(newline=""), len(names)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["scorer", *[SCORER] * len(_COORDS) * count])
    writer.writerow(["bodyparts", *(name for name in names for _ in _COORDS)])
    writer.writerow(["coords", *_COORDS * count])
    values = np.concatenate([median, variance], axis=-1).reshape(len(index), -1).tolist()
    writer.writerows([path_cell(name), *row] for name, row in zip(index, values, strict=True))
    write_atomic(file, text.getvalue().encode())
