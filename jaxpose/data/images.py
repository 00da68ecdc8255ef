"""Decodes each labelled frame once, fits it into the network's input by an affine; draws keypoints on frames.

Input: a `Project`. Output: `Frames`, uint8, in memory or memory-mapped from the cache folder.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np

from jaxpose import cache, geometry
from jaxpose.config import DataConfig
from jaxpose.data.image_file import DECODERS, decode_image
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.geometry import FIT_VERSION, fit_part, fit_still
from jaxpose.threads import map_in_threads

_logger = logging.getLogger(__name__)

_WITHOUT_CACHE = (
    "choose another folder with JAXPOSE_CACHE, or keep frames in memory with a larger data.memory_limit_gib"
)


@dataclasses.dataclass(frozen=True)
class Frames:
    """The frames of a project as network input.

    Attributes:
      pixels: (n, t, height, width, 3) uint8 RGB, read-only; t = 1, or more if a frame comes with its neighbours.
      frame_from_input: (n, 2, 3) float32, maps pixels of the input to pixels of the original frame.
      input_from_frame: (n, 2, 3) float64, the other way.
    """

    pixels: np.ndarray
    frame_from_input: np.ndarray
    input_from_frame: np.ndarray


def input_size_px(project: Project, data: DataConfig) -> tuple[int, int]:
    """Returns (width, height) of the network's input.

    It is `data.input_width_px` and `data.input_height_px` if given, otherwise a square by Lightning Pose's recommender
    rule for the median frame, box or crop: 128 if the short side is below 192, 384 if the long side is above 1024 and
    there are more than 500 frames, otherwise 256.
    """
    if data.input_width_px and data.input_height_px:
        return data.input_width_px, data.input_height_px
    crops_px = project.boxes_px or ([data.crop_px] if data.crop_px else [])
    sizes_px = np.array([crop_px[2:] for crop_px in crops_px]) if crops_px else project.sizes_px
    side_px = square_side_px(sizes_px, len(project.poses.frames))
    return side_px, side_px


# Pixels of an input for whole images: a larger one costs time, so animals are smaller in it, down to half their size.
_MOST_WHOLE_PX, _LEAST_SHARE = 160 * 160, 0.5


def whole_input_px(project: Project, body_px: float, stride: int) -> tuple[int, int]:
    """Returns the (width, height) of an input for whole images in which an animal's longest side is about `body_px`.

    Where this input would be large, because animals are small in their images, that side is as little as half of it.

    Args:
      project: images with several animals.
      body_px: that side of a typical animal.
      stride: which both sides are multiples of.
    """
    whole_px = np.median(project.sizes_px, axis=0) * (body_px / project.body_size_px)
    share = float(np.clip(np.sqrt(_MOST_WHOLE_PX / whole_px.prod()), _LEAST_SHARE, 1))
    width, height = (np.ceil(whole_px * share / stride).astype(int) * stride).tolist()
    return width, height


def square_side_px(sizes_px: np.ndarray, labelled_frames: int) -> int:
    """Returns the side of a square input by the rule of `input_size_px`.

    Args:
      sizes_px: (n, 2), of frames, boxes or crops.
      labelled_frames: their number.
    """
    short_px, long_px = np.median(sizes_px.min(axis=1)), np.median(sizes_px.max(axis=1))
    return 128 if short_px < 192 else 384 if long_px > 1024 and labelled_frames > 500 else 256


def load_frames(project: Project, data: DataConfig, size_px: tuple[int, int]) -> Frames:
    """Decodes the frames of a project and caches them, or reads them from the cache folder.

    Args:
      project: the frames.
      data: how to fit frames, and the limits of memory and cache.
      size_px: (width, height) of the input.

    Raises:
      UserError: an image does not decode or has changed since the project was read, or the frames exceed both limits.
        OSError: the frames exceed the memory limit and the cache folder cannot be written.
    """
    affines = fit_affines(project, data, size_px)
    shape = (len(project.poses.frames), 1, size_px[1], size_px[0], 3)
    decoded = map_in_threads(
        lambda row: read_labelled(project, row, affines[row], size_px, data),
        range(shape[0]),
        data.threads,
        "decoding images",
    )
    pixels = keep(shape, decoded, lambda: fit_key(project, affines, size_px, data), data)
    return Frames(pixels, geometry.invert(affines).astype(np.float32), affines)


def fit_affines(project: Project, data: DataConfig, size_px: tuple[int, int]) -> np.ndarray:
    """Returns input_from_frame (n, 2, 3) of the frames of a project, for an input of (width, height) px."""
    return np.stack(
        [
            geometry.input_from_frame(
                (int(width), int(height)),
                size_px,
                data.resize,
                project.crop_px(row) or project.part_px(row, data.crop_px),
            )
            for row, (width, height) in enumerate(project.sizes_px)
        ]
    )


def outside_crop(points_frame_px: np.ndarray, crop_px: tuple[int, ...]) -> np.ndarray:
    """Returns whether points (..., 2) in frame pixels lie outside a crop, bool (...); none if crop_px is ().

    The crop extends half a pixel beyond the centres of its outer pixels. NaN is not outside.
    """
    if not crop_px:
        return np.zeros(points_frame_px.shape[:-1], bool)
    low = np.array(crop_px[:2]) - 0.5
    return np.asarray(((points_frame_px < low) | (points_frame_px > low + crop_px[2:])).any(axis=-1))


def outside_parts(project: Project, crop_px: tuple[int, ...]) -> np.ndarray:
    """Returns whether labels lie outside what the network sees of their frame, bool (n, k); see `outside_crop`."""
    parts = (project.part_px(row, crop_px) for row in range(len(project.poses.frames)))
    return np.stack([outside_crop(*pair) for pair in zip(project.keypoints_frame_px, parts, strict=True)])


def read_labelled(
    project: Project,
    row: int,
    affine: np.ndarray,
    size_px: tuple[int, int],
    data: DataConfig,
) -> np.ndarray:
    """Returns a labelled frame (height, width, 3) uint8 as network input.

    Args:
      project: the frames.
      row: of the frame.
      affine: (2, 3) its input_from_frame.
      size_px: (width, height) of the input.
      data: how to fit frames, and which value is white.

    Raises:
      UserError: the image does not decode or has changed since the project was read.
    """
    place = f"{project.sources[row]}: {project.poses.frames[row]}"
    content = read_bytes(project.paths[row], most_bytes=None)
    if hashlib.sha256(content).hexdigest() != project.checksums[row]:
        raise UserError(f"{place} has changed since the project was read; start again")
    try:
        image = decode_image(content, project.pixel_rule(data.white), is_known=True)
        return fit_labelled(project, row, image, affine, size_px, data.resize, project.part_px(row, data.crop_px))
    except UserError as error:
        raise UserError(f"{place}: {error}; remove it from the label file") from None


def fit_labelled(
    project: Project,
    row: int,
    image: np.ndarray,
    affine: np.ndarray,
    size_px: tuple[int, int],
    resize: str,
    crop_px: tuple[int, ...],
) -> np.ndarray:
    """Fits an image that shows the same part of its frame as a row's image by the row's input_from_frame."""
    shown_px = project.crop_px(row)
    if shown_px and resize != "lightning_pose":
        return fit_part(image, affine, size_px, shown_px)
    return fit_still(image, affine, size_px, resize, () if shown_px else crop_px)


def keep(shape: tuple[int, ...], rows: Iterable[np.ndarray], key: Callable[[], str], data: DataConfig) -> np.ndarray:
    """Returns rows as one uint8 array, in memory or, above the limit, memory-mapped from the cache folder.

    The cache folder also keeps arrays that are in memory: reading is much faster than decoding. A checksum verifies
    arrays from the cache folder.

    Args:
      shape: of the array.
      rows: shape[0] arrays of shape[1:]; unused if the cache folder already has the array.
      key: returns a name that is unique for all that the rows depend on.
      data: the limits of memory and cache.

    Raises:
      UserError: the array exceeds both limits, or exceeds the memory limit and the cache folder cannot be written.
    """
    name = key()
    if np.prod(shape) <= data.memory_limit_gib * cache.GIB:
        return _keep_in_memory(name, shape, rows, data.cache_limit_gib)
    kept = cache.open_cached(name, shape)
    if kept is None or not _is_whole(name, kept):
        _store_mapped(name, shape, rows, data.cache_limit_gib)
        kept = cache.open_cached(name, shape)
    if kept is None:
        raise UserError(f"the frames written to {cache.cache_folder()} cannot be read back; {_WITHOUT_CACHE}")
    return kept


def _is_whole(name: str, kept: np.ndarray) -> bool:
    return cache.read_note(name) == hashlib.sha256(kept.data).hexdigest()


def _store_mapped(name: str, shape: tuple[int, ...], rows: Iterable[np.ndarray], limit_gib: float) -> None:
    digest = hashlib.sha256()

    def counted() -> Iterator[np.ndarray]:
        for row in rows:
            digest.update(np.ascontiguousarray(row).data)
            yield row

    try:
        cache.store(name, shape, counted(), limit_gib)
        cache.write_note(name, digest.hexdigest())
    except OSError as error:
        if error.filename and not Path(error.filename).is_relative_to(cache.cache_folder()):
            raise  # an unreadable image
        reason = error.strerror or str(error)
        raise UserError(f"frames cannot be written to {cache.cache_folder()} ({reason}); {_WITHOUT_CACHE}") from None


def _keep_in_memory(name: str, shape: tuple[int, ...], rows: Iterable[np.ndarray], limit_gib: float) -> np.ndarray:
    kept = cache.open_cached(name, shape, in_memory=True)
    if kept is not None and _is_whole(name, kept):
        return kept
    pixels = np.empty(shape, np.uint8)
    for place, row in enumerate(rows):
        pixels[place] = row
    checksum = hashlib.sha256(pixels.data).hexdigest()
    if kept is None and cache.read_note(name) == checksum and cache.open_cached(name, shape) is not None:
        # Another process has written it in the meantime.
        return pixels
    try:
        cache.store(name, shape, pixels, limit_gib)
        cache.write_note(name, checksum)
    except OSError as error:
        reason = error.strerror or str(error)
        _logger.info(f"decoded frames are not kept in {cache.cache_folder()} ({reason}): each start decodes them again")
    except UserError as error:
        _logger.info(f"decoded frames are not kept: {error}")
    return pixels


def fit_key(project: Project, affines: np.ndarray, size_px: tuple[int, int], data: DataConfig, *more: object) -> str:
    """Returns a unique name for the frames of a project, fitted by `affines` (n, 2, 3), with `more` dependencies."""
    parts = data.resize, project.boxes_px or data.crop_px, project.orientation, data.white
    digest = hashlib.sha256(repr((FIT_VERSION, DECODERS, size_px, project.checksums, *parts, *more)).encode())
    digest.update(np.ascontiguousarray(affines, "<f8").tobytes())
    return digest.hexdigest()


# Draws predicted keypoints as dots and labels as rings on frames.

# Smaller frames are enlarged so that marks do not cover keypoints.
_FEWEST_PX = 256
# OpenCV takes subpixel positions in units of 1/16.
_SHIFT = 4


def keypoint_colours(keypoints: int) -> np.ndarray:
    """Returns a colour (k, 3) uint8 RGB for each of k keypoints, the same in every picture."""
    hues = np.arange(keypoints) * 180 // max(keypoints, 1)
    hsv = np.stack([hues, np.full(keypoints, 255), np.full(keypoints, 255)], axis=-1).astype(np.uint8)
    return cv2.cvtColor(hsv[None], cv2.COLOR_HSV2RGB)[0] if keypoints else hsv


def overlay_keypoints(frames: np.ndarray, predicted_px: np.ndarray, labelled_px: np.ndarray) -> np.ndarray:
    """Returns frames with keypoints, (n, s h, s w, 3) uint8, enlarged by a whole number s.

    Every keypoint has its own colour: a filled dot marks the prediction, a ring marks the label.

    Args:
      frames: (n, h, w, 3) uint8, RGB.
      predicted_px: (n, k, 2) (x, y) in pixels of the given frames; NaN is not drawn.
      labelled_px: (n, k, 2), the same for the labels.
    """
    height, width, keypoints = *frames.shape[1:3], predicted_px.shape[1]
    scale = max(1, -(-_FEWEST_PX // min(height, width)))
    dot_px = max(2, scale * min(height, width) // 80)
    colours = keypoint_colours(keypoints).tolist()
    images = frames.repeat(scale, axis=1).repeat(scale, axis=2)
    for image, predicted, labelled in zip(images, predicted_px, labelled_px, strict=True):
        for colour, dot, ring in zip(colours, predicted, labelled, strict=True):
            _draw_circle(image, ring, 3 * dot_px, colour, scale, thickness=max(1, dot_px // 2))
            _draw_circle(image, dot, dot_px, colour, scale, thickness=cv2.FILLED)
    return images


def _draw_circle(
    image: np.ndarray, centre_px: np.ndarray, radius_px: int, colour: list[int], scale: int, thickness: int
) -> None:
    if np.isfinite(centre_px).all():
        x, y = np.rint(((centre_px + 0.5) * scale - 0.5) * 2**_SHIFT).astype(int).tolist()
        cv2.circle(image, (x, y), radius_px << _SHIFT, colour, thickness, cv2.LINE_AA, _SHIFT)
