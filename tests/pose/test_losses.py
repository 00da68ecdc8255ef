"""Heatmap losses: against numpy and scipy in float64, and the reference trainer's own maps and targets."""

import jax
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
    points = np.asarray(rng.uniform(0, 4 * height - 1, (batch, count, 2)), dtype)
    visibility = np.asarray(rng.integers(1, 3, (batch, count)), np.int8)
    targets = encode_fast(points, visibility, (4 * height, 4 * width), 4, 1.25)
    used = rng.random((batch, count)) < 0.6
    used[-1] = False
    return np.asarray(logits, dtype), np.asarray(targets), used


def softmax(logits):
    return scipy.special.softmax(np.float64(logits), axis=(-2, -1))


@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_counts_are_those_of_numpy(kind):
    logits, targets, used = random_case()
    total, count = COMPILED[kind](logits, targets, used)
    wanted = numpy_loss(kind, softmax(logits), targets)
    assert total.dtype == count.dtype == np.float32
    np.testing.assert_allclose(total, (wanted * np.asarray(used)).sum(-1), rtol=1e-5)
    np.testing.assert_array_equal(count, np.asarray(used).sum(-1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_trainers_maps_have_the_loss_of_its_formulas(kind, real_data):
    run = np.load(real_data / "lightning-pose-run" / "forward.npz")
    maps, targets = run["heatmaps"], run["target_heatmaps"]
    used = targets.any((-2, -1))
    logits = np.log(np.maximum(maps, 1e-37))
    total, count = COMPILED[kind](np.asarray(logits), np.asarray(targets), np.asarray(used))
    wanted = numpy_loss(kind, maps, targets)[used]
    assert float(np.sum(count)) == used.sum() == wanted.size
    np.testing.assert_allclose(np.sum(total) / np.sum(count), wanted.mean(), rtol=1e-5)


def test_known_values():
    target = encode_fast(np.full((1, 1, 2), 128.0), np.full((1, 1), 2, np.int8), (256, 256), 4, 1.25)
    one = np.ones((1, 1), bool)
    uniform, _ = COMPILED["mse"](np.zeros((1, 1, 64, 64)), target, one)
    np.testing.assert_allclose(uniform, [0.0507], atol=5e-5)
    assert HEATMAP_WEIGHT == 0.5
    logits = np.log(np.asarray(target) + np.float32(1e-30))
    for loss in COMPILED.values():
        np.testing.assert_allclose(loss(logits, target, one)[0], 0, atol=1e-6)
    apart, other = np.full((1, 1, 8, 8), -100.0), np.zeros((1, 1, 8, 8))
    apart[0, 0, 0, 0], other[0, 0, 7, 7] = 0, 1
    np.testing.assert_allclose(COMPILED["js"](apart, other, one)[0], np.log(2), rtol=1e-5)
    np.testing.assert_allclose(COMPILED["mse"](apart, other, one)[0], 2, rtol=1e-5)
    p, q = scipy.special.softmax(np.arange(4.0)), np.array([0.1, 0.2, 0.3, 0.4])
    js, _ = COMPILED["js"](np.arange(4.0).reshape(1, 1, 2, 2), np.asarray(q, np.float32).reshape(1, 1, 2, 2), one)
    np.testing.assert_allclose(js, scipy.spatial.distance.jensenshannon(p, q) ** 2, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worse_map_costs_more(kind):
    points = np.asarray([[[31.5 + shift, 31.5] for shift in (0, 1, 2, 4, 8, 16)]], np.float32)
    maps = np.asarray(encode_fast(points, np.full((1, 6), 2, np.int8), (64, 64), 4, 1.25))
    targets = np.broadcast_to(maps[:, :1], maps.shape)
    losses = [float(COMPILED[kind](np.log(maps + np.float32(1e-30)), targets, np.eye(6, dtype=bool)[i][None])[0][0])
              for i in range(6)]  # fmt: skip
    assert (np.diff(losses) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_unused_maps_reach_neither_sum_nor_gradient(kind):
    logits, targets, used = random_case()
    unused = ~used[..., None, None]
    spoilt_logits = np.where(unused, np.nan, logits)
    spoilt_targets = np.where(unused, np.inf, targets)

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
    nothing = np.zeros_like(used)
    spoilt = np.full_like(logits, np.nan)
    total, count = COMPILED[kind](spoilt, targets, nothing)
    np.testing.assert_array_equal(total, np.zeros(3))
    np.testing.assert_array_equal(count, np.zeros(3))
    gradient = jax.jit(jax.grad(lambda logits: COMPILED[kind](logits, targets, nothing)[0].sum()))(spoilt)
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
            slope = (float(loss(logits + 1e-5 * direction)) - float(loss(logits - 1e-5 * direction))) / 2e-5
            np.testing.assert_allclose(slope, (gradient * direction).sum(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_logits_stay_finite(kind):
    targets = encode_fast(np.full((1, 2, 2), 20.0), np.array([[1, 2]], np.int8), (64, 64), 4, 1.25)
    logits = np.asarray(np.random.default_rng(0).normal(size=(1, 2, 16, 16)) * 1e4, np.float32)
    used = np.ones((1, 2), bool)
    compute = jax.jit(jax.value_and_grad(lambda logits: COMPILED[kind](logits, targets, used)[0].sum()))
    value, gradient = compute(logits)
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_an_unknown_loss_is_refused():
    with pytest.raises(ValueError, match="model.loss is 'l1'; it must be one of mse, kl, js"):
        heatmap_loss("l1")
