"""The multi-view PCA errors of videos of several cameras: they need the predictions of all views of a session."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxpose.data.views import view_of_video, without_view
from jaxpose.files import sha256_of
from jaxpose.formats.lightning_pose.tables import read_predictions, write_errors
from jaxpose.pose.pca import Pca
from jaxpose.prediction.predictor import Predictor
from jaxpose.prediction.table_files import beside, error_suffix
from jaxpose.run.pca import pose_errors_px

_NAME = "pca_multiview"

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Session:
    """The tables of predictions of one session.

    Attributes:
      name: of the session.
      files: by view, as far as they exist.
      targets: the table of errors of each view.
    """

    name: str
    files: dict[str, Path]
    targets: dict[str, Path]

    def newest_ns(self) -> int:
        """Returns when the newest table of predictions was written."""
        return max(file.stat().st_mtime_ns for file in self.files.values())

    def is_done(self) -> bool:
        """Returns whether the errors are those of the newest predictions."""
        newest_ns = self.newest_ns()
        return self.files.keys() == self.targets.keys() and all(
            target.is_file() and target.stat().st_mtime_ns >= newest_ns for target in self.targets.values()
        )

    def remove_stale(self) -> None:
        """Removes the errors of earlier predictions."""
        newest_ns = self.newest_ns()
        for target in self.targets.values():
            if target.is_file() and target.stat().st_mtime_ns < newest_ns:
                target.unlink()


def write_moment_errors(predictor: Predictor, predictions: Mapping[Path, str]) -> None:
    """Writes the multi-view PCA errors of each session whose views are all predicted.

    Where they cannot be written, those of earlier predictions are removed, and a warning has the reason.

    Args:
      predictor: the trained network.
      predictions: whole tables of predictions, <session>_<view>.csv, with their `table_sha256` of the index; other
        tables are left alone.
    """
    pca, views = predictor.subspaces.get(_NAME), predictor.config.data.views
    if pca is None or not views:
        return
    for session in _sessions(predictions, views):
        if session.is_done():
            continue
        if problem := _write(session, pca, predictions):
            _logger.warning(f"session {session.name} has no {_NAME} errors: {problem}")
            session.remove_stale()


def _sessions(predictions: Mapping[Path, str], views: tuple[str, ...]) -> list[_Session]:
    found: dict[Path, dict[str, Path]] = {}
    for file in predictions:
        view = view_of_video(file.stem, views)
        if view and file.is_file():
            found.setdefault(file.with_name(without_view(file.stem, view)), {})[view] = file
    sessions = []
    for place, files in found.items():
        targets = {view: beside(place.with_name(f"{place.name}_{view}.csv"), error_suffix(_NAME)) for view in views}
        sessions.append(_Session(place.name, files, targets))
    return sessions


def _write(session: _Session, pca: Pca, predictions: Mapping[Path, str]) -> str:
    """Writes the errors of a session; returns why it cannot, or ""."""
    for file in session.files.values():
        if not sha256_of(file).startswith(predictions[file]):
            return f"{file} was damaged or changed by hand; --overwrite predicts it again"
    if absent := [view for view in session.targets if view not in session.files]:
        return f"the view {', '.join(absent)} is not predicted"
    tables = {view: read_predictions(session.files[view]).poses for view in session.targets}
    if len({len(table.frames) for table in tables.values()}) > 1:
        shown = ", ".join(f"{view} {len(table.frames)}" for view, table in tables.items())
        return f"its views differ in frames: {shown}"
    rows = np.concatenate([table.points_px[:, 0] for table in tables.values()])
    errors = pose_errors_px({_NAME: pca}, rows, len(tables))[_NAME]
    for (view, table), of_view in zip(tables.items(), np.split(errors, len(tables)), strict=True):
        write_errors(session.targets[view], table.frames, table.keypoint_names, of_view)
    return ""
