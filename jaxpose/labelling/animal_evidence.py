"""Measures which frames of several animals are worth labelling, from the predictions of a run."""

import csv
import dataclasses
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxpose.config.option import excerpt
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.tables import read_individuals
from jaxpose.labelling.project_labels import ProjectLabels
from jaxpose.labelling.recordings import CONFIDENCE, NAMED, Choice, Recording, describe, log_excess, scaled
from jaxpose.poses import Poses
from jaxpose.prediction.index import DETECTIONS, TRACKS
from jaxpose.prediction.video_tables import find_table
from jaxpose.text_file import read_unicode

# Signals of a whole frame, by their names for the user.
CROWDED, NUMBER, MARGIN = "crowded", "unusual number of animals", "doubtful track"
# A share of a body size, or a probability, is this usual; more stands out.
_LEAST_SHARE = 0.05
# Compares the number of animals of a frame with the median of this many frames on either side.
_RADIUS = 5
# Rows of a review about all frames from the first to the last; others are about these two frames.
_OF_ALL_FRAMES = ("extra", "missing")


@dataclasses.dataclass(frozen=True)
class Doubt:
    """A row of the review of tracks: frames `first` to `last`, and the probability that it is wrong."""

    kind: str
    first: int
    last: int
    probability: float


@dataclasses.dataclass(frozen=True)
class Crowd:
    """The animals of a video.

    Attributes:
      poses: the animals of each frame, NaN where there are fewer.
      doubts: the rows of the review of their tracks; None without a review.
    """

    poses: Poses
    doubts: list[Doubt] | None


def read_crowd(run: Path, recording: Recording, names: tuple[str, ...]) -> Crowd:
    """Reads a run's detections of a video, and the review of their tracks if there is one.

    Raises:
      UserError: the run has no complete table of the video, or it or the review cannot be understood.
      DamagedFile: the table or the index has changed.
    """
    (video,) = recording.videos.values()
    file = find_table(run, video)
    table = read_individuals(file)
    if table is None or table.poses.keypoint_names != names:
        raise UserError(f"{file} is not a table of several animals with the keypoints {', '.join(names)}")
    review = file.with_name(f"{file.name.removesuffix(f'{DETECTIONS}.csv')}{TRACKS}_review.csv")
    return Crowd(table.poses, _read_review(review, len(table.poses.frames)) if review.is_file() else None)


def _read_review(file: Path, frames: int) -> list[Doubt]:
    doubts = []
    try:
        reader = csv.DictReader(io.StringIO(read_unicode(file), newline=""))
        for row in reader:
            try:
                first, last, margin = int(row["frame_from"]), int(row["frame_to"]), float(row["margin"])
            except (KeyError, TypeError, ValueError):
                raise UserError(
                    f"{file}:{reader.line_num} is not a row of a review that jaxpose track wrote; make it again"
                ) from None
            if not 0 <= first <= last < frames or not np.isfinite(margin):
                shown = excerpt(f"{first} to {last}", quoted=False)
                raise UserError(
                    f"{file}:{reader.line_num} names the frames {shown}, but its video has {frames:,}: make the tracks "
                    "of this video again"
                )
            doubts.append(Doubt(row["kind"], first, last, float(1 / (1 + np.exp(np.clip(margin, -50, 50))))))
    except csv.Error as error:
        raise UserError(f"{file} is not a CSV file: {error}") from None
    return doubts


def expected_animals(project: ProjectLabels) -> int | None:
    """Returns the number of animals in every labelled image, None if the images differ."""
    of_images = {
        number
        for table in project.all_tables()
        for number in Counter(table.entries or range(len(table.poses.frames))).values()
    }
    return of_images.pop() if len(of_images) == 1 else None


def find_evidence(
    crowds: Sequence[Crowd], body_size_px: float, expected: int | None
) -> tuple[list[str], list[np.ndarray]]:
    """Returns the signal names, and the evidence (n, signals, k), at least 0, for each video.

    Evidence about a whole frame is that of the first keypoint. Crowding is the nearest distance of two animals'
    middles, in body sizes; it and the confidence are compared with their usual values over all videos. The others are
    not: also in a video in which most frames lack an animal, each of them counts.

    Args:
      crowds: the animals of each video.
      body_size_px: the body size of the run.
      expected: the number of animals in a frame; None compares it with the frames around.
    """
    ends = np.cumsum([len(crowd.poses.frames) for crowd in crowds])[:-1]
    doubt = [1 - np.asarray(crowd.poses.confidence) for crowd in crowds]
    of_frames = {
        CROWDED: scaled(np.concatenate([_closeness(crowd.poses, body_size_px) for crowd in crowds]), _LEAST_SHARE),
        NUMBER: log_excess(np.concatenate([_excess(crowd.poses, expected) for crowd in crowds]) / _LEAST_SHARE),
    }
    if any(crowd.doubts is not None for crowd in crowds):
        of_frames[MARGIN] = log_excess(np.concatenate([_probabilities(crowd) for crowd in crowds]) / _LEAST_SHARE)
    worst = scaled(np.concatenate([np.fmax.reduce(values, axis=1) for values in doubt]), _LEAST_SHARE)
    evidence = np.zeros((len(worst), 1 + len(of_frames), worst.shape[1]))
    evidence[:, 0] = worst
    for place, values in enumerate(of_frames.values(), 1):
        evidence[:, place, :1] = values
    return [CONFIDENCE, *of_frames], np.split(evidence, ends)


def _closeness(poses: Poses, body_size_px: float) -> np.ndarray:
    """Returns (n, 1): 1 if the middles of two animals coincide, 0 if all are a body size apart."""
    low, high = (reduce(poses.points_px, axis=2) for reduce in (np.fmin.reduce, np.fmax.reduce))
    middles = (low + high) / 2
    apart = np.linalg.norm(middles[:, :, None] - middles[:, None], axis=-1)
    ones, others = np.triu_indices(middles.shape[1], 1)
    nearest = np.fmin.reduce(apart[:, ones, others], axis=1, initial=np.inf)
    return np.clip(1 - nearest / body_size_px, 0, 1)[:, None]


def _excess(poses: Poses, expected: int | None) -> np.ndarray:
    """Returns how many animals (n, 1) a frame has too many or too few."""
    found = np.isfinite(poses.points_px[..., 0]).any(axis=2).sum(axis=1)
    if expected is not None:
        return np.abs(found - expected)[:, None]
    padded = np.pad(found, _RADIUS, mode="edge")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * _RADIUS + 1), axis=1)
    return np.abs(found - around)[:, None]


def _probabilities(crowd: Crowd) -> np.ndarray:
    """Returns the probability (n, 1) that the tracks are wrong in a frame, 0 without a review."""
    found = np.zeros((len(crowd.poses.frames), 1))
    for doubt in crowd.doubts or ():
        rows = [doubt.first, doubt.last]
        rows = slice(doubt.first, doubt.last + 1) if doubt.kind in _OF_ALL_FRAMES else rows
        found[rows] = np.maximum(found[rows], doubt.probability)
    return found


def choose_in_turns(
    evidence: Sequence[np.ndarray],
    signals: Sequence[str],
    keypoint_names: Sequence[str],
    skipped: Sequence[set[int]],
    count: int,
    apart: int,
) -> list[Choice]:
    """Returns up to `count` frames: the signals take turns, each with the frame in which it stands out most.

    Frames in which two animals touch and their tracks are doubtful would otherwise leave no place for those that lack
    an animal. A signal that stands out in no other frame loses its turn; if none does, all count together.

    Args:
      evidence, signals: from `find_evidence`.
      keypoint_names, skipped, count, apart: as for `choose_frames`.
    """
    sizes = [len(of_video) for of_video in evidence]
    patterns = np.concatenate(evidence)
    largest = patterns.max(axis=2)
    scores = largest.sum(axis=1)
    owners, frames = np.repeat(np.arange(len(sizes)), sizes), np.concatenate([np.arange(size) for size in sizes])
    is_free = np.array([frame not in skipped[owner] for owner, size in enumerate(sizes) for frame in range(size)])
    chosen: list[Choice] = []
    waiting = list(range(len(signals)))
    while len(chosen) < count and is_free.any():
        # Of frames with the same evidence, the one with more of the others.
        values = np.where(is_free[:, None], largest + 1e-3 * scores[:, None], -1)
        waiting = [place for place in waiting if largest[values[:, place].argmax(), place] >= NAMED]
        best = int((values[:, waiting[0]] if waiting else np.where(is_free, scores, -1)).argmax())
        waiting = [*waiting[1:], *waiting[:1]]
        reason = describe(patterns[best], signals, keypoint_names, signals[1:])
        chosen.append(Choice(int(owners[best]), int(frames[best]), float(scores[best]), reason))
        is_free &= (owners != owners[best]) | (np.abs(frames - frames[best]) > apart)
    return chosen
