"""The tables of a SLEAP file (.slp) while instances and points are added, changed and removed."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

# The type of an instance that a person made.
BY_HAND = 0
POINT_COLUMNS = ("x", "y", "visible", "complete")
_TRACKS = "tracks_json"
# A column of newer versions of the format; NaN for an instance that no tracker has placed.
_TRACKING_SCORE = "tracking_score"
# The page rounds a predicted point that is confirmed.
_SAME_PX = 2e-3


class Tables:
    """The tables of a file while they are changed. The rows that the file had keep their order."""

    def __init__(
        self,
        frames: np.ndarray,
        instances: np.ndarray,
        points: np.ndarray,
        predicted: np.ndarray,
        tracks: Sequence[str],
    ):
        self.tracks = list(tracks)
        self._frames, self._instances, self._points, self._predicted = frames, instances, points, predicted
        # Where each instance that was read is now.
        self._moved = np.arange(len(instances))
        self._has_several = has_several(instances)

    def all(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the tables of frames, instances and points."""
        return self._frames, self._instances, self._points

    def change(self, instance: int, cells: Sequence[tuple], is_other: Sequence[bool]) -> None:
        """Gives the instance in a row that was read other cells of those points that are other ones."""
        start = int(self._instances[self._moved[instance]]["point_id_start"])
        for k, of_point in enumerate(cells):
            if is_other[k]:
                complete = bool(self._points[start + k]["complete"]) and not math.isnan(of_point[0])
                self._points[start + k : start + k + 1] = self._point_rows([(*of_point[:3], complete)])

    def place_of(self, instance: int) -> int:
        """Returns the present row of an instance that was read."""
        return int(self._moved[instance])

    def set_track(self, place: int, name: str) -> None:
        """Gives the instance in a row a track; the first of this name, or a new one."""
        if name and name not in self.tracks:
            self.tracks.append(name)
        self._instances["track"][place] = self.tracks.index(name) if name else -1

    def remove(self, instance: int, keypoints: int) -> None:
        """Removes an instance that a person made, and its points."""
        place = int(self._moved[instance])
        start = int(self._instances[place]["point_id_start"])
        self._points = np.delete(self._points, np.s_[start : start + keypoints])
        later = (self._instances["instance_type"] == BY_HAND) & (self._instances["point_id_start"] > start)
        for name in ("point_id_start", "point_id_end"):
            self._instances[name][later] -= keypoints
        self._instances = np.delete(self._instances, place)
        self._moved -= self._moved > place
        for name in ("instance_id_start", "instance_id_end"):
            self._frames[name][self._frames[name] > place] -= 1
        self._instances["instance_id"][place:] -= 1
        self._instances["from_predicted"][self._instances["from_predicted"] > place] -= 1

    def add_frame(self, video: int, number: int) -> int:
        """Adds a frame without instances, and returns its row."""
        new = np.zeros(1, self._frames.dtype)
        new["frame_id"] = self._frames["frame_id"].max() + 1 if len(self._frames) else 0
        new["video"], new["frame_idx"] = video, number
        new["instance_id_start"] = new["instance_id_end"] = len(self._instances)
        self._frames = np.concatenate([self._frames, new])
        return len(self._frames) - 1

    def add_instance(self, row: int, cells: Sequence[tuple]) -> int:
        """Adds an instance at the end of a frame, and returns its row.

        It replaces the predicted one that it confirms, as in SLEAP, and has no track yet.
        """
        frame = self._frames[row]
        start, end = int(frame["instance_id_start"]), int(frame["instance_id_end"])
        if start == end:
            start = end = len(self._instances)
        new = np.zeros(1, self._instances.dtype)
        new["instance_id"], new["instance_type"], new["frame_id"] = end, BY_HAND, frame["frame_id"]
        origin = self._predicted_in(start, end, cells)
        new["from_predicted"], new["track"] = origin, -1
        if _TRACKING_SCORE in (new.dtype.names or ()):
            new[_TRACKING_SCORE] = math.nan
        new["point_id_start"], new["point_id_end"] = len(self._points), len(self._points) + len(cells)
        self._shift(end)
        self._instances = np.insert(self._instances, end, new)
        self._frames[row]["instance_id_start"], self._frames[row]["instance_id_end"] = start, end + 1
        self._points = np.concatenate([self._points, self._point_rows(cells)])
        return end

    def _predicted_in(self, start: int, end: int, cells: Sequence[tuple]) -> int:
        """Returns the predicted instance of a frame that a new one confirms, -1 without one.

        It is the one that shares the most places with the new instance, among those that none by hand replaces. If no
        frame of the file has several animals, it may also be the only instance of the frame.
        """
        rows = self._instances[start:end]
        if not self._has_several and len(rows) == 1 and rows["instance_type"][0] != BY_HAND:
            return start
        places_px, best, most = np.array([cell[:2] for cell in cells]), -1, 0
        for place in np.flatnonzero(rows["instance_type"] != BY_HAND).tolist():
            first = int(rows["point_id_start"][place])
            of_predicted = self._predicted[first : first + len(cells)]
            same = shared_places(np.stack([of_predicted["x"], of_predicted["y"]], axis=-1), places_px)
            if same > most and start + place not in rows["from_predicted"]:
                best, most = start + place, same
        return best

    def _point_rows(self, cells: Sequence[tuple]) -> np.ndarray:
        """Returns rows of the table of points, whatever the order of its columns is."""
        rows = np.zeros(len(cells), self._points.dtype)
        for name, column in zip(POINT_COLUMNS, zip(*cells, strict=True), strict=True):
            rows[name] = column
        return rows

    def _shift(self, place: int) -> None:
        """Makes room for an instance before the one at a place."""
        self._moved += self._moved >= place
        later = self._frames["instance_id_start"] >= place
        for name in ("instance_id_start", "instance_id_end"):
            self._frames[name][later] += 1
        self._instances["instance_id"][place:] += 1
        self._instances["from_predicted"][self._instances["from_predicted"] >= place] += 1


def has_several(instances: np.ndarray) -> bool:
    """Returns whether a frame has several instances of one kind."""
    return bool((np.unique(instances[["frame_id", "instance_type"]], return_counts=True)[1] > 1).any())


def shared_places(one_px: np.ndarray, other_px: np.ndarray) -> int:
    """Returns how many places (k, 2) of two animals are the same."""
    return int((np.hypot(*(one_px - other_px).T) < _SAME_PX).sum())


def replace_table(opened: Any, name: str, table: np.ndarray) -> None:
    """Gives a table of a file new rows; one that can grow leaves no gap in the file."""
    if opened[name].shape != table.shape:
        if opened[name].maxshape[0] is None:
            opened[name].resize(table.shape)
        else:
            attributes = dict(opened[name].attrs)
            del opened[name]
            opened.create_dataset(name, data=table, maxshape=(None,)).attrs.update(attributes)
    opened[name][...] = table


def add_tracks(opened: Any, names: Sequence[str]) -> None:
    """Adds tracks at the end of those of a file, which begin at frame 0 as SLEAP's do."""
    if not names:
        return
    rows, attributes = list[bytes](), dict[str, Any]()
    if _TRACKS in opened:
        rows = [one if isinstance(one, bytes) else str(one).encode() for one in opened[_TRACKS][...].tolist()]
        attributes = dict(opened[_TRACKS].attrs)
        del opened[_TRACKS]
    rows += [json.dumps([0, name], separators=(",", ":")).encode() for name in names]
    opened.create_dataset(_TRACKS, data=np.array(rows), maxshape=(None,)).attrs.update(attributes)
