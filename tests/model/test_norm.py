"""Normalisation against numpy in float64, over any number of devices, with empty slots and large means."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax._src.interpreters.partial_eval import DynamicJaxprTracer
from jax.sharding import PartitionSpec as P

from jaxpose.cluster.mesh import make_mesh
from jaxpose.model.layers import Norm

CHANNELS, SIDE = 6, 3
DECAY, EPSILON = 0.9, 1e-5


def example(samples: int, channels: int = CHANNELS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(rng.normal(size=channels), rng.uniform(0.5, 2, channels), (samples, SIDE, SIDE, channels)),
        "given": rng.normal(size=(samples, SIDE, SIDE, channels)),
        "scale": rng.normal(size=channels),
        "bias": rng.normal(size=channels),
        "mean": rng.normal(size=channels),
        "var": rng.uniform(0.5, 2, channels),
    }


def norm_of(kind: str, values: dict[str, Any], dtype: Any) -> Norm:
    norm = Norm(len(values["scale"]), kind, dtype=dtype, param_dtype=dtype)
    norm.scale[...], norm.bias[...] = jnp.asarray(values["scale"], dtype), jnp.asarray(values["bias"], dtype)
    if kind != "group":
        norm.mean[...], norm.var[...] = jnp.asarray(values["mean"], dtype), jnp.asarray(values["var"], dtype)
    return norm


def run(
    kind: str, values: dict[str, np.ndarray], valid: np.ndarray, devices: int = 1, dtype: Any = jnp.float64,
    train: bool = True, used: np.ndarray | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Output, moved statistics and gradients of sum(given * output) over the used samples, as the step takes them.

    Used are the valid ones, unless told.
    """

    def work(arrays: dict[str, jax.Array], valid: jax.Array, used: jax.Array) -> dict[str, jax.Array]:
        count = jax.lax.psum(jnp.sum(valid, dtype=dtype), "data")
        fixed = {name: arrays[name] for name in ("mean", "var")}

        def loss(moving: dict[str, jax.Array]) -> tuple[jax.Array, tuple]:
            norm = norm_of(kind, moving | fixed, dtype)
            y = norm(moving["x"], valid, count, train)
            kept = jnp.where(used[:, None, None, None], y * arrays["given"], 0)
            return jnp.sum(kept), (y, nnx.to_pure_dict(nnx.state(norm, nnx.BatchStat)))

        shared = {name: jax.lax.pcast(arrays[name], "data", to="varying") for name in ("scale", "bias")}
        gradients, (y, statistics) = jax.grad(loss, has_aux=True)(shared | {"x": arrays["x"]})
        sums = {name: jax.lax.psum(gradients[name], "data") for name in shared}
        return {"y": y, "dx": gradients["x"], **{f"d{name}": value for name, value in sums.items()}, **statistics}

    kept = () if kind == "group" else ("mean", "var")
    # With local norm each device has statistics of its own: they come back one after the other.
    stored = P("data") if kind == "shard" else P()
    specs = {"y": P("data"), "dx": P("data"), "dscale": P(), "dbias": P(), **dict.fromkeys(kept, stored)}
    lies = {name: P("data") if name in ("x", "given") else P() for name in values}
    step = jax.shard_map(
        work, mesh=make_mesh(jax.devices()[:devices]), in_specs=(lies, P("data"), P("data")), out_specs=specs
    )
    arrays = {name: jnp.asarray(value, dtype) for name, value in values.items()}
    masks = jnp.asarray(valid), jnp.asarray(valid if used is None else used)
    return {name: np.asarray(value) for name, value in jax.jit(step)(arrays, *masks).items()}


def reference(values: dict[str, np.ndarray], valid: np.ndarray) -> dict[str, np.ndarray]:
    """Batch normalisation in numpy over the valid samples; its gradient by jax from the plain formula."""

    def plain(x: Any, scale: Any, bias: Any, xp: Any) -> Any:
        mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
        shape = (1, 1, 1, CHANNELS)
        return (x - mean.reshape(shape)) / xp.sqrt(var.reshape(shape) + EPSILON) * scale.reshape(shape) + bias.reshape(
            shape
        )

    x = values["x"][valid]
    cells = x.size // CHANNELS
    y, dx = np.full_like(values["x"], np.nan), np.zeros_like(values["x"])
    y[valid] = plain(x, values["scale"], values["bias"], np)
    gradient = jax.jit(jax.grad(lambda *p: jnp.sum(plain(*p, jnp) * values["given"][valid]), (0, 1, 2)))
    gradients = gradient(x, values["scale"], values["bias"])
    dx[valid] = gradients[0]
    return {
        "y": y,
        "dx": dx,
        "dscale": np.asarray(gradients[1]),
        "dbias": np.asarray(gradients[2]),
        "mean": DECAY * values["mean"] + (1 - DECAY) * x.mean((0, 1, 2)),
        "var": DECAY * values["var"] + (1 - DECAY) * x.var((0, 1, 2)) * cells / (cells - 1),
    }


def check(got: dict[str, np.ndarray], expected: dict[str, np.ndarray], valid: np.ndarray, tolerance: float) -> None:
    assert got.keys() <= expected.keys()
    for name, value in got.items():
        kept = valid if name in ("y", "dx") else slice(None)
        scale = np.abs(expected[name][kept]).max()
        np.testing.assert_allclose(value[kept], expected[name][kept], rtol=0, atol=tolerance * scale, err_msg=name)
    # Nothing flows into an empty slot.
    assert not got["dx"][~valid].any()


# Five valid samples that lie unevenly: with 3 devices two, three and none; with 8 most have none.
VALID = np.zeros(24, bool)
VALID[[1, 4, 9, 11, 14]] = True


# With one device and with one that has no valid sample; the rest with pytest -m full.
@pytest.mark.parametrize("devices", [1, 3, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 8))])
def test_sync_is_batch_norm_over_the_valid_samples_of_all_devices(devices: int) -> None:
    with jax.enable_x64(True):
        values = example(24)
        expected = reference(values, VALID)
        # What lies in an empty slot is any picture.
        values["x"][~VALID] = np.where(np.arange(19) % 2, -1e9, 1e9)[:, None, None, None]
        check(run("sync", values, VALID, devices), expected, VALID, 1e-12)


@pytest.mark.parametrize("devices", [1, 4, pytest.param(2, marks=pytest.mark.full)])
def test_a_copy_reaches_no_statistic_but_its_gradient_does_all_that_of_the_original_does(devices: int) -> None:
    with jax.enable_x64(True):
        values = example(8)
        original, copy = [1, 2], [4, 7]
        values["x"][copy] = values["x"][original]
        counted = np.ones(8, bool)
        counted[copy] = False
        got = run("sync", values, counted, devices, used=np.ones(8, bool))
        once = values | {"given": values["given"].copy()}
        once["given"][original] += values["given"][copy]
        expected = reference(once, counted)
        np.testing.assert_allclose(got["y"][copy], expected["y"][original], atol=1e-12)
        got["dx"] = got["dx"].copy()
        got["dx"][original] += got["dx"][copy]
        got["dx"][copy] = 0
        check(got, expected, counted, 1e-12)


def test_sync_of_one_sample() -> None:
    with jax.enable_x64(True):
        values, valid = example(2), np.array([False, True])
        check(run("sync", values, valid, 2), reference(values, valid), valid, 1e-11)


def test_a_micro_batch_without_samples_moves_nothing() -> None:
    values, valid = example(2), np.zeros(2, bool)
    got = run("sync", values, valid, 2, jnp.float32)
    np.testing.assert_array_equal(got["mean"], np.float32(values["mean"]))
    np.testing.assert_array_equal(got["var"], np.float32(values["var"]))
    assert not any(got[name].any() for name in ("dx", "dscale", "dbias"))


@pytest.mark.parametrize("deviation", [1.0, 0.01])
def test_a_large_mean_eats_no_digits_once_it_is_known(deviation: float) -> None:
    values, valid = example(8), np.ones(8, bool)
    values["x"] = np.float32(1000 + deviation * np.random.default_rng(2).normal(size=values["x"].shape))
    # What the running mean comes to after a while.
    values["mean"] = np.full(CHANNELS, 1000.0)
    with jax.enable_x64(True):
        expected = reference(values | {"x": np.float64(values["x"])}, valid)
    # In units of the data's own rounding: 1000 in float32 has steps of 6e-5.
    check(run("sync", values, valid, 2, jnp.float32), expected, valid, 2e-5)


def test_the_running_mean_finds_a_large_mean() -> None:
    values = example(8)
    x = np.float32(1000 + np.random.default_rng(2).normal(size=values["x"].shape))
    values |= {"scale": np.ones(CHANNELS), "bias": np.zeros(CHANNELS), "mean": np.zeros(CHANNELS)}
    graphdef, params, statistics = nnx.split(norm_of("shard", values, jnp.float32), nnx.Param, nnx.BatchStat)

    @jax.jit
    def step(statistics: Any) -> tuple[jax.Array, Any]:
        norm = nnx.merge(graphdef, params, statistics)
        y = norm(jnp.asarray(x), jnp.ones(8, bool), jnp.float32(8), True)
        return y, nnx.state(norm, nnx.BatchStat)

    centred = np.float64(x) - np.float64(x).mean((0, 1, 2))
    expected = centred / np.sqrt(np.square(centred).mean((0, 1, 2)) + EPSILON)
    errors = []
    for _ in range(61):
        y, statistics = step(statistics)
        errors.append(np.abs(y - expected).max())
    # One pass over squares of 1000: what is lost at first (a few digits, bounded) comes back with the running mean.
    assert errors[0] < 1 and errors[20] < 1e-2 and errors[60] < 1e-5


def test_local_statistics_are_each_devices_own() -> None:
    with jax.enable_x64(True):
        values = example(12)
        valid = np.array([1, 0, 1, 1] + [0] * 4 + [1, 1, 1, 1], bool)
        got = run("shard", values, valid, 3)
        for device, rows in enumerate((slice(0, 4), slice(8, 12))):
            part = values | {"x": values["x"][rows], "given": values["given"][rows]}
            expected = reference(part, valid[rows])
            here = slice(2 * device * CHANNELS, (2 * device + 1) * CHANNELS)
            got_here = {name: got[name][rows] for name in ("y", "dx")} | {n: got[n][here] for n in ("mean", "var")}
            check(got_here, expected, valid[rows], 1e-12)
        # The device without a valid sample.
        np.testing.assert_array_equal(got["mean"][CHANNELS : 2 * CHANNELS], values["mean"])
        np.testing.assert_array_equal(got["var"][CHANNELS : 2 * CHANNELS], values["var"])
        assert all(np.isfinite(value).all() for value in got.values())


@pytest.mark.parametrize(("kind", "train"), [("frozen", True), ("frozen", False), ("sync", False), ("shard", False)])
def test_stored_statistics_are_used_and_stay(kind: str, train: bool) -> None:
    with jax.enable_x64(True):
        values, valid = example(4), np.array([True, False, True, True])
        got = run(kind, values, valid, 2, train=train)
        deviation = np.sqrt(values["var"] + EPSILON)
        given = np.where(valid[:, None, None, None], values["given"], 0)
        normalised = (values["x"] - values["mean"]) / deviation
        expected = {
            "y": normalised * values["scale"] + values["bias"],
            "dx": given * values["scale"] / deviation,
            "dscale": (given * normalised).sum((0, 1, 2)),
            "dbias": given.sum((0, 1, 2)),
        }
        assert got.keys() - expected.keys() == {"mean", "var"}
        for stored in ("mean", "var"):
            np.testing.assert_array_equal(got[stored].reshape(-1, CHANNELS)[0], values[stored])
        check({name: got[name] for name in expected}, expected, valid, 1e-13)


@pytest.mark.parametrize(("channels", "groups"), [(48, 3), pytest.param(40, 2, marks=pytest.mark.full)])
def test_group_is_of_one_sample(channels: int, groups: int) -> None:
    with jax.enable_x64(True):
        values, valid = example(3, channels), np.array([True, False, True])
        shape = (3, SIDE, SIDE, groups, channels // groups)

        def plain(x: Any, scale: Any, bias: Any, xp: Any) -> Any:
            x = x.reshape(shape)
            mean, var = x.mean((1, 2, 4), keepdims=True), x.var((1, 2, 4), keepdims=True)
            spread = (1, 1, 1, channels)
            normalised = ((x - mean) / xp.sqrt(var + EPSILON)).reshape(3, SIDE, SIDE, channels)
            return normalised * scale.reshape(spread) + bias.reshape(spread)

        inputs = [values[name] for name in ("x", "scale", "bias")]
        given = np.where(valid[:, None, None, None], values["given"], 0)
        gradients = jax.jit(jax.grad(lambda *p: jnp.sum(plain(*p, jnp) * given), (0, 1, 2)))(*inputs)
        expected = {"y": plain(*inputs, np), **dict(zip(("dx", "dscale", "dbias"), gradients, strict=True))}
        expected = {name: np.asarray(value) for name, value in expected.items()}
        values["x"][1] = 1e3
        check(run("group", values, valid), expected, valid, 1e-12)


def test_group_has_no_statistics_and_16_channels_a_group() -> None:
    norm = Norm(256, "group", dtype=jnp.float32, param_dtype=jnp.float32)
    assert norm.groups == 16
    assert not jax.tree.leaves(nnx.state(norm, nnx.BatchStat))


def test_half_precision_keeps_statistics_in_float32() -> None:
    values, valid = example(8), np.ones(8, bool)
    x = np.asarray(values["x"], jnp.bfloat16)

    @jax.jit
    def moved(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        norm = Norm(CHANNELS, "shard", dtype=jnp.bfloat16, param_dtype=jnp.float32)
        y = norm(x, jnp.asarray(valid), jnp.float32(8), True)
        return y, norm.mean[...], norm.var[...]

    y, mean, var = moved(x)
    assert y.dtype == jnp.bfloat16 and mean.dtype == var.dtype == jnp.float32
    expected = 0.1 * np.asarray(x, np.float64).mean((0, 1, 2))
    np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-6)


def test_statistics_are_replaced_without_a_description_of_their_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    """flax asks a tracer for its sharding if an index is given; JAX then searches the program for an error message."""
    graphdef, weights = nnx.split(Norm(CHANNELS, "shard", dtype=jnp.float32, param_dtype=jnp.float32))
    described: list[Any] = []

    def forward(weights: nnx.State, x: jax.Array) -> tuple[jax.Array, nnx.State]:
        norm = nnx.merge(graphdef, weights)
        y = norm(x, jnp.ones(len(x), bool), jnp.float32(len(x)), train=True)
        return y, nnx.state(norm, nnx.BatchStat)

    monkeypatch.setattr(DynamicJaxprTracer, "_origin_msg", lambda tracer: described.append(tracer) or "")
    y, statistics = jax.make_jaxpr(forward, return_shape=True)(weights, jnp.zeros((2, SIDE, SIDE, CHANNELS)))[1]
    assert y.shape == (2, SIDE, SIDE, CHANNELS) and len(jax.tree.leaves(statistics)) == 2 and not described
