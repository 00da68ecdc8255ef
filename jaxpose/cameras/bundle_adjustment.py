"""Adjusts cameras and the poses of a board to the detected corners: one robust least-squares problem.

A corner X of the board at time t is Rb X + tb in the world and Rc (Rb X + tb) + tc in a camera. Rotations change from
the left: exp(w) R. Levenberg's steps use the analytic Jacobian; the poses of the board are eliminated from each step
(Schur's complement), so its cost grows linearly with the number of frames. The loss is Cauchy's.
"""

import dataclasses
from collections.abc import Sequence

import cv2
import numpy as np

from jaxpose.cameras.cameras import Cameras

# The numbers of a lens, in the order of the Jacobian: fx, fy, cx, cy, k1, k2, p1, p2, k3.
LENS_NUMBERS = 9
# What a step changes, a column each.
NO_LENS = np.zeros((LENS_NUMBERS, 0))
SIMPLE_LENS = np.zeros((LENS_NUMBERS, 2))
SIMPLE_LENS[[0, 1], 0] = SIMPLE_LENS[4, 1] = 1
LENSES = {
    "one focal length and k1": SIMPLE_LENS,
    "two focal lengths, the centre, k1, k2, p1 and p2": np.eye(LENS_NUMBERS)[:, :8],
    "two focal lengths, the centre, k1, k2, p1, p2 and k3": np.eye(LENS_NUMBERS),
}

# Errors above the last scale lose their influence; larger ones lead there from a rough start.
ROUGH_PX, NEAR_PX = (30.0, 8.0, 2.0, 1.0), (1.0,)
_STEPS = 40
_STILL, _ROUGHLY_STILL = 1e-7, 1e-3
_BEHIND_PX2 = 1e8


@dataclasses.dataclass(frozen=True)
class Scene:
    """Cameras, and the poses of a board over time.

    Attributes:
      cameras: v cameras.
      rotations: (t, 3, 3), and translations: (t, 3), from the board to the world.
    """

    cameras: Cameras
    rotations: np.ndarray
    translations: np.ndarray

    def places(self, corners: np.ndarray) -> np.ndarray:
        """Returns the corners (n, 3) of the board in the world, (t, n, 3)."""
        return corners @ self.rotations.transpose(0, 2, 1) + self.translations[:, None]

    def errors_px(self, corners: np.ndarray, points_px: np.ndarray) -> np.ndarray:
        """Returns where the cameras see the corners minus the pixels (v, t, n, 2); NaN without pixels."""
        return self.cameras.project(self.places(corners).reshape(-1, 3)).reshape(points_px.shape) - points_px

    def moved(self, lens: np.ndarray, camera_steps: np.ndarray, board_steps: np.ndarray) -> "Scene":
        """Returns the scene after a step.

        Args:
          lens: (v, 9), what is added to the numbers of each lens.
          camera_steps: (v, 6), rotation and translation of each camera.
          board_steps: (t, 6), rotation and translation of each pose.
        """
        turns = _exponentials(camera_steps[:, :3])
        cameras = []
        for camera, add, turn, step in zip(self.cameras.each, lens, turns, camera_steps, strict=True):
            matrix = camera.matrix + [[add[0], 0, add[2]], [0, add[1], add[3]], [0, 0, 0]]
            distortion = np.pad(camera.distortion, (0, 5))[:5] + add[4:]
            turned = turn @ camera.rotation
            cameras.append(
                dataclasses.replace(
                    camera, matrix=matrix, distortion=distortion, rotation=turned,
                    translation=camera.translation + step[3:],
                )
            )  # fmt: skip
        rotations = _exponentials(board_steps[:, :3]) @ self.rotations
        return Scene(Cameras(cameras), rotations, self.translations + board_steps[:, 3:])


def residuals_and_slopes(
    scene: Scene, corners: np.ndarray, points_px: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the residuals (v, t, n, 2), 0 without pixels, and their derivatives.

    The derivatives are by the numbers of the lens (v, t, n, 2, 9), by a step of the camera (v, t, n, 2, 6) and of the
    board (v, t, n, 2, 6). The last array (v, t, n) says which corners lie in front of their camera and have pixels.
    """
    shape = points_px.shape[:-1]
    turned = corners @ scene.rotations.transpose(0, 2, 1)
    world = (turned + scene.translations[:, None]).reshape(-1, 3)
    cameras = scene.cameras
    depth = cameras.camera_places(world)
    is_used = np.isfinite(points_px[..., 0]).reshape(len(depth[2]), -1) & (depth[2] > 0)
    x, y, z = np.where(is_used, depth, [[[0.0]], [[0.0]], [[1.0]]])
    inverse = 1 / z
    x, y = x * inverse, y * inverse
    u, v, ux, uy, vx, vy = cameras.pixels_and_slopes(x, y)
    # By the place in the camera (v, N, 2, 3).
    by_place = np.stack(
        [
            np.stack([ux * inverse, uy * inverse, -(ux * x + uy * y) * inverse], -1),
            np.stack([vx * inverse, vy * inverse, -(vx * x + vy * y) * inverse], -1),
        ],
        axis=-2,
    )
    by_place[~is_used] = 0
    # A rotation w moves a place p by w x p; the derivative of g(p) by w is p x grad g.
    offset = np.einsum("vij,nj->vni", cameras.rotations, world)
    by_camera = np.concatenate([np.cross(offset[:, :, None], by_place), by_place], axis=-1)
    by_world = np.einsum("vnki,vij->vnkj", by_place, cameras.rotations)
    by_board = np.concatenate([np.cross(turned.reshape(1, -1, 1, 3), by_world), by_world], axis=-1)
    by_lens = _by_lens(cameras, x, y)
    by_lens[~is_used] = 0
    pixels = points_px.reshape(*x.shape, 2)
    residuals = np.where(is_used[..., None], np.stack([u, v], -1) - pixels, 0.0)
    return (
        residuals.reshape(*shape, 2),
        by_lens.reshape(*shape, 2, -1),
        by_camera.reshape(*shape, 2, 6),
        by_board.reshape(*shape, 2, 6),
        is_used.reshape(shape),
    )


def _by_lens(cameras: Cameras, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the derivatives (v, n, 2, 9) of the pixels of normalised places (v, n) by the numbers of the lens."""
    r2 = x * x + y * y
    off_x, off_y = cameras.distorted(x, y)
    none, one = np.zeros_like(x), np.ones_like(x)
    fx, fy = cameras.fx, cameras.fy
    in_u = [off_x, none, one, none, fx * x * r2, fx * x * r2**2, fx * 2 * x * y, fx * (r2 + 2 * x * x), fx * x * r2**3]
    in_v = [none, off_y, none, one, fy * y * r2, fy * y * r2**2, fy * (r2 + 2 * y * y), fy * 2 * x * y, fy * y * r2**3]
    return np.stack([np.stack(in_u, -1), np.stack(in_v, -1)], axis=-2)


def adjust(
    scene: Scene,
    corners: np.ndarray,
    points_px: np.ndarray,
    lens: np.ndarray,
    fixes_cameras: bool = False,
    scales_px: Sequence[float] = ROUGH_PX,
) -> Scene:
    """Returns the scene that fits the pixels best.

    The first camera keeps its pose, which fixes the world.

    Args:
      scene: the start; errors of some tens of pixels are near enough.
      corners: (n, 3), of the board.
      points_px: (v, t, n, 2), NaN where a corner was not detected.
      lens: (9, m), what the columns of the step change in each lens; `NO_LENS` keeps it.
      fixes_cameras: only the poses of the board move.
      scales_px: of the loss, one after the other; `NEAR_PX` if the start is near.
    """
    for scale_px in scales_px:
        still = _STILL if scale_px == scales_px[-1] else _ROUGHLY_STILL
        scene = _adjusted(scene, corners, points_px, (lens, fixes_cameras), scale_px, still)
    return scene


def _adjusted(
    scene: Scene,
    corners: np.ndarray,
    points_px: np.ndarray,
    moves: tuple[np.ndarray, bool],
    scale_px: float,
    still: float,
) -> Scene:
    """Returns the scene after Levenberg's steps, which end where one lowers the loss by less than the share `still`."""
    damping, loss = 1e-4, _loss(scene, corners, points_px, scale_px)
    for _ in range(_STEPS):
        normal = _Normal(scene, corners, points_px, *moves, scale_px)
        while True:
            trial = scene.moved(*normal.step(damping))
            trial_loss = _loss(trial, corners, points_px, scale_px)
            if trial_loss <= loss or damping > 1e8:
                break
            damping *= 10
        if not trial_loss <= loss:
            break
        gain, scene, loss, damping = loss - trial_loss, trial, trial_loss, max(damping / 10, 1e-10)
        if gain <= still * loss:
            break
    return scene


def _loss(scene: Scene, corners: np.ndarray, points_px: np.ndarray, scale_px: float) -> float:
    with np.errstate(all="ignore"):
        squares = (scene.errors_px(corners, points_px) ** 2).sum(axis=-1)
    squares = np.where(np.isfinite(points_px[..., 0]), np.nan_to_num(squares, nan=_BEHIND_PX2), 0.0)
    return float(np.log1p(squares / scale_px**2).sum())


class _Normal:
    """The normal equations of a scene: cameras (v, p, p), boards (t, 6, 6), and what couples them (v, t, p, 6)."""

    def __init__(
        self, scene: Scene, corners: np.ndarray, points_px: np.ndarray, lens: np.ndarray, fixes: bool, scale_px: float
    ) -> None:
        residuals, by_lens, by_camera, by_board, _ = residuals_and_slopes(scene, corners, points_px)
        views, frames, count = residuals.shape[:3]
        weights = np.sqrt(1 / (1 + (residuals**2).sum(axis=-1) / scale_px**2))[..., None]
        self._views, self._lens, self._fixes = views, lens, fixes
        rows = (views, frames, 2 * count)
        off = (weights * residuals).reshape(*rows, 1)
        board = (weights[..., None] * by_board).reshape(*rows, 6)
        self._boards = (board.transpose(0, 1, 3, 2) @ board).sum(axis=0)
        self._board_slope = (board.transpose(0, 1, 3, 2) @ off).sum(axis=0)[..., 0]
        if fixes:
            return
        camera = (weights[..., None] * np.concatenate([by_lens @ lens, by_camera], axis=-1)).reshape(*rows, -1)
        flat = camera.reshape(views, frames * 2 * count, -1)
        self._cameras = flat.transpose(0, 2, 1) @ flat
        self._camera_slope = (flat.transpose(0, 2, 1) @ off.reshape(views, -1, 1))[..., 0]
        self._between = camera.transpose(0, 1, 3, 2) @ board

    def step(self, damping: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the steps of the lenses (v, 9), of the cameras (v, 6) and of the boards (t, 6)."""
        inverse = np.linalg.inv(_damped(self._boards, damping))
        if self._fixes:
            boards = -(inverse @ self._board_slope[..., None])[..., 0]
            return np.zeros((self._views, LENS_NUMBERS)), np.zeros((self._views, 6)), boards
        views, frames, size, _ = self._between.shape
        carried = self._between @ inverse
        system = -np.einsum("vtpi,utqi->vpuq", carried, self._between, optimize=True)
        system[range(views), :, range(views)] += _damped(self._cameras, damping)
        slope = self._camera_slope - np.einsum("vtpi,ti->vp", carried, self._board_slope)
        free = np.ones((views, size), bool)
        free[0, self._lens.shape[1] :] = False
        kept = np.flatnonzero(free)
        flat = system.reshape(views * size, -1)[np.ix_(kept, kept)]
        step = np.zeros(views * size)
        step[kept] = -np.linalg.solve(flat, slope.ravel()[kept])
        step = step.reshape(views, size)
        back = self._board_slope + np.einsum("vtpi,vp->ti", self._between, step)
        boards = -(inverse @ back[..., None])[..., 0]
        return step[:, : self._lens.shape[1]] @ self._lens.T, step[:, self._lens.shape[1] :], boards


def _damped(matrices: np.ndarray, damping: float) -> np.ndarray:
    diagonal = np.einsum("...ii->...i", matrices)
    return matrices + (damping * diagonal + 1e-12)[..., None] * np.eye(matrices.shape[-1])


def _exponentials(turns: np.ndarray) -> np.ndarray:
    """Returns the rotations (n, 3, 3) by Rodrigues' vectors (n, 3)."""
    return np.stack([cv2.Rodrigues(turn)[0] for turn in turns]) if len(turns) else np.zeros((0, 3, 3))
