"""A person's answers to the rows of a review: they are read, and the tracks are solved again until all hold."""

import csv
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxpose.config.option import excerpt
from jaxpose.errors import UserError
from jaxpose.text_file import read_unicode
from jaxpose.tracking.detections import Detections
from jaxpose.tracking.review import EXTRA, MISSING, exchanges
from jaxpose.tracking.tracks import Number, Solution, regrouped, solve

SAME, DIFFERENT, EXCHANGED = ANSWERS = ("same", "different", "swap")
# What `read_corrections` needs; a review has more columns.
_COLUMNS = ("answer", "round", "frame_from", "frame_to", "track_a", "track_b")
_RULE = "corrections have the columns of the review that jaxpose track wrote"
# Solving again, a correction may break another one; so often it is tried.
_MOST_TURNS = 20
_MOST_DIGITS = 15


@dataclasses.dataclass(frozen=True)
class Correction:
    """An answer of a person.

    Attributes:
      place: the file and line.
      answer: `SAME`: each track shows one animal in both frames. `DIFFERENT`: each shows two. `EXCHANGED`: track_a
        and track_b have exchanged their animals between the frames.
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
        reader = csv.DictReader(io.StringIO(read_unicode(file, "CSV file", _RULE), newline=""))
        rows = [(f"{file}:{reader.line_num}", row) for row in reader]
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise UserError(f"there is no file of corrections {file}") from None
    except csv.Error as error:
        raise UserError(f"{file} is not a CSV file: {error}") from None
    if absent := [name for name in _COLUMNS if name not in (reader.fieldnames or ())]:
        raise UserError(f"{file} has no column {', '.join(absent)}; {_RULE}")
    answered = [(place, row) for place, row in rows if (row["answer"] or "").strip()]
    if not answered:
        raise UserError(f"{file} has no answer; write {', '.join(ANSWERS)} into the column answer of a row")
    corrections = [_correction(place, {name: (text or "").strip() for name, text in row.items() if name})
                   for place, row in answered]  # fmt: skip
    return sorted(corrections, key=lambda one: one.round)


def _correction(place: str, row: dict[str, str]) -> Correction:
    answer, kind, track_a, track_b = row["answer"].lower(), row.get("kind", ""), row["track_a"], row["track_b"]
    if answer not in ANSWERS:
        raise UserError(f"{place}: the answer is {row['answer']}; it must be one of {', '.join(ANSWERS)}")
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


def solve_corrected(found: Detections, number: Number, corrections: Sequence[Correction]) -> Solution:
    """Returns the cheapest tracks in which all corrections hold.

    Raises:
      UserError: a correction names an unknown track or frame, or cannot hold with the others.
    """
    solution, demands = solve(found, number), list[_Demand]()
    for turn in sorted({one.round for one in corrections}):
        for correction in corrections:
            demands += _demands(solution, correction) if correction.round == turn else []
        solution = _solve(solution, number, demands)
    return solution


def rounds(corrections: Sequence[Correction]) -> int:
    """Returns the round of a review that follows corrections."""
    return max((one.round + 1 for one in corrections), default=0)


def _demands(solution: Solution, correction: Correction) -> list[_Demand]:
    names = [name for name in (correction.track_a, correction.track_b) if name]
    for name in names:
        if name not in solution.names:
            known = ", ".join(solution.names)
            raise UserError(f"{correction.place}: there is no track {name} in round {correction.round}; it has {known}")
    before, after = [], []
    for name in names:
        chain = solution.chain(solution.names.index(name))
        frames = solution.found.frames[chain]
        place = int(np.searchsorted(frames, correction.frame_from, side="right"))
        behind = int(np.searchsorted(frames, correction.frame_to))
        before.append(int(chain[place - 1]) if place else -1)
        after.append(int(chain[behind]) if behind < len(chain) else -1)
    if correction.answer == EXCHANGED:
        after.reverse()
    pairs = [pair for pair in zip(before, after, strict=True) if min(pair) >= 0]
    if not pairs:
        raise UserError(
            f"{correction.place}: {' and '.join(names)} are not seen both up to frame {correction.frame_from} and from "
            f"frame {correction.frame_to} on"
        )
    return [_Demand(correction.place, *pair, correction.answer != DIFFERENT) for pair in pairs]


def _solve(solution: Solution, number: Number, demands: Sequence[_Demand]) -> Solution:
    # First those that need another solution; an exchange leaves everything else as it is.
    ordered = sorted(demands, key=lambda demand: demand.is_one)
    for _ in range(_MOST_TURNS):
        broken = [demand for demand in ordered if not _holds(demand, solution.of_detections)]
        if not broken:
            return dataclasses.replace(solution, found=_pinned(solution, demands))
        if broken[0].is_one:
            solution = _exchanged(solution, broken[0], demands)
        else:
            found, number = _parted(solution, broken[0], number)
            solution = solve(found, number)
    raise _contradiction(broken[0])


def _contradiction(demand: _Demand) -> UserError:
    return UserError(f"{demand.place}: this cannot hold together with the other corrections and --animals")


def _holds(demand: _Demand, tracks: np.ndarray) -> bool:
    one, other = tracks[[demand.here, demand.there]].tolist()
    return min(one, other) < 0 or (one == other) == demand.is_one


def _exchanged(solution: Solution, broken: _Demand, demands: Sequence[_Demand]) -> Solution:
    """Returns the solution after the cheapest exchange of two tracks that keeps the most demands."""
    found, tracks = solution.found, solution.of_detections
    pair = int(tracks[broken.here]), int(tracks[broken.there])
    margins, ends = exchanges(solution, pair, *found.frames[[broken.here, broken.there]].tolist())
    choices = []
    for margin, (a, b, c, d) in zip(margins.tolist(), ends.T.tolist(), strict=True):
        behind = found.frames > found.frames[[a, b]].max()
        then = np.where(behind & np.isin(tracks, pair), sum(pair) - tracks, tracks)
        choices.append((sum(not _holds(demand, then) for demand in demands), margin, (a, b, c, d)))
    if not choices:
        raise _contradiction(broken)
    _, _, (a, b, c, d) = min(choices)
    behind = found.frames > found.frames[[a, b]].max()
    then = np.where(behind & np.isin(tracks, pair), sum(pair) - tracks, tracks)
    return regrouped(dataclasses.replace(solution, found=_joined(found, np.array([[a, d], [b, c]]))), then)


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


def _parted(solution: Solution, broken: _Demand, number: Number) -> tuple[Detections, Number]:
    """Returns what to solve so that the weakest link between two detections is none; or else a track more."""
    found, made, count = solution.found, solution.made, len(solution.names)
    chain = solution.chain(int(solution.of_detections[broken.here]))
    chain = chain[
        (found.frames[chain] >= found.frames[broken.here]) & (found.frames[chain] <= found.frames[broken.there])
    ]
    weakest = int(made.costs(found, chain[:-1], chain[1:]).argmax())
    pair = chain[weakest : weakest + 2]
    if not (found.parted == pair).all(axis=1).any():
        return dataclasses.replace(found, parted=np.concatenate([found.parted, pair[None]])), number
    if number.most is None or count < number.most:
        return found, Number(count + 1, number.most)
    # No other animal can be the one after the link, so the shorter side of it is none.
    sides = [np.flatnonzero(made.numbers == made.numbers[end]) for end in pair]
    return dataclasses.replace(found, barred=np.append(found.barred, min(sides, key=len))), number
