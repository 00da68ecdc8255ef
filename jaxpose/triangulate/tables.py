"""Tables of points in 3D: jaxpose's CSV, Anipose's CSV, sleap-anipose's HDF5, and TRC of OpenSim and others."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.cameras.triangulation import Points
from jaxpose.errors import UserError, need
from jaxpose.files import write_atomic
from jaxpose.formats.hdf5_writer import open_hdf5
from jaxpose.formats.lightning_pose.tables import header_rows, write_rows

CSV, ANIPOSE, SLEAP_ANIPOSE, TRC = "csv", "anipose", "sleap-anipose", "trc"
SUFFIXES = {CSV: ".csv", ANIPOSE: ".csv", SLEAP_ANIPOSE: ".h5", TRC: ".trc"}
COLUMNS = ("x", "y", "z", "sd", "error_px", "views", "xx", "xy", "xz", "yy", "yz", "zz")
SCORER = "jaxpose_3d"


@dataclasses.dataclass(frozen=True)
class PointTable:
    """The points of a recording of t frames with k keypoints.

    Attributes:
      keypoint_names: k names.
      points: n = t k points, keypoint after keypoint in each frame.
      confidence: (t, k), the mean confidence of the views that agree, 0 without one.
      unit: of length.
      fps: frames per second, None if unknown.
    """

    keypoint_names: tuple[str, ...]
    points: Points
    confidence: np.ndarray
    unit: str
    fps: float | None

    def of_frames(self, values: np.ndarray) -> np.ndarray:
        """Returns values (n, ...) as (t, k, ...)."""
        return values.reshape(*self.confidence.shape, *values.shape[1:])


def choose_format(out: Path, form: str, fps: float | None) -> str:
    """Returns the format of --to, or that of the name of --out.

    Raises:
      UserError: they contradict each other, or --fps.
    """
    suffix = out.suffix.lower()
    fitting = [known for known in SUFFIXES if SUFFIXES[known] == suffix]
    if not fitting:
        raise UserError(f"--out is {out}; its name must end in {', '.join(dict.fromkeys(SUFFIXES.values()))}")
    if form and form not in fitting:
        raise UserError(f"--out is {out}, but the name of a file for --to {form} ends in {SUFFIXES[form]}")
    form = form or fitting[0]
    if form == TRC and not (fps and np.isfinite(fps) and fps > 0):
        raise UserError(".trc files hold the frames per second: give --fps, such as --fps 60")
    if form != TRC and fps is not None:
        raise UserError(f"--fps is {fps:g}, but only .trc files hold it")
    if form == SLEAP_ANIPOSE:
        need("sleap", str(out), "h5py")
    return form


def write_points(file: Path, form: str, table: PointTable) -> None:
    """Writes points in a format of `SUFFIXES`.

    Raises:
      OSError: the file cannot be written.
    """
    {CSV: _write_csv, ANIPOSE: _write_anipose, SLEAP_ANIPOSE: _write_hdf5, TRC: _write_trc}[form](file, table)


def _write_csv(file: Path, table: PointTable) -> None:
    points = table.points
    views = np.where(np.isfinite(points.sd), points.views, np.nan)
    covariance = points.covariance[:, *np.triu_indices(3)]
    cells = np.column_stack([points.places, points.sd, points.error_px, views, covariance])
    with write_rows(file) as rows:
        rows.writerows(header_rows(SCORER, table.keypoint_names, COLUMNS))
        rows.writerows(_rows(table.of_frames(cells), whole=[COLUMNS.index("views")]))


def _write_anipose(file: Path, table: PointTable) -> None:
    """Writes Anipose's columns; its M and center say that the points are in the world of the calibration."""
    points = table.points
    views = np.where(np.isfinite(points.sd), points.views, 0)
    cells = table.of_frames(np.column_stack([points.places, points.error_px, views, table.confidence.ravel()]))
    columns = ("x", "y", "z", "error", "ncams", "score")
    names = [f"{name}_{column}" for name in table.keypoint_names for column in columns]
    world = {f"M_{row}{column}": float(row == column) for row in range(3) for column in range(3)}
    world |= {f"center_{axis}": 0.0 for axis in range(3)}
    with write_rows(file) as rows:
        rows.writerow([*names, *world, "fnum"])
        for frame, *row in _rows(cells, whole=[columns.index("ncams")]):
            rows.writerow([*row, *world.values(), frame])


def _write_hdf5(file: Path, table: PointTable) -> None:
    """Writes `tracks` (frame, track, node, xyz) as sleap-anipose does, and next to it what jaxpose knows of them."""
    points = table.points
    arrays = {"tracks": points.places, "covariance": points.covariance, "error_px": points.error_px}
    with open_hdf5(file) as opened:
        for name, values in arrays.items():
            opened.create_dataset(name, data=table.of_frames(values)[:, None], compression="gzip")
        opened.create_dataset("views", data=table.of_frames(points.views)[:, None].astype(np.int16), compression="gzip")
        opened["node_names"] = np.array([name.encode() for name in table.keypoint_names])
        opened.attrs["unit"] = table.unit


def _write_trc(file: Path, table: PointTable) -> None:
    places = table.of_frames(table.points.places)
    frames, keypoints = places.shape[:2]
    head = ("DataRate", "CameraRate", "NumFrames", "NumMarkers", "Units")
    original = ("OrigDataRate", "OrigDataStartFrame", "OrigNumFrames")
    fps = table.fps or 0.0
    rate = f"{fps:g}"
    names = [cell for name in table.keypoint_names for cell in (name, "", "")]
    axes = [f"{axis}{number + 1}" for number in range(keypoints) for axis in "XYZ"]
    lines: list[Iterable[Any]] = [
        ["PathFileType", 4, "(X/Y/Z)", file.name],
        [*head, *original],
        [rate, rate, frames, keypoints, table.unit, rate, 1, frames],
        ["Frame#", "Time", *names],
        ["", "", *axes],
        [],
    ]
    lines += [[frame + 1, f"{frame / fps:.6f}", *row] for frame, *row in _rows(places)]
    text = "".join("\t".join(map(str, line)) + "\n" for line in lines)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, text.encode())


def _rows(cells: np.ndarray, whole: Sequence[int] = ()) -> Iterable[list[Any]]:
    """Yields the frame and the cells of each frame of an array (t, k, c); NaN becomes an empty cell.

    Args:
      cells: the numbers.
      whole: the columns that hold whole numbers.
    """
    columns = cells.shape[2]
    for frame, row in enumerate(cells.reshape(len(cells), -1).tolist()):
        yield [
            frame,
            *(
                "" if value != value else int(value) if place % columns in whole else value
                for place, value in enumerate(row)
            ),
        ]
