"""The videos of a project: one per session, or one per session and view where there are several cameras."""

import dataclasses
import difflib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxpose.config import DataConfig, VideoConfig, project_folder
from jaxpose.data.cells import refuse_unprintable
from jaxpose.data.inputs import VIDEO_SUFFIXES, natural_key
from jaxpose.data.views import view_of_video
from jaxpose.errors import UserError
from jaxpose.files import is_regular


def sessions(data: DataConfig, video: VideoConfig) -> list[tuple[Path, ...]]:
    """Returns the videos of each session, one per view in the order of `data.views`; one alone without views.

    Sessions are in natural order (2 before 10). A project without videos has none.

    Raises:
      UserError: as `video_files`; or, with several cameras, a video is of no view, or one of a session is absent.
    """
    files = video_files(data, video)
    if not data.views:
        return [(file,) for file in files.values()]
    found: dict[str, dict[str, Path]] = {}
    for stem, file in files.items():
        view = view_of_video(stem, data.views)
        if not view:
            raise UserError(
                f"{file} is of none of the views {', '.join(data.views)}; it must be called <session>_<view>, or lie "
                "in another folder"
            )
        found.setdefault(stem.removesuffix(f"_{view}"), {})[view] = file
    for session, of_view in found.items():
        absent = [view for view in data.views if view not in of_view]
        if absent:
            there = next(iter(of_view.values()))
            raise UserError(
                f"the session {session} has no video of the view {', '.join(absent)}: {session}_{absent[0]} must lie "
                f"beside {there}"
            )
    return [tuple(found[session][view] for view in data.views) for session in found]


def clip_sessions(
    data: DataConfig, video: VideoConfig, why: str = "a loss on unlabelled video is on"
) -> list[tuple[Path, ...]]:
    """Returns `sessions` for a training on clips.

    Args:
      data: the project.
      video: the folder of its videos.
      why: why videos are needed, for the message.

    Raises:
      UserError: as `sessions`; or there is none.
    """
    found = sessions(data, video)
    if not found:
        folder = _folder(data, video)
        lacks = f"{folder} has no file with the ending {', '.join(VIDEO_SUFFIXES)}"
        raise UserError(
            f"{why}, but there are no videos: "
            f"{lacks if folder.is_dir() else f'there is no folder {folder}'}; put videos there, or "
            "name their folder in video.folder"
        )
    return found


def named_videos(data: DataConfig, video: VideoConfig, named: Mapping[str, Path]) -> VideoConfig:
    """Returns the options with the videos that the label file names, if the project has no others.

    Args:
      data: the project.
      video: its videos; a folder or files that are given are not replaced.
      named: {name: file} of the videos that the label file names and that exist.

    Raises:
      UserError: as `video_files`.
    """
    default = VideoConfig()
    if (video.folder, video.files) != (default.folder, default.files) or video_files(data, video):
        return video
    folder = Path(os.path.realpath(project_folder(data.project)))
    files = [file for file in dict.fromkeys(named.values()) if file.suffix.lower() in VIDEO_SUFFIXES]
    places = [file.relative_to(folder).as_posix() if file.is_relative_to(folder) else str(file) for file in files]
    return dataclasses.replace(video, files=tuple(sorted(places, key=natural_key)))


def video_files(data: DataConfig, video: VideoConfig) -> dict[str, Path]:
    """Returns {name: file} of the project's videos, in natural order: `video.files`, or those in `video.folder`.

    The name is that of the file without suffix; where `video.files` has two of one name, their folders are in front.

    Raises:
      UserError: `video.folder` is not the default and does not exist, two videos in it differ in their suffix alone, a
        file of `video.files` does not exist, or a video is a FIFO or a device, a loop of symbolic links, or has a line
        break in its name.
    """
    if video.files:
        return _given_files(project_folder(data.project), video.files)
    folder = _folder(data, video)
    if not folder.is_dir():
        if video.folder == VideoConfig().folder:
            return {}
        there = [entry.name for entry in folder.parent.iterdir() if entry.is_dir()] if folder.parent.is_dir() else []
        near = difflib.get_close_matches(folder.name, there, 1)
        hint = f"; did you mean {folder.with_name(near[0])}?" if near else ""
        raise UserError(f"video.folder is {video.folder!r}, but there is no folder {folder}{hint}")
    files: dict[str, Path] = {}
    for file in sorted(folder.iterdir(), key=lambda file: (natural_key(file.name), file.name)):
        if file.suffix.lower() not in VIDEO_SUFFIXES or file.name.startswith(".") or not is_regular(file):
            continue
        _refuse_name(file, file.name)
        if file.stem in files:
            raise UserError(f"{files[file.stem]} and {file} differ only in their suffix; keep one of them")
        files[file.stem] = file
    return files


def _given_files(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    files = [folder / Path(name).expanduser() for name in names]
    for file in files:
        if not is_regular(file):
            raise UserError(f"video.files has {file}, which does not exist; put it there, or leave it out")
        _refuse_name(file, str(file))
    found = [file.stem for file in files]
    for depth in range(1, max(len(file.parts) for file in files)):
        counts = Counter(found)
        found = [
            "_".join([*file.parts[-depth - 1 : -1], file.stem]) if counts[name] > 1 else name
            for name, file in zip(found, files, strict=True)
        ]
    if len(set(found)) < len(found):
        raise UserError(f"video.files names {Counter(found).most_common(1)[0][0]} twice; keep one of them")
    return dict(zip(found, files, strict=True))


def _refuse_name(file: Path, name: str) -> None:
    try:
        refuse_unprintable(name)
    except UserError as error:
        raise UserError(f"a video in {file.parent} cannot be used: {error}; rename it") from None


def _folder(data: DataConfig, video: VideoConfig) -> Path:
    return project_folder(data.project) / Path(video.folder).expanduser()
