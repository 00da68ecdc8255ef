"""The tables of an evaluation: predictions.csv with the errors beside it, and the summary that is printed."""

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
from jaxpose.run.pca import pose_errors_px

# The figures of `metrics.summarize` by set, or by label file.
Summaries = dict[str, dict[str, Any]]


def write_tables(
    folder: Path,
    ending: str,
    found: Project,
    predicted: np.ndarray,
    confidence: np.ndarray,
    sets: np.ndarray | None,
    predictor: Predictor | EnsemblePredictor,
) -> None:
    """Writes predictions[_VIEW][_ENDING].csv and a table of each kind of error, for each view; process 0 alone writes.

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
        return
    names = found.keypoint_names
    scorer = SCORERS[predictor.config.model.kind]
    pose_errors = pose_errors_px(predictor.subspaces, predicted, len(set(found.views)))
    measured = {
        "pixel_error": metrics.pixel_errors(predicted, found.labelled_frame_px()),
        **{f"{name}_error": errors for name, errors in pose_errors.items()},
    }
    for view in dict.fromkeys(found.views):
        rows = np.flatnonzero(np.array(found.views) == view)
        images = [found.images[row] for row in rows]
        stem = "_".join(part for part in ("predictions", view, ending) if part)
        of_rows = None if sets is None else sets[rows].tolist()
        write_predictions(folder / f"{stem}.csv", images, names, predicted[rows], confidence[rows], scorer, of_rows)
        for name, values in measured.items():
            write_errors(folder / f"{stem}_{name}.csv", images, names, values[rows], of_rows)


def summarize(config: Config, predicted: np.ndarray, labelled: np.ndarray, confidence: np.ndarray) -> dict[str, Any]:
    """Returns the figures of some frames: predicted and labelled keypoints (n, k, 2), confidence (n, k)."""
    return metrics.summarize(
        predicted,
        labelled,
        keypoint_names=config.data.keypoint_names,
        confidence=confidence,
        pck_px=config.eval.pck_px,
        pck_share=config.eval.pck_share,
        oks_sigma=config.eval.oks_sigma,
    )


def format_summaries(results: Summaries) -> str:
    """Returns a table with a line for each set, of at most 80 columns with three thresholds and a short name."""
    first = next(iter(results.values()))
    shares = [f"<{row['threshold_px']:g} px" for row in first["pck_px"]]
    figures = ("mean", "median", "p95", "rms")
    title = "error in px"
    width = max(map(len, (title, *results)))
    head = "".join(f"{name:>8}" for name in figures) + "".join(f"{name:>7}" for name in shares)
    lines = [f"{title:<{width}}{'frames':>8}{'points':>8}{head}"]
    for name, result in results.items():
        cells = "".join(_cell(result[f"{figure}_px_error"], 8) for figure in figures)
        cells += "".join(_cell(row["micro"], 7) for row in result["pck_px"])
        lines.append(f"{name:<{width}}{result['frames']:>8}{result['labelled_points']:>8}{cells}")
    return "\n".join(lines)


def _cell(value: float | None, width: int) -> str:
    return f"{'-' if value is None else format(value, '.3f'):>{width}}"
