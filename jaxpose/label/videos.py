"""The videos of a project: frames by number, and their extraction as images to label."""

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import cv2
import numpy as np

from jaxpose.config import DataConfig, VideoConfig
from jaxpose.data.cells import one_name, spelling_note
from jaxpose.data.frame_names import FrameNames
from jaxpose.data.inputs import VIDEO_SUFFIXES, video_files
from jaxpose.data.label_files import view_of_video, without_view
from jaxpose.errors import UserError
from jaxpose.files import write_atomic, write_new
from jaxpose.formats.deeplabcut.tables import IMAGES_FOLDER
from jaxpose.formats.project import named_videos
from jaxpose.label.predictions import Predictions
from jaxpose.label.project import LabelProject
from jaxpose.label.store import Store
from jaxpose.label.traces import read_trace
from jaxpose.label.video_frames import VideoFrames
from jaxpose.labelling.label_file import new_label_file, read_label_header
from jaxpose.labelling.project_labels import image_of, plain_header, read_project_labels
from jaxpose.labelling.sleap_file import SleapFile, frame_image
from jaxpose.outputs import write_folder
from jaxpose.terminal import listed, print_lines
from jaxpose.video.file import scan
from jaxpose.video.recording import Recording

_LISTED = 3


class Videos:
    """The videos of a project.

    Attributes:
      files: {name: file}; the name is that of the folder of its images.
    """

    def __init__(self, project: LabelProject, radius: int = 0):
        """Finds the videos; `radius` neighbours on either side of an extracted frame are written as well."""
        self._radius = radius
        label_file = project.files[0].name if project.new_header == () else DataConfig().labels
        self._data = DataConfig(project=str(project.folder), labels=label_file)
        self._project, recordings = project, dict[str, Recording]()
        if project.is_one_file:
            media = project.opened.media() if isinstance(project.opened, SleapFile) else {}
            recordings = {name: video.recording for name, video in media.items()}
            self.files = {name: video.media_file for name, video in media.items() if video.media_file}
        else:
            self.files = self._find()
        self.names = list(self.files)
        recordings = {self.files[name]: one for name, one in recordings.items() if name in self.files}
        self._frames = VideoFrames(recordings, len(project.views))

    def _find(self) -> dict[str, Path]:
        try:
            found = {**named_videos(self._data)[0], **video_files(self._data, VideoConfig())}
            files = _by_stem(found.values())
        except UserError as error:
            print_lines(f"no frames of videos: {error}")
            files = {}
        views = self._project.views
        if others := [name for name in files if views and not view_of_video(name, views)]:
            print_lines(f"no frames of {listed(others, _LISTED)}, which belong to none of the views {', '.join(views)}")
        return {name: file for name, file in files.items() if name not in others}

    def frame_count(self, video: int) -> int:
        """Returns the number of frames of a video, by its place in `names`; raises as `frame`."""
        return self._frames.index(self._file(video)).frame_count

    def frame(self, video: int, number: int) -> np.ndarray:
        """Returns the pixels (h, w, 3) RGB of a frame; raises as `VideoFrames.get`."""
        return self._frames.get(self._file(video), number)

    def _file(self, video: int) -> Path:
        return self.files[self.names[video]]

    def trace(self, video: int, kind: str, predictions: Predictions | None) -> list[Any]:
        """Returns a trace along a video, as `read_trace`; [] without predictions of it."""
        name = self.names[video]
        table = predictions and predictions.table_of_video((name, self.files[name].stem))
        return read_trace(table, kind) if table else []

    def labelled(self, video: int, images: list[str]) -> dict[int, int]:
        """Returns {frame number: number of its image} of the images of a video."""
        folder = self._project.image_folder(self.names[video])
        of_video = {
            PurePosixPath(image).name: number
            for number, image in enumerate(images)
            if PurePosixPath(image).parent == folder
        }
        names = FrameNames(of_video)
        frames = ((names.number(name), number) for name, number in of_video.items())
        return {frame: number for frame, number in frames if frame is not None}

    def extract(self, video: int, number: int, store: Store) -> int:
        """Writes a frame as an image of the project, unless there is one, and returns the number of the image.

        Raises:
          UserError: the frame cannot be read, the crop of the video is unknown, or the moment has another image of its
            view.
          OSError: the image cannot be written.
        """
        folder = self._project.image_folder(self.names[video])
        with store.adding:
            known = self.labelled(video, store.images)
            if number in known:
                return known[number]
            if self._project.is_one_file:
                # The file names the frame; no image is written.
                self.frame(video, number)
                return store.add(f"{folder}/{frame_image(number)}")
            # Also an image that is not listed, as the context of a labelled one.
            names = FrameNames(on_disk := sorted(store.project.image_names(folder)))
            same = [name for name in on_disk if names.number(name) == number]
            name = f"{folder}/{same[0]}" if same else self._name_in_other_view(video, number)
            name = name or image_of(self.names[video], number)
            if not same:
                store.refuse_second(name)
            self._extract(video, number, store.project.folder / name, on_disk)
            return store.add(name)

    def _extract(self, video: int, number: int, file: Path, on_disk: list[str]) -> None:
        """Writes the image of a frame, and those of its neighbours, unless they are there; the frame comes last."""
        crop_px, names = self._crop_px(video), FrameNames([*on_disk, file.name])
        there = {names.number(name) for name in on_disk}
        file.parent.mkdir(parents=True, exist_ok=True)
        last = self.frame_count(video) - 1
        around = range(max(number - self._radius, 0), min(number + self._radius, last) + 1)
        for near in [*(one for one in around if one != number), number]:
            if near not in there:
                self._write(video, near, crop_px, file.with_name(names.renumbered(file.name, near)))

    def _write(self, video: int, number: int, crop_px: tuple[int, ...], file: Path) -> None:
        pixels = self.frame(video, number)
        if crop_px:
            x, y, width, height = crop_px
            pixels = pixels[y : y + height, x : x + width]
        write_atomic(file, cv2.imencode(file.suffix, cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))[1].tobytes())

    def sessions(self) -> list[list[int]]:
        """Returns the videos of each session by their places in `names`, in the order of the views; -1 without one.

        With one camera, each video is a session.
        """
        views, found = self._project.views, dict[str, list[int]]()
        if not views:
            return [[video] for video in range(len(self.names))]
        for video, name in enumerate(self.names):
            view = view_of_video(name, views)
            found.setdefault(without_view(name, view), [-1] * len(views))[views.index(view)] = video
        return list(found.values())

    def _name_in_other_view(self, video: int, number: int) -> str:
        """Returns the name of a frame's image that joins it with that of another view, "" if no view has one."""
        name, views = self.names[video], self._project.views
        session = without_view(name, view_of_video(name, views))
        for view in views:
            folder = self._project.image_folder(f"{session}_{view}")
            names = FrameNames(on_disk := sorted(self._project.image_names(folder)))
            for image in on_disk:
                if names.number(image) == number:
                    return str(self._project.image_folder(name) / image)
        return ""

    def _crop_px(self, video: int) -> tuple[int, ...]:
        """Returns the part (x, y, width, height) of a frame that the images of a video show, () for all of it."""
        if not any((Path(self._data.project) / IMAGES_FOLDER).glob("*/CollectedData_*.csv")):
            return ()
        return read_project_labels(self._data).crop_px(self.names[video])


def _by_stem(files: Iterable[Path]) -> dict[str, Path]:
    """Returns videos by the name of the folder of their images.

    Raises:
      UserError: two would have the same one.
    """
    found: dict[str, Path] = {}
    for file in files:
        other = found.setdefault(one_name(file.stem), file)
        if os.path.realpath(other) != os.path.realpath(file):
            note = spelling_note(other.stem, file.stem)
            raise UserError(
                f"{other} and {file} have the same name{note}, and so would their images in {IMAGES_FOLDER}/: rename "
                "one of them"
            )
    return {file.stem: file for file in found.values()}


def is_video(given: str) -> bool:
    """Returns whether an argument is a video file."""
    return Path(given).suffix.lower() in VIDEO_SUFFIXES and Path(given).expanduser().is_file()


def make_project(given: str, keypoints: str) -> str:
    """Makes a project of a video, in a folder of its name next to it, unless there is one; returns the folder.

    Args:
      given: the video.
      keypoints: names, separated by commas.

    Raises:
      UserError: a new project needs names of keypoints; the file is not a video; the folder has other files, or is the
        project of another video or of other keypoints.
      OSError: the folder cannot be written.
    """
    video = Path(given).expanduser()
    folder = video.with_suffix("")
    labels = folder / DataConfig().labels
    names = [name.strip() for name in keypoints.split(",") if name.strip()]
    if labels.is_file():
        _refuse_other_project(video, labels, names)
        return str(folder)
    if not names:
        raise UserError(f"{given} is a video without a project: name its keypoints, such as --keypoints nose,tail")
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"the project of {given} would be {folder}, which already exists and has no {labels.name}")
    scan(video)
    content = new_label_file(labels, plain_header("jaxpose", tuple(names), 1)).content()
    with write_folder(folder) as new:
        videos = new / VideoConfig().folder
        videos.mkdir()
        (videos / video.name).symlink_to(os.path.realpath(video))
        write_new(new / labels.name, content)
    return str(folder)


def _refuse_other_project(video: Path, labels: Path, names: list[str]) -> None:
    """Checks that a project is that of a video and has these keypoints, if any are given.

    Raises:
      UserError: it is not, or has others.
    """
    folder = labels.parent
    videos = folder / VideoConfig().folder
    found = sorted(videos.iterdir()) if videos.is_dir() else []
    if not any(file.exists() and file.samefile(video) for file in found):
        others = ", ".join(file.name for file in found) or "no video"
        raise UserError(
            f"{video} is not a video of the project {folder}, whose {videos.name}/ has {others}: rename the video to "
            f"make a project of it, or give the folder {folder} to open that project"
        )
    known = read_label_header(labels).keypoint_names
    if names and tuple(names) != known:
        raise UserError(
            f"--keypoints is {','.join(names)}, but the project {folder} has the keypoints {','.join(known)}: leave "
            "--keypoints out to open it"
        )
