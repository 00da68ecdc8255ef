"""Rectangles over keypoints, filled with another place of the same frame or with one grey."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpose.pose import augment

HEIGHT, WIDTH = 96, 64


def covered(keypoints_px: np.ndarray, count: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Frames whose pixels are their own places (x, y, 255 of 255), and the same with rectangles."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    place = np.stack([x, y, np.full_like(x, 255)], axis=-1).astype(np.float32)
    pictures = np.tile(place[None, None], (len(keypoints_px), 2, 1, 1, 1))

    @jax.jit
    def cover(pictures: jax.Array, keypoints_px: jax.Array) -> jax.Array:
        keys = jax.vmap(lambda number: jax.random.fold_in(jax.random.key(seed), number))(jnp.arange(len(pictures)))
        return augment.cover(pictures, keypoints_px, augment.draw_occluders(keys, count, jnp.float32))

    return pictures, np.asarray(cover(pictures, np.float32(keypoints_px)))


def test_a_rectangle_shows_another_keypoint_of_the_frame_or_one_grey() -> None:
    rng = np.random.default_rng(0)
    keypoints_px = rng.integers([20, 20], [WIDTH - 20, HEIGHT - 20], (40, 5, 2))
    pictures, found = covered(keypoints_px, count=1)
    kinds = {"moved": 0, "grey": 0}
    for frame in range(len(found)):
        np.testing.assert_array_equal(found[frame, 0], found[frame, 1])
        changed = (found[frame, 0] != pictures[frame, 0]).any(axis=-1)
        assert changed.any()
        rows, columns = np.nonzero(changed)
        middle = np.array([columns.mean(), rows.mean()])
        # Half a side is a tenth of the smaller side at most, and the middle half of that away.
        assert np.linalg.norm(keypoints_px[frame] - middle, axis=-1).min() < 0.1 * WIDTH
        inside = found[frame, 0][changed]
        if np.ptp(inside[:, :2]) == 0:
            kinds["grey"] += 1
            continue
        kinds["moved"] += 1
        shift = inside[:, :2] - np.stack([columns, rows], axis=-1)
        (shift,) = np.unique(shift, axis=0)
        between = keypoints_px[frame][None] - keypoints_px[frame][:, None]
        # The shift leads from one keypoint to another one.
        assert (between.reshape(-1, 2) == shift).all(axis=-1).any() and shift.any()
    assert kinds["grey"] > 5 and kinds["moved"] > 15


@pytest.mark.parametrize("keypoints_px", [np.full((3, 4, 2), np.nan), np.full((3, 4, 2), -500.0)])
def test_keypoints_that_are_nowhere_are_not_covered(keypoints_px: np.ndarray) -> None:
    pictures, found = covered(keypoints_px)
    np.testing.assert_array_equal(found, pictures)


def test_a_single_keypoint_is_covered_by_grey() -> None:
    pictures, found = covered(np.full((8, 1, 2), 32.0))
    for frame in range(8):
        changed = (found[frame, 0] != pictures[frame, 0]).any(axis=-1)
        assert changed[32, 32] and (np.ptp(found[frame, 0][changed], axis=-1) == 0).all()
