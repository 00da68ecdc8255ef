"""Checks that image files are intact, and returns their size and 8-bit RGB pixels."""

import dataclasses
import hashlib
import mmap
import struct
from collections.abc import Sequence
from typing import NamedTuple

import av
import cv2
import numpy as np
from av.error import FFmpegError, PatchWelcomeError

from jaxpose import MAX_PIXELS
from jaxpose.errors import UserError
from jaxpose.terminal import count

# Reads the tags of a TIFF file's first directory. EXIF data has the same form.

BITS, PHOTOMETRIC, ORIENTATION, CHANNELS, PLANES, TILE_WIDTH, SAMPLE_FORMAT = 258, 262, 274, 277, 284, 322, 339
# Values of PHOTOMETRIC, PLANES and SAMPLE_FORMAT.
WHITE_IS_ZERO, SEPARATE, WHOLE_NUMBERS, SIGNED, FLOATS = 0, 2, 1, 2, 3
# Letters of `struct` for the types short and long.
_LETTERS = {3: "H", 4: "I"}
_BYTE_ORDERS = {b"II": "<", b"MM": ">"}
# A directory has a few dozen entries; a damaged file may claim any number.
_MOST_ENTRIES = 4096


def read_tags(content: bytes | mmap.mmap) -> dict[int, int]:
    """Returns {tag: its first number} of a TIFF or BigTIFF file; {} for other content."""
    tags: dict[int, int] = {}
    order = _BYTE_ORDERS.get(content[:2])
    try:
        kind = struct.unpack_from(f"{order}H", content, 2)[0] if order else 0
        if kind == 42:
            _read_directory(content, f"{order}I", 4, f"{order}H", f"{order}HHI", tags)
        elif kind == 43:
            _read_directory(content, f"{order}Q", 8, f"{order}Q", f"{order}HHQ", tags)
    except struct.error:
        pass  # the file ends early
    return tags


def _read_directory(
    content: bytes | mmap.mmap, offset: str, at: int, counter: str, entry: str, tags: dict[int, int]
) -> None:
    """Adds the tags of a directory.

    Args:
      content: the file.
      offset: `struct` format of an offset; a value that fits into its bytes replaces it.
      at: position of the directory's offset.
      counter, entry: formats of the number of entries, and of an entry without its value: tag, type, count.
      tags: {tag: first number} so far.
    """
    (place,) = struct.unpack_from(offset, content, at)
    (entries,) = struct.unpack_from(counter, content, place)
    head, inline = struct.calcsize(entry), struct.calcsize(offset)
    for number in range(min(entries, _MOST_ENTRIES)):
        start = place + struct.calcsize(counter) + number * (head + inline)
        tag, kind, count = struct.unpack_from(entry, content, start)
        if letter := _LETTERS.get(kind):
            value = entry[0] + letter
            is_inline = count * struct.calcsize(value) <= inline
            where = start + head if is_inline else struct.unpack_from(offset, content, start + head)[0]
            tags[tag] = struct.unpack_from(value, content, where)[0]


# The orientation in an image file: how to turn the stored pixels upright.
#
# JPEG, PNG and WebP files store it in EXIF data, TIFF files in a tag. Browsers and most viewers apply it; many other
# programs do not.

NORMAL = 1
_EXIF = b"Exif\0\0"
_JPEG_START, _PNG_START = b"\xff\xd8", b"\x89PNG\r\n\x1a\n"
_TURNS = {
    2: "mirrored left to right",
    3: "turned by 180 degrees",
    4: "mirrored top to bottom",
    5: "mirrored, and turned by 90 degrees counterclockwise",
    6: "turned by 90 degrees clockwise",
    7: "mirrored, and turned by 90 degrees clockwise",
    8: "turned by 90 degrees counterclockwise",
}


def read_orientation(content: bytes) -> int:
    """Returns the orientation in an image file, 2 to 8; NORMAL (1) if it is absent or unknown."""
    try:
        exif = _exif_of(content)
    except (struct.error, IndexError):
        return NORMAL  # the file ends early
    found = read_tags(exif).get(ORIENTATION, NORMAL)
    return found if found in _TURNS else NORMAL


def describe(orientation: int) -> str:
    """Returns an orientation in words: "EXIF orientation 6 (shown turned by 90 degrees clockwise)"."""
    return f"EXIF orientation {orientation} (shown {_TURNS[orientation]})"


def upright_size_px(size_px: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Returns (width, height) of the upright picture whose stored pixels have the size (width, height)."""
    return (size_px[1], size_px[0]) if orientation > 4 else size_px


def turn_upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Returns the upright picture (h', w', c) of stored pixels (h, w, c)."""
    rows_reversed, columns_reversed = orientation in (3, 4, 6, 7), orientation in (2, 3, 7, 8)
    pixels = pixels[:: -1 if rows_reversed else 1, :: -1 if columns_reversed else 1]
    return np.ascontiguousarray(pixels.swapaxes(0, 1) if orientation > 4 else pixels)


def turn_back(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Returns the stored pixels (h, w, c) of an upright picture (h', w', c)."""
    return turn_upright(pixels, {6: 8, 8: 6}.get(orientation, orientation))


def _exif_of(content: bytes) -> bytes:
    """Returns the part of an image file in TIFF form: the file itself, or its EXIF data; b"" without."""
    if content.startswith(_JPEG_START):
        at = len(_JPEG_START)
        # Segments with their lengths, up to the first scan.
        while content[at] == 0xFF and content[at + 1] != 0xDA:
            kind, length = struct.unpack_from(">xBH", content, at)
            if kind == 0xFF:  # a padding byte
                at += 1
                continue
            if kind == 0xE1 and content.startswith(_EXIF, at + 4):
                return content[at + 4 + len(_EXIF) : at + 2 + length]
            at += 2 + length
        return b""
    if content.startswith(_PNG_START):
        at = len(_PNG_START)
        while at < len(content):
            length, kind = struct.unpack_from(">I4s", content, at)
            if kind == b"eXIf":
                return content[at + 8 : at + 8 + length]
            at += 12 + length
        return b""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        at = 12
        while at < len(content):
            kind, length = struct.unpack_from("<4sI", content, at)
            if kind == b"EXIF":
                return content[at + 8 : at + 8 + length].removeprefix(_EXIF)
            at += 8 + length + length % 2
        return b""
    return content


# The value shown as white in images of more than 8 bits; black is 0.
#
# All images of a run share one value (`data.white`): with one per image, the same animal would be brighter in one frame
# than in the next.

# The white of a 16-bit file that uses its whole range.
WHOLE_RANGE = 65535.0
_WHITES = (255.0, 1023.0, 4095.0, 16383.0, WHOLE_RANGE)
_ADVICE = "save it with 8 bits, or train with the value that becomes white as data.white"
# Below this share of white, the brightest pixel looks black.
_DARK = 1 / 8


class ValueRange(NamedTuple):
    """The values of an image of more than 8 bits: the largest, and whether they are floats."""

    largest: float
    is_float: bool

    @property
    def are_fractions(self) -> bool:
        """Whether white must be 1."""
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
            f"to {largest:g}: no value is white in all of them; save them in one format"
        )
    if largest > WHOLE_RANGE:
        raise UserError(
            f"images hold values up to {largest:g}, more than 16 bits; give the value that becomes white as data.white"
        )
    return next(white for white in _WHITES if white >= largest)


def to_8_bits(pixels: np.ndarray, white: float) -> np.ndarray:
    """Returns pixels of any type as uint8: integers keep their upper 8 bits, values above white become 255.

    Args:
      pixels: the values; uint8 is returned as it is.
      white: the value that becomes white; 0 if unknown: the whole range of 16 bits, if the image uses it.

    Raises:
      UserError: values are negative or not finite, or their kind does not match white.
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
    """Returns a sentence about images of more than 8 bits ("" without any) and whether it is a warning.

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
        text += f"; all larger values, in {count(above, 'image')}, also become white"
    is_dark = largest < white * _DARK
    if is_dark:
        text += "; all of them are nearly black"
    return text, bool(above) or is_dark


# Versions of the code and libraries that decide whether an image is intact.
DECODERS = (3, cv2.__version__, av.__version__, *sorted(av.library_versions.items()))
MIN_SIDE_PX = 2
AUTO, UPRIGHT, STORED = "auto", "upright", "stored"
_JPEG = b"\xff\xd8\xff"
# Markers of JPEG files: the scan, forms of coding (0xC0 to 0xC2: Huffman), and segments that do not change the pixels:
# all of applications but the first and Adobe's, which name the colours, and comments.
_JPEG_SCAN = 0xDA
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_PLAIN = frozenset(range(0xC0, 0xC3))
_JPEG_METADATA = frozenset(range(0xE1, 0xF0)) - {0xEE} | {0xFE}
_NOT_INTACT = "the image does not decode: it is truncated, damaged or not an image"
_TOO_LARGE = f"the image has more than {MAX_PIXELS} pixels; save a part of it, or make it smaller"
_8_BITS = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
# First bytes of files whose values OpenCV returns unchanged: PNG, PNM and PFM, Radiance. Other files state the number
# of significant bits.
_ANY_DEPTH = (b"\x89PNG", b"P", b"#?")


@dataclasses.dataclass(frozen=True)
class PixelRule:
    """How files become pixels, the same for labelled images and for images to predict.

    Attributes:
      orientation: "upright" applies the EXIF orientation, "stored" ignores it, "auto" refuses an orientation other than
        1.
      white: the value that becomes white in images of more than 8 bits; 0 if unknown, see `to_8_bits`.
    """

    orientation: str = AUTO
    white: float = 0.0


class ImageFacts(NamedTuple):
    """Facts about an intact image file.

    Attributes:
      stored_px: (width, height) of its stored pixels.
      stored_checksum: hexadecimal SHA-256 of its stored pixels: equal for equal pictures in any file form.
      upright_checksum: the same with the EXIF orientation applied.
      orientation: its EXIF orientation.
      values: of an image of more than 8 bits.
    """

    stored_px: tuple[int, int]
    stored_checksum: str
    upright_checksum: str
    orientation: int = NORMAL
    values: ValueRange | None = None

    def size_px(self, orientation: str) -> tuple[int, int]:
        """Returns (width, height) of the pixels for an orientation."""
        return upright_size_px(self.stored_px, self.orientation) if orientation == UPRIGHT else self.stored_px

    def pixel_checksum(self, orientation: str) -> str:
        """Returns the SHA-256 of the pixels for an orientation."""
        return self.upright_checksum if orientation == UPRIGHT else self.stored_checksum


def image_facts(content: bytes) -> ImageFacts:
    """Decodes an intact image file and returns its facts, including all checksums.

    Raises:
      UserError: as `decode_image`; or a side is below MIN_SIDE_PX.
    """
    pixels, orientation = decode_values(content), read_orientation(content)
    height, width = pixels.shape[:2]
    # OpenCV lacks the limit if it was imported before jaxpose.
    if width * height > MAX_PIXELS:
        raise UserError(_TOO_LARGE)
    if min(width, height) < MIN_SIDE_PX:
        raise UserError(f"the image has {width} x {height} pixels; both sides must have at least {MIN_SIDE_PX}")
    values, is_negative, is_upright = range_of(pixels), _is_negative(content), _is_tiff(content)
    decoded = turned = _pixel_checksum(pixels, is_negative)
    if orientation != NORMAL:
        turned = _pixel_checksum((turn_back if is_upright else turn_upright)(pixels, orientation), is_negative)
    stored_px = upright_size_px((width, height), orientation) if is_upright else (width, height)
    checksums = (turned, decoded) if is_upright else (decoded, turned)
    return ImageFacts(stored_px, *checksums, orientation, values)


def _pixel_checksum(pixels: np.ndarray, is_negative: bool) -> str:
    """Returns the SHA-256 of an image's values (height, width, 3); is_negative: 0 is white."""
    digest = hashlib.sha256(repr((pixels.shape, pixels.dtype.str, is_negative)).encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()


def values_of(content: bytes) -> ValueRange | None:
    """Returns the values of an image file that `decode_image` accepted, None if it has 8 bits."""
    is_deep = bool(_deep_tiff(content)) or content.startswith(_ANY_DEPTH)
    return range_of(decode_values(content, is_known=True)) if is_deep else None


def decode_image(content: bytes, rule: PixelRule = PixelRule(), is_known: bool = False) -> np.ndarray:
    """Returns the pixels (height, width, 3) uint8 RGB of an image file.

    Converts grey, palette and CMYK images to RGB and more than 8 bits to 8; drops transparency.

    Args:
      content: of the file.
      rule: the orientation of the pixels, and the value that becomes white.
      is_known: the content was found intact before, so a JPEG file is not checked again for missing pixels.

    Raises:
      UserError: it is not an image, is truncated or damaged, is a kind of JPEG file that cannot be checked, or does not
        fit the rule.
    """
    orientation = read_orientation(content)
    if orientation != NORMAL and rule.orientation == AUTO:
        raise UserError(
            f"the image has {describe(orientation)}, and it is unknown whether pixels refer to the upright or "
            "the stored image; give data.orientation=upright or data.orientation=stored, or save the image upright"
        )
    pixels = to_8_bits(decode_values(content, is_known, rule.white in (0, WHOLE_RANGE)), rule.white)
    if _is_negative(content):
        pixels = 255 - pixels
    # OpenCV always turns TIFF files upright.
    is_upright = _is_tiff(content)
    if orientation == NORMAL or is_upright == (rule.orientation == UPRIGHT):
        return pixels
    return (turn_back if is_upright else turn_upright)(pixels, orientation)


def decode_values(content: bytes, is_known: bool = False, is_whole_range: bool = False) -> np.ndarray:
    """Returns the RGB values (height, width, 3) of an image file, of any type; TIFF files are turned upright.

    Args:
      content: of the file.
      is_known: as in `decode_image`.
      is_whole_range: the values use the whole range of their type, so the result may already have 8 bits.

    Raises:
      UserError: as `decode_image`.
    """
    if not content:
        raise UserError("the image file is empty")
    # FFmpeg first: OpenCV's library prints its own line about a damaged JPEG file.
    if content.startswith(_JPEG) and not is_known:
        refuse_damaged_jpeg(content)
    flags = _8_BITS
    if tags := _deep_tiff(content):
        flags = _8_BITS if is_whole_range and _becomes_8_bits(tags) else cv2.IMREAD_UNCHANGED
    elif content.startswith(_ANY_DEPTH):
        flags |= cv2.IMREAD_ANYDEPTH
    try:
        pixels = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    except cv2.error as error:
        if "MAX_IMAGE_PIXELS" in str(error):
            raise UserError(_TOO_LARGE) from None
        pixels = None
    if pixels is None:
        raise UserError(_NOT_INTACT + ", or a TIFF file of an unusual kind (save that with 8 or 16 bits)" * bool(tags))
    if pixels.ndim == 2:
        return np.repeat(pixels[..., None], 3, axis=2)
    if pixels.dtype == np.uint8:
        return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    return np.ascontiguousarray(pixels[..., 2::-1])


def plain_jpeg(content: bytes) -> bytes | None:
    """Returns a JPEG file without metadata: any program shows its stored pixels as `decode_image` does.

    The compressed data are unchanged. EXIF data, which may turn the picture, and colour profiles are left out.

    Returns:
      The file, or None if the content is not an 8-bit JPEG file in grey or in three colours with Huffman coding.
    """
    if not content.startswith(_JPEG):
        return None
    parts, at, is_plain = [_JPEG_START], len(_JPEG_START), False
    try:
        while content[at] == 0xFF:
            kind, length = struct.unpack_from(">xBH", content, at)
            if kind == 0xFF:  # a padding byte
                at += 1
                continue
            if kind == _JPEG_SCAN:
                return b"".join([*parts, content[at:]]) if is_plain else None
            if kind in _JPEG_FRAMES:
                bits, components = content[at + 4], content[at + 9]
                is_plain = kind in _JPEG_PLAIN and bits == 8 and components in (1, 3)
            if kind not in _JPEG_METADATA:
                parts.append(content[at : at + 2 + length])
            at += 2 + length
    except (struct.error, IndexError):
        pass  # the file ends early
    return None


def _is_tiff(content: bytes) -> bool:
    return bool(read_tags(content))


def _deep_tiff(content: bytes) -> dict[int, int]:
    """Returns the tags of a TIFF file with more than 8 bits, {} for others.

    Raises:
      UserError: OpenCV would read it wrongly.
    """
    tags = read_tags(content)
    refuse_number_kind(tags)
    bits, channels = tags.get(BITS, 1), tags.get(CHANNELS, 1)
    if bits <= 8:
        return {}
    if channels == 2 or (channels > 1 and tags.get(PLANES) == SEPARATE):
        raise UserError(
            f"it is a TIFF file of {bits} bits with {channels} channels"
            f"{', each in a plane of its own' if channels > 2 else ''}; save it in grey, or in interleaved RGB"
        )
    return tags


def refuse_number_kind(tags: dict[int, int]) -> None:
    """Raises UserError if these tags are of a TIFF file whose numbers OpenCV cannot read, or reads wrongly."""
    bits, kind = tags.get(BITS, 1), tags.get(SAMPLE_FORMAT, WHOLE_NUMBERS)
    if kind == FLOATS and bits < 32:
        raise UserError(
            f"it is a TIFF file of {bits}-bit floating-point numbers; save it with 32-bit floating-point numbers, or "
            "with whole numbers of 8 or 16 bits"
        )
    if kind == SIGNED and bits == 8:
        raise UserError(
            "it is a TIFF file of signed 8-bit numbers, -128 to 127; save it with unsigned numbers, 0 to 255"
        )


def _becomes_8_bits(tags: dict[int, int]) -> bool:
    """Returns whether OpenCV rounds a colour TIFF file to 8 bits; its upper 8 bits may differ by 1."""
    is_16_bit = tags[BITS] == 16 and tags.get(SAMPLE_FORMAT, 1) == WHOLE_NUMBERS
    # OpenCV does this wrongly for tiles.
    return is_16_bit and tags.get(CHANNELS, 1) > 2 and TILE_WIDTH not in tags


def _is_negative(content: bytes) -> bool:
    """Returns whether 0 is white in the values of `decode_values`; OpenCV itself inverts 8-bit values."""
    tags = _deep_tiff(content)
    return bool(tags) and tags.get(PHOTOMETRIC) == WHITE_IS_ZERO


def refuse_damaged_jpeg(content: bytes) -> None:
    """Raises UserError if pixels are missing: OpenCV makes them grey, FFmpeg can fail on them."""
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
