"""Finds the frame number in the name of an image, and stretches of consecutive frames.

A name may have several numbers: in mouse1_img0042.png, mouse1_img0090.png and mouse2_img0042.png, 42 and 90 are frames,
1 and 2 are mice.
"""

import contextlib
import dataclasses
import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath

import cv2
import numpy as np

from jaxpose import cache
from jaxpose.data.image_file import DECODERS, STORED, PixelRule, decode_image
from jaxpose.errors import UserError
from jaxpose.files import read_bytes

_NUMBER = re.compile("[0-9]+")
# Label tools write img0042.png, and frame42.png. Cameras write IMG_20261127_0042.JPG, which begins with a date.
_NAMED = re.compile("(?:img|[Ff]rame)[ _-]?([0-9]+)")


class FrameNames:
    """The names of the images of one folder. A place in a name counts its numbers from 0; the suffix has none."""

    def __init__(self, names: Iterable[str]):
        self._varying: dict[str, set[int]] = {}
        self._of_shape: dict[str, list[str]] = {}
        values: dict[tuple[int, str], str] = {}
        for name in names:
            self._of_shape.setdefault(_shape(name), []).append(name)
            for place, match in enumerate(_numbers(name)):
                rest = f"{name[: match.start()]}#{name[match.end() :]}"
                if values.setdefault((place, rest), match[0]) != match[0]:
                    self._varying.setdefault(_shape(name), set()).add(place)

    def places(self, name: str) -> list[int]:
        """Returns the places in a name that may be the frame's number, the likeliest first; [] without a number.

        The number after "img" or "frame" is the frame's, if it varies or is the last. Otherwise it may be any number
        that varies among the names of the folder while all else is equal, and is most often the last.
        """
        starts = [match.start() for match in _numbers(name)]
        last = range(len(starts))[-1:]
        varying = sorted(self._varying.get(_shape(name), ()), reverse=True)
        named = [starts.index(match.start(1)) for match in _NAMED.finditer(name) if match.start(1) in starts]
        likely = [place for place in named if place in varying or place in last]
        return likely[-1:] or varying or list(last)

    def of_shape(self, name: str) -> list[str]:
        """Returns the names that differ from one in their numbers only, including it."""
        return self._of_shape.get(_shape(name), [])

    def number(self, name: str) -> int | None:
        """Returns the number of the frame by the likeliest place, None if the name has no number."""
        places = self.places(name)
        return number_at(name, places[0]) if places else None

    def renumbered(self, name: str, number: int) -> str:
        """Returns the name of another frame by the likeliest place."""
        return renumbered(name, self.places(name)[0], number)


def frame_of(name: str) -> int | str:
    """Returns the identity of the frame of an image in its folder, so that img7.png and img00000007.png are the same.

    It is the number in a name that has only one, and otherwise the name, without zeros that pad its numbers.
    """
    numbers = _numbers(name)
    return int(numbers[0][0]) if len(numbers) == 1 else _NUMBER.sub(lambda match: str(int(match[0])), name)


def number_at(name: str, place: int) -> int:
    """Returns the number at a place of a name."""
    return int(_numbers(name)[place][0])


def renumbered(name: str, place: int, number: int) -> str:
    """Returns a name with another number, padded with as many zeros: img07.png, 0, 8 is img08.png."""
    match = _numbers(name)[place]
    return f"{name[: match.start()]}{str(number).zfill(len(match[0]))}{name[match.end() :]}"


def series(name: str, place: int) -> str:
    """Returns a name with a mark instead of the number that runs, and of its length: the same for all frames of it."""
    match = _numbers(name)[place]
    return f"{name[: match.start()]}#{name[match.end() :]}"


def _numbers(name: str) -> list[re.Match[str]]:
    return list(_NUMBER.finditer(name, 0, len(name) - len(PurePath(name).suffix)))


def _shape(name: str) -> str:
    return _NUMBER.sub("#", name)


# Checks by their pixels whether images with consecutive numbers show consecutive frames.
#
# Consecutive frames of a video are far more alike than frames of other moments. Pictures of several animals, or frames
# that were picked from a video and renumbered, are not.

# Part of the key of the notes: increase it when the comparison changes.
_VERSION = 1
# Cells along a side: their mean levels change with an animal's place, but hardly with noise and compression.
_CELLS = 16
_PAIRS, _FEWEST_PAIRS = 8, 3
# Difference of consecutive frames relative to that of other moments: 0.04 to 0.42 in eight public videos of five tools;
# 0.92 in frames that were picked and renumbered.
_ALIKE_SHARE = 0.75
# If even other moments differ by fewer grey levels than this, the cells are no evidence.
_LEAST_LEVELS = 1.0


@dataclasses.dataclass(frozen=True)
class Likeness:
    """How much images with consecutive numbers differ.

    Attributes:
      near: median difference of the cells of consecutive images, in grey levels; NaN with too few pairs.
      far: the same for images that are not consecutive.
    """

    near: float = math.nan
    far: float = math.nan

    @property
    def is_known(self) -> bool:
        """Whether pixels can tell."""
        return self.far >= _LEAST_LEVELS and not math.isnan(self.near)

    @property
    def is_refuted(self) -> bool:
        """Whether consecutive images differ as much as others do."""
        return self.is_known and self.near > _ALIKE_SHARE * self.far


def find_likeness(files: Mapping[str, Path], place: int, radius: int) -> Likeness:
    """Compares a few images of one folder; the result is kept in the cache folder.

    Args:
      files: {name: file} of images whose names differ in numbers only.
      place: of the number that runs, as `FrameNames.places` counts.
      radius: images that are farther apart, or differ in another number, are not neighbours.
    """
    frames = {name: (series(name, place), number_at(name, place)) for name in sorted(files)}
    pairs = [
        (name, after) for name, (_, number) in frames.items()
        if (after := renumbered(name, place, number + 1)) in files
    ]  # fmt: skip
    pairs = [pairs[at] for at in np.unique(np.linspace(0, len(pairs) - 1, _PAIRS).astype(int))] if pairs else []
    if len(pairs) < _FEWEST_PAIRS:
        return Likeness()
    firsts, seconds = zip(*pairs, strict=True)
    used = [files[name] for name in dict.fromkeys((*firsts, *seconds))]
    status = [(str(file), (known := file.stat()).st_size, known.st_mtime_ns) for file in used]
    key = hashlib.sha256(repr(("neighbours", _VERSION, DECODERS, place, radius, status)).encode()).hexdigest()
    kept = cache.read_note(key)
    if not isinstance(kept, list):
        cells = {name: _read_cells(files[name]) for name in dict.fromkeys((*firsts, *seconds))}
        apart = [(a, b) for a in firsts for b in seconds if not _are_near(frames[a], frames[b], radius)]
        kept = [_median_difference(cells, pairs), _median_difference(cells, apart)]
        # If it cannot be kept, it is made again the next time.
        with contextlib.suppress(OSError):
            cache.write_note(key, kept)
    return Likeness(*(math.nan if level is None else float(level) for level in kept))


def _are_near(one: tuple[str, int], other: tuple[str, int], radius: int) -> bool:
    return one[0] == other[0] and abs(one[1] - other[1]) <= radius


def _median_difference(cells: Mapping[str, np.ndarray | None], pairs: list[tuple[str, str]]) -> float | None:
    """Returns the median over pairs of images of the mean difference of their cells, None with too few pairs."""
    found = [(cells[a], cells[b]) for a, b in pairs]
    differences = [float(np.abs(a - b).mean()) for a, b in found if a is not None and b is not None]
    return float(np.median(differences)) if len(differences) >= _FEWEST_PAIRS else None


def _read_cells(file: Path) -> np.ndarray | None:
    """Returns the mean grey levels (cells, cells) of an image, None if it does not decode."""
    try:
        # All of them are as they are stored: only their differences count.
        image = decode_image(read_bytes(file, most_bytes=None), PixelRule(STORED))
    except (OSError, UserError):
        return None
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    return cv2.resize(grey, (_CELLS, _CELLS), interpolation=cv2.INTER_AREA).astype(np.float64)


# Stretches of video: labelled frames that are close together in time, by the numbers in the names of their images.

# Frames of a video that are at most this many numbers apart look alike: a sixth of a second at 30 frames per second.
NEAR_FRAMES = 5


def find_series(images: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the rows of images of one video, in the order of their numbers, and the numbers.

    Args:
      images: n names with folders; those whose names have no number come alone, with number 0.
    """
    folders: dict[str, list[str]] = {}
    for image in images:
        path = PurePosixPath(image)
        folders.setdefault(path.parent.as_posix(), []).append(path.name)
    names = {folder: FrameNames(of_folder) for folder, of_folder in folders.items()}
    rows: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row, image in enumerate(images):
        path = PurePosixPath(image)
        folder = path.parent.as_posix()
        places = names[folder].places(path.name)
        place = places[0] if places else None
        key = path.name if place is None else series(path.name, place)
        rows.setdefault((folder, key), []).append((0 if place is None else number_at(path.name, place), row))
    for found in rows.values():
        ordered = np.array(sorted(found))
        yield ordered[:, 1], ordered[:, 0]


def cut_stretches(images: Sequence[str], rows: np.ndarray, most: int) -> list[np.ndarray]:
    """Returns the rows of each stretch of video, in the order in which `rows` has the first of each.

    A stretch ends where the next frame is more than NEAR_FRAMES later. A long one is cut into equal parts.

    Args:
      images: n names with folders.
      rows: of images to divide, in their order.
      most: frames of a stretch, at least 1.
    """
    rank = np.full(len(images), len(images))
    rank[rows] = np.arange(len(rows))
    found: list[np.ndarray] = []
    names = [images[int(row)] for row in rows]
    for of_series, numbers in find_series(names):
        ends = np.flatnonzero(np.diff(numbers) > NEAR_FRAMES) + 1
        for stretch in np.split(rows[of_series], ends):
            found += np.array_split(stretch, -(-len(stretch) // most))
    return sorted(found, key=lambda stretch: rank[stretch].min())


def same_images(pixel_checksums: Iterable[str], moments: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Returns for each of m moments the first one in an order with an identical image, by any of its views: (m,) int.

    If all are the same, nothing can be kept apart, and each moment stands for itself.

    Args:
      pixel_checksums: n SHA-256 of the pixels of images.
      moments: (n,) the moment of each image.
      order: m moments; the first one of those that are the same stands for them.
    """
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    first = np.arange(len(order))

    def root(moment: int) -> int:
        while first[moment] != moment:
            moment = int(first[moment])
        return moment

    seen: dict[str, int] = {}
    for checksum, moment in zip(pixel_checksums, moments.tolist(), strict=True):
        one, other = root(seen.setdefault(checksum, moment)), root(moment)
        if one != other:
            keep, join = (one, other) if rank[one] < rank[other] else (other, one)
            first[join] = keep
    found = np.array([root(moment) for moment in range(len(order))])
    return np.arange(len(order)) if (found == found[0]).all() else found
