"""The predictions of recordings, read from the tables in the folders of one or several runs."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxpose.config import Config
from jaxpose.data.inputs import TABLES_BESIDE
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.error_table import read_errors
from jaxpose.formats.lightning_pose.tables import Predictions, read_predictions
from jaxpose.labelling.recordings import Recording
from jaxpose.pose.pca import Pca, errors_px
from jaxpose.prediction.finished_tables import find_table
from jaxpose.run.ensemble import refuse_other_keypoints
from jaxpose.run.identity import read_config, refuse_no_run, refuse_pretraining
from jaxpose.run.paths import CONFIG_FILE

_POSE_ERRORS = tuple(suffix for suffix in TABLES_BESIDE if suffix.startswith("_pca_"))


@dataclasses.dataclass(frozen=True)
class Tracks:
    """The predictions of a recording of n frames; with several cameras, the keypoints of all views side by side.

    Attributes:
      keypoint_names: k names.
      keypoints_px: (n, views k, 2) the median over the runs, in frame pixels.
      confidence: (n, views k) the mean over the runs.
      pose_error_px: (n, views k) distance from plausible poses, None if it is unknown.
      spread_px: (n, views k) standard deviation over the runs, None with one run.
    """

    keypoint_names: tuple[str, ...]
    keypoints_px: np.ndarray
    confidence: np.ndarray
    pose_error_px: np.ndarray | None
    spread_px: np.ndarray | None


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


def read_tracks(runs: Sequence[Path], names: tuple[str, ...], recording: Recording, poses: dict[str, Pca]) -> Tracks:
    """Reads the predictions of a recording by all runs.

    Args:
      runs: run folders.
      names: of the keypoints, in the order of the runs.
      recording: the videos.
      poses: {view: plausible poses} for tables without errors of poses beside them.

    Raises:
      UserError: a run has no whole table of a video (the message has the command that makes it), or views differ in
        frames.
      DamagedFile: a table or an index was changed.
    """
    parts = [_read_view(runs, names, video, poses.get(view)) for view, video in recording.videos.items()]
    counts = {len(part.keypoints_px) for part in parts}
    if len(counts) > 1:
        raise UserError(f"the videos of {recording.name} have {' and '.join(map(str, sorted(counts)))} frames")
    errors = [part.pose_error_px for part in parts if part.pose_error_px is not None]
    spreads = [part.spread_px for part in parts if part.spread_px is not None]
    return Tracks(
        names,
        np.concatenate([part.keypoints_px for part in parts], axis=1),
        np.concatenate([part.confidence for part in parts], axis=1),
        np.concatenate(errors, axis=1) if len(errors) == len(parts) else None,
        np.concatenate(spreads, axis=1) if spreads else None,
    )


def _read_view(runs: Sequence[Path], names: tuple[str, ...], video: Path, poses: Pca | None) -> Tracks:
    tables = [find_table(run, video) for run in runs]
    read = [_read_table(table, names) for table in tables]
    if len({len(of_run.index) for of_run in read}) > 1:
        raise UserError(
            f"the runs predicted {video} with different numbers of frames; predict it again with one of them"
        )
    places = np.stack([of_run.keypoints_frame_px for of_run in read])
    keypoints_px = np.median(places, axis=0)
    errors = [error for table in tables if (error := _read_pose_errors(table)) is not None]
    if errors:
        pose_error_px: np.ndarray | None = np.mean(errors, axis=0)
    else:
        pose_error_px = None if poses is None else errors_px(poses, keypoints_px)
    return Tracks(
        names,
        keypoints_px,
        np.mean([of_run.confidence for of_run in read], axis=0),
        pose_error_px,
        np.sqrt(places.var(axis=0).sum(axis=-1)) if len(runs) > 1 else None,
    )


def _read_table(table: Path, names: tuple[str, ...]) -> Predictions:
    found = read_predictions(table)
    if tuple(found.keypoint_names) != names or found.index != [str(frame) for frame in range(len(found.index))]:
        raise UserError(f"{table} is no table of whole predictions with the keypoints {', '.join(names)}")
    return found


def _read_pose_errors(table: Path) -> np.ndarray | None:
    """Returns the largest error (n, k) of the tables of pose errors beside a table, None without them."""
    files = [table.with_name(f"{table.stem}{suffix}.csv") for suffix in _POSE_ERRORS]
    found = [read_errors(file).errors_px for file in files if file.is_file()]
    return np.fmax.reduce(found) if found else None
