"""Histogram equalisation and CLAHE of labelled frames, on the host.

Both are sequential and rare: on the device, every sample of a batch would have their cost (see docs/augmentation.md).
The random numbers depend on (seed, stream, draw, purpose) alone, so any worker of any host makes the same pixels.
"""

from typing import Any

import cv2
import numpy as np

_STREAM = 0  # labelled frames
_PURPOSE = 0x746F6E65  # the purpose; another number gives other random numbers


def is_equalized(augment: Any) -> bool:
    """Returns whether the resolved AugmentConfig equalises samples."""
    return bool(augment.equalize_p or augment.clahe_p)


def equalize_samples(frames: np.ndarray, draw: np.ndarray, valid: np.ndarray, seed: int, augment: Any) -> None:
    """Equalises randomly chosen samples in place; all frames of a sample are treated in the same way.

    Args:
      frames: uint8 (b, t, h, w, 3), writable.
      draw: int32 (b,), position of each sample in the stream.
      valid: bool (b,); other samples are not changed.
      seed: the run's seed.
      augment: the resolved AugmentConfig, without None.
    """
    if not is_equalized(augment):
        return
    for sample in np.flatnonzero(valid):
        equalize, clahe, clip, tiles = _uniform(seed, int(draw[sample]), 4)
        for frame in frames[sample]:
            if equalize < augment.equalize_p:
                _change_channels(frame, cv2.equalizeHist)
            if clahe < augment.clahe_p:
                limit = 0.1 + (augment.clahe_clip_max - 0.1) * clip
                choices = int(augment.clahe_tiles_max) - int(augment.clahe_tiles_min) + 1
                side = int(augment.clahe_tiles_min) + int(choices * tiles)
                _change_channels(frame, cv2.createCLAHE(clipLimit=limit, tileGridSize=(side, side)).apply)


def _uniform(seed: int, draw: int, count: int) -> np.ndarray:
    """Returns numbers in [0, 1) from raw bits, which, unlike distributions, are equal in all versions of numpy."""
    bits = np.random.Philox(np.random.SeedSequence([seed, _STREAM, draw, _PURPOSE])).random_raw(count)
    return (bits >> np.uint64(11)) * 2.0**-53


def _change_channels(frame: np.ndarray, change: Any) -> None:
    """Changes each channel of a frame (h, w, 3), except black borders, which would distort the histogram."""
    brightest = frame.max(axis=-1)
    rows, columns = np.flatnonzero(brightest.max(axis=1)), np.flatnonzero(brightest.max(axis=0))
    if not rows.size:
        return
    inner = frame[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    for channel in range(3):
        inner[..., channel] = change(np.ascontiguousarray(inner[..., channel]))
