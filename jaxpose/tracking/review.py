"""The doubtful places of tracks: what else they could have been, and how much more that would cost."""

import csv
import dataclasses
import io
import itertools
from collections.abc import Sequence

import numpy as np

from jaxpose.pose.detections import Detections
from jaxpose.tracking.tracks import LOST, Solution

# The first column is for a person, see corrections.py; the last one says which tracks a row is about, see origin.py.
COLUMNS = (
    "answer", "round", "kind", "frame_from", "frame_to", "track_a", "track_b", "margin", "expected_wrong", "tracks"
)  # fmt: skip
SWAP, LINK, GAP, MISSING, EXTRA = "swap", "link", "gap", "missing", "extra"
# Decisions with a larger margin are not listed: the odds that they are wrong are below 1 to 400.
_DOUBTFUL = 6.0
# After so many frames in which two animals are certain, they are doubtful anew.
_CERTAIN_FRAMES = 5
_FRAMES_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class Doubt:
    """A decision that may be wrong.

    Attributes:
      kind: `SWAP`: two tracks may exchange their animals. `LINK`: a track may go on with another animal; `GAP`: the
        same, after frames without it. `EXTRA`: these detections of a track may be no animal. `MISSING`: detections
        that were left out may be the animal of a track.
      frame_from, frame_to: the frames before and after the decision, or the first and last of the detections.
      track_a, track_b: numbers of tracks; track_b is -1 for other kinds than `SWAP`.
      margin: by how much the tracks cost more in which only this decision is different.
      animals: how many detections have another identity if it is wrong.
    """

    kind: str
    frame_from: int
    frame_to: int
    track_a: int
    track_b: int
    margin: float
    animals: int

    @property
    def expected(self) -> float:
        """The number of wrong identities to expect from this decision."""
        return float(self.animals / (1 + np.exp(self.margin)))


def find_doubts(solution: Solution) -> list[Doubt]:
    """Returns all doubtful decisions, those first that may cost the most identities."""
    chains = [solution.chain(track) for track in range(len(solution.names))]
    doubts = [*_swaps(solution, chains), *_links(solution, chains), *_extras(solution, chains)]
    doubts += _missing(solution, chains)
    return sorted(doubts, key=lambda doubt: (-doubt.expected, dataclasses.astuple(doubt)))


def review_table(doubts: Sequence[Doubt], names: Sequence[str], number: int, checksum: str) -> bytes:
    """Returns the CSV of a review.

    Args:
      doubts: the rows.
      names: those of the tracks.
      number: how often the tracks have been corrected.
      checksum: of the file of the tracks.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for doubt in doubts:
        tracks = [names[track] if track >= 0 else "" for track in (doubt.track_a, doubt.track_b)]
        more = f"{doubt.margin:.2f}", f"{doubt.expected:.1f}", checksum
        writer.writerow(["", number, doubt.kind, doubt.frame_from, doubt.frame_to, *tracks, *more])
    return text.getvalue().encode()


def exchanges(solution: Solution, tracks: tuple[int, int], first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the margins (c,) of the exchanges of two tracks in frames `first` to `last`, and detections (4, c).

    The detections are those of both tracks before the exchange, and of both after it.
    """
    frames = np.arange(first, last)
    one, other = (_around(solution, solution.chain(track), frames) for track in tracks)
    return _exchanges(solution, frames, one, other, np.inf)


def gains(solution: Solution, numbers: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Returns by how much tracks cost more (t,) if they use tracklets between two of their detections, -1 for none."""
    made = solution.made

    def costs(here: np.ndarray, there: np.ndarray) -> np.ndarray:
        known = (here >= 0) & (there >= 0)
        # An animal disappears after its last detection, and appears before its first.
        costs = np.full(len(here), LOST)
        costs[known] = np.minimum(made.costs(solution.found, here[known], there[known]), 2 * LOST)
        return costs

    used = costs(before, made.first[numbers]) + solution.values[numbers] + costs(made.last[numbers], after)
    return used - costs(before, after)


def _swaps(solution: Solution, chains: list[np.ndarray]) -> list[Doubt]:
    """Returns where two tracks may exchange their animals, whether inside their tracklets or between them."""
    doubts, seen = list[Doubt](), [solution.found.frames[chain] for chain in chains]
    for (one, other), cuts in _cuts(solution, chains).items():
        both = np.intersect1d(seen[one], seen[other], assume_unique=True)
        sides = np.concatenate([seen[one], seen[other]])
        # A person can tell them apart in frames that show both.
        last, first = np.searchsorted(both, cuts[:, 0], side="right"), np.searchsorted(both, cuts[:, 1])
        # The last place stands for a frame that does not exist.
        shared = np.append(both, -1)
        starts = np.where(last > 0, shared[last - 1], cuts[:, 0]).astype(int)
        stops = np.where(first < len(both), shared[first], cuts[:, 1]).astype(int)
        apart = np.flatnonzero(starts[1:] - np.maximum.accumulate(stops)[:-1] > _CERTAIN_FRAMES) + 1
        for part in np.split(np.arange(len(cuts)), apart):
            start, stop = int(starts[part].min()), int(stops[part].max())
            stake = min(int((sides <= start).sum()), int((sides >= stop).sum()))
            margin = max(float(cuts[part, 2].min()), 0.0)
            doubts.append(Doubt(SWAP, start, stop, one, other, margin, stake))
    return doubts


def _cuts(solution: Solution, chains: list[np.ndarray]) -> dict[tuple[int, int], np.ndarray]:
    """Returns {two tracks: doubtful exchanges}: rows of the frame before, the frame after and the margin."""
    found, cuts = solution.found, dict[tuple[int, int], list[np.ndarray]]()
    for at in range(0, found.frame_count, _FRAMES_AT_ONCE):
        frames = np.arange(at, min(at + _FRAMES_AT_ONCE, found.frame_count))
        around = {track: _around(solution, chain, frames) for track, chain in enumerate(chains)}
        alive = [track for track, ends in around.items() if (ends >= 0).any()]
        for one, other in itertools.combinations(alive, 2):
            margins, ends = _exchanges(solution, frames, around[one], around[other], _DOUBTFUL)
            is_open = ~(_is_joined(found, ends[0], ends[2]) | _is_joined(found, ends[1], ends[3]))
            a, b, c, d = ends[:, is_open]
            frames_of = found.frames[[a, b]].max(axis=0), found.frames[[c, d]].min(axis=0)
            rows = np.stack([*frames_of, margins[is_open]], axis=1)
            if len(rows):
                cuts.setdefault((one, other), []).append(rows)
    return {pair: np.concatenate(parts) for pair, parts in cuts.items()}


def _is_joined(found: Detections, here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Returns whether links between detections (c,) are those of a person's answer, however unlikely they are."""
    return np.isin(here * len(found) + there, found.joined @ [len(found), 1])


def _around(solution: Solution, chain: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Returns the detections (2, f) of a track before and after a cut behind each frame, -1 without both."""
    place = np.searchsorted(solution.found.frames[chain], frames, side="right")
    inside = (place > 0) & (place < len(chain))
    ends = np.full((2, len(frames)), -1)
    ends[:, inside] = chain[np.stack([place[inside] - 1, place[inside]])]
    return ends


def _exchanges(
    solution: Solution, frames: np.ndarray, one: np.ndarray, other: np.ndarray, most: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns what `exchanges` does, for margins below `most` only.

    Args:
      solution: the tracks.
      frames: (f,) a cut is behind each.
      one, other: detections (2, f) before and after each cut, -1 without both.
      most: infinite for tracks that are far from each other as well.
    """
    found, made = solution.found, solution.made
    # A cut behind a frame without a detection is the same as the one before.
    is_new = (one[0] >= 0) & (other[0] >= 0)
    is_new &= (found.frames[one[0]] == frames) | (found.frames[other[0]] == frames)
    ends = np.concatenate([one, other])[[0, 2, 1, 3]][:, is_new]
    a, b, c, d = ends
    kept = solution.link_costs[[a, b]]
    apart = np.linalg.norm(found.centres_px[[a, b]] - found.centres_px[[d, c]], axis=2).max(axis=0)
    lag = np.maximum(found.frames[d] - found.frames[a], found.frames[c] - found.frames[b])
    is_near = (apart < made.motion.reach_px(lag)) | (np.minimum(kept, 2 * LOST).sum(axis=0) > 4 * LOST - most)
    a, b, c, d = ends = ends[:, is_near]
    costs = np.stack([*kept[:, is_near], made.costs(found, a, d), made.costs(found, b, c)])
    # Only motion says which of two lost animals is which; any other link costs at most what two lost ends cost.
    both_lost = (costs[:2] > 2 * LOST).all(axis=0)
    costs = np.where(both_lost, costs, np.minimum(costs, 2 * LOST))
    margins = costs[2] + costs[3] - costs[0] - costs[1]
    return margins[margins < most], ends[:, margins < most]


def _links(solution: Solution, chains: list[np.ndarray]) -> list[Doubt]:
    """Returns links that are little likelier than one animal that disappears and another that appears."""
    found, made, doubts = solution.found, solution.made, list[Doubt]()
    sizes = np.bincount(made.numbers, minlength=len(made))
    for track, chain in enumerate(chains):
        joint = np.flatnonzero(np.diff(made.numbers[chain]))
        here, there = chain[joint], chain[joint + 1]
        margins = np.maximum(2 * LOST - made.costs(found, here, there), 0.0)
        for one, other, margin in zip(here, there, margins, strict=True):
            if margin < _DOUBTFUL:
                first, last = int(found.frames[one]), int(found.frames[other])
                stake = int(min(sizes[made.numbers[one]], sizes[made.numbers[other]]))
                doubts.append(Doubt(GAP if last > first + 1 else LINK, first, last, track, -1, float(margin), stake))
    return doubts


def _extras(solution: Solution, chains: list[np.ndarray]) -> list[Doubt]:
    """Returns tracklets of tracks that could be left out."""
    made, doubts = solution.made, list[Doubt]()
    for track, chain in enumerate(chains):
        used = np.unique(made.numbers[chain])
        ends = np.concatenate([[-1], made.last[used], [-1]]), np.concatenate([[-1], made.first[used], [-1]])
        margins = -gains(solution, used, ends[0][:-2], ends[1][2:])
        doubts += _listed(solution, EXTRA, track, used, margins).values()
    return doubts


def _missing(solution: Solution, chains: list[np.ndarray]) -> list[Doubt]:
    """Returns tracklets that were left out although a track is free in their frames: for the cheapest such track."""
    found, made, best = solution.found, solution.made, dict[int, Doubt]()
    left = np.flatnonzero(solution.tracks < 0)
    starts, stops = found.frames[made.first[left]], found.frames[made.last[left]]
    for track, chain in enumerate(chains):
        places = np.searchsorted(found.frames[chain], starts)
        free = places == np.searchsorted(found.frames[chain], stops, side="right")
        padded = np.concatenate([[-1], chain, [-1]])
        margins = gains(solution, left[free], padded[places[free]], padded[places[free] + 1])
        for number, doubt in _listed(solution, MISSING, track, left[free], margins).items():
            best[number] = min(best.get(number, doubt), doubt, key=lambda one: one.margin)
    return list(best.values())


def _listed(solution: Solution, kind: str, track: int, numbers: np.ndarray, margins: np.ndarray) -> dict[int, Doubt]:
    """Returns {tracklet: doubt} for the small margins."""
    found, made = solution.found, solution.made
    shown = np.bincount(made.numbers, ~np.isin(np.arange(len(found)), found.parts), len(made))
    # Parts of mixed poses are in no track, whatever a person says.
    numbers, margins = (values[shown[numbers] > 0] for values in (numbers, margins))
    return {
        number: Doubt(
            kind, int(found.frames[made.first[number]]), int(found.frames[made.last[number]]), track, -1,
            max(margin, 0.0), int(shown[number]),
        )
        for number, margin in zip(numbers.tolist(), margins.tolist(), strict=True)
        if margin < _DOUBTFUL
    }  # fmt: skip
