"""Augmentation: pixels and keypoints move alike, draws belong to the sample, numbers keep the presets' promises."""

import functools
import math
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
from jax.sharding import PartitionSpec as P

from jaxpose import geometry
from jaxpose.config.data import AugmentConfig, resolve_preset
from jaxpose.pose.augment import draw_params, elastic_shifts, move_keypoints, render, sample_keys, undo_elastic

MOVES: dict[str, dict[str, Any]] = {
    "rotate": {"rotate_p": 1.0},
    "scale": {"scale_p": 1.0},
    "translate": {"translate_p": 1.0},
    "crop_pad": {"crop_pad_p": 1.0},
    "turns": {"quarter_turns": (0, 1, 2, 3)},
    "flip": {"flip_p": 0.5},
    # Smoother than the dots are wide: a field that tears a dot apart moves its centroid otherwise than its centre.
    "elastic": {"elastic_p": 1.0, "elastic_alpha_px": 1000.0, "elastic_sigma_px": 40.0},
}
MOVES["all"] = {name: value for move in list(MOVES.values()) for name, value in move.items()}
FILTERS: dict[str, Any] = {
    f"{name}_p": 0.5 for name in ("motion_blur", "dropout", "salt", "pepper", "emboss", "brightness", "contrast")
}


def _config(preset: str = "none", **numbers: Any) -> AugmentConfig:
    return resolve_preset(AugmentConfig(preset=preset, **numbers))


def _frame_from_input(size_px: tuple[int, int], resize: str, count: int, dtype: Any = np.float32) -> np.ndarray:
    """Of frames of 396 x 300 px (width, height) in an input of size_px (height, width)."""
    affine = geometry.input_from_frame((396, 300), size_px[::-1], resize)
    return np.broadcast_to(geometry.invert(affine), (count, 2, 3)).astype(dtype)


def _augmented(
    augment: AugmentConfig, frames: np.ndarray, draw: Any, frame_from_input: np.ndarray, dtype: Any = np.float32
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The augmented frames and their parameters."""

    @jax.jit
    def run(frames: jax.Array, draw: jax.Array, frame_from_input: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        drawn = draw_params(sample_keys(7, 0, draw, 1), augment, frame_from_input, (frames.shape[2], frames.shape[3]))
        return render(drawn, augment, frames, dtype), drawn

    return jax.tree.map(np.asarray, run(frames, np.asarray(draw, np.int32), frame_from_input))


def _draw(augment: AugmentConfig, count: int, size_px: tuple[int, int] = (64, 64), resize: str = "pad") -> Any:
    draw = np.arange(count, dtype=np.int32)
    make = jax.jit(lambda draw, affine: draw_params(sample_keys(7, 0, draw, 1), augment, affine, size_px))
    return jax.tree.map(np.asarray, make(draw, _frame_from_input(size_px, resize, count)))


def _noisy(count: int, height: int = 32, width: int = 40, length: int = 1) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, length, height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "move, size_px, resize",
    [
        *(pytest.param(move, (128, 96), "stretch", marks=pytest.mark.slow) for move in MOVES),
        ("all", (96, 128), "pad"),
        pytest.param("dlc", (200, 264), "pad", marks=pytest.mark.slow),
    ],
)
def test_keypoints_lie_on_the_dots_that_moved(move: str, size_px: tuple[int, int], resize: str) -> None:
    height, width = size_px
    augment = _config(**MOVES[move]) if move in MOVES else _config("dlc", **dict.fromkeys(FILTERS, 0.0))
    y, x = np.mgrid[:height, :width]
    sites = np.stack(np.meshgrid(np.linspace(8, width - 9, 5), np.linspace(8, height - 9, 5)), -1).reshape(-1, 2)
    sites = sites + np.random.default_rng(3).uniform(-2, 2, sites.shape)
    # One dot a frame: the dots of one draw are moved by the same parameters, and cannot be mixed up.
    draw = np.repeat(np.arange(6), len(sites))
    dots = np.tile(sites, (6, 1))
    distance2 = (x - dots[:, 0, None, None]) ** 2 + (y - dots[:, 1, None, None]) ** 2
    frames = np.round(250 * np.exp(-distance2 / (2 * 1.2**2))).astype(np.uint8)
    frames = np.repeat(frames[:, None, ..., None], 3, axis=-1)
    affine = _frame_from_input(size_px, resize, len(draw))

    @jax.jit
    def move_both(frames: jax.Array, draw: jax.Array, dots: jax.Array, affine: jax.Array) -> tuple[jax.Array, ...]:
        drawn = draw_params(sample_keys(7, 0, draw, 1), augment, affine, size_px)
        moved, _ = move_keypoints(drawn, augment, dots, jnp.full(dots.shape[:2], 2, jnp.int8), (0,))
        return render(drawn, augment, frames, jnp.float32), moved

    dots_px = jnp.asarray(dots[:, None], jnp.float32)
    moved_frames, moved_px = move_both(jnp.asarray(frames), jnp.asarray(draw, jnp.int32), dots_px, affine)
    moved_frames = np.asarray(moved_frames)[:, 0, ..., 0]
    expected = np.asarray(moved_px)[:, 0]
    inside = np.all((expected > 7) & (expected < np.array([width, height]) - 8), axis=-1)
    mass = moved_frames.sum((1, 2))[inside]
    found = np.stack([(moved_frames * grid).sum((1, 2))[inside] / mass for grid in (x, y)], axis=-1)
    assert inside.mean() > 0.5
    assert np.linalg.norm(found - expected[inside], axis=-1).max() < 0.1
    assert np.linalg.norm(expected - dots, axis=-1).max() > 0.5


def test_a_moved_keypoint_shows_the_pixel_that_it_came_from() -> None:
    # The frame's colours are its coordinates, so a roughly shifted picture can be read to the hundredth of a pixel.
    y, x = np.mgrid[:96, :96].astype(np.uint8)
    frames = np.broadcast_to(np.stack([x, y, x], axis=-1), (40, 1, 96, 96, 3))
    augment = _config("dlc-top-down", **dict.fromkeys(FILTERS, 0.0))
    affine = _frame_from_input((96, 96), "pad", 40)
    result, drawn = _augmented(augment, frames, np.arange(40), affine)
    dots = np.random.default_rng(0).uniform(20, 75, (40, 30, 2)).astype(np.float32)
    move = jax.jit(lambda drawn, dots: move_keypoints(drawn, augment, dots, jnp.full((40, 30), 2, jnp.int8), None)[0])
    moved = np.asarray(move(drawn, jnp.asarray(dots)))
    for sample in range(40):
        inside = np.all((moved[sample] > 5) & (moved[sample] < 90), axis=-1)
        assert inside.sum() > 10
        for axis in (0, 1):
            seen = scipy.ndimage.map_coordinates(result[sample, 0, :, :, axis], moved[sample, inside].T[::-1], order=3)
            assert np.abs(seen - dots[sample, inside, axis]).max() < 0.03


@pytest.mark.parametrize(
    "move", [*(pytest.param(move, marks=pytest.mark.slow) for move in ("rotate", "crop_pad")), "all"]
)
def test_the_warp_is_opencvs(move: str) -> None:
    frames = np.stack([cv2.GaussianBlur(frame[0], (0, 0), 2.0) for frame in _noisy(8, 64, 80)])[:, None]
    augment = _config(**MOVES[move] | {"elastic_p": 0.0})
    affine = _frame_from_input((64, 80), "stretch", 8)
    result, drawn = _augmented(augment, frames, np.arange(8), affine)
    for sample in range(8):
        matrix = drawn["input_from_augmented"][sample].astype(np.float64)
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        expected = cv2.warpAffine(frames[sample, 0].astype(np.float32), matrix, (80, 64), flags=flags)
        # Older OpenCV rounds positions to 1/32 pixel.
        assert np.abs(result[sample, 0] - expected).max() < 3.0


def test_the_warp_is_bilinear_to_the_last_digit() -> None:
    with jax.enable_x64(True):
        frames, augment = _noisy(5, 24, 30), _config(**MOVES["all"])
        affine = _frame_from_input((24, 30), "stretch", 5, np.float64)
        result, drawn = _augmented(augment, frames, np.arange(5), affine, np.float64)
        grid = jax.jit(elastic_shifts, static_argnums=(1, 2))(drawn, 24, 30)
        shift_x, shift_y = (np.asarray(shift) for shift in grid)
        matrix = drawn["input_from_augmented"]
    y, x = np.mgrid[:24, :30]
    assert result.dtype == np.float64
    for sample in range(5):
        points = np.stack([x + shift_x[sample], y + shift_y[sample]], axis=-1)
        points = points @ matrix[sample, :, :2].T + matrix[sample, :, 2]
        padded = np.pad(frames[sample, 0].astype(np.float64), ((99, 99), (99, 99), (0, 0)))
        corner = np.floor(points).astype(int)
        share = points - corner
        expected = np.zeros((24, 30, 3))
        for right, down in np.ndindex(2, 2):
            weight = np.abs(1 - right - share[..., 0]) * np.abs(1 - down - share[..., 1])
            place = np.clip(corner + 99 + [right, down], 0, [30 + 197, 24 + 197])
            expected += weight[..., None] * padded[place[..., 1], place[..., 0]]
        np.testing.assert_allclose(result[sample, 0], expected, atol=1e-8)


def test_preset_none_is_the_frames_and_gathers_nothing() -> None:
    frames = _noisy(2)
    affine = _frame_from_input((32, 40), "pad", 2)
    np.testing.assert_array_equal(_augmented(_config(), frames, np.arange(2), affine)[0], frames.astype(np.float32))
    text = str(jax.make_jaxpr(functools.partial(render, {}, _config(), dtype=jnp.float32))(jnp.asarray(frames)))
    assert "gather" not in text and "mul" not in text
    keypoints, visibility = jnp.array([[[1.0, 2.0]]]), jnp.array([[2]], jnp.int8)
    moved, same = move_keypoints({}, _config(), keypoints, visibility, None)
    assert moved is keypoints and same is visibility


@pytest.mark.parametrize("name, trace", [("rotate", "cos"), ("elastic", "exp"), ("salt", "cos"), ("emboss", "cond")])
def test_a_transform_of_probability_0_is_not_compiled(name: str, trace: str) -> None:
    frames = jnp.asarray(_noisy(2))

    def text(augment: AugmentConfig) -> str:
        def run(frames: jax.Array, affine: jax.Array) -> jax.Array:
            keys = sample_keys(0, 0, jnp.arange(2, dtype=jnp.int32), 1)
            return render(draw_params(keys, augment, affine, (32, 40)), augment, frames, jnp.float32)

        return str(jax.make_jaxpr(run)(frames, _frame_from_input((32, 40), "pad", 2)))

    assert trace in text(_config(**{f"{name}_p": 0.5}))
    assert trace not in text(_config(brightness_p=0.5))


def test_a_sample_that_is_not_chosen_is_left_as_it_is() -> None:
    frames = _noisy(4)
    rare = {name: 1e-9 for move in MOVES.values() for name in move if name.endswith("_p")}
    augment = _config(**rare | dict.fromkeys(FILTERS, 1e-9))
    result, _ = _augmented(augment, frames, np.arange(4), _frame_from_input((32, 40), "stretch", 4))
    np.testing.assert_array_equal(result, frames.astype(np.float32))


def test_pixels_belong_to_the_draw_not_to_the_batch() -> None:
    augment = _config("dlc-top-down", **FILTERS, scale_p=0.5, translate_p=0.5, flip_p=0.5)
    frames = np.broadcast_to(_noisy(1, length=2), (9, 2, 32, 40, 3))
    draw = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5])
    affine = _frame_from_input((32, 40), "stretch", 9)
    whole, _ = _augmented(augment, frames, draw, affine)
    batch = [8, 1, 0]
    part, _ = _augmented(augment, frames[batch], draw[batch], affine[batch])
    np.testing.assert_allclose(part, whole[batch], atol=1e-3)
    np.testing.assert_array_equal(whole[1], whole[3])
    np.testing.assert_array_equal(whole[4], whole[8])
    different = whole[[0, 1, 2, 4, 5, 6, 7]]
    for first, second in np.ndindex(7, 7):
        assert first == second or np.abs(different[first] - different[second]).mean() > 1


def test_all_frames_of_a_sample_are_treated_alike() -> None:
    augment = _config("dlc", **FILTERS)
    frames = np.repeat(_noisy(3), 3, axis=1)
    result, _ = _augmented(augment, frames, np.arange(3), _frame_from_input((32, 40), "pad", 3))
    np.testing.assert_array_equal(result[:, 0], result[:, 2])


def test_devices_change_nothing() -> None:
    augment = _config("dlc-top-down", **FILTERS)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    frames, draw = _noisy(16), np.arange(16)
    affine = _frame_from_input((32, 40), "stretch", 16)
    dots = jnp.asarray(np.random.default_rng(1).uniform(0, 32, (16, 3, 2)), jnp.float32)

    def run(frames: jax.Array, draw: jax.Array, affine: jax.Array, dots: jax.Array) -> tuple[jax.Array, jax.Array]:
        drawn = draw_params(sample_keys(7, 0, draw, 1), augment, affine, (32, 40))
        moved, _ = move_keypoints(drawn, augment, dots, jnp.full((draw.shape[0], 3), 2, jnp.int8), None)
        return render(drawn, augment, frames, jnp.float32), moved

    arrays = (jnp.asarray(frames), jnp.asarray(draw, jnp.int32), affine, dots)
    spread = jax.shard_map(run, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=True)
    for one, many in zip(jax.jit(run)(*arrays), jax.jit(spread)(*arrays), strict=True):
        np.testing.assert_allclose(one, many, atol=1e-3)


def test_keys_depend_on_all_four_numbers() -> None:
    draw = np.array([4, 5], np.int32)
    numbers = ((1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4))

    @jax.jit
    def keys(draw: jax.Array) -> list[jax.Array]:
        return [jax.random.key_data(sample_keys(seed, stream, draw, purpose)) for seed, stream, purpose in numbers]

    base, *others = map(np.asarray, keys(draw))
    assert (base[0] != base[1]).any()
    for other in others:
        assert (other != base).any(axis=-1).all()


def test_flip_swaps_left_and_right() -> None:
    augment = _config(flip_p=0.5)
    drawn = _draw(augment, 16)
    keypoints = np.random.default_rng(0).uniform(0, 63, (16, 3, 2)).astype(np.float32)
    keypoints[:, 2] = np.nan
    visibility = np.broadcast_to(np.array([[2, 1, 0]], np.int8), (16, 3))

    def move(permutation: tuple[int, ...] | None) -> tuple[jax.Array, jax.Array]:
        moving = jax.jit(lambda drawn, *arrays: move_keypoints(drawn, augment, *arrays, permutation))
        return moving(drawn, keypoints, visibility)

    moved, seen = move((1, 0, 2))
    flip = drawn["flip"]
    assert 0 < flip.sum() < 16
    mirrored = keypoints[:, [1, 0, 2]] * [-1, 1] + [63, 0]
    np.testing.assert_allclose(moved, np.where(flip[:, None, None], mirrored, keypoints), atol=1e-4)
    np.testing.assert_array_equal(seen, np.where(flip[:, None], [[1, 2, 0]], [[2, 1, 0]]))
    for wrong in (None, (1, 0)):
        with pytest.raises(ValueError, match="data.flip_pairs"):
            move(wrong)


def test_nan_keypoints_stay_nan_and_harm_nobody() -> None:
    augment = _config(**MOVES["all"] | {"flip_p": 0.0})
    drawn = _draw(augment, 8)
    keypoints = np.random.default_rng(0).uniform(0, 63, (8, 4, 2)).astype(np.float32)
    visibility = jnp.full((8, 4), 2, jnp.int8)
    move = jax.jit(lambda drawn, keypoints: move_keypoints(drawn, augment, keypoints, visibility, None)[0])
    clean = move(drawn, jnp.asarray(keypoints))
    keypoints[:, 1] = np.nan
    moved = move(drawn, jnp.asarray(keypoints))
    assert np.isnan(moved[:, 1]).all()
    np.testing.assert_array_equal(np.delete(moved, 1, axis=1), np.delete(clean, 1, axis=1))


@pytest.mark.parametrize("resize", ["pad", "stretch"])
def test_a_rotation_turns_the_frame_without_shearing_it(resize: str) -> None:
    drawn = _draw(_config(rotate_p=1.0, scale_p=1.0, quarter_turns=(0, 1, 2, 3)), 32, (64, 96), resize)
    frame_from_input = np.asarray(_frame_from_input((64, 96), resize, 1))[0, :, :2]
    linear = np.asarray(drawn["input_from_augmented"])[:, :, :2]
    in_frame = frame_from_input @ linear @ np.linalg.inv(frame_from_input)
    gram = in_frame @ in_frame.swapaxes(1, 2)
    np.testing.assert_allclose(gram, gram[:, :1, :1] * np.eye(2), atol=1e-4)


def test_quarter_turns_keep_the_whole_picture() -> None:
    square = _noisy(8, 32, 32)
    augment = _config("none", quarter_turns=(1,))
    turned, _ = _augmented(augment, square, np.arange(8), _frame_from_input((32, 32), "pad", 8))
    np.testing.assert_allclose(turned, np.rot90(square, -1, axes=(2, 3)), atol=0.01)
    drawn = _draw(augment, 1, (32, 64))
    corners = np.array([[-0.5, -0.5], [63.5, 31.5]])
    moved = geometry.apply(geometry.invert(np.asarray(drawn["input_from_augmented"])), corners)
    assert moved.min() >= -0.51 and (moved <= np.array([63.51, 31.51])).all()


def test_numbers_of_the_presets() -> None:
    count = 4000
    drawn = jax.tree.map(np.asarray, _draw(_config("dlc-top-down"), count))
    scale = 396 / 64
    for name, p, most in (("dropout", 0.5, 0.02), ("salt", 0.5, 0.01), ("pepper", 0.5, 0.01)):
        share = drawn[f"{name}_share"]
        np.testing.assert_allclose(np.unique(share), [0, most], rtol=1e-6)
        assert (share > 0).mean() == pytest.approx(p, abs=0.03)
    np.testing.assert_allclose(drawn["dropout_cells_per_px"], 0.3 * scale, rtol=1e-5)
    for name in ("salt", "pepper"):
        cells = drawn[f"{name}_cells_per_px"] / scale
        assert 0.05 <= cells.min() < 0.051 and 0.099 < cells.max() <= 0.1
    seed = drawn["dropout_seed"]
    assert (seed[:, 0] != seed[:, 1]).mean() == pytest.approx(0.5, abs=0.03)
    alpha = drawn["emboss_alpha"] * scale
    assert (alpha > 0).mean() == pytest.approx(0.1, abs=0.02) and 0.45 < alpha.max() <= 0.5
    assert 0.5 <= drawn["emboss_strength"].min() and drawn["emboss_strength"].max() <= 1.5
    strength = drawn["elastic_strength_px"] * scale * 2 * math.pi * 5 / 1.25
    assert (strength > 0).mean() == pytest.approx(0.5, abs=0.03) and 9.9 < strength.max() <= 10.001
    kernel = drawn["motion_blur_kernel"]
    np.testing.assert_allclose(kernel.sum((1, 2)), 1, atol=1e-5)
    assert (kernel[:, 2, 2] < 1).mean() == pytest.approx(0.5, abs=0.03)

    def angles(augment: AugmentConfig) -> np.ndarray:
        matrix = np.asarray(_draw(augment, count)["input_from_augmented"])
        return np.rad2deg(np.arctan2(matrix[:, 0, 1], matrix[:, 0, 0]))

    rotated = angles(_config("dlc", crop_pad_p=0.0))
    assert (rotated != 0).mean() == pytest.approx(0.4, abs=0.03)
    assert -25 < rotated.min() < -24.5 and 24.5 < rotated.max() < 25
    for preset, choices in (("dlc-lr", [0, 2]), ("dlc-top-down", [0, 1, 2, 3])):
        turns = np.round(angles(_config(preset, crop_pad_p=0.0, rotate_p=0.0)) / 90).astype(int) % 4
        np.testing.assert_allclose([(turns == turn).mean() for turn in choices], 1 / len(choices), atol=0.03)
    matrix = np.asarray(_draw(_config("dlc", rotate_p=0.0), count)["input_from_augmented"])
    assert (matrix[:, 0, 0] != 1).mean() == pytest.approx(0.4, abs=0.03)
    assert 0.7 < matrix[:, :, :2].diagonal(axis1=1, axis2=2).min() and matrix[:, 0, 0].max() < 1.3
    sides = (matrix[:, 0, 2] + 0.5 - 0.5 * matrix[:, 0, 0]) / 64
    assert -0.151 < sides.min() < -0.14 and 0.14 < sides.max() < 0.151
    assert set(_draw(_config("dlc-mv"), 2)) == set(drawn) - {
        "input_from_augmented", "elastic_strength_px", "elastic_pitch_px", "elastic_seed"
    }  # fmt: skip


def test_the_elastic_field_is_smoothed_noise_and_the_same_at_points() -> None:
    augment = _config(elastic_p=1.0, elastic_alpha_px=100.0, elastic_sigma_px=12.0)
    drawn = _draw(augment, 64, (96, 128))
    drawn["elastic_strength_px"] = np.full((64,), drawn["elastic_strength_px"].max())
    scale = 300 / 96
    alpha_px = float(drawn["elastic_strength_px"][0]) * scale * 2 * math.pi * 12 / 1.25
    grid_shifts = jax.jit(elastic_shifts, static_argnums=(1, 2))(drawn, 96, 128)
    shift_x, shift_y = (np.asarray(shift) for shift in grid_shifts)
    noise = np.random.default_rng(0).uniform(-1, 1, (300, 396))
    smooth = [cv2.GaussianBlur(np.random.default_rng(i).uniform(-1, 1, noise.shape), (0, 0), 12) for i in range(40)]
    expected = np.std(np.array(smooth)[:, 40:-40, 40:-40]) * alpha_px / scale
    for shift in (shift_x, shift_y):
        assert shift.std() == pytest.approx(expected, rel=0.06)
        # The correlation of noise smoothed by sigma falls to exp(-1/4) over sigma.
        lag = round(12 / scale)
        assert np.mean(shift[:, :, lag:] * shift[:, :, :-lag]) / shift.var() == pytest.approx(
            math.exp(-((lag * scale / 12) ** 2) / 4), abs=0.04
        )
    assert abs(np.corrcoef(shift_x.ravel(), shift_y.ravel())[0, 1]) < 0.05
    grid = np.stack(np.meshgrid(np.arange(128), np.arange(96)), -1).reshape(1, -1, 2).astype(np.float32)
    shifted = grid + np.stack([shift_x, shift_y], -1).reshape(64, -1, 2)
    back = np.asarray(jax.jit(undo_elastic)(drawn, jnp.asarray(shifted[:, ::31])))
    # Where neighbours have changed places there is no way back; nearly everywhere there is.
    assert np.quantile(np.linalg.norm(back - grid[:, ::31], axis=-1), 0.99) < 0.01


def test_filters_keep_the_range_and_do_what_they_say() -> None:
    frames = np.full((200, 1, 48, 64, 3), 100, np.uint8)
    affine = _frame_from_input((48, 64), "stretch", 200)
    draw = np.arange(200)

    def one(**numbers: Any) -> np.ndarray:
        return _augmented(_config(**numbers), frames, draw, affine)[0]

    dropped = one(dropout_p=1.0)
    assert set(np.unique(dropped)) == {0, 100}
    assert (dropped == 0).mean() == pytest.approx(0.02, abs=0.002)
    apart = (dropped[..., 0] != dropped[..., 1]).any(axis=(1, 2, 3))
    assert apart.mean() == pytest.approx(0.5, abs=0.12)
    salted, peppered = one(salt_p=1.0, salt_share=0.05), one(pepper_p=1.0, pepper_share=0.05)
    for changed, low, high in ((salted, 127.5, 255.0), (peppered, 0.0, 127.5)):
        values = changed[..., 0][changed[..., 0] != 100]
        assert values.size / changed[..., 0].size == pytest.approx(0.05, abs=0.006)
        assert low <= values.min() and values.max() <= high
        # Of the arcsine distribution's half, a third lies in the inner half of the range.
        inner = np.abs(values - 127.5) < 127.5 / 2
        assert inner.mean() == pytest.approx(1 / 3, abs=0.02)
        np.testing.assert_array_equal(changed[..., 0], changed[..., 2])
    bright = one(brightness_p=1.0)[:, 0, 0, 0, 0]
    assert 75 <= bright.min() < 76 and 123 < bright.max() <= 125
    contrast = one(contrast_p=1.0)[:, 0, 0, 0, 0]
    assert 93 < contrast.min() < 93.5 and 106 < contrast.max() < 107
    np.testing.assert_allclose(one(emboss_p=1.0, motion_blur_p=1.0), 100, atol=1e-3)
    noisy = _noisy(20, 48, 64)
    everything, _ = _augmented(_config("dlc-top-down", **FILTERS), noisy, draw[:20], affine[:20])
    assert np.isfinite(everything).all() and everything.min() >= 0 and everything.max() <= 255.001


def test_blur_and_emboss_are_opencvs_filters() -> None:
    frames = _noisy(6, 40, 40)
    affine = np.broadcast_to(np.eye(2, 3, dtype=np.float32), (6, 2, 3))
    augment = _config(motion_blur_p=1.0)
    result, drawn = _augmented(augment, frames, np.arange(6), affine)
    for sample in range(6):
        kernel = drawn["motion_blur_kernel"][sample]
        assert (kernel > 0).sum() >= 5
        expected = cv2.filter2D(frames[sample, 0].astype(np.float32), -1, kernel)
        np.testing.assert_allclose(result[sample, 0], expected, atol=1e-3)
    augment = _config(emboss_p=1.0)
    result, drawn = _augmented(augment, frames, np.arange(6), affine)
    for sample in range(6):
        a, s = float(drawn["emboss_alpha"][sample]), float(drawn["emboss_strength"][sample])
        kernel = a * np.array([[-1 - s, -s, 0], [-s, 1, s], [0, s, 1 + s]])
        kernel[1, 1] += 1 - a
        expected = np.clip(cv2.filter2D(frames[sample, 0].astype(np.float32), -1, kernel), 0, 255)
        np.testing.assert_allclose(result[sample, 0], expected, atol=1e-3)
