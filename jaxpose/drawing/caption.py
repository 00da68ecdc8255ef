"""The lines below a frame: its number, its time, and the names of the keypoints behind dots of their colours.

They lie below the frame, not on it, so that they cover no animal.
"""

from collections.abc import Sequence

import cv2
import numpy as np

from jaxpose.drawing.planes import Planes, even
from jaxpose.drawing.style import to_yuv

_FONT = cv2.FONT_HERSHEY_SIMPLEX
# Of the font: a frame this wide has letters of scale 1.
_WIDTH_OF_SCALE_1_PX = 1600
_SMALLEST_SCALE, _LARGEST_SCALE = 0.4, 1.0
_WHITE = (255, 255, 255)


class Caption:
    """Draws the lines below the frames of a video.

    Args:
      keypoint_names: k names; characters that OpenCV's font lacks are drawn as question marks.
      colours: (k, 3) uint8 RGB.
      width_px: of the frames, even.
      last: number of the last frame.
      last_s: its time in seconds.
      tags: colorspace and color range of the video, FFmpeg's numbers.

    Attributes:
      height_px: of all lines together, even.
    """

    def __init__(
        self,
        keypoint_names: Sequence[str],
        colours: np.ndarray,
        width_px: int,
        last: int,
        last_s: float,
        tags: tuple[int, int],
    ) -> None:
        self._scale = min(max(width_px / _WIDTH_OF_SCALE_1_PX, _SMALLEST_SCALE), _LARGEST_SCALE)
        self._thickness = max(1, round(self._scale))
        self._gap_px, self._line_px = self._size_px("m")[0], round(1.4 * self._size_px("Ag")[1])
        self._letter_px = cv2.getTextSize("x", _FONT, self._scale, self._thickness)[0][1]
        self._dot_px = max(2, self._line_px // 6)
        names = [self._shortened(" ".join(name.split()), width_px) for name in keypoint_names]
        widths_px = [self._size_px(text)[0] for text in (_number(last), clock(last_s))]
        places = self._flow([*widths_px, *(self._size_px(name)[0] + 4 * self._dot_px for name in names)], width_px)
        self._number_at, self._time_at = places[:2]
        self.height_px = even(places[-1][1] + self._line_px // 2)
        image = np.zeros((self.height_px, width_px, 3), np.uint8)
        for name, colour, (x, y) in zip(names, colours.tolist(), places[2:], strict=True):
            # White letters: some of the colours are too dark to be read on black.
            self._write(image, name, (x + 4 * self._dot_px, y), _WHITE)
            centre = x + self._dot_px, y - self._letter_px // 2
            cv2.circle(image, centre, self._dot_px, colour, cv2.FILLED, cv2.LINE_AA)
        yuv = to_yuv(image, *tags)
        half = cv2.resize(yuv, (width_px // 2, self.height_px // 2), interpolation=cv2.INTER_AREA)
        self._planes = [np.ascontiguousarray(yuv[..., 0]), half[..., 1], half[..., 2]]
        self._white = int(to_yuv(np.array(_WHITE), *tags)[0])

    def paint(self, planes: Planes, number: int, time_s: float) -> None:
        """Draws the lines of a frame at the lower end of its planes."""
        luma = self._planes[0].copy()
        for text, place in ((_number(number), self._number_at), (clock(time_s), self._time_at)):
            self._write(luma, text, place, [self._white])
        for plane, lines in zip(planes, (luma, *self._planes[1:]), strict=True):
            plane[-len(lines) :] = lines

    def _write(self, image: np.ndarray, text: str, place: tuple[int, int], colour: Sequence[int]) -> None:
        cv2.putText(image, text, place, _FONT, self._scale, colour, self._thickness, cv2.LINE_AA)

    def _size_px(self, text: str) -> tuple[int, int]:
        """Returns (width, height) of a text, with what lies below the line."""
        (width, height), below = cv2.getTextSize(text, _FONT, self._scale, self._thickness)
        return width, height + below

    def _shortened(self, name: str, width_px: int) -> str:
        """Returns a name that fits into a line of its own."""
        most = width_px - 2 * self._gap_px - 4 * self._dot_px
        if self._size_px(name)[0] <= most:
            return name
        while len(name) > 1 and self._size_px(f"{name}..")[0] > most:
            name = name[:-1]
        return f"{name}.."

    def _flow(self, widths_px: Sequence[int], width_px: int) -> list[tuple[int, int]]:
        """Returns where texts of these widths begin (x, y of the base line), from left to right and line by line."""
        x, y, places = self._gap_px, self._line_px, []
        for width in widths_px:
            if x > self._gap_px and x + width > width_px - self._gap_px:
                x, y = self._gap_px, y + self._line_px
            places.append((x, y))
            x += width + self._gap_px
        return places


def clock(time_s: float) -> str:
    """Returns a time as minutes:seconds, with hours where it has any: 0:07.480, 1:02:00.000."""
    milliseconds = round(1000 * time_s)
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest // 1000:02}.{rest % 1000:03}"
    return f"{hours}:{minutes:02}:{seconds}" if hours else f"{minutes}:{seconds}"


def _number(frame: int) -> str:
    return f"frame {frame}"
