"""The tracks of several animals in a run's videos: their reviews, and pictures of the most doubtful places."""

import dataclasses
import math
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxpose.conversion.prediction_tables import read_table
from jaxpose.data.images import keypoint_colours
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.formats.prediction_table import PredictionTable, refuse_other_length
from jaxpose.poses import Poses
from jaxpose.prediction.index import DETECTIONS, TRACKS
from jaxpose.prediction.video_tables import finished_tables
from jaxpose.report.facts import MOST_BYTES, RunFacts, edges_of_run
from jaxpose.report.page import escaped, paragraph, table
from jaxpose.report.pictures import cut_around, embed
from jaxpose.tracking.origin import Origin, checksum_of, read_origin
from jaxpose.tracking.review import MISSING
from jaxpose.tracking.review_file import ENDING, ReviewRow, read_rows, read_tracks, refuse_other_tracks, tracks_of
from jaxpose.video.decoding import RangeReader
from jaxpose.video.index import Stopped, as_labelled, key_frame_before, labelled_sizes_px, read_index

# Number of places with pictures, and the longer side of a picture.
_PLACES, _LONGEST_PX = 20, 200
# Maximum time for the pictures: a long video whose key frames cannot be trusted is decoded from its start.
_PATIENCE_S = 30.0
# A detection is in a track if their points differ by less than this, in px: a form may store float32.
_SAME_PX = 0.01
_NO_TRACK = "#ffffff"


@dataclasses.dataclass(frozen=True)
class _Reviewed:
    """A video with tracks and their review.

    Attributes:
      video: the file, which may be on another machine.
      detections, tracks, review: the files.
      origin, content: of the tracks, and of the review.
      rows: those of the review.
    """

    video: Path
    detections: Path
    tracks: Path
    review: Path
    origin: Origin
    content: bytes
    rows: Sequence[ReviewRow]


# A number of a review, and one of its rows.
_Doubt = tuple[int, ReviewRow]


def tracks_of_run(facts: RunFacts) -> str:
    """Returns HTML about the predicted videos of a run of several animals, whose places in a frame have no traces."""
    try:
        tables = finished_tables(facts.run)
    except UserError as error:
        return paragraph(f"There are no tracks: {error}")
    rows, reviews, problems = [], list[_Reviewed](), []
    for detections, video in tables.items():
        stem = detections.name.removesuffix(f"{DETECTIONS}{detections.suffix}") + TRACKS
        review, row = detections.with_name(f"{stem}{ENDING}"), [video.name, "-", "no tracks"]
        if review.is_file():
            row[1:] = [str(review.relative_to(facts.run)), "-"]
            try:
                one = _read_review(review, detections, video)
                row[2] = f"{len(one.rows):,}"
                reviews.append(one)
            except (UserError, OSError) as error:
                problems.append(f"The review of {video.name} is left out: {error}")
        rows.append(row)
    text = (
        "With several animals, this page shows no traces. jaxpose draw shows the tracks of a video in colour, and "
        "jaxpose label opens a review, the list of places where two animals may have been confused."
    )
    listed = table(["video", "review", "places to check"], rows, "Predicted videos")
    return paragraph(text) + listed + "".join(paragraph(text) for text in problems) + _places(facts, reviews)


def _read_review(review: Path, detections: Path, video: Path) -> _Reviewed:
    """Reads a review; raises UserError if it is none, or is of other tracks than those next to it."""
    tracks, origin = tracks_of(review), read_origin(review)
    refuse_other_tracks(review, tracks, origin, checksum_of(tracks))
    content = read_bytes(review, most_bytes=None)
    rows = read_rows(review, content, origin)
    for row in rows:
        if not math.isfinite(_number(row.expected_wrong)):
            raise UserError(f"{review} has {row.expected_wrong!r} in expected_wrong, which is no number")
    return _Reviewed(video, detections, tracks, review, origin, content, rows)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _places(facts: RunFacts, reviews: Sequence[_Reviewed]) -> str:
    """Returns HTML with the places that may cost the most identities."""
    doubts = [(number, row) for number, one in enumerate(reviews) for row in one.rows]
    if not doubts:
        return ""
    doubts.sort(key=lambda doubt: -_number(doubt[1].expected_wrong))
    shown = doubts[:_PLACES]
    which = f"the first {len(shown)} of {len(doubts):,} places" if len(doubts) > len(shown) else "all places"
    text = (
        f"Here are {which} to check, the most costly first. Each strip shows the frames before and after a decision, "
        "and up to two between. Poses have the colours of their tracks, as in the videos of jaxpose draw. At places of "
        "the kind missing, the poses that were left out of the tracks are white."
    )
    strips, is_late = _draw(facts, reviews, shown)
    late = f"Reading the other frames of the videos would take longer than {_PATIENCE_S:g} s."
    items = "".join(f"<li>{strips[doubt]}</li>" for doubt in shown)
    head = f"<h3>Places to check</h3>{paragraph(text)}{paragraph(late) * is_late}"
    return f'{head}<ol class="strips">{items}</ol>'


def _draw(facts: RunFacts, reviews: Sequence[_Reviewed], doubts: Sequence[_Doubt]) -> tuple[dict[_Doubt, str], bool]:
    """Returns {place: HTML with its pictures, and what it is}, and whether pictures are absent for lack of time."""
    strips, room, until = dict[_Doubt, str](), MOST_BYTES, time.monotonic() + _PATIENCE_S
    is_late = False
    for number in dict.fromkeys(number for number, _ in doubts):
        one, rows = reviews[number], [row for which, row in doubts if which == number]
        colours, figures, problem = dict[str, str](), dict[tuple[ReviewRow, int], str](), ""
        try:
            room = _room_after(one, rows, room)
            tracks, loose = _read_tracks(facts, one, rows)
            colours = _colours(tracks.poses.individuals)
            for row, frame, figure in _figures(facts, one, rows, tracks, loose, until):
                figures[row, frame] = figure
        except Stopped:
            is_late = True
        except (UserError, OSError) as error:
            problem = paragraph(f"There are no pictures: {error}")
        for row in rows:
            of_row = "".join(figures[key] for key in sorted(figures, key=lambda key: key[1]) if key[0] == row)
            strips[number, row] = (
                f'{_about(one, row, colours)}<div class="strip">{of_row}</div>{problem}{_command(one)}'
            )
    return strips, is_late


def _room_after(one: _Reviewed, rows: Sequence[ReviewRow], room: int) -> int:
    """Returns how many bytes of tables may be read after those of a review; raises UserError if there are too few."""
    files = [one.tracks, *([one.detections] if _has_missing(rows) else [])]
    room -= sum(file.stat().st_size for file in files)
    if room < 0:
        raise UserError(f"the tables of all tracks have more than {MOST_BYTES / 1e6:g} MB")
    return room


def _has_missing(rows: Sequence[ReviewRow]) -> bool:
    return any(row.kind == MISSING for row in rows)


def _read_tracks(facts: RunFacts, one: _Reviewed, rows: Sequence[ReviewRow]) -> tuple[PredictionTable, np.ndarray]:
    """Returns the tracks, one place for each, and (f, m, k, 2) the detections that are in none if a row needs them.

    Raises:
      UserError: a table cannot be used.
    """
    names = facts.config.data.keypoint_names
    tracks = _in_order(read_tracks(one.tracks, one.origin), names)
    poses = tracks.poses
    read_rows(one.review, one.content, one.origin, poses)
    if not _has_missing(rows):
        return tracks, np.full((len(poses.frames), 0, len(names), 2), np.nan)
    found = _in_order(read_table(one.detections, several=True), names).poses
    if len(found.frames) != len(poses.frames):
        raise UserError(f"{one.detections} and {one.tracks} have other numbers of frames")
    loose = found.points_px.copy()
    for frame in {frame for row in rows for frame in _frames(row, len(poses.frames))}:
        apart = np.abs(loose[frame][:, None] - poses.points_px[frame][None]).max(axis=-1)
        loose[frame][((apart < _SAME_PX) | np.isnan(loose[frame][:, None, :, 0])).all(axis=-1).any(axis=-1)] = np.nan
    return tracks, loose


def _in_order(found: PredictionTable, names: Sequence[str]) -> PredictionTable:
    """Returns a table with the keypoints in the order of the run; raises UserError if they are others."""
    if sorted(found.poses.keypoint_names) != sorted(names):
        raise UserError(f"{found.file} is not of this run: its keypoints are not {', '.join(names)}")
    places = [found.poses.keypoint_names.index(name) for name in names]
    poses = Poses(
        tuple(names), found.poses.frames, found.poses.points_px[:, :, places], individuals=found.poses.individuals
    )
    return dataclasses.replace(found, poses=poses)


def _frames(row: ReviewRow, frame_count: int) -> list[int]:
    """Returns the numbers of the frames with pictures: two to four."""
    first, last = int(row.place.frame_from), int(row.place.frame_to)
    if first == last:
        return list(range(max(first - 1, 0), min(first + 2, frame_count)))
    apart = last - first
    return sorted({first, first + apart // 3, first + 2 * apart // 3, last})


def _figures(
    facts: RunFacts, one: _Reviewed, rows: Sequence[ReviewRow], tracks: PredictionTable, loose: np.ndarray,
    until: float,
) -> Iterator[tuple[ReviewRow, int, str]]:  # fmt: skip
    """Yields the row, the frame and the figure of each picture; a later figure replaces an earlier one.

    Raises:
      UserError: the video cannot be used.
      Stopped: the time `until` came first.
    """

    def is_late() -> bool:
        return time.monotonic() > until

    index = as_labelled(read_index(one.video), labelled_sizes_px(facts.config.data))
    refuse_other_length(index, tracks)
    wanted = dict[int, dict[int, list[ReviewRow]]]()
    for row in rows:
        for frame in _frames(row, index.frame_count):
            yield row, frame, _figure("", f"frame {frame:,} could not be read")
            key = key_frame_before(index, frame, is_late)
            wanted.setdefault(key, {}).setdefault(frame, []).append(row)
    size_px = index.width_px, index.height_px
    for of_key in wanted.values():
        for frame, image in RangeReader(index, min(of_key), max(of_key) + 1, np.eye(2, 3), size_px, is_late):
            for row in of_key.get(frame, ()):
                others = loose if row.kind == MISSING else loose[:, :0]
                picture = _picture(facts, one.video.name, image, row, frame, tracks.poses, others)
                yield row, frame, _figure(picture, f"frame {frame:,}")


def _figure(picture: str, text: str) -> str:
    return f"<figure>{picture}<figcaption>{escaped(text)}</figcaption></figure>"


def _picture(
    facts: RunFacts, video: str, image: np.ndarray, row: ReviewRow, frame: int, poses: Poses, loose: np.ndarray
) -> str:
    """Returns the part of a frame (h, w, 3) that all pictures of a row show, with the poses of the frame."""
    image, corner_px = cut_around(image, _points_of(row, poses, loose))
    colours = _colours(poses.individuals)
    shown = [(name, colours[name], pose) for name, pose in zip(poses.individuals, poses.points_px[frame], strict=True)]
    shown += [("in no track", _NO_TRACK, pose) for pose in loose[frame]]
    names, edges, size_px = poses.keypoint_names, edges_of_run(facts.config.data), image.shape[1::-1]
    marks = [_marks(name, colour, pose - corner_px, names, edges, size_px) for name, colour, pose in shown]
    return embed(image, "".join(marks), f"{video}, frame {frame:,}: {_tracks_text(row)}", _LONGEST_PX)


def _points_of(row: ReviewRow, poses: Poses, loose: np.ndarray) -> np.ndarray:
    """Returns the points (m, 2) of a row's tracks in its frames, and of detections in no track.

    A track that is in none of them has the points of the nearest frames before and after them.
    """
    frames = _frames(row, len(poses.frames))
    points = [loose[frames].reshape(-1, 2)]
    for name in (row.place.track_a, row.place.track_b):
        if not name:
            continue
        of_track = poses.points_px[:, poses.individuals.index(name)]
        chosen = frames
        if not np.isfinite(of_track[frames]).any():
            seen = np.flatnonzero(np.isfinite(of_track[..., 0]).any(axis=-1))
            chosen = [*seen[seen < frames[0]][-1:], *seen[seen > frames[-1]][:1]]
        points.append(of_track[chosen].reshape(-1, 2))
    return np.concatenate(points)


def _marks(
    track: str,
    colour: str,
    points_px: np.ndarray,
    names: Sequence[str],
    edges: Sequence[tuple[int, int]],
    size_px: tuple[int, ...],
) -> str:
    """Returns SVG with a pose (k, 2) in pixels of a picture; points outside it are not drawn."""
    radius, parts = max(size_px) / 70, []
    is_in = np.asarray(((points_px >= -0.5) & (points_px < np.array(size_px) - 0.5)).all(axis=-1))
    for one, other in edges:
        if is_in[one] and is_in[other]:
            (x1, y1), (x2, y2) = points_px[[one, other]].tolist()
            parts.append(
                f'<line class="kp-{one} kp-{other}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                f'style="stroke:{colour}" stroke-width="{radius / 2:.1f}"/>'
            )
    for place in np.flatnonzero(is_in).tolist():
        x, y = points_px[place].tolist()
        parts.append(
            f'<circle class="kp-{place}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}" stroke="#000" '
            f'stroke-width="{radius / 4:.1f}"><title>{escaped(f"{track}, {names[place]}")}</title></circle>'
        )
    return "".join(parts)


def _colours(individuals: Sequence[str]) -> dict[str, str]:
    """Returns the colour of each track, as `jaxpose draw` has them."""
    rgb = keypoint_colours(len(individuals)).tolist()
    return {name: f"#{r:02x}{g:02x}{b:02x}" for name, (r, g, b) in zip(individuals, rgb, strict=True)}


def _tracks_text(row: ReviewRow) -> str:
    return " and ".join(name for name in (row.place.track_a, row.place.track_b) if name)


def _about(one: _Reviewed, row: ReviewRow, colours: Mapping[str, str]) -> str:
    """Returns HTML that says what a place is."""
    tracks = []
    for name in filter(None, (row.place.track_a, row.place.track_b)):
        dot = f'<span class="dot" style="background:{colours[name]}"></span> ' if name in colours else ""
        tracks.append(f"{dot}{escaped(name)}")
    first, last = int(row.place.frame_from), int(row.place.frame_to)
    frames = f"frames {first:,} to {last:,}" if first < last else f"frame {first:,}"
    numbers = escaped(f"{frames}, margin {row.margin}, expected_wrong {row.expected_wrong}")
    return f"<p>{escaped(one.video.name)}: <strong>{escaped(row.kind)}</strong>, {' and '.join(tracks)}, {numbers}</p>"


def _command(one: _Reviewed) -> str:
    """Returns HTML with the command that opens a review."""
    review, video = (shlex.quote(os.path.abspath(file)) for file in (one.review, one.video))
    return f"<p><code>{escaped(f'jaxpose label {review} --video {video}')}</code></p>"
