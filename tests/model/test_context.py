"""The recurrent head against torch's layers written out by their definition in numpy, float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxpose.config import ModelConfig
from jaxpose.model.heads import ContextHead, HeatmapHead, SubPixelConv
from jaxpose.model.pose_net import apply_network, make_network

KEYPOINTS = 3
CHANNELS = 16


def conv_transpose2d(x, weight, bias, padding, output_padding, groups):
    """torch's, stride 2: x (b, c, h, w), weight (c, d / groups, n, n)."""
    b, channels, h, w = x.shape
    each, size = weight.shape[1], weight.shape[2]
    full = np.zeros((b, each * groups, 2 * h + size, 2 * w + size))
    inside = channels // groups
    for c, o, i, j in np.ndindex(channels, each, size, size):
        full[:, c // inside * each + o, i : i + 2 * h : 2, j : j + 2 * w : 2] += x[:, c] * weight[c, o, i, j]
    sides = [2 * (side - 1) - 2 * padding + size + output_padding for side in (h, w)]
    return full[:, :, padding : padding + sides[0], padding : padding + sides[1]] + bias[:, None, None]


def conv2d(x, weight, bias, groups):
    """torch's, stride 2, without padding: x (b, c, h, w), weight (d, c / groups, n, n)."""
    b, channels, h, w = x.shape
    out, inside, size, _ = weight.shape
    found = np.zeros((b, out, h // 2, w // 2)) + bias[:, None, None]
    for d, c, i, j in np.ndindex(out, inside, size, size):
        found[:, d] += x[:, d // (out // groups) * inside + c, i::2, j::2] * weight[d, c, i, j]
    return found


def upsampling_crnn(torch, features, keypoints=KEYPOINTS):
    """Lightning Pose's forward pass before its softmax, of one window (5, b, c, h, w)."""
    frames, b, c, h, w = features.shape
    shuffled = features.reshape(frames, b, c // 4, 2, 2, h, w).transpose(0, 1, 2, 5, 3, 6, 4)
    x = list(shuffled.reshape(frames, b, c // 4, 2 * h, 2 * w))

    def double(name, x):
        return conv_transpose2d(x, torch[f"{name}.weight"], torch[f"{name}.bias"], 1, 1, 1)

    def step(name, x):
        hidden = conv2d(x, torch[f"{name}.0.weight"], torch[f"{name}.0.bias"], keypoints)
        return conv_transpose2d(hidden, torch[f"{name}.1.weight"], torch[f"{name}.1.bias"], 0, 0, keypoints)

    for name in sorted(key.split(".")[0] for key in torch if key.startswith("W_pre") and key.endswith("weight")):
        x = [double(name, frame) for frame in x]
    x_f, x_b = double("W_f", x[0]), double("W_b", x[-1])
    for frame in x[1:]:
        x_f = double("W_f", frame) + step("H_f", x_f)
    for frame in x[-2::-1]:
        x_b = double("W_b", frame) + step("H_b", x_b)
    return (x_f + x_b) / 2


def random_torch_weights(doublings, width, keypoints=KEYPOINTS, seed=0):
    """Tensors of torch's shapes, no bias 0; a second W_pre, which the tool has not, is named W_pre1."""
    rng = np.random.default_rng(seed)
    widths = [CHANNELS // 4, *[width] * doublings]
    shapes = {f"W_pre{i}": (a, b, 3, 3) for i, (a, b) in enumerate(zip(widths[:-1], widths[1:], strict=True))}
    shapes |= {name: (widths[-1], keypoints, 3, 3) for name in ("W_f", "W_b")}
    shapes |= {f"{name}.{i}": (16 * keypoints, 1, 2, 2) for name in ("H_f", "H_b") for i in (0, 1)}
    torch = {f"{name}.weight": rng.normal(size=shape) for name, shape in shapes.items()}
    out = {
        name: shape[0] if name.startswith("H") and name.endswith("0") else shape[1] for name, shape in shapes.items()
    }
    out |= {"H_f.1": keypoints, "H_b.1": keypoints}
    return torch | {f"{name}.bias": rng.normal(size=count) for name, count in out.items()}


def sub_pixel_kernel(weight):
    """A transposed convolution's weight (c, k, 3, 3) as the kernel of `SubPixelConv`, as the docstring says."""
    c, k = weight.shape[:2]
    kernel = np.zeros((2, 2, c, 2, 2, k))
    taps = ((0, 0, 1), (0, 1, 2), (1, 1, 0))  # place, phase, tap
    for row, phase_row, tap_row in taps:
        for column, phase_column, tap_column in taps:
            kernel[row, column, :, phase_row, phase_column] = weight[:, :, tap_row, tap_column]
    return kernel.reshape(2, 2, c, 4 * k)


def load(head, torch):
    """Puts torch's tensors into a head, as the docstrings say."""

    def double(layer, name):
        for param, value in (
            (layer.kernel, sub_pixel_kernel(torch[f"{name}.weight"])),
            (layer.bias, torch[f"{name}.bias"]),
        ):
            assert param[...].shape == value.shape
            param[...] = jnp.asarray(value, param[...].dtype)

    def step(layer, name):
        into, out = (torch[f"{name}.{i}.weight"].reshape(-1, 16, 4) for i in (0, 1))
        values = {
            "into": into.transpose(2, 1, 0),
            "into_bias": torch[f"{name}.0.bias"].reshape(-1, 16).T,
            "out": out.transpose(1, 2, 0),
            "out_bias": torch[f"{name}.1.bias"],
        }
        for field, value in values.items():
            param = getattr(layer, field)
            assert param[...].shape == value.shape
            param[...] = jnp.asarray(value, param[...].dtype)

    for i, layer in enumerate(head.layers):
        double(layer, f"W_pre{i}")
    double(head.forward_input, "W_f")
    double(head.backward_input, "W_b")
    step(head.forward_step, "H_f")
    step(head.backward_step, "H_b")


def make_head(stride=4, width=KEYPOINTS, dtype=jnp.float32, param_dtype=None, keypoints=KEYPOINTS, seed=0):
    param_dtype = param_dtype or dtype
    rng = np.random.default_rng(seed)
    return ContextHead(CHANNELS, keypoints, stride, width, dtype=dtype, param_dtype=param_dtype, rng=rng)


def lively(head):
    """The head with weights of the size that training gives them, so that what it shows is far from uniform."""
    for layer in (*head.layers, head.forward_input, head.backward_input):
        layer.kernel[...] = jnp.asarray(np.asarray(layer.kernel[...]) * 100)
    return head


def loaded_head(stride=4, width=KEYPOINTS):
    """A head in float64 and the tensors in it."""
    torch = random_torch_weights({8: 0, 4: 1, 2: 2}[stride], width)
    head = make_head(stride, width, jnp.float64)
    load(head, torch)
    return head, torch


@functools.cache
def compiled(graphdef):
    return jax.jit(lambda state, x: nnx.merge(graphdef, state)(x))


def run(head, features):
    """The head on features of any type, compiled once for heads of the same form."""
    graphdef, state = nnx.split(head)
    return np.asarray(compiled(graphdef)(state, np.asarray(features, head.forward_step.dtype)))


def random_features(frames, sequences=2, h=2, w=3, seed=1):
    return np.random.default_rng(seed).normal(size=(sequences, frames, h, w, CHANNELS))


@pytest.mark.parametrize(("stride", "width"), [(4, KEYPOINTS), (8, KEYPOINTS), (2, 5)])
def test_it_is_lightning_poses_recurrent_head_on_every_window(stride, width):
    features = random_features(7)
    with jax.enable_x64(True):
        head, torch = loaded_head(stride, width)
        got = run(head, features)
    as_torch = features.transpose(1, 0, 4, 2, 3)
    expected = np.stack([upsampling_crnn(torch, as_torch[i : i + 5]) for i in range(3)], axis=1)
    assert got.shape == expected.shape == (2, 3, KEYPOINTS, 64 // stride, 96 // stride)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def test_a_window_alone_is_that_window_of_a_longer_sequence():
    features = random_features(11, sequences=3)
    with jax.enable_x64(True):
        head, _ = loaded_head()
        whole = run(head, features)
        assert whole.shape[:2] == (3, 7)
        for i in range(7):
            alone = run(head, features[1:2, i : i + 5])
            np.testing.assert_allclose(alone[0, 0], whole[1, i], rtol=1e-10, atol=1e-10 * np.abs(whole).max())


@pytest.mark.slow
@pytest.mark.parametrize("kind_of_head", ["pyramid", "lightning_pose"])
def test_windows_that_share_the_backbone_give_the_numbers_of_windows_alone(kind_of_head):
    """Of the whole network in training: outputs and gradients, float64.

    The norm is that of each frame. The statistics of a batch count a shared frame once, and so differ.
    """
    options = {"kind": "heatmap_context", "head": kind_of_head, "norm": "group", "head_width": 4}
    model = ModelConfig(backbone="resnet10", width=8, **options)
    graphdef, params, statistics = make_network(model, KEYPOINTS, "f64", seed=0)
    rng = np.random.default_rng(0)
    clip = rng.uniform(0, 255, (1, 11, 32, 32, 3))
    windows = np.stack([clip[0, first : first + 5] for first in range(7)])
    weights = rng.normal(size=(7, 2, KEYPOINTS, 8, 8))

    def outputs_and_gradients(frames):
        def weighted(params):
            counted = jnp.ones(frames.shape[:2], bool)
            count = jnp.asarray(float(counted.size))
            ((outputs,), _) = apply_network(graphdef, params, statistics, [jnp.asarray(frames)], [counted], count, True)
            outputs = outputs.reshape(weights.shape)
            return jnp.sum(outputs * weights), outputs

        gradients, outputs = jax.jit(jax.grad(weighted, has_aux=True))(params)
        return outputs, gradients

    with jax.enable_x64(True):
        shared, alone = outputs_and_gradients(clip), outputs_and_gradients(windows)
    for got, expected in zip(jax.tree.leaves(shared), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10 * np.abs(expected).max())
        assert np.abs(expected).max() > 0


def test_a_frame_is_seen_by_its_five_windows_alone():
    features = random_features(11, sequences=2)
    head = lively(make_head())
    before = run(head, features)
    features[0, 5] = np.nan
    after = run(head, features)
    seen = np.asarray(np.isnan(after).any((2, 3, 4)))
    np.testing.assert_array_equal(np.flatnonzero(seen[0]), [1, 2, 3, 4, 5])
    assert not seen[1].any()
    np.testing.assert_array_equal(after[1], before[1])
    # Each of the five counts.
    for frame in range(5):
        features = random_features(5)
        before = run(head, features)
        features[:, frame] = 0
        assert np.abs(run(head, features) - before).max() > 1e-3


def test_turned_time_and_exchanged_directions_turn_the_maps():
    features = random_features(9)
    with jax.enable_x64(True):
        head, torch = loaded_head()
        other = {"f": "b", "b": "f"}
        exchanged = {
            key[:2] + other[key[2]] + key[3:] if key[1] == "_" and key[2] in other else key: value
            for key, value in torch.items()
        }
        turned = lively(make_head(dtype=jnp.float64))
        load(turned, exchanged)
        expected = run(head, features)
        got = run(turned, features[:, ::-1])
        as_before = run(head, features[:, ::-1])
    np.testing.assert_allclose(got[:, ::-1], expected, rtol=0, atol=1e-10 * np.abs(expected).max())
    assert np.abs(as_before[:, ::-1] - expected).max() > 0.1


def test_too_few_frames_are_refused():
    head = make_head()
    with pytest.raises(ValueError, match="4 frames hold no window of 5"):
        head(jnp.asarray(random_features(4), jnp.float32))


@pytest.mark.parametrize(("dtype", "wide"), [("float32", "float32"), ("bfloat16", "float32"), ("float64", "float64")])
@pytest.mark.parametrize("stride", [2, 4, 8])
def test_shapes_types_and_sums_as_lightning_pose_tests_them(stride, dtype, wide):
    """Stride 32 to 2^d: 4 - d doublings after the pixel shuffle; a window is 8, 4 or 2 feature sides per side."""
    doublings = 4 - {2: 1, 4: 2, 8: 3}[stride]
    with jax.enable_x64(dtype == "float64"):
        arithmetic, parameters = jnp.dtype(dtype), jnp.dtype(wide)
        head = make_head(stride, 4, arithmetic, parameters, keypoints=5)
        assert len(head.layers) + 1 == doublings
        assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(head, nnx.Param))} == {parameters}
        single = HeatmapHead(
            CHANNELS, 5, stride, 4, dtype=arithmetic, param_dtype=parameters, rng=np.random.default_rng(0)
        )
        assert len(single.layers) == doublings
        features = jnp.asarray(random_features(6, h=2, w=2), arithmetic)
        (graphdef, state), (graphdef_single, state_single) = nnx.split(head), nnx.split(single)

        @jax.jit
        def maps(state, state_single):
            logits = nnx.merge(graphdef, state)(features), nnx.merge(graphdef_single, state_single)(features[:, 2])
            return [jax.nn.softmax(x, axis=(-2, -1)) for x in logits]

        several, one = maps(state, state_single)
        several, one = np.asarray(several), np.asarray(one)
    assert several.shape == (2, 2, 5, 64 // stride, 64 // stride) and several.dtype == parameters
    assert one.shape == (2, 5, 64 // stride, 64 // stride) and one.dtype == parameters
    np.testing.assert_allclose(several.sum((-2, -1)), 1, rtol=1e-5)
    np.testing.assert_allclose(one.sum((-2, -1)), 1, rtol=1e-5)


def assert_uniform(values, bound):
    """Holds values drawn between -bound and bound."""
    assert np.abs(values).max() <= bound
    assert abs(np.std(values) / (bound / 3**0.5) - 1) < 0.15


def test_initial_weights_are_xaviers_small_in_front_of_the_recurrence():
    head = make_head(width=6, keypoints=7)
    for layer, channels, out in (
        (head.layers[0], CHANNELS // 4, 6), (head.forward_input, 6, 7), (head.backward_input, 6, 7),
    ):  # fmt: skip
        assert_uniform(layer.kernel[...], 0.01 * (6 / (9 * (channels + out))) ** 0.5)
        assert layer.bias is not None and not np.any(layer.bias[...])
    for step in (head.forward_step, head.backward_step):
        # torch: fan in 1 x 4, fan out 16 x 7 x 4, for both layers.
        assert_uniform(step.into[...], (6 / (4 + 16 * 7 * 4)) ** 0.5)
        assert_uniform(step.out[...], (6 / (4 + 16 * 7 * 4)) ** 0.5)
        assert not np.any(step.into_bias[...]) and not np.any(step.out_bias[...])
    # Drawn as the heads for one frame.
    rng = np.random.default_rng(0)
    small = SubPixelConv(CHANNELS // 4, 6, True, dtype=jnp.float32, param_dtype=jnp.float32, rng=rng)
    np.testing.assert_array_equal(small.kernel[...], head.layers[0].kernel[...])


def test_gradients_are_finite_and_match_finite_differences():
    with jax.enable_x64(True):
        graphdef, state = nnx.split(lively(make_head(dtype=jnp.float64, seed=3)))
        params = nnx.to_pure_dict(state)
        features = jnp.asarray(random_features(8, sequences=1))

        @jax.jit
        def loss(params, features):
            maps = jax.nn.softmax(nnx.merge(graphdef, params)(features), axis=(-2, -1))
            return 100 * jnp.square(maps - 1 / 50).sum()

        gradient = jax.tree.map(np.asarray, jax.jit(jax.grad(loss, argnums=(0, 1)))(params, features))
        rng = np.random.default_rng(0)
        direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), gradient)
        given = jax.tree.map(np.asarray, (params, features))
        values, there = jax.tree.leaves(gradient), jax.tree.leaves(direction)
        assert all(np.isfinite(leaf).all() for leaf in values)

        def along(step):
            return float(loss(*jax.tree.map(lambda leaf, d: leaf + step * d, given, direction)))

        slope = (along(1e-6) - along(-1e-6)) / 2e-6
        expected = sum(float((a * b).sum()) for a, b in zip(values, there, strict=True))
        np.testing.assert_allclose(slope, expected, rtol=1e-6)
        assert all(np.any(leaf) for leaf in values)
