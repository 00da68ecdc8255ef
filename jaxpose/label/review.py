"""The review of tracks while a person answers it: doubtful places, the poses of the tracks, and the corrections.

The tables that `jaxpose track` wrote are the truth, and are read again when they have changed. An answer is in the file
of corrections when `answer` returns.
"""

import dataclasses
import hashlib
import os
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jaxpose.config.arguments import program
from jaxpose.data.named_files import find_files
from jaxpose.errors import UserError
from jaxpose.files import read_bytes, write_atomic
from jaxpose.formats.prediction_table import Footage
from jaxpose.label.answers import AnswerFile, read_answers
from jaxpose.label.store import Stale
from jaxpose.label.tracker import Tracker
from jaxpose.label.video_frames import VideoFrames
from jaxpose.poses import Poses
from jaxpose.prediction.video_tables import video_of
from jaxpose.terminal import count
from jaxpose.tracking.corrections import ANSWERS, EXCHANGED, checksum_of_answers, refuse_unknown, rounds
from jaxpose.tracking.origin import Origin, checksum_of, origin_file, read_origin
from jaxpose.tracking.review import EXTRA, MISSING
from jaxpose.tracking.review_file import (
    ENDING,
    OtherTracks,
    Place,
    ReviewRow,
    read_rows,
    read_tracks,
    refuse_other_tracks,
    tracks_of,
)
from jaxpose.video.recording import Recording

_CORRECTIONS = "_corrections.csv"
# The poses of this many frames come with one request.
TOGETHER = 16
_PLACES_DECIMALS = 2
Result = TypeVar("Result")
# `jaxpose track` replaces its files one after the other, in less time than this.
_REPLACED_S, _TRY_AGAIN_S = 0.3, 0.1


@dataclasses.dataclass(frozen=True)
class _Tables:
    """What was read of the files: the tracks (one place for each individual), their origin, and the rows of the review.

    `poses_revision` changes with the tracks, `tables_revision` also with the review and the origin, and `revision` with
    any of the files.
    """

    poses: Poses
    origin: Origin
    doubts: Sequence[ReviewRow]
    answers: AnswerFile
    poses_revision: str
    tables_revision: str

    @property
    def revision(self) -> str:
        return self.tables_revision + _digest(self.answers.content())


@dataclasses.dataclass(frozen=True)
class _Mistake:
    """Why files could not be used: their signatures, the error, and when it was first seen (`time.monotonic`)."""

    signatures: Sequence[tuple[int, ...]]
    error: UserError
    since_s: float


class Review:
    """A review, its tracks and its corrections.

    Attributes:
      file: the review.
      tracks: the table of the tracks, next to it.
      corrections: the file of the answers.
      video: the video of the tracks.
      frames: of videos, by number.
      frame_count: of the video.
    """

    def __init__(self, file: Path, video: str = "", corrections: str = ""):
        """Reads the tables.

        Args:
          file: the review that `jaxpose track` or `jaxpose predict` wrote, next to its tracks.
          video: of the tracks; "" for the one that they, or the index of their run, name.
          corrections: the file of the answers; "" for <tracks>_corrections.csv.

        Raises:
          UserError: a file cannot be used, or the corrections are of other tracks.
          OSError: a file cannot be read.
        """
        self.file, self.tracks = file, tracks_of(file)
        stem = file.name.removesuffix(ENDING)
        self.corrections = Path(corrections).expanduser() if corrections else file.with_name(f"{stem}{_CORRECTIONS}")
        if self.corrections.is_symlink():
            raise UserError(f"--corrections is {self.corrections}, a link that saving would replace: give its file")
        if self.corrections.exists() and file.exists() and self.corrections.samefile(file):
            raise UserError(f"--corrections is {file}, which jaxpose track writes; give your answers another file name")
        self._lock = threading.Lock()
        self._poses: tuple[tuple[int, ...], Poses, Footage | None, str] | None = None
        self._doubts: tuple[Origin, bytes, list[ReviewRow]] | None = None
        self._mistake: _Mistake | None = None
        self._tracker = Tracker(self.tracks)
        self._with_tables(lambda _: None)
        self.video = Path(video).expanduser() if video else self._find_video()
        if not self.video.is_file():
            raise UserError(f"the video {self.video} does not exist; give --video VIDEO")
        assert self._poses
        rows, footage, recordings = len(self._poses[1].frames), self._poses[2], dict[Path, Recording]()
        if footage and footage.width_px:
            size_px = footage.width_px, footage.height_px
            recordings[self.video] = Recording(f"the video of {self.tracks}", rows, size_px)
        self.frames = VideoFrames(recordings)
        self.frame_count = self.frames.index(self.video).frame_count
        if rows > self.frame_count:
            frames = count(self.frame_count, "frame")
            raise UserError(f"{self.video} has {frames}, but {self.tracks} has {rows:,}: is it another video?")

    def state(self, revision: str = "") -> dict[str, Any]:
        """Returns the review and its answers as JSON; only `revision` and `tracking` if `revision` is the given one.

        `tracking` is the state of `Tracker`. Each row is `kind`, `place`, `margin`, `expected_wrong` and `answer`: None
        if the corrections lack the row, "" if they have it without an answer.

        Raises:
          UserError, OSError: as `Review`.
        """
        return self._with_tables(lambda tables: self._state(tables, revision))

    def _state(self, tables: _Tables, revision: str = "") -> dict[str, Any]:
        tracking = self._tracker.state()
        if tables.revision == revision:
            return {"revision": revision, "tracking": tracking}
        answers = tables.answers.answers()
        listed = {doubt.place for doubt in tables.doubts}
        ours = [place for place in answers if place.round == str(tables.origin.round)]
        own = [ReviewRow("", place) for place in ours if place not in listed]
        arguments, can_track = self._arguments(tables.origin)
        return {
            "revision": tables.revision,
            "tracking": tracking,
            "round": tables.origin.round,
            "poses": tables.poses_revision,
            "tracks": list(tables.poses.individuals),
            "keypoints": list(tables.poses.keypoint_names),
            "edges": self._edges(tables.poses),
            "frames": self.frame_count,
            "rows": [_row(doubt, answers) for doubt in [*tables.doubts, *own]],
            "is_behind": self._is_behind(tables),
            "command": f"{program('jaxpose.track')} {shlex.join(arguments)}",
            "can_track": can_track,
        }

    def poses(self, first: int) -> list[list[list[float] | None]]:
        """Returns the points [x, y] of up to `TOGETHER` frames from one on: K for each track in turn, None without."""
        poses = self._with_tables(lambda tables: tables.poses)
        points_px = poses.points_px[first : first + TOGETHER].astype(np.float64)
        points_px = points_px.round(_PLACES_DECIMALS)
        of_frames = points_px.reshape(len(points_px), points_px.shape[1] * points_px.shape[2], 2).tolist()
        return [[point if point[0] == point[0] else None for point in points] for points in of_frames]

    def answer(self, revision: str, place: Place, answer: str | None) -> dict[str, Any]:
        """Changes the answer to a place; when this returns, it is on the disk.

        Args:
          revision: of the state on which the answer was given.
          place: that of a row, or two tracks and the frames around an exchange that no row has.
          answer: as in `AnswerFile.changed`.

        Returns:
          The new state.

        Raises:
          Stale: a file has changed since.
          UserError: the place takes no such answer, or the tracks are being made again.
          OSError: the disk is full, or fails; nothing has changed.
        """

        def write(tables: _Tables) -> dict[str, Any]:
            if revision != tables.revision:
                raise Stale
            if self._tracker.is_running():
                raise UserError("the tracks are being made again: wait for the new ones, or stop it")
            if self._is_behind(tables):
                raise UserError(
                    f"{self.corrections.name} has other answers than these tracks were made with: make the tracks "
                    "again first"
                )
            doubt = self._doubt(tables, place)
            others = {"kind": doubt.kind, "margin": doubt.margin, "expected_wrong": doubt.expected_wrong}
            others["tracks"] = tables.origin.tracks
            if (answer or "").lower() == EXCHANGED:
                _refuse_exchange(tables.poses, place)
            elif answer and answer.strip().lower() not in ANSWERS:
                refuse_unknown("the answer", tables.origin.round, answer.split(), tables.poses.individuals)
            changed = tables.answers.changed(place, answer, others)
            changed.corrections()
            write_atomic(self.corrections, changed.content())
            return self._state(dataclasses.replace(tables, answers=changed))

        return self._with_tables(write)

    def track(self) -> dict[str, str]:
        """Makes the tracks again with the answers, by `jaxpose track` in a process of its own; returns its state.

        Raises:
          UserError: the tracks are being made already, or their detections or the video cannot be found.
          OSError: a file cannot be read, or the log cannot be written.
        """

        def start(tables: _Tables) -> dict[str, str]:
            arguments, can_track = self._arguments(tables.origin)
            if not can_track:
                raise UserError(
                    "the detections, or the video of --video, are not where they were: run the command at the side"
                )
            self._tracker.start(arguments)
            return self._tracker.state()

        return self._with_tables(start)

    def stop(self) -> dict[str, str]:
        """Ends the command of `track`, and returns its state; the tracks stay as they are."""
        self._tracker.stop()
        return self._tracker.state()

    def _with_tables(self, act: Callable[[_Tables], Result]) -> Result:
        """Calls a function with the present content of the files, while the lock is held; raises as `Review`.

        Files that disagree are read again until they have disagreed for a while.
        """
        while True:
            with self._lock:
                try:
                    tables = self._read()
                except OtherTracks:
                    assert self._mistake
                    if time.monotonic() - self._mistake.since_s >= _REPLACED_S:
                        raise
                else:
                    return act(tables)
            time.sleep(_TRY_AGAIN_S)

    # The lock is held.

    def _arguments(self, origin: Origin) -> tuple[list[str], bool]:
        """Returns the arguments of the command that makes the tracks again, and whether it can run.

        Words in capitals are for the user: for files that are not where they were.
        """
        detections, video = self._place(origin.detections), self._place(origin.video)
        arguments = [str(detections) if detections.is_file() else "DETECTIONS"]
        arguments += ["--animals", origin.animals] if origin.animals else []
        arguments += ["--video", str(video) if video.is_file() else "VIDEO"] if origin.video else []
        arguments += ["--out", str(self.tracks), "--corrections", str(self.corrections), "--overwrite"]
        return arguments, detections.is_file() and (video.is_file() or not origin.video)

    def _place(self, name: str) -> Path:
        """Returns the absolute path of a file of the origin."""
        return self.tracks.parent.absolute() / name

    def _read(self) -> _Tables:
        """Returns the present content of the files; raises as `Review`, without reading files that have not changed."""
        files = self.tracks, self.file, origin_file(self.file), self.corrections
        signatures = [_signature(file) for file in files]
        if self._mistake and self._mistake.signatures == signatures:
            raise self._mistake.error.with_traceback(None)
        try:
            tables = self._read_anew(signatures[0])
        except UserError as error:
            self._mistake = _Mistake(signatures, error, time.monotonic())
            raise
        self._mistake = None
        return tables

    def _read_anew(self, signature: tuple[int, ...]) -> _Tables:
        if not signature:
            raise UserError(f"the tracks {self.tracks} do not exist any more; make them again with jaxpose track")
        try:
            content = read_bytes(self.file, most_bytes=None)
        except FileNotFoundError:
            raise UserError(f"the review {self.file} does not exist; jaxpose track writes it") from None
        origin = read_origin(self.file)
        if not self._poses or self._poses[0] != signature:
            table = read_tracks(self.tracks, origin)
            poses = table.poses
            shown = Poses(poses.keypoint_names, poses.frames, poses.points_px.astype(np.float32),
                          skeleton=poses.skeleton, individuals=poses.individuals)  # fmt: skip
            self._poses = signature, shown, table.footage, checksum_of(self.tracks)
        poses = self._poses[1]
        refuse_other_tracks(self.file, self.tracks, origin, self._poses[3])
        if not self._doubts or self._doubts[:2] != (origin, content):
            self._doubts = origin, content, read_rows(self.file, content, origin, poses)
        doubts, number = self._doubts[2], origin.round
        answers = read_answers(self.corrections)
        known = {one.round for one in answers.corrections()}
        if rounds([one for one in answers.corrections() if one.round < number]) != number:
            have = f"has answers of the rounds {', '.join(map(str, sorted(known)))}" if known else "has no answer"
            raise UserError(
                f"{self.file} is of tracks that were corrected {count(number, 'time')}, but {self.corrections} {have}: "
                "name the file that they were corrected with: --corrections FILE"
            )
        digests = [_digest(part) for part in (repr(signature).encode(), content, repr(origin).encode())]
        return _Tables(poses, origin, doubts, answers, digests[0], "".join(digests))

    def _is_behind(self, tables: _Tables) -> bool:
        """Returns whether the corrections have answers to later tracks, or others to earlier ones than made these."""
        corrections, number = tables.answers.corrections(), tables.origin.round
        earlier = [one for one in corrections if one.round < number]
        is_later = any(one.round > number for one in corrections)
        return is_later or checksum_of_answers(earlier) != tables.origin.answers

    def _doubt(self, tables: _Tables, place: Place) -> ReviewRow:
        """Returns the row of a place, or that of a person's own; raises UserError if there can be no answer."""
        found = [doubt for doubt in tables.doubts if doubt.place == place]
        for doubt in found:
            if doubt.kind not in (EXTRA, MISSING):
                return doubt
        if found:
            raise UserError(f"a place of kind {found[0].kind} takes no answer: change the detections")
        if place.round != str(tables.origin.round):
            raise UserError(f"the tracks are those of round {tables.origin.round}, not {place.round}")
        for name in (place.track_a, place.track_b):
            if name not in tables.poses.individuals:
                raise UserError(f"there is no track {name}; it has {', '.join(tables.poses.individuals)}")
        if not 0 <= int(place.frame_from) < int(place.frame_to) < len(tables.poses.frames):
            raise UserError(f"there are no frames {place.frame_from} to {place.frame_to}")
        return ReviewRow("", place)

    def _find_video(self) -> Path:
        assert self._poses
        named = str(footage.path) if (footage := self._poses[2]) else ""
        # A relative name begins at the tracks, and the file may have moved there from another machine.
        match = find_files([named], [[self.tracks.parent]])[named] if named else None
        if match and match.file:
            return match.file
        origin = read_origin(self.file)
        if video := video_of(self._place(origin.detections)):
            return video
        if origin.video:
            return self._place(origin.video)
        reason = f"names the video {named}, which does not exist" if named else "does not name its video"
        reason = f"names the video {named}: {match.reason}" if match and match.reason else reason
        raise UserError(f"{self.tracks} {reason}; give --video VIDEO")

    @staticmethod
    def _edges(poses: Poses) -> list[list[int]]:
        names = poses.keypoint_names
        return [[names.index(one) for one in edge] for edge in poses.skeleton.edges]


def _refuse_exchange(poses: Poses, place: Place) -> None:
    """Raises UserError if `jaxpose track` finds no place where two tracks may exchange their animals.

    Both are seen before and after an exchange. It lies between the last frame of one up to frame_from, and the
    first of the other from frame_to on.
    """
    names = place.track_a, place.track_b
    if not {*names} <= {*poses.individuals} or names[0] == names[1]:
        return
    points_px = poses.points_px[:, [poses.individuals.index(name) for name in names]]
    seen = np.asarray(np.isfinite(points_px[..., 0]).any(axis=-1))
    frames = [np.flatnonzero(of_track) for of_track in seen.T]
    for one, other in (frames, frames[::-1]):
        before, after = one[one <= int(place.frame_from)], other[other >= int(place.frame_to)]
        if len(before) and len(after):
            start = max(before[-1], *(track[0] for track in frames))
            stop = min(after[0], *(track[-1] for track in frames))
            if start < stop:
                return
            break
    raise UserError(
        f"{' and '.join(names)} cannot exchange their animals between frames {place.frame_from} and {place.frame_to}: "
        "jaxpose track needs frames with both of them before and after it"
    )


def _row(doubt: ReviewRow, answers: dict[Place, str]) -> dict[str, Any]:
    takes = doubt.kind not in (EXTRA, MISSING)
    return {
        "kind": doubt.kind,
        "place": list(doubt.place),
        "margin": doubt.margin,
        "expected_wrong": doubt.expected_wrong,
        "takes_answer": takes,
        "answer": answers.get(doubt.place) if takes else None,
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _signature(file: Path) -> tuple[int, ...]:
    """Returns what changes when a file is replaced; () without the file."""
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ino
