"""Whether images with consecutive numbers in their names show consecutive frames, as far as their pixels can tell.

Consecutive frames of a video are far more alike than frames of other moments. Pictures of several animals, or frames
that were picked from a video and numbered anew, are not.
"""

import contextlib
import dataclasses
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np

from jaxpose import cache
from jaxpose.data.frame_names import number_at, renumbered, series
from jaxpose.data.image_file import DECODERS, STORED, PixelRule, decode_image
from jaxpose.errors import UserError
from jaxpose.files import read_bytes

# Part of the key of the notes: increase it when the comparison changes.
_VERSION = 1
# Cells of a side: their mean levels change with an animal's place, hardly with noise and compression.
_CELLS = 16
_PAIRS, _FEWEST_PAIRS = 8, 3
# Differences of consecutive frames, as shares of those of other moments: 0.04 to 0.42 in eight public videos of five
# tools; 0.92 in frames that were picked and numbered anew.
_ALIKE_SHARE = 0.75
# Where even other moments differ by less than so many grey levels, the cells do not tell.
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
