"""Maps that are carried into another view: against scipy, and against points that are carried by the same affines."""

import jax
import numpy as np
import pytest
from scipy import ndimage

from jaxpose import geometry
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.pose import heatmap
from jaxpose.pose.pixels import carry
from jaxpose.poses import VISIBLE

SIDE_PX, STRIDE = 64, 4
SHIFT_PX = 0.5 - 0.5 * STRIDE

carry_fast = jax.jit(carry, static_argnums=3)
encode_fast = jax.jit(heatmap.encode, static_argnums=(2, 3, 4))
decode_fast = jax.jit(heatmap.decode, static_argnums=(1, 2))


def turned(degrees: float, scale: float, shift_px: tuple[float, float]) -> np.ndarray:
    """An affine that turns and scales about the middle of the input, then shifts."""
    angle, middle = np.deg2rad(degrees), (SIDE_PX - 1) / 2
    linear = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.concatenate([linear, (middle - linear @ [middle, middle] + shift_px)[:, None]], axis=1)


def carried(maps: np.ndarray, source: np.ndarray, target: np.ndarray, moves_px: np.ndarray | None = None) -> np.ndarray:
    shift_px = np.full((len(maps), 2), SHIFT_PX, maps.dtype)
    moves = np.zeros((len(maps), 1, 2), maps.dtype) if moves_px is None else np.asarray(moves_px)
    return np.asarray(carry_fast(np.asarray(maps), np.asarray(source), np.asarray(target), STRIDE, shift_px, moves))


def test_maps_are_carried_as_scipy_does() -> None:
    rng = np.random.default_rng(0)
    maps = rng.random((3, 2, SIDE_PX // STRIDE, SIDE_PX // STRIDE))
    maps /= maps.sum((-2, -1), keepdims=True)
    source = np.stack([turned(8, 0.95, (1, 2)), turned(-5, 1.1, (0, 0)), turned(0, 1, (0, 0))])
    target = np.stack([turned(-40, 1.2, (5, -3)), turned(30, 0.8, (-8, 2)), turned(0, 1, (0, 0))])
    with pinned_settings("f64"):
        found = carried(maps, source, target)
    for number in range(3):
        affine = np.eye(3)
        # Rows and columns of cells of the source view, from those of the target view.
        cells = np.array([[STRIDE, 0, -SHIFT_PX], [0, STRIDE, -SHIFT_PX], [0, 0, 1]])
        of_input = [np.concatenate([view[number], [[0, 0, 1]]]) for view in (source, target)]
        affine = np.linalg.inv(cells) @ np.linalg.inv(of_input[0]) @ of_input[1] @ cells
        swap = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1]])
        affine = swap @ affine @ swap
        for point in range(2):
            expected = ndimage.affine_transform(maps[number, point], affine, order=1, mode="grid-constant")
            np.testing.assert_allclose(found[number, point], expected / expected.sum(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[2], maps[2], rtol=1e-9)


@pytest.mark.parametrize("mirror", [False, True])
def test_the_point_of_a_carried_map_is_the_carried_point(mirror: bool) -> None:
    rng = np.random.default_rng(1)
    points_px = rng.uniform(22, 42, (4, 3, 2)).astype(np.float32)
    visible = np.full((4, 3), VISIBLE, np.int8)
    maps = np.asarray(encode_fast(np.asarray(points_px), visible, (SIDE_PX, SIDE_PX), STRIDE, 1.5))
    source = np.stack([turned(10 * number - 15, 1, (number, 0)) for number in range(4)]).astype(np.float32)
    target = np.stack([turned(40 * number - 60, 1, (0, 2)) for number in range(4)]).astype(np.float32)
    if mirror:
        target = target @ np.array([[-1, 0, SIDE_PX - 1], [0, 1, 0], [0, 0, 1]], np.float32)
    found = carried(maps, source, target)
    expected_px = geometry.apply(geometry.invert(target), geometry.apply(source, points_px))
    decoded_px, confidence = decode_fast(np.asarray(found), STRIDE, 1.5)
    # Bilinear values between cells move the centre of a Gaussian by a small part of a cell of 4 px.
    assert np.abs(np.asarray(decoded_px) - expected_px).max() < 0.25
    assert np.asarray(confidence).min() > 0.9


def test_the_map_of_a_moved_keypoint_moves_alone() -> None:
    points_px = np.array([[[30, 20], [40, 44], [20, 40]]], np.float32)
    visible = np.full((1, 3), VISIBLE, np.int8)
    maps = np.asarray(encode_fast(np.asarray(points_px), visible, (SIDE_PX, SIDE_PX), STRIDE, 1.5))
    source, target = (turned(degrees, 1, (0, 0))[None].astype(np.float32) for degrees in (10, -30))
    moves_px = np.array([[[0, 0], [-7, -9], [5, 0]]], np.float32)
    found = carried(maps, source, target, moves_px)
    expected_px = geometry.apply(geometry.invert(target), geometry.apply(source, points_px) + moves_px)
    decoded_px, _ = decode_fast(np.asarray(found), STRIDE, 1.5)
    assert np.abs(np.asarray(decoded_px) - expected_px).max() < 0.25
    np.testing.assert_allclose(found[:, :1], carried(maps[:, :1], source, target), atol=1e-7)


def test_a_map_that_the_other_view_does_not_show_is_zero_and_others_sum_to_one() -> None:
    points_px = np.array([[[32, 32], [2, 2]]], np.float32)
    visible = np.full((1, 2), VISIBLE, np.int8)
    maps = np.asarray(encode_fast(np.asarray(points_px), visible, (64, 64), STRIDE, 0.5))
    far = turned(0, 0.3, (0, 0))[None].astype(np.float32)
    found = carried(maps, turned(0, 1, (0, 0))[None].astype(np.float32), far)
    np.testing.assert_allclose(found[0, 0].sum(), 1, rtol=1e-6)
    assert not found[0, 1].any()
