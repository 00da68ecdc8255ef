"""How poses are drawn: what the user chooses, and the sizes and colours that follow from the video."""

import dataclasses

import numpy as np

from jaxpose.errors import UserError

# FFmpeg's numbers.
BT709, FULL_RANGE = 1, 2
# Shares of red and blue in the brightness: of BT.709, and of BT.601, for which readers take files that do not say.
_WEIGHTS = {True: (0.2126, 0.0722), False: (0.299, 0.114)}


@dataclasses.dataclass(frozen=True)
class Style:
    """What the user chooses.

    Attributes:
      trail: frames before the present one whose positions are drawn as a line.
      least_confidence: keypoints below are not drawn.
      edges: pairs of names of keypoints with a line between them.
    """

    trail: int = 0
    least_confidence: float = 0.0
    edges: tuple[tuple[str, str], ...] = ()

    def refuse_wrong_numbers(self) -> None:
        """Raises UserError for a number that cannot be drawn; names it as the flag of jaxpose draw."""
        if self.trail < 0:
            raise UserError(f"--trail is {self.trail}; it must be a number of frames, 0 for no trail")
        if not 0 <= self.least_confidence <= 1:
            raise UserError(f"--confidence is {self.least_confidence:g}; it must be 0 to 1")


def dot_radius_px(size_px: tuple[int, int]) -> int:
    """Returns the radius of a keypoint in frames of that (width, height)."""
    return max(2, round(min(size_px) / 100))


def to_yuv(rgb: np.ndarray, colorspace: int, color_range: int) -> np.ndarray:
    """Returns colours (..., 3) uint8 as a video with these tags stores them: brightness, blue and red difference.

    Args:
      rgb: (..., 3) 0 to 255.
      colorspace, color_range: FFmpeg's numbers.
    """
    of_red, of_blue = _WEIGHTS[colorspace == BT709]
    colours = np.asarray(rgb, np.float64) / 255
    luma = colours @ np.array([of_red, 1 - of_red - of_blue, of_blue])
    blue = (colours[..., 2] - luma) / (2 - 2 * of_blue)
    red = (colours[..., 0] - luma) / (2 - 2 * of_red)
    scaled = np.stack([luma, blue, red], axis=-1)
    if color_range == FULL_RANGE:
        found = scaled * 255 + [0, 128, 128]
    else:
        found = scaled * [219, 224, 224] + [16, 128, 128]
    return np.clip(np.rint(found), 0, 255).astype(np.uint8)
