"""A file that another file names by its path on the machine where it was made, which may run Windows."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath


def is_absolute(name: str) -> bool:
    """Returns whether a path is absolute, here or on Windows."""
    return PurePosixPath(name).is_absolute() or PureWindowsPath(name).is_absolute()


def locate(name: str, folders: Sequence[Path], shorten_relative: bool = False) -> Path | None:
    """Returns the file that a path stands for, None if there is none.

    A relative path is looked up in each folder. An absolute path may be one of another machine: of its ends that exist
    in a folder, the longest counts; if none exists, the path itself.

    Args:
      name: the path.
      folders: searched in this order.
      shorten_relative: whether ends of a relative path count, too.
    """
    parts = [part for part in PurePosixPath(name.replace("\\", "/")).parts if part != "/" and not part.endswith(":")]
    for first in range(len(parts) if shorten_relative or is_absolute(name) else 1):
        for folder in folders:
            if (folder / PurePosixPath(*parts[first:])).is_file():
                return folder / PurePosixPath(*parts[first:])
    return Path(name) if is_absolute(name) and Path(name).is_file() else None
