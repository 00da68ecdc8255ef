"""Where the other cameras of a moment show a point: compared with OpenCV and with the triangulation in numpy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpose.cameras.cameras import Cameras, Rig
from jaxpose.cameras.triangulation import triangulate
from jaxpose.steps.cameras import shown_by_others
from tests.cameras.rigs import opencv_pixels, rig

VIEWS, KEYPOINTS, MOMENTS = 4, 3, 5


def four_cameras(seed: int) -> Cameras:
    """One of them has a fisheye lens."""
    cameras = rig(VIEWS, seed).each
    fish = dataclasses.replace(cameras[2], is_fisheye=True, distortion=np.array([0.05, -0.01, 2e-3, 0.0]))
    return Cameras([*cameras[:2], fish, *cameras[3:]])


RIGS = [four_cameras(seed) for seed in range(MOMENTS)]
POINTS = np.random.default_rng(5).uniform(-80, 80, (MOMENTS, KEYPOINTS, 3))
PIXELS = np.stack([cameras.project(points) for cameras, points in zip(RIGS, POINTS, strict=True)])
NUMBERS = np.stack([cameras.numbers_near_0() for cameras in RIGS])
SURE = np.full(PIXELS.shape[:3], 0.9)
# Compiled once for each dtype and number of views.
SHOWN = jax.jit(lambda *given: shown_by_others(*given, 0.05))


def shown(pixels: np.ndarray, sure: np.ndarray, dtype: type) -> list[np.ndarray]:
    arrays = NUMBERS, pixels, sure, np.full(sure.shape[:2], 2.0)
    return [np.asarray(one) for one in SHOWN(*(jnp.asarray(one, dtype) for one in arrays))]


# In float32 a pixel of these images of 1280 x 1024 px is known to 1e-3 px.
@pytest.mark.parametrize(("dtype", "bar_px"), [(np.float64, 1e-9), (np.float32, 1e-3)])
def test_pixels_of_jax_are_those_of_opencv_in_any_world(dtype: type, bar_px: float) -> None:
    with jax.enable_x64(dtype == np.float64):
        for cameras, points in zip(RIGS, POINTS, strict=True):
            moved = Rig(cameras.numbers_near_0())
            # The world moves with the cameras: their centres tell where.
            unit = np.linalg.norm(cameras.centres[0] - cameras.centres[1])
            unit /= np.linalg.norm(moved.centres[0] - moved.centres[1])
            here = (points - cameras.centres[0]) / unit + moved.centres[0]
            project = jax.jit(lambda numbers, points: Rig(numbers).project(points))
            with jax.default_matmul_precision("highest"):
                found = project(jnp.asarray(moved.numbers, dtype), jnp.asarray(here, dtype))
            expected = np.stack([opencv_pixels(camera, points) for camera in cameras.each])
            np.testing.assert_allclose(found, expected, rtol=0, atol=bar_px)


def test_true_pixels_are_shown_by_the_other_views() -> None:
    two = SURE.copy()
    two[:, 2:] = 0
    with jax.enable_x64(True):
        # With two views, the point of both.
        for sure in (SURE, two):
            found, is_shown = shown(PIXELS, sure, np.float64)
            assert is_shown.all()
            np.testing.assert_allclose(found, PIXELS, rtol=0, atol=1e-6)
    found, is_shown = shown(PIXELS, SURE, np.float32)
    assert is_shown.all()
    np.testing.assert_allclose(found, PIXELS, rtol=0, atol=0.01)


def test_a_wrong_view_learns_from_the_others_and_misleads_none() -> None:
    """As the triangulation without each view in turn finds it, with noise and a view that is far off."""
    pixels, sure = PIXELS + np.random.default_rng(0).normal(0, 1, PIXELS.shape), SURE.copy()
    pixels[:, 1, 0] += 150
    sure[:, 2, 1] = 0.3
    with jax.enable_x64(True):
        found, is_shown = shown(pixels, sure, np.float64)
    assert is_shown.all()
    for moment, cameras in enumerate(RIGS):
        for view in range(VIEWS):
            others = np.arange(VIEWS) != view
            rest = Cameras([camera for camera, is_other in zip(cameras.each, others, strict=True) if is_other])
            points = triangulate(rest, pixels[moment][others], sure[moment][others], 2.0)
            expected = Cameras([cameras.each[view], cameras.each[view - 1]]).project(points.places)[0]
            np.testing.assert_allclose(found[moment, view], expected, rtol=0, atol=1e-3)
    assert np.linalg.norm(found - PIXELS, axis=-1)[:, 1, 0].max() < 12


def test_views_that_are_missing_or_unsure_tell_nothing() -> None:
    pixels, sure = PIXELS.copy(), SURE.copy()
    pixels[0, 1] = np.nan
    sure[1, 1], pixels[1, 1] = 0.01, 3.0
    # Only one view knows this keypoint, and of this one no pair agrees.
    sure[2, :3, 0] = 0.0
    pixels[3, 2:, 0] = np.nan
    pixels[3, 0, 0] += [300, -300]
    with jax.enable_x64(True):
        found, is_shown = shown(pixels, sure, np.float64)
    np.testing.assert_allclose(found[:2], PIXELS[:2], rtol=0, atol=1e-6)
    assert is_shown[:2].all() and not is_shown[2, :, 0].any() and is_shown[2, :, 1:].all()
    assert not is_shown[3, :, 0].any()
