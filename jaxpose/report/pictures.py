"""Draws pictures of frames with keypoints: a JPEG in an SVG, so that keypoints can be switched off."""

import base64
from collections.abc import Collection, Sequence

import cv2
import numpy as np

from jaxpose.report.page import colours, escaped

_QUALITY = 80
# Maximum number of keypoints whose names are written next to them; the others have tooltips.
_NAMED = 3
# Names are written where the error is above this share of the picture's longer side.
_NAMED_SHARE = 0.03
# Names of points to the right of this share of the width are written to the left of the point.
_RIGHT = 0.7
# Names of points closer to the top than this, in radii of a mark, are written below the point.
_TOP = 4.5
# Pictures are cut to this many times the extent of the points, and to at least this many pixels.
_MARGIN, _LEAST_SIDE_PX = 1.6, 160


def cut_around(image: np.ndarray, points_px: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the part of an image (h, w, 3) with all points (m, 2) and a margin, and the pixel (2,) of its corner.

    The part is square where the image allows it, and the whole image if no point is finite.
    """
    size = np.array(image.shape[1::-1])
    known = points_px[np.isfinite(points_px).all(axis=-1)]
    if not len(known):
        return image, np.zeros(2)
    low, high = known.min(axis=0), known.max(axis=0)
    side = max(_MARGIN * float((high - low).max()), _LEAST_SIDE_PX)
    first = np.clip(np.floor((low + high - side) / 2), 0, np.maximum(size - side, 0)).astype(int)
    last = np.minimum(first + round(side), size)
    return image[first[1] : last[1], first[0] : last[0]], first.astype(float)


def draw_picture(
    image: np.ndarray,
    keypoint_names: Sequence[str],
    edges: Sequence[tuple[int, int]],
    alt: str,
    longest_px: int,
    *,
    predicted_px: np.ndarray | None = None,
    labelled_px: np.ndarray | None = None,
    expected_px: np.ndarray | None = None,
    named: Collection[int] = (),
) -> str:
    """Returns a frame with its keypoints as SVG: a ring is a label, a dot is a prediction, a line joins the two.

    Args:
      image: (h, w, 3) uint8 RGB.
      keypoint_names: k names.
      edges: pairs of numbers of keypoints with a line between their predictions (their labels, without predictions).
      alt: plain text for those who cannot see it.
      longest_px: the longer side of the embedded picture, at most.
      predicted_px: (k, 2) in pixels of the image, NaN is not drawn; None without predictions.
      labelled_px: (k, 2), likewise.
      expected_px: (k, 2), likewise: where labels might belong.
      named: keypoints whose names are written next to their labels.
    """
    height, width = image.shape[:2]
    absent = np.full((len(keypoint_names), 2), np.nan)
    joined = labelled_px if predicted_px is None else predicted_px
    points = [absent if one is None else one for one in (predicted_px, labelled_px, expected_px, joined)]
    return embed(image, _marks(keypoint_names, edges, points, named, (width, height)), alt, longest_px)


def embed(image: np.ndarray, marks: str, alt: str, longest_px: int) -> str:
    """Returns a frame and its marks as SVG.

    Args:
      image: (h, w, 3) uint8 RGB.
      marks: SVG in pixels of the image.
      alt: plain text for those who cannot see it.
      longest_px: the longer side of the embedded picture, at most.
    """
    height, width = image.shape[:2]
    scale = min(1.0, longest_px / max(height, width))
    if scale < 1:
        size = max(1, round(width * scale)), max(1, round(height * scale))
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    content = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1].tobytes()
    source = base64.b64encode(content).decode()
    return (
        f'<svg class="frame" viewBox="-0.5 -0.5 {width} {height}" role="img" aria-label="{escaped(alt)}">'
        f'<image x="-0.5" y="-0.5" width="{width}" height="{height}" preserveAspectRatio="none" '
        f'href="data:image/jpeg;base64,{source}"/>{marks}</svg>'
    )


def _marks(
    names: Sequence[str],
    edges: Sequence[tuple[int, int]],
    points: Sequence[np.ndarray],
    named_labels: Collection[int],
    size_px: tuple[int, int],
) -> str:
    """Returns the marks of points (k, 2): predicted, labelled, expected, and those that edges join."""
    (predicted, labelled, expected, joined), palette, parts = points, colours(len(names)), []
    radius = max(size_px) / 90
    for first, second in edges:
        if np.isfinite(joined[[first, second]]).all():
            parts.append(_line(joined[first], joined[second], f"edge kp-{first} kp-{second}", radius / 3))
    distances = np.linalg.norm(predicted - labelled, axis=1)
    far = np.argsort(-np.nan_to_num(distances, nan=-1.0), kind="stable")[:_NAMED]
    named = {place for place in far.tolist() if distances[place] > _NAMED_SHARE * max(size_px)}
    for place, (name, colour) in enumerate(zip(names, palette, strict=True)):
        marks = []
        if np.isfinite(labelled[place]).all():
            x, y = labelled[place]
            marks.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{1.6 * radius:.1f}" fill="none" stroke="{colour}" '
                f'stroke-width="{radius / 2:.1f}"><title>{escaped(name)}, label</title></circle>'
            )
            if place in named_labels:
                marks.append(_name(name, labelled[place], radius, size_px[0]))
        if np.isfinite(expected[place]).all():
            marks += _dot(expected[place], labelled[place], f"{name}, where it might belong", colour, radius)
        if np.isfinite(predicted[place]).all():
            error = f", {distances[place]:.1f} px from its label" if np.isfinite(distances[place]) else ""
            marks += _dot(predicted[place], labelled[place], f"{name}, prediction{error}", colour, radius)
            if place in named:
                marks.append(_name(name, predicted[place], radius, size_px[0]))
        if marks:
            parts.append(f'<g class="kp-{place}">{"".join(marks)}</g>')
    return "".join(parts)


def _dot(point_px: np.ndarray, label_px: np.ndarray, title: str, colour: str, radius: float) -> list[str]:
    """Returns a dot (2,) with its title, and a line to its label (2,) if there is one."""
    (x, y), line = point_px.tolist(), []
    if np.isfinite(label_px).all():
        line = [_line(point_px, label_px, "miss", radius / 3)]
    return [
        *line,
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}" stroke="#000" '
        f'stroke-width="{radius / 6:.1f}"><title>{escaped(title)}</title></circle>',
    ]


def _name(name: str, point_px: np.ndarray, radius: float, width_px: int) -> str:
    x, y = point_px.tolist()
    # A name at the right edge would be cut off.
    side, anchor = (-1, ' text-anchor="end"') if x > _RIGHT * width_px else (1, "")
    # So would one at the top edge.
    line = y + 4.4 * radius if y < _TOP * radius else y - radius
    at = f'x="{x + side * 1.6 * radius:.1f}" y="{line:.1f}" font-size="{3.4 * radius:.1f}"{anchor}'
    return f"<text {at}>{escaped(name)}</text>"


def _line(start: np.ndarray, end: np.ndarray, kind: str, width: float) -> str:
    (x1, y1), (x2, y2) = start.tolist(), end.tolist()
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke-width="{width:.1f}"/>'
