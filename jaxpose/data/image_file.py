"""Image files: checks that they are intact, and returns their size and their pixels as 8-bit RGB."""

import av
import cv2
import numpy as np
from av.error import FFmpegError, PatchWelcomeError

from jaxpose.errors import UserError

# Versions of the programs that decide whether an image is intact, and of how they are asked.
DECODERS = (2, cv2.__version__, av.__version__, *sorted(av.library_versions.items()))
MIN_SIDE_PX, MAX_PIXELS = 2, 2**28
_JPEG = b"\xff\xd8\xff"
_NOT_INTACT = "the image does not decode: it is cut short, damaged or no image"


def image_size_px(content: bytes) -> tuple[int, int]:
    """Returns (width, height) of an intact image file: it is decoded, with all of its checksums and pixels.

    Raises:
      UserError: as `decode_image`; or a side is below MIN_SIDE_PX, or the image has more than MAX_PIXELS pixels.
    """
    height, width = decode_image(content).shape[:2]
    if min(width, height) < MIN_SIDE_PX or width * height > MAX_PIXELS:
        raise UserError(
            f"the image has {width} x {height} pixels; both sides must have at least {MIN_SIDE_PX}, and it at most "
            f"{MAX_PIXELS} in all"
        )
    return width, height


def decode_image(content: bytes, is_known: bool = False) -> np.ndarray:
    """Returns the pixels (height, width, 3) uint8 RGB of an image file.

    Grey, palette, CMYK and 16-bit images become 8-bit RGB, and transparency is dropped. EXIF rotation is ignored: label
    tools count pixels as they are stored.

    Args:
      content: of the file.
      is_known: the content was found intact before, so a JPEG file is not checked for missing pixels again.

    Raises:
      UserError: it is not an image, is cut short or damaged, or is a JPEG file of a kind that cannot be checked.
    """
    if not content:
        raise UserError("the image file is empty")
    # First FFmpeg: OpenCV's library prints a line of its own about a damaged JPEG file.
    if content.startswith(_JPEG) and not is_known:
        _refuse_damaged_jpeg(content)
    try:
        pixels = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        pixels = None
    if pixels is None:
        raise UserError(_NOT_INTACT)
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)


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
