"""Chooses frames: the most unusual ones first, far apart in time and different in what is unusual."""

import dataclasses
from collections.abc import Sequence

import numpy as np

# Evidence from which a signal is named as a reason.
_NAMED = 0.5
# A frame that fails in the same way as a chosen one counts this share less.
_LIKENESS_COST = 0.5


@dataclasses.dataclass(frozen=True)
class Choice:
    """A frame to label.

    Attributes:
      recording: its place in the list of recordings.
      frame: number of the frame, counted from 0.
      score: the larger, the more unusual; NaN without predictions.
      reason: for the user.
    """

    recording: int
    frame: int
    score: float
    reason: str


def choose_frames(
    evidence: Sequence[np.ndarray],
    signals: Sequence[str],
    keypoint_names: Sequence[str],
    skipped: Sequence[set[int]],
    count: int,
    apart: int,
) -> list[Choice]:
    """Returns up to `count` frames, the best first; fewer if no frame is left that is far enough from the others.

    Args:
      evidence: (n, signals, views k) of each recording.
      signals: their names.
      keypoint_names: k names.
      skipped: frames of each recording that are labelled already.
      count: how many.
      apart: two frames of one recording have more than this distance.
    """
    sizes = [len(of_recording) for of_recording in evidence]
    patterns = np.concatenate([of_recording.reshape(len(of_recording), -1) for of_recording in evidence])
    owners, frames = np.repeat(np.arange(len(sizes)), sizes), np.concatenate([np.arange(size) for size in sizes])
    # The worst keypoint of each signal: a rare pose is a little unusual in all keypoints, and is no failure.
    scores = patterns.reshape(len(patterns), *evidence[0].shape[1:]).max(axis=2).sum(axis=1)
    is_free = np.array(
        [frame not in skipped[owner] for owner, frame in zip(owners.tolist(), frames.tolist(), strict=True)]
    )
    lengths = np.linalg.norm(patterns, axis=1)
    unit = patterns / np.where(lengths > 0, lengths, 1)[:, None]
    likeness = np.zeros(len(scores))
    chosen: list[Choice] = []
    while len(chosen) < count and is_free.any():
        values = np.where(is_free, scores * (1 - _LIKENESS_COST * likeness), -1)
        best = int(values.argmax())
        reason = _describe(patterns[best].reshape(evidence[0].shape[1:]), signals, keypoint_names)
        chosen.append(Choice(int(owners[best]), int(frames[best]), float(scores[best]), reason))
        is_free &= (owners != owners[best]) | (np.abs(frames - frames[best]) > apart)
        likeness = np.maximum(likeness, unit @ unit[best])
    return chosen


def _describe(pattern: np.ndarray, signals: Sequence[str], keypoint_names: Sequence[str]) -> str:
    """Returns the signals (signals, views k) that stand out, each with its worst keypoint; the largest one at least."""
    worst = pattern.argmax(axis=1).tolist()
    largest = pattern.max(axis=1)
    named = [place for place in range(len(signals)) if largest[place] >= min(_NAMED, largest.max())]
    return "; ".join(f"{signals[place]}: {keypoint_names[worst[place] % len(keypoint_names)]}" for place in named)
