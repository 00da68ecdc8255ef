"""The work of `jaxpose calibrate`: from the videos of a board to a calibration, and how well it fits."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxpose.calibrate.boards import read_board
from jaxpose.calibrate.page import page_of
from jaxpose.calibrate.recordings import detect, find_recordings
from jaxpose.cameras.calibration import Calibration, calibrate
from jaxpose.cameras.calibration_check import on_floor
from jaxpose.cameras.calibration_files import ANIPOSE, write_cameras
from jaxpose.config.arguments import DONE
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.outputs import already_exist, may_be_ours, output_folder
from jaxpose.progress import phase
from jaxpose.terminal import count, print_lines


def calibrate_folder(given: argparse.Namespace) -> int:
    """Calibrates the cameras of a folder as the flags of jaxpose.calibrate say, and returns the exit code.

    Raises:
      UserError: a flag or a video cannot be used, the cameras cannot be calibrated, or a file exists.
      OSError: a file cannot be written.
    """
    for flag in ("board", "out"):
        if not getattr(given, flag):
            raise UserError(f"--{flag} is required, unless --check names a calibration")
    file = Path(given.out).expanduser()
    page = file.with_suffix(".html")
    refuse_existing([file, page], given.overwrite)
    board = read_board(given.board)
    recordings = find_recordings(only_folder(given.sources))
    detections = detect(board, recordings, given.floor)
    with phase("calibrating"):
        found = calibrate(detections)
        cameras = found.scene.cameras
        if given.floor is not None:
            cameras = on_floor(cameras, detections, given.floor)
    lines = _report(file, found, given.unit)
    with output_folder(file.parent, given.overwrite) as folder:
        write_cameras(folder / file.name, ANIPOSE, cameras)
        write_atomic(folder / page.name, page_of(f"Calibration {file.name}", found, recordings, lines).encode())
    print_lines("\n".join([*lines, f"{page}: errors by frame and by cell of the images, and the worst frames"]))
    return DONE


def refuse_existing(files: list[Path], overwrite: bool) -> None:
    """Raises UserError if the first file is not named as a calibration, or any exists and may not be replaced."""
    if files[0].suffix.lower() != ".toml":
        raise UserError(f"--out is {files[0]}; its name must end in .toml")
    existing = [one for one in files if one.exists()]
    if existing and not overwrite and not may_be_ours(files[0].parent):
        raise already_exist(existing)


def only_folder(sources: Sequence[str]) -> Path:
    """Returns the folder of board videos.

    Raises:
      UserError: there are several sources.
    """
    if len(sources) > 1:
        raise UserError(f"give one folder with the board videos of all cameras, not {', '.join(sources)}")
    return Path(sources[0]).expanduser()


def _report(file: Path, found: Calibration, unit: str) -> list[str]:
    names = found.used.names
    lines = [
        f"{file}: {count(len(names), 'camera')} from {count(len(found.used.frames), 'frame')}",
        f"lens: {found.lens}, which predict the held-out frames best",
        f"error: {error_text(found.errors_px)}; on held-out frames: {error_text(found.held_out_px)}",
    ]
    width = max(map(len, names))
    for name, errors_px, held_out_px in zip(names, found.errors_px, found.held_out_px, strict=True):
        frames = count(int(np.isfinite(errors_px).any(axis=1).sum()), "frame")
        lines.append(f"  {name:{width}}  error: {error_text(errors_px)}; held out: {error_text(held_out_px)}; {frames}")
    if len(found.square):
        off = np.abs(found.square - found.used.square)
        lines.append(
            f"a square in 3D: median {np.median(found.square):.3f} {unit}, on the board {found.used.square:g} {unit}; "
            f"half of the squares are off by less than {np.median(off):.3g} {unit}"
        )
    return lines


def error_text(errors_px: np.ndarray) -> str:
    """Returns the median and the 95th percentile of errors as text."""
    known = errors_px[np.isfinite(errors_px)]
    if not len(known):
        return "unknown"
    return f"median {np.median(known):.2f} px, 95 % below {np.quantile(known, 0.95):.2f} px"
