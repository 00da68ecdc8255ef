"""Moved parts: pixels and keypoints take the same places as in a plain copy, and nobody else's numbers count."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpose.config.data import AugmentConfig, resolve_preset
from jaxpose.pose.augment import draw_params, mean_colour, move_keypoints, render, sample_keys

HEIGHT, WIDTH = 24, 32


def _config(**numbers: Any) -> AugmentConfig:
    return resolve_preset(AugmentConfig(preset="none", **numbers))


def _params(augment: AugmentConfig, count: int, dtype: Any = np.float32) -> dict[str, jax.Array]:
    affine = jnp.tile(jnp.eye(2, 3, dtype=dtype)[None], (count, 1, 1))
    keys = sample_keys(7, 0, jnp.arange(count, dtype=jnp.int32), 0)
    return draw_params(keys, augment, affine, (HEIGHT, WIDTH))


def _drawn(augment: AugmentConfig, count: int) -> dict[str, np.ndarray]:
    """The parameters alone, which take less time to compile than the frames."""
    return jax.tree.map(np.asarray, jax.jit(lambda: _params(augment, count))())


def _augmented(augment: AugmentConfig, frames: np.ndarray, keypoints_px: np.ndarray, dtype: Any = np.float32) -> Any:
    """The augmented frames, the keypoints, their visibility, and the parameters."""

    @jax.jit
    def run(frames: jax.Array, keypoints_px: jax.Array) -> tuple:
        drawn = _params(augment, len(frames), dtype)
        visibility = jnp.full(keypoints_px.shape[:2], 2, jnp.int8)
        return (
            render(drawn, augment, frames, dtype),
            *move_keypoints(drawn, augment, keypoints_px, visibility, None),
            drawn,
        )

    return jax.tree.map(np.asarray, run(jnp.asarray(frames), jnp.asarray(keypoints_px, dtype)))


def _every_pixel(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Frames whose colours are 4 times the pixels' places, which their mean (62, 46, 0) is not, and all places."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    frame = np.stack([4 * x, 4 * y, 0 * x], axis=-1).astype(np.uint8)
    places = np.stack([x, y], axis=-1).reshape(-1, 2)
    return np.tile(frame, (count, 1, 1, 1, 1)), np.tile(places, (count, 1, 1))


@pytest.mark.parametrize("numbers", [{}, {"move_parts": 5, "move_p": 0.5, "move_side_min": 0.01}])
def test_the_frames_are_those_of_a_copy_part_by_part(numbers: dict[str, Any]) -> None:
    augment = _config(**{"move_p": 1.0} | numbers)
    frames = np.random.default_rng(0).integers(0, 256, (12, 2, HEIGHT, WIDTH, 3), dtype=np.uint8)
    with jax.enable_x64(True):
        seen, _, _, drawn = _augmented(augment, frames, np.zeros((12, 1, 2)), np.float64)
    size, moved = np.array([WIDTH, HEIGHT]), 0
    for sample in range(12):
        expected = frames[sample].astype(np.float64)
        # Of the middle frame, whose label it is.
        mean = expected[1].mean((0, 1))
        parts = (drawn[f"part_{name}_px"][sample] for name in ("low", "side", "shift"))
        for low, side, shift in zip(*parts, strict=True):
            (left, top), (wide, high) = low.astype(int), side.astype(int)
            to_left, to_top = (low + shift).astype(int)
            assert min(left, top, to_left, to_top) >= 0
            assert max(left, to_left) + wide <= WIDTH and max(top, to_top) + high <= HEIGHT
            if wide * high:
                moved += 1
                assert np.all(np.abs(side / size - (augment.move_side_min + augment.move_side_max) / 2) < 0.25)
            part = expected[:, top : top + high, left : left + wide].copy()
            expected[:, top : top + high, left : left + wide] = mean
            expected[:, to_top : to_top + high, to_left : to_left + wide] = part
        np.testing.assert_allclose(seen[sample], expected, atol=1e-9)
    parts = 12 * augment.move_parts
    assert moved == parts if augment.move_p == 1 else 0.3 * parts < moved < 0.7 * parts


def test_a_keypoint_lies_on_its_pixel_and_is_not_used_where_its_pixel_is_gone() -> None:
    frames, places = _every_pixel(20)
    seen, moved_px, visibility, _ = _augmented(_config(move_p=0.7, move_parts=3), frames, places)
    gone = 0
    for sample in range(20):
        colours = np.rint(seen[sample, 0, ..., :2]).reshape(-1, 2).tolist()
        shown = {(x / 4, y / 4): (index % WIDTH, index // WIDTH) for index, (x, y) in enumerate(colours)}
        for before, after, used in zip(places[sample], moved_px[sample], visibility[sample], strict=True):
            assert shown.get(tuple(before)) == (tuple(after) if used else None)
            gone += not used
    assert 0.02 < gone / (20 * HEIGHT * WIDTH) < 0.5


def test_parts_move_before_the_rest_of_the_geometry() -> None:
    # Colours that are coordinates can be read to a fraction of a pixel, away from the edges of parts.
    frames, places = _every_pixel(30)
    augment = _config(move_p=0.7, rotate_p=1.0, scale_p=1.0, elastic_p=1.0)
    seen, moved_px, visibility, _ = _augmented(augment, frames, places)
    checked, right = 0, 0
    for sample in range(30):
        inside = np.all((moved_px[sample] > 2) & (moved_px[sample] < [WIDTH - 3, HEIGHT - 3]), axis=-1)
        chosen = inside & (visibility[sample] == 2)
        near = np.rint(moved_px[sample, chosen]).astype(int)
        colours = seen[sample, 0, near[:, 1], near[:, 0], :2] / 4
        right += int(np.sum(np.abs(colours - places[sample, chosen]).max(-1) < 1.5))
        checked += len(near)
    assert checked > 10_000 and right / checked > 0.93


def test_parts_of_a_sample_depend_on_nothing_else() -> None:
    augment = _config(move_p=0.7)
    alone, fewer = _drawn(augment, 4), _drawn(augment, 2)
    combined = _drawn(_config(move_p=0.7, rotate_p=0.5, salt_p=0.5), 4)
    for name in ("part_low_px", "part_side_px", "part_shift_px"):
        np.testing.assert_array_equal(alone[name], combined[name])
        np.testing.assert_array_equal(alone[name][:2], fewer[name])


def test_what_is_not_in_the_frame_stays_where_it_is() -> None:
    frames, _ = _every_pixel(6)
    keypoints_px = np.tile(np.array([[np.nan, np.nan], [-3, 5], [WIDTH + 2, HEIGHT + 9]]), (6, 1, 1))
    _, moved_px, visibility, _ = _augmented(_config(move_p=1.0), frames, keypoints_px)
    np.testing.assert_array_equal(moved_px, keypoints_px.astype(np.float32))
    assert (visibility == 2).all()


def test_nothing_moves_where_it_is_off() -> None:
    drawn = _drawn(_config(move_p=0.0, rotate_p=1.0), 3)
    assert not [name for name in drawn if name.startswith("part_")]
    combined = _drawn(_config(move_p=0.5, rotate_p=1.0), 3)
    np.testing.assert_array_equal(drawn["input_from_augmented"], combined["input_from_augmented"])


@pytest.mark.parametrize(
    "numbers", [{"move_side_min": 0.01, "move_side_max": 0.01}, {"move_side_min": 0.9, "move_side_max": 0.9}]
)
def test_the_smallest_and_the_largest_part_are_in_the_frame(numbers: dict[str, Any]) -> None:
    drawn = _drawn(_config(move_p=1.0, **numbers), 9)
    low, side, shift = (drawn[f"part_{name}_px"] for name in ("low", "side", "shift"))
    assert (side >= 1).all() and (np.minimum(low, low + shift) >= 0).all()
    assert (np.maximum(low, low + shift) + side <= [WIDTH, HEIGHT]).all()


def test_numbers_are_the_same_in_every_dtype() -> None:
    draw = np.arange(2000, dtype=np.int32)
    found = []
    with jax.enable_x64(True):
        for dtype in (jnp.float32, jnp.float64):
            affine = np.tile(np.eye(2, 3, dtype=dtype), (2000, 1, 1))
            make = jax.jit(
                lambda draw, affine: draw_params(sample_keys(7, 0, draw, 0), _config(move_p=0.5), affine, (384, 640))
            )
            drawn = make(draw, affine)
            found.append([np.asarray(drawn[f"part_{name}_px"], np.float64) for name in ("low", "side", "shift")])
    np.testing.assert_array_equal(*found)


def test_the_mean_colour_of_a_large_frame_fits() -> None:
    frames = np.full((1, 1, 4200, 4100, 3), 255, np.uint8)
    np.testing.assert_allclose(jax.jit(mean_colour, static_argnums=1)(frames, jnp.float32), 255, rtol=1e-6)
