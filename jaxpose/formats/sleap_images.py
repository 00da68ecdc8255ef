"""A SLEAP file's labelled images outside videos: images in the .slp itself, HDF5 arrays, TIFF stacks.

The cache folder keeps them as image files with all their bits; `jaxpose.data.image_file` converts them to 8 bits, as it
does all other images.
"""

import contextlib
import hashlib
import mmap
import os
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import cv2
import numpy as np

from jaxpose import cache
from jaxpose.config import DataConfig
from jaxpose.data.image_file import NORMAL, decode_values, read_orientation, read_tags, refuse_number_kind
from jaxpose.data.inputs import VIDEO_SUFFIXES
from jaxpose.data.named_files import Match, find_files
from jaxpose.errors import UserError
from jaxpose.files import open_atomic, sha256_of
from jaxpose.formats import sleap_extras
from jaxpose.hdf5_file import read_hdf5
from jaxpose.terminal import count, listed
from jaxpose.threads import map_in_threads
from jaxpose.video.decoding import RangeReader
from jaxpose.video.file import scan
from jaxpose.video.index import VideoIndex
from jaxpose.video.recording import Recording, check_recording, read_recording, refuse_other

# Stores video frames as image files in the cache folder, each decoded once.

# Part of the file names: increase it when the pixels change.
_VERSION = 2
# The frames in memory that a thread decodes in one pass, and the largest distance between two of them.
_SEGMENT_BYTES, _NEIGHBOURS = 2**26, 8
# For 8-bit, 16-bit and float frames, and for image files copied unchanged.
_SUFFIXES = (".bmp", ".ppm", ".pfm", ".png", ".jpg")

# Values (height, width, 3) RGB, uint8, uint16 or float32; or the content of a PNG or JPEG file.
Image = np.ndarray | bytes


class ExtractedFrames:
    """The image files of one video's frames: BMP, because its bytes depend only on the pixels.

    Frames of more than 8 bits keep all bits as PPM or PFM files, whose bytes also depend only on the pixels.
    """

    def __init__(self, key: str, data: DataConfig) -> None:
        """Takes a name that is unique to the video's content, and the cache folder's limit."""
        digest = hashlib.sha256(f"{_VERSION} {key}".encode()).hexdigest()
        self._folder, self._prefix = cache.cache_folder() / "images", digest[:32]
        self._limit_gib = data.cache_limit_gib

    def path(self, frame: int) -> Path:
        """Returns the file of a frame, which may not exist."""
        files = [self._folder / f"{self._prefix}-{frame}{suffix}" for suffix in _SUFFIXES]
        return next((file for file in files if file.exists()), files[0])

    def absent(self, frames: Sequence[int]) -> list[int]:
        """Returns the missing frames, and marks the others as used now."""
        found = []
        for frame in frames:
            try:
                os.utime(self.path(frame))
            except OSError:
                found.append(frame)
        return found

    def make_room(self, count: int, frame_bytes: int) -> None:
        """Removes the least recently used frames to make room for `count` frames of so many bytes.

        Raises:
          UserError: these frames alone exceed the cache folder's limit.
        """
        needed = count * frame_bytes
        if needed > self._limit_gib * cache.GIB:
            raise UserError(
                f"{count} labelled frames take {needed / cache.GIB:.2f} GiB, more than data.cache_limit_gib = "
                f"{self._limit_gib:g}; raise this limit"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        cache.make_room(self._folder, self._limit_gib * cache.GIB - needed, _SUFFIXES)

    def store(self, frame: int, image: Image) -> None:
        """Writes a frame.

        Raises:
          OSError: the disk is full.
        """
        content, suffix = _encode(image)
        file = self._folder / f"{self._prefix}-{frame}{suffix}"
        with open_atomic(file, sync=False) as stream:
            stream.write(content)


def image_bytes(image: Image) -> int:
    """Returns the maximum file size of an image."""
    if isinstance(image, bytes):
        return len(image)
    height, width = image.shape[:2]
    # BMP rows are padded to 4 bytes.
    return 3 * (width + 1) * height * image.itemsize + 64


def _encode(image: Image) -> tuple[bytes, str]:
    """Returns the content and the suffix of an image file."""
    if isinstance(image, bytes):
        return image, ".png" if image.startswith(b"\x89PNG") else ".jpg"
    height, width = image.shape[:2]
    if image.dtype == np.uint8:
        return cv2.imencode(".bmp", cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2BGR))[1].tobytes(), ".bmp"
    if image.dtype == np.uint16:
        return b"P6 %d %d 65535\n" % (width, height) + image.astype(">u2").tobytes(), ".ppm"
    # The last row comes first.
    return b"PF\n%d %d\n-1.0\n" % (width, height) + image[::-1].astype("<f4").tobytes(), ".pfm"


def frames_of_video(path: Path, frames: Sequence[int], recording: Recording, data: DataConfig) -> dict[int, Path | str]:
    """Returns {frame: its image file, or the reason why it cannot be used}.

    Args:
      path: the video.
      frames: numbers from 0 in display order.
      recording: the label file's facts about the video; the size decides whether a rotation is applied.
      data: the cache folder's limit, and the number of threads.

    Raises:
      UserError: the file is not a video, or another recording; or the frames exceed the limit.
      OSError: the disk is full.
    """
    index = read_recording(path, recording)
    kept = ExtractedFrames(f"{index.identity} {index.quarter_turns}", data)
    absent = kept.absent(frames)
    frame_bytes = image_bytes(np.empty((index.height_px, index.width_px, 3), np.uint8))
    kept.make_room(len(absent), frame_bytes)
    outside = f"{path} has only the frames 0 to {index.frame_count - 1}"
    reasons = {frame: outside for frame in absent if not 0 <= frame < index.frame_count}
    segments = _segments([frame for frame in absent if frame not in reasons], _SEGMENT_BYTES // frame_bytes)
    title = f"extracting {count(len(absent), 'frame')} of {path.name}"
    for of_segment in map_in_threads(lambda segment: _extract(index, segment, kept), segments, data.threads, title):
        reasons |= of_segment
    return {frame: reasons.get(frame, kept.path(frame)) for frame in frames}


def _segments(frames: Sequence[int], most: int) -> list[list[int]]:
    """Returns the frames in groups of neighbours, of `most` frames or one: each is decoded in one pass."""
    segments: list[list[int]] = []
    for frame in sorted(frames):
        if segments and frame - segments[-1][-1] <= _NEIGHBOURS and len(segments[-1]) < most:
            segments[-1].append(frame)
        else:
            segments.append([frame])
    return segments


def _extract(index: VideoIndex, frames: list[int], kept: ExtractedFrames) -> dict[int, str]:
    """Stores frames of a video; returns {frame: why it cannot be decoded}."""
    size_px = index.width_px, index.height_px
    reader = RangeReader(index, frames[0], frames[-1] + 1, np.eye(2, 3), size_px)
    wanted = {*frames}
    # Of two images of a frame, the later is right.
    images = {frame: image for frame, image in reader if frame in wanted}
    faults: dict[int, str] = {}
    for frame in frames:
        reasons = [damage.reason for damage in reader.damage if damage.first <= frame <= damage.last]
        if reasons or frame not in images:
            faults[frame] = f"the frame of {index.path} cannot be decoded" + f": {reasons[0]}" * bool(reasons)
        else:
            kept.store(frame, images[frame])
    return faults


# A SLEAP file's video: its images, its file on this machine, and its name in tables.

_LISTED = 5


class SleapVideo:
    """A video of the file.

    Attributes:
      video: from sleap-io.
      names: the paths in the file: one, or one for each image of a sequence.
      matches: the files found for these paths; empty for a package that does not name its video.
      is_embedded: whether the file itself holds the images.
      is_of_images: whether the paths are of images, even if the file also holds them.
      image_stems: {frame: name of its image file, without suffix} of a sequence whose images all have different names.
      media_file: the video file on this machine, or None.
      recording: the file's facts about the video.
    """

    def __init__(self, file: Path, number: int, video: Any) -> None:
        self.file, self.video = file, video
        source = video.filename
        self.is_embedded = not isinstance(source, list) and (source == "." or Path(source) == file)
        described = video.source_video if self.is_embedded else video
        source = described.filename if described is not None else f"video{number}"
        self.names = [str(name) for name in source] if isinstance(source, list) else [str(source)]
        self.matches: list[Match] = []
        self.is_of_images = isinstance(source, list)
        self.is_sequence = self.is_of_images and not self.is_embedded
        self.media_file: Path | None = None
        self.recording = sleap_extras.read_recording(described, self.names[0])
        stems = [PureWindowsPath(name).stem for name in self.names] if isinstance(source, list) else []
        self.image_stems = dict(enumerate(stems)) if len(set(stems)) == len(stems) else {}
        self.has_path = described is not None

    @property
    def refusal_of_crop(self) -> str:
        """Why a video that is a crop cannot be used, and the fix."""
        return f"{self.names[0]} is a crop made by sleap-io; save the labels with the whole video"

    def absence(self, number: int, noun: str) -> str:
        """Returns why a path has no file, and the fix."""
        match = self.matches[number]
        if match.reason:
            return match.reason
        return f"{noun} {self.names[number]} does not exist; put it at {self.file.parent / match.end}"


def read_videos(file: Path, labels: Any) -> list[SleapVideo]:
    """Returns the videos of a file read by sleap-io, with their files on this machine."""
    videos = [SleapVideo(file, number, video) for number, video in enumerate(labels.videos)]
    # A relative path starts in the folder where the labels were made, which may differ from the file's folder.
    found = find_files([name for video in videos if video.has_path for name in video.names], [[file.parent]])
    for video in videos:
        video.matches = [found[name] for name in video.names] if video.has_path else []
        if len(video.matches) == 1 and not video.is_sequence:
            video.media_file = video.matches[0].file
    return videos


def files_of_videos(
    videos: list[SleapVideo], names: list[str], labelled: Container[int]
) -> tuple[dict[str, Path], list[str]]:
    """Returns {name: file} of existing videos, and sentences about unused videos.

    Args:
      videos: of the file.
      names: of the videos, from `video_names`.
      labelled: numbers of the videos with labels; problems of these are reported by row.
    """
    files, notes, absent = {}, [], []
    for number, (video, name) in enumerate(zip(videos, names, strict=True)):
        needs_no_file = video.is_embedded or number not in labelled
        if video.media_file is None:
            reason = video.matches[0].reason if video.matches and not video.is_sequence else ""
            notes += [f"not used: {reason}"] * bool(reason and needs_no_file)
            absent += [name] * bool(not reason and not video.is_sequence and number not in labelled)
            continue
        try:
            if video.media_file.suffix.lower() in VIDEO_SUFFIXES:
                check_recording(scan(video.media_file), video.recording)
            files[name] = video.media_file
        except UserError as error:
            notes += [f"not used: {error}"] * needs_no_file
    if absent:
        notes.append(f"{count(len(absent), 'video')} not found: {listed(absent, _LISTED)}")
    return files, notes


def firsts_of_files(videos: list[SleapVideo]) -> list[int]:
    """Returns, for each video, the number of the first with its file: after a merge, SLEAP may list a file twice."""
    first: dict[Path, int] = {}
    return [
        number if video.media_file is None or video.is_embedded else first.setdefault(video.media_file, number)
        for number, video in enumerate(videos)
    ]


def video_names(videos: list[SleapVideo]) -> list[str]:
    """Returns distinct video names: the file names, preceded by folders or numbers if needed.

    Entries for one file share a name.
    """

    def name(video: SleapVideo) -> str:
        path = PureWindowsPath(video.names[0])
        return path.parent.name if len(video.names) > 1 or video.is_sequence else path.stem

    def longer(video: SleapVideo) -> str:
        return f"{PureWindowsPath(video.names[0]).parent.name}_{name(video)}"

    firsts = firsts_of_files(videos)
    names = {number: name(videos[number]) for number in firsts}
    for better in (longer, lambda video: f"{videos.index(video)}_{name(video)}"):
        counts = Counter(names.values())
        names = {number: better(videos[number]) if counts[text] > 1 else text for number, text in names.items()}
    return [names[number] for number in firsts]


_MOST = 65535


def extract_images(
    video: SleapVideo, frames: list[int], reach_px: np.ndarray, data: DataConfig
) -> dict[int, Path | str]:
    """Returns {frame: its image file in the cache folder, or why it cannot be read}.

    Args:
      video: its images are in the .slp, or in an HDF5, TIFF or other file that sleap-io reads.
      frames: their numbers.
      reach_px: (2,) the largest x and y of their points.
      data: has the cache folder's limit.

    Raises:
      UserError: the file does not exist, or the images exceed the limit.
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
    # The file may have been replaced since its images were stored.
    if absent or not video.is_embedded:
        with _open(path, given, has_pages) as (read, frame_count):
            if not video.is_embedded and not has_pages:
                _refuse_other_file(path, video, read, frame_count)
            reasons = _store(path, read, kept, absent)
    return {frame: reasons.get(frame, kept.path(frame)) for frame in frames}


def _store(path: Path, read: Callable[[int], Image], kept: ExtractedFrames, frames: list[int]) -> dict[int, str]:
    """Stores frame images; returns {frame: why it cannot be read}."""
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
    """Returns values (h, w, 3) uint8, uint16 or float32, without a transparency channel (4th, or 2nd of 2)."""
    values = values[..., None] if values.ndim == 2 else values
    if values.ndim != 3 or not 1 <= values.shape[2] <= 4:
        raise UserError(f"it has the shape {values.shape}; an image is (height, width) with 1 to 4 channels")
    values = np.repeat(values[..., :1], 3, axis=2) if values.shape[2] < 3 else values[..., :3]
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    if values.dtype.kind not in "biu" or values.min() < 0 or values.max() > _MOST:
        raise UserError(
            f"it holds {values.dtype} from {values.min()} to {values.max()}; they must be from 0 to {_MOST}"
        )
    return values.astype(np.uint8) * np.uint8(255) if values.dtype.kind == "b" else values.astype(np.uint16)


def _refuse_other_file(path: Path, video: SleapVideo, read: Callable[[int], Image], frame_count: int) -> None:
    """Refuses a file whose image size or number of images differs from the .slp."""
    first = read(0)
    if isinstance(first, np.ndarray):
        refuse_other(path, video.recording, (first.shape[1], first.shape[0]), frame_count)


@contextlib.contextmanager
def _open(path: Path, given: dict[str, Any], has_pages: bool) -> Iterator[tuple[Callable[[int], Image], int]]:
    """Yields a function that returns a frame's image or raises UserError, and the number of images.

    Args:
      path: the file.
      given: the .slp's facts about it.
      has_pages: whether it is a TIFF file in which each page is a frame.
    """
    if has_pages:
        yield lambda frame: _read_page(path, frame), cv2.imcount(str(path), cv2.IMREAD_UNCHANGED)
        return
    import h5py

    # Its signature may follow a block of the user's.
    with _open_hdf5(path, given) if h5py.is_hdf5(path) else _open_by_sleap(path, given) as opened:
        yield opened


def _is_frame_a_page(path: Path, given: dict[str, Any], frames: list[int], reach_px: np.ndarray) -> bool:
    """Returns whether each page of a TIFF file is a frame.

    With the package tifffile, sleap-io reads a stack of pages as an array with axes height, width, time. That is right
    if the points lie in its frames; if they only lie in the pages, the pages are frames.
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
    """Returns the values (h, w, 3) of a TIFF page."""
    try:
        is_read, pages = cv2.imreadmulti(str(path), start=frame, count=1, flags=cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise UserError(f"its page {frame} cannot be read: {error.err}") from None
    if not is_read:
        raise UserError(f"it has no page {frame}, or one that is damaged")
    return _as_rgb(pages[0] if pages[0].ndim == 2 else pages[0][..., 2::-1])


@contextlib.contextmanager
def _open_hdf5(path: Path, given: dict[str, Any]) -> Iterator[tuple[Callable[[int], Image], int]]:
    with read_hdf5(path) as opened:
        try:
            dataset, places = _find_images(path, opened, given)
            is_encoded = dataset.attrs.get("format", "hdf5") != "hdf5"
            channels = _channel_order(opened, dataset)
        except (OSError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(f"{path} is damaged ({error})") from None
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
                return _decode_image(values.astype(np.uint8).tobytes(), channels, is_grey)
            if given.get("input_format") == "channels_first" and values.ndim == 3:
                values = values.transpose(2, 1, 0)
            return _as_rgb(values[..., :1] if is_grey and values.ndim == 3 else values)

        yield read, len(dataset)


def _find_images(path: Path, opened: Any, given: dict[str, Any]) -> tuple[Any, dict[int, int] | None]:
    """Returns the dataset with the images, and {frame: place in it}, None if these are equal."""
    import h5py

    name = given.get("dataset") or ""
    found: Any = opened.get(name) if name else None
    found = found.get("video") if isinstance(found, h5py.Group) else found
    if not isinstance(found, h5py.Dataset) or not found.shape:
        raise UserError(f"{path} has no dataset {name!r} with images")
    dataset: Any = found
    numbers = dataset.parent.get("frame_numbers") if dataset.name.endswith("/video") else None
    if numbers is None:
        return dataset, None
    numbers = np.asarray(numbers)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise UserError(f"{path} has frame_numbers for {name!r} that are not whole numbers")
    return dataset, {number: place for place, number in enumerate(numbers.tolist())}


def _is_grey(given: dict[str, Any]) -> bool:
    """Returns whether the .slp uses only the first channel."""
    is_grey, shape = given.get("grayscale"), given.get("shape")
    return bool(shape and shape[-1] == 1) if is_grey is None else bool(is_grey)


def _channel_order(opened: Any, dataset: Any) -> str:
    """Returns RGB, or BGR if OpenCV encoded the images in its own colour order."""
    metadata = opened.get("metadata")
    version = metadata.attrs.get("format_id", 0) if metadata is not None else 0
    order = dataset.attrs.get("channel_order", "BGR" if version and version < 1.4 else "RGB")
    return order.decode() if isinstance(order, bytes) else str(order)


def _decode_image(content: bytes, channels: str, is_grey: bool) -> Image:
    """Returns an encoded image, or its file if that has an orientation, which the label table handles."""
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
        # By default, it keeps only the first channel if the first frame it reads looks grey.
        backend = VideoBackend.from_filename(str(path), grayscale=_is_grey(given), format=given.get("format"))
        frames = backend.num_frames
    except Exception as error:
        # On damaged files, its parsers may raise any error.
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {error}") from None

    def read(frame: int) -> Image:
        try:
            values = np.asarray(backend[frame])
        except Exception as error:
            # Any error, as above.
            raise UserError(f"{type(error).__name__}: {error}") from None
        return _as_rgb(values)

    try:
        yield read, frames
    finally:
        getattr(backend, "close", lambda: None)()
