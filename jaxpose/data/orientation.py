"""The orientation that an image file states: how its stored pixels must be turned to be seen upright.

JPEG, PNG and WebP files have it in EXIF data, TIFF files in a tag. Browsers and most viewers apply it; many programs
that read pixels do not.
"""

import struct

import numpy as np

from jaxpose.data.tiff_tags import ORIENTATION, read_tags

NORMAL = 1
_EXIF = b"Exif\0\0"
_JPEG, _PNG = b"\xff\xd8", b"\x89PNG\r\n\x1a\n"
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
    """Returns the orientation that an image file states, 2 to 8; NORMAL (1) if it states none or nothing known."""
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
    """Returns what has the form of a TIFF file in an image: the file itself, or its EXIF data; b"" without."""
    if content.startswith(_JPEG):
        at = len(_JPEG)
        # Segments, each with its length, up to the first scan.
        while content[at] == 0xFF and content[at + 1] != 0xDA:
            kind, length = struct.unpack_from(">xBH", content, at)
            if kind == 0xFF:  # a byte that fills
                at += 1
                continue
            if kind == 0xE1 and content.startswith(_EXIF, at + 4):
                return content[at + 4 + len(_EXIF) : at + 2 + length]
            at += 2 + length
        return b""
    if content.startswith(_PNG):
        at = len(_PNG)
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
