"""The predictions of a run's videos, read from its tables, with what is unusual in them."""

import dataclasses
from pathlib import Path

import numpy as np

from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.error_table import read_errors
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.labelling.evidence import POSE_ERROR_PX, find_evidence
from jaxpose.pose.metrics import step_lengths_px
from jaxpose.poses import Poses
from jaxpose.prediction.finished_tables import finished_tables
from jaxpose.report.facts import RunFacts

# Bytes of tables that are read: about 300,000 frames of 17 keypoints.
_MOST_BYTES = 300_000_000
_POSE_ERRORS = ("_pca_singleview_error", "_pca_multiview_error")
# Evidence above this may be suspicious: the logarithm of 1 + robust standard deviations beyond the usual three.
_UNUSUAL = float(np.log1p(3))
# The share of all frames that is suspicious at most: in a poor run, most frames are unusual.
_SHARE = 0.05
# Suspicious frames with at most so many others between them are one stretch.
_APART = 3


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Consecutive frames of a video with something unusual in most of them.

    Attributes:
      first, last: numbers of frames.
      worst: the most unusual of them.
      evidence: of that frame, the larger, the more unusual.
      signal: what is unusual in that frame, as `evidence` names it.
      keypoint: number of the keypoint in which it is.
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
      name: of its table, without suffix.
      video: the file, which may be of another machine.
      poses: its n frames, with the column POSE_ERROR_PX where it is known.
      steps_px: (n, k) how far each keypoint moved since the previous frame.
      stretches: suspicious ones, the most unusual first.
    """

    name: str
    video: Path
    poses: Poses
    steps_px: np.ndarray
    stretches: list[Stretch]


def read_recordings(facts: RunFacts) -> tuple[list[Recording], list[str]]:
    """Returns the predicted videos of a run, and the names of those that are too long to be read as well.

    Raises:
      UserError: no video is predicted, or a table is damaged.
    """
    tables, left_out, room = [], [], _MOST_BYTES
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
            find_stretches(found, signals, least),
        )
        for (table, video), of_video, found in zip(tables, predicted, evidence, strict=True)
    ]
    return recordings, left_out


def least_evidence(evidence: list[np.ndarray]) -> float:
    """Returns what the evidence of suspicious frames is above, for the evidence (n, signals, k) of all videos."""
    largest = np.concatenate([found.reshape(len(found), -1).max(axis=1) for found in evidence])
    return max(_UNUSUAL, float(np.quantile(largest, 1 - _SHARE)))


def find_stretches(evidence: np.ndarray, signals: list[str], least: float) -> list[Stretch]:
    """Returns the suspicious stretches of a video, the most unusual first.

    Args:
      evidence: (n, signals, k) of `find_evidence`.
      signals: their names.
      least: from `least_evidence`.
    """
    largest = evidence.reshape(len(evidence), -1).max(axis=1, initial=0.0)
    frames = np.flatnonzero(largest > least)
    stretches = []
    for part in np.split(frames, np.flatnonzero(np.diff(frames) > _APART + 1) + 1) if len(frames) else ():
        worst = int(part[largest[part].argmax()])
        signal, keypoint = np.unravel_index(evidence[worst].argmax(), evidence.shape[1:])
        stretches.append(
            Stretch(int(part[0]), int(part[-1]), worst, float(largest[worst]), signals[int(signal)], int(keypoint))
        )
    return sorted(stretches, key=lambda stretch: -stretch.evidence)


def _read_poses(table: Path, names: tuple[str, ...]) -> Poses:
    found = read_predictions(table).poses
    if found.keypoint_names != names or not found.frames:
        raise UserError(f"{table} is not of this run: its keypoints are not {', '.join(names)}")
    beside = [table.with_name(f"{table.stem}{ending}.csv") for ending in _POSE_ERRORS]
    errors = [read_errors(file).errors_px for file in beside if file.is_file()]
    errors = [of_kind for of_kind in errors if of_kind.shape == (len(found.frames), len(names))]
    columns = {POSE_ERROR_PX: np.fmax.reduce(errors)[:, None]} if errors else {}
    return dataclasses.replace(found, columns=columns)
