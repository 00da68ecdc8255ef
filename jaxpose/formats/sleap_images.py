"""The labelled images of a SLEAP video that is no film: images in the .slp itself, HDF5 arrays, TIFF stacks.

Their pixels are kept in the cache folder with all their bits, as image files: how these become 8 bits is decided once,
for images of every origin (`jaxpose.data.image_file`).
"""

import contextlib
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from jaxpose.config import DataConfig
from jaxpose.data.image_file import decode_values, refuse_number_kind
from jaxpose.data.orientation import NORMAL, read_orientation
from jaxpose.data.tiff_tags import read_tags
from jaxpose.errors import UserError
from jaxpose.files import sha256_of
from jaxpose.formats.extracted_frames import ExtractedFrames, Image, image_bytes
from jaxpose.formats.sleap_video import SleapVideo
from jaxpose.video.recording import refuse_other

_HDF5 = b"\x89HDF\r\n\x1a\n"
_MOST = 65535


def extract_images(
    video: SleapVideo, frames: list[int], reach_px: np.ndarray, data: DataConfig
) -> dict[int, Path | str]:
    """Returns {frame: its image file in the cache folder}, or in place of the file why it cannot be read.

    Args:
      video: whose images lie in the .slp, or in an HDF5, TIFF or other file that sleap-io reads.
      frames: their numbers.
      reach_px: (2,) the largest x and y of their points.
      data: the limit of the cache folder.

    Raises:
      UserError: the file does not exist, or the images are above the limit.
    """
    path = video.file if video.is_embedded else video.media_file
    if path is None:
        raise UserError(video.absence(0, "its video"))
    given = video.video.backend_metadata
    has_pages = _is_frame_a_page(path, given, frames, reach_px)
    layout = given.get("dataset"), given.get("input_format"), has_pages or given.get("format")
    kept = ExtractedFrames(f"{sha256_of(path)} {layout}", data)
    absent = kept.absent(frames)
    reasons: dict[int, str] = {}
    # Another file may have taken the place of the one whose images are kept.
    if absent or not video.is_embedded:
        with _open(path, given, has_pages) as (read, frame_count):
            if not video.is_embedded and not has_pages:
                _refuse_other_file(path, video, read, frame_count)
            reasons = _store(path, read, kept, absent)
    return {frame: reasons.get(frame, kept.path(frame)) for frame in frames}


def _store(path: Path, read: Callable[[int], Image], kept: ExtractedFrames, frames: list[int]) -> dict[int, str]:
    """Stores the images of frames; returns {frame: why it cannot be read}."""
    reasons: dict[int, str] = {}
    has_room = False
    for frame in frames:
        try:
            image = read(frame)
        except UserError as error:
            reasons[frame] = f"its image cannot be read from {path}: {error}"
            continue
        if not has_room:
            kept.make_room(len(frames), image_bytes(image))
            has_room = True
        kept.store(frame, image)
    return reasons


def _as_rgb(values: np.ndarray) -> np.ndarray:
    """Returns values (h, w, 3) uint8, uint16 or float32; a fourth channel, and the second of two, is transparency."""
    values = values[..., None] if values.ndim == 2 else values
    if values.ndim != 3 or not 1 <= values.shape[2] <= 4:
        raise UserError(f"it has the shape {values.shape}; an image is (height, width) with 1 to 4 channels")
    values = np.repeat(values[..., :1], 3, axis=2) if values.shape[2] < 3 else values[..., :3]
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    if values.dtype.kind not in "biu" or values.min() < 0 or values.max() > _MOST:
        raise UserError(f"it holds {values.dtype} from {values.min()} to {values.max()}; needed are 0 to {_MOST}")
    return values.astype(np.uint8) * np.uint8(255) if values.dtype.kind == "b" else values.astype(np.uint16)


def _refuse_other_file(path: Path, video: SleapVideo, read: Callable[[int], Image], frame_count: int) -> None:
    """Refuses a file with images of another size, or another number of them, than the .slp says."""
    first = read(0)
    if isinstance(first, np.ndarray):
        refuse_other(path, video.recording, (first.shape[1], first.shape[0]), frame_count)


@contextlib.contextmanager
def _open(path: Path, given: dict[str, Any], has_pages: bool) -> Iterator[tuple[Callable[[int], Image], int]]:
    """Yields a function that returns the image of a frame, or raises UserError where there is none, and their number.

    Args:
      path: the file.
      given: what the .slp says about it.
      has_pages: it is a TIFF file in which each page is a frame.
    """
    with open(path, "rb") as stream:
        is_hdf5 = stream.read(len(_HDF5)) == _HDF5
    if has_pages:
        yield lambda frame: _read_page(path, frame), cv2.imcount(str(path), cv2.IMREAD_UNCHANGED)
        return
    with _open_hdf5(path, given) if is_hdf5 else _open_by_sleap(path, given) as opened:
        yield opened


def _is_frame_a_page(path: Path, given: dict[str, Any], frames: list[int], reach_px: np.ndarray) -> bool:
    """Returns whether each page of a TIFF file is a frame.

    With the package tifffile, sleap-io takes a stack of pages for one array of the axes height, width, time. It is one
    if the points lie in its frames; if they only lie in the pages, these are the frames.
    """
    if path.suffix.lower() not in (".tif", ".tiff"):
        return False
    _refuse_number_kind(path)
    if given.get("format") in (None, "multi_page"):
        return True
    if max(frames) >= cv2.imcount(str(path), cv2.IMREAD_UNCHANGED):
        return False
    page_px, shown_px = _read_page(path, 0).shape[1::-1], (given.get("shape") or [0] * 4)[2:0:-1]
    return bool((reach_px >= shown_px).any() and (reach_px < page_px).all())


def _refuse_number_kind(path: Path) -> None:
    if not path.stat().st_size:
        return
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        tags = read_tags(content)
    try:
        refuse_number_kind(tags)
    except UserError as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _read_page(path: Path, frame: int) -> np.ndarray:
    """Returns the values (h, w, 3) of a page of a TIFF file."""
    is_read, pages = cv2.imreadmulti(str(path), start=frame, count=1, flags=cv2.IMREAD_UNCHANGED)
    if not is_read:
        raise UserError(f"it has no page {frame}, or one that is damaged")
    return _as_rgb(pages[0] if pages[0].ndim == 2 else pages[0][..., 2::-1])


@contextlib.contextmanager
def _open_hdf5(path: Path, given: dict[str, Any]) -> Iterator[tuple[Callable[[int], Image], int]]:
    import h5py

    with h5py.File(path, "r") as opened:
        name = given.get("dataset") or ""
        found: Any = opened.get(name) if name else None
        found = found.get("video") if isinstance(found, h5py.Group) else found
        if not isinstance(found, h5py.Dataset):
            raise UserError(f"{path} has no dataset {name!r} with images")
        dataset: Any = found
        numbers = dataset.parent.get("frame_numbers") if dataset.name.endswith("/video") else None
        places = None if numbers is None else {int(number): place for place, number in enumerate(numbers[:])}
        is_encoded = dataset.attrs.get("format", "hdf5") != "hdf5"
        channels = _channel_order(opened, dataset)
        is_grey = _is_grey(given)

        def read(frame: int) -> Image:
            place = frame if places is None else places.get(frame, -1)
            if not 0 <= place < len(dataset):
                raise UserError(f"it has no frame {frame}")
            try:
                values = np.asarray(dataset[place])
            except OSError as error:
                raise UserError(f"it is damaged ({error})") from None
            if is_encoded:
                return _decode(values.astype(np.uint8).tobytes(), channels, is_grey)
            if given.get("input_format") == "channels_first" and values.ndim == 3:
                values = values.transpose(2, 1, 0)
            return _as_rgb(values[..., :1] if is_grey and values.ndim == 3 else values)

        yield read, len(dataset)


def _is_grey(given: dict[str, Any]) -> bool:
    """Returns whether the .slp says that only the first channel counts."""
    is_grey, shape = given.get("grayscale"), given.get("shape")
    return bool(shape and shape[-1] == 1) if is_grey is None else bool(is_grey)


def _channel_order(opened: Any, dataset: Any) -> str:
    """Returns RGB, or BGR if the encoded images have red and blue exchanged: OpenCV encoded them as it has colours."""
    metadata = opened.get("metadata")
    version = metadata.attrs.get("format_id", 0) if metadata is not None else 0
    order = dataset.attrs.get("channel_order", "BGR" if version and version < 1.4 else "RGB")
    return order.decode() if isinstance(order, bytes) else str(order)


def _decode(content: bytes, channels: str, is_grey: bool) -> Image:
    """Returns an encoded image, or its file if that has an orientation, which the label table decides about."""
    values = decode_values(content)
    if channels == "BGR":
        values = values[..., ::-1]
    elif read_orientation(content) != NORMAL:
        return content
    return _as_rgb(values[..., :1] if is_grey else values)


@contextlib.contextmanager
def _open_by_sleap(path: Path, given: dict[str, Any]) -> Iterator[tuple[Callable[[int], Image], int]]:
    from sleap_io.io.video_reading import VideoBackend

    try:
        # Where it is not told, it drops all but the first channel if the first frame it reads looks grey.
        backend = VideoBackend.from_filename(str(path), grayscale=_is_grey(given), format=given.get("format"))
    except Exception as error:
        # The errors of its parsers on damaged files are of any kind.
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {error}") from None

    def read(frame: int) -> Image:
        try:
            values = np.asarray(backend[frame])
        except Exception as error:
            # Of any kind, as above.
            raise UserError(f"{type(error).__name__}: {error}") from None
        return _as_rgb(values)

    try:
        yield read, backend.num_frames
    finally:
        getattr(backend, "close", lambda: None)()
