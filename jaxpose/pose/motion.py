"""How far the animals of a video move in g frames: the scales of all link costs, learnt from the video itself."""

import dataclasses

import numpy as np

from jaxpose.pose.detections import Detections, medians

# Student's t of two degrees of freedom, for two coordinates: animals stand still, and then run.
# Half of its distances are above sqrt(2) scales, and one in 20 is above sqrt(38).
_QUANTILES = {0.5: 2**0.5, 0.95: 38**0.5}
# A pose counts as this many independent points: neighbouring keypoints move together.
_SHAPE_WEIGHT = 1.0
_LEAST_SAMPLES = 30
_LEAST_SCALE_PX = 0.25
# Frames before an end from which its velocity is measured.
VELOCITY_FRAMES = 3


@dataclasses.dataclass(frozen=True)
class Motion:
    """The movement of an animal over lags of 1, 2, 3, ... frames.

    Attributes:
      lags: (l,) increasing numbers of frames.
      carry: (l,) frames for which the last velocity goes on over a lag: the displacement is carry x velocity.
      spread_px: (l,) scale of the displacement of a pose around that.
      bend_px: (l,) scale of the displacement of a keypoint relative to its pose.
      any_bend_px: the same for two unrelated poses.
      area_px: area of the places where animals are.
    """

    lags: np.ndarray
    carry: np.ndarray
    spread_px: np.ndarray
    bend_px: np.ndarray
    any_bend_px: float
    area_px: float

    def reach_px(self, lags: np.ndarray) -> np.ndarray:
        """Returns distances beyond which no link over some numbers of frames competes with another."""
        return 4 * self.any_bend_px + 10 * self._at(lags, self.spread_px)

    def place_costs(
        self, lags: np.ndarray, moved_px: np.ndarray, common: np.ndarray, before_px: np.ndarray, after_px: np.ndarray
    ) -> np.ndarray:
        """Returns the cost of links by places: minus the log of the odds of one animal against two unrelated ones.

        Args:
          lags: (p,) frames between the two detections.
          moved_px: (p, 2) displacement of the centres.
          common: (p,) number of keypoints that both have.
          before_px: (p, 2) velocity before the first detection.
          after_px: (p, 2) velocity after the second.
        """
        carry = np.interp(np.log(lags), np.log(self.lags), self.carry)[:, None]
        spread = self._at(lags, self.spread_px)
        # Poses without a common keypoint may be anywhere within a body.
        spread = np.where(common == 0, np.hypot(spread, self.any_bend_px), spread)
        # Extrapolated from both sides.
        sides = [_surprise(np.linalg.norm(moved_px - carry * way, axis=1) / spread) for way in (before_px, after_px)]
        return (sides[0] + sides[1]) / 2 + np.minimum(np.log(2 * np.pi * spread**2 / self.area_px), 0.0)

    def shape_costs(self, lags: np.ndarray, bend_px: np.ndarray) -> np.ndarray:
        """Returns the cost of links by poses, from the `bends_px` (p, k) of their keypoints; at least `least_shape`."""
        common = np.maximum(np.isfinite(bend_px).sum(axis=1), 1)
        scale = self._at(lags, self.bend_px)[:, None]
        shape = (
            _surprise(bend_px / scale) - _surprise(bend_px / self.any_bend_px) + 2 * np.log(scale / self.any_bend_px)
        )
        mean = np.where(np.isfinite(shape), shape, 0).sum(axis=1) / common
        return _SHAPE_WEIGHT * (1 - 1 / common) * mean

    def least_shape(self, lags: np.ndarray) -> np.ndarray:
        """Returns the least cost (p,) that poses can have: that of a pose which does not bend."""
        return _SHAPE_WEIGHT * 2 * np.log(self._at(lags, self.bend_px) / self.any_bend_px)

    def _at(self, lags: np.ndarray, scales_px: np.ndarray) -> np.ndarray:
        return np.exp(np.interp(np.log(lags), np.log(self.lags), np.log(scales_px)))


def _surprise(distance: np.ndarray) -> np.ndarray:
    return 2 * np.log1p(distance**2 / 2)


def bends_px(found: Detections, here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Returns how far (p, k) keypoints move apart from the pose, which moves by the median of the common keypoints."""
    moved = found.poses_px[there] - found.poses_px[here]
    common = np.isfinite(moved[..., 0]).any(axis=1)
    whole = found.centres_px[there] - found.centres_px[here]
    whole[common] = medians(moved[common])
    return np.hypot(*np.moveaxis(moved - whole[:, None], 2, 0))


def first_motion(found: Detections) -> Motion:
    """Returns the motion over one frame, from each detection's nearest neighbour in the next frame."""
    here, there = _nearest(found)
    if not len(here):
        return _motion([1], [0.0], [1.0], [1.0], *_sizes(found))
    moved = found.centres_px[there] - found.centres_px[here]
    bend = bends_px(found, here, there)
    return _motion([1], [0.0], [_scale(np.linalg.norm(moved, axis=1))], [_scale(bend)], *_sizes(found))


def learn_motion(found: Detections, numbers: np.ndarray, velocity: np.ndarray) -> Motion:
    """Returns the motion within tracklets.

    Args:
      found: the m detections.
      numbers: (m,) number of each detection's tracklet.
      velocity: (m, 2) px a frame before each detection, 0 at the start of a tracklet.
    """
    order = np.lexsort((found.frames, numbers))
    frames, of = found.frames[order], numbers[order]
    lags, carry, spread, bend, lag = [], [], [], [], 1
    while lag < len(found):
        here = np.flatnonzero((of[lag:] == of[:-lag]) & (frames[lag:] - frames[:-lag] == lag))
        here = here[:: max(len(here) // 20000, 1)]
        if len(here) < _LEAST_SAMPLES:
            break
        way = velocity[order[here]]
        moved = found.centres_px[order[here + lag]] - found.centres_px[order[here]]
        share = float(np.clip((moved * way).sum() / max((way**2).sum(), 1e-9), 0.0, lag))
        lags.append(lag)
        carry.append(share)
        spread.append(_scale(np.linalg.norm(moved - share * way, axis=1)))
        bend.append(_scale(bends_px(found, order[here], order[here + lag])))
        lag = max(lag + 1, int(lag * 1.5))
    return _motion(lags, carry, spread, bend, *_sizes(found)) if lags else first_motion(found)


def _motion(lags: list, carry: list, spread: list, bend: list, area: float, any_bend: float) -> Motion:
    """Returns a motion for all lags: beyond the last, the spread grows as that of a random walk."""
    far = 10**6
    spreads = np.maximum.accumulate([*spread, max(spread[-1], min(spread[-1] * far**0.5, area**0.5))])
    bends = np.minimum(np.maximum.accumulate([*bend, any_bend]), any_bend)
    return Motion(np.array([*lags, far * lags[-1]]), np.array([*carry, carry[-1]]), spreads, bends, any_bend, area)


def _scale(distances: np.ndarray) -> float:
    known = distances[np.isfinite(distances)]
    if not len(known):
        return _LEAST_SCALE_PX
    scales = np.quantile(known, list(_QUANTILES)) / list(_QUANTILES.values())
    return max(float(scales.max()), _LEAST_SCALE_PX)


def _sizes(found: Detections) -> tuple[float, float]:
    """Returns the area of the places of animals, and the scale of the difference of two unrelated poses."""
    some = np.arange(0, len(found), max(len(found) // 2000, 1))
    size = max(_scale(bends_px(found, some, np.roll(some, len(some) // 2))), 1.0)
    low, high = np.quantile(found.centres_px, [0.01, 0.99], axis=0) if len(found) else np.zeros((2, 2))
    return float(np.prod(np.maximum(high - low, 4 * size))), size


def _nearest(found: Detections) -> tuple[np.ndarray, np.ndarray]:
    """Returns pairs of detections in consecutive frames that are each other's nearest."""
    here, there = [np.zeros(0, int)], [np.zeros(0, int)]
    for first in range(0, found.frame_count - 1, 1024):
        rows = found.table[first : first + 1025]
        places = np.where((rows >= 0)[..., None], found.centres_px[rows], np.nan)
        apart = np.linalg.norm(places[:-1, :, None] - places[1:, None], axis=-1)
        apart = np.where(np.isfinite(apart), apart, np.inf)
        best = apart.argmin(axis=2)
        back = np.take_along_axis(apart.argmin(axis=1), best, axis=1)
        frame, slot = np.nonzero((back == np.arange(rows.shape[1])) & np.isfinite(apart.min(axis=2)))
        here.append(rows[frame, slot])
        there.append(rows[frame + 1, best[frame, slot]])
    return np.concatenate(here), np.concatenate(there)
