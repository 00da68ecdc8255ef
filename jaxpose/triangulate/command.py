"""The work of `jaxpose triangulate`: from one table for each view to points, and what is odd about a view."""

import argparse
import contextlib
from pathlib import Path

import numpy as np

from jaxpose.cameras.calibration_files import read_cameras
from jaxpose.cameras.triangulation import OUTLIER, Points, triangulate
from jaxpose.config.arguments import DONE, read_session_start
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.formats.lightning_pose.tables import write_predictions
from jaxpose.outputs import already_exist, may_be_ours, output_folder
from jaxpose.progress import phase
from jaxpose.terminal import count, print_lines, say
from jaxpose.triangulate.faults import find_faults, swapped_tables
from jaxpose.triangulate.page import page_of
from jaxpose.triangulate.smoothing import smooth_points
from jaxpose.triangulate.tables import SCORER, PointTable, choose_format, write_points
from jaxpose.triangulate.views import Views, read_animals


def triangulate_tables(given: argparse.Namespace) -> int:
    """Triangulates tables as the flags of jaxpose.triangulate say, and returns the exit code.

    Raises:
      UserError: a flag, the calibration or a table cannot be used, or a file exists.
      OSError: a file cannot be written.
    """
    file, given.session_start = Path(given.out).expanduser(), read_session_start(given.session_start)
    form = choose_format(file, given.to, given.fps, given.session_start)
    animals = read_animals(given.views, read_cameras(Path(given.calibration).expanduser()), given.calibration)
    for name in animals:
        # Path("..").name is "..": the reprojections would go to the folder above theirs.
        if Path(name).name != name or name == "..":
            raise UserError(f"the name of the animal {name!r} cannot be part of a file name; rename its track")
    known: set[str] = set()
    for name, views in animals.items():
        _triangulate(given, file.with_stem(f"{file.stem}_{name}") if name else file, form, views, Path(name), known)
    return DONE


def _triangulate(given: argparse.Namespace, file: Path, form: str, views: Views, place: Path, known: set[str]) -> None:
    """Triangulates one animal, writes its files, and prints the report.

    Args:
      given: the flags.
      file, form: of the points.
      views: of the animal.
      place: of its reprojections in their folder.
      known: the faults that were printed for other animals; grows.
    """
    page = file.with_suffix(".html")
    if file.exists() and not given.overwrite and not may_be_ours(file.parent):
        raise already_exist([file])
    for note in views.notes:
        say(note)
    points, noise_px = place_points(views, "triangulate")
    found, steps = points, np.zeros(0)
    if given.smooth:
        with phase("smoothing"):
            found, steps = smooth_points(views, points, noise_px)
    table = PointTable(views, found, _trusted(views, found), given.unit, given.fps, given.session_start)
    lines = _report(table, noise_px, steps)
    faults = find_faults(views, points)
    with contextlib.ExitStack() as folders:
        folder = folders.enter_context(output_folder(file.parent, given.overwrite))
        write_points(folder / file.name, form, table)
        write_atomic(folder / page.name, page_of(f"Points {file.stem}", table, [*lines, *faults]).encode())
        if given.reprojections:
            folder = Path(given.reprojections).expanduser() / place
            folder = folders.enter_context(output_folder(folder, given.overwrite))
            _write_reprojections(folder, table)
    lines = [f"{file}: {lines[0]}", *lines[1:], f"{page}: errors by view and keypoint, lengths over time, a view in 3D"]
    print_lines("\n".join(lines))
    for line in faults:
        # The animals of a recording share the faults of its views, with other numbers.
        if (fault := line.partition(":")[0]) not in known:
            print_lines(line)
        known.add(fault)


def place_points(views: Views, purpose: str) -> tuple[Points, float]:
    """Returns the points of views, and the standard deviation of a prediction in px.

    Raises:
      UserError: no keypoint has a position in two views, so there is nothing to do for the purpose, a verb.
    """
    with phase("triangulating"):
        noise_px = views.noise_px()
        if np.isnan(noise_px):
            if swapped := swapped_tables(views.sample(0)[1]):
                raise UserError(swapped)
            raise UserError(f"no keypoint has a position in two views in any frame: there is nothing to {purpose}")
        return triangulate(views.cameras, *views.flat, noise_px), noise_px


def _trusted(views: Views, points: Points) -> np.ndarray:
    """Returns the mean confidence (t, k) of the views that agree with each point, 0 without one."""
    agree = points.agree.reshape(views.confidence.shape)
    total = np.where(agree, np.nan_to_num(views.confidence), 0).sum(axis=0)
    return total / np.maximum(agree.sum(axis=0), 1)


def _write_reprojections(folder: Path, table: PointTable) -> None:
    """Writes each view's table: the places of the points in its images, with their confidence."""
    cameras = table.views.cameras
    for view, pixels in zip(cameras.names, cameras.project(table.points.places), strict=True):
        points_px = table.of_frames(pixels)
        known = np.where(np.isfinite(points_px[..., 0]), table.confidence, np.nan)
        write_predictions(folder / f"{view}.csv", range(len(known)), table.keypoint_names, points_px, known, SCORER)


def _steps_line(table: PointTable, steps: np.ndarray) -> list[str]:
    """Returns a line about the steps (k,) of the keypoints from frame to frame, none if nothing is smoothed."""
    if not np.isfinite(steps).any():
        return []
    least, most = int(np.nanargmin(steps)), int(np.nanargmax(steps))
    each = [f"{steps[at]:.3g} {table.unit} ({table.keypoint_names[at]})" for at in (least, most)]
    return [f"smoothed: standard deviation of a step from frame to frame: {' to '.join(each)}"]


def _report(table: PointTable, noise_px: float, steps: np.ndarray) -> list[str]:
    points, views = table.points, table.views.cameras.names
    has_place = np.isfinite(points.places[:, 0])
    frames = count(len(table.confidence), "frame")
    lines = [
        f"{frames} with {count(len(table.keypoint_names), 'keypoint')} from {count(len(views), 'view')}; "
        f"{has_place.sum():,} of {count(len(has_place), 'point')} have a position",
        f"standard deviation of a point: median {np.median(points.sd[has_place]):.3g} {table.unit}, "
        f"95 % below {np.quantile(points.sd[has_place], 0.95):.3g} {table.unit}",
        *_steps_line(table, steps),
        f"standard deviation of a prediction: {noise_px:.2f} px, from how well the views agree; a view agrees with a "
        f"point within {OUTLIER * noise_px:.1f} px",
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
