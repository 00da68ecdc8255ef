"""Matches the animals of several views: which track of each view is which animal of the world."""

import itertools

import numpy as np

from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.triangulation import triangulate

# Evenly spaced frames that are compared.
_FRAMES = 200
_NOISE_PX = 2.0
# Two tracks that are farther apart are two animals: relative to the width of the image, or in px if it is unknown.
_FAR, _FAR_PX = 0.02, 20.0
# Tracks whose errors are larger than those of the best pairs by this factor are two animals, and by how much more the
# errors of a single view may be larger.
_FARTHER, _NOISIER = 2.5, 2.0
# An error below which errors do not differ, and the sweeps over all views.
_EXACT_PX, _MOST_SWEEPS = 0.5, 20


def match_tracks(cameras: Cameras, points_px: list[np.ndarray], confidence: list[np.ndarray]) -> np.ndarray:
    """Returns the track (animals, v) of each animal in each view, -1 where a view does not show it.

    Two tracks of two views are near if the rays of their keypoints meet. The tracks of one view define the animals;
    those of the other views, and then of all views again, go to the animals that are nearest. This is done for each
    view, and the animals whose tracks are nearest are used. A track that is far from all animals is another animal; the
    best pairs of tracks define how far that is. Animals of a single view are left out.

    Args:
      cameras: v cameras.
      points_px: for each view (a, t, k, 2), its tracks, NaN where a keypoint is missing.
      confidence: for each view (a, t, k).
    """
    frames = np.unique(np.linspace(0, points_px[0].shape[1] - 1, _FRAMES).astype(int))
    widest = cameras.sizes_px.max()
    far = float(np.log(_FAR * widest if widest else _FAR_PX))
    view_of = np.repeat(np.arange(len(points_px)), [len(of_view) for of_view in points_px])
    tracks = [one[frames] for of_view in points_px for one in of_view]
    trust = [one[frames] for of_view in confidence for one in of_view]
    # Between all tracks, also those of one view, which are as far apart as can be.
    apart = np.full((len(tracks), len(tracks)), np.nan)
    for one, other in itertools.combinations(range(len(tracks)), 2):
        if view_of[one] != view_of[other]:
            pair = Cameras([cameras.each[view_of[at]] for at in (one, other)])
            pixels, known = (np.stack([values[one], values[other]]) for values in (tracks, trust))
            apart[one, other] = apart[other, one] = _distance(pair, pixels.reshape(2, -1, 2), known.reshape(2, -1), far)
    limits = _limits(apart, view_of, far)[view_of]
    found = [_grouped(apart, view_of, first, limits) for first in range(len(points_px))]
    best = min(found, key=lambda groups: sum(_looseness(apart, group, limits) for group in groups))
    firsts = np.searchsorted(view_of, np.arange(len(points_px)))
    animals = np.full((len(best), len(points_px)), -1)
    for animal, group in enumerate(best):
        for track in group:
            animals[animal, view_of[track]] = track - firsts[view_of[track]]
    return animals[(animals >= 0).sum(axis=1) >= 2]


def _distance(pair: Cameras, points_px: np.ndarray, confidence: np.ndarray, far: float) -> float:
    """Returns the mean logarithm of the errors in px of two tracks as one animal, NaN if they share no point."""
    is_shared = np.isfinite(points_px[..., 0]).all(axis=0)
    if not is_shared.any():
        return np.nan
    errors_px = triangulate(pair, points_px[:, is_shared], confidence[:, is_shared], _NOISE_PX).errors_px
    logs = np.log(np.nan_to_num(errors_px, nan=np.inf) + _EXACT_PX)
    # Rays that meet behind the cameras are of two animals.
    return float(np.minimum(logs, far + np.log(10)).mean())


def _limits(apart: np.ndarray, view_of: np.ndarray, far: float) -> np.ndarray:
    """Returns for each view the distance from which its tracks are no longer those of an animal.

    It is relative to the pairs of tracks that are each other's nearest in their two views. Some are of two animals.
    """
    pairs: list[tuple[int, int, float]] = []
    views = range(view_of.max() + 1)
    for one, other in itertools.combinations(views, 2):
        block = np.where(np.isnan(apart), np.inf, apart)[np.ix_(view_of == one, view_of == other)]
        if block.size:
            is_mutual = (block == block.min(axis=0)) & (block == block.min(axis=1, keepdims=True)) & np.isfinite(block)
            pairs += [(one, other, float(distance)) for distance in block[is_mutual]]
    if not pairs:
        return np.full(len(views), far)
    of_all = np.quantile([distance for *_, distance in pairs], 0.25, method="lower")
    limits = []
    for view in views:
        of_view = [distance for *both, distance in pairs if view in both] or [of_all]
        noise = np.clip(np.quantile(of_view, 0.25, method="lower"), of_all, of_all + np.log(_NOISIER))
        limits.append(min(noise + np.log(_FARTHER), far))
    return np.array(limits)


def _grouped(apart: np.ndarray, view_of: np.ndarray, first: int, limits: np.ndarray) -> list[list[int]]:
    """Returns the tracks of each animal if those of one view begin."""
    # Imported here: it takes a third of a second, and only several animals need it.
    from scipy.optimize import linear_sum_assignment

    views = view_of.max() + 1
    groups = [[track] for track in np.flatnonzero(view_of == first).tolist()]
    # Views that are near all others come first.
    order = sorted(range(views), key=lambda view: -np.isfinite(apart[view_of == view]).sum())
    for _ in range(_MOST_SWEEPS):
        before = sorted(map(sorted, groups))
        for view in order:
            groups = [[track for track in group if view_of[track] != view] for group in groups]
            groups = [group for group in groups if group]
            tracks = np.flatnonzero(view_of == view).tolist()
            cost = np.array([[_from_group(apart, group, track, limits) for track in tracks] for group in groups])
            cost = cost.reshape(len(groups), len(tracks))
            for row, column in zip(*linear_sum_assignment(cost), strict=True):
                if cost[row, column] < limits[tracks[column]]:
                    groups[row].append(tracks[column])
            given = {track for group in groups for track in group}
            groups += [[track] for track in tracks if track not in given]
        if sorted(map(sorted, groups)) == before:
            break
    return groups


def _from_group(apart: np.ndarray, group: list[int], track: int, limits: np.ndarray) -> float:
    """Returns the mean distance of a track from the tracks of an animal; its limit if they share nothing."""
    known = apart[track, group]
    known = known[np.isfinite(known)]
    return float(min(known.mean(), limits[track]) if len(known) else limits[track])


def _looseness(apart: np.ndarray, group: list[int], limits: np.ndarray) -> float:
    """Returns how far the tracks of an animal are apart, summed over its tracks."""
    others = [[other for other in group if other != track] for track in group]
    return sum(_from_group(apart, rest, track, limits) for track, rest in zip(group, others, strict=True))
