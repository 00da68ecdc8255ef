"""The recordings of a board: a video or a folder of images for each camera, and the corners in all their frames."""

import concurrent.futures
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
from av.video.reformatter import VideoReformatter

from jaxpose.calibrate.boards import Board
from jaxpose.cameras.board_poses import Detections
from jaxpose.data.cells import one_name, spelling_note
from jaxpose.data.frame_names import FrameNames
from jaxpose.data.image_file import STORED, PixelRule, decode_image
from jaxpose.data.inputs import VIDEO_SUFFIXES
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.progress import phase
from jaxpose.terminal import count
from jaxpose.threads import allowed_cores
from jaxpose.video.decoding import Decoding, Flaw
from jaxpose.video.file import scan, to_rgb

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
# Frames of a camera in which the board is searched; neighbours in a long video show almost the same.
MOST_SEARCHED = 300
_FRAMES_AT_ONCE = 16
# Frames that choose the markers, and that are searched again as mirror images.
_FIRST_LOOKS = 20


@dataclasses.dataclass(frozen=True)
class Recording:
    """The frames of one camera.

    Attributes:
      path: a video, or a folder of images.
      images: {number of a frame: image}; empty for a video.
      frame_count: the frames of a video as announced.
    """

    path: Path
    images: dict[int, Path]
    frame_count: int

    @property
    def last(self) -> int:
        """The highest number of a frame."""
        return max(self.images, default=self.frame_count - 1)

    def frames(self, is_wanted: Callable[[int], bool]) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the numbers and pixels (RGB) of the wanted frames, in order."""
        if self.images:
            for number in sorted(filter(is_wanted, self.images)):
                yield number, decode_image(read_bytes(self.images[number]), PixelRule(STORED))
            return
        video, converter = scan(self.path), VideoReformatter()
        for item in Decoding(video, 0, lambda: False):
            if not isinstance(item, Flaw) and is_wanted(item[0]):
                yield item[0], to_rgb(item[1], converter, video.quarter_turns)


def find_recordings(folder: Path) -> dict[str, Recording]:
    """Returns the recordings of a folder by camera: the name of the video without its ending, or of the subfolder.

    Raises:
      UserError: the folder is absent, or has fewer than two recordings, or two of one name.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder with a board video of each camera")
    found: dict[str, Recording] = {}
    seen: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            images = _numbered([file for file in sorted(path.iterdir()) if file.suffix.lower() in IMAGE_SUFFIXES])
            recording = Recording(path, images, 0) if images else None
        else:
            is_video = path.suffix.lower() in VIDEO_SUFFIXES
            recording = Recording(path, {}, scan(path).expected_frames) if is_video else None
        if recording:
            name = path.name if path.is_dir() else path.stem
            if (other := seen.setdefault(one_name(name), name)) in found:
                note = spelling_note(other, name)
                raise UserError(
                    f"{folder} has {found[other].path.name} and {path.name}{note}: keep one recording per camera"
                )
            found[name] = recording
    _refuse_unnumbered(found)
    if len(found) < 2:
        raise UserError(
            f"{folder} has {count(len(found), 'recording')} ({', '.join(found) or 'none'}); it must have a video, such "
            "as side.mp4, or a folder of images, such as side/, for each of two or more cameras"
        )
    return found


def _numbered(files: list[Path]) -> dict[int, Path]:
    """Returns images by the number in their names that varies; by their order, if some have none or the same."""
    names = FrameNames(file.name for file in files)
    found = {names.number(file.name): file for file in files}
    numbered = {number: file for number, file in found.items() if number is not None}
    return numbered if len(numbered) == len(files) else dict(enumerate(files))


def _refuse_unnumbered(found: dict[str, Recording]) -> None:
    """Raises UserError if images that have no frame numbers are not one for one those of the other cameras."""
    folders = {name: recording for name, recording in found.items() if recording.images}
    counts = {name: len(recording.images) for name, recording in folders.items()}
    names = {name: FrameNames(file.name for file in one.images.values()) for name, one in folders.items()}
    unnumbered = [
        name
        for name, recording in folders.items()
        if any(names[name].number(file.name) != number for number, file in recording.images.items())
    ]
    if unnumbered and (len(unnumbered) < len(folders) or len(set(counts.values())) > 1):
        each = ", ".join(f"{name} {number}" for name, number in counts.items())
        raise UserError(
            f"{folders[unnumbered[0]].path}: the image names contain no frame number, so it is unknown which images of "
            f"the other cameras show the same moment ({each}): give the images of one moment the same number, such as "
            "img007.png"
        )


def detect(board: Board, recordings: dict[str, Recording], wanted: int | None = None) -> Detections:
    """Returns the corners of the board in the frames of all recordings; of long videos, in evenly spaced ones.

    Args:
      board: its markers may be unknown.
      recordings: by camera.
      wanted: number of a frame that is searched in any case.

    Raises:
      UserError: no frame shows the board, or a recording has frames of two sizes.
    """
    every = -(-(max(recording.last for recording in recordings.values()) + 1) // MOST_SEARCHED)
    if any(recording.images for recording in recordings.values()):
        every = 1
    looks = (
        grey for looks in zip(*(_greys(one, every) for one in recordings.values()), strict=False) for _, grey in looks
    )
    board = board.chosen_by(itertools.islice(looks, _FIRST_LOOKS * len(recordings)))
    total = sum(len(one.images) or -(-one.frame_count // every) for one in recordings.values())
    found: list[dict[int, np.ndarray]] = []
    sizes_px = []
    with (
        phase("finding the board", total) as progress,
        concurrent.futures.ThreadPoolExecutor(allowed_cores()) as pool,
    ):
        for name, recording in recordings.items():
            of_camera: dict[int, np.ndarray] = {}
            shapes: set[tuple[int, ...]] = set()
            greys = _greys(recording, every, wanted)
            while some := list(itertools.islice(greys, _FRAMES_AT_ONCE)):
                shapes |= {grey.shape for _, grey in some}
                corners = pool.map(board.find, [grey for _, grey in some])
                of_camera |= dict(zip([number for number, _ in some], corners, strict=True))
                progress.update(len(some))
            if len(shapes) != 1:
                sizes = ", ".join(f"{width} x {height}" for height, width in sorted(shapes)) or "no frame"
                raise UserError(f"{recording.path}: the frames of camera {name} must have one size, not {sizes}")
            refuse_mirrored(board, name, recording, of_camera)
            found.append(of_camera)
            ((height, width),) = shapes
            sizes_px.append((width, height))
    frames = sorted(set().union(*found))
    absent = np.full((len(board.corners), 2), np.nan)
    points_px = np.stack([[of_camera.get(frame, absent) for frame in frames] for of_camera in found])
    return Detections(tuple(recordings), tuple(sizes_px), board.corners, board.square, tuple(frames), points_px)


def refuse_mirrored(board: Board, name: str, recording: Recording, found: dict[int, np.ndarray]) -> None:
    """Raises UserError if a camera never sees the board, but sees it in mirror images of its frames."""
    if any(np.isfinite(pixels[:, 0]).any() for pixels in found.values()):
        return
    looks = set(list(found)[:: max(1, len(found) // _FIRST_LOOKS)])
    for _, image in recording.frames(looks.__contains__):
        if np.isfinite(board.find(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[:, ::-1])[:, 0]).any():
            raise UserError(
                f"mirrored: camera {name} sees the board {board} only in mirror images of its frames: flip "
                f"{recording.path} back, or film without a mirror"
            )


def _greys(recording: Recording, every: int, wanted: int | None = None) -> Iterator[tuple[int, np.ndarray]]:
    for number, image in recording.frames(lambda number: number % every == 0 or number == wanted):
        yield number, cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
