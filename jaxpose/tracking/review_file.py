"""Reads the review that `jaxpose track` wrote next to its tracks."""

import csv
import dataclasses
import io
from pathlib import Path
from typing import NamedTuple

from jaxpose.conversion.prediction_tables import CSV, DEEPLABCUT, SLEAP_ANALYSIS, SLP, SUFFIXES, read_table
from jaxpose.errors import UserError
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.poses import Poses
from jaxpose.tracking.origin import Origin
from jaxpose.tracking.review import COLUMNS

# The forms of tables of tracks that `jaxpose track` writes.
FORMS = (SLP, DEEPLABCUT, SLEAP_ANALYSIS, CSV)
ENDING = "_review.csv"
# Of the numbers of frames.
_MOST_DIGITS = 15


class Place(NamedTuple):
    """What an answer is about; texts as in the columns of a review."""

    round: str
    frame_from: str
    frame_to: str
    track_a: str
    track_b: str


@dataclasses.dataclass(frozen=True)
class ReviewRow:
    """A row of a review.

    Attributes:
      kind: as in `jaxpose.tracking.review`; "" for a row of a person's own.
      place: what it is about.
      margin, expected_wrong: as the review has them.
    """

    kind: str
    place: Place
    margin: str = ""
    expected_wrong: str = ""


class OtherTracks(UserError):
    """The tracks, their origin and their review are not of one another: perhaps they are being replaced."""


def tracks_of(review: Path) -> Path:
    """Returns the table of the tracks of a review; raises UserError without one, or with several."""
    stem = review.name.removesuffix(ENDING)
    found = [file for form in FORMS if (file := review.with_name(f"{stem}{SUFFIXES[form]}")).is_file()]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(
            f"{review} may be of {' or '.join(file.name for file in found)}: move away the file that jaxpose track did "
            "not write with it"
        )
    forms = ", ".join(SUFFIXES[form] for form in FORMS)
    others = [file for ending in SUFFIXES.values() if (file := review.with_name(f"{stem}{ending}")).is_file()]
    has = f"; it has {others[0].name}, a form that jaxpose track does not write" if others else ""
    raise UserError(f"{review} has no tracks {stem} ({forms}) next to it, which jaxpose track writes with it{has}")


def read_tracks(file: Path, origin: Origin) -> PredictionTable:
    """Returns the tracks of a file, with one place for each.

    Args:
      file: the tracks.
      origin: of these tracks; it has the name of a single track, which tables do not have.

    Raises:
      UserError: the file cannot be used, has several animals without tracks, or a track twice in a frame.
    """
    table = read_table(file, several=True).placed()
    if table.poses.individuals:
        return table
    return dataclasses.replace(table, poses=dataclasses.replace(table.poses, individuals=tuple(origin.names[-1][:1])))


def refuse_other_tracks(review: Path, tracks: Path, origin: Origin, checksum: str) -> None:
    """Raises OtherTracks if the file of the tracks, with that checksum, is not the one of the review's origin."""
    if origin.tracks != checksum:
        raise OtherTracks(
            f"{tracks} has changed since jaxpose track wrote {review.name}, or is another file: make both again with "
            "jaxpose track"
        )


def read_rows(file: Path, content: bytes, origin: Origin, poses: Poses | None = None) -> list[ReviewRow]:
    """Returns the rows of a review.

    Args:
      file, content: the review.
      origin: of the tracks.
      poses: the tracks, which must have the animals and frames of each row; None: this is not checked.

    Raises:
      UserError: it is no review.
      OtherTracks: a row is of other tracks.
    """
    # A spreadsheet may write a byte order mark.
    reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig", "replace"), newline=""))
    try:
        found = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise UserError(f"{file} is not a CSV file: {error}") from None
    if absent := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
        raise UserError(f"{file} is not a review that jaxpose track wrote: it has no column {', '.join(absent)}")
    rows = []
    for line, row in found:
        place = Place(*(row[name] or "" for name in Place._fields))
        is_whole = all(text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS for text in place[:3])
        is_ours = row["tracks"] == origin.tracks and place.round == str(origin.round)
        if not is_ours or not is_whole or poses and not _is_in(poses, place):
            raise OtherTracks(f"{file}:{line} is not of the tracks next to it; make both again")
        rows.append(ReviewRow(row["kind"] or "", place, row["margin"] or "", row["expected_wrong"] or ""))
    return rows


def _is_in(poses: Poses, place: Place) -> bool:
    is_known = {place.track_a, place.track_b} <= {"", *poses.individuals}
    return is_known and int(place.frame_from) <= int(place.frame_to) < len(poses.frames)
