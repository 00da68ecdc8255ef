"""Affine maps between frame, input and heatmap pixels.

An affine is a 2x3 matrix [A | b] that maps (x, y) to A (x, y) + b. Integer coordinates are pixel centres: the top-left
pixel's centre is (0, 0), so an image of width w covers [-0.5, w - 0.5]. Names read right to left: `frame_from_input`
maps a point of the input to the frame. Every function takes numpy or jax arrays and returns the same kind.

No function uses matrix products: by default a GPU or TPU rounds their factors to 8 or 11 bits, which would move a point
at 1000 px by half a pixel or more.
"""

from typing import Any

import numpy as np

# numpy and jax arrays share the operators used here, so this file need not import jax.
Array = Any


def input_from_frame(
    frame_size_px: tuple[int, int],
    input_size_px: tuple[int, int],
    resize: str,
    crop_px: tuple[int, ...] = (),
) -> np.ndarray:
    """Returns the affine (2, 3, float64) that fits a frame, or a crop of it, into the network's input.

    Args:
      frame_size_px: (width, height) of the frame.
      input_size_px: (width, height) of the input.
      resize: "pad" keeps the aspect ratio and centres, "stretch" and "lightning_pose" fill the input.
      crop_px: (x, y, width, height) in frame pixels, or () for the whole frame.
    """
    return input_from_boxes(np.array(crop_px or (0, 0, *frame_size_px)), input_size_px, resize)


def input_from_boxes(boxes_px: np.ndarray, input_size_px: tuple[int, int], resize: str) -> np.ndarray:
    """Returns the affines (..., 2, 3), float64, that fit boxes of frames into the network's input.

    Args:
      boxes_px: (..., 4), x, y, width and height in frame pixels, width and height above 0.
      input_size_px: (width, height) of the input.
      resize: as in `input_from_frame`.
    """
    corner, size = boxes_px[..., :2], boxes_px[..., 2:]
    scale = np.array(input_size_px) / size
    if resize == "pad":
        scale[:] = scale.min(axis=-1, keepdims=True)
    box_centre = corner + (size - 1) / 2
    input_centre = (np.array(input_size_px) - 1) / 2
    affines = np.zeros((*boxes_px.shape[:-1], 2, 3))
    affines[..., 0, 0], affines[..., 1, 1] = scale[..., 0], scale[..., 1]
    affines[..., 2] = input_centre - scale * box_centre
    return affines


def apply(affine: Array, points: Array) -> Array:
    """Maps points (..., k, 2) by affines (..., 2, 3)."""
    columns = affine[..., None, :, :]
    return points[..., :1] * columns[..., 0] + points[..., 1:] * columns[..., 1] + columns[..., 2]


def invert(affine: Array) -> Array:
    """Returns the inverse (..., 2, 3) of affines whose linear part is invertible."""
    a, b, c, d = affine[..., 0, 0], affine[..., 0, 1], affine[..., 1, 0], affine[..., 1, 1]
    xp = affine.__array_namespace__()
    determinant = (a * d - b * c)[..., None, None]
    linear = xp.stack([xp.stack([d, -b], axis=-1), xp.stack([-c, a], axis=-1)], axis=-2) / determinant
    shift = linear[..., :1] * affine[..., :1, 2:] + linear[..., 1:] * affine[..., 1:, 2:]
    return xp.concatenate([linear, -shift], axis=-1)


def scale(affine: Array) -> Array:
    """Returns by how much affines (..., 2, 3) enlarge a length (...): the square root of the change of an area."""
    xp = affine.__array_namespace__()
    a, b, c, d = affine[..., 0, 0], affine[..., 0, 1], affine[..., 1, 0], affine[..., 1, 1]
    return xp.sqrt(xp.abs(a * d - b * c))


def cells_from_input(points_px: Array, stride: int) -> Array:
    """Maps input pixels to heatmap cells: cell c of a map of stride s is input pixel (c + 0.5) s - 0.5."""
    return (points_px + 0.5) / stride - 0.5


def input_from_cells(points: Array, stride: int) -> Array:
    """Maps heatmap cells to input pixels; the inverse of `cells_from_input`."""
    return (points + 0.5) * stride - 0.5
