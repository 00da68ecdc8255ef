"""The calibrated cameras of a project with several views: one rig for all recordings, or one for each session."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from jaxpose.cameras.calibration_files import YAML, read_cameras
from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.triangulation import measure_noise_px, triangulate
from jaxpose.config import Config, DataConfig, project_folder
from jaxpose.data.inputs import sessions
from jaxpose.data.label_files import view_of_video, without_view
from jaxpose.data.project import Project
from jaxpose.errors import UserError

# The cameras of each session, in the order of `data.views`.
Rigs = Mapping[str, Cameras]
# Labels that disagree by more of the width of an image are of other cameras.
_MOST_NOISE = 0.03


def read_rigs(data: DataConfig, names: Iterable[str]) -> dict[str, Cameras]:
    """Returns the cameras of the named sessions, in the order of `data.views`.

    Raises:
      UserError: a calibration is absent or cannot be used, or lacks a view.
    """
    path = project_folder(data.project) / data.calibration
    has_file_each = path.is_dir() and not any(file.suffix.lower() in YAML for file in path.iterdir())
    known: dict[Path, Cameras] = {}
    found: dict[str, Cameras] = {}
    for session in dict.fromkeys(names):
        file = _file_of(path, session) if has_file_each else path
        if file not in known:
            known[file] = _of_views(read_cameras(file), data.views, file)
        found[session] = known[file]
    return found


def rigs_of_project(config: Config, found: Project) -> dict[str, Cameras]:
    """Returns `read_rigs` for the sessions of the labelled images and, if a loss needs them, of the videos.

    Raises:
      UserError: as `read_rigs`, labelled images have another size than those that their camera was calibrated with, or
        the labels contradict the cameras.
    """
    data = config.data
    if not data.calibration:
        return {}
    of_images = [without_view(name, view) for name, view in zip(found.videos, found.views, strict=True)]
    with_videos = sessions(data, config.video) if config.losses.multiview_consistency.weight else []
    of_videos = [session_of(files[0].stem, data.views) for files in with_videos]
    rigs = read_rigs(data, [*of_images, *of_videos])
    for row, (session, view) in enumerate(zip(of_images, found.views, strict=True)):
        # A crop is placed in its frame, whose size is not known here.
        if not found.crop_px(row):
            width, height = found.sizes_px[row].tolist()
            refuse_other_size(rigs[session], data.views.index(view), (width, height), found.images[row], data)
    for cameras, _, points_px in _labels_of_rigs(rigs, found):
        noise_px = measure_noise_px(cameras, points_px, np.ones(points_px.shape[:2]))
        width = cameras.sizes_px.max() or found.sizes_px.max()
        if noise_px > _MOST_NOISE * width:
            session = next(session for session, rig in rigs.items() if rig is cameras)
            raise UserError(
                f"the labels of {', '.join(data.views)} disagree by {noise_px:.1f} px with data.calibration = "
                f"{data.calibration} ({session}): each camera must have the name of its own view, and be calibrated as "
                "it was in this recording"
            )
    return rigs


def session_of(name: str, views: tuple[str, ...]) -> str:
    """Returns the session of a video or of a folder of labelled images, <session>_<view>."""
    return without_view(name, view_of_video(name, views))


def refuse_other_size(cameras: Cameras, view: int, size_px: tuple[int, int], picture: object, data: DataConfig) -> None:
    """Raises UserError if a picture of a view, of (width, height), does not fit the image size of the camera."""
    width, height = cameras.sizes_px[view].tolist()
    if width and (width, height) != size_px:
        raise UserError(
            f"{picture} has {size_px[0]} x {size_px[1]} pixels, but data.calibration = {data.calibration} is of "
            f"{width} x {height} pixels for the camera {cameras.names[view]}: give the calibration of these images"
        )


def shown_by_other_labels(rigs: Rigs, found: Project) -> np.ndarray:
    """Returns where the labels of the other cameras show each keypoint (n, k, 2) in pixels of its frame.

    A place is the projection of the point of the world that agrees best with those labels. It is NaN unless two of them
    agree with the point.
    """
    shown = np.full(found.measured_frame_px().shape, np.nan)
    for cameras, here, points_px in _labels_of_rigs(rigs, found):
        confidence = np.ones(points_px.shape[:2])
        noise_px = measure_noise_px(cameras, points_px, confidence)
        for view in range(len(here)):
            others = np.where((np.arange(len(here)) == view)[:, None, None], np.nan, points_px)
            points = triangulate(cameras, others, confidence, noise_px)
            places = np.where((points.views >= 2)[:, None], points.places, np.nan)
            exists = here[view] >= 0
            shown[here[view][exists]] = cameras.project(places)[view].reshape(-1, *shown.shape[1:])[exists]
    return shown


def _labels_of_rigs(rigs: Rigs, found: Project) -> Iterator[tuple[Cameras, np.ndarray, np.ndarray]]:
    """Yields each rig with the rows (v, m) of its moments and their labels (v, m k, 2) in pixels of the frames.

    A row is -1, and its labels are NaN, where a moment lacks a view.
    """
    labels_px, rows = found.measured_frame_px(), found.rows_of_moments().T
    sessions_of_moments = [without_view(found.videos[row], found.views[row]) for row in rows.max(axis=0).tolist()]
    for cameras in {id(cameras): cameras for cameras in rigs.values()}.values():
        here = rows[:, [rigs[session] is cameras for session in sessions_of_moments]]
        points_px = np.where((here >= 0)[..., None, None], labels_px[here], np.nan)
        yield cameras, here, points_px.reshape(len(here), -1, 2)


def cameras_checksum(rigs: Rigs) -> str:
    """Returns the SHA-256 of the cameras in hexadecimal, "" without any."""
    digest = hashlib.sha256()
    for session, cameras in sorted(rigs.items()):
        digest.update(session.encode() + b"\0" + np.ascontiguousarray(cameras.numbers, "<f8").tobytes())
    return digest.hexdigest() if rigs else ""


def _file_of(folder: Path, session: str) -> Path:
    """Returns the calibration of a session: the file or folder of its name."""
    named = [entry for entry in folder.iterdir() if session in (entry.name, entry.stem)]
    if len(named) != 1:
        what = f"has {', '.join(sorted(entry.name for entry in named))}" if named else "has none"
        raise UserError(
            f"data.calibration is a folder with a calibration for each session, and for {session} it {what}: "
            f"{folder} needs one, such as {session}.toml"
        )
    return named[0]


def _of_views(cameras: Cameras, views: tuple[str, ...], file: Path) -> Cameras:
    """Returns the cameras of views, by their names."""
    absent = [view for view in views if view not in cameras.names]
    if absent:
        raise UserError(
            f"{file} has no camera {', '.join(absent)}; it has {', '.join(cameras.names)}: the names of data.views "
            "and those of the cameras must be the same"
        )
    return Cameras([cameras.each[cameras.names.index(view)] for view in views])
