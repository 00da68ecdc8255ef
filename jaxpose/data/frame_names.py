"""Finds the frame number in an image name, and stretches of consecutive frames.

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
# Label tools write img0042.png or frame42.png. Cameras write IMG_20261127_0042.JPG, which begins with a date.
_NAMED = re.compile("(?:img|[Ff]rame)[ _-]?([0-9]+)")


class FrameNames:
    """The image names of one folder. A place is the index of a number in a name, from 0, without the suffix."""

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
        """Returns the places in a name that may be the frame number, the likeliest first; [] without a number.

        The number after "img" or "frame" is the frame's if it varies or is the last. Otherwise it may be any number
        that alone varies among the names of the folder, most often the last.
        """
        starts = [match.start() for match in _numbers(name)]
        last = range(len(starts))[-1:]
        varying = sorted(self._varying.get(_shape(name), ()), reverse=True)
        named = [starts.index(match.start(1)) for match in _NAMED.finditer(name) if match.start(1) in starts]
        likely = [place for place in named if place in varying or place in last]
        return likely[-1:] or varying or list(last)

    def of_shape(self, name: str) -> list[str]:
        """Returns the names that differ from this only in numbers, including itself."""
        return self._of_shape.get(_shape(name), [])

    def number(self, name: str) -> int | None:
        """Returns the frame number at the likeliest place, None if the name has no number."""
        places = self.places(name)
        return number_at(name, places[0]) if places else None

    def renumbered(self, name: str, number: int) -> str:
        """Returns another frame's name by the likeliest place."""
        return renumbered(name, self.places(name)[0], number)


def frame_of(name: str) -> int | str:
    """Returns an image's identity in its folder, the same for img7.png and img00000007.png.

    It is the number of a name with only one number, otherwise the name without padding zeros.
    """
    numbers = _numbers(name)
    return int(numbers[0][0]) if len(numbers) == 1 else _NUMBER.sub(lambda match: str(int(match[0])), name)


def number_at(name: str, place: int) -> int:
    """Returns the number at a place of a name."""
    return int(_numbers(name)[place][0])


def renumbered(name: str, place: int, number: int) -> str:
    """Returns a name with another number, padded to the same width: img07.png, 0, 8 is img08.png."""
    match = _numbers(name)[place]
    return f"{name[: match.start()]}{str(number).zfill(len(match[0]))}{name[match.end() :]}"


def series(name: str, place: int) -> str:
    """Replaces the running number, whatever its length, with a mark: the same result for all frames of a series."""
    match = _numbers(name)[place]
    return f"{name[: match.start()]}#{name[match.end() :]}"


def _numbers(name: str) -> list[re.Match[str]]:
    return list(_NUMBER.finditer(name, 0, len(name) - len(PurePath(name).suffix)))


def _shape(name: str) -> str:
    return _NUMBER.sub("#", name)


# Compares pixels to check whether images with consecutive numbers show consecutive frames.
#
# Consecutive video frames are far more alike than frames of other moments. Pictures of several animals, or frames
# picked from a video and renumbered, are not.

# Part of the key of the notes: increase it when the comparison changes.
_VERSION = 1
# Cells along a side: an animal's position changes their mean levels; noise and compression hardly do.
_CELLS = 16
_PAIRS, _FEWEST_PAIRS = 8, 3
# Difference of consecutive frames relative to other moments: 0.04 to 0.42 in eight public videos of five tools; 0.92 in
# frames that were picked and renumbered.
_ALIKE_SHARE = 0.75
# If even other moments differ by fewer grey levels than this, the cells prove nothing.
_LEAST_LEVELS = 1.0


@dataclasses.dataclass(frozen=True)
class Likeness:
    """How much images with consecutive numbers differ.

    Attributes:
      near: median cell difference of consecutive images, in grey levels; NaN with too few pairs.
      far: the same for other images.
    """

    near: float = math.nan
    far: float = math.nan

    @property
    def is_known(self) -> bool:
        """Whether pixels decide."""
        return self.far >= _LEAST_LEVELS and not math.isnan(self.near)

    @property
    def is_refuted(self) -> bool:
        """Whether consecutive images differ as much as others."""
        return self.is_known and self.near > _ALIKE_SHARE * self.far


def find_likeness(files: Mapping[str, Path], place: int, radius: int) -> Likeness:
    """Compares a few images of one folder; the cache folder keeps the result.

    Args:
      files: {name: file} of images whose names differ only in numbers.
      place: of the running number, as in `FrameNames.places`.
      radius: images farther apart, or that differ in another number, are not neighbours.
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
        # On failure, it is computed again next time.
        with contextlib.suppress(OSError):
            cache.write_note(key, kept)
    return Likeness(*(math.nan if level is None else float(level) for level in kept))


def _are_near(one: tuple[str, int], other: tuple[str, int], radius: int) -> bool:
    return one[0] == other[0] and abs(one[1] - other[1]) <= radius


def _median_difference(cells: Mapping[str, np.ndarray | None], pairs: list[tuple[str, str]]) -> float | None:
    """Returns the median, over image pairs, of the mean cell difference; None with too few pairs."""
    found = [(cells[a], cells[b]) for a, b in pairs]
    differences = [float(np.abs(a - b).mean()) for a, b in found if a is not None and b is not None]
    return float(np.median(differences)) if len(differences) >= _FEWEST_PAIRS else None


def _read_cells(file: Path) -> np.ndarray | None:
    """Returns the mean grey levels (cells, cells) of an image, None if it does not decode."""
    try:
        # Stored orientation for all: only differences count.
        image = decode_image(read_bytes(file, most_bytes=None), PixelRule(STORED))
    except (OSError, UserError):
        return None
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    return cv2.resize(grey, (_CELLS, _CELLS), interpolation=cv2.INTER_AREA).astype(np.float64)


# Stretches of video: labelled frames that are close in time, by the numbers in their image names.

# Frames of a video at most this many numbers apart look alike: a sixth of a second at 30 frames per second.
NEAR_FRAMES = 5


def find_series(images: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the rows of the images of each video, in the order of their numbers, and the numbers.

    Args:
      images: n names with folders; an image without a number comes alone, with number 0.
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
    """Returns the rows of each stretch of video, in the order of their first rows in `rows`.

    A stretch ends if the next frame is more than NEAR_FRAMES later. Long ones are cut into equal parts.

    Args:
      images: n names with folders.
      rows: of the images to divide, in order.
      most: maximum length in frames, at least 1.
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
    """Returns, for each of m moments, the first in an order that has an identical image in any view: (m,) int.

    If all are the same, nothing can be separated, and each moment stands for itself.

    Args:
      pixel_checksums: n SHA-256 of image pixels.
      moments: (n,) the moment of each image.
      order: m moments; the first of identical ones stands for them.
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
