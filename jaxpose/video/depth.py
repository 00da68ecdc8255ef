"""Videos of more than 8 bits per channel: their upper 8 bits become the pixels, by the depth that the file states."""

from av.video.frame import VideoFrame

# A format of 16 bits may hold values of fewer, which FFmpeg does not know.
_UNKNOWN_BITS = 16
# Between a black frame and one that uses more than 12 bits; colours are rounded.
_BLACK, _NEARLY_BLACK = 2**8, 2**12 + 64


def bits_of(frame: VideoFrame) -> int:
    """Returns the bits per channel of a decoded frame."""
    return max(component.bits for component in frame.format.components)


def is_nearly_black(frame: VideoFrame) -> bool:
    """Returns whether a frame of a 16-bit format uses 12 bits or fewer, so that its upper 8 bits look black."""
    if bits_of(frame) != _UNKNOWN_BITS:
        return False
    return _BLACK <= int(frame.reformat(format="rgb48le").to_ndarray().max()) < _NEARLY_BLACK


def describe_depth(path: object, bits: int) -> str:
    """Returns a sentence about a video of more than 8 bits, "" for others."""
    return f"{path}: of its {bits} bits per channel, the upper 8 are used" if bits > 8 else ""
