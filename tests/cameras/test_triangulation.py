"""Triangulation of exact, noisy and spoiled scenes, compared with OpenCV and scipy."""

import cv2
import numpy as np
import pytest
from scipy.optimize import least_squares

from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.triangulation import measure_noise_px, triangulate
from tests.cameras.rigs import rig

COUNT = 300


def scene(count: int, seed: int = 0) -> tuple[Cameras, np.ndarray, np.ndarray]:
    """Cameras, points (n, 3) on a sphere, and their pixels (v, n, 2)."""
    cameras, places = rig(count, seed), np.random.default_rng(seed).normal(size=(COUNT, 3))
    places = 60 * places / np.linalg.norm(places, axis=1, keepdims=True)
    return cameras, places, cameras.project(places)


def outliers(pixels: np.ndarray, share: float, seed: int = 0) -> np.ndarray:
    """Moves a share of the pixels by 30 to 200."""
    random = np.random.default_rng(seed)
    is_wrong = random.random(pixels.shape[:2]) < share
    angle, distance = random.uniform(0, 2 * np.pi, is_wrong.sum()), random.uniform(30, 200, is_wrong.sum())
    moved = pixels.copy()
    moved[is_wrong] += (distance * np.stack([np.cos(angle), np.sin(angle)])).T
    return moved


@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_exact_pixels_give_the_points(count: int) -> None:
    cameras, places, pixels = scene(count)
    found = triangulate(cameras, pixels, np.ones((count, COUNT)), 1.0)
    np.testing.assert_allclose(found.places, places, rtol=0, atol=1e-9 * 400)
    assert (found.views == count).all() and np.nanmax(found.errors_px) < 1e-8


def test_two_views_give_the_points_of_opencv() -> None:
    cameras, places, pixels = scene(2)
    poses = [np.column_stack([camera.rotation, camera.translation]) for camera in cameras.each]
    first, second = cameras.undistort(pixels)
    found = cv2.triangulatePoints(*poses, first.T, second.T)
    by_us = triangulate(cameras, pixels, np.ones((2, COUNT)), 1.0).places
    np.testing.assert_allclose(by_us, (found[:3] / found[3]).T, rtol=0, atol=1e-9 * 400)


def test_noisy_pixels_give_the_minimum_and_the_covariance_of_scipy() -> None:
    cameras, places, pixels = scene(4)
    random = np.random.default_rng(2)
    pixels = outliers(pixels + random.normal(0, 2, pixels.shape), 0.1)
    confidence = random.uniform(0.2, 1, pixels.shape[:2])
    found = triangulate(cameras, pixels, confidence, 2.0)
    for at in range(0, COUNT, 20):

        def off(place: np.ndarray, at: int = at) -> np.ndarray:
            square = np.sum((cameras.project(place[None])[:, 0] - pixels[:, at]) ** 2, axis=1)
            return np.sqrt(confidence[:, at] * square / (square + 100))

        by_scipy = least_squares(off, found.places[at], x_scale="jac", xtol=1e-14, ftol=1e-14, gtol=1e-14)
        assert np.abs(by_scipy.x - found.places[at]).max() < 1e-3 * found.sd[at]
        assert np.linalg.eigvalsh(found.covariance[at]).min() > 0


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25])
def test_outliers_move_points_little_and_the_standard_deviation_is_right(share: float) -> None:
    cameras, places, pixels = scene(6)
    pixels = outliers(pixels + np.random.default_rng(3).normal(0, 2, pixels.shape), share)
    noise_px = measure_noise_px(cameras, pixels, np.ones((6, COUNT)))
    assert 1.7 < noise_px < 2.6
    found = triangulate(cameras, pixels, np.ones((6, COUNT)), noise_px)
    errors = np.linalg.norm(found.places - places, axis=1)
    assert np.quantile(errors, 0.95) < 1.7
    assert np.mean(errors < 2 * found.sd) > 0.95
    assert 0.6 < np.median(errors / found.sd) < 1.1


def test_a_view_without_confidence_counts_little_and_one_without_pixels_not_at_all() -> None:
    cameras, places, pixels = scene(3)
    confidence = np.ones((3, COUNT))
    pixels[0] += 6.0
    confidence[0] = np.nan
    found = triangulate(cameras, pixels, confidence, 2.0)
    assert np.linalg.norm(found.places - places, axis=1).max() < 0.1
    pixels[0, :100] = np.nan
    pixels[1, :50] = np.nan
    pixels[:, :10] = np.nan
    found = triangulate(cameras, pixels, confidence, 2.0)
    assert np.isnan(found.places[:50]).all() and np.isnan(found.covariance[:50]).all()
    assert (
        np.isnan(found.errors_px[:, :50]).all()
        and (found.views[:50] == 0).all()
        and np.isnan(found.error_px[:50]).all()
    )
    np.testing.assert_allclose(found.places[50:100], places[50:100], rtol=0, atol=1e-6)
    assert (found.views[50:100] == 2).all() and np.isfinite(found.places[50:]).all()


def test_every_point_that_two_views_see_has_a_place_and_says_how_sure_it_is() -> None:
    """Even if the two disagree: then the point is far less sure."""
    cameras, places, pixels = scene(2)
    sure = triangulate(cameras, pixels, np.ones((2, COUNT)), 2.0)
    unsure = triangulate(cameras, pixels, np.full((2, COUNT), 0.0), 2.0)
    apart = triangulate(cameras, pixels + np.array([[[40.0, 40]], [[-40.0, 40]]]), np.ones((2, COUNT)), 2.0)
    assert all(np.isfinite(found.places).all() for found in (sure, unsure, apart))
    assert (unsure.sd > 20 * sure.sd).all()
    far = apart.error_px > 15
    assert far.mean() > 0.5 and (apart.sd[far] > 2 * sure.sd[far]).all() and (apart.views[far] < 2).all()


def test_points_behind_a_camera_are_not_found_there() -> None:
    """The rays of two views that look away from each other meet behind both."""
    cameras, _, _ = scene(2)
    forward = np.stack([cameras.each[at].rotation[2] for at in range(2)])
    across = np.cross(forward[0], forward[1])
    far = cameras.centres.mean(axis=0) - 300 * (forward[0] + forward[1]) + 5 * across
    x, y, z = cameras.camera_places(far[None])
    assert (z < 0).all()
    pixels = np.stack([cameras.fx * x / z + cameras.cx, cameras.fy * y / z + cameras.cy], axis=-1)
    found = triangulate(cameras, pixels, np.ones((2, 1)), 2.0)
    assert np.isnan(found.places).all() or found.error_px[0] > 10


def test_there_may_be_no_point_and_more_than_one_part() -> None:
    cameras, places, pixels = scene(3)
    none = triangulate(cameras, pixels[:, :0], np.ones((3, 0)), 2.0)
    assert none.places.shape == (0, 3) and none.covariance.shape == (0, 3, 3) and none.weights.shape == (3, 0)
    assert np.isnan(measure_noise_px(cameras, pixels[:, :0], np.ones((3, 0))))
    many = np.tile(pixels, (1, 40, 1))
    found = triangulate(cameras, many, np.ones(many.shape[:2]), 2.0).places
    np.testing.assert_allclose(found, np.tile(places, (40, 1)), rtol=0, atol=1e-6)
