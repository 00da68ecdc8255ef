"""Finds poses that mix two animals: some keypoints are where one animal was just now, the others where another was."""

import numpy as np

from jaxpose.pose.detections import Detections, in_parts, keypoint_pairs

# In nats of length. A pose may mix animals if it is so much larger than those of the largest animal mostly are, and it
# does if its keypoints are so much farther apart between the two parts than within them.
_LARGER, _APART = 0.1, 0.5
# Each part has at least this share of the keypoints, and so many of them.
_LEAST_SHARE, _LEAST = 0.25, 2
# Where the animals are is taken from the nearest frame with at least two usual poses, at most so far away.
_REACH_FRAMES = 30
# Medians are those of about so many poses.
_POSES = 20_000
_POSES_AT_ONCE = 2**14


def without_mixed(found: Detections) -> Detections:
    """Returns the detections after poses that mix two animals are split into one part for each.

    In contacts, networks that join keypoints to animals may join those of two. Such a pose would hide one of the
    animals and draw the track of the other to itself. The parts say where both animals are. No track shows them.
    """
    pairs = keypoint_pairs(found.poses_px.shape[1])
    usual_px = _usual_lengths(found, pairs)
    sizes = _sizes(found, pairs, usual_px)
    known = sizes[np.isfinite(sizes)]
    if not len(known):
        return found
    counts = (found.table >= 0).sum(axis=1)
    animals = max(float(np.median(counts[counts > 0])), 2.0)
    # The middle of the sizes of the largest animal, if each animal is seen equally often.
    is_large = sizes > np.quantile(known, 1 - 1 / (2 * animals)) + _LARGER
    mixed, is_second, centres_px = [], [], []
    for one in np.flatnonzero(is_large).tolist():
        if (two := _mixed_from(found, one, _around(found, is_large, one))) is None:
            continue
        part = _nearer_to_second(found, one, two)
        if _gap(found, one, part, pairs, usual_px) > _APART:
            mixed.append(one)
            is_second.append(part)
            centres_px.append([_centre(found, one, two[0], ~part), _centre(found, one, two[1], part)])
    return in_parts(found, np.array(mixed), np.array(is_second), np.array(centres_px)) if mixed else found


def _usual_lengths(found: Detections, pairs: np.ndarray) -> np.ndarray:
    """Returns the median distance (p,) of pairs of keypoints, px; NaN for those that are never seen together."""
    some = found.poses_px[:: max(len(found) // _POSES, 1)]
    lengths = np.linalg.norm(some[:, pairs[:, 0]] - some[:, pairs[:, 1]], axis=2)
    # Not np.nanmedian: it warns about pairs without a length.
    return np.ma.median(np.ma.masked_invalid(lengths), axis=0).filled(np.nan)


def _lengths(poses_px: np.ndarray, pairs: np.ndarray, usual_px: np.ndarray) -> np.ndarray:
    """Returns the logs (m, p) of the distances of pairs of keypoints, relative to the usual ones; NaN if unknown."""
    # Farther than any frame is wide, keypoints are simply far.
    apart = np.clip(poses_px[:, pairs[:, 0]] - poses_px[:, pairs[:, 1]], -1e9, 1e9)
    squares = (apart**2).sum(axis=2)
    # A length below a thousandth of the usual one counts as that, and so do all if the usual one is 0.
    return np.log(np.maximum(squares / np.maximum(usual_px, 1e-3) ** 2, 1e-6)) / 2


def _sizes(found: Detections, pairs: np.ndarray, usual_px: np.ndarray) -> np.ndarray:
    """Returns the size (m,) of each pose: the mean of its `_lengths`; NaN if all are unknown."""
    sizes = np.full(len(found), np.nan)
    for at in range(0, len(found), _POSES_AT_ONCE):
        lengths = _lengths(found.poses_px[at : at + _POSES_AT_ONCE], pairs, usual_px)
        known = np.isfinite(lengths)
        some = known.any(axis=1)
        sizes[at : at + len(lengths)][some] = np.where(known, lengths, 0).sum(axis=1)[some] / known[some].sum(axis=1)
    return sizes


def _around(found: Detections, is_large: np.ndarray, one: int) -> np.ndarray:
    """Returns the usual poses of the nearest frame that has two of them; empty without one."""
    for lag in range(1, _REACH_FRAMES + 1):
        for frame in (found.frames[one] - lag, found.frames[one] + lag):
            if 0 <= frame < found.frame_count:
                others = found.table[frame][found.table[frame] >= 0]
                others = others[~is_large[others]]
                if len(others) > 1:
                    return others
    return np.zeros(0, int)


def _mixed_from(found: Detections, one: int, others: np.ndarray) -> np.ndarray | None:
    """Returns the two of other poses that most keypoints of a pose are nearest to; None if nearly all are to one."""
    if not len(others):
        return None
    nearest = _distances(found, one, others).argmin(axis=1)
    two = others[np.argsort(-np.bincount(nearest, minlength=len(others)), kind="stable")[:2]]
    count = int(_nearer_to_second(found, one, two).sum())
    known = len(nearest)
    return two if min(count, known - count) >= max(_LEAST_SHARE * known, _LEAST) else None


def _nearer_to_second(found: Detections, one: int, two: np.ndarray) -> np.ndarray:
    """Returns the keypoints (k,) of a pose that are nearer to the second of two other poses."""
    pose = found.poses_px[one]
    first, second = _distances(found, one, two).T
    is_second = np.zeros(len(pose), bool)
    is_second[np.isfinite(pose[:, 0])] = second < first
    return is_second


def _distances(found: Detections, one: int, others: np.ndarray) -> np.ndarray:
    """Returns the distances (n, o) of the n keypoints of a pose to the same keypoint of other poses, px.

    For poses that lack the keypoint, it is the distance to their nearest keypoint.
    """
    known = np.flatnonzero(np.isfinite(found.poses_px[one, :, 0]))
    between = np.linalg.norm(found.poses_px[one, known][:, None, None] - found.poses_px[others], axis=3)
    same = between[np.arange(len(known)), :, known]
    return np.where(np.isfinite(same), same, np.nanmin(between, axis=2))


def _centre(found: Detections, one: int, other: int, part: np.ndarray) -> np.ndarray:
    """Returns the centre (2,) of the animal of a part: that of another pose, moved as the keypoints that both have."""
    moved = (found.poses_px[one] - found.poses_px[other])[part]
    moved = moved[np.isfinite(moved[:, 0])]
    if len(moved):
        return found.centres_px[other] + np.median(moved, axis=0)
    return np.nanmedian(found.poses_px[one][part], axis=0)


def _gap(found: Detections, one: int, part: np.ndarray, pairs: np.ndarray, usual_px: np.ndarray) -> float:
    """Returns how much longer the `_lengths` between a part of a pose and its rest are than those inside of both."""
    lengths = _lengths(found.poses_px[one : one + 1], pairs, usual_px)[0]
    known, is_across = np.isfinite(lengths), part[pairs[:, 0]] != part[pairs[:, 1]]
    across, inside = lengths[known & is_across], lengths[known & ~is_across]
    return float(across.mean() - inside.mean()) if len(across) and len(inside) else 0.0
