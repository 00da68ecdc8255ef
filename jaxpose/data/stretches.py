"""Stretches of video: labelled frames that lie close together in time, by the numbers in the names of their images."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

import numpy as np

from jaxpose.data.frame_names import FrameNames, number_at, series

# Frames of a video that are at most so many numbers apart look alike: a sixth of a second at 30 frames per second.
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
