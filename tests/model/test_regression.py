"""The head without maps: against a plain linear layer in pixels, numpy float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpose.model.heads import RegressionHead

SIZE = (64, 96)  # height, width


def make_head(dtype=jnp.float32, param_dtype=None, channels=8, keypoints=5):
    rng = np.random.default_rng(0)
    return RegressionHead(channels, keypoints, dtype=dtype, param_dtype=param_dtype or dtype, rng=rng)


def run(head, features, size=SIZE):
    return jax.jit(lambda features: head(features, size))(features)


def random_features():
    return np.random.default_rng(1).normal(size=(3, 2, 3, 8))


def test_zero_weights_give_the_centre_of_the_input():
    head = make_head()
    head.kernel[...] = jnp.asarray(np.zeros(head.kernel[...].shape, np.float32))
    points = run(head, random_features().astype(np.float32))
    assert points.shape == (3, 5, 2)
    np.testing.assert_array_equal(points, np.broadcast_to([47.5, 31.5], (3, 5, 2)))


def test_training_starts_near_the_centre_and_not_at_it():
    points = run(make_head(), random_features().astype(np.float32))
    away_px = np.abs(np.asarray(points) - [47.5, 31.5])
    assert 0 < away_px.max() < 5 and (away_px > 0).all()


def test_a_linear_layer_in_pixels_converts():
    rng = np.random.default_rng(2)
    weight, bias = 30 * rng.normal(size=(10, 8)), rng.uniform(0, 64, 10)
    features = random_features()
    expected = (features.mean((1, 2)) @ weight.T + bias).reshape(3, 5, 2)
    side = np.array([96, 64])
    with jax.enable_x64(True):
        head = make_head(jnp.float64)
        kernel = (weight.reshape(5, 2, 8) / side[:, None]).transpose(2, 1, 0)
        shift = ((bias.reshape(5, 2) - (side - 1) / 2) / side).T
        assert head.kernel[...].shape == kernel.shape and head.bias[...].shape == shift.shape
        head.kernel[...], head.bias[...] = jnp.asarray(kernel), jnp.asarray(shift)
        got = run(head, features)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)


def test_half_precision_costs_little_and_returns_float32():
    features = random_features().astype(jnp.bfloat16)
    half, full = make_head(jnp.bfloat16, jnp.float32), make_head(jnp.float32)
    assert half.kernel[...].dtype == jnp.float32
    # Points all over the input, not only near its centre.
    half.bias[...] = full.bias[...] = jnp.asarray(np.random.default_rng(3).uniform(-0.5, 0.5, (2, 5)), jnp.float32)
    points = run(half, features, (256, 256))
    assert points.dtype == jnp.float32
    np.testing.assert_allclose(points, run(full, features.astype(np.float32), (256, 256)), atol=0.05)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gradients_are_finite_and_reach_every_feature(dtype):
    head = make_head(dtype, jnp.float32)
    features = random_features().astype(dtype)
    gradient = np.asarray(jax.jit(jax.grad(lambda x: jnp.square(head(x, SIZE)).sum()))(features))
    assert gradient.dtype == dtype
    assert np.isfinite(gradient.astype(np.float32)).all() and (gradient != 0).all()
