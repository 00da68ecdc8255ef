"""The work of `jaxpose track`: reads detections, makes their tracks and writes them."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxpose.config.arguments import DONE
from jaxpose.conversion.label_files import Target
from jaxpose.conversion.prediction_tables import (
    DETECTIONS_FILE,
    SLEAP_ANALYSIS,
    SLP,
    SUFFIXES,
    file_stem,
    find_footage,
    form_of,
    form_to_write,
    individuals_for,
    read_table,
    refuse_no_video,
    scorer_for_deeplabcut,
    with_skeleton,
    write_form,
)
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.formats.prediction_table import Footage, PredictionTable
from jaxpose.outputs import output_folder
from jaxpose.pose.detections import Detections, find_detections
from jaxpose.poses import Poses
from jaxpose.progress import phase
from jaxpose.terminal import count, print_lines, say
from jaxpose.tracking.corrections import (
    Correction,
    answerable,
    checksum_of_answers,
    read_corrections,
    rounds,
    solve_corrected,
)
from jaxpose.tracking.mixed import without_mixed
from jaxpose.tracking.names import Evidence, read_evidence, with_names
from jaxpose.tracking.origin import Origin, checksum_of, origin_file, path_from, read_origin, write_origin
from jaxpose.tracking.review import Doubt, find_doubts, review_table
from jaxpose.tracking.review_file import ENDING, FORMS
from jaxpose.tracking.silhouettes import read_areas
from jaxpose.tracking.tracks import Number, Solution

_AT_MOST = "at-most:"


def run(given: argparse.Namespace) -> int:
    """Makes and writes the tracks that the flags of jaxpose.track describe; returns the exit code.

    Raises:
      UserError: a flag or the detections cannot be used, or the file exists.
      OSError: the file cannot be written.
    """
    number, out = read_number(given.animals), Path(given.out).expanduser()
    file = Path(given.detections).expanduser()
    form = form_to_write(out, FORMS, file)
    if out.name.endswith(DETECTIONS_FILE):
        raise UserError(f"--out is {out}, but names that end in {DETECTIONS_FILE} are those of detections")
    table = read_table(file, several=True, with_placed=True).without_zeros()
    if not np.isfinite(table.poses.points_px).any():
        raise UserError(f"{file} has no position in any frame: nothing to track")
    video = Path(given.video).expanduser() if given.video else None
    if form in (SLP, SLEAP_ANALYSIS):
        table = with_skeleton(dataclasses.replace(table, footage=find_footage(table, video)))
    refuse_no_video(out, table)
    for note in table.notes:
        say(note)
    corrections = _corrections(given.corrections, _review_of(out))
    print_lines("\n".join(write_tracks(table, number, out, table.footage, given.overwrite, corrections, video)))
    return DONE


def write_tracks(
    table: PredictionTable,
    number: Number,
    out: Path,
    footage: Footage | None,
    overwrite: bool,
    corrections: Sequence[Correction] = (),
    video: Path | None = None,
) -> list[str]:
    """Makes and writes the tracks of detections, their review and origin next to them; returns lines about them.

    Args:
      table: the detections, with a position in some frame.
      number: the number of animals.
      out: the file to write; its name says the form.
      footage: the video, which .slp files need.
      overwrite: replace files with other content.
      corrections: a person's, of earlier tracks.
      video: tells the animals apart by their silhouettes; None: motion alone does.

    Raises:
      UserError: corrections contradict each other, a file exists, or the video does not fit the detections.
      OSError: a file cannot be written.
    """
    review = _review_of(out)
    with phase(f"tracking {table.file.name}"):
        found = without_mixed(find_detections(table.poses))
        areas = read_areas(video, found) if video else None
        evidence, note = _evidence(table, found, footage.path if footage else video)
        names = _Names(evidence, _names_before(review, corrections))
        solution = solve_corrected(found, number, corrections, areas, names)
        doubts = find_doubts(solution)
    poses = solution.named(table.poses)
    tracked = _without_others(dataclasses.replace(table, poses=poses))
    target = Target(form_of(out), out, scorer_for_deeplabcut(table), None, overwrite)
    with output_folder(out.parent, overwrite) as folder:
        write_form(folder / out.name, tracked, footage, target)
        origin = Origin(
            rounds(corrections),
            checksum_of(folder / out.name),
            checksum_of_answers(corrections),
            path_from(out, table.file),
            _number_text(number),
            path_from(out, video) if video else "",
            names.of_rounds(rounds(corrections)),
        )
        rows = review_table(doubts, solution.names, origin.round, origin.tracks)
        write_atomic(folder / review.name, rows)
        write_origin(folder / review.name, origin)
    return [
        *_report(out, poses, len(found.parts) // 2),
        *note,
        *_area_lines(video, areas),
        _review_line(review, doubts, solution.names),
        *_lines_about_others(out, review),
    ]


class _Names:
    """The names of the tracks of each round: as they were, or else those of individuals, where they are clear."""

    def __init__(self, evidence: Evidence | None, before: Sequence[Sequence[str]]):
        self._evidence, self._before = evidence, before
        self._names: dict[int, tuple[str, ...]] = {}

    def __call__(self, turn: int, solution: Solution) -> Solution:
        """Returns the tracks of a round with their names."""
        names = tuple(self._before[turn]) if turn < len(self._before) else ()
        if len(names) != len(solution.names):
            names = with_names(solution, self._evidence).names
        self._names[turn] = names
        return dataclasses.replace(solution, names=names)

    def of_rounds(self, last: int) -> list[list[str]]:
        """Returns the names of rounds 0 to `last`; those of a round without answers are those of the next one."""
        turns = [min(turn for turn in self._names if turn >= number) for number in range(last + 1)]
        return [list(self._names[turn]) for turn in turns]


def _names_before(review: Path, corrections: Sequence[Correction]) -> list[list[str]]:
    """Returns the names by which corrections call the tracks of each round, [] if they are not known."""
    if not corrections or not origin_file(review).is_file():
        return []
    return read_origin(review).names[: rounds(corrections)]


def _evidence(table: PredictionTable, found: Detections, video: Path | None) -> tuple[Evidence | None, list[str]]:
    """Returns how much detections of a run look like its individuals, None if it knows none, and a line about it."""
    if (learned := individuals_for(table.file)) is None:
        return None, []
    individuals, data, predicted = learned
    video = video or predicted
    try:
        if video is None or not video.is_file():
            raise UserError(f"there is no video {video}; give it with --video")
        evidence = read_evidence(individuals, data, video, found, table.poses.keypoint_names)
    except UserError as error:
        return None, [f"tracks have numbers instead of the names {', '.join(individuals.names)}: {error}"]
    return dataclasses.replace(evidence, names=answerable(evidence.names)), []


def _review_of(out: Path) -> Path:
    return out.with_name(f"{file_stem(out)}{ENDING}")


def _corrections(name: str, review: Path) -> list[Correction]:
    if not name:
        return []
    file = Path(name).expanduser()
    if file.exists() and review.exists() and file.samefile(review):
        raise UserError(f"--corrections is {file}, which this command writes; give your answers another file name")
    return read_corrections(file)


def read_number(text: str) -> Number:
    """Returns the number of animals of --animals.

    Raises:
      UserError: the text is not N or at-most:N.
    """
    if not text:
        return Number()
    digits = text.removeprefix(_AT_MOST)
    if not digits.isascii() or not digits.isdigit() or int(digits) < 1:
        raise UserError(f"--animals is {text}; it must be a whole number from 1, or {_AT_MOST}N")
    return Number(0 if text.startswith(_AT_MOST) else int(digits), int(digits))


def _number_text(number: Number) -> str:
    """Returns the text that `read_number` reads."""
    if number.most is None:
        return ""
    return str(number.most) if number.least else f"{_AT_MOST}{number.most}"


def _without_others(table: PredictionTable) -> PredictionTable:
    """Returns the table without the predicted animals that belong to no track; a person's stay."""
    poses = table.poses
    identity = np.asarray(poses.identity)
    goes = identity < 0 if table.by_hand is None else (identity < 0) & ~table.by_hand
    points = np.where(goes[..., None, None], np.nan, poses.points_px)
    # A frame that loses its only animal was listed as well.
    return dataclasses.replace(table, poses=dataclasses.replace(poses, points_px=points))


def _report(out: Path, poses: Poses, mixed: int) -> list[str]:
    """Returns lines about the tracks; `mixed` detections mix two animals."""
    is_there = np.isfinite(poses.points_px[..., 0]).any(axis=2)
    frames = len(poses.frames)
    identity = np.asarray(poses.identity)
    lines = [f"{out}: {count(len(poses.individuals), 'animal')} in {count(frames, 'frame')}"]
    for number, name in enumerate(poses.individuals):
        seen = ((identity == number) & is_there).any(axis=1)
        gaps = int((np.diff(np.flatnonzero(seen)) > 1).sum())
        lines.append(f"{name}: {count(int(seen.sum()), 'frame')}, {count(gaps, 'gap')}")
    if left := int((is_there & (identity < 0)).sum()):
        which = f", {mixed:,} of which mix the keypoints of two animals" if mixed else ""
        lines.append(f"in no track: {count(left, 'detection')}{which}")
    return lines


def _lines_about_others(out: Path, review: Path) -> list[str]:
    """Returns a line about tracks of the same name in other forms, which may differ from the new ones."""
    files = [out.with_name(f"{file_stem(out)}{SUFFIXES[form]}") for form in FORMS if form != form_of(out)]
    others = [file.name for file in files if file.is_file()]
    return [f"{', '.join(others)}: earlier tracks; {review.name} is now that of {out.name}"] if others else []


def _area_lines(video: Path | None, areas: np.ndarray | None) -> list[str]:
    if areas is None:
        return []
    known = int(np.isfinite(areas).sum())
    return [f"{video}: the silhouettes of {known:,} of {count(len(areas), 'detection')} were measured"]


def _review_line(file: Path, doubts: Sequence[Doubt], names: Sequence[str]) -> str:
    if not doubts:
        return f"{file}: no doubtful place"
    first = doubts[0]
    tracks = " and ".join(names[track] for track in (first.track_a, first.track_b) if track >= 0)
    where = f"{first.kind}, {tracks}, frames {first.frame_from} to {first.frame_to}"
    return f"{file}: {count(len(doubts), 'doubtful place')}; the first: {where}"
