"""Image files: checks that they are intact, and returns their size and their pixels as 8-bit RGB."""

import struct
import zlib
from collections.abc import Iterator

import av
import cv2
import numpy as np
from av.error import FFmpegError, PatchWelcomeError

from jaxpose.errors import UserError

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
# Versions of the programs that check whether an image is intact, and of the checks below.
DECODERS = (1, cv2.__version__, av.__version__)
MIN_SIDE_PX, MAX_PIXELS = 2, 2**28
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_SCAN = 0xDA
# Baseline, extended and progressive with Huffman codes.
_FFMPEG_JPEG = frozenset((0xC0, 0xC1, 0xC2))


def image_size_px(content: bytes, is_known: bool = False) -> tuple[int, int]:
    """Returns (width, height) of an intact image file: it decodes, and its own checksums and markers are right.

    Args:
      content: of the file.
      is_known: the content was found intact before, so PNG and JPEG files are not decoded again.

    Raises:
      UserError: the file is not an image, is cut short or damaged, has a side below MIN_SIDE_PX or more than
        MAX_PIXELS pixels.
    """
    if not content:
        raise UserError("the image file is empty")
    try:
        if content.startswith(PNG):
            width, height = _png_size_px(memoryview(content))
        elif content.startswith(JPEG):
            width, height = _jpeg_size_px(content)
        else:
            height, width = decode_image(content).shape[:2]
            is_known = True
    except (struct.error, IndexError):
        raise UserError("the image file is cut short") from None
    if min(width, height) < MIN_SIDE_PX or width * height > MAX_PIXELS:
        raise UserError(
            f"the image has {width} x {height} pixels; both sides must have at least {MIN_SIDE_PX}, and it at most "
            f"{MAX_PIXELS} in all"
        )
    if not is_known:
        decode_image(content)
    return width, height


def decode_image(content: bytes, is_known: bool = False) -> np.ndarray:
    """Returns the pixels (height, width, 3) uint8 RGB of an image file.

    Grey, palette, CMYK and 16-bit images become 8-bit RGB, and transparency is dropped. EXIF rotation is ignored: label
    tools count pixels as they are stored.

    Args:
      content: of the file.
      is_known: the content was found intact before, so a JPEG file is not checked for missing pixels again.

    Raises:
      UserError: it does not decode, or a part of a JPEG file is missing or damaged.
    """
    try:
        if content.startswith(JPEG) and not is_known:
            _refuse_damaged_jpeg(content)
    except (struct.error, IndexError):
        raise UserError("the image file is cut short") from None
    try:
        pixels = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        pixels = None
    if pixels is None:
        raise UserError("the image does not decode")
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)


def _png_size_px(content: memoryview) -> tuple[int, int]:
    # https://www.w3.org/TR/png-3/#5Chunk-layout: length, type, data, checksum of type and data.
    size, position, kind = (0, 0), len(PNG), b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", content, position)
        end = position + 8 + length
        (checksum,) = struct.unpack_from(">I", content, end)
        if zlib.crc32(content[position + 4 : end]) != checksum:
            raise UserError(f"the image file is damaged (checksum of {kind.decode('latin-1')!r})")
        if kind == b"IHDR":
            width, height = struct.unpack_from(">II", content, position + 8)
            size = width, height
        position = end + 4
    return size


def _jpeg_size_px(content: bytes) -> tuple[int, int]:
    size, position = (0, 0), 0
    for marker, position in _jpeg_segments(content):
        if marker in _JPEG_SIZES:
            height, width = struct.unpack_from(">HH", content, position + 5)
            size = width, height
    # Inside a scan 0xFF is never followed by 0xD9.
    if content.find(b"\xff\xd9", position) < 0:
        raise UserError("the image file is cut short")
    return size


def _refuse_damaged_jpeg(content: bytes) -> None:
    """Raises UserError if pixels are missing: OpenCV makes them grey, FFmpeg can be told to fail."""
    if not any(marker in _FFMPEG_JPEG for marker, _ in _jpeg_segments(content)):
        return
    decoder = av.CodecContext.create("mjpeg", "r")
    decoder.options, decoder.thread_count = {"err_detect": "explode"}, 1
    try:
        frames = decoder.decode(av.Packet(content)) + decoder.decode(None)
    except PatchWelcomeError:
        return  # a colour space that FFmpeg does not know
    except FFmpegError:
        frames = []
    if not frames:
        raise UserError("the image file is cut short or damaged: a part of its pixels is missing")


def _jpeg_segments(content: bytes) -> Iterator[tuple[int, int]]:
    """Yields (marker, position) of each segment of a JPEG file, the header of its first scan last."""
    # ITU T.81, annex B: 0xFF, marker, length of the segment. Decoders skip bytes between segments.
    marker, position = 0, 2
    while marker != _JPEG_SCAN:
        while content[position] != 0xFF or content[position + 1] in (0x00, 0xFF):
            position += 1
        marker = content[position + 1]
        length = struct.unpack_from(">H", content, position + 2)[0]
        yield marker, position
        position += 2 + length
