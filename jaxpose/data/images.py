"""Labelled frames, decoded once and fitted into the network's input by one affine each.

What comes in: a `Project`. What goes out: `Frames`, uint8, in memory or memory-mapped from the cache folder.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable

import cv2
import numpy as np

from jaxpose import geometry
from jaxpose.config import DataConfig
from jaxpose.data import cache
from jaxpose.data.image_file import decode_image
from jaxpose.data.project import Project
from jaxpose.data.regular_file import read_regular
from jaxpose.data.threads import map_in_threads

# Part of the key of cached frames: a change of how pixels are made must change it.
FIT_VERSION = 3


@dataclasses.dataclass(frozen=True)
class Frames:
    """The frames of a project as the network takes them.

    Attributes:
      pixels: (n, t, height, width, 3) uint8 RGB, not to be written; t = 1, or more where a frame has its neighbours.
      frame_from_input: (n, 2, 3) float32, maps pixels of the input to pixels of the original frame.
      input_from_frame: (n, 2, 3) float64, the other way.
    """

    pixels: np.ndarray
    frame_from_input: np.ndarray
    input_from_frame: np.ndarray


def input_size_px(project: Project, data: DataConfig) -> tuple[int, int]:
    """Returns (width, height) of the network's input.

    It is `data.input_width_px` and `data.input_height_px` where given. Else a square by the rule of Lightning Pose's
    recommender, on the median frame or the crop: 128 if the short side is below 192, 384 if the long side is above
    1024 and there are more than 500 frames, otherwise 256.
    """
    if data.input_width_px and data.input_height_px:
        return data.input_width_px, data.input_height_px
    sizes_px = np.array([data.crop_px[2:]]) if data.crop_px else project.sizes_px
    short_px, long_px = np.median(sizes_px.min(axis=1)), np.median(sizes_px.max(axis=1))
    side_px = 128 if short_px < 192 else 384 if long_px > 1024 and len(project.images) > 500 else 256
    return side_px, side_px


def load_frames(project: Project, data: DataConfig, size_px: tuple[int, int]) -> Frames:
    """Decodes the frames of a project, or finds them in the cache folder where they were too large for memory.

    Args:
      project: the frames.
      data: how they are fitted, and the limits of memory and cache.
      size_px: (width, height) of the input.

    Raises:
      ValueError: an image does not decode or has changed since the project was read, or the frames are above both
        limits.
      OSError: the cache folder cannot be written.
    """
    affines = fit_affines(project, data, size_px)
    shape = (len(project.images), 1, size_px[1], size_px[0], 3)
    decoded = map_in_threads(
        lambda row: read_labelled(project, row, affines[row], size_px, data.crop_px),
        range(shape[0]),
        data.threads,
        "decoding images",
    )
    pixels = keep(shape, decoded, lambda: fit_key(project, affines, size_px, data.crop_px), data)
    return Frames(pixels, geometry.invert(affines).astype(np.float32), affines)


def fit_affines(project: Project, data: DataConfig, size_px: tuple[int, int]) -> np.ndarray:
    """Returns input_from_frame (n, 2, 3) of the frames of a project, for an input of (width, height) px."""
    sizes_px = [(int(width), int(height)) for width, height in project.sizes_px]
    return np.stack([geometry.input_from_frame(size, size_px, data.resize, data.crop_px) for size in sizes_px])


def outside_crop(points_frame_px: np.ndarray, crop_px: tuple[int, ...]) -> np.ndarray:
    """Returns which points (..., 2) in frame pixels a crop leaves out, bool (...); none where crop_px is ().

    The crop covers half a pixel more on each side than the centres of its pixels. NaN is not outside.
    """
    if not crop_px:
        return np.zeros(points_frame_px.shape[:-1], bool)
    low = np.array(crop_px[:2]) - 0.5
    return np.asarray(((points_frame_px < low) | (points_frame_px > low + crop_px[2:])).any(axis=-1))


def read_labelled(
    project: Project, row: int, affine: np.ndarray, size_px: tuple[int, int], crop_px: tuple[int, ...] = ()
) -> np.ndarray:
    """Returns a labelled frame (height, width, 3) uint8 as the network takes it.

    Raises:
      ValueError: it does not decode or has changed since the project was read.
    """
    place = f"{project.sources[row]}: {project.images[row]}"
    content = read_regular(project.paths[row])
    if hashlib.sha256(content).hexdigest() != project.checksums[row]:
        raise ValueError(f"{place} has changed since the project was read; start again")
    try:
        return fit_image(decode_image(content, is_known=True), affine, size_px, crop_px)
    except ValueError as error:
        raise ValueError(f"{place}: {error}; remove it from the label file") from None


def keep(shape: tuple[int, ...], rows: Iterable[np.ndarray], key: Callable[[], str], data: DataConfig) -> np.ndarray:
    """Returns rows as one uint8 array, in memory or, where it is above the limit, memory-mapped from the cache folder.

    Args:
      shape: of the array.
      rows: shape[0] arrays of shape[1:]; they are not asked for where the cache folder has them.
      key: a name for what they depend on.
      data: the limits of memory and cache.

    Raises:
      ValueError: the array is above both limits.
      OSError: the cache folder cannot be written.
    """
    if np.prod(shape) <= data.memory_limit_gib * cache.GIB:
        kept = np.empty(shape, np.uint8)
        for place, row in enumerate(rows):
            kept[place] = row
        return kept
    name = key()
    kept = cache.open_cached(name, shape)
    if kept is None:
        cache.store(name, shape, rows, data.cache_limit_gib)
        kept = cache.open_cached(name, shape)
    if kept is None:
        raise OSError(f"the frames written to {cache.cache_folder()} cannot be read back")
    return kept


def fit_image(
    image: np.ndarray, affine: np.ndarray, size_px: tuple[int, int], crop_px: tuple[int, ...] = ()
) -> np.ndarray:
    """Returns an image (height, width, 3) uint8 that shows another through an affine, without aliasing.

    Args:
      image: (frame height, frame width, 3) uint8.
      affine: (2, 3) input_from_frame, a scale and a shift along each axis.
      size_px: (width, height) of the result. What the crop does not cover is black.
      crop_px: (x, y, width, height) in frame pixels, inside of the frame, or () for the whole frame.
    """
    if crop_px:
        x, y, width, height = crop_px
        return fit_image(
            image[y : y + height, x : x + width], geometry.compose(affine, np.array([[1.0, 0, x], [0, 1, y]])), size_px
        )
    height, width = image.shape[:2]
    scale = np.array([affine[0, 0], affine[1, 1]])
    # Whole-number shrinking by means of blocks is fast; a block's centre is pixel (block - 1) / 2 of it.
    block_x, block_y = (max(1, math.floor(1 / factor + 1e-9)) for factor in scale.tolist())
    bottom, right = -height % block_y, -width % block_x
    reduced = cv2.copyMakeBorder(image, 0, bottom, 0, right, cv2.BORDER_REPLICATE) if bottom or right else image
    if (block_x, block_y) != (1, 1):
        small = ((width + right) // block_x, (height + bottom) // block_y)
        reduced = cv2.resize(reduced, small, interpolation=cv2.INTER_AREA)
    # The rest, below a factor of 2, is blurred to what the coarser grid can hold, then sampled bilinearly.
    blocks = np.array([block_x, block_y])
    shrink = np.maximum(1 / (scale * blocks), 1)
    sigma_x, sigma_y = (0.5 * np.sqrt(shrink**2 - 1)).tolist()
    kernel_size = (2 * round(3 * sigma_x) + 1, 2 * round(3 * sigma_y) + 1)
    if kernel_size != (1, 1):
        reduced = cv2.GaussianBlur(reduced, kernel_size, sigma_x, sigmaY=sigma_y, borderType=cv2.BORDER_REPLICATE)
    # The frame covers [-0.5, width - 0.5]; what lies beyond stays black.
    edges = np.stack([affine[:, 2] - 0.5 * scale, affine[:, 2] + scale * (np.array([width, height]) - 0.5)]) + 0.5
    first_x, first_y = np.maximum(np.ceil(edges[0] - 0.5 - 1e-6), 0).astype(int).tolist()
    end_x, end_y = np.minimum(np.floor(edges[1] + 0.5 + 1e-6), size_px).astype(int).tolist()
    # A strip of a frame may be narrower than a pixel: it covers one all the same.
    end_x, end_y = max(end_x, first_x + 1), max(end_y, first_y + 1)
    covered_px = (end_x - first_x, end_y - first_y)
    if not (bottom or right) and np.abs(edges - [(first_x, first_y), (end_x, end_y)]).max() < 1e-6:
        # The frame covers whole pixels: the same sampling, and faster.
        covered = cv2.resize(reduced, covered_px, interpolation=cv2.INTER_LINEAR)
    else:
        offset = affine[:, 2] + scale * (blocks - 1) / 2 - [first_x, first_y]
        affine_reduced = np.column_stack([np.diag(scale * blocks), offset])
        covered = cv2.warpAffine(
            reduced, affine_reduced, covered_px, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
    result = np.zeros((size_px[1], size_px[0], 3), np.uint8)
    result[first_y:end_y, first_x:end_x] = covered
    return result


def fit_key(project: Project, affines: np.ndarray, size_px: tuple[int, int], *more: object) -> str:
    """Returns a name for the frames of a project, fitted by `affines` (n, 2, 3), and for what else they depend on."""
    digest = hashlib.sha256(repr((FIT_VERSION, size_px, project.checksums, *more)).encode())
    digest.update(np.ascontiguousarray(affines, "<f8").tobytes())
    return digest.hexdigest()
