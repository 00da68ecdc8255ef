"""A person's answers to the rows of a review: they are read, and the tracks are solved again until all hold."""

import csv
import dataclasses
import hashlib
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from jaxpose.config.option import excerpt
from jaxpose.data.cells import usable_name
from jaxpose.data.labels import SINGLE
from jaxpose.errors import UserError
from jaxpose.pose.detections import Detections
from jaxpose.text_file import read_unicode
from jaxpose.tracking.origin import shortened
from jaxpose.tracking.review import EXTRA, MISSING, exchanges, gains
from jaxpose.tracking.silhouettes import told_apart
from jaxpose.tracking.tracks import NAME, Number, Solution, regrouped, solve

SAME, DIFFERENT, EXCHANGED = ANSWERS = ("same", "different", "swap")
# In an answer with names of tracks: nothing is known about the animal.
UNKNOWN = "-"
# What corrections need; a review has more columns.
COLUMNS = ("answer", "round", "frame_from", "frame_to", "track_a", "track_b")
_RULE = "corrections have the columns of the review that jaxpose track wrote"
# Solving again, a correction may break another one; so often it is tried.
_MOST_TURNS = 20
_MOST_DIGITS = 15
# For fewer detections than this share of those that would change their track, the others do not change.
_LEAST_SHARE = 0.05


@dataclasses.dataclass(frozen=True)
class Correction:
    """An answer of a person.

    Attributes:
      place: the file and line.
      answer: `SAME`: each track shows one animal in both frames. `DIFFERENT`: each shows two. `EXCHANGED`: track_a
        and track_b have exchanged their animals between the frames. Otherwise names of tracks, or `UNKNOWN`: where
        the animals of track_a and track_b are at frame_to.
      round: which tracks the names are those of: 0 are those without corrections, r + 1 those with rounds 0 to r.
      frame_from, frame_to: numbers of frames.
      track_a, track_b: names; track_b may be "".
    """

    place: str
    answer: str
    round: int
    frame_from: int
    frame_to: int
    track_a: str
    track_b: str

    @property
    def before(self) -> list[str]:
        """The tracks whose animals are looked at in frame_from."""
        return [name for name in (self.track_a, self.track_b) if name]

    @property
    def after(self) -> list[str]:
        """The tracks that frame_to is compared in: for `DIFFERENT`, these show other animals."""
        if self.answer in (SAME, DIFFERENT):
            return self.before
        return self.before[::-1] if self.answer == EXCHANGED else self.answer.split()


@dataclasses.dataclass(frozen=True)
class _Demand:
    """Whether two detections are of one animal."""

    place: str
    here: int
    there: int
    is_one: bool


def read_corrections(file: Path) -> list[Correction]:
    """Reads the rows of a review that have an answer, in the order of their rounds.

    Raises:
      UserError: the file cannot be read, or a row is not a correction; the message names the line.
    """
    try:
        text = read_unicode(file, "CSV file", _RULE)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise UserError(f"the corrections file {file} does not exist") from None
    if not (corrections := parse_corrections(file, text)):
        raise UserError(f"{file} has no answer; write {', '.join(ANSWERS)} into the column answer of a row")
    return corrections


def parse_corrections(file: Path, text: str) -> list[Correction]:
    """Returns the rows of the text of a file that have an answer, as `read_corrections`; [] without any.

    Raises:
      UserError: a row is not a correction; the message names the line.
    """
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""))
        rows = [(f"{file}:{reader.line_num}", row) for row in reader]
    except csv.Error as error:
        raise UserError(f"{file} is not a CSV file: {error}") from None
    if absent := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
        raise UserError(f"{file} has no column {', '.join(absent)}; {_RULE}")
    answered = [(place, row) for place, row in rows if (row["answer"] or "").strip()]
    corrections = [_correction(place, {name: (text or "").strip() for name, text in row.items() if name})
                   for place, row in answered]  # fmt: skip
    return sorted(corrections, key=lambda one: one.round)


def _correction(place: str, row: dict[str, str]) -> Correction:
    answer, kind, track_a, track_b = row["answer"], row.get("kind", ""), row["track_a"], row["track_b"]
    answer = answer.lower() if answer.lower() in ANSWERS else answer
    then = [] if answer in ANSWERS else answer.split()
    seen = [name for name in then if name != UNKNOWN]
    if then and (not seen or len(set(seen)) < len(seen) or len(then) > len({track_a, track_b} - {""})):
        raise UserError(
            f"{place}: the answer is {row['answer']}; it must name one track for each of track_a and track_b, "
            f"{UNKNOWN} for an animal that it leaves open"
        )
    if kind in (EXTRA, MISSING):
        raise UserError(f"{place}: a row of kind {kind} takes no answer; change these animals in the detections")
    if not track_a or (answer == EXCHANGED and track_b in ("", track_a)):
        raise UserError(f"{place}: {answer} needs {'two different tracks' if track_a else 'a track_a'}")
    numbers = [row[name] for name in ("round", "frame_from", "frame_to")]
    is_whole = all(text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS for text in numbers)
    if not is_whole or int(numbers[1]) >= int(numbers[2]):
        shown = excerpt(", ".join(numbers), quoted=False)
        raise UserError(
            f"{place}: round, frame_from and frame_to are {shown}; they must be whole numbers, and frame_from must be "
            "less than frame_to"
        )
    turn, first, last = map(int, numbers)
    return Correction(place, answer, turn, first, last, track_a, "" if track_b == track_a else track_b)


def solve_corrected(
    found: Detections,
    number: Number,
    corrections: Sequence[Correction],
    areas: np.ndarray | None = None,
    named: Callable[[int, Solution], Solution] = lambda turn, solution: solution,
) -> Solution:
    """Returns the cheapest tracks in which all corrections hold.

    Args:
      found: the m detections.
      number: the number of animals.
      corrections: a person's.
      areas: (m,) areas of the silhouettes, which tell animals apart; None uses motion alone.
      named: returns the tracks of a round with their names, by which the corrections of the round call them.

    Raises:
      UserError: a correction names an unknown track or frame, or cannot hold with the others.
    """
    solution, demands = _uncorrected(found, number, areas), list[_Demand]()
    for turn in sorted({one.round for one in corrections}):
        solution = named(turn, solution)
        for correction in corrections:
            demands += _demands(solution, correction) if correction.round == turn else []
        solution = _solve(solution, number, demands, areas)
    return named(rounds(corrections), solution)


def answerable(names: Sequence[str]) -> tuple[str, ...]:
    """Returns names that tables and answers can hold: without spaces, each once, and none with another meaning."""
    found: list[str] = []
    for name in names:
        one = usable_name("_".join(name.split())) or "_"
        while one in found or one.lower() in (*ANSWERS, UNKNOWN, SINGLE) or re.fullmatch(f"{NAME}[0-9]+", one):
            one += "_"
        found.append(one)
    return tuple(found)


def _uncorrected(found: Detections, number: Number, areas: np.ndarray | None) -> Solution:
    solution = solve(found, number)
    return solution if areas is None else told_apart(solution, areas)


def rounds(corrections: Sequence[Correction]) -> int:
    """Returns the round of a review that follows corrections."""
    return max((one.round + 1 for one in corrections), default=0)


def checksum_of_answers(corrections: Sequence[Correction]) -> str:
    """Returns a checksum of what corrections say, in their order, wherever they are written."""
    said = [dataclasses.astuple(dataclasses.replace(one, place="")) for one in corrections]
    return shortened(hashlib.sha256(repr(said).encode()).hexdigest())


def _demands(solution: Solution, correction: Correction) -> list[_Demand]:
    before, after = correction.before, correction.after
    refuse_unknown(correction.place, correction.round, [*before, *after], solution.names)
    pairs = []
    for one, other in zip(before, after, strict=False):
        here = _end(solution, one, correction.frame_from, -1)
        there = -1 if other == UNKNOWN else _end(solution, other, correction.frame_to, 1)
        pairs += [(here, there)] if min(here, there) >= 0 else []
    if not pairs:
        names = " and ".join(dict.fromkeys([*before, *(name for name in after if name != UNKNOWN)]))
        raise UserError(
            f"{correction.place}: {names} are not seen both up to frame {correction.frame_from} and from frame "
            f"{correction.frame_to} on"
        )
    return [_Demand(correction.place, here, there, correction.answer != DIFFERENT) for here, there in pairs]


def refuse_unknown(place: str, turn: int, called: Sequence[str], names: Sequence[str]) -> None:
    """Checks that a round has all tracks that a correction calls by their names.

    Raises:
      UserError: it does not.
    """
    if unknown := [name for name in called if name != UNKNOWN and _track_of(name, names) < 0]:
        raise UserError(
            f"{place}: there is no track {unknown[0]} in round {turn}; it has {', '.join(names)}; an answer is one of "
            f"{', '.join(ANSWERS)}, or names the tracks that show the animals at frame_to"
        )


def _track_of(name: str, names: Sequence[str]) -> int:
    """Returns the number of a track by its name, or by its number if it has a name; -1 for none."""
    if name in names:
        return names.index(name)
    number = int(digits) if (digits := name.removeprefix(NAME)) != name and digits.isdecimal() else 0
    return number - 1 if 0 < number <= len(names) and name == f"{NAME}{number}" else -1


def _end(solution: Solution, name: str, frame: int, step: int) -> int:
    """Returns the last detection of a track up to a frame (step -1), or the first from it on (step 1); -1 for none."""
    chain = solution.chain(_track_of(name, solution.names))
    # A person sees no pose that mixes animals.
    chain = chain[~np.isin(chain, solution.found.parts)]
    frames = solution.found.frames[chain]
    place = np.searchsorted(frames, frame, side="right") - 1 if step < 0 else np.searchsorted(frames, frame)
    return int(chain[place]) if 0 <= place < len(chain) else -1


def _solve(solution: Solution, number: Number, demands: Sequence[_Demand], areas: np.ndarray | None) -> Solution:
    # First those that need another solution; an exchange leaves everything else as it is.
    ordered = sorted(demands, key=lambda demand: demand.is_one)
    for _ in range(_MOST_TURNS):
        broken = [demand for demand in ordered if not _holds(demand, solution.of_detections)]
        if not broken:
            return dataclasses.replace(solution, found=_pinned(solution, demands))
        if broken[0].is_one:
            solution = _exchanged(solution, broken[0], demands)
        else:
            solution, number = _parted(solution, broken[0], number, demands, areas)
    raise _contradiction(broken[0])


def _contradiction(demand: _Demand) -> UserError:
    return UserError(f"{demand.place}: this contradicts the other corrections or --animals")


def _holds(demand: _Demand, tracks: np.ndarray) -> bool:
    one, other = tracks[[demand.here, demand.there]].tolist()
    return min(one, other) < 0 or (one == other) == demand.is_one


def _exchanged(solution: Solution, broken: _Demand, demands: Sequence[_Demand]) -> Solution:
    """Returns the solution after an exchange of two tracks that keeps the most demands.

    Where it may have been is a distribution over the places of such exchanges; it is made at the median.
    """
    found, tracks = solution.found, solution.of_detections
    pair = int(tracks[broken.here]), int(tracks[broken.there])
    margins, ends = exchanges(solution, pair, *found.frames[[broken.here, broken.there]].tolist())
    if not len(margins):
        raise _contradiction(broken)
    cuts = found.frames[ends[:2]].max(axis=0)
    ends_of = np.array([(one.here, one.there) for one in demands]).T[..., None]
    is_behind = (found.frames[ends_of] > cuts) & np.isin(tracks[ends_of], pair)
    one, other = np.where(is_behind, sum(pair) - tracks[ends_of], tracks[ends_of])
    is_one = np.array([demand.is_one for demand in demands])[:, None]
    held = ((np.minimum(one, other) < 0) | ((one == other) == is_one)).sum(axis=0)
    costs = np.where(held == held.max(), margins, np.inf)
    order = np.argsort(cuts, kind="stable")
    likely = np.exp(costs.min() - costs)[order].cumsum()
    place = order[np.searchsorted(likely, likely[-1] / 2)]
    then = np.where((found.frames > cuts[place]) & np.isin(tracks, pair), sum(pair) - tracks, tracks)
    links = ends[[[0, 3], [1, 2]], place]
    return regrouped(dataclasses.replace(solution, found=_joined(found, links)), then)


def _pinned(solution: Solution, demands: Sequence[_Demand]) -> Detections:
    """Returns the detections with the links that a person has looked at, which are certain from now on."""
    found = solution.found
    for demand in demands:
        track = int(solution.of_detections[demand.here])
        if demand.is_one and track >= 0:
            chain = solution.chain(track)
            frames = found.frames[chain]
            inside = (frames >= found.frames[demand.here]) & (frames <= found.frames[demand.there])
            found = _joined(found, np.stack([chain[inside][:-1], chain[inside][1:]], axis=1))
    return found


def _joined(found: Detections, links: np.ndarray) -> Detections:
    """Returns the detections with links that hold, instead of others at the same ends."""
    old = found.joined
    stays = ~np.isin(old[:, 0], links[:, 0]) & ~np.isin(old[:, 1], links[:, 1])
    return dataclasses.replace(found, joined=np.concatenate([old[stays], links]))


def _parted(
    solution: Solution, broken: _Demand, number: Number, demands: Sequence[_Demand], areas: np.ndarray | None
) -> tuple[Solution, Number]:
    """Returns a solution in which the weakest link between two detections is none, and the number of animals for it."""
    found, made, count = solution.found, solution.made, len(solution.names)
    chain = solution.chain(int(solution.of_detections[broken.here]))
    inside = (found.frames[chain] >= found.frames[broken.here]) & (found.frames[chain] <= found.frames[broken.there])
    weakest = int(np.flatnonzero(inside)[:-1][made.costs(found, chain[inside][:-1], chain[inside][1:]).argmax()])
    less = _less_needed(solution, chain, weakest, demands)
    parted = dataclasses.replace(found, parted=np.concatenate([found.parted, chain[None, weakest : weakest + 2]]))
    for then in [number] + [Number(count + 1, number.most)] * (number.most is None or count < number.most):
        solved = _uncorrected(parted, then, areas)
        if _holds(broken, solved.of_detections) and _LEAST_SHARE * _changed(solution, solved) <= len(less):
            return solved, then
    if any(one.is_one and (one.here, one.there) == (broken.here, broken.there) for one in demands):
        raise _contradiction(broken)
    # No other animal is the one after the link, or the rest of the tracks would change for a few detections.
    tracks = np.where(np.isin(np.arange(len(found)), less), -1, solution.of_detections)
    barred = dataclasses.replace(found, barred=np.append(found.barred, less))
    return regrouped(dataclasses.replace(solution, found=barred), tracks), number


def _less_needed(solution: Solution, chain: np.ndarray, place: int, demands: Sequence[_Demand]) -> np.ndarray:
    """Returns the detections of the tracklet before a link of a track, or after it: those that it needs less.

    If only one of the two has detections that a person has placed, it is needed.
    """
    solution = regrouped(solution, solution.of_detections, chain[place : place + 1])
    made, padded = solution.made, np.concatenate([[-1], chain, [-1]])
    sides = made.numbers[chain[place : place + 2]]
    placed = [end for one in demands if one.is_one for end in (one.here, one.there)]
    free = sides[~np.isin(sides, made.numbers[placed])]
    sides = free if len(free) else sides
    before, after = np.searchsorted(chain, made.first[sides]), np.searchsorted(chain, made.last[sides]) + 2
    less = sides[gains(solution, sides, padded[before], padded[after]).argmax()]
    return np.flatnonzero(made.numbers == less)


def _changed(one: Solution, other: Solution) -> int:
    """Returns how many detections have another track, whatever the tracks are named."""
    # Imported here: it takes a third of a second, before the first line of jaxpose track.
    from scipy.optimize import linear_sum_assignment

    both = np.stack([one.of_detections, other.of_detections])
    both = both[:, (both >= 0).all(axis=0)]
    same = np.zeros((len(one.names), len(other.names)), int)
    np.add.at(same, (both[0], both[1]), 1)
    return both.shape[1] - int(same[linear_sum_assignment(same, maximize=True)].sum())
