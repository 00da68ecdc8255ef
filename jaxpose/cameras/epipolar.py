"""Epipolar lines: where the other cameras see what one camera shows at a pixel."""

import numpy as np

from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.triangulation import rays_of

# Points that are tried along the part of a line in a picture, and at most kept of those inside.
_TRIED, _KEPT = 241, 61
# Points along each edge of a picture, whose places without distortion bound what the camera sees.
_EDGE_POINTS = 17
# A lens model that bends back returns to another place, in normalised coordinates.
_SAME_PLACE = 1e-6
# The least depth of a point on a line, relative to the distance between the cameras.
_LEAST_DEPTH = 1e-6


def epipolar_lines(cameras: Cameras, view: int, point_px: np.ndarray, sizes_px: np.ndarray) -> list[np.ndarray]:
    """Returns for each camera the line (m, 2) on which it sees the points of the world at a pixel of one camera.

    With distortion, the line is a curve; the m points lie on it in order, from the side of that camera into the
    distance, and between them it is straight to less than 0.1 px for usual lenses. m is 0 for the camera itself, and
    where the line does not cross the picture.

    Args:
      cameras: v cameras.
      view: the one that shows the point.
      point_px: (2,) its pixel there.
      sizes_px: (v, 2) width and height of the pictures.
    """
    count = len(cameras.names)
    pixels = np.full((count, 1, 2), np.nan)
    pixels[view] = point_px
    ray = rays_of(cameras, cameras.undistort(pixels))[:, view, 0]
    if not np.isfinite(ray).all():
        return [np.empty((0, 2)) for _ in range(count)]
    starts = cameras.rotations @ cameras.centres[view] + cameras.translations
    borders = _borders(cameras, sizes_px)
    ends = np.stack([_ends(*numbers) for numbers in zip(starts, cameras.rotations @ ray, borders, strict=True)])
    ends[view] = np.nan
    shares = np.linspace(0, 1, _TRIED)[:, None]
    # Without distortion, the line is straight.
    places = ends[:, :1] * (1 - shares) + ends[:, 1:] * shares
    with np.errstate(all="ignore"):
        line_px = np.stack(cameras.pixels_and_slopes(places[..., 0], places[..., 1])[:2], axis=-1)
        is_same = np.abs(cameras.undistort(line_px) - places).max(axis=-1) < _SAME_PLACE
        is_inside = ((line_px >= -0.5) & (line_px <= sizes_px[:, None] - 0.5)).all(axis=-1)
    return [of_view[_spread(chosen)] for of_view, chosen in zip(line_px, is_same & is_inside, strict=True)]


def _borders(cameras: Cameras, sizes_px: np.ndarray) -> np.ndarray:
    """Returns the bounds (v, 4) of the pictures without distortion: left, top, right, bottom; NaN if unknown."""
    along, none = np.linspace(0, 1, _EDGE_POINTS), np.zeros(_EDGE_POINTS)
    edges = [(along, none), (along, none + 1), (none, along), (none + 1, along)]
    shares = np.concatenate([np.stack(edge, axis=-1) for edge in edges])
    places = cameras.undistort(shares * sizes_px[:, None] - 0.5)
    is_known = np.isfinite(places).all(axis=-1)
    bounds = np.full((len(places), 4), np.nan)
    for row, (of_view, known) in enumerate(zip(places, is_known, strict=True)):
        if known.any():
            bounds[row] = *of_view[known].min(axis=0), *of_view[known].max(axis=0)
    return bounds


def _ends(start: np.ndarray, ray: np.ndarray, border: np.ndarray) -> np.ndarray:
    """Returns the ends (2, 2), without distortion, of the part of a ray that is in front of a camera and in its border.

    Args:
      start: (3,) the ray's beginning in the coordinates of the camera, and `ray`: (3,) its direction.
      border: left, top, right, bottom.

    Returns:
      The ends, NaN if there is no such part.
    """
    left, top, right, bottom = border.tolist()
    # Each bound is linear along the ray, in x, y and depth.
    bounds = np.array([[1, 0, -left], [-1, 0, right], [0, 1, -top], [0, -1, bottom], [0, 0, 1]])
    slack, slope = bounds @ start, bounds @ ray
    slack[4] -= _LEAST_DEPTH * np.linalg.norm(start)
    if not np.isfinite(slack).all() or (slack[slope == 0] < 0).any():
        return np.full((2, 2), np.nan)
    lowest = max([0.0, *(-slack[slope > 0] / slope[slope > 0])])
    highest = min([np.inf, *(-slack[slope < 0] / slope[slope < 0])])
    if lowest >= highest:
        return np.full((2, 2), np.nan)
    near, far = start + lowest * ray, ray if np.isinf(highest) else start + highest * ray
    with np.errstate(all="ignore"):
        return np.stack([near[:2] / near[2], far[:2] / far[2]])


def _spread(chosen: np.ndarray) -> np.ndarray:
    """Returns at most `_KEPT` of the chosen indices, evenly spaced, with the first and the last one."""
    indices = np.flatnonzero(chosen)
    return indices[np.unique(np.linspace(0, len(indices) - 1, _KEPT).round().astype(int))] if len(indices) else indices
