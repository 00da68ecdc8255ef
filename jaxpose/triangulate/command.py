"""The work of `jaxpose triangulate`: from one table for each view to points, and what is odd about a view."""

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxpose.cameras.calibration_files import read_cameras
from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.triangulation import Points, measure_noise_px, triangulate
from jaxpose.config.arguments import DONE, did_you_mean
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.errors import UserError
from jaxpose.files import already_exist, may_be_ours, output_folder
from jaxpose.formats.lightning_pose.tables import write_predictions
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.progress import phase
from jaxpose.terminal import count, listed, print_lines, say
from jaxpose.triangulate.faults import find_faults
from jaxpose.triangulate.tables import SCORER, PointTable, choose_format, write_points

_MOST_NAMED = 5


def triangulate_tables(given: argparse.Namespace) -> int:
    """Triangulates tables as the flags of jaxpose.triangulate say, and returns the exit code.

    Raises:
      UserError: a flag, the calibration or a table cannot be used, or a file exists.
      OSError: a file cannot be written.
    """
    file = Path(given.out).expanduser()
    form = choose_format(file, given.to, given.fps)
    if file.exists() and not given.overwrite and not may_be_ours(file.parent):
        raise already_exist([file])
    calibration = Path(given.calibration).expanduser()
    cameras, files = choose_views(given.views, read_cameras(calibration), calibration)
    tables = {view: read_table(table) for view, table in files.items()}
    for note in (note for table in tables.values() for note in table.notes):
        say(note)
    names = shared_names(tables)
    points_px, confidence = stack_tables(tables, names)
    points, noise_px = place_points(cameras, points_px, confidence, "triangulate")
    frames = points_px.shape[1] // len(names)
    trusted = _trusted(points, confidence).reshape(frames, len(names))
    table = PointTable(names, points, trusted, given.unit, given.fps)
    with contextlib.ExitStack() as folders:
        write_points(folders.enter_context(output_folder(file.parent, given.overwrite)) / file.name, form, table)
        if given.reprojections:
            folder = folders.enter_context(output_folder(Path(given.reprojections).expanduser(), given.overwrite))
            _write_reprojections(folder, cameras, table)
    print_lines("\n".join(_report(file, table, noise_px, cameras.names)))
    shape = (len(cameras.names), frames, len(names))
    for line in find_faults(cameras, files, points_px.reshape(*shape, 2), confidence.reshape(shape), points):
        print_lines(line)
    return DONE


def choose_views(words: Sequence[str], cameras: Cameras, calibration: Path) -> tuple[Cameras, dict[str, Path]]:
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


def shared_names(tables: Mapping[str, PredictionTable]) -> tuple[str, ...]:
    """Returns the names of all tables; reports those that only one view has.

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
    if alone := [f"{name} ({views[0]})" for name, views in views_of.items() if len(views) == 1]:
        say(f"left out, because only one view has them: {listed(alone, _MOST_NAMED)}")
    return names


def stack_tables(tables: Mapping[str, PredictionTable], names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Returns points_px (v, n, 2) and confidence (v, n), in the order of the cameras."""
    each = [table.poses.with_keypoints(names).one_animal() for table in tables.values()]
    return np.stack([points.reshape(-1, 2) for points, _ in each]), np.stack([known.ravel() for _, known in each])


def place_points(cameras: Cameras, points_px: np.ndarray, confidence: np.ndarray, purpose: str) -> tuple[Points, float]:
    """Returns the points of tables as `stack_tables` gives them, and the standard deviation of a prediction in px.

    Raises:
      UserError: no keypoint has a position in two views, so there is nothing to do for the purpose, a verb.
    """
    with phase("triangulating"):
        noise_px = measure_noise_px(cameras, points_px, confidence)
        if np.isnan(noise_px):
            raise UserError(f"no keypoint has a position in two views in any frame: there is nothing to {purpose}")
        return triangulate(cameras, points_px, confidence, noise_px), noise_px


def _trusted(points: Points, confidence: np.ndarray) -> np.ndarray:
    """Returns the mean confidence (n,) of the views that agree with each point, 0 without one."""
    agree = points.agree
    total = np.where(agree, np.nan_to_num(confidence), 0).sum(axis=0)
    return total / np.maximum(agree.sum(axis=0), 1)


def _write_reprojections(folder: Path, cameras: Cameras, table: PointTable) -> None:
    """Writes each view's table: the places of the points in its images, with their confidence."""
    for view, pixels in zip(cameras.names, cameras.project(table.points.places), strict=True):
        points_px = table.of_frames(pixels)
        known = np.where(np.isfinite(points_px[..., 0]), table.confidence, np.nan)
        write_predictions(folder / f"{view}.csv", range(len(known)), table.keypoint_names, points_px, known, SCORER)


def _report(file: Path, table: PointTable, noise_px: float, views: Sequence[str]) -> list[str]:
    points = table.points
    has_place = np.isfinite(points.places[:, 0])
    frames = count(len(table.confidence), "frame")
    lines = [
        f"{file}: {frames} with {count(len(table.keypoint_names), 'keypoint')} from {count(len(views), 'view')}; "
        f"{has_place.sum():,} of {count(len(has_place), 'point')} have a position",
        f"standard deviation of a point: median {np.median(points.sd[has_place]):.3g} {table.unit}, "
        f"95 % below {np.quantile(points.sd[has_place], 0.95):.3g} {table.unit}",
        f"standard deviation of a prediction: {noise_px:.2f} px, from how well the views agree",
    ]
    width = max(map(len, views))
    for view, errors_px, agree in zip(views, points.errors_px, points.agree, strict=True):
        known = errors_px[np.isfinite(errors_px)]
        if not len(known):
            lines.append(f"  {view:{width}}  has no keypoint that another view sees")
            continue
        lines.append(
            f"  {view:{width}}  error: median {np.median(known):.2f} px, 95 % below {np.quantile(known, 0.95):.2f} px; "
            f"agrees with {100 * agree.sum() / len(known):.1f} % of its points"
        )
    return lines
