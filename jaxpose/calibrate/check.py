"""The work of `jaxpose calibrate --check`: a calibration next to new board videos or the keypoints of an animal."""

import argparse
from pathlib import Path

import cv2
import numpy as np

from jaxpose.calibrate.boards import read_board
from jaxpose.calibrate.command import error_text, only_folder, refuse_existing
from jaxpose.calibrate.recordings import detect, find_recordings
from jaxpose.cameras.calibration_check import check_board, refine_poses
from jaxpose.cameras.calibration_files import ANIPOSE, read_cameras, write_cameras
from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.triangulation import triangulate
from jaxpose.config.arguments import DONE, FAILED
from jaxpose.errors import UserError
from jaxpose.outputs import output_folder
from jaxpose.progress import phase
from jaxpose.terminal import print_lines
from jaxpose.triangulate.command import place_points
from jaxpose.triangulate.faults import find_faults
from jaxpose.triangulate.views import read_views


def check_calibration(given: argparse.Namespace) -> int:
    """Checks a calibration as the flags of jaxpose.calibrate say, and returns the exit code.

    Raises:
      UserError: a flag, the calibration, a video or a table cannot be used, or a file exists.
      OSError: a file cannot be written.
    """
    if given.floor is not None:
        raise UserError(f"--floor is {given.floor}, which --check does not use: leave it out")
    file = Path(given.check).expanduser()
    cameras = read_cameras(file)
    if not given.board:
        return _check_tables(given, file, cameras)
    if given.out:
        raise UserError("--check with --board writes nothing: leave out --out, or leave out --check to calibrate again")
    return _check_videos(given, file, cameras)


def _check_videos(given: argparse.Namespace, file: Path, cameras: Cameras) -> int:
    board, recordings = read_board(given.board), find_recordings(only_folder(given.sources))
    unknown = [name for name in recordings if name not in cameras.names]
    if unknown:
        raise UserError(f"{file} has no camera {', '.join(unknown)}; it has {', '.join(cameras.names)}")
    cameras = Cameras([cameras.each[cameras.names.index(name)] for name in recordings])
    found = check_board(cameras, detect(board, recordings))
    lines = found.faults or [f"{file} fits: no fault found"]
    lines.append(f"error: {error_text(found.errors_px)}")
    width = max(map(len, cameras.names))
    for name, errors_px, expected_px in zip(cameras.names, found.errors_px, found.expected_px, strict=True):
        lines.append(
            f"  {name:{width}}  error: {error_text(errors_px)}; from where the other cameras expect the board: "
            f"{error_text(expected_px)}"
        )
    if len(found.square):
        square = f"{np.median(found.square):.4g} {given.unit}, on the board {board.square:g} {given.unit}"
        lines.append(f"a square in 3D: median {square}")
    print_lines("\n".join(lines))
    return FAILED if found.faults else DONE


def _check_tables(given: argparse.Namespace, file: Path, cameras: Cameras) -> int:
    out = Path(given.out).expanduser() if given.out else None
    if out:
        refuse_existing([out], given.overwrite)
    views = read_views(given.sources, cameras, given.check)
    cameras, (points_px, confidence) = views.cameras, views.flat
    points, noise_px = place_points(views, "check")
    faults = find_faults(views, points)
    lines = faults or [f"{file} fits: no fault found"]
    lines.append(f"the views agree to {noise_px:.2f} px (standard deviation of a prediction)")
    # Frames are alternately used to refine and left out.
    is_out = np.repeat(np.arange(views.predicted_px.shape[1]) % 2 == 1, len(views.keypoint_names))
    with phase("refining"):
        refined = refine_poses(cameras, points_px[:, ~is_out], confidence[:, ~is_out], noise_px)
    before_px, after_px = (
        triangulate(one, points_px[:, is_out], confidence[:, is_out], noise_px).errors_px for one in (cameras, refined)
    )
    lines.append(
        "errors in every other frame, before and after the frames between them refine positions and directions:"
    )
    lines += _moves(cameras, refined, before_px, after_px, given.unit)
    if out:
        with output_folder(out.parent, given.overwrite) as folder:
            write_cameras(folder / out.name, ANIPOSE, refined)
        lines.append(
            f"{out}: the refined cameras; the first one has not moved, and the mean distance between cameras is "
            "unchanged"
        )
    print_lines("\n".join([*lines, *views.notes]))
    return FAILED if faults else DONE


def _moves(cameras: Cameras, refined: Cameras, before_px: np.ndarray, after_px: np.ndarray, unit: str) -> list[str]:
    """Returns a line for each view: its errors before and after, and how the camera moved."""
    width, lines = max(map(len, cameras.names)), []
    for view, name in enumerate(cameras.names):
        turn = np.linalg.norm(cv2.Rodrigues(refined.rotations[view] @ cameras.rotations[view].T)[0])
        way = np.linalg.norm(refined.centres[view] - cameras.centres[view])
        lines.append(
            f"  {name:{width}}  error: {error_text(before_px[view])}; then: {error_text(after_px[view])}; turned by "
            f"{np.rad2deg(turn):.3f} degrees, moved by {way:.3g} {unit}"
        )
    return lines
