"""The pyramid head against torch's convolutions and interpolation in float64, and what it is given by each backbone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from jaxpose.config import ModelConfig
from jaxpose.model.heads import PyramidContext, PyramidHead
from jaxpose.model.pose_net import apply_network, make_network

KEYPOINTS, WIDTH = 3, 5


def reference(head: PyramidHead, levels: list[np.ndarray]) -> np.ndarray:
    """Returns the logits that torch computes, of features (b, h, w, c) with the coarsest first."""
    *hidden, last = head.layers
    x = torch.empty(0)
    for number, layer in enumerate(hidden):
        total = torch.zeros(()).double()
        if number:
            total = total + functional.interpolate(x, scale_factor=2, mode="nearest")
        if number < len(levels):
            features = torch.from_numpy(levels[number].transpose(0, 3, 1, 2).copy())
            total = total + functional.conv2d(features, _kernel(layer.lateral.kernel))
        bias = torch.from_numpy(np.array(layer.bias[...]))
        x = functional.relu(functional.conv2d(total, _kernel(layer.conv.kernel), bias, padding=1))
    return functional.conv2d(x, _kernel(last.kernel)).numpy()


def _kernel(kernel) -> torch.Tensor:
    return torch.from_numpy(np.asarray(kernel[...]).transpose(3, 2, 0, 1).copy())


@pytest.mark.parametrize("stride", [2, 4, 8])
@pytest.mark.parametrize(("channels", "feature_stride"), [((12, 8, 6, 4), 32), ((6,), 16)])
def test_the_maps_are_those_of_torch(channels: tuple[int, ...], feature_stride: int, stride: int) -> None:
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        types = {"dtype": jnp.float64, "param_dtype": jnp.float64}
        head = PyramidHead(channels, KEYPOINTS, stride, WIDTH, feature_stride=feature_stride, rng=rng, **types)
        for layer in head.layers[:-1]:
            layer.bias[...] = jnp.asarray(rng.normal(size=WIDTH))
        levels = [rng.normal(size=(2, 2 << n, 3 << n, count)) for n, count in enumerate(channels)]
        maps = np.asarray(jax.jit(lambda levels: head(head.maps(levels)))(levels))
    assert maps.shape == (2, KEYPOINTS, 2 * feature_stride // stride, 3 * feature_stride // stride)
    expected = reference(head, levels)
    np.testing.assert_allclose(maps, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_the_maps_of_five_frames_are_those_of_torch() -> None:
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        head = PyramidContext(KEYPOINTS, WIDTH, rng=rng, dtype=jnp.float64, param_dtype=jnp.float64)
        head.window.bias[...] = jnp.asarray(rng.normal(size=WIDTH))
        sequences = rng.normal(size=(2, 7, 6, 8, WIDTH))
        maps = np.asarray(jax.jit(lambda sequences: head(sequences))(sequences))
        with pytest.raises(ValueError, match="4 frames hold no window of 5"):
            head(jnp.asarray(sequences[:, :4]))
    assert maps.shape == (2, 3, KEYPOINTS, 6, 8)
    for number in range(3):
        window = sequences[:, number : number + 5].transpose(0, 1, 4, 2, 3).reshape(2, 5 * WIDTH, 6, 8)
        assert head.window.lateral is not None
        x = functional.conv2d(torch.from_numpy(window), _kernel(head.window.lateral.kernel))
        bias = torch.from_numpy(np.array(head.window.bias[...]))
        x = functional.relu(functional.conv2d(x, _kernel(head.window.conv.kernel), bias, padding=1))
        expected = functional.conv2d(x, _kernel(head.last.kernel)).numpy()
        np.testing.assert_allclose(maps[:, number], expected, rtol=0, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("kind", "backbone"),
    [
        pytest.param("heatmap", "resnet10", marks=pytest.mark.slow),
        ("heatmap_context", "resnet10"),
        pytest.param("heatmap_context", "mobilenet_v2", marks=pytest.mark.slow),
    ],
)
def test_every_parameter_has_a_gradient(kind: str, backbone: str) -> None:
    model = ModelConfig(kind=kind, backbone=backbone, width=8, head_width=WIDTH, heatmap_stride=2)
    graphdef, params, statistics = make_network(model, KEYPOINTS, "f32", seed=0)
    frames = 5 if kind == "heatmap_context" else 1
    pictures = jnp.asarray(np.random.default_rng(0).uniform(0, 255, (2, frames, 64, 64, 3)), jnp.float32)

    def loss(params: dict) -> jax.Array:
        counted, count = [jnp.ones((2, frames), bool)], jnp.float32(2 * frames)
        outputs, _ = apply_network(graphdef, params, statistics, [pictures], counted, count, True)
        # Not symmetric, as a softmax's gradient by a mean would be 0.
        return jnp.sum(jax.nn.softmax(outputs[0], axis=(-2, -1)) * jnp.arange(32.0)[None, None, None, None, None])

    for path, leaf in jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(params)):
        assert np.abs(np.asarray(leaf)).max() > 0, path
