"""The adjustment: its Jacobian against finite differences and jax, its minimum against scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from jaxpose.cameras.bundle_adjustment import LENS_NUMBERS, SIMPLE_LENS, Scene, adjust, residuals_and_slopes
from jaxpose.cameras.cameras import Cameras
from tests.cameras.boards import CORNERS, arc, film

FRAMES = 4


def scene_of(cameras: Cameras, frames: int = FRAMES, seed: int = 0) -> Scene:
    random = np.random.default_rng(seed)
    scene = Scene(cameras, np.stack([np.eye(3)] * frames), np.full((frames, 3), [-80.0, -60, 700]))
    return moved(scene, boards=random.normal(0, [0.2] * 3 + [20] * 3, (frames, 6)))


def moved(
    scene: Scene, lens: np.ndarray | None = None, cameras: np.ndarray | None = None, boards: np.ndarray | None = None
) -> Scene:
    views, frames = len(scene.cameras.names), len(scene.rotations)
    lens = np.zeros((views, LENS_NUMBERS)) if lens is None else lens
    cameras = np.zeros((views, 6)) if cameras is None else cameras
    return scene.moved(lens, cameras, np.zeros((frames, 6)) if boards is None else boards)


def curved(cameras: Cameras) -> Cameras:
    """The cameras with every number of the lens."""
    scene = Scene(cameras, np.zeros((0, 3, 3)), np.zeros((0, 3)))
    random = np.random.default_rng(1)
    lens = random.normal(0, 1, (len(cameras.names), LENS_NUMBERS)) * [5, 5, 5, 5, 0.05, 0.05, 1e-3, 1e-3, 0.02]
    return moved(scene, lens).cameras


def test_the_jacobian_is_that_of_finite_differences() -> None:
    scene = scene_of(curved(arc(3)))
    pixels = film(scene.cameras, FRAMES).corners_px
    pixels[1, 2, 5:9] = np.nan
    residuals, by_lens, by_camera, by_board, is_used = residuals_and_slopes(scene, CORNERS, pixels)
    assert not is_used[1, 2, 5:9].any() and not residuals[1, 2, 5:9].any() and not by_board[1, 2, 5:9].any()
    steps = {"lens": (by_lens, LENS_NUMBERS, 3), "cameras": (by_camera, 6, 3), "boards": (by_board, 6, FRAMES)}
    for name, (slopes, size, count) in steps.items():
        for column in range(size):
            step = np.zeros((count, size))
            step[:, column] = 1e-6
            ends = [residuals_and_slopes(moved(scene, **{name: sign * step}), CORNERS, pixels)[0] for sign in (1, -1)]
            expected = (ends[0] - ends[1]) / 2e-6
            scale = max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(slopes[..., column], expected, atol=2e-6 * scale, err_msg=f"{name} {column}")


def test_the_jacobian_is_that_of_jax() -> None:
    """One camera and one pose, in float64."""
    scene = scene_of(curved(arc(2)), 1)
    pixels = film(scene.cameras, 1).corners_px
    _, by_lens, by_camera, by_board, _ = residuals_and_slopes(scene, CORNERS, pixels)
    camera = scene.cameras.each[1]
    lens = np.concatenate([camera.matrix[[0, 1, 0, 1], [0, 1, 2, 2]], np.pad(camera.distortion, (0, 5))[:5]])

    def turned(turn: jax.Array, rotation: np.ndarray) -> jax.Array:
        x, y, z = turn
        return jax.scipy.linalg.expm(jnp.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])) @ rotation

    def project(lens: jax.Array, moved: jax.Array, board: jax.Array) -> jax.Array:
        world = CORNERS @ turned(board[:3], scene.rotations[0]).T + scene.translations[0] + board[3:]
        place = world @ turned(moved[:3], camera.rotation).T + camera.translation + moved[3:]
        x, y = place[:, 0] / place[:, 2], place[:, 1] / place[:, 2]
        fx, fy, cx, cy, k1, k2, p1, p2, k3 = lens
        r2 = x * x + y * y
        radial = 1 + k1 * r2 + k2 * r2**2 + k3 * r2**3
        off_x = x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x)
        off_y = y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y
        return jnp.stack([fx * off_x + cx, fy * off_y + cy], axis=-1)

    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        at = jnp.asarray(lens, jnp.float64), jnp.zeros(6), jnp.zeros(6)
        expected = jax.jacfwd(project, argnums=(0, 1, 2))(*at)
    for slopes, wanted in zip((by_lens, by_camera, by_board), expected, strict=True):
        is_seen = np.isfinite(pixels[1, 0, :, 0])
        off = np.abs(slopes[1, 0] - np.asarray(wanted))[is_seen].max()
        assert off <= 1e-9 * np.abs(np.asarray(wanted)).max()


def test_the_minimum_is_that_of_scipy() -> None:
    """Two cameras and Cauchy's loss, with noise and outliers."""
    cameras = arc(2)
    seen = film(cameras, FRAMES, noise_px=0.3)
    seen.corners_px[0, 1, 3] += 40
    rough = scene_of(cameras)
    found = adjust(rough, CORNERS, seen.corners_px, SIMPLE_LENS)

    def at(numbers: np.ndarray) -> Scene:
        lens, pose, boards = numbers[:4].reshape(2, 2), numbers[4:10], numbers[10:].reshape(FRAMES, 6)
        return moved(found, lens @ SIMPLE_LENS.T, np.stack([np.zeros(6), pose]), boards)

    def off(numbers: np.ndarray) -> np.ndarray:
        return np.linalg.norm(at(numbers).errors_px(CORNERS, seen.corners_px), axis=-1).ravel()

    # Cauchy's loss of a distance, not of x and of y.
    best = scipy.optimize.least_squares(off, np.zeros(10 + 6 * FRAMES), loss="cauchy", x_scale="jac", max_nfev=30)
    here = np.log1p(off(np.zeros(10 + 6 * FRAMES)) ** 2).sum()
    there = np.log1p(off(best.x) ** 2).sum()
    assert here <= there * (1 + 1e-6)


@pytest.mark.parametrize("frames", [3])
def test_a_scene_without_noise_is_found_exactly(frames: int) -> None:
    cameras = arc(3)
    seen = film(cameras, frames)
    rough = moved(scene_of(cameras, frames), cameras=np.array([[0] * 6, [0.02] * 3 + [5] * 3, [-0.02] * 3 + [-5] * 3]))
    found = adjust(rough, CORNERS, seen.corners_px, SIMPLE_LENS)
    assert np.nanmax(np.abs(found.errors_px(CORNERS, seen.corners_px))) < 1e-5
    assert np.abs(found.cameras.rotations - cameras.rotations).max() < 1e-6
