"""Joins tracklets into tracks of a known, a largest or a free number of animals: one solution for the whole video."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from jaxpose.pose.detections import Detections, find_detections
from jaxpose.pose.tracklets import Tracklets, make_tracklets, pair_costs, split
from jaxpose.poses import Poses
from jaxpose.tracking.flow import Flow, Graph, cheapest_flow
from jaxpose.tracking.mixed import without_mixed

# Of each track, before its number.
NAME = "animal"
# In nats. A detection of typical score is this much likelier to be an animal than not; one of score 0 this much less.
_REWARD, _FALSE = 5.0, 1.0
# This share of the links inside tracklets costs less than the one that all count as at least.
_POOR = 0.9
# An animal disappears, or appears, where no other detection explains it.
LOST = 3.0
# A track of one animal more, if their number is free.
_BIRTH = 40.0
_BARRED = 1e6
# Each tracklet may go on in so many of those that start next.
_NEXT = 48


@dataclasses.dataclass(frozen=True)
class Number:
    """How many animals the video shows: `least` to `most`, which is None if any number may be."""

    least: int = 0
    most: int | None = None


@dataclasses.dataclass(frozen=True)
class Solution:
    """The tracks of a video.

    Attributes:
      found: the m detections.
      made: their t tracklets.
      values: (t,) the cost of using each tracklet.
      tracks: (t,) the track of each tracklet, -1 for those that belong to none.
      names: the name of each track.
    """

    found: Detections
    made: Tracklets
    values: np.ndarray
    tracks: np.ndarray
    names: tuple[str, ...]

    @functools.cached_property
    def of_detections(self) -> np.ndarray:
        """The track (m,) of each detection, -1 for those that belong to none."""
        return self.tracks[self.made.numbers]

    @functools.cached_property
    def link_costs(self) -> np.ndarray:
        """The cost (m,) of the link from each detection to the next of its track, 0 without one."""
        order = np.argsort(self.of_detections, kind="stable")
        here, there = order[:-1], order[1:]
        inside = (self.of_detections[here] == self.of_detections[there]) & (self.of_detections[here] >= 0)
        costs = np.zeros(len(self.found))
        costs[here[inside]] = self.made.costs(self.found, here[inside], there[inside])
        return costs

    def chain(self, track: int) -> np.ndarray:
        """Returns the detections of a track, in the order of their frames."""
        return np.flatnonzero(self.of_detections == track)

    def named(self, poses: Poses) -> Poses:
        """Returns the poses with the identities of the tracks; those that belong to none or mix animals get -1."""
        identity = np.full(poses.points_px.shape[:2], -1)
        identity[self.found.frames, self.found.places] = self.of_detections
        identity[self.found.frames[self.found.parts], self.found.places[self.found.parts]] = -1
        return dataclasses.replace(poses, identity=identity, individuals=self.names)


def track(poses: Poses, number: Number) -> Poses:
    """Returns the poses with an identity for each animal: animal1, animal2, ... in the order of their first frames.

    The identities of `poses` are ignored. Detections that belong to no track get -1. The result depends neither on the
    order of the animals within a frame nor on the machine.

    Args:
      poses: the detections of a video.
      number: the number of animals. If least = most, there are exactly so many tracks.
    """
    return solve(without_mixed(find_detections(poses)), number).named(poses)


def solve(found: Detections, number: Number) -> Solution:
    """Returns the cheapest tracks of detections."""
    made = make_tracklets(found)
    links, values = _links(found, made), _values(found, made)
    graph, edges = _graph(found, made, values, *links)
    most = len(made) if number.most is None else number.most
    flow = cheapest_flow(graph, number.least, most, 0.0 if number.least else _BIRTH)
    tracks = _tracks(found, made, links, edges, flow)
    count = max(int(tracks.max(initial=-1)) + 1, number.least)
    return Solution(found, made, values, tracks, tuple(f"{NAME}{place + 1}" for place in range(count)))


def regrouped(solution: Solution, tracks: np.ndarray, ends: Sequence[int] | np.ndarray = ()) -> Solution:
    """Returns a solution with other tracks (m,) of the detections.

    Tracklets that change their track are split, and also behind detections `ends`.
    """
    found, links = solution.found, solution.made.links
    here = np.flatnonzero(links >= 0)
    parted = here[tracks[here] != tracks[links[here]]]
    made = split(found, solution.made, np.concatenate([parted, np.asarray(ends, int)]))
    return Solution(found, made, _values(found, made), tracks[made.first], solution.names)


def _links(found: Detections, made: Tracklets) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns pairs of tracklets that one animal may have made, one after the other, and their costs."""
    starts, ends = found.frames[made.first], found.frames[made.last]
    after = np.searchsorted(starts, ends + 1)
    ones = np.repeat(np.arange(len(made)), _NEXT)
    others = (after[:, None] + np.arange(_NEXT)).ravel()
    ones, others = ones[others < len(made)], others[others < len(made)]
    costs = made.costs(found, made.last[ones], made.first[others], 2 * LOST)
    kept = np.isfinite(costs)
    return ones[kept], others[kept], costs[kept]


def _values(found: Detections, made: Tracklets) -> np.ndarray:
    """Returns the cost (t,) of the tracklets themselves.

    Good links count as much as a poor one. What never moves, such as a spot that looks like an animal, would otherwise
    cost less than an animal that walks.
    """
    values = np.bincount(made.numbers, _FALSE - _REWARD * found.quality, len(made))
    values[made.numbers[found.barred]] = _BARRED
    order = np.lexsort((found.frames, made.numbers))
    here, there = order[:-1], order[1:]
    inside = made.numbers[here] == made.numbers[there]
    here, there = here[inside], there[inside]
    still, costs = np.zeros_like(found.centres_px), np.zeros(len(here))
    for at in range(0, len(here), 2**16):
        part = slice(at, at + 2**16)
        costs[part] = pair_costs(found, made.motion, still, still, here[part], there[part])
    if len(costs):
        costs = np.maximum(costs, np.quantile(costs, _POOR))
    return values + np.bincount(made.numbers[here], costs, len(made))


def _graph(
    found: Detections, made: Tracklets, values: np.ndarray, ones: np.ndarray, others: np.ndarray, costs: np.ndarray
) -> tuple[Graph, dict[str, slice]]:
    """Returns the graph of all tracks, and where its edges of a kind are.

    Nodes: the starts of the t tracklets, their ends, and for each first frame the animals that are not in view.
    """
    starts, ends = found.frames[made.first], found.frames[made.last]
    frames = np.unique(starts)
    count, numbers = len(made), np.arange(len(made))
    pool = 2 * count + np.arange(len(frames))
    source, sink = 2 * count + len(frames), 2 * count + len(frames) + 1
    lost = np.searchsorted(frames, ends + 1)
    parts = {
        "inside": (numbers, count + numbers, values, True),
        "link": (count + ones, others, costs, True),
        "lost": (count + numbers, np.where(lost < len(frames), 2 * count + lost, sink), np.full(count, LOST), True),
        "seen": (pool[np.searchsorted(frames, starts)], numbers, np.full(count, LOST), True),
        "wait": (np.append(source, pool), np.append(pool, sink), np.zeros(len(pool) + 1), False),
    }
    edges, at = {}, 0
    for name, (tails, *_) in parts.items():
        edges[name], at = slice(at, at + len(tails)), at + len(tails)
    tails, heads, weights = (np.concatenate([part[place] for part in parts.values()]) for place in range(3))
    single = np.concatenate([np.full(len(part[0]), part[3]) for part in parts.values()])
    times = np.concatenate([4 * starts + 1, 4 * ends + 2, 4 * frames, [-1, 4 * found.frame_count + 4]])
    return Graph(tails, heads, weights, single, times, source, sink), edges


def _tracks(
    found: Detections,
    made: Tracklets,
    links: tuple[np.ndarray, np.ndarray, np.ndarray],
    edges: dict[str, slice],
    flow: Flow,
) -> np.ndarray:
    """Returns the track (t,) of each tracklet, -1 without one."""
    (ones, others, _), units = links, flow.units
    before = np.full(len(made), -1)
    used = units[edges["link"]] > 0
    before[others[used]] = ones[used]
    is_lost, is_used = units[edges["lost"]] > 0, units[edges["inside"]] > 0
    tracks, waiting, count = np.full(len(made), -1), list[int](), 0
    ends = found.frames[made.last]
    unseen = np.flatnonzero(is_lost)
    unseen = unseen[np.argsort(ends[unseen], kind="stable")].tolist()
    for number in np.flatnonzero(is_used).tolist():
        start = found.frames[made.first[number]]
        while unseen and ends[unseen[0]] < start:
            waiting.append(unseen.pop(0))
        if before[number] < 0 and waiting:
            # Which of the lost animals is seen again, or whether one that was never seen, the flow leaves open.
            costs = made.costs(found, made.last[waiting], np.full(len(waiting), made.first[number]))
            # It is none of them if a person says so or it is unlike all of them, and a track is still free.
            if costs.min() < 2 * LOST or count == flow.paths:
                before[number] = waiting.pop(int(costs.argmin()))
        if before[number] < 0:
            tracks[number], count = count, count + 1
        else:
            tracks[number] = tracks[before[number]]
    return tracks
