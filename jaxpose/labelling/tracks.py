"""The predictions of recordings, read from the tables in the folders of one or several runs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxpose.config import Config
from jaxpose.data.inputs import TABLES_BESIDE
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.error_table import read_errors
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.labelling.evidence import POSE_ERROR_PX, SPREAD_PX
from jaxpose.labelling.recordings import Recording
from jaxpose.pose.pca import Pca, errors_px
from jaxpose.poses import Poses, side_by_side
from jaxpose.prediction.finished_tables import find_table
from jaxpose.run.ensemble import refuse_other_keypoints
from jaxpose.run.identity import read_config, refuse_no_run, refuse_pretraining
from jaxpose.run.paths import CONFIG_FILE

_POSE_ERRORS = tuple(suffix for suffix in TABLES_BESIDE if suffix.startswith("_pca_"))


def read_run_configs(runs: Sequence[Path]) -> list[Config]:
    """Returns the configs of runs whose predictions can be used together.

    Raises:
      UserError: a folder is no run, or that of a pretraining; one is named twice; or the runs differ in keypoints or
        views.
    """
    for run in runs:
        refuse_no_run(run)
    configs = [read_config(run / CONFIG_FILE) for run in runs]
    for run, config in zip(runs, configs, strict=True):
        refuse_pretraining(run, config)
    refuse_other_keypoints(runs, configs)
    return configs


def read_recording(runs: Sequence[Path], names: tuple[str, ...], recording: Recording, poses: dict[str, Pca]) -> Poses:
    """Reads the predictions of a recording by all runs; with several cameras, the keypoints of all views side by side.

    Positions are medians over the runs, and confidences are means. The columns are `POSE_ERROR_PX`, where it is known,
    and `SPREAD_PX` with several runs.

    Args:
      runs: run folders.
      names: of the keypoints, in the order of the runs.
      recording: the videos.
      poses: {view: plausible poses} for tables without errors of poses next to them.

    Raises:
      UserError: a run has no whole table of a video (the message has the command that makes it), or views differ in
        frames.
      DamagedFile: a table or an index was changed.
    """
    parts = [_read_view(runs, names, video, poses.get(view)) for view, video in recording.videos.items()]
    counts = {len(part.frames) for part in parts}
    if len(counts) > 1:
        raise UserError(f"the videos of {recording.name} have {' and '.join(map(str, sorted(counts)))} frames")
    of_views = [f"{name}_{view}" if view else name for view in recording.videos for name in names]
    return side_by_side(parts, of_views)


def _read_view(runs: Sequence[Path], names: tuple[str, ...], video: Path, poses: Pca | None) -> Poses:
    tables = [find_table(run, video) for run in runs]
    read = [_read_table(table, names) for table in tables]
    if len({len(of_run.frames) for of_run in read}) > 1:
        raise UserError(
            f"the runs predicted {video} with different numbers of frames; predict it again with one of them"
        )
    places, confidences = zip(*(of_run.one_animal() for of_run in read), strict=True)
    stacked = np.stack(places)
    points_px, columns = np.median(stacked, axis=0), {}
    errors = [error for table in tables if (error := _read_pose_errors(table)) is not None]
    if errors:
        columns[POSE_ERROR_PX] = np.mean(errors, axis=0)
    elif poses is not None:
        columns[POSE_ERROR_PX] = errors_px(poses, points_px)
    if len(runs) > 1:
        columns[SPREAD_PX] = np.sqrt(stacked.var(axis=0).sum(axis=-1))
    return Poses.of_one_animal(names, read[0].frames, points_px, np.mean(confidences, axis=0), columns=columns)


def _read_table(table: Path, names: tuple[str, ...]) -> Poses:
    found = read_predictions(table).poses
    if found.keypoint_names != names or found.frames != [str(frame) for frame in range(len(found.frames))]:
        raise UserError(f"{table} is no table of whole predictions with the keypoints {', '.join(names)}")
    return found


def _read_pose_errors(table: Path) -> np.ndarray | None:
    """Returns the largest error (n, k) of the tables of pose errors beside a table, None without them."""
    files = [table.with_name(f"{table.stem}{suffix}.csv") for suffix in _POSE_ERRORS]
    found = [read_errors(file).errors_px for file in files if file.is_file()]
    return np.fmax.reduce(found) if found else None
