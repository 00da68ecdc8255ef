"""Finds files that a label file names by their paths on the machine where it was made.

That machine may run Windows or macOS, so paths may be absolute, and names may differ from the local ones in case or
Unicode form (ä is one character, or a and a mark).
"""

import dataclasses
import functools
import os
import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TypeVar

from jaxpose.data.cells import one_name
from jaxpose.video.index import ends_checksum

Value = TypeVar("Value")
_Parts = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Match:
    """The file found for a name.

    Attributes:
      file: the file, or None.
      reason: why a similar file is not a match; "" for a match or no similar file.
      end: the shortest end of the name that no other name has, with forward slashes.
      is_exact: whether the file lies where the name says.
    """

    file: Path | None
    reason: str
    end: str
    is_exact: bool = False


def is_absolute(name: str) -> bool:
    """Returns whether a path is absolute here or on Windows."""
    return PurePosixPath(name).is_absolute() or PureWindowsPath(name).is_absolute()


def are_in_place(folder: Path, names: Iterable[str]) -> bool:
    """Returns whether every name is a path in a folder, with forward slashes, of a file that exists."""
    is_odd = re.compile(r"[\\:]|^/|(^|/)\.{0,2}(/|$)").search
    return not any(is_odd(name) or not os.path.isfile(os.path.join(folder, name)) for name in names)


def find_files(names: Iterable[str], places: Sequence[Sequence[Path]]) -> dict[str, Match]:
    """Returns the file of each name.

    A file that lies where the name says matches. Otherwise the longest end of the name found in a folder decides, if it
    is long enough to tell the name from all others, if only one file has it (copies count once), and if that file
    matches no other name.

    Args:
      names: all paths in the label file; relative ones start at the first folder.
      places: folders; earlier groups win over later ones.
    """
    base, listings = places[0][0], _Listings()
    own = {name: _own_file(name, base) for name in dict.fromkeys(names)}
    known, found = _Names(list(own)), {}
    for name, file in own.items():
        exact = Match(file, "", known.telling_end(name), is_exact=True)
        if file and not is_absolute(name):
            found[name] = exact
            continue
        match = _match_end(name, known, places, listings)
        # A path that exists on this machine may belong to the project from which this one was copied.
        found[name] = exact if file and not _are_copies(file, match.file) else match
    return _without_shared(found, known, base)


def of_name(name: str, known: Mapping[str, Value]) -> Value | None:
    """Returns the value of a name, in any Unicode form; None if there is not exactly one."""
    if name in known:
        return known[name]
    alike = [key for key in known if unicodedata.normalize("NFC", key) == unicodedata.normalize("NFC", name)]
    return known[alike[0]] if len(alike) == 1 else None


class _Listings:
    """Folder entries; reads each folder once."""

    def __init__(self) -> None:
        self._entries: dict[Path, dict[str, list[str]]] = {}

    def files(self, folder: Path, parts: _Parts) -> list[Path]:
        """Returns the files with these path parts below a folder; without an exact match, the similar ones."""
        found = [folder]
        for part in parts:
            found = [place / name for place in found for name in self._alike(place, part)]
        return [path for path in found if os.path.isfile(path)]

    def _alike(self, folder: Path, name: str) -> list[str]:
        if folder not in self._entries:
            entries: dict[str, list[str]] = {}
            try:
                for entry in sorted(os.listdir(folder)):
                    entries.setdefault(one_name(entry), []).append(entry)
            except OSError:
                entries = {}  # a file, or no permission
            self._entries[folder] = entries
        names = self._entries[folder].get(one_name(name), [])
        return [name] if name in names else names


def _parts(name: str) -> _Parts:
    """Returns the parts of a path: the drive letter, the folders and the file."""
    path = posixpath.normpath(re.sub("^([A-Za-z]):", r"/\1", name.replace("\\", "/")))
    return tuple(part for part in path.split("/") if part not in ("", "..", "."))


def _own_file(name: str, base: Path) -> Path | None:
    path = name if PurePosixPath(name).is_absolute() else os.path.join(base, name.replace("\\", "/"))
    return Path(os.path.normpath(path)) if os.path.isfile(path) else None


class _Names:
    """The names in a label file, compared by their ends."""

    def __init__(self, names: Sequence[str]) -> None:
        self.parts = {name: _parts(name) for name in names}
        self._by_end: dict[int, dict[_Parts, list[str]]] = {}

    @functools.cached_property
    def lengths(self) -> dict[_Parts, int]:
        """The number of last parts that make each path unique."""
        lengths: dict[_Parts, int] = {}
        waiting, length = set(self.parts.values()), 0
        while waiting:
            length += 1
            counts = Counter(path[-length:] for path in waiting)
            lengths |= {path: min(length, len(path)) for path in waiting if counts[path[-length:]] == 1}
            waiting -= lengths.keys()
        return lengths

    def telling_end(self, name: str) -> str:
        path = self.parts[name]
        return "/".join(path[-self.lengths[path] :])

    def other(self, name: str, length: int) -> str:
        """Returns another name with the same last parts."""
        if length not in self._by_end:
            found: dict[_Parts, list[str]] = {}
            for given, path in self.parts.items():
                found.setdefault(path[-length:], []).append(given)
            self._by_end[length] = found
        path = self.parts[name]
        return next(other for other in self._by_end[length][path[-length:]] if self.parts[other] != path)


def _match_end(name: str, known: _Names, places: Sequence[Sequence[Path]], listings: _Listings) -> Match:
    path, end = known.parts[name], known.telling_end(name)
    for length in range(len(path), 0, -1):
        for folders in places:
            files = _without_copies([file for folder in folders for file in listings.files(folder, path[-length:])])
            if files and length < known.lengths[path]:
                return Match(None, _shared(files[0], name, known.other(name, length), places[0][0] / end), end)
            if len(files) > 1:
                shown = " and ".join(map(str, files[:2]))
                return Match(None, f"{shown} both match {name}, but differ: keep only the right one", end)
            if files:
                return Match(files[0], "", end)
    return Match(None, "", end)


def _shared(file: Path, name: str, other: str, place: Path) -> str:
    return f"{file} could be {name} or {other}; put the former at {place}"


def _without_copies(files: Sequence[Path]) -> list[Path]:
    """Returns the files that are not copies of an earlier one."""
    kept: list[Path] = []
    for file in dict.fromkeys(files):
        if not any(_are_copies(file, other) for other in kept):
            kept.append(file)
    return kept


def _are_copies(first: Path, second: Path | None) -> bool:
    if second is None or first == second:
        return first == second
    return os.path.getsize(first) == os.path.getsize(second) and ends_checksum(first) == ends_checksum(second)


def _without_shared(found: dict[str, Match], known: _Names, base: Path) -> dict[str, Match]:
    """Returns the matches without files that match several names; a repeated name counts once."""
    users: dict[Path, dict[_Parts, str]] = {}
    for name, match in found.items():
        if match.file:
            users.setdefault(match.file, {}).setdefault(known.parts[name], name)
    kept = {}
    for name, match in found.items():
        of_file = users.get(match.file, {}) if match.file else {}
        others = [other for path, other in of_file.items() if path != known.parts[name]]
        if match.file and others and not all(found[other].is_exact for other in (name, *others)):
            match = Match(None, _shared(match.file, name, others[0], base / match.end), match.end)
        kept[name] = match
    return kept
