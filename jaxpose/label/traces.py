"""What the predictions of a video show along its frames: confidence, steps, PCA errors, and doubtful tracks.

The values of a long video are those of at most 2,000 parts: of each part, the one that most deserves a look.
"""

import contextlib
import csv
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.tables import read_image_predictions
from jaxpose.label.file_states import file_signatures
from jaxpose.prediction.index import DETECTIONS, TEMPORAL_NORM, TRACKS, beside, error_suffix

_MOST_PARTS = 2000
_REVIEW = "_review"
_POSE_ERRORS = tuple(map(error_suffix, ("pca_singleview", "pca_multiview")))
# Traces that are kept after they were read.
_MOST_TRACES = 64


def read_trace(table: Path, kind: str) -> list[Any]:
    """Returns a trace of a video as JSON, [] without the tables that it needs.

    Args:
      table: the predictions of the video in the results of `jaxpose predict`; the other tables are next to it.
      kind: of `TRACES`:
        confidence: the lowest mean confidence of a frame, over the keypoints of all animals;
        step_px: the longest step of a keypoint from the previous frame, in px;
        pca_error_px: the largest distance of a keypoint from the nearest plausible pose, in px;
        doubts: [first frame, last frame] of each place that the review of the tracks lists.
    """
    files = [table, *(_beside(table, ending) for ending in _BESIDE[kind])]
    return _read_known(table, kind, tuple(file_signatures(file) for file in files))


def _beside(table: Path, ending: str) -> Path:
    """Returns the table with another ending; that of the tracks has another stem than the one of the detections."""
    if ending != TRACKS + _REVIEW:
        return beside(table, ending)
    return table.with_name(f"{table.stem.removesuffix(DETECTIONS)}{ending}.csv")


@functools.lru_cache(_MOST_TRACES)
def _read_known(table: Path, kind: str, signatures: Sequence[Any]) -> list[Any]:
    """Reads a trace, unless its files have the signatures of an earlier time."""
    with contextlib.suppress(UserError, OSError, ValueError, csv.Error):
        return TRACES[kind](table)
    return []


def _confidence(table: Path) -> list[float | None]:
    confidence = read_image_predictions(table).confidence
    assert confidence is not None
    animals = np.isfinite(confidence).any(axis=2).sum(axis=1)
    of_frame = np.nan_to_num(confidence).mean(axis=2).sum(axis=1) / np.maximum(animals, 1)
    return _parts(of_frame, np.fmin)


def _steps_px(table: Path) -> list[float | None]:
    return _parts(_largest(_beside(table, TEMPORAL_NORM)), np.fmax)


def _pca_errors_px(table: Path) -> list[float | None]:
    files = [file for ending in _POSE_ERRORS if (file := _beside(table, ending)).is_file()]
    errors = [_largest(file) for file in files]
    same = [of_kind for of_kind in errors if len(of_kind) == len(errors[0])]
    return _parts(np.fmax.reduce(same), np.fmax) if same else []


def _doubts(table: Path) -> list[list[int]]:
    with _beside(table, TRACKS + _REVIEW).open(newline="", encoding="utf-8") as stream:
        rows = [[row.get(name) or "" for name in ("frame_from", "frame_to")] for row in csv.DictReader(stream)]
    return [[int(frame) for frame in row] for row in rows if all(text.isascii() and text.isdigit() for text in row)]


def _largest(file: Path) -> np.ndarray:
    """Returns the largest number (n) of each row of a table with a column for each keypoint, NaN without any."""
    with file.open(newline="", encoding="utf-8") as stream:
        rows = csv.reader(stream)
        next(rows, None)
        return np.fromiter((max(map(float, filter(None, row[1:])), default=math.nan) for row in rows), np.float64)


def _parts(of_frame: np.ndarray, choose: np.ufunc) -> list[float | None]:
    """Returns one value (n) for each part of a video; None for a part without any."""
    if not len(of_frame):
        return []
    starts = np.linspace(0, len(of_frame), min(len(of_frame), _MOST_PARTS), endpoint=False).astype(int)
    found = choose.reduceat(of_frame, starts).round(3).tolist()
    return [value if math.isfinite(value) else None for value in found]


TRACES: dict[str, Callable[[Path], list[Any]]] = {
    "confidence": _confidence,
    "step_px": _steps_px,
    "pca_error_px": _pca_errors_px,
    "doubts": _doubts,
}
# The endings of the tables that a trace needs besides that of the predictions.
_BESIDE = {"confidence": (), "step_px": (TEMPORAL_NORM,), "pca_error_px": _POSE_ERRORS, "doubts": (TRACKS + _REVIEW,)}
