"""Recordings to label: a video, or with several cameras the videos of all views of a session."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxpose.data.inputs import find_inputs
from jaxpose.data.views import view_of_video, without_view
from jaxpose.errors import UserError


@dataclasses.dataclass(frozen=True)
class Recording:
    """Videos of the same moments.

    Attributes:
      name: of the video without suffix, or of the session.
      videos: {view: video}; the view is "" with one camera.
      folders: {view: folder of its images in labeled-data/}.
      crop_px: (x, y, width, height) of its frames that images show, () for whole frames.
    """

    name: str
    videos: dict[str, Path]
    folders: dict[str, str]
    crop_px: tuple[int, ...] = ()


def find_recordings(names: Sequence[str], views: Sequence[str], known: Mapping[str, Path]) -> list[Recording]:
    """Returns the recordings of the videos that are named, in natural order.

    Args:
      names: videos, folders, globs or @LIST, as jaxpose.predict takes them.
      views: of the project, () with one camera.
      known: {name: file} of videos to which the project gives a name; others are called as their files.

    Raises:
      UserError: a name does not exist; an image is among them; two videos would have the same folder of images; or
        with several cameras a video is of no view, or one of a session is absent.
    """
    inputs = find_inputs(names)
    if inputs.images:
        image = next(iter(inputs.images.values()))[0]
        raise UserError(f"{image} is an image; frames are suggested from videos")
    names_of = {os.path.realpath(file): name for name, file in known.items()}
    videos: dict[str, Path] = {}
    for file in inputs.videos.values():
        name = names_of.get(os.path.realpath(file), file.stem)
        if name in videos:
            raise UserError(
                f"{videos[name]} and {file} have the same name, and so would their frames in labeled-data/: give "
                "one of them another name, or call the command for each"
            )
        videos[name] = file
    if not views:
        return [Recording(name, {"": file}, {"": name}) for name, file in videos.items()]
    found: dict[str, dict[str, Path]] = {}
    for stem, file in videos.items():
        view = view_of_video(stem, views)
        if not view:
            raise UserError(f"{file} is of none of the views {', '.join(views)}; it must be called <session>_<view>")
        found.setdefault(without_view(stem, view), {})[view] = file
    for session, of_view in found.items():
        if absent := [view for view in views if view not in of_view]:
            raise UserError(f"the session {session} has no video of the view {', '.join(absent)}: name it too")
    return [
        Recording(session, {view: of_view[view] for view in views}, {view: of_view[view].stem for view in views})
        for session, of_view in found.items()
    ]
