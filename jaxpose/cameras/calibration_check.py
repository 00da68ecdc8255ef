"""Checks a calibration against new pictures of a board, and names what is wrong with it; sets the world on a floor."""

import dataclasses

import numpy as np

from jaxpose.cameras.board_poses import Detections, has_pose
from jaxpose.cameras.bundle_adjustment import NO_LENS, Scene, adjust
from jaxpose.cameras.calibration import place_board, square_lengths
from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.triangulation import triangulate
from jaxpose.errors import UserError
from jaxpose.terminal import listed

# The length of a square in 3D, relative to the board's, is more exact than this.
_WRONG_LENGTH = 0.005
_HALF_PX = 0.5
# With the fault undone, the median error must fall at least to this share.
_FITS_BETTER = 0.8
# Where the other cameras expect the corners of a camera: pixels, and times the median of the others, that are too many.
_MOVED_PX, _MOVED_TIMES = 2.0, 5.0
_MOST_NAMED = 10
# Points that refine the poses of cameras.
_MOST_REFINED = 2000


@dataclasses.dataclass(frozen=True)
class BoardCheck:
    """How well a calibration fits pictures of a board.

    Attributes:
      errors_px: (v, t, n), with the board placed by all cameras.
      expected_px: (v, t, n), distances of the corners from where the other cameras expect them.
      square: lengths of the board's squares in 3D.
      faults: a sentence for each, the cause first.
    """

    errors_px: np.ndarray
    expected_px: np.ndarray
    square: np.ndarray
    faults: list[str]


def check_board(cameras: Cameras, detections: Detections) -> BoardCheck:
    """Returns how well cameras fit corners; the detections have the cameras' names, in their order.

    Raises:
      UserError: no frame shows the board to two cameras, or the images have other sizes.
    """
    for camera, size_px in zip(cameras.each, detections.sizes_px, strict=True):
        if all(camera.size_px) and camera.size_px != size_px:
            raise UserError(
                f"camera {camera.name} is calibrated for images of {camera.size_px[0]} x {camera.size_px[1]} px, but "
                f"its board images have {size_px[0]} x {size_px[1]} px"
            )
    views = range(len(cameras.names))
    is_posed = np.array([[has_pose(detections, pixels) for pixels in frames] for frames in detections.corners_px])
    used = detections.part(views, np.flatnonzero(is_posed.sum(axis=0) >= 2))
    if not used.frames:
        raise UserError("no frame shows the board to two cameras: nothing can be checked")
    errors_px = _lengths(place_board(cameras, used), used)
    expected_px = np.full(errors_px.shape, np.nan)
    for view in views:
        others = [other for other in views if other != view]
        part = used.part(others, np.arange(len(used.frames)))
        placed = place_board(Cameras([cameras.each[other] for other in others]), part)
        whole = Scene(cameras, placed.rotations, placed.translations)
        expected_px[view] = _lengths(whole, used)[view]
    square = square_lengths(cameras, used)
    return BoardCheck(errors_px, expected_px, square, _faults(cameras, used, errors_px, expected_px, square))


def _faults(
    cameras: Cameras, used: Detections, errors_px: np.ndarray, expected_px: np.ndarray, square: np.ndarray
) -> list[str]:
    medians = np.array([np.nanmedian(of_view) if np.isfinite(of_view).any() else np.nan for of_view in expected_px])
    worst = int(np.nanargmax(medians))
    others = np.delete(medians, worst)
    if medians[worst] > max(_MOVED_PX, _MOVED_TIMES * float(np.nanmedian(others))):
        return [
            f"moved: camera {cameras.names[worst]} sees the board {medians[worst]:.1f} px from where the other cameras "
            "expect it: it was moved, or its calibration is wrong; calibrate again"
        ]
    now = float(np.nanmedian(errors_px))
    ratio = float(np.median(square)) / used.square if len(square) else 1.0
    if abs(ratio - 1) > _WRONG_LENGTH and _error_of(cameras, used, corners=used.corners * ratio) < _FITS_BETTER * now:
        return [
            f"wrong length: a square measures {np.median(square):.4g} in 3D, but {used.square:g} by --board "
            f"({100 * (ratio - 1):+.1f} %): one of the two calibrations or boards has a wrong length"
        ]
    for sign, moved in ((1, "below and to the right of"), (-1, "above and to the left of")):
        then = _error_of(cameras, used, corners_px=used.corners_px + sign * _HALF_PX)
        if then < _FITS_BETTER * now:
            return [
                f"half a pixel: with corners half a pixel {moved} the detected ones, the error falls from {now:.2f} to "
                f"{then:.2f} px: the calibration counts pixels from their edges, as corners of OpenCV before 4.7; "
                "calibrate again"
            ]
    if np.nanmedian(medians) > _MOVED_PX:
        return [f"the cameras disagree by {np.nanmedian(medians):.1f} px about the board: calibrate again"]
    return []


def _error_of(cameras: Cameras, used: Detections, **changes: np.ndarray) -> float:
    """Returns the median error after changes of the detections."""
    changed = dataclasses.replace(used, **changes)
    return float(np.nanmedian(_lengths(place_board(cameras, changed), changed)))


def _lengths(scene: Scene, used: Detections) -> np.ndarray:
    return np.linalg.norm(scene.errors_px(used.corners, used.corners_px), axis=-1)


def on_floor(cameras: Cameras, detections: Detections, frame: int) -> Cameras:
    """Returns the cameras in a world whose floor is the board of a frame.

    The origin is the board's corner before its first square, x and y lie along its edges, z points up from its print.

    Raises:
      UserError: no camera sees enough of the board in this frame.
    """
    seen = [
        number
        for number, pixels in zip(detections.frames, detections.corners_px.transpose(1, 0, 2, 3), strict=True)
        if any(has_pose(detections, of_camera) for of_camera in pixels)
    ]
    if frame not in seen:
        raise UserError(
            f"--floor is {frame}, but no camera sees enough of the board in that frame; it is seen in "
            f"{listed([str(number) for number in seen], _MOST_NAMED)}"
        )
    placed = place_board(
        cameras, detections.part(range(len(cameras.names)), np.array([detections.frames.index(frame)]))
    )
    # The board's z points away from those who read it.
    turn = placed.rotations[0] @ np.diag([1.0, -1.0, -1.0])
    return Cameras(
        [
            dataclasses.replace(
                camera,
                rotation=camera.rotation @ turn,
                translation=camera.rotation @ placed.translations[0] + camera.translation,
            )
            for camera in cameras.each
        ]
    )


def refine_poses(cameras: Cameras, points_px: np.ndarray, confidence: np.ndarray, noise_px: float) -> Cameras:
    """Returns the cameras with the positions and directions that fit points best; lenses stay as they are.

    The first camera keeps its pose, and the mean distance between the cameras stays, because points show no length.

    Args:
      cameras: v cameras; errors of some tens of pixels are near enough.
      points_px: (v, n, 2), NaN where a view has no pixels.
      confidence: (v, n), 0 to 1, of the triangulation to begin with.
      noise_px: standard deviation of x and of y of a good prediction.
    """
    start = triangulate(cameras, points_px, confidence, noise_px).places
    chosen = np.flatnonzero(np.isfinite(start[:, 0]))
    chosen = chosen[:: max(1, len(chosen) // _MOST_REFINED)]
    # Each point is a board with one corner, whose rotation changes nothing.
    scene = Scene(cameras, np.tile(np.eye(3), (len(chosen), 1, 1)), start[chosen])
    scales_px = (8 * noise_px, 2 * noise_px)
    moved = adjust(scene, np.zeros((1, 3)), points_px[:, chosen, None], NO_LENS, scales_px=scales_px).cameras
    grown = _mean_distance(cameras) / _mean_distance(moved)
    each = []
    for camera, one, centre in zip(cameras.each, moved.each, moved.centres, strict=True):
        kept = moved.centres[0] + grown * (centre - moved.centres[0])
        each.append(dataclasses.replace(camera, rotation=one.rotation, translation=-one.rotation @ kept))
    return Cameras(each)


def _mean_distance(cameras: Cameras) -> float:
    return float(np.linalg.norm(cameras.centres[:, None] - cameras.centres, axis=-1).mean())
