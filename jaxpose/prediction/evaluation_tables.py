"""The tables of an evaluation, predictions.csv with the errors beside it, and the figures of its sets."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpose.config import Config
from jaxpose.data.project import Project
from jaxpose.formats.lightning_pose.tables import SCORERS, write_errors, write_predictions
from jaxpose.pose import metrics
from jaxpose.prediction.ensemble_predictor import EnsemblePredictor
from jaxpose.prediction.predictor import Predictor
from jaxpose.run.evaluated import NOT_VISIBLE_ERROR
from jaxpose.run.pca import pose_errors_px

# The figures of `summarize` by set, or by label file.
Summaries = dict[str, dict[str, Any]]


def write_tables(
    folder: Path,
    ending: str,
    found: Project,
    predicted: np.ndarray,
    confidence: np.ndarray,
    sets: np.ndarray | None,
    predictor: Predictor | EnsemblePredictor,
) -> list[str]:
    """Writes predictions[_VIEW][_ENDING].csv and a table of each kind of error, for each view; process 0 alone writes.

    Returns the names of the files, [] in other processes.

    Args:
      folder: where the files are written.
      ending: of the names, empty for the run's own label file.
      found: the labelled frames, n of them.
      predicted: (n, k, 2) in frame pixels.
      confidence: (n, k), 0 to 1.
      sets: names (n,) of the sets, None if the frames have none.
      predictor: the trained network.

    Raises:
      OSError: a file cannot be written.
    """
    if jax.process_index() != 0:
        return []
    written: list[str] = []
    names = found.poses.keypoint_names
    scorer = SCORERS[predictor.config.model.kind]
    pose_errors = pose_errors_px(predictor.subspaces, predicted, len(set(found.views)))
    measured = {
        "pixel_error": metrics.pixel_errors(predicted, found.measured_frame_px()),
        **{f"{name}_error": errors for name, errors in pose_errors.items()},
    }
    if (marked := found.not_visible()).any():
        errors_px = metrics.pixel_errors(predicted, found.labelled_frame_px())
        measured[NOT_VISIBLE_ERROR] = np.where(marked, errors_px, np.nan)
    for view in dict.fromkeys(found.views):
        rows = np.flatnonzero(np.array(found.views) == view)
        images = [found.poses.frames[row] for row in rows.tolist()]
        stem = "_".join(part for part in ("predictions", view, ending) if part)
        of_rows = None if sets is None else sets[rows].tolist()
        write_predictions(folder / f"{stem}.csv", images, names, predicted[rows], confidence[rows], scorer, of_rows)
        for name, values in measured.items():
            write_errors(folder / f"{stem}_{name}.csv", images, names, values[rows], of_rows)
        if NOT_VISIBLE_ERROR not in measured:
            # Of earlier labels.
            (folder / f"{stem}_{NOT_VISIBLE_ERROR}.csv").unlink(missing_ok=True)
        written += [f"{stem}.csv", *(f"{stem}_{name}.csv" for name in measured)]
    return written


def summarize(
    config: Config, found: Project, rows: np.ndarray, predicted: np.ndarray, confidence: np.ndarray
) -> dict[str, Any]:
    """Returns the figures of some frames; with points that are marked as not visible, also what they would change.

    `not_visible` then has the number of these `points`, whether the figures have `counted` them, and `otherwise`, the
    figures if they were treated the other way.

    Args:
      config: the run's.
      found: the labelled frames.
      rows: (m,) the rows of `found`.
      predicted: (m, k, 2) in frame pixels.
      confidence: (m, k), 0 to 1.
    """

    def figures(labelled_px: np.ndarray) -> dict[str, Any]:
        return metrics.summarize(
            predicted,
            labelled_px,
            keypoint_names=config.data.keypoint_names,
            confidence=confidence,
            pck_px=config.eval.pck_px,
            pck_share=config.eval.pck_share,
            oks_sigma=config.eval.oks_sigma,
        )

    measured_px, labelled_px = found.measured_frame_px()[rows], found.labelled_frame_px()[rows]
    marked = found.not_visible()[rows]
    if not marked.any():
        return figures(measured_px)
    counted = bool(np.isfinite(measured_px[marked]).all())
    other_px = np.where(marked[..., None], np.nan, labelled_px) if counted else labelled_px
    about = {"points": int(marked.sum()), "counted": counted, "otherwise": figures(other_px)}
    return figures(measured_px) | {"not_visible": about}
