"""Faults of board recordings that make a calibration wrong: each is refused by its name and the camera's.

| fault | sign |
|---|---|
| two identical cameras | the same corners in every frame |
| a mirrored camera | it sees the board from behind |
| frames out of step | the relative pose of two cameras is the same over time only if frames of one are shifted |
| no overlap | no chain of cameras that see the board in the same frame |
"""

import itertools

import numpy as np

from jaxpose.cameras.board_poses import Detections, connected, relative_poses, shared_frames, spread_of
from jaxpose.errors import UserError
from jaxpose.terminal import count

# Corners of two cameras that never differ by more are those of one recording.
_SAME_PX = 0.05
# Frames that a camera may be ahead or behind, and the frames that must remain.
_MOST_STEPS, _LEAST_SHARED = 10, 4
# A shift must lower the mean logarithm of the distances between relative poses by this much. A board that is held still
# most of the time shows a shift only in the frames in which it moves.
_LEAST_GAIN = 0.2
# Distances far below this share of the distance to the board are as good as none.
_EXACT_POSE = 0.003


def refuse_copies(detections: Detections) -> None:
    """Raises UserError, which names two cameras, if both have the same corners."""
    for first, second in itertools.combinations(range(len(detections.names)), 2):
        one, other = detections.corners_px[first], detections.corners_px[second]
        both = np.isfinite(one[..., 0]) & np.isfinite(other[..., 0])
        if both.any() and np.abs(one[both] - other[both]).max() < _SAME_PX:
            raise UserError(
                f"identical: cameras {detections.names[first]} and {detections.names[second]} show the board at the "
                "same pixels in every frame: one recording is a copy of the other"
            )


def refuse_mirrored(detections: Detections, poses: np.ndarray) -> None:
    """Raises UserError if a camera sees the board from behind, by the board's poses (v, t, 3, 4) in each camera."""
    for name, of_camera in zip(detections.names, poses, strict=True):
        known = of_camera[np.isfinite(of_camera[:, 0, 0])]
        facing = np.einsum("ti,ti->t", known[:, :, 2], known[:, :, 3])
        if np.mean(facing < 0) > 0.5:
            raise UserError(
                f"mirrored: camera {name} sees the corners of the board in mirror order: its video is flipped; flip it "
                "back, or film without a mirror"
            )


def refuse_unconnected(detections: Detections, is_posed: np.ndarray) -> None:
    """Raises UserError, which names the cameras, if the cameras do not see the board together in any chain of pairs."""
    groups = connected(shared_frames(is_posed) > 0)
    if len(groups) == 1:
        return
    alone = min(groups, key=len)
    names = ", ".join(detections.names[view] for view in alone)
    others = ", ".join(name for view, name in enumerate(detections.names) if view not in alone)
    raise UserError(
        f"no overlap: {names} never see{'s' * (len(alone) == 1)} the board in the same frame as {others}: show the "
        "board to both at once, or leave the camera out; frames with the same number must show the same moment"
    )


def refuse_out_of_step(detections: Detections, poses: np.ndarray) -> None:
    """Raises UserError, which names a camera and the frames that it is late, if its frames fit better shifted."""
    shifts: dict[tuple[int, int], int] = {}
    views = range(len(detections.names))
    for pair in itertools.combinations(views, 2):
        shifts[pair] = _best_shift(detections.frames, poses[pair[0]], poses[pair[1]])
    if not any(shifts.values()):
        return
    # The camera that is in most of the shifted pairs; of two, the second one.
    view = max(views, key=lambda one: (sum(bool(shift) for pair, shift in shifts.items() if one in pair), one))
    of_view = [shift if pair[1] == view else -shift for pair, shift in shifts.items() if view in pair and shift]
    late = int(np.median(of_view))
    what = f"{count(abs(late), 'frame')} {'late' if late > 0 else 'early'}"
    raise UserError(
        f"out of step: camera {detections.names[view]} is {what}: it keeps its place relative to the other cameras "
        "only if its frames are shifted; cut the videos so that they start at the same moment"
    )


def _best_shift(frames: tuple[int, ...], first: np.ndarray, second: np.ndarray) -> int:
    """Returns the shift of the second camera's frames that makes the relative pose constant; 0 unless it is clear.

    Frame f of the first camera shows what frame f + shift of the second shows.
    """
    place_of = {frame: place for place, frame in enumerate(frames)}
    step = int(np.median(np.diff(frames))) if len(frames) > 1 else 1
    depth = np.nanmedian(np.linalg.norm(np.concatenate([first, second])[..., 3], axis=-1))
    aligned = relative_poses(first, second)
    is_aligned = np.isfinite(aligned[:, 0, 0])
    gains = {0: 0.0}
    for shift in range(-_MOST_STEPS * step, _MOST_STEPS * step + 1, step):
        places = [place for place, frame in enumerate(frames) if frame + shift in place_of]
        moved = relative_poses(first[places], second[[place_of[frames[place] + shift] for place in places]])
        # Both are judged by the same frames of the first camera.
        is_both = np.isfinite(moved[:, 0, 0]) & is_aligned[places]
        if is_both.sum() >= max(_LEAST_SHARED, is_aligned.sum() / 2):
            gains[shift] = _roughness(aligned[places][is_both], depth) - _roughness(moved[is_both], depth)
    best = max(gains, key=lambda shift: (gains[shift], -abs(shift)))
    return best if gains[best] > _LEAST_GAIN else 0


def _roughness(poses: np.ndarray, depth: float) -> float:
    """Returns the mean logarithm of the distances of poses (t, 3, 4) to the one that most of them are near."""
    spreads = np.log(spread_of(poses, depth) + _EXACT_POSE * depth)
    return float(spreads.mean(axis=0).min())
