"""Merges labels into a SLEAP file: finds the frame of the project's videos that each new one is."""

import itertools
from pathlib import Path, PureWindowsPath

from jaxpose.config import DataConfig
from jaxpose.data.checked_table import refuse_link_out_of_project
from jaxpose.errors import UserError
from jaxpose.formats import sleap
from jaxpose.formats.sleap_images import SleapVideo
from jaxpose.labelling.merging_whole_files import Matched, image_key, labelled_images
from jaxpose.labelling.sleap_file import SleapFile, frame_image
from jaxpose.terminal import count, listed
from jaxpose.video.index import ends_checksum

_LISTED = 5


def match_images(new: SleapFile, project: SleapFile) -> Matched:
    """Returns the frames of new labels and those of a project that they are, also frames that have no labels yet.

    Two videos are the same if they are one file, or have the same name and neither their sizes nor their files differ.
    """
    matched, names = Matched(project), dict[int, str]()
    known = {
        _key(project.videos[place.video], project.names[place.video], place.frame): image
        for image, place in project.places.items()
    }
    for image in labelled_images(new):
        place = new.places[image]
        video = new.videos[place.video]
        try:
            if place.video not in names:
                names[place.video] = _name_of_video(video, new.names[place.video], project)
            name = names[place.video]
            found = known.get(_key(video, name, place.frame)) or _frame_image(video, name, place.frame, project)
            _refuse_other_image(video, place.frame, found, project)
            matched.names[image] = found
        except UserError as error:
            matched.problems.append(f"{image}: {error}")
    _find_files(matched, project)
    return matched


def refuse_absent(new: SleapFile) -> None:
    """Raises UserError if labels of a file would be lost because their images are not on this machine."""
    if new.absent_labels:
        reasons = listed([reason for _, reason in new.absent.values()], _LISTED)
        raise UserError(f"{new.file} has labels in {count(new.absent_labels, 'frame')} without an image: {reasons}")


def predicted_frames(new: SleapFile) -> int:
    """Returns the number of frames that have predicted instances and none that a person made or corrected."""
    return len(new.predicted.keys() - {*labelled_images(new)})


def _key(video: SleapVideo, name: str, frame: int) -> tuple[str, str | int]:
    """Returns what tells a frame from others: the video and the number, or the folder and the name of its image."""
    if video.is_of_images and 0 <= frame < len(video.names):
        return image_key(PureWindowsPath(video.names[frame]).as_posix())
    return name, frame


def _name_of_video(video: SleapVideo, name: str, project: SleapFile) -> str:
    """Returns the name of a video of new labels in the project, its own if the project has no such video.

    Raises:
      UserError: several videos of the project can be it, or the one of its name is another one.
    """
    file = None if video.is_embedded else video.media_file
    for number, other in enumerate(project.videos):
        if file and other.media_file and file.samefile(other.media_file):
            return project.names[number]
    if video.is_of_images:
        return name
    # Of videos with one name, the one in the folders of the same names.
    shared = {number: _shared_parts(video, other) for number, other in enumerate(project.videos)}
    best = [number for number, parts in shared.items() if parts and parts == max(shared.values())]
    if not best:
        return name
    if len({project.names[number] for number in best}) > 1:
        named = listed([project.videos[number].names[0] for number in best], _LISTED)
        raise UserError(f"its video {video.names[0]} can be any of the project's: {named}")
    other = project.videos[best[0]]
    one, two = video.recording, other.recording
    other_size = one.size_px and two.size_px and one.size_px != two.size_px
    other_length = one.frame_count and two.frame_count and one.frame_count != two.frame_count
    if other_size or other_length or (file and other.media_file and _are_different(file, other.media_file)):
        raise UserError(f"its video {video.names[0]} is another one than the video {other.names[0]} of {project.file}")
    return project.names[best[0]]


def _shared_parts(one: SleapVideo, other: SleapVideo) -> int:
    """Returns how many folders and names at the ends of the paths of two videos are equal."""
    if other.is_of_images:
        return 0
    parts = (reversed(PureWindowsPath(video.names[0]).parts) for video in (one, other))
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*parts, strict=False)))


def _are_different(one: Path, other: Path) -> bool:
    return one.stat().st_size != other.stat().st_size or ends_checksum(one) != ends_checksum(other)


def _frame_image(video: SleapVideo, name: str, frame: int, project: SleapFile) -> str:
    """Returns the image of a frame that the project does not list, in one of its videos."""
    image = f"{project.file.name}/{name}/{frame_image(frame)}"
    if not video.is_of_images and project.place_of(image):
        return image
    if video.is_of_images or name not in project.names:
        has = listed(list(dict.fromkeys(project.names)), _LISTED)
        raise UserError(f"{project.file} has no such image or video {name}; it has {has}: add it in SLEAP, then repeat")
    other = project.videos[project.names.index(name)]
    if other.media_file is None and not other.is_embedded and not other.is_sequence:
        raise UserError(other.absence(0, "its video"))
    raise UserError(f"{project.file} holds single images of {name}, not frame {frame}: merge into the file that "
                    "names the whole video")  # fmt: skip


def _refuse_other_image(video: SleapVideo, frame: int, image: str, project: SleapFile) -> None:
    """Refuses an image file that differs from the project's image file of this name."""
    place = project.place_of(image)
    assert place is not None
    other = project.videos[place.video]
    if not (video.is_sequence and other.is_sequence):
        return
    files = video.matches[frame].file, other.matches[place.frame].file
    if files[0] and files[1] and files[0].read_bytes() != files[1].read_bytes():
        raise UserError(f"{files[0]} differs from the project's image of this name, {files[1]}")


def _find_files(matched: Matched, project: SleapFile) -> None:
    """Adds the image file of each frame; a frame without a usable one becomes a problem."""
    places = {image: project.place_of(name) for image, name in matched.names.items()}
    for number in {place.video for place in places.values() if place}:
        of_video = {image: place.frame for image, place in places.items() if place and place.video == number}
        frames = sorted({*of_video.values()})
        files = sleap.frame_files(project.videos[number], frames, project.reach_px[number], DataConfig())
        for image, frame in of_video.items():
            try:
                if isinstance(file := files[frame], str):
                    raise UserError(file)
                refuse_link_out_of_project(file, matched.names[image])
                matched.files[matched.names[image]] = file
            except UserError as error:
                del matched.names[image]
                matched.problems.append(f"{image}: {error}")
