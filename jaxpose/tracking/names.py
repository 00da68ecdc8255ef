"""Gives tracks the names of labelled individuals, which a run has learnt to tell apart."""

import dataclasses
from pathlib import Path

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.pose.detections import Detections
from jaxpose.pose.individuals import Individuals, assign, features_of
from jaxpose.progress import phase
from jaxpose.tracking.tracks import NAME, Solution
from jaxpose.video.decoding import RangeReader
from jaxpose.video.index import as_labelled, labelled_sizes_px, read_index

# So many frames of a video are looked at. A track gets a name if it is seen in at least so many of them.
_FRAMES, _LEAST_SEEN = 48, 5
# In nats, per frame: another name must be so much less likely, with the best names for the other tracks.
_CLEAR = 0.5
# A single frame speaks at most so much against a name.
_LEAST_LOG = -5.0


@dataclasses.dataclass(frozen=True)
class Evidence:
    """How much the detections of some frames look like each individual.

    Attributes:
      names: n names.
      scores: (m, n) log probability of each name for each of m detections, NaN in other frames.
    """

    names: tuple[str, ...]
    scores: np.ndarray


def read_evidence(
    individuals: Individuals, data: DataConfig, file: Path, found: Detections, keypoint_names: tuple[str, ...]
) -> Evidence:
    """Looks at some frames of a video.

    Args:
      individuals: what tells them apart.
      data: the options of its run.
      file: the video.
      found: the m detections.
      keypoint_names: of their poses, the same as those of the run.

    Raises:
      UserError: the file is not a readable video.
    """
    index = as_labelled(read_index(file), labelled_sizes_px(data))
    order = [keypoint_names.index(name) for name in individuals.keypoint_names]
    frames = np.unique(found.frames)
    frames = frames[np.unique(np.linspace(0, len(frames) - 1, _FRAMES).round().astype(int))]
    scores = np.full((len(found), len(individuals.names)), np.nan)
    size_px = index.width_px, index.height_px
    with phase(f"looking for individuals in {file.name}", len(frames), "frame") as reading:
        for number in frames[frames < index.frame_count].tolist():
            for _, image in RangeReader(index, number, number + 1, np.eye(2, 3), size_px):
                rows = np.setdiff1d(found.table[number][found.table[number] >= 0], found.parts)
                features = features_of(found.poses_px[rows][:, order], image, individuals.radius_px)
                scores[rows] = np.maximum(individuals.log_probabilities(features), _LEAST_LOG)
            reading.update()
    return Evidence(individuals.names, scores)


def with_names(solution: Solution, evidence: Evidence | None) -> Solution:
    """Returns tracks with the names of individuals where these are clear; the others keep a number."""
    tracks = len(solution.names)
    if evidence is None or not tracks:
        return solution
    known = np.isfinite(evidence.scores[:, 0]) & (solution.of_detections >= 0)
    counts = np.bincount(solution.of_detections[known], minlength=tracks)
    means = np.full((tracks, len(evidence.names)), _LEAST_LOG)
    for track in np.flatnonzero(counts >= _LEAST_SEEN).tolist():
        means[track] = evidence.scores[known & (solution.of_detections == track)].mean(axis=0)
    best = assign(means)
    total = _total(means, best)
    names: dict[int, str] = {}
    for track in np.flatnonzero((best >= 0) & (counts >= _LEAST_SEEN)).tolist():
        other = means.copy()
        other[track, best[track]] = -1e6
        if total - _total(means, assign(other)) > _CLEAR:
            names[track] = evidence.names[best[track]]
    free = (name for number in range(1, tracks + len(names) + 1) if (name := f"{NAME}{number}") not in names.values())
    return dataclasses.replace(solution, names=tuple(names.get(track) or next(free) for track in range(tracks)))


def _total(scores: np.ndarray, columns: np.ndarray) -> float:
    rows = np.flatnonzero(columns >= 0)
    return float(scores[rows, columns[rows]].sum())
