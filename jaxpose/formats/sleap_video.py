"""A video of a SLEAP file: its images, its file on this machine, and its name in the tables."""

from collections import Counter
from collections.abc import Container
from pathlib import Path, PureWindowsPath
from typing import Any

from jaxpose.data.inputs import VIDEO_SUFFIXES
from jaxpose.data.named_files import Match, find_files
from jaxpose.errors import UserError
from jaxpose.formats import sleap_extras
from jaxpose.quantities import count, listed
from jaxpose.video.file import scan
from jaxpose.video.recording import check_recording

_LISTED = 5


class SleapVideo:
    """A video of the file.

    Attributes:
      video: that of sleap-io.
      names: the paths that the file gives: one, or one for each image of a sequence.
      matches: what was found for these paths; empty for a package that does not name its video.
      is_embedded: the images lie in the file itself.
      image_stems: {frame: name of its image file, without suffix} of a sequence whose images all have other names.
      media_file: the file of a video that exists here, or None.
      recording: what the file says about the video.
    """

    def __init__(self, file: Path, number: int, video: Any) -> None:
        self.file, self.video = file, video
        source = video.filename
        self.is_embedded = not isinstance(source, list) and (source == "." or Path(source) == file)
        described = video.source_video if self.is_embedded else video
        source = described.filename if described is not None else f"video{number}"
        self.names = [str(name) for name in source] if isinstance(source, list) else [str(source)]
        self.matches: list[Match] = []
        self.is_sequence = isinstance(source, list) and not self.is_embedded
        self.media_file: Path | None = None
        self.recording = sleap_extras.read_recording(described, self.names[0])
        stems = [PureWindowsPath(name).stem for name in self.names] if isinstance(source, list) else []
        self.image_stems = dict(enumerate(stems)) if len(set(stems)) == len(stems) else {}
        self.has_path = described is not None

    def absence(self, number: int, noun: str) -> str:
        """Returns why a path has no file, and what to do."""
        match = self.matches[number]
        if match.reason:
            return match.reason
        return f"{noun} {self.names[number]} does not exist; put it at {self.file.parent / match.end}"


def read_videos(file: Path, labels: Any) -> list[SleapVideo]:
    """Returns the videos of a file, as sleap-io has read it, with their files on this machine."""
    videos = [SleapVideo(file, number, video) for number, video in enumerate(labels.videos)]
    # A relative path starts in the folder where the labels were made, which may not be that of the file.
    found = find_files([name for video in videos if video.has_path for name in video.names], [[file.parent]])
    for video in videos:
        video.matches = [found[name] for name in video.names] if video.has_path else []
        if len(video.matches) == 1 and not video.is_sequence:
            video.media_file = video.matches[0].file
    return videos


def files_of_videos(
    videos: list[SleapVideo], names: list[str], labelled: Container[int]
) -> tuple[dict[str, Path], list[str]]:
    """Returns {name: file} of the videos that exist here, and sentences about those that are not used.

    Args:
      videos: of the file.
      names: of the videos, as `video_names` returns them.
      labelled: numbers of the videos with labels, whose rows say what is wrong with them.
    """
    files, notes, absent = {}, [], []
    for number, (video, name) in enumerate(zip(videos, names, strict=True)):
        needs_no_file = video.is_embedded or number not in labelled
        if video.media_file is None:
            reason = video.matches[0].reason if video.matches and not video.is_sequence else ""
            notes += [f"not used: {reason}"] * bool(reason and needs_no_file)
            absent += [name] * bool(not reason and not video.is_sequence and number not in labelled)
            continue
        try:
            if video.media_file.suffix.lower() in VIDEO_SUFFIXES:
                check_recording(scan(video.media_file), video.recording)
            files[name] = video.media_file
        except UserError as error:
            notes += [f"not used: {error}"] * needs_no_file
    if absent:
        notes.append(f"{count(len(absent), 'video')} not found: {listed(absent, _LISTED)}")
    return files, notes


def firsts_of_files(videos: list[SleapVideo]) -> list[int]:
    """Returns for each video the number of the first with the same file: after a merge, SLEAP may list a file twice."""
    first: dict[Path, int] = {}
    return [
        number if video.media_file is None or video.is_embedded else first.setdefault(video.media_file, number)
        for number, video in enumerate(videos)
    ]


def video_names(videos: list[SleapVideo]) -> list[str]:
    """Returns different names of videos: those of their files, if needed with their folders or numbers in front.

    Entries for one file have one name.
    """

    def name(video: SleapVideo) -> str:
        path = PureWindowsPath(video.names[0])
        return path.parent.name if len(video.names) > 1 or video.is_sequence else path.stem

    def longer(video: SleapVideo) -> str:
        return f"{PureWindowsPath(video.names[0]).parent.name}_{name(video)}"

    firsts = firsts_of_files(videos)
    names = {number: name(videos[number]) for number in firsts}
    for better in (longer, lambda video: f"{videos.index(video)}_{name(video)}"):
        counts = Counter(names.values())
        names = {number: better(videos[number]) if counts[text] > 1 else text for number, text in names.items()}
    return [names[number] for number in firsts]
