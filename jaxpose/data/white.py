"""Which value becomes white in images of more than 8 bits; black is 0.

One value holds for all images of a run (`data.white`): if each image had its own, the same animal would be brighter in
one frame than in the next.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxpose.errors import UserError
from jaxpose.quantities import count

# Of a 16-bit file that uses its whole range.
WHOLE_RANGE = 65535.0
_WHITES = (255.0, 1023.0, 4095.0, 16383.0, WHOLE_RANGE)
_ADVICE = "save it with 8 bits, or train with the value that becomes white as data.white"
# Below this share of white, the brightest pixel looks black.
_DARK = 1 / 8


class ValueRange(NamedTuple):
    """The values of an image of more than 8 bits: the largest, and whether they are floating-point numbers."""

    largest: float
    is_float: bool

    @property
    def are_fractions(self) -> bool:
        """Whether white can only be 1."""
        return self.is_float and self.largest <= 1


def range_of(pixels: np.ndarray) -> ValueRange | None:
    """Returns the values of an image, None if it has 8 bits.

    Raises:
      UserError: some are negative or not finite.
    """
    if pixels.dtype == np.uint8:
        return None
    smallest, largest = float(pixels.min()), float(pixels.max())
    if np.isnan(largest):
        raise UserError("the image has pixels that are NaN; they must be finite and at least 0")
    if not (smallest >= 0 and largest < np.inf):
        raise UserError(f"the image has values from {smallest:g} to {largest:g}; they must be finite and at least 0")
    return ValueRange(largest, pixels.dtype.kind == "f")


def choose_white(ranges: Sequence[ValueRange]) -> float:
    """Returns the white of images of more than 8 bits, 0 without any.

    It is 1 for fractions, otherwise the largest value of 8, 10, 12, 14 or 16 bits that no image exceeds.

    Raises:
      UserError: there is no such value, or only some images have fractions.
    """
    if not ranges:
        return 0.0
    largest = max(values.largest for values in ranges)
    fractions = sum(values.are_fractions and values.largest > 0 for values in ranges)
    if fractions and largest <= 1:
        return 1.0
    if fractions:
        raise UserError(
            f"of the images of more than 8 bits, {count(fractions, 'image')} with fractions and others with values up "
            f"to {largest:g}: no value is white in all of them; save them in one form"
        )
    if largest > WHOLE_RANGE:
        raise UserError(
            f"images hold values up to {largest:g}, more than 16 bits; give the value that becomes white as data.white"
        )
    return next(white for white in _WHITES if white >= largest)


def to_8_bits(pixels: np.ndarray, white: float) -> np.ndarray:
    """Returns pixels of any type as uint8; whole numbers keep their upper 8 bits, larger values than white become 255.

    Args:
      pixels: the values; uint8 is returned as it is.
      white: the value that becomes white; 0 if it is unknown: the whole range of 16 bits, where the image uses it.

    Raises:
      UserError: the values are negative, not finite, or of another kind than white.
    """
    values = range_of(pixels)
    if values is None:
        return pixels
    is_whole_range = not values.is_float and WHOLE_RANGE * _DARK <= values.largest <= WHOLE_RANGE
    if not white and values.largest and not is_whole_range:
        raise UserError(
            f"the image holds {'floating-point ' * values.is_float}values up to {values.largest:g}, and the run has no "
            f"labelled image of more than 8 bits: {_ADVICE}"
        )
    if white > 1 and values.are_fractions and values.largest > 0:
        raise UserError(f"the image holds fractions up to {values.largest:g}, but data.white is {white:g}: save it in "
                        "the form of the images that the run is trained on")  # fmt: skip
    if 0 < white <= 1 and values.largest > 1:
        raise UserError(f"the image holds values up to {values.largest:g}, but data.white is {white:g}: save it in the "
                        "form of the images that the run is trained on")  # fmt: skip
    white = white or WHOLE_RANGE
    if values.is_float or white % 1:
        return np.minimum(np.rint(pixels * (255 / white)), 255).astype(np.uint8)
    return np.minimum(pixels.astype(np.uint64) * 256 // (int(white) + 1), 255).astype(np.uint8)


def describe_white(ranges: Sequence[ValueRange], white: float) -> tuple[str, bool]:
    """Returns a sentence about images of more than 8 bits, "" without any, and whether it is a warning.

    Args:
      ranges: of the images.
      white: as in `to_8_bits`; 0 only for images that use the whole range of 16 bits.
    """
    if not ranges:
        return "", False
    white = white or WHOLE_RANGE
    largest = max(values.largest for values in ranges)
    above = sum(values.largest > white for values in ranges)
    text = (
        f"{count(len(ranges), 'image')} of more than 8 bits: {white:g} becomes white (data.white), the largest value "
        f"is {largest:g}"
    )
    if above:
        text += f"; all larger values, in {count(above, 'image')}, become white too"
    is_dark = largest < white * _DARK
    if is_dark:
        text += "; all of them are nearly black"
    return text, bool(above) or is_dark
