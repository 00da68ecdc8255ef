"""Tells animals apart by the size of their silhouettes in the video, where motion leaves an exchange open.

A silhouette is what differs from the median frame around the keypoints of a detection, so the camera must stand still.
Two animals are compared only in frames that show both: light and the distance to the camera then change both alike.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from jaxpose.errors import UserError
from jaxpose.pose.detections import Detections
from jaxpose.progress import phase
from jaxpose.tracking.review import exchanges
from jaxpose.tracking.tracks import Solution, regrouped
from jaxpose.video.video import Video, read_chunks, scan

# Frames are read at the size at which the median diagonal of a body has at most this many pixels.
_BODY_PX = 54
# In these diagonals: only pixels so near to the centre of a detection belong to its silhouette.
_REACH = 0.5
_BACKGROUND_FRAMES = 101
# The background of a pixel is known if so many of these frames show it without an animal.
_LEAST_FREE = 0.1
# A silhouette is not measured if the background of a larger share of its surroundings is unknown.
_MOST_UNKNOWN = 0.1
_LEAST_KEYPOINTS = 3
_CHUNK_FRAMES = 64
# Motion is too sure in contacts: this share of the margin of an exchange counts. Others are certain from a margin on.
_SHARE, _CERTAIN = 0.1, 14.0
# Differences count up to this many medians: an animal that is half hidden is not a small one.
_MOST_MEDIANS = 2.0
# Tracklets of so many frames count half as much as long ones in the mean difference.
_HALF_FRAMES = 4.0
_MOST_TURNS = 20
# Silhouettes count if they explain the tracks more than so many times as well as the best of so many random ones.
_CLEARER, _RANDOM_DRAWS = 2.0, 8


@dataclasses.dataclass(frozen=True)
class _Meetings:
    """The k stretches in which two tracks show one tracklet each, in the order of time.

    Attributes:
      first, last: (k,) frames.
      counts: (k,) frames that show both.
      larger: (k,) mean difference of their silhouettes, without extremes.
      spread: variance of the difference between frames of a stretch.
    """

    first: np.ndarray
    last: np.ndarray
    counts: np.ndarray
    larger: np.ndarray
    spread: float


def read_areas(file: Path, found: Detections) -> np.ndarray:
    """Returns the area (m,) of the silhouette of each detection, in pixels of reduced frames.

    NaN where the video does not show the place of a detection without animals, and for poses of one or two keypoints,
    which do not say how large a body is.

    Raises:
      UserError: the file is not a readable video, or it does not have the frames of the detections.
    """
    video = scan(file)
    corners = np.nanmax(found.poses_px, axis=1) - np.nanmin(found.poses_px, axis=1)
    body_px = float(np.median(np.linalg.norm(corners, axis=1)))
    if not body_px or found.poses_px.shape[1] < _LEAST_KEYPOINTS:
        return np.full(len(found), np.nan)
    scale = min(1.0, _BODY_PX / body_px)
    small = dataclasses.replace(
        found,
        poses_px=scale * (found.poses_px + 0.5) - 0.5,
        centres_px=scale * (found.centres_px + 0.5) - 0.5,
    )
    reach_px, step = _REACH * scale * body_px, max(found.frame_count // _BACKGROUND_FRAMES, 1)
    # A copy, as a frame is a view of its whole chunk.
    some = [(number, frame.copy()) for number, frame in _frames(video, scale, found.frame_count) if number % step == 0]
    owners = [_owners(small, number, frame.shape[:2], reach_px) for number, frame in some]
    background = _background(np.stack([frame for _, frame in some]), np.stack(owners) >= 0)
    values = [_change(frame, background)[owner >= 0] for (_, frame), owner in zip(some, owners, strict=True)]
    values = np.concatenate(values)
    values = values[np.isfinite(values)].astype(np.uint8)
    if not len(values):
        return np.full(len(found), np.nan)
    # Otsu's threshold (1979): what differs from the background, and what does not.
    threshold, _ = cv2.threshold(values[:, None], 0, 255, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    areas = np.full(len(found), np.nan)
    for number, frame in _frames(video, scale, found.frame_count):
        owner, change = _owners(small, number, frame.shape[:2], reach_px), _change(frame, background)
        is_animal = ((change > threshold) & (owner >= 0)).astype(np.uint8)
        is_animal = cv2.morphologyEx(is_animal, cv2.MORPH_OPEN, np.ones((3, 3), np.uint8)) > 0
        for one in small.table[number][small.table[number] >= 0].tolist():
            own = owner == one
            if np.isfinite(change[own]).sum() > (1 - _MOST_UNKNOWN) * own.sum():
                areas[one] = is_animal[own].sum()
    # A part of an animal says nothing about its size.
    areas[found.parts] = np.nan
    return areas


def _frames(video: Video, scale: float, count: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the numbers and reduced images (h, w, 3) of `count` frames."""
    size_px = max(round(video.width_px * scale), 1), max(round(video.height_px * scale), 1)
    shift = (scale - 1) / 2
    reader = read_chunks(video, np.array([[scale, 0, shift], [0, scale, shift]]), size_px, _CHUNK_FRAMES)
    number = 0
    try:
        with phase(f"reading {video.path.name}", count, "frame") as reading:
            for chunk in reader:
                for frame in chunk[: count - number]:
                    yield number, frame
                    number += 1
                    reading.update()
    finally:
        reader.close()
    if number < count or reader.delivered > count:
        why = f": {reader.problem}" if reader.problem else ""
        raise UserError(
            f"{video.path} has {reader.delivered:,} readable frames, but the detections have {count:,}{why}; give the "
            "video that they were made from"
        )


def _background(frames: np.ndarray, is_animal: np.ndarray) -> np.ndarray:
    """Returns the median (h, w, 3) of frames (f, h, w, 3) without animals, NaN where they show none without."""
    background = np.full(frames.shape[1:], np.nan)
    for row in range(frames.shape[1]):
        mask = np.repeat(is_animal[:, row, :, None], 3, axis=2)
        background[row] = np.ma.median(np.ma.array(frames[:, row], mask=mask), axis=0).filled(np.nan)
    background[(~is_animal).mean(axis=0) < _LEAST_FREE] = np.nan
    return background.astype(np.float32)


def _change(frame: np.ndarray, background: np.ndarray) -> np.ndarray:
    """Returns how much (h, w), 0 to 255, an image differs from the background; NaN where this is unknown."""
    return np.abs(cv2.blur(frame.astype(np.float32) - background, (3, 3))).max(axis=2)


def _owners(small: Detections, number: int, size: tuple[int, int], reach_px: float) -> np.ndarray:
    """Returns the detection (h, w) that each pixel of a frame is next to, -1 beyond the reach of all."""
    owner, nearest = np.full(size, -1), np.full(size, np.inf)
    for one in small.table[number][small.table[number] >= 0].tolist():
        # A centre may lie outside of the frame.
        low = np.clip(np.floor(small.centres_px[one] - reach_px), 0, size[::-1]).astype(int)
        high = np.maximum(np.ceil(small.centres_px[one] + reach_px) + 1, 0).astype(int)
        part = slice(low[1], high[1]), slice(low[0], high[0])
        rows, columns = np.mgrid[part[0].start : min(part[0].stop, size[0]), part[1].start : min(part[1].stop, size[1])]
        points = small.poses_px[one][np.isfinite(small.poses_px[one, :, 0])]
        apart = np.hypot(columns[..., None] - points[:, 0], rows[..., None] - points[:, 1]).min(axis=2)
        inside = np.hypot(columns - small.centres_px[one, 0], rows - small.centres_px[one, 1]) <= reach_px
        is_nearer = inside & (apart < nearest[part])
        owner[part][is_nearer], nearest[part][is_nearer] = one, apart[is_nearer]
    return owner


def told_apart(solution: Solution, areas: np.ndarray) -> Solution:
    """Returns the tracks after exchanges that make each of them show an animal of one size.

    Pairs of tracks are compared one after the other. A pair stays as it is if silhouettes do not tell the two apart.

    Args:
      solution: the cheapest tracks of m detections.
      areas: (m,) areas of their silhouettes, NaN for unknown ones.
    """
    for pair in itertools.combinations(range(len(solution.names)), 2):
        meetings = _meetings(solution, pair, areas)
        if meetings is None:
            continue
        found = solution.found
        margins, ends = exchanges(solution, pair, 0, found.frame_count)
        cuts = found.frames[ends[:2]].max(axis=0)
        order = np.argsort(cuts, kind="stable")
        cuts, margins = cuts[order], margins[order]
        starts, stops = np.searchsorted(cuts, meetings.last[:-1]), np.searchsorted(cuts, meetings.first[1:])
        parts = [slice(*part) for part in zip(starts, stops, strict=True)]
        least = np.array([margins[part].min(initial=np.inf) for part in parts])
        costs = np.where(least < _CERTAIN, _SHARE * least, np.inf)
        signs, gain = _signs(meetings, costs)
        if gain <= _CLEARER * _best_of_random(meetings, costs):
            continue
        changes = np.flatnonzero(np.diff(signs))
        chosen = [cuts[parts[change]][margins[parts[change]].argmin()] for change in changes]
        tracks = solution.of_detections
        is_odd = np.searchsorted(np.array(chosen), found.frames) % 2 == 1
        solution = regrouped(solution, np.where(is_odd & np.isin(tracks, pair), sum(pair) - tracks, tracks))
    return solution


def _meetings(solution: Solution, pair: tuple[int, int], areas: np.ndarray) -> _Meetings | None:
    """Returns the stretches of two tracks, None if there are too few to compare them."""
    found = solution.found
    one, other = (solution.chain(track) for track in pair)
    frames, here, there = np.intersect1d(found.frames[one], found.frames[other], True, True)
    one, other = one[here], other[there]
    is_known = np.isfinite(areas[one] + areas[other])
    frames, one, other = frames[is_known], one[is_known], other[is_known]
    numbers = solution.made.numbers
    starts = np.flatnonzero((np.diff(numbers[one], prepend=-1) != 0) | (np.diff(numbers[other], prepend=-1) != 0))
    if len(starts) < 2:
        return None
    counts = np.diff(np.append(starts, len(frames)))
    apart = areas[one] - areas[other]
    means = np.add.reduceat(apart, starts) / counts
    spread = ((apart - np.repeat(means, counts)) ** 2).sum() / max(len(apart) - len(starts), 1)
    most = _MOST_MEDIANS * np.median(np.abs(np.repeat(means, counts)))
    larger = np.clip(means, -most, most)
    return _Meetings(frames[starts], frames[starts + counts - 1], counts, larger, float(spread))


def _signs(meetings: _Meetings, costs: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns for each stretch 1, or -1 where the animals of the two tracks are exchanged, and the nats gained by it.

    Alternates between the most likely exchanges (Viterbi) and the mean difference of the two animals.

    Args:
      meetings: the k stretches.
      costs: (k - 1,) of an exchange between one and the next.
    """
    weights = meetings.counts / (meetings.counts + _HALF_FRAMES)
    signs, gain = np.ones(len(weights)), 0.0
    for _ in range(_MOST_TURNS):
        turned = signs * meetings.larger
        total = (weights * turned).sum()
        between = (weights * (turned - total / weights.sum()) ** 2).sum() / weights.sum()
        # A stretch is no evidence for itself.
        rest = (total - weights * turned) / np.maximum(weights.sum() - weights, 1e-9)
        evidence = 2 * rest * meetings.larger / np.maximum(between + meetings.spread / meetings.counts, 1e-9)
        then, gain = _likeliest(evidence, costs)
        if (then == signs).all() or (then == -signs).all():
            break
        signs = then
    return signs, gain


def _likeliest(evidence: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns the signs (k,) that gain the most evidence (k,) / 2 times sign, after costs (k - 1,) of changes."""
    gains, backs = np.array([evidence[0], -evidence[0]]) / 2, []
    for value, cost in zip(evidence[1:], costs, strict=True):
        moved = gains[::-1] - cost
        backs.append(np.where(moved > gains, [1, 0], [0, 1]))
        gains = np.maximum(gains, moved) + np.array([value, -value]) / 2
    state, gain = int(gains.argmax()), float(gains.max())
    states = [state]
    for back in backs[::-1]:
        state = int(back[state])
        states.append(state)
    return 1.0 - 2 * np.array(states[::-1]), gain


def _best_of_random(meetings: _Meetings, costs: np.ndarray) -> float:
    """Returns the best gain if the differences of the two animals are random, with the spread of the true ones."""
    random = np.random.default_rng(0)
    weights = meetings.counts / (meetings.counts + _HALF_FRAMES)
    scale = np.sqrt((weights * meetings.larger**2).sum() / weights.sum())
    draws = random.normal(0, scale, (_RANDOM_DRAWS, len(weights)))
    return max(_signs(dataclasses.replace(meetings, larger=draw), costs)[1] for draw in draws)
