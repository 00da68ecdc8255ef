"""Noise of the camera on clips: its mean and variance, and that a copy of a frame has the same."""

import jax
import numpy as np

from jaxpose.pose.unlabelled_losses import shot_noise

MAX = 10.0
noisy = jax.jit(shot_noise, static_argnums=3)


def keys_of(clips: int) -> jax.Array:
    return jax.random.split(jax.random.key(0), clips)


def test_the_variance_is_in_proportion_to_the_value_and_differs_from_clip_to_clip() -> None:
    clips, values = 64, np.float32([0, 60, 120])
    pictures = np.broadcast_to(values[None, None, None, :, None, None], (clips, 2, 32, 3, 16, 3)).reshape(
        -1, 2, 32, 48, 3
    )
    index = np.tile(np.arange(2, dtype=np.int32), (clips, 1))
    noise = np.float64(noisy(pictures, keys_of(clips), index, MAX)) - pictures
    noise = noise.reshape(clips, 2, 32, 3, 16, 3)
    assert not noise[:, :, :, 0].any()
    count = noise[0, 0, :, 1].size
    # By frame and value. The variance of so many uniform numbers is known to 3 %, their mean to a fifth of it.
    mean, variance = noise.mean((2, 4, 5))[..., 1:], noise.var((2, 4, 5))[..., 1:]
    assert (np.abs(mean) < 5 * np.sqrt(variance / count)).all()
    proportion = variance / values[1:]
    by_clip = proportion.mean((1, 2))
    np.testing.assert_allclose(proportion, np.broadcast_to(by_clip[:, None, None], proportion.shape), rtol=0.12)
    # Of 64 proportions, evenly spread up to the largest.
    assert by_clip.max() < 1.05 * MAX and by_clip.min() < 0.1 * MAX
    np.testing.assert_allclose(by_clip.mean(), MAX / 2, rtol=0.2)
    np.testing.assert_allclose(by_clip.std(), MAX / np.sqrt(12), rtol=0.2)
    # Frames of a clip, and clips, have noise of their own.
    flat = noise[:, :, :, 1:].reshape(2 * clips, -1)
    between = np.corrcoef(flat) - np.eye(2 * clips)
    assert np.abs(between).max() < 6 / np.sqrt(flat.shape[1])


def test_a_copy_of_a_frame_has_the_same_noise_and_none_leaves_the_range() -> None:
    pictures = np.asarray(np.random.default_rng(0).choice(np.float32([0, 1, 128, 254, 255]), (2, 5, 8, 8, 3)))
    index = np.tile(np.arange(5, dtype=np.int32), (2, 1))
    whole = np.asarray(noisy(pictures, keys_of(2), index, MAX))
    piece = noisy(pictures[:, 2:4], keys_of(2), index[:, 2:4], MAX)
    np.testing.assert_array_equal(whole[:, 2:4], piece)
    assert whole.min() >= 0 and whole.max() <= 255 and not np.array_equal(whole, pictures)
