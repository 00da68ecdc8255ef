"""Unlabelled clips: windows of consecutive frames, drawn randomly from videos.

Input: videos, and the number of a draw. Output: the clip's frames from every camera; or no frames and a message if they
do not decode. A draw is always the same clip, regardless of earlier draws.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import itertools
import threading
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from jaxpose import cache, geometry
from jaxpose.config import DataConfig, crop_of_video
from jaxpose.errors import UserError
from jaxpose.video.cache import DecodedFrames, decode_part, open_whole
from jaxpose.video.decoding import Damage, find_damage
from jaxpose.video.index import VideoIndex, as_labelled, describe_rotation, labelled_sizes_px, read_index

# Fits video frames into the input of a clip.
#
# With boxes, all frames of a clip show the same box. Clip losses compare maps of neighbouring frames cell by cell, and
# a context network adds them up, so the frames need one affine: only real motion may appear as motion in the clip.

# Beyond every pixel in both directions.
_FAR_PX = 2**40


@dataclasses.dataclass(frozen=True)
class ClipFit:
    """The part of a video's frames that clips show, and the affines to the input.

    Attributes:
      input_from_frame: (2, 3), or with boxes (n, 2, 3), one per frame.
      crop_px: (x, y, width, height), () for whole frames; or with boxes (n, 4), the same for all frames of a clip,
        width 0 if none has a box.
    """

    input_from_frame: np.ndarray
    crop_px: tuple[int, ...] | np.ndarray

    def affine(self, first: int) -> np.ndarray:
        """Returns input_from_frame (2, 3) of a frame's clip."""
        return self.input_from_frame[first] if self.input_from_frame.ndim == 3 else self.input_from_frame

    def is_shown(self, first: int) -> bool:
        """Returns whether a frame's clip has a box, or needs none."""
        return isinstance(self.crop_px, tuple) or bool(self.crop_px[first, 2])


def fit_clips(index: VideoIndex, data: DataConfig, sequence_length: int, boxes_px: np.ndarray | None) -> ClipFit:
    """Returns how clips show a video's frames.

    Args:
      index: the video.
      data: how to fit frames into the input, and the crop of frames without boxes.
      sequence_length: frames per clip.
      boxes_px: (n, 4) box of each frame, as in `boxes_of_clips`; None without boxes.
    """
    size_px = data.input_width_px, data.input_height_px
    if boxes_px is None:
        crop_px = crop_of_video(data, index.path.stem)
        frame_px = index.width_px, index.height_px
        return ClipFit(geometry.input_from_frame(frame_px, size_px, data.resize, crop_px), crop_px)
    shown_px = boxes_of_clips(boxes_px, sequence_length)
    # Clips without a box are not used, so their affine does not matter.
    affines = geometry.input_from_boxes(np.maximum(shown_px, [0, 0, 1, 1]), size_px, data.resize)
    return ClipFit(affines, shown_px)


def boxes_of_clips(boxes_px: np.ndarray, sequence_length: int) -> np.ndarray:
    """Returns, for each frame (n, 4), the smallest box around all boxes of its clip.

    Clips begin at frames 0, S, 2 S, ...; if the last clip is moved back to end with the video, it shares its box with
    the clip before, because they share frames.

    Args:
      boxes_px: (n, 4) x, y, width and height of each frame's box, width 0 without a box.
      sequence_length: frames per clip (S), at most n.
    """
    clip = np.minimum(np.arange(len(boxes_px)) // sequence_length, len(boxes_px) // sequence_length - 1)
    starts = np.flatnonzero(np.diff(clip, prepend=-1))
    is_box = boxes_px[:, 2:3] > 0
    low = np.minimum.reduceat(np.where(is_box, boxes_px[:, :2], _FAR_PX), starts)
    high = np.maximum.reduceat(np.where(is_box, boxes_px[:, :2] + boxes_px[:, 2:], -_FAR_PX), starts)
    boxes = np.concatenate([low, high - low], axis=1)
    return np.where(boxes[:, 2:3] > 0, boxes, 0)[clip]


# Maps each draw to a window of consecutive frames: the order of clips.

# Separates the clip order from other uses of data.seed.
_ORDER = 3
# Number of frames decoded at once for clips that are not cached: a few GOPs.
_BLOCK_FRAMES = 256


def place(
    draw: int, frame_counts: tuple[int, ...], sequence_length: int, seed: int, mixed_blocks: int = 1
) -> tuple[int, int]:
    """Returns the session number and the first frame number of a draw.

    The windows of a session of n frames begin at 0, S, 2 S, ...; the last window ends with the session, so that every
    frame is in a window. Pass e over all windows shuffles blocks of neighbouring windows, and the windows inside each
    block, so that frames decoded for one clip also serve the next clips. With mixed blocks, the windows of several
    blocks are shuffled together.

    Args:
      draw: not negative.
      frame_counts: frames of each session, at least `sequence_length`.
      sequence_length: frames per clip (S).
      seed: data.seed.
      mixed_blocks: number of blocks to mix.
    """
    window_counts = tuple(window_count(count, sequence_length) for count in frame_counts)
    first_windows = np.cumsum([0, *window_counts])
    epoch, position = divmod(draw, int(first_windows[-1]))
    window = int(_order(seed, epoch, window_counts, block_windows(sequence_length), mixed_blocks)[position])
    session = int(np.searchsorted(first_windows, window, side="right")) - 1
    first = (window - int(first_windows[session])) * sequence_length
    return session, min(first, frame_counts[session] - sequence_length)


def window_count(frame_count: int, sequence_length: int) -> int:
    """Returns how many windows a session has; the last may overlap the window before."""
    return -(-frame_count // sequence_length)


@functools.lru_cache(maxsize=4)
def _order(seed: int, epoch: int, window_counts: tuple[int, ...], of_block: int, mixed_blocks: int) -> np.ndarray:
    """Returns the windows (n,), numbered over all sessions, in the order of a pass."""
    # A block's number is that of its first window; other numbers are not used.
    first_windows = np.cumsum([0, *window_counts[:-1]])
    blocks = [
        first + np.arange(count) // of_block * of_block
        for first, count in zip(first_windows, window_counts, strict=True)
    ]
    block_of_window = np.concatenate(blocks)
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, _ORDER, epoch])))
    rank_of_block = rng.permutation(len(block_of_window))
    _, rank_of_window = np.unique(rank_of_block[block_of_window], return_inverse=True)
    return np.lexsort((rng.random(len(block_of_window)), rank_of_window // mixed_blocks))


def block_around(first: int, frame_count: int, sequence_length: int) -> tuple[int, int]:
    """Returns the frames [start, end) of the block of the clip from frame `first` of a session."""
    length = block_windows(sequence_length) * sequence_length
    # The last window was moved back and may begin before its block; if alone there, it is the block.
    window_start = -(-first // sequence_length) * sequence_length
    start = min(window_start // length * length, frame_count - sequence_length)
    return start, min(start + length, frame_count)


def block_windows(sequence_length: int) -> int:
    """Returns how many neighbouring windows are decoded at once."""
    return max(1, _BLOCK_FRAMES // sequence_length)


# Explains in the log why a clip cannot be used.

# Above this share of a video's clips, one sentence reports all unusable clips.
_MANY = 0.1
# Warns if more than the first number of frames are decoded per delivered frame, after the second number of deliveries.
_HIGH_COST, _COST_FRAMES = 4, 2048


def loss_reasons(index: VideoIndex, damage: list[Damage], first: int, length: int) -> list[str]:
    """Returns why the clip of `length` frames from frame `first` cannot be used; [] if it can."""
    last = first + length - 1
    hit = sorted((one for one in damage if one.first <= last and one.last >= first), key=lambda one: one.first)
    leaps = [f"frames are lost before frame {leap}" for leap in index.leaps if first < leap <= last]
    return [one.reason for one in hit] + leaps


def describe_loss(index: VideoIndex, damage: list[Damage], first: int, length: int, reason: str) -> str:
    """Returns a sentence about an unusable clip, or about the whole video if many of its clips are unusable.

    Args:
      index: the video.
      damage: of the whole video.
      first, length: the clip, in frames.
      reason: why this clip is unusable.
    """
    count = window_count(index.frame_count, length)
    # Only clips next to damage and leaps can be lost, and the last, which may begin before its place.
    near = {count - 1, *(leap // length for leap in index.leaps)}
    near.update(window for one in damage for window in range(one.first // length, one.last // length + 1))
    firsts = [min(window * length, index.frame_count - length) for window in sorted(near) if 0 <= window < count]
    lost = [reasons for window in firsts if (reasons := loss_reasons(index, damage, window, length))]
    if 1 < len(lost) > _MANY * count:
        places = len({text for reasons in lost for text in reasons})
        more = f" (and {places - 1} more places)" if places > 1 else ""
        return f"{index.path}: {len(lost)} of its {count} clips are not used: {lost[0][0]}{more}"
    which = f"frame {first} is" if length == 1 else f"frames {first} to {first + length - 1} are"
    return f"{index.path}: {which} not used: {reason}"


def describe_cost(decoded: int, delivered: int, fix: str) -> str:
    """Returns a warning if far more frames were decoded than delivered, or ""."""
    if delivered < _COST_FRAMES or decoded <= _HIGH_COST * delivered:
        return ""
    return f"{decoded / delivered:.1f} frames are decoded for each frame of a clip; {fix}"


# Results that one thread makes for several, such as decoded videos.

Result = TypeVar("Result")


class Once(Generic[Result]):
    """Holds results by key; threads wait for a result in progress and do not make it twice."""

    def __init__(self, limit: int | None = None):
        """Holds the `limit` most recently used results; None means all."""
        self._limit = limit
        self._lock = threading.Lock()
        self._held: collections.OrderedDict[Hashable, concurrent.futures.Future[Result]] = collections.OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """Returns the result for a key; makes it if necessary.

        An error of `make` is raised in every waiting thread and not held. `make` must not call `get`: two threads could
        then wait for each other.
        """
        with self._lock:
            future = self._held.get(key)
            is_mine = future is None
            if future is None:
                future = self._held[key] = concurrent.futures.Future()
            self._held.move_to_end(key)
            while self._limit is not None and len(self._held) > self._limit:
                self._held.popitem(last=False)
        if is_mine:
            try:
                future.set_result(make())
            except BaseException as error:
                future.set_exception(error)
                with self._lock:
                    self._held.pop(key, None)
        return future.result()


# Checks videos of the same moments from several cameras.


def check_session(session: tuple[VideoIndex, ...], sequence_length: int, data: DataConfig) -> None:
    """Checks that clips can be read from the videos of a session.

    Raises:
      UserError: the videos differ in length or are shorter than a clip, or a frame is smaller than data.crop_px.
    """
    first = session[0]
    for index in session:
        if index.frame_count != first.frame_count:
            raise UserError(
                f"{index.path} has {index.frame_count} frames, but {first.path} of the same session has "
                f"{first.frame_count}; the cameras of a session must have the same frames"
            )
        if index.frame_count < sequence_length:
            raise UserError(
                f"{index.path} has {index.frame_count} frames, but a clip holds {sequence_length}; remove the video "
                "or, if a loss on clips is on, lower video.sequence_length (video.context_sequence_length for context "
                "models)"
            )
        size_px = (index.width_px, index.height_px)
        crop_px = crop_of_video(data, index.path.stem)
        if crop_px and np.any(np.add(crop_px[:2], crop_px[2:]) > size_px):
            option = "data.crop_px" if crop_px == data.crop_px else "its crop in data.video_crops_px"
            raise UserError(
                f"{index.path} has frames of {size_px[0]} x {size_px[1]} pixels; {option} = {crop_px} reaches beyond "
                "them"
            )


# Number of blocks of neighbouring clips in memory for each camera, for clips that are not cached.
_HELD_BLOCKS = 4
_LISTED_REASONS = 3


class UnusableClips(RuntimeError):
    """No clip can be used."""


def open_clips(
    sessions: Sequence[tuple[Path, ...]],
    sequence_length: int,
    data: DataConfig,
    cache_mode: str = "auto",
    boxes_px: Mapping[Path, np.ndarray] = types.MappingProxyType({}),
    mixed_blocks: int = 1,
) -> "ClipSource":
    """Returns the clips of videos; reads each video's packets once, without decoding.

    Args:
      sessions: one or more in a fixed order, each with a video per camera.
      sequence_length: frames per clip.
      data: how to fit frames into the input, whose size must be set; the seed of the order; the cache limit.
        cache_mode: video.cache: auto, off, or a folder.
      boxes_px: {video: (n, 4) box of each frame}, width 0 without a box; empty without boxes.
      mixed_blocks: see `jaxpose.video.clips.place`.

    Raises:
      UserError: a file is not a video or has no frames; a session is shorter than a clip or its videos differ in
        length; or a frame is smaller than data.crop_px.
    """
    found, labelled_px = [tuple(read_index(path) for path in session) for session in sessions], labelled_sizes_px(data)
    indexes = [tuple(as_labelled(index, labelled_px) for index in session) for session in found]
    for session in indexes:
        check_session(session, sequence_length, data)
    fits = {
        index.path: fit_clips(index, data, sequence_length, boxes_px.get(index.path))
        for index in itertools.chain(*indexes)
    }
    source = ClipSource(indexes, sequence_length, data, cache_mode, fits, mixed_blocks)
    rotations = [describe_rotation(index, labelled_px) for session in found for index in session]
    source.notes = [*filter(None, rotations), *source.notes]
    return source


class ClipSource:
    """Reads clips by draw number, from any thread.

    With a cache, each video is decoded into the cache folder once, when first needed. Videos beyond the limit are
    decoded whenever needed, a block of neighbouring clips at a time.

    Attributes:
      sessions: the videos of each session, one for each camera.
      views, frame_count: number of cameras, and of one camera's frames in all videos together.
      size_px: (width, height) of the frames.
      notes: sentences about the videos and the cache for the start of the log.
      decoded_frames, delivered_frames: number of frames decoded and delivered for clips that are not cached.
    """

    def __init__(
        self,
        sessions: list[tuple[VideoIndex, ...]],
        sequence_length: int,
        data: DataConfig,
        cache_mode: str,
        fits: Mapping[Path, ClipFit],
        mixed_blocks: int,
        frame_counts: Sequence[int] = (),
    ):
        """Like `open_clips`, for indexed and checked videos, with all their frames or those of `frame_counts`."""
        self.views = len(sessions[0])
        self.size_px = (data.input_width_px, data.input_height_px)
        self.decoded_frames: int = 0
        self.delivered_frames: int = 0
        self.sessions, self._length, self._data = sessions, sequence_length, data
        self._frame_counts = tuple(frame_counts or (session[0].frame_count for session in sessions))
        self.frame_count = sum(self._frame_counts)
        self._folder = None if cache_mode in ("auto", "off") else Path(cache_mode).expanduser()
        self._fits, self._lock = fits, threading.Lock()
        # Whole videos by path; blocks by path and first frame.
        self._whole: Once[DecodedFrames] = Once()
        self._blocks: Once[DecodedFrames] = Once(_HELD_BLOCKS * self.views * mixed_blocks)
        self._mixed_blocks = mixed_blocks
        self._messages: dict[str, bool] = {}
        self._is_cost_reported = self._is_closed = False
        self._cached, self.notes = self._plan_cache(cache_mode)

    def place(self, draw: int) -> tuple[int, int]:
        """Returns the session number and the first frame number of a draw."""
        return place(draw, self._frame_counts, self._length, self._data.seed, self._mixed_blocks)

    def name(self, draw: int) -> str:
        """Returns the name of a draw's clip for messages."""
        session, first = self.place(draw)
        names = ", ".join(index.path.name for index in self.sessions[session])
        return f"{names}, frames {first} to {first + self._length - 1}"

    def frame_from_input(self, draw: int) -> np.ndarray:
        """Returns the affines (v, 2, 3) float32 from input pixels to each camera's frame pixels."""
        session, first = self.place(draw)
        affines = np.stack([self._fits[index.path].affine(first) for index in self.sessions[session]])
        return geometry.invert(affines).astype(np.float32)

    def frames(self, draw: int) -> np.ndarray | None:
        """Returns the clip of a draw, uint8 RGB (v, S, height, width, 3), or None if any frame is unusable.

        Whether a clip is usable depends only on the files, not on cache, host or thread.

        Raises:
          OSError: the cache folder cannot be written.
          Stopped: the source is closed and the clip is not yet decoded.
        """
        session, first = self.place(draw)
        views = []
        for view in range(self.views):
            frames = self._read(session, view, first)
            if isinstance(frames, str):
                with self._lock:
                    self._messages.setdefault(frames, False)
                return None
            views.append(frames)
        return np.stack(views)

    def require_usable(self, draw: int) -> None:
        """Reads clips until one is usable, starting with the draw that the next step needs.

        Raises:
          UnusableClips: no clip in a whole pass is usable.
          OSError, Stopped: as `frames`.
        """
        windows = sum(window_count(count, self._length) for count in self._frame_counts)
        begin = draw // windows * windows
        delivered = self.delivered_frames
        is_usable = any(self.frames(at) is not None for at in itertools.chain([draw], range(begin, begin + windows)))
        # These clips were only read for the check.
        self.delivered_frames = delivered
        if not is_usable:
            reasons, videos = self.messages(), f"{len(self.files())} video{'s' * (len(self.files()) > 1)}"
            more = f"; and {len(reasons) - _LISTED_REASONS} more" if len(reasons) > _LISTED_REASONS else ""
            raise UnusableClips(
                f"none of the {windows} clips of {videos} can be used, so the losses on video would learn nothing: "
                f"{'; '.join(reasons[:_LISTED_REASONS])}{more}. Repair or remove the videos, or set the weights of the "
                "losses on video to 0"
            )

    def close(self) -> None:
        """Ends decoding in all threads at the next frame; signal handlers may call it."""
        self._is_closed = True

    def files(self) -> list[Path]:
        """Returns the videos by session."""
        return list(dict.fromkeys(index.path for session in self.sessions for index in session))

    def messages(self) -> list[str]:
        """Returns a sentence for each new unusable clip since the last call.

        If more than a tenth of a video's clips are unusable, one sentence reports all of them. Includes the warning of
        `cost_warning` once.
        """
        with self._lock:
            new = [text for text, is_reported in self._messages.items() if not is_reported]
            self._messages.update(dict.fromkeys(new, True))
            if not self._is_cost_reported and (warning := self.cost_warning()):
                self._is_cost_reported = True
                new.append(warning)
        return new

    def cost_warning(self) -> str:
        """Returns a warning if far more frames are decoded than delivered, or ""."""
        fix = "use video.cache=auto with a larger data.cache_limit_gib, or re-encode the videos with more key frames"
        return describe_cost(self.decoded_frames, self.delivered_frames, fix)

    def _plan_cache(self, cache_mode: str) -> tuple[frozenset[Path], list[str]]:
        """Returns the videos to cache, and sentences about the videos and the cache."""
        indexes = [index for session in self.sessions for index in session]
        notes = [index.problem for index in indexes if index.problem]
        if cache_mode == "off":
            return frozenset(), notes
        sizes = np.cumsum([index.frame_count * 3 * self.size_px[0] * self.size_px[1] for index in indexes])
        fitting = int(np.searchsorted(sizes, self._data.cache_limit_gib * cache.GIB, side="right"))
        folder = self._folder or cache.cache_folder()
        if fitting:
            notes.append(
                f"{fitting} of {len(indexes)} videos are decoded once, {sizes[fitting - 1] / cache.GIB:.2f} GiB, into "
                f"{folder}"
            )
        if fitting < len(indexes):
            notes.append(
                f"{len(indexes) - fitting} of {len(indexes)} videos are decoded again in every pass: all of them take "
                f"{sizes[-1] / cache.GIB:.2f} GiB, more than data.cache_limit_gib = {self._data.cache_limit_gib:g}"
            )
        return frozenset(index.path for index in indexes[:fitting]), notes

    def _read(self, session: int, view: int, first: int) -> np.ndarray | str:
        """Returns one camera's frames of a clip, or a sentence about why they are unusable."""
        index = self.sessions[session][view]
        last, fit = first + self._length - 1, self._fits[index.path]
        if not fit.is_shown(first):
            frames = f"the clip of frames {first} to {last} is left out: none of them has a box"
            # For single frames, one sentence covers all.
            return f"{index.path}: {frames if self._length > 1 else 'frames without a box are left out'}"
        if index.path in self._cached:
            affine, limit_gib = fit.input_from_frame, self._data.cache_limit_gib
            held = self._whole.get(
                index.path,
                lambda: open_whole(
                    index, affine, self.size_px, self._folder, limit_gib, lambda: self._is_closed, fit.crop_px
                ),
            )
        else:
            start, end = block_around(first, index.frame_count, self._length)
            held = self._blocks.get((index.path, start), lambda: self._decode(index, start, end, fit))
            with self._lock:
                self.delivered_frames += self._length
        if reasons := loss_reasons(index, held.damage, first, self._length):
            damage = held.damage
            if damage and index.path not in self._cached:
                # The block may have only part of the video's damage.
                damage = find_damage(index, lambda: self._is_closed)
            return describe_loss(index, damage, first, self._length, reasons[0])
        return held.pixels[first - held.first : last + 1 - held.first]

    def _decode(self, index: VideoIndex, start: int, end: int, fit: ClipFit) -> DecodedFrames:
        affine = fit.input_from_frame
        decoded, count = decode_part(index, start, end, affine, self.size_px, lambda: self._is_closed, fit.crop_px)
        with self._lock:
            self.decoded_frames += count
        return decoded
