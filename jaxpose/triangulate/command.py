"""The work of `jaxpose triangulate`: from one table for each view to points, and what is odd about a view."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxpose.cameras.calibration_files import read_cameras
from jaxpose.cameras.triangulation import OUTLIER, Points, triangulate
from jaxpose.config.arguments import DONE, read_session_start
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.formats.lightning_pose.tables import write_predictions
from jaxpose.outputs import already_exist, may_be_ours, output_folders
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
    files = {name: file.with_stem(f"{file.stem}_{name}") if name else file for name in animals}
    existing = [one for one in files.values() if one.exists()]
    if existing and not given.overwrite and not may_be_ours(file.parent):
        raise already_exist(existing)
    folders = [file.parent]
    if given.reprojections:
        folders.append(Path(given.reprojections).expanduser())
        _refuse_places(files, folders[1], animals)
    lines, known = list[str](), set[str]()
    with output_folders(folders, given.overwrite) as (new, *reprojections):
        for name, views in animals.items():
            seen = reprojections[0] / name if reprojections else None
            found, faults = _triangulate(given, new / files[name].name, form, views, seen)
            page = files[name].with_suffix(".html")
            lines += [f"{files[name]}: {found[0]}", *found[1:]]
            lines.append(f"{page}: errors by view and keypoint, lengths over time, a view in 3D")
            for line in faults:
                # The animals of a recording share the faults of its views, with other numbers.
                if (fault := line.partition(":")[0]) not in known:
                    lines.append(line)
                known.add(fault)
    print_lines("\n".join(lines))
    return DONE


def _refuse_places(files: Mapping[str, Path], folder: Path, animals: Mapping[str, Views]) -> None:
    """Checks that each view's table can be written to a folder.

    Args:
      files: of the points, {animal: file}.
      folder: for the reprojections.
      animals: {animal: views}.

    Raises:
      UserError: the name of a view is not that of a file, or a table would be written to the file of the points.
    """
    points = {os.path.realpath(file) for file in files.values()}
    for name, views in animals.items():
        for view in views.cameras.names:
            if Path(view).name != view:
                raise UserError(f"the view {view!r} cannot be a file name in --reprojections {folder}; rename it")
            if os.path.realpath(table := _table_of(folder / name, view)) in points:
                raise UserError(
                    f"the points and the reprojections of view {view} would both be written to {table}: give "
                    "--reprojections another folder"
                )


def _triangulate(
    given: argparse.Namespace, file: Path, form: str, views: Views, seen: Path | None
) -> tuple[list[str], list[str]]:
    """Triangulates one animal and writes its files.

    Args:
      given: the flags.
      file, form: of the points.
      views: of the animal.
      seen: the folder for its reprojections, None for none.

    Returns:
      Lines about the points, and the faults of the views.
    """
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
    write_points(file, form, table)
    write_atomic(file.with_suffix(".html"), page_of(f"Points {file.stem}", table, [*lines, *faults]).encode())
    if seen:
        _write_reprojections(seen, table)
    return lines, faults


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


def _table_of(folder: Path, view: str) -> Path:
    return folder / f"{view}.csv"


def _write_reprojections(folder: Path, table: PointTable) -> None:
    """Writes each view's table: the places of the points in its images, with their confidence."""
    cameras = table.views.cameras
    for view, pixels in zip(cameras.names, cameras.project(table.points.places), strict=True):
        points_px = table.of_frames(pixels)
        known = np.where(np.isfinite(points_px[..., 0]), table.confidence, np.nan)
        write_predictions(_table_of(folder, view), range(len(known)), table.keypoint_names, points_px, known, SCORER)


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
