"""A SLEAP file (.slp) in which the points of single frames are changed: everything else keeps its bytes.

The tables of points, instances and frames are changed in a copy of the HDF5 file. A new frame comes after all others,
and a new instance after those of its frame. The animals of an image are the instances of its frame that a person made,
numbered from 0. So that the numbers stay during a session, an instance without any point leaves the file at its end.
"""

import dataclasses
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.data.checked_table import refuse_link_out_of_project
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.formats import sleap, sleap_extras
from jaxpose.formats.sleap_images import SleapVideo, firsts_of_files, video_names
from jaxpose.formats.sleap_images import read_videos as read_sleap_videos
from jaxpose.labelling.label_file import MISSING, Point, Points, Slot, WholeFile
from jaxpose.labelling.sleap_tables import (
    BY_HAND,
    POINT_COLUMNS,
    Tables,
    add_tracks,
    has_several,
    replace_table,
    shared_places,
)
from jaxpose.poses import NOT_VISIBLE, VISIBLE

_FRAMES, _INSTANCES, _POINTS = "frames", "instances", "points"
# Frames that show no animal.
_NEGATIVE = "negative_frames"
_COLUMNS = {
    _FRAMES: {"frame_id", "video", "frame_idx", "instance_id_start", "instance_id_end"},
    _INSTANCES: {"instance_id", "instance_type", "frame_id", "track", "from_predicted", "point_id_start"},
    _POINTS: {*POINT_COLUMNS},
}
_PREDICTED = "pred_points"
# Members of a file that name no instance by its number.
_WITHOUT_LINKS = re.compile(
    r"metadata|frames|instances|points|pred_points|\w+_json|negative_frames|provenance|video_crops|video\d+"
)
# SLEAP's frames began at the corner of a pixel before this version of its format.
_CENTRED, _CORNER_PX = 1.1, 0.5
# The format of images that are cached from videos.
_CACHED = ".bmp"


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where the labels of an image are: a frame of a video, its row in the table of frames, and those of its instances.

    The row is -1 if the file has none yet; `instances` are those that a person made.
    """

    video: int
    frame: int
    row: int = -1
    instances: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class SleapFile(WholeFile):
    """The content of a SLEAP file.

    Attributes:
      places: {image: where its labels are}.
      negative: {(video, frame): place} of the frames that are marked as negative, which are no images to label.
      videos: of the file.
      names: of these.
      numbers: for each video, the number of it in the table of frames.
      reach_px: for each video, the largest x and y of its points.
      corner_px: what the file adds to coordinates.
      has_links: whether something names instances by number.
      predicted: {image: (a, k, 3) x, y and score} of the predicted instances that no person has corrected.
      predicted_tracks: {image: names of the tracks of these, "" for none}.
      has_several: whether a frame has several instances of one kind.
      tracks: names of the tracks in the file.
      given: {image: {animal: name of its track, "" for none}} of the animals with another track than in the file.
      absent: {video: (number of its images without a file, why the first has none)}; they are not in `images`.
      absent_labels: number of images without a file in which a person labelled an animal.
      is_final: whether instances without any point are removed.
    """

    places: Mapping[str, _Place]
    negative: Mapping[tuple[int, int], _Place]
    videos: Sequence[SleapVideo]
    names: Sequence[str]
    numbers: Sequence[int]
    reach_px: Sequence[np.ndarray]
    corner_px: float
    has_links: bool
    predicted: Mapping[str, np.ndarray]
    predicted_tracks: Mapping[str, Sequence[str]]
    has_several: bool
    absent: Mapping[str, tuple[int, str]]
    tracks: Sequence[str]
    given: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    absent_labels: int = 0
    is_final: bool = False

    def final(self) -> "SleapFile":
        edited = [image for image, points in self.points.items() if points != self.at_first.get(image)]
        has_empty = any(not any(pose) for image in edited for pose in self._numbered(self.points[image]))
        return dataclasses.replace(self, is_final=True) if has_empty and not self.has_links else self

    def animals(self, image: str) -> dict[str, str]:
        given = self.given.get(image, {})
        return {animal: given.get(animal, name) for animal, name in super().animals(image).items()}

    def retracked(self, names: Mapping[str, Mapping[str, str]]) -> "SleapFile":
        """Returns the file with other tracks; `names` are {image: {animal: name}}, "" for no track."""
        given = {image: dict(of_image) for image, of_image in self.given.items()}
        for image, of_image in names.items():
            of_file = super().animals(image)
            new = {**given.pop(image, {}), **of_image}
            if new := {animal: name for animal, name in new.items() if name != of_file.get(animal, "")}:
                given[image] = new
        return dataclasses.replace(self, given=given)

    def tracks_of_new(
        self, image: str, points: Points, changed: Points, names: Mapping[str, str], given: Mapping[str, str]
    ) -> dict[str, str]:
        """Returns {animal: track} of the new animals of an image that get a track with changed points.

        It is that of the predicted instance which the animal begins to confirm, unless another animal has it already.
        `points` and `names` are those before the change, and `given` are tracks that come with it; raises UserError
        if one of them would be that of two animals.
        """
        after = {**points, **changed}
        place, found = self.place_of(image), dict[str, str]()
        before, now = ({animal for (animal, _), point in one.items() if point} for one in (points, after))
        taken = {given.get(animal, names.get(animal, "")) for animal in now & {*before, *given}}
        for animal in sorted(now - {*given}, key=int):
            poses = [[one.get((animal, name)) for name in self.keypoint_names] for one in (points, after)]
            track = self._confirmed(image, poses[1])
            track = track if track not in taken else ""
            is_begun = animal not in before or not (names.get(animal) or self._confirmed(image, poses[0]))
            is_new = not place or int(animal) >= len(place.instances)
            if is_new and is_begun and track != names.get(animal, ""):
                found[animal] = track
                taken.add(track)
        tracks = {animal: {**names, **given, **found}.get(animal, "") for animal in now}
        for animal, track in tracks.items():
            if track and track != names.get(animal) and list(tracks.values()).count(track) > 1:
                raise UserError(f"two animals of {image} would have the track {track}; only one animal can have it")
        return found

    def _confirmed(self, image: str, pose: Sequence[Point | None]) -> str:
        """Returns the track of the predicted instance that a new animal with these points confirms, "" without one."""
        tracks, place = self.predicted_tracks.get(image, ()), self.place_of(image)
        if not self.has_several and len(tracks) == 1 and not (place and place.instances):
            return tracks[0] if any(pose) else ""
        places_px = np.array([point[:2] if point else (math.nan, math.nan) for point in pose])
        shared = [shared_places(found[:, :2], places_px) for found in self.predicted.get(image, ())]
        return tracks[int(np.argmax(shared))] if any(shared) else ""

    def edited(self) -> dict[str, Points]:
        # A new animal that is gone has a track, and no instance.
        given = {image for image, animals in self.given.items() if animals.keys() & {*self.animals(image)}}
        return super().edited() | {image: self.points.get(image, {}) for image in given}

    def new_animal(self, image: str, places: Mapping[str, Sequence[str | None]]) -> str:
        place = self.place_of(image)
        used = {*map(int, filter(None, places[image]))} | {int(animal) for animal, _ in self.points.get(image, ())}
        return str(max(len(place.instances) if place else 0, 1 + max(used, default=-1)))

    def media(self) -> dict[str, SleapVideo]:
        """Returns {name: video} of the video files whose frames can become images."""
        return {name: self.videos[number] for name, number in self._numbers_of_media().items()}

    def _numbers_of_media(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for number, (name, video) in enumerate(zip(self.names, self.videos, strict=True)):
            if _is_media(video) and video.media_file:
                # A file that is listed twice has one name.
                found.setdefault(name, number)
        return found

    def place_of(self, image: str) -> _Place | None:
        """Returns the place of an image, also of a frame of a video that has no labels yet."""
        if image in self.places:
            return self.places[image]
        match = re.fullmatch(rf"{re.escape(self.file.name)}/(.+)/img(\d+){re.escape(_CACHED)}", image)
        number = self._numbers_of_media().get(match[1]) if match else None
        if not match or number is None:
            return None
        key = number, int(match[2])
        return self.negative.get(key, _Place(*key))

    def obstacle(self, image: str, slot: Slot, point: Point | None) -> str:
        # A track needs its instance.
        slot = (slot[0], slot[1] or self.keypoint_names[0])
        if found := super().obstacle(image, slot, point):
            return found
        place = self.place_of(image)
        if place is None:
            return f"{self.file} has no image {image}"
        if not slot[0].isdecimal():
            return f"{self.file} has no instance {slot[0]} in {image}"
        if self.has_links and place.row >= 0 and int(slot[0]) >= len(place.instances):
            return f"{self.file} names instances by number, as of sessions: add the instances of {image} in SLEAP"
        return ""

    def path_of(self, folder: Path, image: str) -> Path:
        place = self.place_of(image)
        if place is None:
            raise UserError(f"{self.file} has no image {image}")
        video = self.videos[place.video]
        found = sleap.frame_files(video, [place.frame], self.reach_px[place.video], DataConfig())[place.frame]
        if isinstance(found, str):
            raise UserError(found)
        refuse_link_out_of_project(found, image)
        return found

    def written(self, edits: Mapping[str, Points]) -> bytes:
        import h5py

        buffer = io.BytesIO(self.original)
        with h5py.File(buffer, "r+") as opened:
            predicted: Any = opened[_PREDICTED]
            tables = Tables(**_all_rows(opened), predicted=predicted[...][[*"xy"]], tracks=self.tracks)
            # In the order of the video, however many images are written at once.
            places = {image: place for image in edits if (place := self.place_of(image))}
            for image in sorted(places, key=lambda image: (places[image].video, places[image].frame)):
                self._write(image, edits[image], tables)
            for name, table in zip(_COLUMNS, tables.all(), strict=True):
                replace_table(opened, name, table)
            add_tracks(opened, tables.tracks[len(self.tracks) :])
            if rows := [place.row for place in map(self.place_of, edits) if place and place in self.negative.values()]:
                labelled = tables.all()[0][rows][["video", "frame_idx"]].tolist()
                content: Any = opened
                marks = content[_NEGATIVE][...]
                is_kept = [mark not in labelled for mark in marks[["video_id", "frame_idx"]].tolist()]
                replace_table(opened, _NEGATIVE, marks[is_kept])
        return buffer.getvalue()

    def _write(self, image: str, points: Points, tables: "Tables") -> None:
        place, poses, before = self.place_of(image), self.poses(points), self.poses(self.at_first.get(image, {}))
        assert place is not None
        row, none, kept = place.row, [None] * len(self.keypoint_names), len(place.instances)
        tracks = self.given.get(image, {})
        for number, pose in enumerate(self._numbered(points)):
            old = before.get(str(number), none)
            cells = list(map(self._cells, pose))
            if number < kept:
                tables.change(place.instances[number], cells, [new != one for new, one in zip(pose, old, strict=True)])
                if str(number) in tracks:
                    tables.set_track(tables.place_of(place.instances[number]), tracks[str(number)])
            elif any(pose) or not self.is_final:
                row = row if row >= 0 else tables.add_frame(self.numbers[place.video], place.frame)
                added = tables.add_instance(row, cells)
                if str(number) in tracks:
                    tables.set_track(added, tracks[str(number)])
        if self.is_final:
            for animal in before:
                if not any(poses[animal]):
                    tables.remove(place.instances[int(animal)], len(none))

    def _numbered(self, points: Points) -> list[list[Point | None]]:
        """Returns the points of the instances of an image by number, up to the last one with points or labels."""
        none: list[Point | None] = [None] * len(self.keypoint_names)
        poses = self.poses(points)
        return [poses.get(str(number), none) for number in range(1 + max(map(int, poses), default=-1))]

    def _cells(self, point: Point | None) -> tuple[float, float, bool, bool]:
        if not point:
            return math.nan, math.nan, False, False
        return point[0] + self.corner_px, point[1] + self.corner_px, point[2] == VISIBLE, False


def frame_image(frame: int) -> str:
    """Returns the name of the image of a frame of a video file, without the folder."""
    return f"img{frame:08}{_CACHED}"


def read_sleap_file(file: Path) -> SleapFile:
    """Reads a SLEAP file; it may have no label yet.

    Raises:
      UserError: sleap-io is not installed; the file cannot be read, has no skeleton or several, or other tables.
      OSError: it cannot be read.
    """
    original = read_bytes(file, most_bytes=None)
    labels = sleap.load(file)
    names, videos = sleap.keypoint_names(file, labels), read_sleap_videos(file, labels)
    tables, corner_px, has_links = _read_tables(file, original)
    first_of = {id(video): number for video, number in zip(labels.videos, firsts_of_files(videos), strict=True)}
    frames, problems = _frames(labels, tables, first_of)
    more = [(first_of[id(one.video)], int(one.frame_idx)) for one in labels.suggestions if id(one.video) in first_of]
    more += [(number, frame) for number, video in enumerate(videos) if video.is_sequence
             for frame in range(len(video.names))]  # fmt: skip
    left_out = {(first_of[id(one.video)], int(one.frame_idx)) for one in labels.labeled_frames
                if getattr(one, "is_negative", False)}  # fmt: skip
    for number, frame in more:
        frames.setdefault((number, frame), _Place(number, frame))
    reach_px = [sleap.reach_of([one for frame in labels.labeled_frames if first_of[id(frame.video)] == number
                                for one in frame.user_instances]) for number in range(len(videos))]  # fmt: skip
    wanted = sorted({*frames} - left_out)
    named, absent = _name_images(videos, video_names(videos), wanted, reach_px)
    places = {image: frames[key] for key, image in named.items()}
    problems = {named[key]: reason for key, reason in problems.items() if key in named}
    usable = {image: place for image, place in places.items() if place.instances and image not in problems}
    points = {image: _points(names, tables, place, corner_px) for image, place in usable.items()}
    labelled = {image: of_image for image, of_image in points.items() if of_image}
    predicted = _predicted(labels, places)
    return SleapFile(
        file=file,
        original=original,
        keypoint_names=names,
        images=tuple(places),
        at_first=labelled,
        points=labelled,
        animal_names={image: _names_of(labels, place, points[image]) for image, place in usable.items()},
        problems=problems,
        can_hide=True,
        skeleton=sleap_extras.read_skeleton(labels),
        places=places,
        negative={key: frames[key] for key in left_out if key in frames},
        videos=videos,
        names=video_names(videos),
        numbers=_numbers(labels, tables[_FRAMES], videos),
        reach_px=reach_px,
        corner_px=corner_px,
        has_links=has_links,
        predicted={image: np.stack([one.numpy(scores=True) for one in found]) for image, found in predicted.items()},
        predicted_tracks={
            image: [one.track.name if one.track else "" for one in found] for image, found in predicted.items()
        },
        has_several=has_several(tables[_INSTANCES]),
        absent=absent,
        absent_labels=sum(bool(frames[key].instances) for key in wanted if key not in named),
        tracks=[track.name for track in labels.tracks],
    )


def _predicted(labels: Any, places: Mapping[str, _Place]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for image, place in places.items():
        if 0 <= place.row < len(labels.labeled_frames):
            frame = labels.labeled_frames[place.row]
            replaced = {id(one.from_predicted) for one in frame.user_instances}
            if instances := [one for one in frame.predicted_instances if id(one) not in replaced]:
                found[image] = instances
    return found


def _names_of(labels: Any, place: _Place, points: Points) -> dict[str, str]:
    """Returns {animal: name of its track} of the animals with a point; without any, of the first instance."""
    by_hand = labels.labeled_frames[place.row].user_instances
    labelled = [*dict.fromkeys(animal for animal, _ in points)] or ["0"]
    return {animal: (track.name if (track := by_hand[int(animal)].track) else "") for animal in labelled}


def _all_rows(opened: Any) -> dict[str, np.ndarray]:
    return {name: opened[name][...] for name in _COLUMNS}


def _read_tables(file: Path, original: bytes) -> tuple[dict[str, np.ndarray], float, bool]:
    """Returns the tables of a file, what it adds to coordinates, and whether something names instances by number."""
    import h5py

    with h5py.File(io.BytesIO(original), "r") as opened:
        content: Any = opened
        for name in _COLUMNS:
            columns = {*(content[name].dtype.names or ())} if name in content else set()
            if not _COLUMNS[name] <= columns or (name == _POINTS and columns != _COLUMNS[name]):
                raise UserError(
                    f"{file} has no table {name} as SLEAP writes it: open the file in SLEAP and save it again"
                )
        version = float(content["metadata"].attrs["format_id"])
        has_sessions = "sessions_json" in content and len(content["sessions_json"]) > 0
        has_links = has_sessions or any(not _WITHOUT_LINKS.fullmatch(str(name)) for name in content)
        return _all_rows(content), _CORNER_PX * (version < _CENTRED), has_links


def _frames(
    labels: Any, tables: Mapping[str, np.ndarray], first_of: Mapping[int, int]
) -> tuple[dict[tuple[int, int], _Place], dict[tuple[int, int], str]]:
    """Returns {(video, frame): place} of the frames in a file, and {(video, frame): why it cannot be labelled}."""
    places: dict[tuple[int, int], _Place] = {}
    problems: dict[tuple[int, int], str] = {}
    # sleap-io adds frames that only other tables name.
    for row, (entry, frame) in enumerate(zip(tables[_FRAMES], labels.labeled_frames, strict=False)):
        key = first_of[id(frame.video)], int(frame.frame_idx)
        rows = range(int(entry["instance_id_start"]), int(entry["instance_id_end"]))
        by_hand = [row for row in rows if tables[_INSTANCES][row]["instance_type"] == BY_HAND]
        if key in places:
            problems[key] = "the file has two entries of this frame: merge them in SLEAP"
        places.setdefault(key, _Place(*key, row, tuple(by_hand)))
    return places, problems


def _name_images(
    videos: Sequence[SleapVideo],
    names: Sequence[str],
    wanted: Sequence[tuple[int, int]],
    reach_px: Sequence[np.ndarray],
) -> tuple[dict[tuple[int, int], str], dict[str, tuple[int, str]]]:
    """Returns {(video, frame): name of the image}, the one that training gives it, and `SleapFile.absent`."""
    named, absent = {}, {}
    for number, video in enumerate(videos):
        frames = [frame for of_video, frame in wanted if of_video == number]
        if (_is_media(video) and video.media_file) or not frames:
            files: Mapping[int, Path | str] = dict.fromkeys(frames, Path(f"x{_CACHED}"))
        else:
            files = sleap.frame_files(video, frames, reach_px[number], DataConfig())
        for frame, path in files.items():
            if isinstance(path, Path):
                named[number, frame] = sleap.image_name(video, path, names[number], frame)
        if reasons := [path for path in files.values() if isinstance(path, str)]:
            absent[names[number]] = len(reasons), reasons[0]
    return named, absent


def _is_media(video: SleapVideo) -> bool:
    return not (video.is_sequence or video.is_embedded or sleap.is_no_media(video.names[0]))


def _points(names: tuple[str, ...], tables: Mapping[str, np.ndarray], place: _Place, corner_px: float) -> Points:
    """Returns the points of the animals with any: if one has visible points, of those that have visible points."""
    poses: dict[str, list[Point | None]] = {}
    for number, instance in enumerate(place.instances):
        start = int(tables[_INSTANCES][instance]["point_id_start"])
        rows = tables[_POINTS][start : start + len(names)][[*POINT_COLUMNS]].tolist()
        poses[str(number)] = [_point(x - corner_px, y - corner_px, visible) for x, y, visible, _ in rows]
    labelled = {animal: pose for animal, pose in poses.items() if any(pose)}
    visible = [animal for animal, pose in labelled.items() if any(point and point[2] == VISIBLE for point in pose)]
    return {
        (animal, name): point
        for animal in visible or labelled
        for name, point in zip(names, labelled[animal], strict=True)
    }


def _point(x: float, y: float, is_visible: bool) -> Point | None:
    return (x, y, VISIBLE if is_visible else NOT_VISIBLE) if math.isfinite(x) and (x, y) != MISSING else None


def _numbers(labels: Any, frames: np.ndarray, videos: Sequence[SleapVideo]) -> list[int]:
    """Returns the number of each video in the table of frames; for embedded images, their table names it."""
    known = {
        id(frame.video): int(number) for frame, number in zip(labels.labeled_frames, frames["video"], strict=False)
    }

    def number_of(place: int) -> int:
        match = re.match(r"video(\d+)/", str(videos[place].video.backend_metadata.get("dataset") or ""))
        return int(match[1]) if match and videos[place].is_embedded else place

    return [known.get(id(video), number_of(place)) for place, video in enumerate(labels.videos)]
