"""The network against torchvision's published structure and against the same arithmetic in numpy and scipy, float64."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
import scipy.special
from numpy.lib.stride_tricks import sliding_window_view

from jaxpose.config import ModelConfig
from jaxpose.model import layers
from jaxpose.model.heads import SubPixelConv, pixel_shuffle
from jaxpose.model.layers import Conv, convolve, max_pool
from jaxpose.model.pose_net import apply_network, make_network

# Parameters of torchvision's networks without the classifier; resnet10 is its ResNet(BasicBlock, [1, 1, 1, 1]).
PUBLISHED = {
    "resnet10": 4_905_792,
    "resnet18": 11_176_512,
    "resnet34": 21_284_672,
    "resnet50": 23_508_032,
    "resnet101": 42_500_160,
    "resnet152": 58_143_808,
}
BLOCKS = {
    "resnet10": (1, 1, 1, 1),
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
# torch's name of a parameter, and the order of axes that makes its shape.
TORCH_NAME = {"kernel": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}


def torchvision_shapes(name: str, width: int = 64) -> dict[str, tuple[int, ...]]:
    """Names and shapes as He et al. 2016 and torchvision have them."""
    shapes: dict[str, tuple[int, ...]] = {}

    def add(conv: str, norm: str, out: int, inside: int, size: int) -> None:
        shapes[f"{conv}.weight"] = (out, inside, size, size)
        for field in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{field}"] = (out,)

    add("conv1", "bn1", width, 3, 7)
    inside = width
    for stage, count in enumerate(BLOCKS[name]):
        channels = width * 2**stage
        for i in range(count):
            block = f"layer{stage + 1}.{i}"
            if name in ("resnet10", "resnet18", "resnet34"):
                out = channels
                add(f"{block}.conv1", f"{block}.bn1", channels, inside, 3)
                add(f"{block}.conv2", f"{block}.bn2", channels, channels, 3)
            else:
                out = 4 * channels
                add(f"{block}.conv1", f"{block}.bn1", channels, inside, 1)
                add(f"{block}.conv2", f"{block}.bn2", channels, channels, 3)
                add(f"{block}.conv3", f"{block}.bn3", out, channels, 1)
            if i == 0 and (stage > 0 or inside != out):
                add(f"{block}.downsample.0", f"{block}.downsample.1", out, inside, 1)
            inside = out
    return shapes


def flat(tree: dict) -> dict[str, Any]:
    """Leaves by dotted path, with torch's last name and torch's order of axes."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        *parts, last = [str(entry.key) for entry in path]
        array = np.asarray(leaf)
        found[".".join([*parts, TORCH_NAME[last]])] = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array
    return found


# The deepest have millions of weights to draw.
DEEPEST = [pytest.param(name, marks=pytest.mark.slow) for name in ("resnet101", "resnet152")]


@pytest.mark.parametrize("name", ["resnet10", "resnet18", "resnet34", "resnet50", *DEEPEST])
def test_names_and_shapes_are_torchvisions(name: str) -> None:
    _, params, statistics = make_network(ModelConfig(backbone=name, norm="sync"), 3, "f32", seed=0)
    assert set(params) == {"backbone", "head"} and set(statistics) == {"backbone"}
    assert sum(leaf.size for leaf in jax.tree.leaves(params["backbone"])) == PUBLISHED[name]
    found = flat(params["backbone"]) | flat(statistics["backbone"])
    assert {key: value.shape for key, value in found.items()} == torchvision_shapes(name)
    # He et al. 2015, fan out: normal with variance 2 / (side^2 channels out), torchvision's own choice.
    for key, value in found.items():
        if value.ndim == 4:
            out, _, side, _ = value.shape
            expected = 2 / (side * side * out)
            assert abs(value.mean()) < 5 * np.sqrt(expected / value.size), key
            assert abs(value.var() / expected - 1) < 5 * np.sqrt(2 / value.size), key
        else:
            one = key.endswith(("weight", "running_var"))
            assert (value == one).all(), key


def test_the_seed_decides_the_weights() -> None:
    def weights(seed: int, precision: str = "f32") -> np.ndarray:
        params = make_network(ModelConfig(backbone="resnet18", width=4), 2, precision, seed)[1]
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])

    np.testing.assert_array_equal(weights(1), weights(1))
    assert (weights(1) != weights(2)).mean() > 0.9
    # The same numbers in every precision, but for their rounding.
    np.testing.assert_array_equal(weights(1, "bf16"), weights(1))
    with jax.enable_x64(True):
        np.testing.assert_array_equal(weights(1, "f64").astype(np.float32), weights(1))


def reference_conv(x: np.ndarray, kernel: np.ndarray, stride: int, padding: tuple[int, int]) -> np.ndarray:
    """scipy's correlation of (b, h, w, c) with (n, n, c, d)."""
    padded = np.pad(x, ((0, 0), padding, padding, (0, 0)))
    maps = [
        [
            sum(scipy.signal.correlate(frame[..., c], kernel[..., c, d], "valid") for c in range(x.shape[3]))
            for d in range(kernel.shape[3])
        ]
        for frame in padded
    ]
    return np.moveaxis(np.array(maps), 1, -1)[:, ::stride, ::stride]


def take_form_of(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes in the form of a platform, on the CPU."""

    def in_form(*arrays: jax.Array, cpu: Callable, default: Callable) -> Any:
        return (cpu if platform == "cpu" else default)(*arrays)

    monkeypatch.setattr(layers.lax, "platform_dependent", in_form)


@pytest.mark.parametrize(("platform", "side_by_side"), [("cpu", False), ("cpu", True), ("gpu", False)])
def test_convolution_and_its_gradients(platform: str, side_by_side: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against scipy; the gradients against the definition, which is linear in both factors: one tap after the other."""
    take_form_of(platform, monkeypatch)
    # With several cores, samples with large maps lie side by side; all maps are large here.
    monkeypatch.setattr(layers, "arithmetic_threads", lambda: 1 + side_by_side)
    monkeypatch.setattr(layers, "_WORTHWHILE_BYTES", 0)
    cases = [
        (size, stride, sides, (size // 2, size // 2) if size != 2 else (0, 1))
        for size in (1, 2, 3, 7)
        for stride in (1, 2)
        for sides in ((7, 10), (8, 7))
    ]
    rng = np.random.default_rng(0)
    inputs = [(rng.normal(size=(2, *sides, 3)), rng.normal(size=(n, n, 3, 2))) for n, _, sides, _ in cases]
    expected = [reference_conv(x, k, stride, pad) for (x, k), (_, stride, _, pad) in zip(inputs, cases, strict=True)]
    given = [rng.normal(size=y.shape) for y in expected]

    def everything(inputs: list, given: list) -> list:
        found = []
        for (x, kernel), g, (_, stride, _, padding) in zip(inputs, given, cases, strict=True):
            y, back = jax.vjp(lambda x, k, s=stride, p=padding: convolve(x, k, s, p), x, kernel)
            found.append((y, *back(g)))
        return found

    with jax.enable_x64(True):
        found = jax.tree.map(np.asarray, jax.jit(everything)(inputs, given))
    for case, (x, kernel), g, y, (got, dx, dkernel) in zip(cases, inputs, given, expected, found, strict=True):
        size, stride, _, (before, after) = case
        np.testing.assert_allclose(got, y, rtol=0, atol=1e-12, err_msg=str(case))
        padded = np.pad(x, ((0, 0), (before, after), (before, after), (0, 0)))
        d_padded, d_kernel = np.zeros_like(padded), np.zeros_like(kernel)
        for i, j in np.ndindex(size, size):
            seen = np.s_[:, i : i + stride * g.shape[1] : stride, j : j + stride * g.shape[2] : stride]
            d_kernel[i, j] = np.einsum("bhwc,bhwd->cd", padded[seen][:, : g.shape[1], : g.shape[2]], g)
            d_padded[seen] += g @ kernel[i, j].T
        inside = np.s_[:, before : before + x.shape[1], before : before + x.shape[2]]
        np.testing.assert_allclose(dx, d_padded[inside], rtol=0, atol=1e-12, err_msg=str(case))
        np.testing.assert_allclose(dkernel, d_kernel, rtol=0, atol=1e-12, err_msg=str(case))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [2, 3, 7])
def test_samples_side_by_side_give_the_same_bits(size: int, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 15, 22, 16)).astype(np.float32)
    kernel = rng.normal(size=(size, size, 16, 64)).astype(np.float32)
    padding = (0, 1) if size == 2 else (size // 2, size // 2)
    monkeypatch.setattr(layers, "_WORTHWHILE_BYTES", 0)

    def lower(cores: int) -> jax.stages.Lowered:
        monkeypatch.setattr(layers, "arithmetic_threads", lambda: cores)
        return jax.jit(lambda *given: jax.vjp(lambda x, k: convolve(x, k, stride, padding), *given)[0]).lower(x, kernel)

    alone, side_by_side = lower(1), lower(2)
    assert alone.as_text() != side_by_side.as_text()
    np.testing.assert_array_equal(alone.compile()(x, kernel), side_by_side.compile()(x, kernel))


@pytest.mark.parametrize("stride", [1, 2])
def test_gradient_of_a_large_convolution(stride: int) -> None:
    """The gradient of a kernel is a sum over groups of rows, the last of which is smaller; against XLA's gradient."""
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, 33 * stride, 70 * stride, 3)), rng.normal(size=(3, 3, 3, 64))
    given = rng.normal(size=(2, 33, 70, 64))

    def plain(x: jax.Array, kernel: jax.Array) -> jax.Array:
        axes = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (stride, stride), [(1, 1)] * 2, dimension_numbers=axes)

    def gradients(function: Callable) -> list[np.ndarray]:
        found = jax.jit(lambda *arrays: jax.vjp(function, *arrays[:2])[1](arrays[2]))(x, kernel, given)
        return [np.asarray(gradient) for gradient in found]

    with jax.enable_x64(True):
        for found, expected in zip(
            gradients(lambda x, kernel: convolve(x, kernel, stride, (1, 1))), gradients(plain), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("sides", [(7, 8), (1, 9)])
def test_max_pool(sides: tuple[int, int], platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_form_of(platform, monkeypatch)
    # Below zero, so that a padding of 0 would be the maximum; all different, so that the gradient is certain.
    x = -np.random.default_rng(0).permutation(2 * sides[0] * sides[1] * 3).reshape(2, *sides, 3).astype(np.float64) - 1
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::2, ::2]
    expected = windows.max((-1, -2))
    with jax.enable_x64(True):
        pooled, back = jax.jit(lambda x: (max_pool(x), jax.grad(lambda x: jnp.sum(max_pool(x)))(x)))(x)
        np.testing.assert_array_equal(pooled, expected)
    times = np.array([np.sum(expected[b, ..., c] == x[b, i, j, c]) for b, i, j, c in np.ndindex(x.shape)])
    np.testing.assert_array_equal(back, times.reshape(x.shape))


def test_pixel_shuffle_has_torchs_order() -> None:
    """torch.nn.PixelShuffle(2): output[c, 2 h + i, 2 w + j] = input[4 c + 2 i + j, h, w]."""
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 8)).astype(np.float32)
    expected = np.empty((2, 6, 10, 2), np.float32)
    for c, i, j in np.ndindex(2, 2, 2):
        expected[:, i::2, j::2, c] = x[..., 4 * c + 2 * i + j]
    np.testing.assert_array_equal(jax.jit(pixel_shuffle)(x), expected)


def test_sub_pixel_convolution_can_be_any_transposed_convolution() -> None:
    """A transposed convolution of 3x3, stride 2, padding 1, output padding 1: zeros put between the cells (scipy)."""
    rng = np.random.default_rng(0)
    x, weight, bias = rng.normal(size=(2, 4, 5, 3)), rng.normal(size=(3, 3, 3, 2)), rng.normal(size=2)
    spread = np.zeros((2, 7, 9, 3))
    spread[:, ::2, ::2] = x
    maps = [
        [
            sum(scipy.signal.convolve(frame[..., c], weight[..., c, d], "full") for c in range(3)) + bias[d]
            for d in range(2)
        ]
        for frame in spread
    ]
    expected = np.moveaxis(np.array(maps), 1, -1)[:, 1:, 1:]
    # Even outputs see the tap 1 of their cell; odd ones the tap 2 of it and the tap 0 of the next.
    taps = {0: {0: 1}, 1: {0: 2, 1: 0}}
    kernel = np.zeros((2, 2, 3, 2, 2, 2))
    for (i, rows), (j, columns) in [(a, b) for a in taps.items() for b in taps.items()]:
        for (y, tap_y), (z, tap_z) in [(a, b) for a in rows.items() for b in columns.items()]:
            kernel[y, z, :, i, j] = weight[tap_y, tap_z]
    with jax.enable_x64(True):
        layer = SubPixelConv(3, 2, True, dtype=jnp.float64, param_dtype=jnp.float64, rng=rng)
        assert layer.kernel[...].shape == (2, 2, 3, 8)
        layer.kernel[...], layer.bias[...] = jnp.asarray(kernel.reshape(2, 2, 3, 8)), jnp.asarray(bias)
        np.testing.assert_allclose(jax.jit(lambda x: layer(x))(x), expected, rtol=0, atol=1e-12)


def reference_features(weights: dict[str, np.ndarray], x: np.ndarray, name: str) -> np.ndarray:
    """Features (b, h / 32, w / 32, c) by the published network with the stored statistics, numpy float64."""

    def conv(x: np.ndarray, key: str, stride: int = 1) -> np.ndarray:
        kernel = weights[f"{key}.weight"].transpose(2, 3, 1, 0)
        pad, side = kernel.shape[0] // 2, kernel.shape[0]
        padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        windows = sliding_window_view(padded, (side, side), axis=(1, 2))[:, ::stride, ::stride]
        return np.einsum("bhwcij,ijcd->bhwd", windows, kernel, optimize=True)

    def norm(x: np.ndarray, key: str) -> np.ndarray:
        mean, var, scale, bias = (weights[f"{key}.{f}"] for f in ("running_mean", "running_var", "weight", "bias"))
        return (x - mean) / np.sqrt(var + 1e-5) * scale + bias

    def relu(x: np.ndarray) -> np.ndarray:
        return np.maximum(x, 0)

    x = relu(norm(conv(x, "conv1", 2), "bn1"))
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    x = sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::2, ::2].max((-1, -2))
    for stage, count in enumerate(BLOCKS[name]):
        for i in range(count):
            block, stride = f"layer{stage + 1}.{i}", 2 if stage and not i else 1
            shortcut = x
            if f"{block}.downsample.0.weight" in weights:
                shortcut = norm(conv(x, f"{block}.downsample.0", stride), f"{block}.downsample.1")
            if f"{block}.conv3.weight" in weights:
                # torchvision's version 1.5: the step is in the 3x3 convolution.
                x = relu(norm(conv(x, f"{block}.conv1"), f"{block}.bn1"))
                x = relu(norm(conv(x, f"{block}.conv2", stride), f"{block}.bn2"))
                x = norm(conv(x, f"{block}.conv3"), f"{block}.bn3")
            else:
                x = relu(norm(conv(x, f"{block}.conv1", stride), f"{block}.bn1"))
                x = norm(conv(x, f"{block}.conv2"), f"{block}.bn2")
            x = relu(x + shortcut)
    return x


def reference_head(layers: dict, x: np.ndarray) -> np.ndarray:
    """Maps (b, k, h, w) of features: torch's pixel shuffle, then 2x2 convolutions whose phases are interleaved."""
    b, h, w, c = x.shape
    x = np.stack([x[..., i::4] for i in range(4)], -1).reshape(b, h, w, c // 4, 2, 2)
    x = x.transpose(0, 1, 4, 2, 5, 3).reshape(b, 2 * h, 2 * w, c // 4)
    for i in sorted(layers):
        kernel = np.asarray(layers[i]["kernel"])
        padded = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))
        windows = sliding_window_view(padded, (2, 2), axis=(1, 2))
        phases = np.einsum("bhwcij,ijcd->bhwd", windows, kernel)
        channels = kernel.shape[3] // 4
        out = np.empty((b, 2 * x.shape[1], 2 * x.shape[2], channels))
        for dy, dx in np.ndindex(2, 2):
            phase = 2 * dy + dx
            out[:, dy::2, dx::2] = phases[..., phase * channels : (phase + 1) * channels]
        x = out + np.asarray(layers[i]["bias"]) if "bias" in layers[i] else out
    return x.transpose(0, 3, 1, 2)


@pytest.mark.parametrize(("name", "stride"), [("resnet18", 4), ("resnet50", 2)])
def test_the_whole_network_is_the_published_one(name: str, stride: int) -> None:
    rng = np.random.default_rng(0)
    frames = rng.uniform(0, 255, (2, 64, 96, 3))
    with jax.enable_x64(True):
        graphdef, params, statistics = make_network(
            ModelConfig(backbone=name, width=4, head="lightning_pose", heatmap_stride=stride, head_width=5),
            3,
            "f64",
            seed=0,
        )

        @jax.jit
        def logits_of(params: dict, statistics: dict) -> jax.Array:
            sequences, counted = [jnp.asarray(frames)[:, None]], [jnp.ones((2, 1), bool)]
            outputs, _ = apply_network(graphdef, params, statistics, sequences, counted, jnp.float64(2), False)
            return outputs[0][:, 0, 0]

        # At the start the maps are nearly uniform.
        first = scipy.special.softmax(logits_of(params, statistics), axis=(-2, -1))
        assert first.shape == (2, 3, 64 // stride, 96 // stride)
        assert first.max() * first[0, 0].size < 2

        # Any weights, so that no term is 0 and no scale 1.
        params, statistics = jax.tree.map(
            lambda leaf: np.asarray(leaf) + 0.2 * rng.uniform(0.5, 1, leaf.shape), (params, statistics)
        )
        got = np.asarray(logits_of(params, statistics))
    weights = flat(params["backbone"]) | flat(statistics["backbone"])
    pixels = (frames / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    expected = reference_head(params["head"]["layers"], reference_features(weights, pixels, name))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("precision", ["f32", "bf16", "f64"])
@pytest.mark.parametrize("stride", [2, 4, 8])
def test_shapes_and_types(stride: int, precision: str) -> None:
    with jax.enable_x64(precision == "f64"):
        wide = jnp.float64 if precision == "f64" else jnp.float32
        model = ModelConfig(backbone="resnet18", width=4, heatmap_stride=stride)
        graphdef, params, statistics = make_network(model, 5, precision, seed=0)
        assert {leaf.dtype for leaf in jax.tree.leaves((params, statistics))} == {jnp.dtype(wide)}
        for height, width in ((64, 96), (32, 32)):
            outputs, moved = jax.eval_shape(
                lambda frames: apply_network(
                    graphdef,
                    params,
                    statistics,
                    [frames],
                    [jnp.ones((2, 1), bool)],
                    wide(2),
                    False,  # noqa: B023
                ),
                jax.ShapeDtypeStruct((2, 1, height, width, 3), wide),
            )
            logits = outputs[0]
            assert logits.shape == (2, 1, 1, 5, height // stride, width // stride) and logits.dtype == wide
            assert jax.tree.map(lambda leaf: leaf.shape, moved) == jax.tree.map(lambda leaf: leaf.shape, statistics)


def test_half_precision_computes_in_half_precision() -> None:
    conv = Conv(3, 4, 3, dtype=jnp.bfloat16, param_dtype=jnp.float32, rng=np.random.default_rng(0))
    assert conv.kernel[...].dtype == jnp.float32
    assert jax.eval_shape(conv, jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.bfloat16)).dtype == jnp.bfloat16
