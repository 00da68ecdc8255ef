"""Affine maps between frame, input and heatmap pixels, and the fit of frames into the network's input.

An affine is a 2x3 matrix [A | b] that maps (x, y) to A (x, y) + b. Integer coordinates are pixel centres: the top-left
pixel's centre is (0, 0), so an image of width w covers [-0.5, w - 0.5]. Names read right to left: `frame_from_input`
maps a point of the input to the frame. Every function on points takes numpy or jax arrays and returns the same kind.

None of these functions uses matrix products: by default a GPU or TPU rounds their factors to 8 or 11 bits, which would
move a point at 1000 px by half a pixel or more.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

# numpy and jax arrays share the operators used here, so this file does not import jax.
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
    """Returns the factor (...) by which affines (..., 2, 3) enlarge a length: the square root of the area factor."""
    xp = affine.__array_namespace__()
    a, b, c, d = affine[..., 0, 0], affine[..., 0, 1], affine[..., 1, 0], affine[..., 1, 1]
    return xp.sqrt(xp.abs(a * d - b * c))


def cells_from_input(points_px: Array, stride: int) -> Array:
    """Maps input pixels to heatmap cells: cell c of a map of stride s is input pixel (c + 0.5) s - 0.5."""
    return (points_px + 0.5) / stride - 0.5


def input_from_cells(points: Array, stride: int) -> Array:
    """Maps heatmap cells to input pixels; the inverse of `cells_from_input`."""
    return (points + 0.5) * stride - 0.5


# Fits frames into the network's input by an affine, without aliasing.

# Part of the key of cached frames: increase it when the pixels change.
FIT_VERSION = 3


def fit_image(
    image: np.ndarray, affine: np.ndarray, size_px: tuple[int, int], crop_px: tuple[int, ...] = ()
) -> np.ndarray:
    """Returns an image (height, width, 3) uint8, warped by an affine without aliasing.

    Args:
      image: (frame height, frame width, 3) uint8.
      affine: (2, 3) input_from_frame, a scale and a shift along each axis.
      size_px: (width, height) of the result. Pixels outside the crop are black.
      crop_px: (x, y, width, height) in frame pixels, or () for the whole frame. The part outside the frame is black.
    """
    if crop_px:
        x, y, width, height = crop_px
        left, top = max(x, 0), max(y, 0)
        return fit_part(image[top : y + height, left : x + width], affine, size_px, (left, top, width, height))
    along_x, along_y = axes_of_fit(affine, image.shape[1::-1], size_px)
    bottom, right = along_y.padding_px, along_x.padding_px
    reduced = cv2.copyMakeBorder(image, 0, bottom, 0, right, cv2.BORDER_REPLICATE) if bottom or right else image
    if (along_x.block_px, along_y.block_px) != (1, 1):
        small = reduced.shape[1] // along_x.block_px, reduced.shape[0] // along_y.block_px
        reduced = cv2.resize(reduced, small, interpolation=cv2.INTER_AREA)
    kernel_size = along_x.kernel_size, along_y.kernel_size
    if kernel_size != (1, 1):
        reduced = cv2.GaussianBlur(
            reduced, kernel_size, along_x.sigma, sigmaY=along_y.sigma, borderType=cv2.BORDER_REPLICATE
        )
    covered_px = along_x.end_px - along_x.first_px, along_y.end_px - along_y.first_px
    if along_x.is_whole and along_y.is_whole:
        # cv2.resize samples in the same way as cv2.warpAffine, and is faster.
        covered = cv2.resize(reduced, covered_px, interpolation=cv2.INTER_LINEAR)
    else:
        covered_from_reduced = np.array(
            [
                [along_x.scale, 0, along_x.shift - along_x.first_px],
                [0, along_y.scale, along_y.shift - along_y.first_px],
            ]
        )
        covered = cv2.warpAffine(
            reduced, covered_from_reduced, covered_px, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
    result = np.zeros((size_px[1], size_px[0], 3), np.uint8)
    result[along_y.first_px : along_y.end_px, along_x.first_px : along_x.end_px] = covered
    return result


@dataclasses.dataclass(frozen=True)
class AxisFit:
    """The steps of `fit_image` along one axis.

    Attributes:
      block_px: pixels whose mean is one pixel of the reduced image.
      padding_px: pixels that are added at the end, so that the last block is whole.
      kernel_size, sigma: of the blur of the reduced image; 1 and 0 blur nothing.
      scale, shift: map pixels of the reduced image to pixels of the input.
      first_px, end_px: the image covers these pixels of the input; the others are black.
      is_whole: there is no padding, and the image ends where these pixels do.
    """

    block_px: int
    padding_px: int
    kernel_size: int
    sigma: float
    scale: float
    shift: float
    first_px: int
    end_px: int
    is_whole: bool


def axes_of_fit(affine: np.ndarray, given_px: Sequence[int], size_px: tuple[int, int]) -> list[AxisFit]:
    """Returns the steps of `fit_image` along x and y, for whole images of (width, height) `given_px`."""
    scales, shifts = np.diag(affine).tolist(), affine[:, 2].tolist()
    return [_axis_of_fit(*axis) for axis in zip(scales, shifts, given_px, size_px, strict=True)]


def _axis_of_fit(scale: float, shift: float, given: int, size: int) -> AxisFit:
    # Averaging blocks shrinks the image by a whole number, and is fast; a block's centre is its pixel (block - 1) / 2.
    block = max(1, math.floor(1 / scale + 1e-9))
    # The remaining factor is below 2: blur to the resolution of the coarser grid, then sample bilinearly.
    sigma = 0.5 * math.sqrt(max(1 / (scale * block), 1) ** 2 - 1)
    # The frame covers [-0.5, given - 0.5]; pixels beyond stay black.
    start, stop = shift - 0.5 * scale + 0.5, shift + scale * (given - 0.5) + 0.5
    first = max(math.ceil(start - 0.5 - 1e-6), 0)
    # A narrow frame may cover less than a pixel, but gets at least one.
    end = max(min(math.floor(stop + 0.5 + 1e-6), size), first + 1)
    return AxisFit(
        block_px=block,
        padding_px=-given % block,
        kernel_size=2 * round(3 * sigma) + 1,
        sigma=sigma,
        scale=scale * block,
        shift=shift + scale * (block - 1) / 2,
        first_px=first,
        end_px=end,
        is_whole=given % block == 0 and max(abs(start - first), abs(stop - end)) < 1e-6,
    )


def fit_numbered(
    image: np.ndarray, number: int, affine: np.ndarray, size_px: tuple[int, int], crop_px: tuple[int, ...] | np.ndarray
) -> np.ndarray:
    """Returns a video frame as `fit_image` does; black if it has no box.

    Args:
      image: (frame height, frame width, 3) uint8.
      number: the frame's.
      affine: input_from_frame, (2, 3) for all frames or (n, 2, 3) for each.
      size_px: (width, height) of the result.
      crop_px: as in `fit_image`; or a box for each frame, (n, 4) whole numbers, width 0 for none.
    """
    if isinstance(crop_px, tuple):
        return fit_image(image, affine, size_px, crop_px)
    box_px = tuple(crop_px[number].tolist())
    if not box_px[2]:
        return np.zeros((size_px[1], size_px[0], 3), np.uint8)
    return fit_image(image, affine[number], size_px, box_px)


def fit_still(
    image: np.ndarray, affine: np.ndarray, size_px: tuple[int, int], resize: str, crop_px: tuple[int, ...] = ()
) -> np.ndarray:
    """Returns an image, or a frame that is given as one, as `fit_image` does, except with resize "lightning_pose".

    Then cubic interpolation without smoothing aliases it, as in the images that trained Lightning Pose's networks. That
    tool smooths the frames of videos, so these go through `fit_image`.

    Args:
      image: (frame height, frame width, 3) uint8.
      affine: (2, 3) input_from_frame of this `resize`.
      size_px: (width, height) of the result.
      resize: as `data.resize`.
      crop_px: as in `fit_image`.
    """
    if resize != "lightning_pose":
        return fit_image(image, affine, size_px, crop_px)
    x, y, width, height = crop_px or (0, 0, image.shape[1], image.shape[0])
    return cv2.resize(image[y : y + height, x : x + width], size_px, interpolation=cv2.INTER_CUBIC)


def fit_part(part: np.ndarray, affine: np.ndarray, size_px: tuple[int, int], crop_px: tuple[int, ...]) -> np.ndarray:
    """Returns the same as `fit_image` for a whole image, from only the part that the crop shows.

    Args:
      part: (height of the crop, width of the crop, 3) uint8.
      affine, size_px, crop_px: as in `fit_image`.
    """
    corner_px = apply(affine, np.array([crop_px[:2]], np.float64))
    return fit_image(part, np.column_stack([affine[:, :2], corner_px[0]]), size_px)
