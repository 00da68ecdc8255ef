"""The smoothed tables of ensembles, <video>_smoothed.csv beside the ensembles; views of a session together."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

from jaxpose.config import Config, PredictConfig
from jaxpose.data.views import view_of_video, without_view
from jaxpose.files import sha256_of
from jaxpose.formats.lightning_pose.smoothed_table import write_smoothed
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.pose.ensemble_smoother import combine, smooth
from jaxpose.pose.pca_fit import columns_of
from jaxpose.pose.smooth import Noise, is_used, median
from jaxpose.poses import Poses, side_by_side
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
        views = [combine([read_predictions(run / table).poses for run in runs]) for table in session]
        if len({len(view.frames) for view in views}) > 1:
            frames = ", ".join(f"{table.stem} {len(view.frames)}" for table, view in zip(session, views, strict=True))
            _logger.warning(f"the views of a session differ in frames ({frames}), so each is smoothed on its own")
            groups = [[place] for place in range(len(views))]
        else:
            groups = [list(range(len(views)))]
        for group in groups:
            found = _smooth(options, config, [views[place] for place in group])
            for place, (poses, noise) in zip(group, found, strict=True):
                file, scorer = out / session[place], KALMAN_SCORER if options.smooth == "kalman" else SCORER
                write_smoothed(beside(file, SMOOTHED), poses, scorer)
                finish_smoothed(file, made_from, poses, noise)


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


def _smooth(options: PredictConfig, config: Config, views: Sequence[Poses]) -> list[tuple[Poses, Noise]]:
    """Returns the smoothed keypoints of each view and their noise; the views have the same frames."""
    names = views[0].keypoint_names
    of_views = [[f"{view} {name}" for name in names] for view in range(len(views))]
    together = side_by_side(views, sum(of_views, []))
    if options.smooth == "median":
        used = is_used(together, options.smooth_min_confidence)
        found, noise = median(together, used, options.smooth_window)
    else:
        bodyparts = _bodyparts(config, len(names), len(views))
        found, noise = smooth(together, bodyparts, options.smooth_min_confidence)
    parts = [dataclasses.replace(found.with_keypoints(of_view), keypoint_names=names) for of_view in of_views]
    return [(part, noise[place * len(names) : (place + 1) * len(names)]) for place, part in enumerate(parts)]


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
