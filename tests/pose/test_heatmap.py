"""Targets and decoding: against numpy in float64, scipy's least squares, and the reference trainer's own maps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from jaxpose.pose.heatmap import decode, encode, in_frame

SIGMA = 1.25
encode_fast = jax.jit(encode, static_argnums=(2, 3, 4))
decode_fast = jax.jit(decode, static_argnums=(1, 2))


def random_points_px(height, width, count=50, seed=0):
    """Points (count, 17, 2) all over the input; a third of them on a border, some in its corners."""
    rng = np.random.default_rng(seed)
    points = rng.uniform([-0.5, -0.5], [width - 0.5, height - 0.5], (count, 17, 2))
    edge = rng.integers(0, 2, (count, 17, 2)) * [width, height] - 0.5
    on_edge = rng.random((count, 17, 2)) < 0.2
    return np.where(on_edge, edge, points).astype(np.float32)


def draw(points_px, size_px, stride, sigma=SIGMA):
    points_px = np.asarray(points_px)
    return encode_fast(points_px, np.full(points_px.shape[:2], 2, np.int8), size_px, stride, sigma)


def flip_x(points_px, width):
    return np.stack([width - 1 - points_px[..., 0], points_px[..., 1]], axis=-1)


def test_points_outside_the_input_are_not_used():
    points = [[-0.5, 3], [-0.51, 3], [63.5, 31.5], [63.6, 3], [3, 31.6], [np.nan, 3], [3, np.nan], [np.nan, 3]]
    visibility = np.array([[2, 2, 2, 2, 2, 2, 2, 1]], np.int8)
    seen = jax.jit(in_frame, static_argnums=2)(np.array([points], np.float32), visibility, (32, 64))
    assert seen.dtype == np.int8
    np.testing.assert_array_equal(seen, [[2, 0, 2, 0, 0, 0, 0, 1]])


@pytest.mark.parametrize(("stride", "sigma"), [(2, 1.25), (4, 1.25), (8, 0.7), (4, 3.0)])
def test_targets_are_gaussians_of_sum_one(stride, sigma):
    points = random_points_px(64, 96, count=10).astype(np.float64)
    cells = (points + 0.5) / stride - 0.5
    y, x = np.mgrid[: 64 // stride, : 96 // stride]
    squared = (x - cells[..., 0, None, None]) ** 2 + (y - cells[..., 1, None, None]) ** 2
    wanted = np.exp(-squared / (2 * sigma**2))
    wanted /= wanted.sum((-2, -1), keepdims=True)
    np.testing.assert_allclose(draw(points.astype(np.float32), (64, 96), stride, sigma), wanted, atol=2e-6)


def test_targets_equal_the_reference_trainer(real_data):
    run = np.load(real_data / "lightning-pose-run" / "forward.npz")
    points = run["target_keypoints_input_px"]
    # Its cell c is input pixel c * stride; ours is (c + 0.5) * stride - 0.5.
    ours = draw(points + 1.5, (128, 128), 4)
    # Its input reaches 1.5 px less far to the left and further to the right.
    both = ~(points > 126).any(-1)
    assert both.sum() == 132
    np.testing.assert_allclose(ours[both], run["target_heatmaps"][both], atol=1e-6)


def test_visibility_decides_what_is_drawn():
    outside = [[-10.0, 50], [500, 32], [32, 500], [32, -10], [np.nan, np.nan]]
    points = np.array([[[20, 30], [np.nan, np.nan], [np.nan, 1], *outside]], np.float32)
    visibility = jnp.asarray(np.array([[2, 1, 0, 2, 2, 2, 2, 2]], np.int8))
    maps = encode_fast(points, visibility, (64, 128), 4, SIGMA)
    assert maps.shape == (1, 8, 16, 32) and maps.dtype == np.float32
    np.testing.assert_allclose(maps[0, 0].sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(maps[0, 1], 1 / (16 * 32), rtol=1e-6)
    np.testing.assert_array_equal(maps[0, 2:], 0)
    gradient = jax.jit(jax.grad(lambda p: jnp.square(encode(p, visibility, (64, 128), 4, SIGMA)).sum()))(points)
    assert np.isfinite(gradient).all() and not np.any(gradient[0, 1:])


@pytest.mark.parametrize(
    ("side", "stride"),
    [
        (128, 2), (256, 8),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in [(256, 4), (384, 8)]),
        *(pytest.param(*row, marks=pytest.mark.full) for row in [(128, 4), (128, 8), (256, 2), (384, 2), (384, 4)]),
    ],
)  # fmt: skip
def test_a_drawn_point_is_found_anywhere_in_the_input(side, stride):
    size = (side, side - 32)
    points = random_points_px(*size, seed=side + stride)
    found, confidence = decode_fast(draw(points, size, stride), stride, SIGMA)
    assert found.dtype == np.float32
    assert np.abs(found - points).max() < 1e-3
    np.testing.assert_allclose(confidence, 1, atol=1e-5)


@pytest.mark.parametrize(
    "sigma", [0.3, *(pytest.param(sigma, marks=pytest.mark.slow) for sigma in (0.5, 0.8, 2.0)), 5.0]
)
def test_a_drawn_point_is_found_for_any_width_of_target(sigma):
    points = random_points_px(96, 128)
    found, confidence = decode_fast(draw(points, (96, 128), 4, sigma), 4, sigma)
    assert np.abs(found - points).max() < 1e-3
    np.testing.assert_allclose(confidence, 1, atol=1e-5)


def random_logits(batch, height=24, width=32, seed=0):
    """Maps of no particular shape: smooth bumps plus noise, no two cells equal."""
    rng = np.random.default_rng(seed)
    points = random_points_px(4 * height, 4 * width, batch, seed)
    return 60 * np.asarray(draw(points, (4 * height, 4 * width), 4)) + 0.3 * rng.normal(size=(batch, 17, height, width))


def as_maps(logits):
    return jax.nn.softmax(logits, axis=(-2, -1))


def test_decoding_a_flipped_map_flips_the_points():
    random = scipy.special.softmax(random_logits(50).astype(np.float32), axis=(-2, -1))
    drawn = np.asarray(draw(random_points_px(96, 128), (96, 128), 4))
    for maps in (random, drawn):
        points, confidence = decode_fast(np.asarray(maps), 4, SIGMA)
        flipped, flipped_confidence = decode_fast(np.asarray(maps[..., ::-1]), 4, SIGMA)
        np.testing.assert_allclose(flip_x(flipped, 128), points, atol=1e-5)
        np.testing.assert_allclose(flipped_confidence, confidence, atol=1e-5)


@pytest.mark.parametrize("clipped", [False, True])
def test_noise_moves_points_little_and_to_no_side(clipped):
    points = np.random.default_rng(1).uniform(-0.5, 127.5, (400, 17, 2)).astype(np.float32)
    clean = np.asarray(draw(points, (128, 128), 4))
    noise = np.random.default_rng(2).normal(size=clean.shape) * 0.05 * clean.max((-2, -1), keepdims=True)
    maps = (clean + noise).astype(np.float32)
    if clipped:
        maps = np.maximum(maps, 0)
        maps /= maps.sum((-2, -1), keepdims=True)
    found, confidence = decode_fast(np.asarray(maps), 4, SIGMA)
    error_cells = (np.asarray(found) - points) / 4
    assert np.sqrt(np.square(error_cells).sum(-1).mean()) < 0.1
    assert np.abs(error_cells.mean((0, 1))).max() < 0.01
    assert (np.asarray(confidence) <= 1).all()
    for axis in (0, 1):
        # By distance from the border too, where the target is cut off.
        for near in (points[..., axis] < 4, points[..., axis] > 123, np.abs(points[..., axis] - 63.5) < 50):
            assert np.abs(error_cells[near].mean(0)).max() < 0.05


@pytest.mark.parametrize("apart_cells", [5, 7, 12])
def test_two_equal_peaks_give_a_low_confidence(apart_cells):
    rng = np.random.default_rng(apart_cells)
    points = rng.uniform(50, 200, (12, 17, 2)).astype(np.float32)
    angle = rng.uniform(0, 2 * np.pi, (12, 17))
    other = points + (4 * apart_cells * np.stack([np.cos(angle), np.sin(angle)], -1)).astype(np.float32)
    maps = (np.asarray(draw(points, (256, 256), 4)) + np.asarray(draw(other, (256, 256), 4))) / 2
    found, confidence = decode_fast(maps, 4, SIGMA)
    assert np.asarray(confidence).max() < 0.6
    distance = np.minimum(np.linalg.norm(found - points, axis=-1), np.linalg.norm(found - other, axis=-1))
    assert distance.max() < 1


def test_a_uniform_map_has_no_confidence_and_ties_go_to_the_first_cell():
    points, confidence = decode_fast(np.full((1, 2, 24, 32), 1 / 768, np.float32), 4, SIGMA)
    assert np.isfinite(points).all() and np.asarray(points).max() < 6
    assert np.asarray(confidence).max() < 0.05
    # Of the size that the first map has, for one program.
    tie = np.zeros((1, 2, 24, 32), np.float32)
    tie[0, :, [10, 10, 5], [3, 25, 25]] = 1 / 3
    points, _ = decode_fast(tie, 4, SIGMA)
    np.testing.assert_allclose(points[0, 0], [25.5 * 4 - 0.5, 5.5 * 4 - 0.5], atol=1e-3)


def test_a_map_with_a_nan_gives_a_nan_and_touches_no_other():
    maps = np.array(draw(random_points_px(96, 128), (96, 128), 4))
    wanted, _ = decode_fast(maps, 4, SIGMA)
    maps[0, 3, 5, 5] = np.nan
    points, confidence = decode_fast(maps, 4, SIGMA)
    assert np.isnan(points[0, 3]).all() and np.isnan(confidence[0, 3])
    np.testing.assert_array_equal(np.isnan(points).sum(), 2)
    np.testing.assert_array_equal(points[1:], wanted[1:])


def fit_by_scipy(heatmap, peak):
    """Least squares of height x Gaussian over the cells within 3 of the peak; returns (x, y) in cells."""
    y, x = (np.clip(np.arange(p - 3, p + 4), 0, n - 1) for p, n in zip(peak, heatmap.shape, strict=True))
    y, x = np.meshgrid(np.unique(y), np.unique(x), indexing="ij")

    def residual(parameters):
        height, centre_x, centre_y = parameters
        squared = (x - centre_x) ** 2 + (y - centre_y) ** 2
        return (height * np.exp(-squared / (2 * SIGMA**2)) - heatmap[y, x] / heatmap.max()).ravel()

    low = np.maximum([peak[1] - 1, peak[0] - 1], -0.5)
    high = np.minimum([peak[1] + 1, peak[0] + 1], [heatmap.shape[1] - 0.5, heatmap.shape[0] - 0.5])
    start = [1, peak[1], peak[0]]
    fit = scipy.optimize.least_squares(residual, start, bounds=([0, *low], [np.inf, *high]), xtol=1e-12)
    return fit.x[1:]


def test_real_maps_are_fitted_as_scipy_fits_them(real_data):
    run = np.load(real_data / "lightning-pose-run" / "forward.npz")
    maps = run["heatmaps"]
    points, confidence = decode_fast(np.asarray(maps), 4, SIGMA)
    cells = (np.asarray(points) + 0.5) / 4 - 0.5
    peaks = np.stack(np.unravel_index(maps.reshape(8, 17, -1).argmax(-1), (32, 32)), -1)
    wanted = np.array([[fit_by_scipy(maps[i, k].astype(np.float64), peaks[i, k]) for k in range(17)] for i in range(8)])
    # Maps with two peaks side by side have a flat optimum, so the few last steps to it are short.
    difference = np.abs(cells - wanted).max(-1)
    assert np.median(difference) < 1e-3 and difference.max() < 0.02
    assert ((np.asarray(confidence) >= 0) & (np.asarray(confidence) <= 1)).all()


def test_real_maps_are_read_nearer_to_the_labels_than_the_reference_reads_them(real_data):
    run = np.load(real_data / "lightning-pose-run" / "forward.npz")
    labels = run["target_keypoints_input_px"]
    ours = np.asarray(decode_fast(np.asarray(run["heatmaps"]), 4, SIGMA)[0]) - 1.5  # its cell c is pixel c * stride
    error = np.linalg.norm(ours - labels, axis=-1)
    assert np.nanmean(error) < 0.9 * np.nanmean(np.linalg.norm(run["keypoints_input_px"] - labels, axis=-1))


def test_gradients_of_decoded_points_match_finite_differences():
    with jax.enable_x64(True):
        logits = random_logits(2, 12, 16)
        wanted = np.asarray(random_points_px(48, 64, 2, seed=9), jnp.float64)

        @jax.jit
        def loss(logits):
            points, _ = decode(as_maps(logits), 4, SIGMA)
            return jnp.square(points - wanted).sum()

        gradient = np.asarray(jax.jit(jax.grad(loss))(logits))
        assert gradient.dtype == np.float64 and np.isfinite(gradient).all()
        rng = np.random.default_rng(0)
        for _ in range(20):
            direction = rng.normal(size=logits.shape)
            slope = (float(loss(logits + 1e-6 * direction)) - float(loss(logits - 1e-6 * direction))) / 2e-6
            np.testing.assert_allclose(slope, (gradient * direction).sum(), rtol=1e-5, atol=1e-4)


def test_float32_gradients_are_finite_on_sharp_and_flat_maps():
    noise = np.random.default_rng(0).normal(size=(2, 17, 24, 32))

    @jax.jit
    @jax.grad
    def gradient(logits):
        points, confidence = decode(as_maps(logits), 4, SIGMA)
        return points.sum() + confidence.sum()

    for scale in (0.0, 1e-3, 10.0, 1000.0):
        assert np.isfinite(gradient(np.asarray(scale * noise, np.float32))).all(), scale
