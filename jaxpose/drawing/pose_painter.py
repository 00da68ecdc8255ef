"""Draws the poses of a video: dots that fade with the confidence, the skeleton, and trails of earlier positions."""

import cv2
import numpy as np

from jaxpose.drawing.planes import Planes, even
from jaxpose.drawing.style import Style, dot_radius_px
from jaxpose.poses import Poses

# OpenCV takes subpixel positions in units of 1/16.
_SHIFT = 4
# A point further outside than so many frames is not drawn: it would only be a line through the frame.
_FAR_FRAMES = 2


class PosePainter:
    """Draws on frames of one size.

    Marks are drawn without their transparency on a layer of luma, two colour differences and opacity, each of the first
    three multiplied by the last; then the part of the layer that has marks is laid over the frame.

    Args:
      poses: of the frames of the video, with one animal each.
      colours_yuv: (k, 3) uint8, of each keypoint.
      size_px: (width, height) of the frames.
      style: what the user chooses; an edge with a name that the predictions do not have is not drawn.
    """

    def __init__(self, poses: Poses, colours_yuv: np.ndarray, size_px: tuple[int, int], style: Style) -> None:
        names = poses.keypoint_names
        edges = [(names.index(a), names.index(b)) for a, b in style.edges if a in names and b in names]
        self._edges = np.array(edges, np.int64).reshape(-1, 2).T
        self._radius_px, self._trail = dot_radius_px(size_px), style.trail
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
        # The surest last, on top.
        for place in np.argsort(opacity, kind="stable").tolist():
            if opacity[place]:
                radius = self._radius_px << _SHIFT
                cv2.circle(self._layer, points[place], radius, colours[place], cv2.FILLED, cv2.LINE_AA, _SHIFT)


def _lay_over(plane: np.ndarray, layer: np.ndarray, opaque: np.ndarray) -> None:
    """Mixes a layer, which is multiplied by its opacity, with a plane, in place; all are (h, w)."""
    plane[:] = cv2.add(cv2.multiply(plane, cv2.bitwise_not(opaque), scale=1 / 255), layer)
