"""Thumbnails of labelled frames, as large as fits into a page of a bearable size."""

from collections.abc import Sequence

import numpy as np

from jaxpose.check.frames import Frame
from jaxpose.data.image_file import PixelRule, decode_image
from jaxpose.data.labelled_image import check_image
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.poses import Poses
from jaxpose.report.pictures import cut_around, draw_picture
from jaxpose.report.section import escaped, paragraph
from jaxpose.threads import map_in_threads

# Of all thumbnails; with the rest of the page, the file stays below 25 MB.
MOST_BYTES = 22_000_000
# Sides of thumbnails: the largest is taken with which all fit. With the smallest, the last ones are left out.
_SIDES_PX = (360, 240, 160)
# Frames that are drawn to find it.
_SAMPLE = 12
# The first marked frames are large in any case.
_LARGE = 100


def draw_thumbnails(frames: Sequence[Frame], poses: Poses, rule: PixelRule, threads: int) -> list[str]:
    """Returns figures (HTML) of the first frames, of all of them if they fit into a page.

    Args:
      frames: in their order.
      poses: of the frames, in pixels of the images, with the skeleton that is drawn.
      rule: how the images become pixels.
      threads: as `data.threads`.
    """
    side_px, drawn, size = _side_px(frames, poses, rule), [], 0

    def draw(place: int) -> str:
        is_large = place < _LARGE and frames[place].is_marked
        return draw_thumbnail(frames[place], poses.at([place]), rule, _SIDES_PX[0] if is_large else side_px)

    for figure in map_in_threads(draw, range(len(frames)), threads, "drawing the frames"):
        size += len(figure.encode())
        if size > MOST_BYTES:
            break
        drawn.append(figure)
    return drawn


def draw_thumbnail(frame: Frame, poses: Poses, rule: PixelRule, side_px: int, is_named: bool = False) -> str:
    """Returns a frame with its points, cut to them, as a figure with its name, set and marks.

    Args:
      frame: the frame.
      poses: of this frame alone, in pixels of its image.
      rule: how the image becomes pixels.
      side_px: of the picture, at most.
      is_named: whether all names are written, not only those of a keypoint that looks wrong.
    """
    names, points = poses.keypoint_names, poses.points_px[0, 0]
    known = int(np.isfinite(points).all(axis=1).sum())
    alt = f"{frame.image} with {known} of {len(points)} keypoints"
    wrong = frame.outlier.keypoints if frame.outlier else ()
    expected = _expected_image_px(frame, np.full_like(points, np.nan))
    try:
        image, corner_px = cut_around(_read(frame, rule), np.concatenate([points, expected]))
    except (UserError, OSError) as error:
        picture = paragraph(f"no picture: {error}")
    else:
        named = range(len(points)) if is_named else wrong
        edges = [(names.index(a), names.index(b)) for a, b in poses.skeleton.edges]
        marks = {"labelled_px": points - corner_px, "expected_px": expected - corner_px, "named": named}
        picture = draw_picture(image, names, edges, alt, side_px, **marks)
    return f"<figure{' class=marked' * frame.is_marked}>{picture}{_caption(frame, names)}</figure>"


def _expected_image_px(frame: Frame, absent: np.ndarray) -> np.ndarray:
    """Returns where the keypoints (k, 2) in question might belong, in pixels of the image; NaN for the others."""
    if frame.outlier:
        places = list(frame.outlier.keypoints)
        absent[places] = frame.outlier.expected_px[places] - frame.origin_px
    return absent


def _caption(frame: Frame, names: Sequence[str]) -> str:
    lines = [escaped(frame.image) + (f" <span class=set>{escaped(frame.set)}</span>" if frame.set else "")]
    lines += [f"<strong>refused</strong> {escaped(text)}" for text in frame.refused]
    if frame.refused and frame.is_usable:
        lines.append("The row that is shown is used.")
    if frame.outlier:
        lines.append(f"<strong>outlier</strong> {escaped(frame.outlier.text(names))}")
    return f"<figcaption>{'<br>'.join(lines)}</figcaption>"


def _read(frame: Frame, rule: PixelRule) -> np.ndarray:
    """Returns the image (h, w, 3); raises UserError or OSError if it cannot be used."""
    if not frame.is_usable:
        # Not known to be intact, nor to lie in the project.
        check_image(frame.path, frame.image, {})
    return decode_image(read_bytes(frame.path, most_bytes=None), rule, is_known=True)


def _side_px(frames: Sequence[Frame], poses: Poses, rule: PixelRule) -> int:
    usable = [(frame, poses.at([place])) for place, frame in enumerate(frames) if frame.is_usable]
    sample = [usable[place] for place in np.unique(np.linspace(0, len(usable) - 1, _SAMPLE).astype(int))]
    for side_px in _SIDES_PX:
        mean = np.mean([len(draw_thumbnail(frame, of_frame, rule, side_px).encode()) for frame, of_frame in sample])
        # The sample may be of smaller ones than the others.
        if 1.1 * mean * len(frames) < MOST_BYTES:
            return side_px
    return _SIDES_PX[-1]
