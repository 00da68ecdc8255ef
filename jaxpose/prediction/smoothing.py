"""The smoothed tables of videos, <video>_smoothed.csv, made from whole tables of predictions.

<video>_smoothed.json says what a table was made from and how, so that another command keeps it or makes it again.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.checksums import DamagedFile, read_json, write_json
from jaxpose.config import PredictConfig
from jaxpose.files import sha256_of
from jaxpose.formats.lightning_pose.smoothed_table import smoothed_columns, write_smoothed
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.pose.smooth import Smoothed, is_used, kalman, median
from jaxpose.prediction.index_row import CHECKSUM_DIGITS
from jaxpose.prediction.table_files import SMOOTHED, beside, remove_smoothed, smoothing_record
from jaxpose.quantities import count

_logger = logging.getLogger(__name__)


def smooth_tables(
    options: PredictConfig, predictions: Mapping[Path, str], stops: Callable[[], bool] = lambda: False
) -> None:
    """Writes the smoothed table of each video, unless it exists already; predict.smooth=none does nothing.

    Args:
      options: which smoother, and its numbers.
      predictions: whole tables of videos with their `table_sha256` of the index.
      stops: called before every table; True stops.

    Raises:
      OSError: a file cannot be written.
    """
    for table, checksum in predictions.items() if options.smooth != "none" else ():
        made_from = record_of(options, [checksum])
        if is_smoothed(table, made_from):
            continue
        if stops():
            return
        remove_smoothed(table)
        if not sha256_of(table).startswith(checksum):
            _logger.warning(
                f"{table} is not smoothed: it was damaged or changed by hand; --overwrite predicts it again"
            )
            continue
        found = read_predictions(table)
        names, (points_px, confidence) = found.poses.keypoint_names, found.poses.one_animal()
        used = is_used(points_px, confidence, options.smooth_min_confidence)
        if options.smooth == "median":
            smoothed = median(points_px, used, options.smooth_window)
        else:
            smoothed = kalman(points_px, confidence, used)
        pairs = {} if smoothed.var_px2 is None else {"posterior_var": smoothed.var_px2}
        columns = smoothed_columns(smoothed.keypoints_frame_px, confidence, smoothed.is_filled, pairs)
        write_smoothed(beside(table, SMOOTHED), found.poses.frames, names, columns, found.scorer)
        finish_smoothed(table, made_from, names, smoothed)


def record_of(options: PredictConfig, checksums: Sequence[str]) -> dict[str, Any]:
    """Returns what a smoothed table is made from: the smoother, its numbers, and the checksums of tables."""
    window = {"smooth_window": options.smooth_window} if options.smooth == "median" else {}
    return {
        "smooth": options.smooth,
        "smooth_min_confidence": float(options.smooth_min_confidence),
        **window,
        "tables": [checksum[:CHECKSUM_DIGITS] for checksum in checksums],
    }


def is_smoothed(table: Path, made_from: Mapping[str, Any]) -> bool:
    """Returns whether the smoothed table beside `table` exists, is undamaged and was made from the same."""
    file, record = beside(table, SMOOTHED), smoothing_record(table)
    if not file.is_file() or not record.is_file():
        return False
    try:
        known = read_json(record)
    except DamagedFile:
        return False
    return all(known.get(name) == value for name, value in made_from.items()) and known.get("table") == _digest(file)


def finish_smoothed(
    table: Path, made_from: Mapping[str, Any], keypoint_names: Sequence[str], smoothed: Smoothed
) -> None:
    """Records how the smoothed table beside `table` was made, and reports it."""
    file, filled = beside(table, SMOOTHED), int(smoothed.is_filled.sum())
    noise = dict(zip(keypoint_names, smoothed.noise, strict=True))
    write_json(smoothing_record(table), {**made_from, "table": _digest(file), "keypoints": noise})
    frames, points = smoothed.is_filled.shape
    share = f", {100 * filled / (frames * points):.1f} %" if frames * points else ""
    _logger.info(f"{file}: {made_from['smooth']}, {count(filled, 'place')} filled{share}")
    empty = np.flatnonzero(np.isnan(smoothed.keypoints_frame_px).any((0, 2)))
    if len(empty):
        names = ", ".join(keypoint_names[int(point)] for point in empty)
        _logger.warning(
            f"{file}: {names} has no prediction with a confidence of {made_from['smooth_min_confidence']:g}; "
            "the cells are empty"
        )


def _digest(file: Path) -> str:
    return sha256_of(file)[:CHECKSUM_DIGITS]
