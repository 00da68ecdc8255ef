"""The animals of frames with several: their order, their boxes, and how many there are.

Each animal is a row of a training set, with a box around it. All boxes of a run have one size, so the network sees the
animals at one scale; a box is not moved into the frame, so its animal is always the one in the middle.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from jaxpose.data.boxes import centres_of_poses
from jaxpose.data.label_table import LabelTable
from jaxpose.poses import VISIBLE, Poses
from jaxpose.terminal import count

# The side of a box is this number times the body size.
BOX_RATIO = 1.6
# The body size is this percentile of the longest sides of the labelled poses.
_PERCENTILE = 95
# Images that are named.
_LISTED = 3


def row_name(image: str, animal: int) -> str:
    """Returns the name of the row of an image's animal, whose number begins at 1."""
    return f"{image}#{animal}"


def image_of_row(name: str) -> str:
    """Returns the image in a name from `row_name`."""
    return name.rpartition("#")[0]


def centres_px(points_px: np.ndarray, visibility: np.ndarray) -> np.ndarray:
    """Returns the middle (n, 2) of the outermost visible keypoints; without any, of those with a position.

    Args:
      points_px: (n, k, 2), NaN where missing; each row has a position.
      visibility: (n, k).
    """
    is_placed = np.isfinite(points_px).all(axis=-1)
    is_visible = is_placed & (visibility == VISIBLE)
    counts = np.where(is_visible.any(axis=1, keepdims=True), is_visible, is_placed)
    return centres_of_poses(points_px, counts.astype(float), 0.5)


def number_animals(table: LabelTable) -> tuple[LabelTable, tuple[int, ...]]:
    """Returns the table with the animals of each image ordered from left to right, and their numbers from 1.

    The order in the file does not matter. Animals without a position are left out.
    """
    entries = table.entries or tuple(range(len(table.poses.frames)))
    points, (_, visibility) = table.keypoints_image_px, table.poses.labels()
    centres, identity = centres_px(points, visibility), np.asarray(table.poses.identity)[:, 0].tolist()
    rows = np.flatnonzero(np.isfinite(centres[:, 0])).tolist()
    # Poses with one centre differ elsewhere.
    whole = np.nan_to_num(points.reshape(len(points), points.shape[1] * 2), nan=math.inf).tolist()
    rows.sort(key=lambda row: (entries[row], *centres[row].tolist(), whole[row], identity[row]))
    seen: Counter[int] = Counter()
    numbers = []
    for row in rows:
        seen[entries[row]] += 1
        numbers.append(seen[entries[row]])
    return table.at(rows), tuple(numbers)


def body_size_px(poses: Poses) -> float:
    """Returns the 95th percentile of the longest sides of labelled poses, in px."""
    points = poses.labels()[0]
    sides = (np.nanmax(points, axis=1) - np.nanmin(points, axis=1)).max(axis=1)
    return float(np.percentile(sides, _PERCENTILE))


def place_names(animals: int) -> tuple[str, ...]:
    """Returns the names of the places of several animals in a table, () for one animal."""
    return tuple(f"animal{number}" for number in range(1, animals + 1)) if animals > 1 else ()


def places_of(moments: np.ndarray) -> np.ndarray:
    """Returns the number (n,) of each animal in its image, from 0.

    Args:
      moments: (n,), the number of the image of each animal, ascending from 0 without gaps.
    """
    return np.arange(len(moments)) - np.searchsorted(moments, moments)


def by_image(values: np.ndarray, moments: np.ndarray, most: int) -> np.ndarray:
    """Returns the values of the animals of each image, (images, most, ...): NaN, or 0 in integers, where one is absent.

    Args:
      values: (n, ...), of the animals.
      moments: as in `places_of`.
      most: the largest number of animals in an image.
    """
    absent = np.nan if values.dtype.kind == "f" else 0
    found = np.full((moments.max(initial=-1) + 1, most, *values.shape[1:]), absent, values.dtype)
    found[moments, places_of(moments)] = values
    return found


def boxes_px(poses: Poses, size_px: float) -> tuple[tuple[int, ...], ...]:
    """Returns the square box (x, y, width, height) around each pose; it may extend past the frame.

    Args:
      poses: n animals.
      size_px: the body size.
    """
    return tuple(map(tuple, boxes_around(centres_px(*poses.labels()), size_px).tolist()))


def boxes_around(centres_frame_px: np.ndarray, size_px: float) -> np.ndarray:
    """Returns the boxes (n, 4) of `boxes_px`, whole numbers, around centres (n, 2) of animals."""
    side = 2 * math.ceil(BOX_RATIO * size_px / 2)
    corners = np.floor(centres_frame_px - (side - 1) / 2 + 0.5).astype(int)
    return np.concatenate([corners, np.full_like(corners, side)], axis=1)


def describe_animals(names: Sequence[str], poses: Poses, most: int, without: int) -> list[str]:
    """Returns phrases about the animals of a project, for the user.

    Args:
      names: the image of each animal.
      poses: the animals.
      most: `data.animals`.
      without: number of images without animals.
    """
    counted, identity = Counter(names), np.asarray(poses.identity)[:, 0]
    of_images, few = np.array(list(counted.values())), [name for name, number in counted.items() if number < most]
    known = [poses.individuals[number] for number in sorted({*identity.tolist()} - {-1})]
    low, high = of_images.min(), of_images.max()
    some = f"{low} to {high} an image, median {np.median(of_images):g}" if low < high else f"{low} an image"
    lines = [
        f"{some}; data.animals={most}",
        f"identities: {', '.join(known)}" if known else "no identities",
    ]
    if known and (unknown := int((identity < 0).sum())):
        lines[-1] += f", and {count(unknown, 'animal')} without one"
    empty = "1 image without an animal counts" if without == 1 else f"{without:,} images without an animal count"
    # Projects list images before anybody has labelled them.
    doubt = ": if they are only not labelled yet, set data.unlabelled_animals=ignore" * (without > len(of_images))
    lines += [f"{empty} as empty{doubt}"] if without else []
    if few:
        verb, more = "has" if len(few) == 1 else "have", ", ..." * (len(few) > _LISTED)
        listed = f"{', '.join(few[:_LISTED])}{more}"
        lines.append(f"{count(len(few), 'image')} {verb} fewer than {most} ({listed}): are all animals labelled there?")
    return lines
