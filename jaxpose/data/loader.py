"""Makes batches of decoded frames: each element of the loader is one step of this host.

The content of a step depends only on its number, so a run that starts at step s sees the same samples as an
uninterrupted run, on any number of hosts or threads.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cv2
import numpy as np

from jaxpose.config import AugmentConfig
from jaxpose.poses import Poses

# Applies histogram equalisation and CLAHE to labelled frames, on the host.
#
# Both are sequential and rare: on the device, every sample in a batch would pay for them (see docs/augmentation.md).
# The random numbers depend only on (seed, stream, draw, purpose), so any worker of any host makes the same pixels.

_STREAM = 0  # labelled frames
_PURPOSE = 0x746F6E65  # another number would give other random numbers


def is_equalized(augment: Any) -> bool:
    """Returns whether the resolved AugmentConfig equalises samples."""
    return bool(augment.equalize_p or augment.clahe_p)


def equalize_samples(frames: np.ndarray, draw: np.ndarray, valid: np.ndarray, seed: int, augment: Any) -> None:
    """Equalises randomly chosen samples in place, all frames of a sample in the same way.

    Args:
      frames: uint8 (b, t, h, w, 3), writable.
      draw: int32 (b,), position of each sample in the stream.
      valid: bool (b,); other samples stay unchanged.
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
    """Returns numbers in [0, 1) from raw bits, which all numpy versions share, unlike distributions."""
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


# Arrays by name; a step's unlabelled clips and frames are nested batches under `clips` and `unlabelled`.
Batch = dict[str, Any]

# The key in a batch of the frames for the other members of an ensemble.
OTHER_FRAMES = "other_frames"

# Separates the order of the frames from other uses of data.seed.
_ORDER = 1


@dataclasses.dataclass(frozen=True)
class Samples:
    """Labelled frames as the network sees them.

    Attributes:
      pixels: uint8 (n, t, h, w, 3), RGB; t = 1, or 5 with the neighbours of each frame: centre - 2 to centre + 2.
      poses: their labels in input pixels, float32; NaN without a position.
      frame_from_input: float32 (n, 2, 3).
      moments: int64 (m, v), the rows of the views of each moment, -1 where a moment lacks a view, if the network sees
        all views together; else None.
    """

    pixels: np.ndarray
    poses: Poses
    frame_from_input: np.ndarray
    moments: np.ndarray | None = dataclasses.field(default=None, kw_only=True)

    def batch(self, rows: np.ndarray, draws: np.ndarray) -> Batch:
        """Returns the labelled batch of rows (m,); a negative row is an empty slot."""
        valid = rows >= 0
        chosen = np.where(valid, rows, 0)
        points_px, visibility = self.poses.labels()
        return {
            "frames": self.pixels[chosen],
            "keypoints_px": points_px[chosen],
            "visibility": visibility[chosen],
            "frame_from_input": self.frame_from_input[chosen],
            "draw": draws.astype(np.int32),
            "valid": valid,
        }


@dataclasses.dataclass(frozen=True)
class FrameSamples(Samples):
    """Labelled frames as a finder sees them: `poses` has all animals of each.

    Attributes:
      partly_labelled: bool (n,), frames in which some animals may lack labels.
    """

    partly_labelled: np.ndarray

    def batch(self, rows: np.ndarray, draws: np.ndarray) -> Batch:
        """Returns the batch of rows (m,): keypoints (m, a, k, 2), visibility (m, a, k), and `partly_labelled` (m,)."""
        valid = rows >= 0
        chosen = np.where(valid, rows, 0)
        assert self.poses.visibility is not None, "labels have a visibility"
        return {
            "frames": self.pixels[chosen],
            "keypoints_px": self.poses.points_px[chosen],
            "visibility": self.poses.visibility[chosen],
            "partly_labelled": self.partly_labelled[chosen],
            "frame_from_input": self.frame_from_input[chosen],
            "draw": draws.astype(np.int32),
            "valid": valid,
        }


@dataclasses.dataclass(frozen=True)
class ReprojectedSamples(Samples):
    """Labelled frames of calibrated cameras.

    Attributes:
      reprojected_px: float32 (n, k, 2), where the labels of the other cameras show each keypoint, in input pixels; NaN
        where they do not.
    """

    reprojected_px: np.ndarray

    def batch(self, rows: np.ndarray, draws: np.ndarray) -> Batch:
        """Returns the labelled batch of rows (m,) with its `reprojected_px`."""
        return super().batch(rows, draws) | {"reprojected_px": self.reprojected_px[np.maximum(rows, 0)]}


@functools.lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> np.ndarray:
    sequence = np.random.SeedSequence([seed, _ORDER, epoch])
    return np.random.Generator(np.random.Philox(sequence)).permutation(count)


def moments_of_rows(rows: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Returns the moments, of `moments` (m, v) as in `Samples`, that have any of the rows (n,)."""
    return moments[np.isin(moments, rows).any(axis=1)]


def draws_of_views(draws: np.ndarray, views: int) -> np.ndarray:
    """Returns a draw for each view of each moment's draw (m,): an array (m v,), the views of a moment one by one."""
    return np.where(draws[:, None] < 0, draws[:, None], draws[:, None] * views + np.arange(views)).reshape(-1)


def rows_of_draws(draws: np.ndarray, rows: np.ndarray, seed: int) -> np.ndarray:
    """Returns each draw's row from the endless stream; negative draws (empty slots) give -1.

    Epoch e is shuffle e of all rows: draw d is row `shuffle_e[d mod n]` with e = floor(d / n).

    Args:
      draws: int64 array of any shape.
      rows: int array (n,), the rows that train; or (n, v), those of the views of each moment, -1 where it lacks one.
      seed: data.seed.
    """
    found = np.full(draws.shape + rows.shape[1:], -1, np.int64)
    epochs = draws // len(rows)
    for epoch in np.unique(epochs[draws >= 0]):
        here = (epochs == epoch) & (draws >= 0)
        found[here] = rows[_order(seed, int(epoch), len(rows))[draws[here] % len(rows)]]
    return found


class _Steps:
    """The source for grain: element s is this host's part of step s."""

    def __init__(
        self, samples: Samples, rows: np.ndarray, draws_of: Callable[[int], np.ndarray], seeds: tuple[int, int],
        augment: AugmentConfig, clips_of: Callable[[int], Batch] | None, total_steps: int,
        other_seeds: Sequence[int],
    ):  # fmt: skip
        self._samples, self._rows, self._draws_of = samples, rows, draws_of
        self._data_seed, self._train_seed = seeds
        self._augment, self._clips_of, self._total = augment, clips_of, total_steps
        self._other_seeds = other_seeds if is_equalized(augment) else ()

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, index: int) -> Batch:
        draws = self._draws_of(index).reshape(-1)
        rows = rows_of_draws(draws, self._rows, self._data_seed)
        if rows.ndim == 2:
            rows, draws = rows.reshape(-1), draws_of_views(draws, rows.shape[1])
        batch = self._samples.batch(rows, draws)
        if self._other_seeds:
            batch[OTHER_FRAMES] = [batch["frames"].copy() for _ in self._other_seeds]
        # The batch is a copy, so its frames may change.
        versions = [batch["frames"], *batch.get(OTHER_FRAMES, [])]
        for seed, frames in zip((self._train_seed, *self._other_seeds), versions, strict=True):
            equalize_samples(frames, batch["draw"], batch["valid"], seed, self._augment)
        if self._clips_of:
            batch |= self._clips_of(index)
        return batch


def training_batches(
    samples: Samples,
    rows: np.ndarray,
    draws_of: Callable[[int], np.ndarray],
    *,
    first_step: int,
    total_steps: int,
    data_seed: int,
    train_seed: int,
    augment: AugmentConfig,
    threads: int,
    read_ahead: int,
    clips_of: Callable[[int], Batch] | None = None,
    other_seeds: Sequence[int] = (),
) -> Iterator[Batch]:
    """Yields this host's batch of each step from `first_step` on; threads prepare batches ahead.

    Args:
      samples: all labelled frames.
      rows: int array, the rows that train, as in `rows_of_draws`.
      draws_of: step -> draws in this host's slots, int64, any shape (flattened in order), -1 where empty.
      first_step: the first step.
      total_steps: the step at which to end.
      data_seed: decides the order.
      train_seed: decides the augmentation.
      augment: resolved options; the host equalises, the device does the rest.
      threads: number of threads that prepare batches.
      read_ahead: number of batches prepared ahead.
      clips_of: step -> this host's batches of unlabelled clips, by name; None without clips.
      other_seeds: of the other members of an ensemble. If frames are equalised, the batch lists the frames of each
        under `OTHER_FRAMES`; otherwise all members see the same frames.
    """
    source = _Steps(samples, rows, draws_of, (data_seed, train_seed), augment, clips_of, total_steps, other_seeds)
    # Imported late: it imports JAX and orbax, which --dry_run=data does not need.
    import grain
    from absl import flags

    # grain reads absl flags, which no verb has.
    flags.FLAGS.mark_as_parsed()
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(threads, read_ahead))
    return iter(grain.MapDataset.source(source)[first_step:total_steps].to_iter_dataset(options))


def evaluation_batches(samples: Samples, rows: np.ndarray, batch_rows: int) -> Iterator[Batch]:
    """Yields labelled batches of `batch_rows` rows in order; the last batch is padded with `valid = False`."""
    for first in range(0, len(rows), batch_rows):
        part = rows[first : first + batch_rows]
        padded = np.concatenate([part, np.full(batch_rows - len(part), -1, part.dtype)])
        yield samples.batch(padded, np.arange(first, first + batch_rows))
