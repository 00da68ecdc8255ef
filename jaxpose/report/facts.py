"""Reads the facts about a run from the files of its folder; builds no network."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.config import Config, DataConfig
from jaxpose.data.dataset import match_keypoints
from jaxpose.data.image_file import decode_image
from jaxpose.data.project import Project
from jaxpose.data.skeleton import edges_given
from jaxpose.data.split import KnownSplit, read_split
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.formats.lightning_pose.tables import read_errors, read_predictions
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.formats.project import read_project
from jaxpose.labelling.recordings import POSE_ERROR_PX, find_evidence
from jaxpose.pose.metrics import step_lengths_px
from jaxpose.poses import SETS, TEST, UNUSED, VALIDATION, Poses, join_poses
from jaxpose.prediction.video_tables import finished_tables, read_finished
from jaxpose.run.identity import read_config, refuse_no_run
from jaxpose.run.paths import CONFIG_FILE, EVALUATION_FILE, FINISHED_FILE, SPLIT_FILE
from jaxpose.run.status import read_evaluated, read_of_one_evaluation, read_summary

# The labelled frames of a run with their predictions and errors, read from its tables.

# The column of errors: NaN where a keypoint is not labelled, or is marked as not visible and not counted.
_ERROR_PX = "error_px"


def read_labelled(run: Path, config: Config) -> PredictionTable | None:
    """Reads predictions[_VIEW].csv and predictions[_VIEW]_pixel_error.csv; None if the run has none yet.

    With several cameras, each view of a moment is a frame. Every frame has a set, and `measured_px` returns its errors.

    Raises:
      UserError: a table is damaged, or two of them differ in frames or keypoints.
    """
    names, parts, sets = tuple(config.data.keypoint_names), [], list[str]()
    for view in config.data.views or ("",):
        stem = "_".join(part for part in ("predictions", view) if part)
        files = run / f"{stem}.csv", run / f"{stem}_pixel_error.csv"
        if not all(file.is_file() for file in files):
            return None
        evaluated = read_evaluated(run)
        for file in files:
            evaluated.refuse_changed(file.name)
        predicted, measured = read_predictions(files[0]), read_errors(files[1])
        poses = predicted.poses
        if (poses.keypoint_names, poses.frames) != (tuple(measured.keypoint_names), measured.index):
            raise UserError(f"{files[0]} and {files[1].name} are not of the same frames: run jaxpose evaluate again")
        if poses.keypoint_names != names:
            raise UserError(f"{files[0]} is not of this run: its keypoints are not {', '.join(names)}")
        parts.append(dataclasses.replace(poses, columns={_ERROR_PX: measured.errors_px[:, None]}))
        sets += predicted.sets or [UNUSED] * len(poses.frames)
    return PredictionTable(run, join_poses(parts), sets=sets)


def errors_of_frames(frames: PredictionTable) -> np.ndarray:
    """Returns the errors (n, k) of the table that `read_labelled` returned."""
    return frames.poses.columns[_ERROR_PX][:, 0]


def rows_of_set(frames: PredictionTable, name: str) -> np.ndarray:
    """Returns the row numbers (m,) of a set."""
    return np.flatnonzero(np.array(frames.sets) == name)


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """A run.

    Attributes:
      run: the folder.
      config: the run's.
      split: the sets of its frames; None if unknown.
      summary: from finished.json, {} before the end of the training.
      evaluation: from evaluation.json, {} without one.
      frames: its labelled frames and their errors, None before they are measured.
    """

    run: Path
    config: Config
    split: KnownSplit | None
    summary: dict[str, Any]
    evaluation: dict[str, Any]
    frames: PredictionTable | None

    def shown_set(self) -> str:
        """Returns the set whose errors say most about other frames: test, otherwise validation; "" without any."""
        present = set(self.frames.sets or ()) if self.frames else set()
        return next((name for name in (TEST, VALIDATION, *SETS) if name in present), "")


def read_facts(run: Path) -> RunFacts:
    """Reads a run folder.

    Raises:
      UserError: it is not a run, or a file is damaged.
    """
    refuse_no_run(run)
    return read_of_one_evaluation(run, lambda: _read_facts(run))


def _read_facts(run: Path) -> RunFacts:
    config = read_config(run / CONFIG_FILE)
    return RunFacts(
        run,
        config,
        read_split(run / SPLIT_FILE, is_of_run=True) if (run / SPLIT_FILE).is_file() else None,
        read_summary(run) if (run / FINISHED_FILE).is_file() else {},
        _read_evaluation(run),
        read_labelled(run, config),
    )


def _read_evaluation(run: Path) -> dict[str, Any]:
    """Returns the content of evaluation.json, {} if it is absent: the tables have the same figures."""
    file = run / EVALUATION_FILE
    if not file.is_file():
        return {}
    read_evaluated(run).refuse_changed(EVALUATION_FILE)
    return json.loads(read_bytes(file))


# The labels and images of a run's project, matched to the rows of the run's tables.


def read_labels(data: DataConfig, project: Project | None) -> Project:
    """Returns the project of a run, with the run's keypoints.

    Args:
      data: the run's.
      project: the run's, if the caller has read it.

    Raises:
      UserError: the project no longer exists, or cannot be used.
    """
    if not data.project:
        raise UserError("the run names no project, so there are no pictures")
    if not Path(data.project).exists():
        raise UserError(f"the project {data.project} does not exist, so there are no pictures")
    return match_keypoints(project or read_project(data), data.keypoint_names)


def rows_in_project(project: Project, frames: PredictionTable) -> np.ndarray:
    """Returns the row (n,) of each frame of a run in its project, -1 for frames that it lacks."""
    places = {image: row for row, image in enumerate(project.poses.frames)}
    return np.array([places.get(image, -1) for image in frames.poses.frames], int)


def labelled_frame_px(project: Project, frames: PredictionTable) -> np.ndarray:
    """Returns the labels (n, k, 2) of the frames of a run in frame pixels, NaN without a label."""
    rows = rows_in_project(project, frames)
    return np.where((rows >= 0)[:, None, None], project.labelled_frame_px()[rows], np.nan)


def read_image(project: Project, row: int, white: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the image (h, w, 3) of a row of a project, and the frame pixel (2,) of its first pixel.

    Args:
      project: holds the image.
      row: a row of it.
      white: `data.white` of the run.

    Raises:
      UserError: it does not decode.
      OSError: it cannot be read.
    """
    content = read_bytes(project.paths[row], most_bytes=None)
    image = decode_image(content, project.pixel_rule(white), is_known=True)
    return image, np.array((project.crop_px(row) or (0, 0))[:2], float)


def edges_of_run(data: DataConfig) -> tuple[tuple[int, int], ...]:
    """Returns the edges of a run's skeleton, pairs of numbers of keypoints."""
    names = data.keypoint_names
    return tuple((names.index(a), names.index(b)) for a, b in edges_given("data.skeleton", data.skeleton, names))


# The predictions of a run's videos, read from its tables, with their unusual frames.

# Maximum bytes of tables that are read: about 300,000 frames of 17 keypoints.
MOST_BYTES = 300_000_000
_POSE_ERRORS = ("_pca_singleview_error", "_pca_multiview_error")
# Evidence above this may be suspicious: the logarithm of 1 + robust standard deviations beyond the normal three.
_UNUSUAL = float(np.log1p(3))
# Maximum share of suspicious frames: in a poor run, most frames are unusual.
_SHARE = 0.05
# Suspicious frames with at most this many others between them form one segment.
_APART = 3


@dataclasses.dataclass(frozen=True)
class Segment:
    """Consecutive frames of a video with something unusual in most of them.

    Attributes:
      first, last: numbers of frames.
      worst: the most unusual of them.
      evidence: that frame's; larger is more unusual.
      signal: what is unusual in that frame, as `evidence` names it.
      keypoint: number of the unusual keypoint.
    """

    first: int
    last: int
    worst: int
    evidence: float
    signal: str
    keypoint: int


@dataclasses.dataclass(frozen=True)
class Recording:
    """The predictions of a video.

    Attributes:
      name: its table's, without suffix.
      video: the file, which may be on another machine.
      poses: its n frames, with the column POSE_ERROR_PX where it is known.
      steps_px: (n, k) how far each keypoint moved since the previous frame.
      segments: suspicious ones, the most unusual first.
    """

    name: str
    video: Path
    poses: Poses
    steps_px: np.ndarray
    segments: list[Segment]


def read_recordings(facts: RunFacts) -> tuple[list[Recording], list[str]]:
    """Returns the predicted videos of a run, and the names of further ones that are too long to read.

    Raises:
      UserError: no video is predicted, or a table is damaged.
    """
    return read_finished([facts.run], lambda: _read_recordings(facts))


def _read_recordings(facts: RunFacts) -> tuple[list[Recording], list[str]]:
    tables, left_out, room = [], [], MOST_BYTES
    for table, video in finished_tables(facts.run).items():
        room -= table.stat().st_size
        if room < 0 and tables:
            left_out.append(table.stem)
        else:
            tables.append((table, video))
    predicted = [_read_poses(table, tuple(facts.config.data.keypoint_names)) for table, _ in tables]
    signals, evidence = find_evidence(predicted)
    least = least_evidence(evidence)
    recordings = [
        Recording(
            table.stem,
            video,
            of_video,
            step_lengths_px(of_video.points_px[:, 0], None),
            find_segments(found, signals, least),
        )
        for (table, video), of_video, found in zip(tables, predicted, evidence, strict=True)
    ]
    return recordings, left_out


def least_evidence(evidence: list[np.ndarray]) -> float:
    """Returns the threshold of evidence for suspicious frames, for the evidence (n, signals, k) of all videos."""
    largest = np.concatenate([found.reshape(len(found), -1).max(axis=1) for found in evidence])
    return max(_UNUSUAL, float(np.quantile(largest, 1 - _SHARE)))


def find_segments(evidence: np.ndarray, signals: list[str], least: float) -> list[Segment]:
    """Returns the suspicious segments of a video, the most unusual first.

    Args:
      evidence: (n, signals, k) of `find_evidence`.
      signals: their names.
      least: from `least_evidence`.
    """
    largest = evidence.reshape(len(evidence), -1).max(axis=1, initial=0.0)
    frames = np.flatnonzero(largest > least)
    segments = []
    for part in np.split(frames, np.flatnonzero(np.diff(frames) > _APART + 1) + 1) if len(frames) else ():
        worst = int(part[largest[part].argmax()])
        signal, keypoint = np.unravel_index(evidence[worst].argmax(), evidence.shape[1:])
        segments.append(
            Segment(int(part[0]), int(part[-1]), worst, float(largest[worst]), signals[int(signal)], int(keypoint))
        )
    return sorted(segments, key=lambda segment: -segment.evidence)


def _read_poses(table: Path, names: tuple[str, ...]) -> Poses:
    found = read_predictions(table).poses
    if found.keypoint_names != names or not found.frames:
        raise UserError(f"{table} is not of this run: its keypoints are not {', '.join(names)}")
    beside = [table.with_name(f"{table.stem}{ending}.csv") for ending in _POSE_ERRORS]
    errors = [read_errors(file).errors_px for file in beside if file.is_file()]
    errors = [of_kind for of_kind in errors if of_kind.shape == (len(found.frames), len(names))]
    columns = {POSE_ERROR_PX: np.fmax.reduce(errors)[:, None]} if errors else {}
    return dataclasses.replace(found, columns=columns)
