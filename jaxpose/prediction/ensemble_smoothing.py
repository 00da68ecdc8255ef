"""The smoothed tables of ensembles, <video>_smoothed.csv beside the ensembles; views of a session together."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxpose.config import Config, PredictConfig
from jaxpose.data.views import view_of_video, without_view
from jaxpose.files import sha256_of
from jaxpose.formats.lightning_pose.smoothed_table import smoothed_columns, write_smoothed
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.pose.ensemble_smoother import Ensemble, combine, smooth
from jaxpose.pose.pca_fit import columns_of
from jaxpose.pose.smooth import Smoothed, is_used, median
from jaxpose.prediction.ensemble import SCORER
from jaxpose.prediction.smoothing import finish_smoothed, is_smoothed, record_of
from jaxpose.prediction.table_files import SMOOTHED, beside, remove_smoothed
from jaxpose.run.paths import VIDEO_TABLES_FOLDER

# As the Ensemble Kalman Smoother writes.
KALMAN_SCORER = "ensemble-kalman_tracker"

_logger = logging.getLogger(__name__)


def smooth_ensembles(
    options: PredictConfig, config: Config, runs: Sequence[Path], tables: Sequence[Path], out: Path
) -> None:
    """Writes the smoothed tables of the ensembles of videos, unless they exist already; smooth=none does nothing.

    Args:
      options: which smoother, and its numbers.
      config: of the first run.
      runs: run folders with their tables, which are undamaged.
      tables: places of the tables below each run.
      out: folder of the ensembles.

    Raises:
      UserError: a table cannot be read.
      OSError: a file cannot be written.
    """
    if options.smooth == "none":
        return
    videos = [table for table in tables if table.parts[0] == VIDEO_TABLES_FOLDER]
    for session in _sessions(videos, config.data.views):
        made_from = record_of(options, [sha256_of(run / table) for table in session for run in runs])
        if all(is_smoothed(out / table, made_from) for table in session):
            continue
        for table in session:
            remove_smoothed(out / table)
        views = [_read(runs, table) for table in session]
        if len({len(view.index) for view in views}) > 1:
            frames = ", ".join(f"{table.stem} {len(view.index)}" for table, view in zip(session, views, strict=True))
            _logger.warning(f"the views of a session differ in frames ({frames}), so each is smoothed on its own")
            groups = [[place] for place in range(len(views))]
        else:
            groups = [list(range(len(views)))]
        for group in groups:
            found = _smooth(options, config, [views[place].ensemble for place in group])
            for place, (smoothed, columns) in zip(group, found, strict=True):
                names, file = views[place].keypoint_names, out / session[place]
                scorer = KALMAN_SCORER if options.smooth == "kalman" else SCORER
                write_smoothed(beside(file, SMOOTHED), views[place].index, names, columns, scorer)
                finish_smoothed(file, made_from, names, smoothed)


@dataclasses.dataclass(frozen=True, eq=False)
class _View:
    """The predictions of all runs for a video: n frames, k keypoints."""

    index: Sequence[str]
    keypoint_names: Sequence[str]
    ensemble: Ensemble


def _sessions(tables: Sequence[Path], views: Sequence[str]) -> list[list[Path]]:
    """Returns the tables of each session in the order of the views; a video alone where a view is absent."""
    found: dict[Path, dict[str, Path]] = {}
    for table in tables:
        view = view_of_video(table.stem, views)
        place = table.with_name(without_view(table.stem, view)) if view else table
        found.setdefault(place, {})[view] = table
    sessions = []
    for place, of_view in found.items():
        if set(of_view) == set(views):
            sessions.append([of_view[view] for view in views])
            continue
        if views:
            absent = ", ".join(view for view in views if view not in of_view)
            _logger.warning(f"{place.name} lacks the view {absent}, so each of its views is smoothed on its own")
        sessions += [[table] for table in of_view.values()]
    return sessions


def _read(runs: Sequence[Path], table: Path) -> _View:
    found = [read_predictions(run / table).poses for run in runs]
    keypoints, confidence = map(np.stack, zip(*(of_run.one_animal() for of_run in found), strict=True))
    return _View(found[0].frames, found[0].keypoint_names, combine(keypoints, confidence))


def _smooth(
    options: PredictConfig, config: Config, views: Sequence[Ensemble]
) -> list[tuple[Smoothed, dict[str, np.ndarray]]]:
    """Returns the smoothed keypoints and the columns of the table of each view; the views have the same frames."""
    keypoints = views[0].confidence.shape[1]
    together = Ensemble(*(np.concatenate(parts, axis=1) for parts in zip(*map(_arrays, views), strict=True)))
    if options.smooth == "median":
        used = is_used(together.median_px, together.confidence, options.smooth_min_confidence)
        smoothed, observed_var = median(together.median_px, used, options.smooth_window), together.var_px2
    else:
        bodyparts = _bodyparts(config, keypoints, len(views))
        smoothed, observed_var = smooth(together, bodyparts, options.smooth_min_confidence)
    found = []
    for first in range(0, keypoints * len(views), keypoints):
        of_view = slice(first, first + keypoints)
        pairs = {"ens_median": together.median_px[:, of_view], "ens_var": observed_var[:, of_view]}
        if smoothed.var_px2 is not None:
            pairs["posterior_var"] = smoothed.var_px2[:, of_view]
        part = Smoothed(
            smoothed.keypoints_frame_px[:, of_view],
            smoothed.is_filled[:, of_view],
            pairs.get("posterior_var"),
            smoothed.noise[of_view],
        )
        confidence = together.confidence[:, of_view]
        found.append((part, smoothed_columns(part.keypoints_frame_px, confidence, part.is_filled, pairs)))
    return found


def _arrays(ensemble: Ensemble) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return ensemble.median_px, ensemble.var_px2, ensemble.confidence


def _bodyparts(config: Config, keypoints: int, views: int) -> list[tuple[int, ...]]:
    """Returns the keypoints of each body part, one of each view: of several cameras, or of mirrors in one frame."""
    if views > 1:
        return [tuple(range(point, keypoints * views, keypoints)) for point in range(keypoints)]
    mirrors, names = config.losses.pca_multiview.views, config.data.keypoint_names
    if config.data.views or not mirrors:
        return [(point,) for point in range(keypoints)]
    option = "losses.pca_multiview.views"
    columns = [columns_of([name.strip() for name in entry.split(",")], names, option) for entry in mirrors]
    several = list(zip(*columns, strict=True))
    in_mirrors = {point for bodypart in several for point in bodypart}
    return [*several, *((point,) for point in range(keypoints) if point not in in_mirrors)]
