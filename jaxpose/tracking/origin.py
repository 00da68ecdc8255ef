"""How tracks were made, in the file <tracks>_review.json next to their review."""

import dataclasses
import os
from pathlib import Path

from jaxpose.checksums import read_json, write_json
from jaxpose.errors import UserError
from jaxpose.files import sha256_of

_DIGITS = 16
_MEND = "make the tracks again with jaxpose track"


@dataclasses.dataclass(frozen=True)
class Origin:
    """How tracks were made.

    Attributes:
      round: how often the tracks had been corrected.
      tracks: checksum of their file, which is also in the rows of their review.
      answers: checksum of the corrections that they were made with, see `checksum_of_answers`.
      detections, video: the file of the detections, and that of --video ("" without it). A file in the folder of the
        tracks, or below, is relative to it; another is absolute.
      animals: value of --animals.
      names: the names of the tracks of each round, from round 0; answers call them so, whatever is learnt later.
    """

    round: int
    tracks: str
    answers: str
    detections: str
    animals: str
    video: str
    names: list[list[str]]


def path_from(tracks: Path, file: Path) -> str:
    """Returns the path of a file as the `Origin` of tracks in this place has it."""
    file, folder = (Path(os.path.abspath(path)) for path in (file, tracks.parent))
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)


def shortened(sha256: str) -> str:
    """Returns the checksum that files have of a SHA-256; its first letters keep spreadsheets from reading a number."""
    return f"sha256:{sha256[:_DIGITS]}"


def checksum_of(tracks: Path) -> str:
    """Returns the checksum of a file of tracks."""
    return shortened(sha256_of(tracks))


def origin_file(review: Path) -> Path:
    """Returns the file of the origin of the tracks of a review."""
    return review.with_suffix(".json")


def write_origin(review: Path, origin: Origin) -> None:
    """Writes the origin of the tracks of a review.

    Raises:
      OSError: the file cannot be written.
    """
    write_json(origin_file(review), dataclasses.asdict(origin))


def read_origin(review: Path) -> Origin:
    """Reads the origin of the tracks of a review.

    Raises:
      UserError: it is absent, or not as jaxpose wrote it.
      OSError: it cannot be read.
    """
    file = origin_file(review)
    if not file.is_file():
        raise UserError(f"{review} has no {file.name} next to it, which records how its tracks were made: {_MEND}")
    names = [field.name for field in dataclasses.fields(Origin)]
    content = read_json(file, _MEND, names)
    return Origin(**{name: content[name] for name in names})
