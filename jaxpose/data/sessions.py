"""The videos of a project: one per session, or one per session and view where there are several cameras."""

import difflib
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


def video_files(data: DataConfig, video: VideoConfig) -> dict[str, Path]:
    """Returns {name without suffix: file} of the files in `video.folder` with a video's suffix, in natural order.

    Raises:
      UserError: `video.folder` is not the default and does not exist, two videos differ in their suffix
        alone, or a video is a FIFO or a device, a loop of symbolic links, or has a line break in its name.
    """
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
        try:
            refuse_unprintable(file.name)
        except UserError as error:
            raise UserError(f"a video in {folder} cannot be used: {error}; rename it") from None
        if file.stem in files:
            raise UserError(f"{files[file.stem]} and {file} differ only in their suffix; keep one of them")
        files[file.stem] = file
    return files


def _folder(data: DataConfig, video: VideoConfig) -> Path:
    return project_folder(data.project) / Path(video.folder).expanduser()
