"""The predictions of several calibrated views: one table each, or those of the members of an ensemble."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.triangulation import measure_noise_px
from jaxpose.config.arguments import did_you_mean
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.errors import UserError
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.pose.smooth import combine, variance_px2
from jaxpose.terminal import listed
from jaxpose.triangulate.matching import match_tracks

_MOST_NAMED = 5
_ARRAYS = ("predicted_px", "confidence", "var_px2")
# Frames of a sample.
_FRAMES = 150


@dataclasses.dataclass(frozen=True)
class Views:
    """The predictions of v views: t frames with k keypoints.

    Attributes:
      cameras: those of the views.
      tables: the files of each view, for messages.
      keypoint_names: k names.
      predicted_px: (v, t, k, 2), NaN where a view has no prediction.
      confidence: (v, t, k).
      var_px2: (v, t, k, 2), the variances over the tables of a view; 0 of a single one.
      notes: sentences for the user about the tables.
    """

    cameras: Cameras
    tables: tuple[str, ...]
    keypoint_names: tuple[str, ...]
    predicted_px: np.ndarray
    confidence: np.ndarray
    var_px2: np.ndarray
    notes: tuple[str, ...] = ()

    @property
    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """The pixels (v, n, 2) and the confidence (v, n) of n = t k points."""
        views = len(self.predicted_px)
        return self.predicted_px.reshape(views, -1, 2), self.confidence.reshape(views, -1)

    def noise_px(self) -> float:
        """Returns the standard deviation of a prediction, see `measure_noise_px`."""
        return measure_noise_px(self.cameras, *self.flat)

    def without(self, view: int) -> "Views":
        """Returns all views but one."""
        others = [at for at in range(len(self.tables)) if at != view]
        cameras = Cameras([self.cameras.each[at] for at in others])
        return dataclasses.replace(self.with_tables(others), cameras=cameras)

    def with_tables(self, order: Sequence[int]) -> "Views":
        """Returns the same cameras with the tables of other views."""
        order = list(order)
        arrays = {name: getattr(self, name)[order] for name in _ARRAYS}
        return dataclasses.replace(self, tables=tuple(self.tables[at] for at in order), **arrays)

    def sample(self, margin: int) -> tuple[np.ndarray, "Views"]:
        """Returns evenly spaced frames that are at least a margin away from both ends, and the views of these."""
        inside = np.arange(margin, self.predicted_px.shape[1] - margin)
        frames = inside[:: max(1, len(inside) // _FRAMES)]
        return frames, dataclasses.replace(self, **{name: getattr(self, name)[:, frames] for name in _ARRAYS})


def read_views(words: Sequence[str], cameras: Cameras, calibration: str) -> Views:
    """Reads the tables VIEW=TABLE of some views of a calibration. A view with several tables gets their medians.

    Raises:
      UserError: a word is not VIEW=TABLE, the calibration or a table cannot be used, or the tables do not fit together.
    """
    cameras, files = _choose_views(words, cameras, calibration)
    tables = {view: [read_table(table).without_zeros() for table in of_view] for view, of_view in files.items()}
    return _of_one_animal(cameras, tables)


def read_animals(words: Sequence[str], cameras: Cameras, calibration: str) -> dict[str, Views]:
    """Reads tables as `read_views`, of one or several animals; returns the views of each, "" names a single one.

    Raises:
      UserError: as `read_views`; or several animals have no tracks, or no two views show one of them.
    """
    cameras, files = _choose_views(words, cameras, calibration)
    tables = {
        view: [read_table(table, several=True).without_zeros() for table in of_view] for view, of_view in files.items()
    }
    if all(table.has_one_place for of_view in tables.values() for table in of_view):
        return {"": _of_one_animal(cameras, tables)}
    if any(len(of_view) > 1 for of_view in tables.values()):
        raise UserError(
            "the tables contain several animals, and ensembles of such tables cannot be combined: give one table per "
            "view"
        )
    tables = {view: [table.placed() for table in of_view] for view, of_view in tables.items()}
    names, notes = _names_and_notes(tables)
    poses = [table.poses.with_keypoints(names) for (table,) in tables.values()]
    points_px = [np.moveaxis(one.points_px, 0, 1).astype(np.float64) for one in poses]
    confidence = [np.ones(one.shape[:3]) for one in points_px]
    for at, one in enumerate(poses):
        if one.confidence is not None:
            confidence[at] = np.moveaxis(one.confidence, 0, 1)
    found = match_tracks(cameras, points_px, confidence)
    if not len(found):
        raise UserError("no two views show the same animal: does each table belong to its view?")
    unique = {name for (table,) in tables.values() if table.unique for name in table.unique.keypoint_names}
    if unique:
        notes.append(f"left out, because they belong to no animal: {listed(sorted(unique), _MOST_NAMED)}")
    alone = [
        f"{view} {one.individuals[track] if one.individuals else ''}".rstrip()
        for at, (view, one) in enumerate(zip(tables, poses, strict=True))
        for track in range(len(points_px[at]))
        if track not in found[:, at]
    ]
    if alone:
        notes.append(f"left out, because no other view shows the animal: {listed(alone, _MOST_NAMED)}")
    animals: dict[str, Views] = {}
    for row in found.tolist():
        seen = [view for view, track in enumerate(row) if track >= 0]
        tracks = [(poses[view].individuals or ("",))[row[view]] for view in seen]
        numbered = (f"animal{number}" for number in itertools.count(len(animals)))
        name = next(name for name in itertools.chain(filter(None, tracks), numbered) if name not in animals)
        part = Cameras([cameras.each[view] for view in seen])
        pixels, known = (np.stack([values[view][row[view]] for view in seen]) for values in (points_px, confidence))
        each = ", ".join(f"{view} {track}".rstrip() for view, track in zip(part.names, tracks, strict=True))
        about = (*(notes if not animals else []), f"animal {name}: {each}")
        files = tuple(_texts(tables)[view] for view in seen)
        animals[name] = Views(part, files, names, pixels, known, np.zeros(pixels.shape), about)
    return animals


def _of_one_animal(cameras: Cameras, tables: Mapping[str, Sequence[PredictionTable]]) -> Views:
    names, notes = _names_and_notes(tables)
    each = zip(*(_of_view(of_view, names) for of_view in tables.values()), strict=True)
    points_px, confidence, var_px2 = map(np.stack, each)
    return Views(cameras, _texts(tables), names, points_px, confidence, var_px2, tuple(notes))


def _names_and_notes(tables: Mapping[str, Sequence[PredictionTable]]) -> tuple[tuple[str, ...], list[str]]:
    """Returns the keypoints that are triangulated, and sentences about the tables."""
    names, alone = _shared_names(tables)
    notes = [note for of_view in tables.values() for table in of_view for note in table.notes]
    if alone:
        notes.append(f"left out, because only one view has them: {listed(alone, _MOST_NAMED)}")
    return names, notes


def _texts(tables: Mapping[str, Sequence[PredictionTable]]) -> tuple[str, ...]:
    """Returns the files of each view, for messages."""
    return tuple(" ".join(str(table.file) for table in of_view) for of_view in tables.values())


def _of_view(tables: Sequence[PredictionTable], names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the positions (t, k, 2), the confidence (t, k) and the variances (t, k, 2) of the tables of a view."""
    poses = [table.poses.with_keypoints(names) for table in tables]
    if len(poses) == 1:
        points_px, confidence = poses[0].one_animal()
        return points_px, confidence, np.zeros(points_px.shape)
    ensemble = combine(poses)
    points_px, confidence = ensemble.one_animal()
    return points_px, confidence, variance_px2(ensemble)


def _choose_views(words: Sequence[str], cameras: Cameras, calibration: str) -> tuple[Cameras, dict[str, list[Path]]]:
    """Returns the cameras of the given views, and the tables of each.

    Raises:
      UserError: a word is not VIEW=TABLE, a view is not in the calibration, a table is given twice, there is only one
        view, or the views have different numbers of tables.
    """
    files: dict[str, list[Path]] = {}
    for word in words:
        view, equals, table = word.partition("=")
        if not equals or not table:
            raise UserError(f"{word} is not VIEW=TABLE; the views of {calibration} are {', '.join(cameras.names)}")
        if view not in cameras.names:
            near = did_you_mean(view, list(cameras.names)) or f"; it has {', '.join(cameras.names)}"
            raise UserError(f"{calibration} has no camera {view}{near}")
        files.setdefault(view, []).append(Path(table).expanduser())
    of_table = [(file.resolve(), view) for view, of_view in files.items() for file in of_view]
    for at, (file, view) in enumerate(of_table):
        if same := [other for other_file, other in of_table[:at] if other_file == file]:
            raise UserError(f"{file} is given for {same[0]} and for {view}; each view needs its own table")
    if len(files) < 2:
        raise UserError(f"only the view {view} is given; 3D needs the tables of at least two views")
    if len({len(of_view) for of_view in files.values()}) > 1:
        each = ", ".join(f"{view} {len(of_view)}" for view, of_view in files.items())
        raise UserError(
            f"the views have different numbers of tables: {each}; give one table per view, or one per view for each "
            "member of an ensemble"
        )  # fmt: skip
    return Cameras([cameras.each[cameras.names.index(view)] for view in files]), files


def _shared_names(tables: Mapping[str, Sequence[PredictionTable]]) -> tuple[tuple[str, ...], list[str]]:
    """Returns the keypoints that at least two views have, and those that only one has, with the name of the view.

    Raises:
      UserError: no two tables share a name, or the tables have different numbers of frames.
    """
    lengths = {view: sorted({len(table.poses.frames) for table in of_view}) for view, of_view in tables.items()}
    if len({length for of_view in lengths.values() for length in of_view}) > 1:
        each = ", ".join(f"{view} {' and '.join(f'{length:,}' for length in found)}" for view, found in lengths.items())
        raise UserError(f"the tables have different numbers of frames: {each}; row i of each must be the same moment")
    names_of = {view: _common_names(of_view) for view, of_view in tables.items()}
    views_of: dict[str, list[str]] = {}
    for view, of_view in names_of.items():
        for name in of_view:
            views_of.setdefault(name, []).append(view)
    names = tuple(name for name, views in views_of.items() if len(views) > 1)
    if not names:
        each = "; ".join(f"{view}: {', '.join(of_view)}" for view, of_view in names_of.items())
        raise UserError(f"no keypoint is in two views ({each}); a keypoint needs the same name in each table")
    return names, [f"{name} ({views[0]})" for name, views in views_of.items() if len(views) == 1]


def _common_names(tables: Sequence[PredictionTable]) -> list[str]:
    """Returns the keypoints that all tables have."""
    return [name for name in tables[0].poses.keypoint_names if all(name in one.poses.keypoint_names for one in tables)]
