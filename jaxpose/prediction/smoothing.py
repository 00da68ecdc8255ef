"""Writes the smoothed tables of videos, <video>_smoothed.csv, from complete prediction tables.

<video>_smoothed.json records a table's source and settings, so that another command can keep or replace the table.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.checksums import DamagedFile, read_json, write_json
from jaxpose.config import PredictConfig
from jaxpose.files import sha256_of
from jaxpose.formats.lightning_pose.tables import read_predictions, write_smoothed
from jaxpose.outputs import stamps
from jaxpose.pose.smooth import FILLED, Noise, smooth_poses
from jaxpose.poses import Poses
from jaxpose.prediction.index import CHECKSUM_DIGITS, SMOOTHED, beside, remove_smoothed, smoothing_record
from jaxpose.terminal import count

_logger = logging.getLogger(__name__)


def smooth_tables(
    options: PredictConfig, predictions: Mapping[Path, str], stops: Callable[[], bool] = lambda: False
) -> None:
    """Writes missing smoothed tables of videos; predict.smooth=none does nothing.

    Args:
      options: the smoother and its parameters.
      predictions: {whole table of a video: its `table_sha256` in the index}.
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
        before = stamps([table])
        if not sha256_of(table).startswith(checksum):
            _logger.warning(
                f"{table} is not smoothed: it was damaged or changed by hand; --overwrite predicts it again"
            )
            continue
        found = read_predictions(table)
        poses, noise = smooth_poses(found.poses, options)
        write_smoothed(beside(table, SMOOTHED), poses, found.scorer)
        finish_smoothed(table, made_from, poses, noise)
        if stamps([table]) != before:
            remove_smoothed(table)
            _logger.warning(f"{table} is not smoothed: another command has predicted it meanwhile")


def record_of(options: PredictConfig, checksums: Sequence[str]) -> dict[str, Any]:
    """Returns a smoothed table's sources: the smoother, its parameters, and the checksums of tables."""
    window = {"smooth_window": options.smooth_window} if options.smooth == "median" else {}
    return {
        "smooth": options.smooth,
        "smooth_min_confidence": float(options.smooth_min_confidence),
        **window,
        "tables": [checksum[:CHECKSUM_DIGITS] for checksum in checksums],
    }


def is_smoothed(table: Path, made_from: Mapping[str, Any]) -> bool:
    """Returns whether the smoothed table next to `table` exists, is undamaged and has the same sources."""
    file, record = beside(table, SMOOTHED), smoothing_record(table)
    if not file.is_file() or not record.is_file():
        return False
    try:
        known = read_json(record)
    except DamagedFile:
        return False
    return all(known.get(name) == value for name, value in made_from.items()) and known.get("table") == _digest(file)


def finish_smoothed(table: Path, made_from: Mapping[str, Any], poses: Poses, noise: Noise) -> None:
    """Records how the smoothed table next to `table` was made, and reports it."""
    file, is_filled = beside(table, SMOOTHED), poses.columns[FILLED]
    filled = int(is_filled.sum())
    of_keypoints = dict(zip(poses.keypoint_names, noise, strict=True))
    write_json(smoothing_record(table), {**made_from, "table": _digest(file), "keypoints": of_keypoints})
    share = f", {100 * filled / is_filled.size:.1f} %" if is_filled.size else ""
    _logger.info(f"{file}: {made_from['smooth']}, {count(filled, 'place')} filled{share}")
    empty = np.flatnonzero(np.isnan(poses.points_px).any((0, 1, 3)))
    if len(empty):
        names = ", ".join(poses.keypoint_names[int(point)] for point in empty)
        _logger.warning(
            f"{file}: {names} has no prediction with a confidence of {made_from['smooth_min_confidence']:g}; "
            "the cells are empty"
        )


def _digest(file: Path) -> str:
    return sha256_of(file)[:CHECKSUM_DIGITS]
