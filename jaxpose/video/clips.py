"""Unlabelled clips: windows of consecutive frames, drawn at random from videos.

Input: videos, and the number of a draw. Output: the frames of its clip, of every camera; or, if they do not decode,
none and a message. A draw is always the same clip, whichever draws were read before.
"""

import itertools
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxpose import cache, geometry
from jaxpose.config import DataConfig
from jaxpose.video.cache import DecodedFrames, decode_part, open_whole
from jaxpose.video.clip_fit import ClipFit, fit_clips
from jaxpose.video.clip_loss import describe_cost, describe_loss, loss_reasons
from jaxpose.video.clip_order import block_around, place, window_count
from jaxpose.video.index import VideoIndex, read_index
from jaxpose.video.once import Once
from jaxpose.video.range import find_damage
from jaxpose.video.rotation import as_labelled, describe_rotation, labelled_sizes_px
from jaxpose.video.session import check_session

# Blocks of neighbouring clips held in memory for each camera, if clips are not read from the cache.
_HELD_BLOCKS = 4
_LISTED_REASONS = 3


class UnusableClips(RuntimeError):
    """None of the clips can be used."""


def open_clips(
    sessions: Sequence[tuple[Path, ...]],
    sequence_length: int,
    data: DataConfig,
    cache_mode: str = "auto",
    boxes_px: Mapping[Path, np.ndarray] = types.MappingProxyType({}),
    mixed_blocks: int = 1,
) -> "ClipSource":
    """Returns the clips of videos; reads the packets of each video once, and decodes nothing yet.

    Args:
      sessions: one or more in a fixed order, the videos of each, one a camera.
      sequence_length: frames of a clip.
      data: how frames are fitted into the input, whose size must be filled in; the seed of the order; the limit of the
        cache.
      cache_mode: video.cache: auto, off, or a folder.
      boxes_px: {video: (n, 4)}, the box of each frame, width 0 without one; empty without boxes.
      mixed_blocks: see `jaxpose.video.clip_order.place`.

    Raises:
      UserError: a file is no video or has no frames; a session is shorter than a clip; its videos
        are of unequal length; a frame is smaller than data.crop_px.
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
    """Reads clips by the number of their draw, from any thread.

    With a cache, each video is decoded once, when it is first needed, into the cache folder. Videos beyond its limit
    are decoded whenever they are needed, a block of neighbouring clips at a time.

    Attributes:
      views, frame_count: cameras, and frames of one of them, of all videos together.
      size_px: (width, height) of the frames.
      notes: sentences about the videos and the cache, for the start of the log.
      decoded_frames, delivered_frames: frames decoded, and handed out, for clips that are not read from the cache.
    """

    def __init__(
        self,
        sessions: list[tuple[VideoIndex, ...]],
        sequence_length: int,
        data: DataConfig,
        cache_mode: str,
        fits: Mapping[Path, ClipFit],
        mixed_blocks: int,
    ):
        """As `open_clips`, for videos that were indexed and checked."""
        self.views = len(sessions[0])
        self.size_px = (data.input_width_px, data.input_height_px)
        self.decoded_frames = self.delivered_frames = 0
        self._sessions, self._length, self._data = sessions, sequence_length, data
        self._frame_counts = tuple(session[0].frame_count for session in sessions)
        self.frame_count = sum(self._frame_counts)
        self._folder = None if cache_mode in ("auto", "off") else Path(cache_mode).expanduser()
        self._fits, self._lock = fits, threading.Lock()
        # Whole videos by path, blocks by path and first frame.
        self._whole: Once[DecodedFrames] = Once()
        self._blocks: Once[DecodedFrames] = Once(_HELD_BLOCKS * self.views * mixed_blocks)
        self._mixed_blocks = mixed_blocks
        self._messages: dict[str, bool] = {}
        self._is_cost_reported = self._is_closed = False
        self._cached, self.notes = self._plan_cache(cache_mode)

    def place(self, draw: int) -> tuple[int, int]:
        """Returns the number of the session and that of the first frame of a draw."""
        return place(draw, self._frame_counts, self._length, self._data.seed, self._mixed_blocks)

    def name(self, draw: int) -> str:
        """Returns the name of a draw's clip for messages."""
        session, first = self.place(draw)
        names = ", ".join(index.path.name for index in self._sessions[session])
        return f"{names}, frames {first} to {first + self._length - 1}"

    def frame_from_input(self, draw: int) -> np.ndarray:
        """Returns the affines (v, 2, 3) float32 from pixels of the input to pixels of each camera's frame."""
        session, first = self.place(draw)
        affines = np.stack([self._fits[index.path].affine(first) for index in self._sessions[session]])
        return geometry.invert(affines).astype(np.float32)

    def frames(self, draw: int) -> np.ndarray | None:
        """Returns the clip of a draw, uint8 RGB (v, S, height, width, 3), or None if one of its frames cannot be used.

        Whether a clip can be used depends on the files alone, not on the cache, the host or the thread.

        Raises:
          OSError: the cache folder cannot be written.
          Stopped: the source is closed, and the clip is not decoded yet.
        """
        session, first = self.place(draw)
        views = []
        for index in self._sessions[session]:
            frames = self._read(index, first)
            if isinstance(frames, str):
                with self._lock:
                    self._messages.setdefault(frames, False)
                return None
            views.append(frames)
        return np.stack(views)

    def require_usable(self, draw: int) -> None:
        """Reads clips until one can be used, beginning with the draw that the next step needs.

        Raises:
          UnusableClips: no clip of a whole pass can be used.
          OSError, Stopped: as `frames` does.
        """
        windows = sum(window_count(count, self._length) for count in self._frame_counts)
        begin = draw // windows * windows
        delivered = self.delivered_frames
        is_usable = any(self.frames(at) is not None for at in itertools.chain([draw], range(begin, begin + windows)))
        # These clips were read for the check only.
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
        """Ends all decoding, in every thread, at the next frame; may be called by a signal handler."""
        self._is_closed = True

    def files(self) -> list[Path]:
        """Returns the videos, session by session."""
        return [index.path for session in self._sessions for index in session]

    def messages(self) -> list[str]:
        """Returns a sentence for each unusable clip met since the last call; no clip is named twice.

        If more than a tenth of a video's clips cannot be used, one sentence reports all of them. The warning of
        `cost_warning` is included once.
        """
        with self._lock:
            new = [text for text, is_reported in self._messages.items() if not is_reported]
            self._messages.update(dict.fromkeys(new, True))
            if not self._is_cost_reported and (warning := self.cost_warning()):
                self._is_cost_reported = True
                new.append(warning)
        return new

    def cost_warning(self) -> str:
        """Returns a warning if far more frames are decoded than handed out, or ""."""
        return describe_cost(self.decoded_frames, self.delivered_frames)

    def _plan_cache(self, cache_mode: str) -> tuple[frozenset[Path], list[str]]:
        """Returns the videos to cache, and sentences about the videos and the cache."""
        indexes = [index for session in self._sessions for index in session]
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
                f"{sizes[-1] / cache.GIB:.2f} GiB, above data.cache_limit_gib = {self._data.cache_limit_gib:g}"
            )
        return frozenset(index.path for index in indexes[:fitting]), notes

    def _read(self, index: VideoIndex, first: int) -> np.ndarray | str:
        """Returns the frames of a clip of one camera, or a sentence about why they cannot be used."""
        last, fit = first + self._length - 1, self._fits[index.path]
        if not fit.is_shown(first):
            frames = f"the clip of frames {first} to {last} is left out: none of them has a box"
            # Of single frames, one sentence for all.
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
                # The damage of a block is not all of the video's.
                damage = find_damage(index, lambda: self._is_closed)
            return describe_loss(index, damage, first, self._length, reasons[0])
        return held.pixels[first - held.first : last + 1 - held.first]

    def _decode(self, index: VideoIndex, start: int, end: int, fit: ClipFit) -> DecodedFrames:
        affine = fit.input_from_frame
        decoded, count = decode_part(index, start, end, affine, self.size_px, lambda: self._is_closed, fit.crop_px)
        with self._lock:
            self.decoded_frames += count
        return decoded
