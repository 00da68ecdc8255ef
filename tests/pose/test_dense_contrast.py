"""The losses of a pretraining against numpy in float64 and scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
import scipy.special

from jaxpose.pose import dense_contrast


@pytest.fixture(autouse=True)
def with_float64() -> object:
    with jax.enable_x64(True):
        yield


def unit(features: np.ndarray) -> np.ndarray:
    return features / np.linalg.norm(features, axis=-1, keepdims=True)


def test_match_loss_is_that_of_numpy() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 3, 7, 5))
    second[:, :4] += 3 * first[:, :4]
    matched = rng.uniform(size=(3, 7)) < 0.7
    matched[2] = False
    # What is not matched counts nowhere, however large it is.
    first[~matched] *= 1e9
    loss, found = dense_contrast.match_loss(jnp.array(first), jnp.array(second), jnp.array(matched), 0.2)
    np.testing.assert_array_equal([loss[2], found[2]], 0)
    for frame in range(2):
        one, other = unit(first[frame, matched[frame]]), unit(second[frame, matched[frame]])
        scores = one @ other.T / 0.2
        of_rows, of_columns = (np.diag(scipy.special.log_softmax(scores, axis=axis)) for axis in (1, 0))
        assert float(loss[frame]) == pytest.approx(-(of_rows + of_columns).sum() / 2, rel=1e-12)
        hits = [(scores.argmax(axis) == np.arange(len(one))).sum() for axis in (1, 0)]
        assert float(found[frame]) == sum(hits) / 2
    gradient = jax.grad(lambda x: dense_contrast.match_loss(x, jnp.array(second), jnp.array(matched), 0.2)[0].sum())
    moved = np.asarray(gradient(jnp.array(first)))
    assert np.isfinite(moved).all() and not moved[~matched].any() and moved[matched].any()


def test_equal_features_everywhere_find_nothing() -> None:
    """Collapsed features: the share of found places is one over their number, and the loss that of a guess."""
    same, matched = jnp.ones((2, 9, 4)), jnp.ones((2, 9), bool)
    loss, found = dense_contrast.match_loss(same, same, matched, 0.1)
    np.testing.assert_allclose(found, 1)
    np.testing.assert_allclose(loss, 9 * np.log(9))


def test_maps_are_sampled_as_scipy_does() -> None:
    rng = np.random.default_rng(1)
    maps, points = rng.normal(size=(2, 3, 5, 7)), rng.uniform(-1.5, 8, (2, 40, 2))
    points[0, :3] = [[0, 0], [6, 4], [3, 4]]
    found = dense_contrast.sample_maps(jnp.array(maps), jnp.array(points))
    for frame in range(2):
        for channel in range(3):
            expected = scipy.ndimage.map_coordinates(
                maps[frame, channel], points[frame, :, ::-1].T, order=1, mode="nearest"
            )
            np.testing.assert_allclose(found[frame, :, channel], expected, atol=1e-12)


def test_the_lattice_spans_the_frame() -> None:
    offsets = jnp.array([[0.0, 0.5], [0.999, 0.25]])
    points = np.asarray(dense_contrast.lattice_px(offsets, 4, (32, 64)))
    np.testing.assert_allclose(points[0, 0], [-0.5, 3.5])
    np.testing.assert_allclose(points[0, 1] - points[0, 0], [16, 0])
    np.testing.assert_allclose(points[0, 4] - points[0, 0], [0, 8])
    assert points[..., 0].max() < 63.5 and points[..., 1].max() < 31.5
    # The column at -0.5 and the column at 63.484 lie beyond the centres of the outer pixels.
    assert np.asarray(dense_contrast.inside(jnp.array(points), (32, 64))).sum() == 12 + 12


def test_follow_loss_is_that_of_numpy() -> None:
    rng = np.random.default_rng(2)
    maps, features = rng.normal(size=(2, 6, 8, 12)), rng.normal(size=(2, 2, 3, 6))
    found = dense_contrast.follow_loss(jnp.array(maps), jnp.array(features))
    expected = np.zeros(2)
    for frame in range(2):
        for row in range(2):
            for column in range(3):
                cell = maps[frame, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].mean(axis=(1, 2))
                expected[frame] += 1 - unit(cell) @ unit(features[frame, row, column])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    same = np.repeat(np.repeat(features.transpose(0, 3, 1, 2), 4, axis=2), 4, axis=3)
    np.testing.assert_allclose(dense_contrast.follow_loss(jnp.array(3 * same), jnp.array(features)), 0, atol=1e-12)
