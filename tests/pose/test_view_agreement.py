"""Maps of views that agree: against all pairs of cells in numpy, float64, and against affine cameras."""

import jax
import numpy as np
import pytest

from jaxpose import config as c
from jaxpose import geometry
from jaxpose.pose import heatmap, view_agreement
from jaxpose.pose.pca import Pca, fit_multiview
from jaxpose.poses import VISIBLE

SIDE_PX, STRIDE, SIGMA_CELLS = 96, 4, 1.25
# A keypoint in no view, then two body parts in three views.
VIEWS = ((1, 2), (4, 3), (5, 6))
KEYPOINTS = 7
FRAME_FROM_INPUT = np.array([[[2.0, 0.0, 3.0], [0.0, 2.0, -1.0]], [[1.5, 0.4, 0.0], [-0.4, 1.5, 9.0]]])


encode_fast = jax.jit(heatmap.encode, static_argnums=(2, 3, 4))
decode_fast = jax.jit(heatmap.decode, static_argnums=(1, 2))


def seen(count: int, rng: np.random.Generator) -> np.ndarray:
    """Labels (count, k, 2) of points in space, as three affine cameras see them, in pixels of the frame."""
    cameras = rng.normal(size=(3, 2, 3))
    points = rng.uniform(-20, 20, (count, 2, 3))
    labels = np.full((count, KEYPOINTS, 2), np.nan)
    for view, camera in zip(VIEWS, cameras, strict=True):
        labels[:, view] = points @ camera.T + 80
    return labels


def fitted(labels: np.ndarray, views: tuple = VIEWS) -> Pca:
    return fit_multiview(labels, views, c.PcaMultiviewConfig(components=3, epsilon_px=3.0))


def random_maps(rng: np.random.Generator) -> np.ndarray:
    side = SIDE_PX // STRIDE
    points = rng.uniform(0, SIDE_PX - 1, (2, 3 * KEYPOINTS, 2))
    visible = np.full(points.shape[:2], VISIBLE, np.int8)
    blobs = np.asarray(encode_fast(points, visible, (SIDE_PX, SIDE_PX), STRIDE, SIGMA_CELLS))
    return blobs.reshape(2, KEYPOINTS, 3, side, side).mean(axis=2)


def agreed(maps: np.ndarray, pca: Pca, frame_from_input: np.ndarray = FRAME_FROM_INPUT) -> np.ndarray:
    def agree(maps: jax.Array, affines: jax.Array) -> jax.Array:
        return view_agreement.agree(maps, affines, STRIDE, pca)

    return np.asarray(jax.jit(agree)(maps, np.broadcast_to(frame_from_input.astype(maps.dtype), (len(maps), 2, 3))))


def by_all_pairs(maps: np.ndarray, pca: Pca) -> np.ndarray:
    """The same from every pair of cells, with relations from eigenvectors instead of singular values."""
    height, width = maps.shape[-2:]
    found = maps.copy()
    for row, affine in enumerate(FRAME_FROM_INPUT):
        y, x = np.mgrid[:height, :width]
        cells = geometry.apply(affine, geometry.input_from_cells(np.stack([x, y], -1).reshape(-1, 2), STRIDE))
        cell_px = STRIDE * np.sqrt(np.linalg.det(affine[:, :2]))
        for part in range(2):
            for first in range(3):
                weight = np.ones(height * width)
                for second in set(range(3)) - {first}:
                    columns = [2 * view + axis for view in (first, second) for axis in (0, 1)]
                    axes = pca.components[:, columns]
                    normal = np.linalg.eigh(axes.T @ axes)[1][:, 0]
                    off = (cells @ normal[:2])[:, None] + cells @ normal[2:] - normal @ pca.mean_px[columns]
                    fits = np.exp(-(off**2) / (2 * (cell_px**2 + 3.0**2)))
                    weight = weight * (fits @ maps[row, VIEWS[second][part]].reshape(-1) + 0.02)
                product = maps[row, VIEWS[first][part]] * weight.reshape(height, width)
                found[row, VIEWS[first][part]] = product / product.sum()
    return found


def test_maps_are_those_of_all_pairs_of_cells() -> None:
    rng = np.random.default_rng(0)
    maps, pca = random_maps(rng).astype(np.float64), fitted(seen(20, rng))
    with jax.enable_x64(True):
        found = agreed(maps, pca)
    expected = by_all_pairs(maps, pca)
    # Mass is moved to places less than a cell apart before it is compared.
    assert np.abs(found - expected).max() < 0.02 * expected.max()
    assert np.abs(expected - maps).max() > 0.1 * expected.max()
    np.testing.assert_allclose(found.sum((-2, -1)), 1, rtol=1e-6)
    # This keypoint is in no view.
    np.testing.assert_array_equal(found[:, 0], maps[:, 0])


def test_of_two_peaks_the_one_stays_that_the_other_views_confirm() -> None:
    """Left and right paw look alike in one view; in the others the keypoint is found."""
    rng = np.random.default_rng(1)
    labels = seen(40, rng)
    pca = fitted(labels[:20])
    affine = np.array([[[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]])
    inside = [row for row in range(20, 40) if np.nanmin(labels[row]) > 20 and np.nanmax(labels[row]) < 160]
    assert len(inside) > 3
    points = np.nan_to_num(labels[inside]) / 2
    other = points.copy()
    # Across the relation to the next view, so that this place is wrong.
    normal, _ = view_agreement.relation(pca, 0, 1)
    other[:, VIEWS[0]] += 16 * normal[:2] / np.linalg.norm(normal[:2])
    visible = np.full(points.shape[:2], VISIBLE, np.int8)
    right, wrong = (
        np.asarray(encode_fast(each, visible, (SIDE_PX, SIDE_PX), STRIDE, SIGMA_CELLS)) for each in (points, other)
    )
    maps = right.copy()
    maps[:, VIEWS[0]] = 0.45 * right[:, VIEWS[0]] + 0.55 * wrong[:, VIEWS[0]]
    before, _ = decode_fast(maps, STRIDE, SIGMA_CELLS)
    after, _ = decode_fast(agreed(maps, pca, affine), STRIDE, SIGMA_CELLS)
    off_before, off_after = (np.linalg.norm(found - points, axis=-1) for found in (before, after))
    assert off_before[:, list(VIEWS[0])].min() > 10
    # The wrong peak still moves the peaks of the other views a little: less than half a cell.
    assert off_after.max() < STRIDE / 2


def test_a_view_that_shows_nothing_says_nothing() -> None:
    rng = np.random.default_rng(2)
    maps, pca = random_maps(rng), fitted(seen(20, rng), VIEWS[:2])
    maps[:, VIEWS[1]] = 0
    found = agreed(maps, pca)
    np.testing.assert_allclose(found, maps, atol=1e-6)


def test_a_map_with_nan_is_not_hidden() -> None:
    rng = np.random.default_rng(5)
    maps, pca = random_maps(rng), fitted(seen(20, rng))
    maps[0, 1, 3, 3] = np.nan
    found = agreed(maps, pca)
    # The other views of this body part hear NaN.
    assert np.isnan(found[0, [1, 4, 5]]).all() and np.isfinite(found[0, [0, 2, 3, 6]]).all()
    assert np.isfinite(found[1]).all()


@pytest.mark.parametrize(("first", "second"), [(0, 1), (2, 0), (1, 2)])
def test_points_of_affine_cameras_obey_the_relation(first: int, second: int) -> None:
    labels = seen(20, np.random.default_rng(3))
    normal, offset = view_agreement.relation(fitted(labels[:10]), first, second)
    points = np.concatenate([labels[10:][:, VIEWS[view]] for view in (first, second)], axis=-1)
    np.testing.assert_allclose(points @ normal, offset, atol=1e-9)
    assert np.linalg.norm(normal) == pytest.approx(1)
