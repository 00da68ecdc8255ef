"""Draws the poses of a video: dots that fade with the confidence, the skeleton, and trails of earlier positions."""

import dataclasses
from collections.abc import Sequence

import cv2
import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter

from jaxpose.errors import UserError
from jaxpose.poses import Poses
from jaxpose.video.file import TURNS

# The style of poses: the user's choices, and the sizes and colours that follow from the video.

# FFmpeg's numbers.
BT709, FULL_RANGE = 1, 2
# Weights of red and blue in the brightness: of BT.709, and of BT.601, which readers assume for untagged files.
_WEIGHTS = {True: (0.2126, 0.0722), False: (0.299, 0.114)}
# The radius of a dot on one of several animals is at most its length divided by this.
_DOTS = 20


COLOR_BY = INDIVIDUAL, KEYPOINT = "individual", "keypoint"


@dataclasses.dataclass(frozen=True)
class Style:
    """The user's choices.

    Attributes:
      trail: frames before the present one whose positions are drawn as a line.
      least_confidence: keypoints below are not drawn.
      edges: pairs of names of keypoints with a line between them.
      color_by: `INDIVIDUAL` or `KEYPOINT`, which a colour stands for; "": an individual, if there are several.
      animal_px: the usual length of one of several animals, which limits the size of the dots; 0 for one animal.
    """

    trail: int = 0
    least_confidence: float = 0.0
    edges: tuple[tuple[str, str], ...] = ()
    color_by: str = ""
    animal_px: float = 0.0

    def refuse_wrong_numbers(self) -> None:
        """Raises UserError for a number that cannot be drawn; names it as the flag of jaxpose draw."""
        if self.trail < 0:
            raise UserError(f"--trail is {self.trail}; it must be a number of frames, 0 for no trail")
        if not 0 <= self.least_confidence <= 1:
            raise UserError(f"--confidence is {self.least_confidence:g}; it must be 0 to 1")


def side_by_side(poses: Poses, style: Style) -> tuple[Poses, Style, tuple[str, ...], np.ndarray]:
    """Returns the keypoints of all individuals as those of one animal, and what their colours stand for.

    Returns:
      The keypoints, the style with their edges, the names of the colours, and the number of each keypoint's colour.
    """
    animals, keypoints = poses.points_px.shape[1:3]
    if animals == 1:
        return poses, style, poses.keypoint_names, np.arange(keypoints)
    names = tuple(f"{one} {name}" for one in poses.individuals for name in poses.keypoint_names)
    points, known = poses.points_px.reshape(len(poses.frames), len(names), 2), poses.confidence
    confidence = np.full(points.shape[:2], np.nan) if known is None else known.reshape(points.shape[:2])
    edges = tuple((f"{one} {a}", f"{one} {b}") for one in poses.individuals for a, b in style.edges)
    joined = Poses.of_one_animal(names, poses.frames, points, confidence)
    one, other = np.divmod(np.arange(len(names)), keypoints)
    shown = (poses.keypoint_names, other) if style.color_by == KEYPOINT else (poses.individuals, one)
    return joined, dataclasses.replace(style, edges=edges, animal_px=_usual_length_px(poses.points_px)), *shown


def _usual_length_px(points_px: np.ndarray) -> float:
    """Returns the median of the longest sides of the animals in (f, a, k, 2); 0 without an animal."""
    seen = points_px[np.isfinite(points_px[..., 0]).any(axis=2)]
    sides = np.nanmax(seen, axis=1) - np.nanmin(seen, axis=1)
    return float(np.median(sides.max(axis=1))) if len(seen) else 0.0


def dot_radius_px(size_px: tuple[int, int], animal_px: float) -> int:
    """Returns the radius of a keypoint in frames of that (width, height), with animals as in `Style`."""
    of_frame = min(size_px) / 100
    return max(2, round(min(of_frame, animal_px / _DOTS) if animal_px else of_frame))


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


# The planes of a frame in 4:2:0: poses are drawn on them as they are decoded, so no frame is converted to RGB and back.
#
# An H.264 frame needs even sides; a frame with an odd side gets a copy of its last column or row.

PIXELS = "yuv420p"
# The second name means the first format with the full range of values.
_COPIED = (PIXELS, "yuvj420p")
LIMITED_RANGE = 1

# Luma (h, w), blue and red difference (h / 2, w / 2), all uint8.
Planes = list[np.ndarray]


def is_copied(pixel_format: str | None) -> bool:
    """Returns whether frames of a pixel format are drawn as they are; others are converted, to the limited range."""
    return pixel_format in _COPIED


def even(side_px: int) -> int:
    """Returns a side, or the next one if it is odd."""
    return side_px + side_px % 2


def new_frame(width_px: int, height_px: int) -> tuple[VideoFrame, Planes]:
    """Returns a frame of any content, and its planes, which can be written to; both sides must be even."""
    frame = VideoFrame(width_px, height_px, PIXELS)
    return frame, _views(frame)


def copy_frame(source: VideoFrame, planes: Planes, converter: VideoReformatter, quarter_turns: int) -> None:
    """Copies a decoded frame into the top left of planes. The decoder still needs the frame, so it is not drawn on.

    Args:
      source: as decoded, in any pixel format.
      planes: those of a frame at least as large, after the quarter turns.
      converter: used for all frames of a video.
      quarter_turns: clockwise, 0 to 3.
    """
    if not is_copied(source.format.name):
        # The encoder needs the other cores.
        source = converter.reformat(source, format=PIXELS, dst_color_range=LIMITED_RANGE, threads=1)
    for plane, image in zip(planes, _views(source), strict=True):
        # The colours of a turned frame with an odd side move by up to a pixel, because their plane is also a copy.
        turned = cv2.rotate(image, TURNS[quarter_turns]) if quarter_turns else image
        height, width = turned.shape
        plane[:height, :width] = turned
        # Repeats the last column and row of an odd side. The lines below the frame are drawn later.
        plane[:height, width:] = turned[:, -1:]
        plane[height : height + 1] = plane[height - 1]


def _views(frame: VideoFrame) -> Planes:
    views = []
    for plane in frame.planes:
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
        views.append(rows[: plane.height, : plane.width])
    return views


# OpenCV takes subpixel positions in units of 1/16.
_SHIFT = 4
# A point more than this many frame sizes outside is not drawn: it would only be a line through the frame.
_FAR_FRAMES = 2


class PosePainter:
    """Draws on frames of one size.

    Marks are drawn without their transparency on a layer of luma, two colour differences and opacity, each of the first
    three multiplied by the last; then the marked part of the layer is laid over the frame.

    Args:
      poses: for the frames of the video, with one animal each.
      colours_yuv: (k, 3) uint8, of each keypoint.
      size_px: (width, height) of the frames.
      style: the user's choices; an edge with a name that is not in the predictions is not drawn.
    """

    def __init__(self, poses: Poses, colours_yuv: np.ndarray, size_px: tuple[int, int], style: Style) -> None:
        names = poses.keypoint_names
        edges = [(names.index(a), names.index(b)) for a, b in style.edges if a in names and b in names]
        self._edges = np.array(edges, np.int64).reshape(-1, 2).T
        self._radius_px, self._trail = dot_radius_px(size_px, style.animal_px), style.trail
        (points, confidence), size = poses.one_animal(), np.array(size_px)
        is_near = np.all((points > -_FAR_FRAMES * size) & (points < (1 + _FAR_FRAMES) * size), axis=-1)
        # A label of a person has no confidence.
        confidence = np.where(np.isnan(confidence), 1.0, np.clip(confidence, 0, 1))
        opacity = np.where(is_near & (confidence >= style.least_confidence), confidence, 0)
        self._opacity = np.rint(255 * opacity).astype(np.uint8)
        self._points = np.rint(np.where(is_near[..., None], points, 0) * 2**_SHIFT).astype(np.int32)
        self._colours = np.concatenate([colours_yuv, np.full((len(colours_yuv), 1), 255)], axis=1) / 255.0
        self._layer = np.zeros((even(size_px[1]), even(size_px[0]), 4), np.uint8)

    def paint(self, planes: Planes, number: int) -> None:
        """Draws the pose of a frame, by its number, on its planes."""
        first = max(0, number - self._trail)
        box = self._box_px(first, number)
        if box is None:
            return
        left, top, right, bottom = box
        if self._trail:
            self._draw_trails(first, number)
        self._draw_edges(number)
        self._draw_dots(number)
        part = self._layer[top:bottom, left:right]
        luma, _, _, opaque = cv2.split(part)
        _lay_over(planes[0][top:bottom, left:right], luma, opaque)
        half = cv2.resize(part, ((right - left) // 2, (bottom - top) // 2), interpolation=cv2.INTER_AREA)
        _, blue, red, opaque = cv2.split(half)
        for plane, layer in zip(planes[1:], (blue, red), strict=True):
            _lay_over(plane[top // 2 : bottom // 2, left // 2 : right // 2], layer, opaque)
        part[:] = 0

    def _box_px(self, first: int, number: int) -> tuple[int, int, int, int] | None:
        """Returns (left, top, right, bottom), all even, of the part of the frame that has marks; None if none has."""
        points = self._points[first : number + 1][self._opacity[first : number + 1] > 0]
        if not len(points):
            return None
        margin = self._radius_px + 3
        height, width = self._layer.shape[:2]
        low, high = (points.min(axis=0) >> _SHIFT) - margin, (points.max(axis=0) >> _SHIFT) + margin
        left, top = (int(side) // 2 * 2 for side in np.clip(low, 0, (width, height)))
        right, bottom = (even(int(side)) for side in np.clip(high, 0, (width, height)))
        return (left, top, right, bottom) if left < right and top < bottom else None

    def _draw_trails(self, first: int, number: int) -> None:
        """Draws lines through the earlier positions, which fade with their age and with the confidence."""
        width_px, every = max(1, self._radius_px // 2), np.arange(len(self._colours))
        for frame in range(first, number):
            share = 1 - (number - frame) / (self._trail + 1)
            opacity = np.minimum(self._opacity[frame], self._opacity[frame + 1]) * share
            self._draw_lines(self._points[frame], self._points[frame + 1], opacity, every, width_px)

    def _draw_edges(self, number: int) -> None:
        """Draws each edge with the colour of either keypoint up to its middle."""
        here, there = self._edges
        points, opacity = self._points[number], self._opacity[number]
        both = np.minimum(opacity[here], opacity[there])
        middles = (points[here] + points[there]) // 2
        for end in (here, there):
            self._draw_lines(points[end], middles, both, end, max(1, self._radius_px // 3))

    def _draw_lines(
        self, starts: np.ndarray, ends: np.ndarray, opacity: np.ndarray, places: np.ndarray, width_px: int
    ) -> None:
        """Draws m lines (m, 2), each in the colour of the keypoint at its place (m,)."""
        colours = (self._colours[places] * opacity[:, None]).tolist()
        for start, end, colour in zip(starts.tolist(), ends.tolist(), colours, strict=True):
            if colour[3] >= 1:
                cv2.line(self._layer, start, end, colour, width_px, cv2.LINE_AA, _SHIFT)

    def _draw_dots(self, number: int) -> None:
        opacity = self._opacity[number]
        colours, points = (self._colours * opacity[:, None]).tolist(), self._points[number].tolist()
        # The most confident last, on top.
        for place in np.argsort(opacity, kind="stable").tolist():
            if opacity[place]:
                radius = self._radius_px << _SHIFT
                cv2.circle(self._layer, points[place], radius, colours[place], cv2.FILLED, cv2.LINE_AA, _SHIFT)


def _lay_over(plane: np.ndarray, layer: np.ndarray, opaque: np.ndarray) -> None:
    """Mixes a layer, which is multiplied by its opacity, with a plane, in place; all are (h, w)."""
    plane[:] = cv2.add(cv2.multiply(plane, cv2.bitwise_not(opaque), scale=1 / 255), layer)


# The lines below a frame: its number, its time, and the names of the keypoints behind dots of their colours.
#
# They are below the frame, not on it, so that they do not cover the animal.

_FONT = cv2.FONT_HERSHEY_SIMPLEX
# In a frame of this width, letters have scale 1.
_WIDTH_OF_SCALE_1_PX = 1600
_SMALLEST_SCALE, _LARGEST_SCALE = 0.4, 1.0
_WHITE = (255, 255, 255)


class Caption:
    """Draws the lines below the frames of a video.

    Args:
      keypoint_names: k names; characters that OpenCV's font lacks are drawn as question marks.
      colours: (k, 3) uint8 RGB.
      width_px: the frames', even.
      last: number of the last frame.
      last_s: its time in seconds.
      tags: colorspace and color range of the video, FFmpeg's numbers.

    Attributes:
      height_px: the sum over all lines, even.
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
        """Returns (width, height) of a text, descenders included."""
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
        """Returns where texts of these widths begin (x, y of the baseline), from left to right and line by line."""
        x, y, places = self._gap_px, self._line_px, []
        for width in widths_px:
            if x > self._gap_px and x + width > width_px - self._gap_px:
                x, y = self._gap_px, y + self._line_px
            places.append((x, y))
            x += width + self._gap_px
        return places


def clock(time_s: float) -> str:
    """Returns a time as minutes:seconds, with hours if it has any: 0:07.480, 1:02:00.000."""
    milliseconds = round(1000 * time_s)
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest // 1000:02}.{rest % 1000:03}"
    return f"{hours}:{minutes:02}:{seconds}" if hours else f"{minutes}:{seconds}"


def _number(frame: int) -> str:
    return f"frame {frame}"
