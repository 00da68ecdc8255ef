"""The losses of a pretraining against numpy in float64."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpose.pose import unlabelled_losses


@pytest.fixture(autouse=True)
def with_float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def masked_reference(
    maps: np.ndarray, pictures: np.ndarray, hidden: np.ndarray, side: int, stride: int
) -> tuple[np.ndarray, np.ndarray]:
    """Loops over hidden squares and their cells; also of maps that say nothing."""
    sums = np.zeros((2, len(maps)))
    for frame, row, column in zip(*np.nonzero(hidden), strict=True):
        square = pictures[frame, side * row : side * (row + 1), side * column : side * (column + 1)]
        normal = (square - square.mean(axis=(0, 1))) / np.sqrt(square.var(axis=(0, 1)) + 25)
        for y in range(0, side, stride):
            for x in range(0, side, stride):
                wanted = normal[y : y + stride, x : x + stride].reshape(-1)
                said = maps[frame, :, (side * row + y) // stride, (side * column + x) // stride]
                sums[:, frame] += ((said - wanted) ** 2).mean(), (wanted**2).mean()
    return sums[0], sums[1]


@pytest.mark.parametrize(("side", "stride"), [(16, 4), (8, 8), (8, 2)])
def test_hidden_loss_is_that_of_numpy(side: int, stride: int) -> None:
    rng = np.random.default_rng(0)
    pictures = rng.uniform(0, 255, (3, 32, 48, 3))
    # A flat square has nothing to learn.
    pictures[0, :16, :16] = 90
    maps = rng.normal(size=(3, 3 * stride**2, 32 // stride, 48 // stride))
    hidden = rng.uniform(size=(3, 32 // side, 48 // side)) < 0.6
    hidden[1], hidden[0, 0, 0] = False, True
    targets = jax.jit(lambda pictures: unlabelled_losses.square_targets(pictures, hidden.shape[1:], stride))(pictures)
    found = jax.jit(unlabelled_losses.hidden_loss)(maps, targets, hidden)
    for one, other in zip(found, masked_reference(maps, pictures, hidden, side, stride), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert found[0][1] == found[1][1] == 0
    # What is shown costs nothing: a gradient there would teach to copy.
    gradient = jax.jit(jax.grad(lambda x: unlabelled_losses.hidden_loss(x, targets, jnp.array(hidden))[0].sum()))(maps)
    cells = np.repeat(np.repeat(hidden, side // stride, axis=1), side // stride, axis=2)
    np.testing.assert_array_equal(np.asarray(gradient).any(axis=1), cells)


def test_only_hidden_squares_are_filled_with_the_mean_colour() -> None:
    rng = np.random.default_rng(1)
    pictures, hidden = rng.uniform(0, 255, (2, 1, 32, 48, 3)), rng.uniform(size=(2, 2, 3)) < 0.5
    shown = np.asarray(jax.jit(unlabelled_losses.hide)(pictures, hidden))
    cells = np.repeat(np.repeat(hidden, 16, axis=1), 16, axis=2)
    np.testing.assert_array_equal(shown[~cells[:, None]], pictures[~cells[:, None]])
    for frame in range(2):
        filled = shown[frame, 0][cells[frame]]
        np.testing.assert_allclose(filled - pictures[frame].mean(axis=(0, 1, 2)), 0, atol=1e-11)


def test_as_many_squares_are_hidden_as_asked_for() -> None:
    keys = jax.random.split(jax.random.key(0), 200)
    hidden = np.asarray(jax.jit(lambda keys: unlabelled_losses.draw_hidden(keys, 0.3, (6, 8)))(keys))
    assert abs(hidden.mean() - 0.3) < 0.02
    assert len({frame.tobytes() for frame in hidden}) == 200


def test_follow_loss_is_that_of_numpy() -> None:
    rng = np.random.default_rng(2)
    maps, features = rng.normal(size=(2, 6, 8, 12)), rng.normal(size=(2, 2, 3, 6))
    follow_loss = jax.jit(unlabelled_losses.follow_loss)
    found = follow_loss(maps, features)
    expected = np.zeros(2)
    for frame, row, column in np.ndindex(2, 2, 3):
        cell = maps[frame, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].mean(axis=(1, 2))
        wanted = features[frame, row, column]
        expected[frame] += 1 - cell @ wanted / np.linalg.norm(cell) / np.linalg.norm(wanted)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    same = np.repeat(np.repeat(features.transpose(0, 3, 1, 2), 4, axis=2), 4, axis=3)
    found = follow_loss(3 * same, features)
    np.testing.assert_allclose(found, 0, atol=1e-12)
