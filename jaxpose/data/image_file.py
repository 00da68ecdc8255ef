"""Image files: checks that they are intact, and returns their size and their pixels as 8-bit RGB."""

import dataclasses
import hashlib
from typing import NamedTuple

import av
import cv2
import numpy as np
from av.error import FFmpegError, PatchWelcomeError

from jaxpose.data import tiff_tags
from jaxpose.data.orientation import NORMAL, describe, read_orientation, turn_back, turn_upright, upright_size_px
from jaxpose.data.white import WHOLE_RANGE, ValueRange, range_of, to_8_bits
from jaxpose.errors import UserError

# Versions of the programs that decide whether an image is intact, and of how they are asked.
DECODERS = (3, cv2.__version__, av.__version__, *sorted(av.library_versions.items()))
MIN_SIDE_PX, MAX_PIXELS = 2, 2**28
AUTO, UPRIGHT, STORED = "auto", "upright", "stored"
_JPEG = b"\xff\xd8\xff"
_NOT_INTACT = "the image does not decode: it is cut short, damaged or no image"
_8_BITS = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
# Files whose values OpenCV returns as they are: PNG, PNM and PFM, Radiance. Others state how many bits count.
_ANY_DEPTH = (b"\x89PNG", b"P", b"#?")


@dataclasses.dataclass(frozen=True)
class PixelRule:
    """How files become pixels, the same for labelled images and for images to predict.

    Attributes:
      orientation: "upright" turns an image as its EXIF orientation says, "stored" does not, "auto" refuses one that has
        another orientation than 1.
      white: the value that becomes white in images of more than 8 bits; 0 if it is unknown, see `white.to_8_bits`.
    """

    orientation: str = AUTO
    white: float = 0.0


class ImageFacts(NamedTuple):
    """What an intact file holds.

    Attributes:
      stored_px: (width, height) of its stored pixels.
      stored_checksum: SHA-256 of its stored pixels, hexadecimal: equal for equal pictures, whatever the files are.
      upright_checksum: likewise, of the pixels turned as the EXIF orientation says.
      orientation: its EXIF orientation.
      values: those of an image of more than 8 bits.
    """

    stored_px: tuple[int, int]
    stored_checksum: str
    upright_checksum: str
    orientation: int = NORMAL
    values: ValueRange | None = None

    def size_px(self, orientation: str) -> tuple[int, int]:
        """Returns (width, height) of the pixels by `PixelRule.orientation`."""
        return upright_size_px(self.stored_px, self.orientation) if orientation == UPRIGHT else self.stored_px

    def pixel_checksum(self, orientation: str) -> str:
        """Returns the SHA-256 of the pixels by `PixelRule.orientation`."""
        return self.upright_checksum if orientation == UPRIGHT else self.stored_checksum


def image_facts(content: bytes) -> ImageFacts:
    """Returns what an intact image file holds: it is decoded, with all of its checksums and pixels.

    Raises:
      UserError: as `decode_image`; or a side is below MIN_SIDE_PX, or the image has more than MAX_PIXELS pixels.
    """
    pixels, orientation = decode_values(content), read_orientation(content)
    height, width = pixels.shape[:2]
    if min(width, height) < MIN_SIDE_PX or width * height > MAX_PIXELS:
        raise UserError(
            f"the image has {width} x {height} pixels; both sides must have at least {MIN_SIDE_PX}, and it at most "
            f"{MAX_PIXELS} in all"
        )
    values, is_negative, is_upright = range_of(pixels), _is_negative(content), _is_tiff(content)
    decoded = turned = _pixel_checksum(pixels, is_negative)
    if orientation != NORMAL:
        turned = _pixel_checksum((turn_back if is_upright else turn_upright)(pixels, orientation), is_negative)
    stored_px = upright_size_px((width, height), orientation) if is_upright else (width, height)
    checksums = (turned, decoded) if is_upright else (decoded, turned)
    return ImageFacts(stored_px, *checksums, orientation, values)


def _pixel_checksum(pixels: np.ndarray, is_negative: bool) -> str:
    """Returns the SHA-256 of the values (height, width, 3) of an image, in which 0 may be white."""
    digest = hashlib.sha256(repr((pixels.shape, pixels.dtype.str, is_negative)).encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()


def values_of(content: bytes) -> ValueRange | None:
    """Returns the values of an image file that `decode_image` has accepted; None if it has 8 bits."""
    is_deep = bool(_deep_tiff(content)) or content.startswith(_ANY_DEPTH)
    return range_of(decode_values(content, is_known=True)) if is_deep else None


def decode_image(content: bytes, rule: PixelRule = PixelRule(), is_known: bool = False) -> np.ndarray:
    """Returns the pixels (height, width, 3) uint8 RGB of an image file.

    Grey, palette and CMYK images become RGB, transparency is dropped, and more than 8 bits become 8.

    Args:
      content: of the file.
      rule: which orientation the pixels have, and which value becomes white.
      is_known: the content was found intact before, so a JPEG file is not checked for missing pixels again.

    Raises:
      UserError: it is not an image, is cut short or damaged, is a JPEG file of a kind that cannot be checked, or the
        rule does not fit it.
    """
    orientation = read_orientation(content)
    if orientation != NORMAL and rule.orientation == AUTO:
        raise UserError(
            f"the image has {describe(orientation)}, and nothing says whether pixels are counted in the upright or in "
            "the stored picture; give data.orientation=upright or data.orientation=stored, or save the image upright"
        )
    pixels = to_8_bits(decode_values(content, is_known, rule.white in (0, WHOLE_RANGE)), rule.white)
    if _is_negative(content):
        pixels = 255 - pixels
    # OpenCV turns TIFF files upright, whatever it is told.
    is_upright = _is_tiff(content)
    if orientation == NORMAL or is_upright == (rule.orientation == UPRIGHT):
        return pixels
    return (turn_back if is_upright else turn_upright)(pixels, orientation)


def decode_values(content: bytes, is_known: bool = False, is_whole_range: bool = False) -> np.ndarray:
    """Returns the values (height, width, 3) RGB of an image file, of any type; of TIFF files the upright ones.

    Args:
      content: of the file.
      is_known: as in `decode_image`.
      is_whole_range: the values use the whole range of their type, so the result may have 8 bits already.

    Raises:
      UserError: as `decode_image`.
    """
    if not content:
        raise UserError("the image file is empty")
    # First FFmpeg: OpenCV's library prints a line of its own about a damaged JPEG file.
    if content.startswith(_JPEG) and not is_known:
        _refuse_damaged_jpeg(content)
    flags = _8_BITS
    if tags := _deep_tiff(content):
        flags = _8_BITS if is_whole_range and _becomes_8_bits(tags) else cv2.IMREAD_UNCHANGED
    elif content.startswith(_ANY_DEPTH):
        flags |= cv2.IMREAD_ANYDEPTH
    try:
        pixels = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    except cv2.error:
        pixels = None
    if pixels is None:
        raise UserError(_NOT_INTACT + ", or a TIFF file of an unusual kind (save that with 8 or 16 bits)" * bool(tags))
    if pixels.ndim == 2:
        return np.repeat(pixels[..., None], 3, axis=2)
    if pixels.dtype == np.uint8:
        return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    return np.ascontiguousarray(pixels[..., 2::-1])


def _is_tiff(content: bytes) -> bool:
    return bool(tiff_tags.read_tags(content))


def _deep_tiff(content: bytes) -> dict[int, int]:
    """Returns the tags of a TIFF file of more than 8 bits, {} for other files.

    Raises:
      UserError: OpenCV would read it wrongly.
    """
    tags = tiff_tags.read_tags(content)
    refuse_number_kind(tags)
    bits, channels = tags.get(tiff_tags.BITS, 1), tags.get(tiff_tags.CHANNELS, 1)
    if bits <= 8:
        return {}
    if channels == 2 or (channels > 1 and tags.get(tiff_tags.PLANES) == tiff_tags.SEPARATE):
        raise UserError(
            f"it is a TIFF file of {bits} bits with {channels} channels"
            f"{', each in a plane of its own' if channels > 2 else ''}; save it in grey, or in interleaved RGB"
        )
    return tags


def refuse_number_kind(tags: dict[int, int]) -> None:
    """Raises UserError if a TIFF file with these tags holds numbers that OpenCV does not read, or reads wrongly."""
    bits, kind = tags.get(tiff_tags.BITS, 1), tags.get(tiff_tags.SAMPLE_FORMAT, tiff_tags.WHOLE_NUMBERS)
    if kind == tiff_tags.FLOATS and bits < 32:
        raise UserError(
            f"it is a TIFF file of {bits}-bit floating-point numbers; save it with those of 32 bits, or with whole "
            "numbers of 8 or 16 bits"
        )
    if kind == tiff_tags.SIGNED and bits == 8:
        raise UserError("it is a TIFF file of signed 8-bit numbers, -128 to 127; save it with those from 0 to 255")


def _becomes_8_bits(tags: dict[int, int]) -> bool:
    """Returns whether OpenCV rounds a TIFF file in colour to 8 bits, which differs by 1 from its upper 8 bits."""
    is_16_bit = tags[tiff_tags.BITS] == 16 and tags.get(tiff_tags.SAMPLE_FORMAT, 1) == tiff_tags.WHOLE_NUMBERS
    # With tiles, it does so wrongly.
    return is_16_bit and tags.get(tiff_tags.CHANNELS, 1) > 2 and tiff_tags.TILE_WIDTH not in tags


def _is_negative(content: bytes) -> bool:
    """Returns whether 0 is white in the values that `decode_values` returns; OpenCV inverts those of 8 bits itself."""
    tags = _deep_tiff(content)
    return bool(tags) and tags.get(tiff_tags.PHOTOMETRIC) == tiff_tags.WHITE_IS_ZERO


def _refuse_damaged_jpeg(content: bytes) -> None:
    """Raises UserError if pixels are missing: OpenCV makes them grey, FFmpeg can be told to fail."""
    decoder = av.CodecContext.create("mjpeg", "r")
    decoder.options, decoder.thread_count = {"err_detect": "explode"}, 1
    try:
        frames = decoder.decode(av.Packet(content)) + decoder.decode(None)
    except PatchWelcomeError:
        return  # a colour space that FFmpeg does not know
    except FFmpegError:
        frames = []
    if not frames:
        raise UserError(f"{_NOT_INTACT}, or a JPEG file with arithmetic coding (save that as PNG)")
