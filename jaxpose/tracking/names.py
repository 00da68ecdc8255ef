"""Gives tracks the names of labelled individuals, which a run has learnt to tell apart."""

import dataclasses
from pathlib import Path

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.errors import UserError
from jaxpose.pose.detections import Detections
from jaxpose.pose.individuals import Individuals, assign, features_of
from jaxpose.progress import phase
from jaxpose.tracking.tracks import NAME, Solution
from jaxpose.video.decoding import RangeReader
from jaxpose.video.index import VideoIndex, as_labelled, key_frame_before, labelled_sizes_px, read_index

# About so many frames of a video are looked at. A track gets a name if it is seen in at least so many of them.
_FRAMES, _LEAST_SEEN = 48, 5
# Where the video has few key frames, frames so far apart.
_STEP = 5
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
      UserError: the file is not a readable video, or it does not have the frames of the detections; or these have other
        keypoints than the run.
    """
    index = as_labelled(read_index(file), labelled_sizes_px(data))
    if index.frame_count != found.frame_count:
        raise UserError(f"{file} has {index.frame_count:,} frames, but the detections have {found.frame_count:,}")
    if {*keypoint_names} != {*individuals.keypoint_names}:
        raise UserError("the detections have other keypoints than the run")
    order = [keypoint_names.index(name) for name in individuals.keypoint_names]
    stretches = _stretches(index)
    scores = np.full((len(found), len(individuals.names)), np.nan)
    size_px = index.width_px, index.height_px
    with phase(f"looking for individuals in {file.name}", len(stretches)) as reading:
        for first, end in stretches:
            for number, image in RangeReader(index, first, end, np.eye(2, 3), size_px):
                if (number - first) % _STEP:
                    continue
                rows = np.setdiff1d(found.table[number][found.table[number] >= 0], found.parts)
                features = features_of(found.poses_px[rows][:, order], image, individuals.radius_px)
                scores[rows] = np.maximum(individuals.log_probabilities(features), _LEAST_LOG)
            reading.update()
    return Evidence(individuals.names, scores)


def _stretches(index: VideoIndex) -> list[tuple[int, int]]:
    """Returns stretches [first, end) of a video from key frames on, so that few frames are decoded.

    Each `_STEP`-th frame of a stretch is looked at. They are spread over the video as its key frames are.
    """
    spread = np.unique(np.linspace(0, index.frame_count - 1, _FRAMES).round().astype(int))
    keys = sorted({key_frame_before(index, number) for number in spread.tolist()})
    length = _STEP * (-(-_FRAMES // len(keys)) - 1) + 1
    ends = [*keys[1:], index.frame_count]
    return [(key, min(key + length, end)) for key, end in zip(keys, ends, strict=True)]


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
    # A track without a name keeps its number, whichever others have names.
    return dataclasses.replace(solution, names=tuple(names.get(track, f"{NAME}{track + 1}") for track in range(tracks)))


def _total(scores: np.ndarray, columns: np.ndarray) -> float:
    rows = np.flatnonzero(columns >= 0)
    return float(scores[rows, columns[rows]].sum())
