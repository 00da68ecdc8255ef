"""Calibrates cameras from the corners of a board that several of them see at the same time.

Each camera is first calibrated alone: a focal length from a list of candidates, the board's pose in each frame, then an
adjustment. Two cameras that see the board in the same frames have a relative pose in each; its medoid is robust. The
pairs with the most common corners connect all cameras (a maximum spanning tree), and one adjustment follows.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from jaxpose.cameras.board_poses import (
    LEAST_CORNERS,
    Detections,
    connected,
    has_pose,
    medoid,
    pose_in,
    relative_poses,
    shared_frames,
)
from jaxpose.cameras.bundle_adjustment import LENSES, NEAR_PX, NO_LENS, ROUGH_PX, SIMPLE_LENS, Scene, adjust
from jaxpose.cameras.calibration_faults import refuse_copies, refuse_mirrored, refuse_out_of_step, refuse_unconnected
from jaxpose.cameras.cameras import Camera, Cameras
from jaxpose.cameras.triangulation import triangulate
from jaxpose.errors import UserError
from jaxpose.terminal import count

# A camera needs this many frames with a pose of the board.
LEAST_FRAMES = 3
# Focal lengths to begin with, in widths of the image.
_FOCAL_LENGTHS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 15.0, 30.0)
# Frames that an adjustment uses, and those that choose a focal length.
MOST_FRAMES, _FRAMES_OF_START = 100, 12
# Cells of an image along each axis.
CELLS = 6
_FOLDS = 3
# The lens with more numbers must lower the held-out error to this share.
_BETTER_LENS = 0.97


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Calibrated cameras and how well they fit.

    Attributes:
      scene: the cameras, and the board in the frames that were used.
      used: the detections in these frames.
      errors_px: (v, t, n), of the used detections.
      held_out_px: (v, t, n), the same by cameras that were calibrated without the frame.
      square: the lengths of the board's squares in 3D, by the same cameras.
      lens: which numbers of each camera were fitted: one of `LENSES`.
    """

    scene: Scene
    used: Detections
    errors_px: np.ndarray
    held_out_px: np.ndarray
    square: np.ndarray
    lens: str


def calibrate(detections: Detections, lenses: Mapping[str, np.ndarray] = LENSES) -> Calibration:
    """Returns the cameras that fit the detections best.

    The world is the first camera's: its centre is the origin.

    Args:
      detections: of a board.
      lenses: which numbers of a lens may be fitted, in the order in which they are tried. The next one is taken if it
        lowers the error of frames that were left out.

    Raises:
      UserError: a camera sees the board in too few frames, or shares too few with the others.
    """
    refuse_copies(detections)
    poses, alone = calibrate_alone(detections)
    is_posed = np.isfinite(poses[..., 0, 0])
    refuse_mirrored(detections, poses)
    refuse_unconnected(detections, is_posed)
    refuse_out_of_step(detections, poses)
    frames = choose_frames(detections, is_posed)
    used = detections.part(range(len(detections.names)), frames)
    start = _start(used, poses[:, frames], alone)
    best: Calibration | None = None
    for name, lens in lenses.items():
        scene = adjust(start, detections.corners, used.corners_px, lens, scales_px=NEAR_PX if best else ROUGH_PX)
        errors_px = np.linalg.norm(scene.errors_px(detections.corners, used.corners_px), axis=-1)
        found = Calibration(scene, used, errors_px, *_held_out(used, scene, lens), name)
        if best and not np.nanmedian(found.held_out_px) < _BETTER_LENS * np.nanmedian(best.held_out_px):
            break
        best, start = found, scene
    assert best
    return best


def calibrate_alone(detections: Detections) -> tuple[np.ndarray, list[Camera]]:
    """Returns the board's pose (v, t, 3, 4) in each camera, NaN where it has none, and the cameras at the origin.

    Raises:
      UserError: a camera sees the board in too few frames.
    """
    poses = np.full((*detections.corners_px.shape[:2], 3, 4), np.nan)
    cameras = []
    for view, name in enumerate(detections.names):
        points_px = detections.corners_px[view]
        frames = np.flatnonzero([has_pose(detections, pixels) for pixels in points_px])
        if len(frames) < LEAST_FRAMES:
            raise UserError(
                f"camera {name} sees the board in {count(len(frames), 'frame')}; at least {LEAST_FRAMES} with "
                f"{LEAST_CORNERS} corners each are needed: does --board describe the board in the videos, and are they "
                "sharp?"
            )
        alone = detections.part([view], frames)
        chosen = choose_frames(alone, np.ones((1, len(frames)), bool))
        camera = _start_lens(detections, view, points_px[frames[chosen]])
        scene = _scene(camera, [pose_in(camera, detections.corners, pixels) for pixels in points_px[frames[chosen]]])
        fitted = adjust(scene, detections.corners, points_px[None, frames[chosen]], SIMPLE_LENS).cameras.each[0]
        cameras.append(fitted)
        for frame in frames:
            poses[view, frame] = pose_in(fitted, detections.corners, points_px[frame])
    return poses, cameras


def choose_frames(detections: Detections, is_posed: np.ndarray) -> np.ndarray:
    """Returns the places of at most `MOST_FRAMES` frames, which cover the images of all cameras.

    Each time, the frame is taken that shows the most corners in cells of the images that have few.
    """
    candidates = np.flatnonzero(is_posed.sum(axis=0) >= min(2, len(detections.names)))
    if len(candidates) <= MOST_FRAMES:
        return candidates
    shares = np.stack([_cells(detections, frame) for frame in candidates.tolist()])
    covered, chosen = np.ones(shares.shape[1]), []
    for _ in range(MOST_FRAMES):
        worth = shares @ (1 / covered)
        worth[chosen] = -1
        chosen.append(int(worth.argmax()))
        covered += shares[chosen[-1]]
    return np.sort(candidates[chosen])


def _cells(detections: Detections, frame: int) -> np.ndarray:
    """Returns how many corners of a frame lie in each cell of each image."""
    found = [
        np.histogram2d(*pixels[np.isfinite(pixels[:, 0])].T, bins=CELLS, range=[(0, width), (0, height)])[0].ravel()
        for pixels, (width, height) in zip(detections.corners_px[:, frame], detections.sizes_px, strict=True)
    ]
    return np.concatenate(found)


def _start_lens(detections: Detections, view: int, points_px: np.ndarray) -> Camera:
    """Returns the camera, without distortion, whose focal length fits some frames best."""
    width, height = detections.sizes_px[view]
    some = points_px[:: max(1, len(points_px) // _FRAMES_OF_START)]
    cameras = [
        Camera(
            detections.names[view],
            np.array([[focal * width, 0, (width - 1) / 2], [0, focal * width, (height - 1) / 2], [0, 0, 1]]),
            np.eye(3), np.zeros(3), np.zeros(5), (width, height),
        )
        for focal in _FOCAL_LENGTHS
    ]  # fmt: skip
    errors = []
    for camera in cameras:
        scene = _scene(camera, [pose_in(camera, detections.corners, pixels) for pixels in some])
        errors.append(np.nanmedian(np.abs(scene.errors_px(detections.corners, some[None]))))
    return cameras[int(np.argmin(errors))]


def _scene(camera: Camera, poses: Sequence[np.ndarray]) -> Scene:
    stacked = np.stack(poses)
    return Scene(Cameras([camera]), stacked[..., :3], stacked[..., 3])


def shared_corners(points_px: np.ndarray, is_posed: np.ndarray) -> np.ndarray:
    """Returns how many corners (v, v) each two cameras see in the same frames in which both have a pose."""
    is_seen = np.isfinite(points_px[..., 0]) & is_posed[..., None]
    flat = is_seen.reshape(len(is_seen), -1).astype(float)
    return np.where(shared_frames(is_posed) > 0, flat @ flat.T, 0)


def _start(used: Detections, poses: np.ndarray, lenses: Sequence[Camera]) -> Scene:
    """Returns the cameras in the world of the first one, and the board's pose in each frame."""
    is_posed = np.isfinite(poses[..., 0, 0])
    shared = shared_corners(used.corners_px, is_posed)
    length = float(np.nanmedian(np.linalg.norm(poses[..., 3], axis=-1)))
    placed = {0: np.hstack([np.eye(3), np.zeros((3, 1))])}
    while len(placed) < len(lenses):
        pairs = itertools.product(placed, set(range(len(lenses))) - set(placed))
        first, second = max(pairs, key=lambda pair: shared[pair])
        both = is_posed[first] & is_posed[second]
        step = medoid(relative_poses(poses[first, both], poses[second, both]), length)
        known = placed[first]
        placed[second] = np.hstack([step[:, :3] @ known[:, :3], (step[:, :3] @ known[:, 3] + step[:, 3])[:, None]])
    each = [
        dataclasses.replace(lens, rotation=placed[view][:, :3], translation=placed[view][:, 3])
        for view, lens in enumerate(lenses)
    ]
    cameras = Cameras(each)
    return _with_best_poses(cameras, used, poses)


def _with_best_poses(cameras: Cameras, used: Detections, poses: np.ndarray) -> Scene:
    """Returns the scene in which each frame has the pose, by one of its cameras, that all of them fit best."""
    turned = cameras.rotations.transpose(0, 2, 1)[:, None]
    rotations = turned @ poses[..., :3]
    places = (turned @ (poses[..., 3] - cameras.translations[:, None])[..., None])[..., 0]
    frames = np.arange(len(used.frames))
    losses = []
    for view in range(len(poses)):
        safe = np.where(np.isfinite(rotations[view]), rotations[view], np.eye(3))
        off = Scene(cameras, safe, np.nan_to_num(places[view])).errors_px(used.corners, used.corners_px)
        squares = np.nan_to_num((off**2).sum(axis=-1), nan=1e6)
        loss = np.where(np.isfinite(used.corners_px[..., 0]), np.log1p(squares), 0).sum(axis=(0, 2))
        losses.append(np.where(np.isfinite(rotations[view, :, 0, 0]), loss, np.inf))
    best = np.argmin(losses, axis=0)
    return Scene(cameras, rotations[best, frames], places[best, frames])


def place_board(cameras: Cameras, detections: Detections) -> Scene:
    """Returns the board's poses that fit fixed cameras best; each frame needs a camera that sees enough corners."""
    poses = np.full((*detections.corners_px.shape[:2], 3, 4), np.nan)
    for view, camera in enumerate(cameras.each):
        for frame, pixels in enumerate(detections.corners_px[view]):
            if has_pose(detections, pixels):
                poses[view, frame] = pose_in(camera, detections.corners, pixels)
    start = _with_best_poses(cameras, detections, poses)
    return adjust(start, detections.corners, detections.corners_px, NO_LENS, fixes_cameras=True)


def _held_out(used: Detections, scene: Scene, lens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the errors (v, t, n) of frames by cameras that were calibrated without them, and the squares' lengths."""
    errors_px, lengths = np.full(used.corners_px.shape[:-1], np.nan), []
    views = range(len(used.names))
    for fold in range(_FOLDS):
        is_out = np.arange(len(used.frames)) % _FOLDS == fold
        inside = Scene(scene.cameras, scene.rotations[~is_out], scene.translations[~is_out])
        if len(connected(_sees_together(used.corners_px[:, ~is_out]))) > 1 or not is_out.any():
            continue
        cameras = adjust(inside, used.corners, used.corners_px[:, ~is_out], lens, scales_px=NEAR_PX).cameras
        outside = used.part(views, np.flatnonzero(is_out))
        placed = place_board(cameras, outside)
        errors_px[:, is_out] = np.linalg.norm(placed.errors_px(used.corners, outside.corners_px), axis=-1)
        lengths.append(square_lengths(cameras, outside))
    return errors_px, np.concatenate([np.zeros(0), *lengths])


def _sees_together(points_px: np.ndarray) -> np.ndarray:
    return shared_frames(np.isfinite(points_px[..., 0]).sum(axis=-1) >= LEAST_CORNERS) > 0


def square_lengths(cameras: Cameras, detections: Detections) -> np.ndarray:
    """Returns the distances in 3D between corners that are neighbours on the board, each corner triangulated alone."""
    pixels = detections.corners_px.reshape(len(cameras.names), -1, 2)
    places = triangulate(cameras, pixels, np.ones(pixels.shape[:2]), 0.5).places
    places = places.reshape(len(detections.frames), -1, 3)
    apart = np.linalg.norm(detections.corners[:, None] - detections.corners, axis=-1)
    first, second = np.nonzero(np.triu(np.abs(apart - detections.square) < 1e-6 * detections.square))
    lengths = np.linalg.norm(places[:, first] - places[:, second], axis=-1)
    return lengths[np.isfinite(lengths)]
