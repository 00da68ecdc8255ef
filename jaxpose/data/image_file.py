"""Image files: their size without decoding them, and their pixels as 8-bit RGB."""

import struct
import zlib

import cv2
import numpy as np

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
MAX_PIXELS = 2**28
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_SCAN = 0xDA


def image_size_px(content: bytes) -> tuple[int, int]:
    """Returns (width, height) of an image file that is whole.

    PNG and JPEG files are checked by their own checksums and marks, so that reading a project decodes nothing; other
    formats are decoded.

    Raises:
      ValueError: it is not an image, is cut short or damaged, or has more than MAX_PIXELS pixels.
    """
    if not content:
        raise ValueError("the image file is empty")
    try:
        if content.startswith(PNG):
            width, height = _png_size_px(memoryview(content))
        elif content.startswith(JPEG):
            width, height = _jpeg_size_px(content)
        else:
            height, width = decode_image(content).shape[:2]
    except (struct.error, IndexError):
        raise ValueError("the image file is cut short") from None
    if not 0 < width * height <= MAX_PIXELS:
        raise ValueError(f"the image has {width} x {height} pixels; it must have 1 to {MAX_PIXELS}")
    return width, height


def decode_image(content: bytes) -> np.ndarray:
    """Returns the pixels (height, width, 3) uint8 RGB of an image file.

    Grey, palette, CMYK and 16-bit images become 8-bit RGB, transparency is dropped, and the turn that a camera notes in
    EXIF is not applied: label tools count pixels as they are stored.

    Raises:
      ValueError: it does not decode.
    """
    try:
        pixels = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        pixels = None
    if pixels is None:
        raise ValueError("the image does not decode")
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)


def _png_size_px(content: memoryview) -> tuple[int, int]:
    # https://www.w3.org/TR/png-3/#5Chunk-layout: length, type, data, checksum of type and data.
    size, position, kind = (0, 0), len(PNG), b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", content, position)
        end = position + 8 + length
        (checksum,) = struct.unpack_from(">I", content, end)
        if zlib.crc32(content[position + 4 : end]) != checksum:
            raise ValueError(f"the image file is damaged (checksum of {kind.decode('latin-1')!r})")
        if kind == b"IHDR":
            width, height = struct.unpack_from(">II", content, position + 8)
            size = width, height
        position = end + 4
    return size


def _jpeg_size_px(content: bytes) -> tuple[int, int]:
    # ITU T.81, annex B: 0xFF, marker, length of the segment. Inside a scan 0xFF is never followed by 0xD9.
    size, position = (0, 0), 2
    while True:
        if content[position] != 0xFF:
            raise ValueError("the image file is damaged (a mark of its header is missing)")
        marker = content[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        if marker == _JPEG_SCAN:
            break
        if marker in _JPEG_SIZES:
            height, width = struct.unpack_from(">HH", content, position + 5)
            size = width, height
        position += 2 + struct.unpack_from(">H", content, position + 2)[0]
    if content.find(b"\xff\xd9", position) < 0:
        raise ValueError("the image file is cut short")
    return size
