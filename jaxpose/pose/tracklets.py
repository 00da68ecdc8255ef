"""Joins detections of neighbouring frames into tracklets that rather end than swap two animals."""

import dataclasses

import numpy as np
from scipy import sparse

from jaxpose.pose.detections import Detections
from jaxpose.pose.motion import VELOCITY_FRAMES, Motion, bends_px, first_motion, learn_motion

# A link costs at most this, and the second best of both of its ends costs this much more.
_GATE, _MARGIN = 0.0, 4.0
_LONGEST_LAG = 3
# The cost of a link that a person has confirmed.
JOINED = -10.0
# In body sizes: so near to another animal's tracklet that ends or begins, an animal may be mistaken for it.
_CONTACT = 2.0
_FRAMES_AT_ONCE = 1024
_PAIRS_AT_ONCE = 2**16


@dataclasses.dataclass(frozen=True)
class Tracklets:
    """t tracklets, ordered by their first frame.

    Attributes:
      links: (m,) the next detection of the same tracklet, -1 at its end.
      numbers: (m,) the tracklet of each detection.
      first, last: (t,) detections at their ends.
      before, after: (m, 2) velocity of the tracklet before and after each detection, px a frame; 0 at its ends.
      motion: the learnt motion.
    """

    links: np.ndarray
    numbers: np.ndarray
    first: np.ndarray
    last: np.ndarray
    before: np.ndarray
    after: np.ndarray
    motion: Motion

    def __len__(self) -> int:
        return len(self.first)

    def costs(self, found: Detections, here: np.ndarray, there: np.ndarray, most: float = np.inf) -> np.ndarray:
        """Returns the cost (p,) of links between any detections (p,); infinite if it is at least `most`."""
        parts = [slice(at, at + _PAIRS_AT_ONCE) for at in range(0, len(here), _PAIRS_AT_ONCE)]
        around = found, self.motion, self.before, self.after
        costs = [pair_costs(*around, here[part], there[part], most) for part in parts]
        return np.concatenate(costs) if costs else np.zeros(0)


def make_tracklets(found: Detections) -> Tracklets:
    """Returns tracklets in which each detection is the clear successor of the one before.

    They end where the tracklet of an animal next to them ends or begins: its detection may then be one of this animal,
    so what follows is for the solution of the whole video to decide.
    """
    motion, still = first_motion(found), np.zeros_like(found.centres_px)
    links = _linked(found, motion, still, still, 1)
    motion = learn_motion(found, _numbers(links), _velocities(found, links))
    links = np.full(len(found), -1)
    links[found.joined[:, 0]] = found.joined[:, 1]
    for lag in range(1, _LONGEST_LAG + 1):
        links = _linked(found, motion, _velocities(found, links), _velocities(found, links, -1), lag, links)
    motion = learn_motion(found, _numbers(links), _velocities(found, links))
    made = _tracklets(found, links, motion)
    # Detections that no track may use are tracklets of their own.
    here, is_barred = np.flatnonzero(links >= 0), np.isin(np.arange(len(found)), found.barred)
    barred = here[is_barred[here] != is_barred[links[here]]]
    return split(found, made, np.concatenate([_contacts(found, made), barred]))


def _contacts(found: Detections, made: Tracklets) -> np.ndarray:
    """Returns the detections whose link spans the end, or the beginning, of the tracklet of an animal next to them.

    Links that a person has confirmed do not count.
    """
    before = np.full(len(found), -1)
    here = np.flatnonzero(made.links >= 0)
    before[made.links[here]] = here
    corners = np.nanmax(found.poses_px, axis=1) - np.nanmin(found.poses_px, axis=1)
    reach_px = _CONTACT * float(np.median(np.linalg.norm(corners, axis=1))) if len(found) else 0.0
    cut = [np.zeros(0, int)]
    for events, step, other in ((made.first, 1, before), (made.last, -1, made.links)):
        for lag in range(_LONGEST_LAG):
            rows = found.frames[events] + step * lag
            inside = (rows >= 0) & (rows < found.frame_count)
            near = found.table[rows[inside]]
            apart = np.linalg.norm(found.centres_px[near] - found.centres_px[events[inside]][:, None], axis=2)
            linked = other[near]
            spans = step * (found.frames[events[inside]][:, None] - found.frames[linked]) > 0
            hit = (near >= 0) & (linked >= 0) & spans & (apart < reach_px)
            cut.append((linked if step == 1 else near)[hit])
    return np.setdiff1d(np.concatenate(cut), found.joined[:, 0])


def split(found: Detections, made: Tracklets, ends: np.ndarray) -> Tracklets:
    """Returns the tracklets after some of them end at detections `ends` and begin anew after these."""
    links = made.links.copy()
    links[ends] = -1
    return _tracklets(found, links, made.motion)


def _tracklets(found: Detections, links: np.ndarray, motion: Motion) -> Tracklets:
    numbers = _numbers(links)
    order = np.lexsort((found.frames, numbers))
    first = order[np.flatnonzero(np.diff(numbers[order], prepend=-1))]
    last = order[np.append(np.flatnonzero(np.diff(numbers[order])), len(order) - 1)] if len(order) else first
    before, after = _velocities(found, links), _velocities(found, links, -1)
    return Tracklets(links, numbers, first, last, before, after, motion)


def _linked(
    found: Detections, motion: Motion, before: np.ndarray, after: np.ndarray, lag: int, links: np.ndarray | None = None
) -> np.ndarray:
    """Returns the successor (m,) of each detection, -1 without one, after adding clear links over `lag` frames."""
    links = np.full(len(found), -1) if links is None else links.copy()
    has_before = np.zeros(len(found), bool)
    has_before[links[links >= 0]] = True
    ends, starts = (
        np.where((found.table >= 0) & ~has[found.table], found.table, -1) for has in (links >= 0, has_before)
    )
    for at in range(0, found.frame_count - lag, _FRAMES_AT_ONCE):
        stop = min(at + _FRAMES_AT_ONCE, found.frame_count - lag)
        here, there = ends[at:stop], starts[at + lag : stop + lag]
        busy = np.flatnonzero((here >= 0).any(axis=1) & (there >= 0).any(axis=1))
        here, there = here[busy], there[busy]
        costs = _costs(found, motion, before, after, lag, here, there)
        row, column = _second(costs)
        is_clear = (costs < _GATE) & (row > _MARGIN) & (column > _MARGIN)
        frame, one, other = np.nonzero(is_clear)
        links[here[frame, one]] = there[frame, other]
    return links


def _costs(
    found: Detections,
    motion: Motion,
    before: np.ndarray,
    after: np.ndarray,
    lag: int,
    here: np.ndarray,
    there: np.ndarray,
) -> np.ndarray:
    """Returns the costs (f, a, a) of links between detections (f, a); infinite for those that do not exist."""
    costs = np.full((*here.shape, there.shape[1]), np.inf)
    frame, one, other = np.nonzero((here[:, :, None] >= 0) & (there[:, None] >= 0))
    pairs = here[frame, one], there[frame, other]
    # A costlier link is no rival to a clear one.
    costs[frame, one, other] = pair_costs(found, motion, before, after, *pairs, _GATE + _MARGIN)
    return costs


def pair_costs(
    found: Detections,
    motion: Motion,
    before: np.ndarray,
    after: np.ndarray,
    here: np.ndarray,
    there: np.ndarray,
    most: float = np.inf,
) -> np.ndarray:
    """Returns the cost (p,) of links between detections (p,); infinite if it is at least `most`."""
    lags = found.frames[there] - found.frames[here]
    common = np.isfinite(found.poses_px[here, :, 0] + found.poses_px[there, :, 0]).sum(axis=1)
    moved = found.centres_px[there] - found.centres_px[here]
    costs = motion.place_costs(lags, moved, common, before[here], after[there])
    rest = np.flatnonzero(costs + motion.least_shape(lags) < most)
    costs[rest] += motion.shape_costs(lags[rest], bends_px(found, here[rest], there[rest]))
    costs[costs >= most] = np.inf
    for pairs, cost in ((found.joined, JOINED), (found.parted, np.inf)):
        if len(pairs):
            costs[np.isin(here * len(found) + there, pairs @ [len(found), 1])] = cost
    return costs


def _second(costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns by how much the best other link costs more, for the row (f, a, a) and the column of each link."""
    found = []
    for axis in (2, 1):
        if costs.shape[axis] < 2:
            found.append(np.full(costs.shape, np.inf))
            continue
        two = np.partition(costs, 1, axis=axis)
        best, second = np.take(two, [0], axis=axis), np.take(two, [1], axis=axis)
        other = np.where(costs == best, second, best)
        found.append(np.where(np.isfinite(costs), other - np.where(np.isfinite(costs), costs, 0), -np.inf))
    return found[0], found[1]


def _numbers(links: np.ndarray) -> np.ndarray:
    """Returns the number of each detection's tracklet, in the order of their first detections."""
    here = np.flatnonzero(links >= 0)
    graph = sparse.coo_array((np.ones(len(here)), (here, links[here])), (len(links), len(links)))
    _, numbers = sparse.csgraph.connected_components(graph, directed=False)
    _, first = np.unique(numbers, return_index=True)
    ranks = np.empty(len(first), int)
    ranks[np.argsort(first)] = np.arange(len(first))
    return ranks[numbers]


def _velocities(found: Detections, links: np.ndarray, step: int = 1) -> np.ndarray:
    """Returns the velocity (m, 2) before each detection, or after it (step -1); 0 at the end of a tracklet."""
    if step == -1:
        back = links
    else:
        back = np.full(len(links), -1)
        back[links[links >= 0]] = np.flatnonzero(links >= 0)
    far = np.arange(len(links))
    for _ in range(VELOCITY_FRAMES):
        further = back[far]
        far = np.where(further >= 0, further, far)
    frames = (found.frames - found.frames[far])[:, None]
    moved = found.centres_px - found.centres_px[far]
    return np.where(frames != 0, moved / np.where(frames == 0, 1, frames), 0.0)
