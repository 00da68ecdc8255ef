"""Tables of points in 3D: jaxpose's CSV, Anipose's CSV, sleap-anipose's HDF5, TRC of OpenSim and others, and NWB."""

import dataclasses
import datetime
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.cameras.triangulation import Points
from jaxpose.errors import UserError, need
from jaxpose.files import write_atomic
from jaxpose.formats import nwb
from jaxpose.formats.lightning_pose.tables import header_rows, write_rows
from jaxpose.hdf5_file import write_hdf5
from jaxpose.triangulate.views import Views

CSV, ANIPOSE, SLEAP_ANIPOSE, TRC, NWB = "csv", "anipose", "sleap-anipose", "trc", "nwb"
SUFFIXES = {CSV: ".csv", ANIPOSE: ".csv", SLEAP_ANIPOSE: ".h5", TRC: ".trc", NWB: ".nwb"}
COLUMNS = ("x", "y", "z", "sd", "error_px", "views", "xx", "xy", "xz", "yy", "yz", "zz")
SCORER = "jaxpose_3d"
_NWB_UNITS = {"mm": "millimeters", "cm": "centimeters", "m": "meters"}
_WORLD = "x, y and z are in the world of the calibration"


@dataclasses.dataclass(frozen=True)
class PointTable:
    """The points of a recording of t frames with k keypoints.

    Attributes:
      views: what they were made from.
      points: n = t k points, keypoint after keypoint in each frame.
      confidence: (t, k), the mean confidence of the views that agree, 0 without one.
      unit: of length.
      fps: frames per second, None if unknown.
      session_start: the time of the first frame, None if unknown.
    """

    views: Views
    points: Points
    confidence: np.ndarray
    unit: str
    fps: float | None = None
    session_start: datetime.datetime | None = None

    @property
    def keypoint_names(self) -> tuple[str, ...]:
        """The names of the k keypoints."""
        return self.views.keypoint_names

    def of_frames(self, values: np.ndarray) -> np.ndarray:
        """Returns values (n, ...) as (t, k, ...)."""
        return values.reshape(*self.confidence.shape, *values.shape[1:])


def choose_format(out: Path, form: str, fps: float | None, session_start: datetime.datetime | None) -> str:
    """Returns the format of --to, or that of the name of --out.

    Raises:
      UserError: they contradict each other, or --fps or --session_start, or a package is not installed.
    """
    suffix = out.suffix.lower()
    fitting = [known for known in SUFFIXES if SUFFIXES[known] == suffix]
    if not fitting:
        raise UserError(f"--out is {out}; its name must end in {', '.join(dict.fromkeys(SUFFIXES.values()))}")
    if form and form not in fitting:
        raise UserError(f"--out is {out}, but the name of a file for --to {form} ends in {SUFFIXES[form]}")
    form = form or fitting[0]
    if form in (TRC, NWB) and not (fps and np.isfinite(fps) and fps > 0):
        raise UserError(f"{SUFFIXES[form]} files hold the frames per second: give --fps, such as --fps 60")
    if form not in (TRC, NWB) and fps is not None:
        raise UserError(f"--fps is {fps:g}, but only .trc and .nwb files hold it")
    if form == NWB and session_start is None:
        raise UserError(nwb.NEEDS_START)
    if form != NWB and session_start:
        raise UserError(f"--session_start is {session_start.isoformat()}, but only .nwb files hold it")
    if form == NWB:
        need("nwb", str(out))
    if form == SLEAP_ANIPOSE:
        need("sleap", str(out), "h5py")
    return form


def write_points(file: Path, form: str, table: PointTable) -> None:
    """Writes points in a format of `SUFFIXES`.

    Raises:
      UserError: NWB does not allow a name.
      OSError: the file cannot be written.
    """
    {CSV: _write_csv, ANIPOSE: _write_anipose, SLEAP_ANIPOSE: _write_hdf5, TRC: _write_trc, NWB: _write_nwb}[form](
        file, table
    )


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
    with write_hdf5(file) as opened:
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


def _write_nwb(file: Path, table: PointTable) -> None:
    """Writes a `MultiCameraPoseEstimation` of ndx-pose: points, and the predictions of each calibrated camera."""
    import ndx_pose

    assert table.session_start
    views, cameras = table.views, table.views.cameras
    nwb.refuse_names(file, [*table.keypoint_names, *cameras.names])
    identifier = hashlib.sha256(np.ascontiguousarray(views.predicted_px).tobytes()).hexdigest()
    content = nwb.new_file(f"Keypoints in 3D of the views {', '.join(cameras.names)}", identifier, table.session_start)
    nodes = list(table.keypoint_names)
    skeleton = ndx_pose.Skeleton(name="animal", nodes=nodes, edges=np.zeros((0, 2), np.uint8))
    times = {"rate": table.fps, "starting_time": 0.0}
    each = []
    for camera, points_px, confidence in zip(cameras.each, views.predicted_px, views.confidence, strict=True):
        device = ndx_pose.CalibratedCamera(
            name=camera.name, intrinsic_matrix=camera.matrix.astype(np.float32),
            rotation_matrix=camera.rotation.astype(np.float32),
            translation_vector=camera.translation.astype(np.float32),
            distortion_coefficients=camera.distortion.astype(np.float32),
        )  # fmt: skip
        content.add_device(device)
        series = nwb.keypoint_series(nodes, f"view {camera.name}", points_px, confidence, times)
        each.append(
            ndx_pose.PoseEstimation(
                name=f"PoseEstimation_{camera.name}", pose_estimation_series=series, device=device, skeleton=skeleton,
                description=f"Predicted keypoints in view {camera.name}", source_software="jaxpose",
            )
        )  # fmt: skip
    places, unit = table.of_frames(table.points.places), _NWB_UNITS.get(table.unit, table.unit)
    estimation = ndx_pose.MultiCameraPoseEstimation(
        pose_estimation_series=nwb.keypoint_series(nodes, "the world", places, table.confidence, times, unit, _WORLD),
        pose_estimations=each,
        description="Keypoints in 3D, triangulated from calibrated cameras",
        scorer=SCORER,
        source_software="jaxpose",
        skeleton=skeleton,
    )
    module = content.create_processing_module("behavior", "Keypoints in 3D and in each view")
    module.add([ndx_pose.Skeletons(skeletons=[skeleton]), estimation])
    nwb.write_file(file, content)


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
