"""Checks of a labelled image: it must lie in the project, be intact, and contain its keypoints.

The cache folder keeps the checksums and facts of intact images, and these are not decoded again.
"""

import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from jaxpose import cache
from jaxpose.codes import VISIBLE
from jaxpose.data.image_file import DECODERS, ImageFacts, image_facts
from jaxpose.data.label_table import LabelTable
from jaxpose.data.outside_links import refuse_link_out_of_project
from jaxpose.data.white import ValueRange
from jaxpose.errors import UserError
from jaxpose.files import NotRegularFile, read_bytes

# Between the size of an image and its points outside, in the reason for which a row is refused.
OUTSIDE_OF_IT = " pixels; outside of it: "
_MARGIN_PX = 0.5
# Folders above that of the label file in which an absent image is looked for, for the message.
_ABOVE = 2


@dataclasses.dataclass(frozen=True)
class LabelledImage:
    """An intact image.

    Attributes:
      size_px: (width, height) of the pixels that the labels count.
      facts: what the file holds.
      byte_count: size of the file.
      checksum: its SHA-256, hexadecimal.
      pixel_checksum: SHA-256 of the pixels that the labels count: equal for equal pictures.
      box_px: (x, y, width, height) of the part that the network sees, () without boxes.
    """

    size_px: tuple[int, int]
    facts: ImageFacts
    byte_count: int
    checksum: str
    pixel_checksum: str
    box_px: tuple[int, ...] = ()


def check_image(path: Path, name: str, known: dict[str, ImageFacts]) -> LabelledImage:
    """Returns an image in stored pixels, and adds its facts to `known`; an image that is there is not decoded.

    Args:
      path: the file.
      name: of the image in its table; a path relative to the project, if it lies there.
      known: facts of intact images by their checksum.

    Raises:
      UserError: the name or a link leads out of the project, or the file cannot be read or is not intact.
    """
    parts = PurePosixPath(name).parts
    if name.startswith("/") or re.match(r"[A-Za-z]:", name) or ".." in parts:
        place = "/".join(
            ["labeled-data", *[part for part in parts if part not in ("/", "..") and part[1:] != ":"][-2:]]
        )
        raise UserError(f"{name} leaves the project folder, and the project has no such image: put it at {place} there")
    try:
        content = read_bytes(path, most_bytes=None)
    except (FileNotFoundError, NotADirectoryError):
        folder = str(path).removesuffix(name)
        is_below = folder != str(path)
        reason = f"{name} does not exist in {folder.rstrip('/')}" if is_below else f"{path} does not exist"
        for above in Path(folder).parents[:_ABOVE] if is_below else ():
            if (above / name).is_file():
                raise UserError(
                    f"{reason}, but in {above}: move the label file there; one in CSV can also stay, with "
                    f"data.project={above} and its name in data.labels"
                ) from None
        raise UserError(f"{reason}: put it there, or remove its labels") from None
    except (OSError, NotRegularFile) as error:
        raise UserError(f"{name} cannot be read: {error.strerror}") from None
    refuse_link_out_of_project(path, name)
    checksum = hashlib.sha256(content).hexdigest()
    try:
        facts = known.get(checksum) or image_facts(content)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    known[checksum] = facts
    return LabelledImage(facts.stored_px, facts, len(content), checksum, facts.stored_checksum)


def check_places(table: LabelTable, row: int, size_px: tuple[int, int], crop_px: tuple[int, ...]) -> None:
    """Raises UserError if the crop or a visible keypoint lies outside of an image of (width, height) px."""
    name, (width, height) = table.poses.frames[row], size_px
    if crop_px and (crop_px[0] + crop_px[2] > width or crop_px[1] + crop_px[3] > height):
        raise UserError(f"{name} has {width} x {height} pixels; data.crop_px = {crop_px} reaches beyond it")
    keypoints = table.keypoints_image_px[row]
    if outside := find_outside(keypoints, table.visibility[row], size_px):
        places = [name_place(table.poses.keypoint_names[k], keypoints[k]) for k in outside]
        raise UserError(f"{name} has {width} x {height}{OUTSIDE_OF_IT}{', '.join(places)}")


def find_outside(keypoints_px: np.ndarray, visibility: np.ndarray, size_px: tuple[int, int]) -> list[int]:
    """Returns the visible keypoints (k, 2) of a row that lie outside of its image of (width, height) px."""
    # An image of width w covers [-0.5, w - 0.5]; a label on its edge may be rounded outwards.
    low, high = -0.5 - _MARGIN_PX, np.array(size_px) - 0.5 + _MARGIN_PX
    outside = (visibility == VISIBLE) & ((keypoints_px < low) | (keypoints_px > high)).any(axis=-1)
    return np.flatnonzero(outside).tolist()


def name_place(name: str, point_px: np.ndarray) -> str:
    """Returns a keypoint and its place (2,), as the reason of a refused row has them."""
    return f"{name} ({point_px[0]:g}, {point_px[1]:g})"


def known_images(label_file: Path) -> dict[str, ImageFacts]:
    """Returns the facts by checksum of the images of a label file that were intact when it was last read."""
    noted = cache.read_note(_note_key(label_file))
    if not isinstance(noted, dict):
        return {}
    return {checksum: facts for checksum, value in noted.items() if (facts := _facts(value))}


def note_images(label_file: Path, noted: dict[str, ImageFacts], images: Iterable[LabelledImage]) -> None:
    """Keeps the checksums and facts of intact images for `known_images`, if there are new ones."""
    found = {image.checksum: image.facts for image in images}
    if not found.keys() <= noted.keys():
        # Without the note, images are decoded again.
        with contextlib.suppress(OSError):
            cache.write_note(_note_key(label_file), found)


def _facts(value: Any) -> ImageFacts | None:
    """Returns the facts of an image that a note has in the order of `ImageFacts`; None if it has others."""
    try:
        (width, height), stored, upright, orientation, values = value
        is_known = min(width, height) > 0 and orientation in range(1, 9) and type(stored) is type(upright) is str
        values = values and ValueRange(*values)
        return ImageFacts((width, height), stored, upright, orientation, values) if is_known else None
    except (TypeError, ValueError):
        return None


def _note_key(label_file: Path) -> str:
    return hashlib.sha256(repr(("intact images", DECODERS, str(label_file))).encode()).hexdigest()
