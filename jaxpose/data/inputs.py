"""What to predict: the images and videos that a user names, by file or by folder, in natural order."""

import dataclasses
import difflib
import re
from collections.abc import Sequence
from pathlib import Path

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
VIDEO_SUFFIXES = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Files to predict, all of which exist.

    Attributes:
      images: the images of each folder, by the folder's absolute path.
      videos: in the order given.
    """

    images: dict[Path, list[Path]]
    videos: list[Path]


def find_inputs(names: Sequence[str]) -> Inputs:
    """Returns the images and videos among the files and folders named; folders are not searched below their own files.

    Raises:
      ValueError: a name is not there, is of an unknown type or comes twice, or a folder has neither images nor videos.
    """
    images: dict[Path, list[Path]] = {}
    videos: list[Path] = []
    seen: set[Path] = set()
    for name in names:
        path = Path(name).expanduser()
        for file in _files_of(path):
            if file.resolve() in seen:
                raise ValueError(f"{file} is given twice; name it once, by itself or by its folder")
            seen.add(file.resolve())
            if _kind(file) == "video":
                videos.append(file)
            else:
                images.setdefault(file.parent.resolve(), []).append(file)
    return Inputs(images, videos)


def _files_of(path: Path) -> list[Path]:
    if path.is_file():
        if not _kind(path):
            raise ValueError(
                f"{path} is neither an image ({' '.join(IMAGE_SUFFIXES)}) nor a video ({' '.join(VIDEO_SUFFIXES)})"
            )
        return [path]
    if not path.is_dir():
        there = [str(entry) for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(str(path), there, 1)
        raise ValueError(f"{path} does not exist" + (f"; did you mean {near[0]}?" if near else ""))
    files = [entry for entry in path.iterdir() if entry.is_file() and _kind(entry) and not entry.name.startswith(".")]
    if not files:
        raise ValueError(f"the folder {path} has neither images ({' '.join(IMAGE_SUFFIXES)}) nor videos "
                         f"({' '.join(VIDEO_SUFFIXES)})")  # fmt: skip
    return sorted(files, key=lambda file: (natural_key(file.name), file.name))


def _kind(file: Path) -> str:
    suffix = file.suffix.lower()
    return "image" if suffix in IMAGE_SUFFIXES else "video" if suffix in VIDEO_SUFFIXES else ""


def natural_key(name: str) -> list[tuple[int, str]]:
    """Returns what sorts img2 before img10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]
