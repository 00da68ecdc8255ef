"""The work of `jaxpose calibrate`: from the videos of a board to a calibration, and how well it fits."""

import argparse
from pathlib import Path

import numpy as np

from jaxpose.calibrate.boards import read_board
from jaxpose.calibrate.recordings import detect, find_recordings
from jaxpose.cameras.calibration import Calibration, calibrate
from jaxpose.cameras.calibration_files import ANIPOSE, write_cameras
from jaxpose.config.arguments import DONE
from jaxpose.errors import UserError
from jaxpose.files import already_exist, may_be_ours, output_folder
from jaxpose.progress import phase
from jaxpose.terminal import count, print_lines


def calibrate_folder(given: argparse.Namespace) -> int:
    """Calibrates the cameras of a folder as the flags of jaxpose.calibrate say, and returns the exit code.

    Raises:
      UserError: a flag or a video cannot be used, the cameras cannot be calibrated, or a file exists.
      OSError: a file cannot be written.
    """
    file = Path(given.out).expanduser()
    if file.suffix.lower() != ".toml":
        raise UserError(f"--out is {file}; its name must end in .toml")
    if file.exists() and not given.overwrite and not may_be_ours(file.parent):
        raise already_exist([file])
    board = read_board(given.board)
    detections = detect(board, find_recordings(Path(given.folder).expanduser()))
    with phase("calibrating"):
        found = calibrate(detections)
    with output_folder(file.parent, given.overwrite) as folder:
        write_cameras(folder / file.name, ANIPOSE, found.scene.cameras)
    print_lines("\n".join(_report(file, found, given.unit)))
    return DONE


def _report(file: Path, found: Calibration, unit: str) -> list[str]:
    names = found.used.names
    lines = [
        f"{file}: {count(len(names), 'camera')} from {count(len(found.used.frames), 'frame')}",
        f"lens: {found.lens}, which predict frames that were left out best",
        f"error: {_error(found.errors_px)}; of frames that were left out: {_error(found.held_out_px)}",
    ]
    width = max(map(len, names))
    for name, errors_px, held_out_px in zip(names, found.errors_px, found.held_out_px, strict=True):
        frames = count(int(np.isfinite(errors_px).any(axis=1).sum()), "frame")
        lines.append(f"  {name:{width}}  error: {_error(errors_px)}; left out: {_error(held_out_px)}; {frames}")
    if len(found.square):
        off = np.abs(found.square - found.used.square)
        lines.append(
            f"a square in 3D: median {np.median(found.square):.3f} {unit}, on the board {found.used.square:g} {unit}; "
            f"half of them are off by less than {np.median(off):.3g} {unit}"
        )
    return lines


def _error(errors_px: np.ndarray) -> str:
    known = errors_px[np.isfinite(errors_px)]
    if not len(known):
        return "unknown"
    return f"median {np.median(known):.2f} px, 95 % below {np.quantile(known, 0.95):.2f} px"
