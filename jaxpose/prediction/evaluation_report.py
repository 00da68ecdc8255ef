"""What an evaluation reports: a table with a line for each set, all figures of one set, and errors to compare with."""

import logging

import numpy as np

from jaxpose.config import Config
from jaxpose.data import baselines, synthetic
from jaxpose.data.dataset import Dataset
from jaxpose.pose import metrics
from jaxpose.prediction.evaluation_tables import Summaries
from jaxpose.run.error_text import not_visible_text

_logger = logging.getLogger(__name__)


def report(config: Config, data: Dataset, results: Summaries, shown: str, compared: dict[str, float]) -> None:
    """Reports the errors of all sets and, beside those of the set `shown`, the errors of the baselines."""
    _logger.info(format_summaries(results))
    if shown:
        _logger.info(f"{shown} set: {metrics.format_summary(results[shown])}")
        if not data.is_selection_tested(config.train.monitor):
            _logger.info(
                "no test set: the validation frames chose the checkpoint, so expect larger errors on other frames"
            )
    for name, error_px in compared.items():
        percent = 100 * results[shown]["mean_px_error"] / error_px
        _logger.info(f"{name:<29} {error_px:8.2f} px on the {shown} set (network: {percent:.1f} % of that)")


def baseline_errors_px(data: Dataset, shown: str) -> dict[str, float]:
    """Returns the mean errors, in px, of trackers that learn almost nothing; only for the synthetic project."""
    found = data.project
    if not (found.folder / synthetic.MARKER).is_file() or not len(data.rows("train")):
        return {}
    sets = np.where(data.sets == shown, "test", np.where(data.sets == "train", "train", "unused")).tolist()
    labelled = found.labelled_frame_px()
    position = baselines.mean_position_errors_px(labelled, sets)
    blob = baselines.blob_errors_px(found.paths, found.videos, labelled, sets)
    return {"mean position": np.nanmean(position).item(), "blob centroid + mean offset": np.nanmean(blob).item()}


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
    lines += [f"{name}: {text}" for name, result in results.items() if (text := not_visible_text(result))]
    return "\n".join(lines)


def _cell(value: float | None, width: int) -> str:
    return f"{'-' if value is None else format(value, '.3f'):>{width}}"
