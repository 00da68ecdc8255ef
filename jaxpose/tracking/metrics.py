"""Compares tracks with proofread ones: IDF1, MOTA, switches, missed and false animals."""

import dataclasses

import numpy as np
from scipy.optimize import linear_sum_assignment

from jaxpose.poses import Poses
from jaxpose.tracking.detections import Detections, find_detections

# Two poses are of one animal if their centres are nearer than this share of the median diagonal of a body.
GATE = 0.5


@dataclasses.dataclass(frozen=True)
class TrackErrors:
    """How tracks differ from the truth, in the frames for which the truth has an animal.

    Attributes:
      idf1: 2 x the animals with the right identity / (those of the truth + those of the tracks), for the best
        one-to-one assignment of whole tracks.
      mota: 1 - (missed + false + switches) / the animals of the truth.
      switches: how often an animal goes on under another identity.
      missed, false: animals of the truth without a partner, and animals of the tracks without one.
    """

    idf1: float
    mota: float
    switches: int
    missed: int
    false: int


def track_errors(truth: Poses, tracked: Poses) -> TrackErrors:
    """Compares animals with an identity; others are ignored. The frames of both must be the same video's."""
    expected, found = (_with_identity(poses) for poses in (truth, tracked))
    known, named = _identities(truth, expected), _identities(tracked, found)
    gate_px = GATE * float(np.median(_diagonals(expected))) if len(expected) else 0.0
    together = np.zeros((len(truth.individuals), len(tracked.individuals)), np.int64)
    frames = np.unique(expected.frames)
    is_compared = np.isin(found.frames, frames)
    last, switches, matched = dict[int, int](), 0, 0
    for frame in frames.tolist():
        here, there = (np.flatnonzero(one.frames == frame) for one in (expected, found))
        # If two animals had the same identity before, the first keeps it.
        here = here[np.argsort(known[here], kind="stable")]
        apart = np.linalg.norm(expected.centres_px[here][:, None] - found.centres_px[there][None], axis=-1)
        near = apart < gate_px
        ones, others = known[here], named[there]
        rows, columns = np.nonzero(near)
        together[ones[rows], others[columns]] += 1
        pairs = _matched(apart, near, ones, others, last)
        switches += sum(last.get(one, other) != other for one, other in pairs)
        last |= dict(pairs)
        matched += len(pairs)
    one, other = linear_sum_assignment(together, maximize=True)
    right = int(together[one, other].sum())
    missed, false = len(expected) - matched, int(is_compared.sum()) - matched
    return TrackErrors(
        idf1=2 * right / max(len(expected) + int(is_compared.sum()), 1),
        mota=1 - (missed + false + switches) / max(len(expected), 1),
        switches=switches,
        missed=missed,
        false=false,
    )


def _matched(
    apart: np.ndarray, near: np.ndarray, ones: np.ndarray, others: np.ndarray, last: dict[int, int]
) -> list[tuple[int, int]]:
    """Returns pairs of identities: those of the frame before go on while they are near, others are the nearest."""
    pairs, free = [], near.copy()
    for row, one in enumerate(ones.tolist()):
        column = np.flatnonzero((others == last.get(one, -1)) & free[row])
        if len(column):
            pairs.append((one, int(others[column[0]])))
            free[row], free[:, column[0]] = False, False
    costs = np.where(free, apart, 1e9)
    rows, columns = linear_sum_assignment(costs)
    return pairs + [
        (int(ones[row]), int(others[column])) for row, column in zip(rows, columns, strict=True) if free[row, column]
    ]


def _with_identity(poses: Poses) -> Detections:
    points = np.where((np.asarray(poses.identity) >= 0)[..., None, None], poses.points_px, np.nan)
    return find_detections(dataclasses.replace(poses, points_px=points))


def _identities(poses: Poses, found: Detections) -> np.ndarray:
    identity = np.asarray(poses.identity)
    return identity[found.frames, found.places]


def _diagonals(found: Detections) -> np.ndarray:
    return np.linalg.norm(np.nanmax(found.poses_px, axis=1) - np.nanmin(found.poses_px, axis=1), axis=1)
