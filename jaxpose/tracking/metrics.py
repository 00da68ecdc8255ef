"""Compares tracks with proofread ones: IDF1, MOTA, HOTA, switches, fragments, missed and false animals."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from jaxpose.pose.detections import Detections, find_detections
from jaxpose.poses import Poses

# Two poses are of one animal if their centres are nearer than this share of the median diagonal of a body.
GATE = 0.5
# How similar two poses must be, for HOTA.
_LEVELS = np.arange(1, 20) / 20


@dataclasses.dataclass(frozen=True)
class TrackErrors:
    """How tracks differ from the truth, in the frames for which the truth has an animal.

    Attributes:
      idf1: 2 x the animals with the right identity / (those of the truth + those of the tracks), for the best
        one-to-one assignment of whole tracks.
      mota: 1 - (missed + false + switches) / the animals of the truth.
      hota: the higher order tracking accuracy of Luiten et al. (2021), https://doi.org/10.1007/s11263-020-01375-2,
        equations 4 to 9: sqrt(DetA x AssA), averaged over the levels 0.05 to 0.95. The similarity of two poses is
        1 - (the distance of their centres / the median diagonal of a body), at least 0; 0.5 is the gate.
      switches: how often an animal goes on under another identity.
      fragments: how often an animal is found again after frames in which it was missed.
      missed, false: animals of the truth without a partner, and animals of the tracks without one.
    """

    idf1: float
    mota: float
    hota: float
    switches: int
    fragments: int
    missed: int
    false: int


@dataclasses.dataclass(frozen=True)
class _Frame:
    """The identities (i,) of the truth, in ascending order, those (j,) of the tracks, and their distances (i, j).

    A distance of 1 is the median diagonal of a body.
    """

    ones: np.ndarray
    others: np.ndarray
    apart: np.ndarray


def track_errors(truth: Poses, tracked: Poses) -> TrackErrors:
    """Compares animals with an identity; others are ignored. The frames of both must be the same video's."""
    expected, found = (_with_identity(poses) for poses in (truth, tracked))
    frames = _frames(truth, expected, tracked, found)
    shape = len(truth.individuals), len(tracked.individuals)
    together = np.zeros(shape, np.int64)
    last, is_lost, switches, fragments, matched = dict[int, int](), set[int](), 0, 0, 0
    for frame in frames:
        near = frame.apart < GATE
        rows, columns = np.nonzero(near)
        together[frame.ones[rows], frame.others[columns]] += 1
        pairs = _matched(frame.apart, near, frame.ones, frame.others, last)
        switches += sum(last.get(one, other) != other for one, other in pairs)
        last |= dict(pairs)
        matched += len(pairs)
        seen = {one for one, _ in pairs}
        fragments += len(seen & is_lost)
        # An animal that has never been found is not lost.
        is_lost = (is_lost | (set(frame.ones.tolist()) & last.keys())) - seen
    one, other = linear_sum_assignment(together, maximize=True)
    right = int(together[one, other].sum())
    compared = sum(len(frame.others) for frame in frames)
    missed, false = len(expected) - matched, compared - matched
    return TrackErrors(
        idf1=2 * right / max(len(expected) + compared, 1),
        mota=1 - (missed + false + switches) / max(len(expected), 1),
        hota=_hota(frames, shape),
        switches=switches,
        fragments=fragments,
        missed=missed,
        false=false,
    )


def _frames(truth: Poses, expected: Detections, tracked: Poses, found: Detections) -> list[_Frame]:
    known, named = _identities(truth, expected), _identities(tracked, found)
    # Bodies of a single keypoint have no size.
    size_px = max(float(np.median(_diagonals(expected))), 1e-9) if len(expected) else 1.0
    frames = []
    for frame in np.unique(expected.frames).tolist():
        here, there = (np.flatnonzero(one.frames == frame) for one in (expected, found))
        # If two animals had the same identity before, the first keeps it.
        here = here[np.argsort(known[here], kind="stable")]
        apart = np.linalg.norm(expected.centres_px[here][:, None] - found.centres_px[there][None], axis=-1)
        frames.append(_Frame(known[here], named[there], apart / size_px))
    return frames


def _hota(frames: Sequence[_Frame], shape: tuple[int, int]) -> float:
    """Returns HOTA; in each frame, the matching prefers identities that are similar in the whole video."""
    ones, others, alike = np.zeros((shape[0], 1)), np.zeros((1, shape[1])), np.zeros(shape)
    similar = [np.maximum(1 - frame.apart, 0.0) for frame in frames]
    for frame, near in zip(frames, similar, strict=True):
        ones[frame.ones, 0] += 1
        others[0, frame.others] += 1
        union = near.sum(axis=0) + near.sum(axis=1)[:, None] - near
        alike[frame.ones[:, None], frame.others] += np.divide(near, union, out=np.zeros_like(near), where=union > 0)
    alike /= np.maximum(ones + others - alike, 1)
    matches = np.zeros((len(_LEVELS), *shape))
    for frame, near in zip(frames, similar, strict=True):
        rows, columns = linear_sum_assignment(alike[frame.ones[:, None], frame.others] * near, maximize=True)
        is_match = near[rows, columns] >= _LEVELS[:, None] - np.finfo(float).eps
        matches[:, frame.ones[rows], frame.others[columns]] += is_match
    right = matches.sum(axis=(1, 2))
    associated = (matches**2 / np.maximum(ones + others - matches, 1)).sum(axis=(1, 2))
    # DetA x AssA, in which `right` cancels.
    return float(np.sqrt(associated / np.maximum(ones.sum() + others.sum() - right, 1)).mean())


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
