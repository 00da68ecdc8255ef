"""The predictions of several calibrated views, from one table each."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.triangulation import measure_noise_px
from jaxpose.config.arguments import did_you_mean
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.errors import UserError
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.terminal import listed

_MOST_NAMED = 5
# Frames of a sample.
_FRAMES = 150


@dataclasses.dataclass(frozen=True)
class Views:
    """The predictions of v views: t frames with k keypoints.

    Attributes:
      cameras: those of the views.
      tables: the file of each view, for messages.
      keypoint_names: k names.
      points_px: (v, t, k, 2), NaN where a view has no prediction.
      confidence: (v, t, k).
      notes: sentences for the user about the tables.
    """

    cameras: Cameras
    tables: tuple[str, ...]
    keypoint_names: tuple[str, ...]
    points_px: np.ndarray
    confidence: np.ndarray
    notes: tuple[str, ...] = ()

    @property
    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """The pixels (v, n, 2) and the confidence (v, n) of n = t k points."""
        views = len(self.points_px)
        return self.points_px.reshape(views, -1, 2), self.confidence.reshape(views, -1)

    def noise_px(self) -> float:
        """Returns the standard deviation of a prediction, see `measure_noise_px`."""
        return measure_noise_px(self.cameras, *self.flat)

    def without(self, view: int) -> "Views":
        """Returns all views but one."""
        others = [at for at in range(len(self.tables)) if at != view]
        cameras = Cameras([self.cameras.each[at] for at in others])
        tables = tuple(self.tables[at] for at in others)
        return Views(cameras, tables, self.keypoint_names, self.points_px[others], self.confidence[others])

    def with_tables(self, order: Sequence[int]) -> "Views":
        """Returns the same cameras with the tables in another order."""
        order = list(order)
        tables = tuple(self.tables[at] for at in order)
        moved = self.points_px[order], self.confidence[order]
        return dataclasses.replace(self, tables=tables, points_px=moved[0], confidence=moved[1])

    def sample(self, margin: int) -> tuple[np.ndarray, "Views"]:
        """Returns evenly spaced frames that are at least a margin away from both ends, and the views of these."""
        inside = np.arange(margin, self.points_px.shape[1] - margin)
        frames = inside[:: max(1, len(inside) // _FRAMES)]
        part = dataclasses.replace(self, points_px=self.points_px[:, frames], confidence=self.confidence[:, frames])
        return frames, part


def read_views(words: Sequence[str], cameras: Cameras, calibration: str) -> Views:
    """Reads the tables VIEW=TABLE of some views of a calibration.

    Raises:
      UserError: a word is not VIEW=TABLE, the calibration or a table cannot be used, or the tables do not fit together.
    """
    cameras, files = _choose_views(words, cameras, calibration)
    tables = {view: read_table(table) for view, table in files.items()}
    names, alone = _shared_names(tables)
    notes = [note for table in tables.values() for note in table.notes]
    if alone:
        notes.append(f"left out, because only one view has them: {listed(alone, _MOST_NAMED)}")
    each = [table.poses.with_keypoints(names).one_animal() for table in tables.values()]
    points_px, confidence = map(np.stack, zip(*each, strict=True))
    return Views(cameras, tuple(map(str, files.values())), names, points_px, confidence, tuple(notes))


def _choose_views(words: Sequence[str], cameras: Cameras, calibration: str) -> tuple[Cameras, dict[str, Path]]:
    """Returns the cameras of the given views, and the table of each.

    Raises:
      UserError: a word is not VIEW=TABLE, a view is not in the calibration or given twice, or there is only one.
    """
    files: dict[str, Path] = {}
    for word in words:
        view, equals, table = word.partition("=")
        if not equals or not table:
            raise UserError(f"{word} is not VIEW=TABLE; the views of {calibration} are {', '.join(cameras.names)}")
        if view not in cameras.names:
            near = did_you_mean(view, list(cameras.names)) or f"; it has {', '.join(cameras.names)}"
            raise UserError(f"{calibration} has no camera {view}{near}")
        if view in files:
            raise UserError(f"the view {view} is given twice; give one table for each view")
        files[view] = Path(table).expanduser()
    if len(files) < 2:
        raise UserError(f"only the view {view} is given; 3D needs the tables of at least two views")
    return Cameras([cameras.each[cameras.names.index(view)] for view in files]), files


def _shared_names(tables: Mapping[str, PredictionTable]) -> tuple[tuple[str, ...], list[str]]:
    """Returns the keypoints that at least two views have, and those that only one has, with the name of the view.

    Raises:
      UserError: no two tables share a name, or the tables have different numbers of frames.
    """
    lengths = {view: len(table.poses.frames) for view, table in tables.items()}
    if len(set(lengths.values())) > 1:
        each = ", ".join(f"{view} {length:,}" for view, length in lengths.items())
        raise UserError(f"the tables have different numbers of frames: {each}; row i of each must be the same moment")
    views_of: dict[str, list[str]] = {}
    for view, table in tables.items():
        for name in table.poses.keypoint_names:
            views_of.setdefault(name, []).append(view)
    names = tuple(name for name, views in views_of.items() if len(views) > 1)
    if not names:
        each = "; ".join(f"{view}: {', '.join(table.poses.keypoint_names)}" for view, table in tables.items())
        raise UserError(f"no keypoint is in two views ({each}); a keypoint needs the same name in each table")
    return names, [f"{name} ({views[0]})" for name, views in views_of.items() if len(views) == 1]
