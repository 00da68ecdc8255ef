"""Lightning Pose's own targets and decoding: its run's figures, its tests' values, and scipy's blur in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.ndimage

from jaxpose.geometry import apply, input_from_frame, invert
from jaxpose.pose import heatmap
from jaxpose.pose.heatmap_lightning_pose import confidence_at, decode, encode, offset_px
from tests.affines import compose

SIGMA = 1.25
encode_fast = jax.jit(encode, static_argnums=(2, 3, 4))
decode_fast = jax.jit(decode, static_argnums=1)
confidence_fast = jax.jit(confidence_at)
ours_encode = jax.jit(heatmap.encode, static_argnums=(2, 3, 4))
ours_decode = jax.jit(heatmap.decode, static_argnums=(1, 2))
OFFSET_PX = {2: 0.5, 4: 1.5, 8: 2.5}


@pytest.fixture(scope="module")
def run(real_data):
    """What the tool computed for 8 frames."""
    with np.load(real_data / "lightning-pose-run" / "forward.npz") as arrays:
        return dict(arrays)


def delta(cell, side=8, height=1.0):
    """A map (1, 1, side, side) of one cell (x, y)."""
    maps = np.zeros((1, 1, side, side), np.float32)
    maps[0, 0, cell[1], cell[0]] = height
    return maps


def test_a_real_run_is_decoded_as_the_tool_decoded_it(run):
    points, confidence = decode_fast(np.asarray(run["heatmaps"]), 4)
    assert points.dtype == confidence.dtype == np.float32
    np.testing.assert_allclose(points, run["keypoints_input_px"], rtol=0, atol=1e-3)
    np.testing.assert_allclose(confidence, run["confidence"], rtol=0, atol=1e-5)


def test_a_real_run_has_the_targets_that_the_tool_drew(run):
    points = np.asarray(run["target_keypoints_input_px"])
    maps = encode_fast(points, np.full(points.shape[:2], 2, np.int8), (128, 128), 4, SIGMA)
    np.testing.assert_allclose(maps, run["target_heatmaps"], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(maps).sum((-2, -1)) == 0, np.isnan(points).any(-1))


def test_frame_pixels_are_those_that_the_tool_wrote(run, real_data):
    """Its frames of 396 x 406 became inputs of 128 x 128 by the plain ratio of sides; its labels too."""
    folder = real_data / "lightning-pose-run"
    frame_from_input = invert(input_from_frame((396, 406), (128, 128), "stretch")).astype(np.float32)
    several = np.asarray(np.broadcast_to(frame_from_input, (8, 2, 3)))

    offset = np.asarray(jax.jit(offset_px)(several))[:, None]
    points_px = np.asarray(decode_fast(run["heatmaps"], 4)[0]) - offset
    written = pd.read_csv(folder / "predictions.csv", header=[0, 1, 2], index_col=0)
    written = written.loc[:, [coords in ("x", "y") for _, _, coords in written.columns]]
    written = written.iloc[run["rows"]].to_numpy(np.float64).reshape(8, 17, 2)
    np.testing.assert_allclose(apply(several, points_px), written, rtol=0, atol=3e-3)

    labels = pd.read_csv(real_data / "mirror-mouse-example" / "CollectedData.csv", header=[0, 1, 2], index_col=0)
    labels = labels.iloc[run["rows"]].to_numpy(np.float64).reshape(8, 17, 2)
    keypoints_px = apply(invert(frame_from_input), labels.astype(np.float32))
    drawn = keypoints_px + offset
    np.testing.assert_allclose(drawn, run["target_keypoints_input_px"], rtol=0, atol=1e-4)


def test_the_offset_holds_for_crops_and_turned_inputs():
    """In that tool a crop shifts by its corner and a resize multiplies, both without half pixels."""
    crop = invert(input_from_frame((640, 480), (128, 96), "stretch", (100, 50, 320, 120)))
    turn = np.array([[0.8, -0.6, 3.0], [0.6, 0.8, -2.0]])
    affines = np.asarray(np.stack([crop, compose(crop, turn)]), np.float32)
    tool_px = np.asarray(np.random.default_rng(0).uniform(0, 96, (2, 7, 2)), np.float32)
    found = np.asarray(jax.jit(lambda affines, px: apply(affines, px - offset_px(affines)[:, None]))(affines, tool_px))
    expected = np.asarray(tool_px[0], np.float64) * [320 / 128, 120 / 96] + [100, 50]
    np.testing.assert_allclose(found[0], expected, atol=1e-3)
    # Turned about the corner of the picture as the origin: our affine with its ends moved by half a pixel.
    half = np.array([[1, 0, 0.5], [0, 1, 0.5]])
    corner = compose(half, compose(compose(crop, turn), invert(half)))
    np.testing.assert_allclose(found[1], apply(corner, np.asarray(tool_px[1], np.float64)), atol=1e-3)


@pytest.mark.parametrize("cell", [2, 4])
@pytest.mark.parametrize("stride", [2, 4])
def test_interior_points_are_the_cell_times_the_stride(cell, stride):
    """Its test_interior_points; in our pixels the same cell is its centre."""
    points, confidence = decode_fast(delta((cell, cell)), stride)
    np.testing.assert_allclose(points[0, 0], cell * stride, rtol=0, atol=1e-4)
    np.testing.assert_allclose(confidence, 1, atol=1e-4)
    points, confidence = ours_decode(delta((cell, cell)), stride, SIGMA)
    np.testing.assert_allclose(points[0, 0], cell * stride + (stride - 1) / 2, rtol=0, atol=1e-4)
    np.testing.assert_allclose(confidence, 1, atol=1e-4)


def test_at_stride_8_it_reads_one_pixel_too_far():
    points, _ = decode_fast(delta((4, 3)), 8)
    np.testing.assert_allclose(points[0, 0], [4 * 8 + 1, 3 * 8 + 1], rtol=0, atol=1e-3)


def test_temperature():
    """Its test_temperature, with lower maps for lower temperatures: 100 gives 16.0 and is sure, 10 is not."""
    points, confidence = decode_fast(delta((4, 4), height=0.1), 4)
    np.testing.assert_allclose(points[0, 0], 16.0, rtol=0, atol=1e-2)
    assert confidence[0, 0] > 0.99
    assert decode_fast(delta((4, 4), height=0.01), 4)[1][0, 0] < 0.5


@pytest.mark.parametrize(
    ("point", "expected"),
    [((5, 5), 1), ((6, 6), 1), ((25, 25), 0), ((7.99, 5), 1), ((8, 5), 0), ((3, 5), 1), ((2.99, 5), 0)],
)
def test_confidence_is_the_mass_of_two_pixels_each_way(point: tuple, expected: int):
    """Its test_evaluate_heatmaps_at_location, and where the point is cut to a whole pixel."""
    found = confidence_fast(delta((5, 5), side=32), np.array([[point]], np.float32))
    np.testing.assert_array_equal(found, [[expected]])


@pytest.mark.parametrize(("point", "expected"), [((0, 0), 9), ((8, 5), 9), ((4, 3), 25), ((4, 0), 15)])
def test_the_window_of_the_confidence_ends_at_the_edge_of_the_map(point: tuple, expected: int):
    found = confidence_fast(np.ones((1, 1, 6, 9), np.float32), np.array([[point]], np.float32))
    np.testing.assert_array_equal(found, [[expected]])


def test_visibility():
    """Its test_..._visibility_0, _1, _2 and _mixed: zeros, 1 / (h w), a Gaussian; zeros for a visible NaN."""
    points = np.array([[[20, 30], [20, 30], [20, 30], [np.nan, 30], [20, np.nan], [np.nan, np.nan]]], np.float32)
    maps = np.asarray(encode_fast(points, np.array([[0, 1, 2, 2, 2, 1]], np.int8), (64, 128), 4, SIGMA))
    assert maps.shape == (1, 6, 16, 32)
    np.testing.assert_array_equal(maps[0, [0, 3, 4]], 0)
    np.testing.assert_allclose(maps[0, [1, 5]], 1 / (16 * 32), rtol=1e-6)
    y, x = np.mgrid[:16, :32]
    expected = np.exp(-((x - 20 / 4) ** 2 + (y - 30 / 4) ** 2) / (2 * SIGMA**2))
    np.testing.assert_allclose(maps[0, 2], expected / expected.sum(), atol=1e-7)


def test_points_out_of_bounds_are_not_drawn():
    """Its test_out_of_bounds_nan_indices, an input of 256 px and maps of 64: in its pixels and in ours."""
    outside = [[-10.0, 50], [500, 32], [32, 500], [32, -10], [np.nan, np.nan], [-4.1, 5], [5, 260.1]]
    inside = [[-4.0, 5], [260, 5], [5, -4], [5, 260]]
    points = np.array([[*outside, *inside]], np.float32)
    visible = np.full((1, 11), 2, np.int8)
    sums = np.asarray(encode_fast(points, visible, (256, 256), 4, SIGMA)).sum((-2, -1))
    np.testing.assert_array_equal(sums[0, :7], 0)
    np.testing.assert_allclose(sums[0, 7:], 1, rtol=1e-6)
    ours = ours_encode(points[:, :5], visible[:, :5], (256, 256), 4, SIGMA)
    np.testing.assert_array_equal(ours, np.zeros((1, 5, 64, 64)))


def test_both_tools_draw_the_same_gaussian_in_their_pixels():
    points_px = np.asarray(np.random.default_rng(0).uniform(-0.5, 63.5, (50, 17, 2)), np.float32)
    visible = np.full((50, 17), 2, np.int8)
    ours = ours_encode(points_px, visible, (64, 64), 4, SIGMA)
    np.testing.assert_allclose(encode_fast(points_px - 1.5, visible, (64, 64), 4, SIGMA), ours, atol=1e-6)


def bicubic(x):
    """Twice the length along the last axis: torch's bicubic with half-pixel centres, one output at a time."""

    def weight(d):
        d, a = abs(d), -0.75
        return (a + 2) * d**3 - (a + 3) * d**2 + 1 if d <= 1 else a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a

    n = x.shape[-1]
    out = np.zeros((*x.shape[:-1], 2 * n))
    for i in range(2 * n):
        place = (i + 0.5) / 2 - 0.5
        first = int(np.floor(place)) - 1
        for tap in range(first, first + 4):
            out[..., i] += weight(place - tap) * x[..., min(max(tap, 0), n - 1)]
    return out


@pytest.mark.parametrize("stride", [2, 4, 8])
def test_decoding_is_its_rule_in_float64(stride):
    rng = np.random.default_rng(stride)
    maps = np.exp(2 * rng.normal(size=(2, 3, 7, 10)))
    maps /= maps.sum((-2, -1), keepdims=True) * 20
    maps[0, 0] = 0
    maps[0, 0, 0, 9] = 0.2  # a corner
    full = maps
    kernel = np.outer([1, 4, 6, 4, 1], [1, 4, 6, 4, 1]) / 256
    for _ in range({2: 1, 4: 2, 8: 3}[stride]):
        full = bicubic(bicubic(full).swapaxes(2, 3)).swapaxes(2, 3)
        full = scipy.ndimage.correlate(full, kernel[None, None], mode="constant")
    soft = np.exp(1000 * full - 1000 * full.max((-2, -1), keepdims=True))
    soft /= soft.sum((-2, -1), keepdims=True)
    y, x = np.mgrid[: 7 * stride, : 10 * stride]
    place = np.stack([(soft * x).sum((-2, -1)), (soft * y).sum((-2, -1))], -1)
    mass = np.zeros((2, 3))
    for i, k in np.ndindex(2, 3):
        column, row = place[i, k].astype(int)
        mass[i, k] = soft[i, k, max(row - 2, 0) : row + 3, max(column - 2, 0) : column + 3].sum()
    with jax.enable_x64(True):
        points, confidence = decode_fast(np.asarray(maps), stride)
    np.testing.assert_allclose(points, place - OFFSET_PX[stride], rtol=0, atol=1e-9)
    np.testing.assert_allclose(confidence, mass, rtol=0, atol=1e-9)


def test_a_map_with_a_nan_gives_a_nan_and_touches_no_other(run):
    maps = run["heatmaps"].copy()
    wanted, _ = decode_fast(maps, 4)
    maps[0, 3, 5, 5] = np.nan
    points, confidence = decode_fast(maps, 4)
    np.testing.assert_array_equal(np.argwhere(np.isnan(points).any(-1)), [[0, 3]])
    others = ~np.isnan(points)
    np.testing.assert_array_equal(np.asarray(points)[others], np.asarray(wanted)[others])
    assert not confidence[0, 3] > 0


def test_gradients_are_finite_and_match_finite_differences(run):
    with jax.enable_x64(True):
        maps = np.asarray(run["heatmaps"][:1, :3].astype(np.float64))
        loss = jax.jit(lambda maps: jnp.square(decode(maps, 4)[0] - 64).sum())
        gradient = np.asarray(jax.jit(jax.grad(loss))(maps))
        assert np.isfinite(gradient).all()
        direction = np.random.default_rng(0).normal(size=maps.shape)
        slope = (float(loss(maps + 1e-7 * direction)) - float(loss(maps - 1e-7 * direction))) / 2e-7
        np.testing.assert_allclose(slope, (gradient * direction).sum(), rtol=1e-4)
    for sharp in (run["heatmaps"][:1], np.zeros((1, 2, 8, 8), np.float32)):
        gradient = jax.jit(jax.grad(lambda maps: sum(part.sum() for part in decode(maps, 4))))(np.asarray(sharp))
        assert np.isfinite(gradient).all()
    points = np.array([[[np.nan, 3], [500, 3], [20, 30]]], np.float32)
    seen = jnp.asarray(np.full((1, 3), 2, np.int8))
    gradient = jax.jit(jax.grad(lambda points: jnp.square(encode(points, seen, (64, 64), 4, SIGMA)).sum()))(points)
    assert np.isfinite(gradient).all() and not np.any(gradient[0, :2])
