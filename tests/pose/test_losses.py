"""Heatmap losses: against numpy and scipy in float64, and the reference trainer's own maps and targets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.spatial.distance
import scipy.special

from jaxpose.pose.heatmap import HEATMAP_WEIGHT, encode, heatmap_loss

KINDS = ("mse", "kl", "js")
COMPILED = {kind: jax.jit(heatmap_loss(kind)) for kind in KINDS}
encode_fast = jax.jit(encode, static_argnums=(2, 3, 4))


def numpy_loss(kind, maps, targets):
    """The loss of each map (b, k) in float64, written from the reference trainer's formulas."""
    maps, targets = np.float64(maps), np.float64(targets)
    if kind == "mse":
        height, width = maps.shape[-2:]
        return (np.square(targets - maps) * height * width).mean((-2, -1))
    maps, targets = maps + 1e-10, targets + 1e-10
    if kind == "kl":
        return scipy.special.rel_entr(targets, maps).sum((-2, -1))
    middle = (maps + targets) / 2
    pair = scipy.special.rel_entr(targets, middle) + scipy.special.rel_entr(maps, middle)
    return 0.5 * pair.sum((-2, -1))


def random_case(batch=3, count=5, height=12, width=16, dtype=np.float32):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(batch, count, height, width)) * 3
    points = jnp.asarray(rng.uniform(0, 4 * height - 1, (batch, count, 2)), dtype)
    visibility = jnp.asarray(rng.integers(1, 3, (batch, count)), jnp.int8)
    targets = encode_fast(points, visibility, (4 * height, 4 * width), 4, 1.25)
    used = rng.random((batch, count)) < 0.6
    used[-1] = False
    return jnp.asarray(logits, dtype), targets, jnp.asarray(used)


def softmax(logits):
    return scipy.special.softmax(np.float64(logits), axis=(-2, -1))


@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_counts_are_those_of_numpy(kind):
    logits, targets, used = random_case()
    total, count = COMPILED[kind](logits, targets, used)
    wanted = numpy_loss(kind, softmax(logits), targets)
    assert total.dtype == count.dtype == jnp.float32
    np.testing.assert_allclose(total, (wanted * np.asarray(used)).sum(-1), rtol=1e-5)
    np.testing.assert_array_equal(count, np.asarray(used).sum(-1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_trainers_maps_have_the_loss_of_its_formulas(kind, real_data):
    run = np.load(real_data / "lightning-pose-run" / "forward.npz")
    maps, targets = run["heatmaps"], run["target_heatmaps"]
    used = targets.any((-2, -1))
    logits = np.log(np.maximum(maps, 1e-37))
    total, count = COMPILED[kind](jnp.asarray(logits), jnp.asarray(targets), jnp.asarray(used))
    wanted = numpy_loss(kind, maps, targets)[used]
    assert float(count.sum()) == used.sum() == wanted.size
    np.testing.assert_allclose(total.sum() / count.sum(), wanted.mean(), rtol=1e-5)


def test_known_values():
    target = encode_fast(jnp.full((1, 1, 2), 128.0), jnp.full((1, 1), 2, jnp.int8), (256, 256), 4, 1.25)
    one = jnp.ones((1, 1), bool)
    uniform, _ = COMPILED["mse"](jnp.zeros((1, 1, 64, 64)), target, one)
    np.testing.assert_allclose(uniform, [0.0507], atol=5e-5)
    assert HEATMAP_WEIGHT == 0.5
    logits = jnp.log(target + 1e-30)
    for loss in COMPILED.values():
        np.testing.assert_allclose(loss(logits, target, one)[0], 0, atol=1e-6)
    apart = jnp.full((1, 1, 8, 8), -100.0).at[0, 0, 0, 0].set(0)
    other = jnp.zeros((1, 1, 8, 8)).at[0, 0, 7, 7].set(1)
    np.testing.assert_allclose(COMPILED["js"](apart, other, one)[0], np.log(2), rtol=1e-5)
    np.testing.assert_allclose(COMPILED["mse"](apart, other, one)[0], 2, rtol=1e-5)
    p, q = scipy.special.softmax(np.arange(4.0)), np.array([0.1, 0.2, 0.3, 0.4])
    js, _ = COMPILED["js"](jnp.arange(4.0).reshape(1, 1, 2, 2), jnp.asarray(q, jnp.float32).reshape(1, 1, 2, 2), one)
    np.testing.assert_allclose(js, scipy.spatial.distance.jensenshannon(p, q) ** 2, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worse_map_costs_more(kind):
    points = jnp.asarray([[[31.5 + shift, 31.5] for shift in (0, 1, 2, 4, 8, 16)]], jnp.float32)
    maps = encode_fast(points, jnp.full((1, 6), 2, jnp.int8), (64, 64), 4, 1.25)
    targets = jnp.broadcast_to(maps[:, :1], maps.shape)
    losses = [float(COMPILED[kind](jnp.log(maps + 1e-30), targets, jnp.eye(6, dtype=bool)[i][None])[0][0])
              for i in range(6)]  # fmt: skip
    assert (np.diff(losses) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_unused_maps_reach_neither_sum_nor_gradient(kind):
    logits, targets, used = random_case()
    unused = ~used[..., None, None]
    spoilt_logits = jnp.where(unused, jnp.nan, logits)
    spoilt_targets = jnp.where(unused, jnp.inf, targets)

    def loss(logits, targets):
        total, count = COMPILED[kind](logits, targets, used)
        return total.sum(), count

    with_gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (clean, count), gradient = with_gradient(logits, targets)
    (spoilt, spoilt_count), spoilt_gradient = with_gradient(spoilt_logits, spoilt_targets)
    np.testing.assert_array_equal(spoilt, clean)
    np.testing.assert_array_equal(spoilt_count, count)
    np.testing.assert_array_equal(spoilt_gradient, gradient)
    assert not np.any(np.asarray(gradient)[~np.asarray(used)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_targets_gives_zero(kind):
    logits, targets, used = random_case()
    nothing = jnp.zeros_like(used)
    spoilt = jnp.full_like(logits, jnp.nan)
    total, count = COMPILED[kind](spoilt, targets, nothing)
    np.testing.assert_array_equal(total, np.zeros(3))
    np.testing.assert_array_equal(count, np.zeros(3))
    gradient = jax.grad(lambda logits: COMPILED[kind](logits, targets, nothing)[0].sum())(spoilt)
    np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_match_finite_differences(kind):
    with jax.enable_x64(True):
        logits, targets, used = random_case(dtype=np.float64)

        @jax.jit
        def loss(logits):
            return COMPILED[kind](logits, targets, used)[0].sum()

        gradient = np.asarray(jax.jit(jax.grad(loss))(logits))
        rng = np.random.default_rng(1)
        for _ in range(10):
            direction = rng.normal(size=logits.shape)
            step = 1e-5 * jnp.asarray(direction)
            slope = (loss(logits + step) - loss(logits - step)) / 2e-5
            np.testing.assert_allclose(slope, (gradient * direction).sum(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_logits_stay_finite(kind):
    targets = encode_fast(jnp.full((1, 2, 2), 20.0), jnp.array([[1, 2]], jnp.int8), (64, 64), 4, 1.25)
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2, 16, 16)) * 1e4, jnp.float32)
    used = jnp.ones((1, 2), bool)
    value, gradient = jax.value_and_grad(lambda logits: COMPILED[kind](logits, targets, used)[0].sum())(logits)
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_an_unknown_loss_is_refused():
    with pytest.raises(ValueError, match="model.loss is 'l1'; it must be one of mse, kl, js"):
        heatmap_loss("l1")
