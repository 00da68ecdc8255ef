"""The deconvolution head against torch's transposed convolutions, and the dilated last stage against torch's layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch.nn import functional

from jaxpose.config import ModelConfig
from jaxpose.model.deconv import DeconvHead
from jaxpose.model.layers import EPSILON
from jaxpose.model.pose_net import apply_network, make_network
from jaxpose.model.resnet import ResNet
from tests.model.test_model import flat

KEYPOINTS, WIDTH, CHANNELS = 3, 5, 6


@pytest.mark.parametrize(("feature_stride", "stride"), [(16, 8), (32, 8), (32, 4)])
def test_maps_and_gradients_are_those_of_torch(feature_stride: int, stride: int) -> None:
    rng = np.random.default_rng(0)
    given = rng.normal(size=(2, 3, 4, CHANNELS))
    with jax.enable_x64(True):
        types = {"dtype": jnp.float64, "param_dtype": jnp.float64}
        head = DeconvHead(CHANNELS, KEYPOINTS, stride, WIDTH, feature_stride=feature_stride, rng=rng, **types)
        graphdef, state = nnx.split(head)
        params = jax.tree.map(lambda leaf: leaf + rng.normal(size=leaf.shape), nnx.to_pure_dict(state))
        factor = feature_stride // stride
        weighting = rng.normal(size=(2, KEYPOINTS, 3 * factor, 4 * factor))

        def loss(params: dict, features: jax.Array) -> tuple[jax.Array, jax.Array]:
            maps = nnx.merge(graphdef, params)(features)
            return jnp.sum(maps * weighting), maps

        compute = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
        (_, maps), gradients = jax.tree.map(np.asarray, compute(params, jnp.asarray(given)))
    layers = [params["layers"][number] for number in sorted(params["layers"])]
    assert len(layers) == factor.bit_length() - 1
    weights = [torch.tensor(layer["kernel"].transpose(2, 3, 0, 1), requires_grad=True) for layer in layers]
    biases = [torch.tensor(layer["bias"], requires_grad=True) for layer in layers[:-1]]
    features = torch.tensor(given.transpose(0, 3, 1, 2), requires_grad=True)
    x = features
    for weight, bias in zip(weights, [*biases, None], strict=True):
        x = functional.conv_transpose2d(x if weight is weights[0] else functional.relu(x), weight, bias, stride=2)
    x = x[:, :, : 3 * factor, : 4 * factor]
    (x * torch.tensor(weighting)).sum().backward()
    np.testing.assert_allclose(maps, x.detach().numpy(), rtol=0, atol=1e-10)
    close = {"rtol": 0, "atol": 1e-9}
    np.testing.assert_allclose(gradients[1], features.grad.numpy().transpose(0, 2, 3, 1), **close)
    for number, weight in enumerate(weights):
        np.testing.assert_allclose(
            gradients[0]["layers"][number]["kernel"], weight.grad.numpy().transpose(2, 3, 0, 1), **close
        )
    for number, bias in enumerate(biases):
        np.testing.assert_allclose(gradients[0]["layers"][number]["bias"], bias.grad.numpy(), **close)


def test_a_frame_alone_gives_the_bits_that_it_gives_among_others() -> None:
    rng = np.random.default_rng(0)
    head = DeconvHead(CHANNELS, KEYPOINTS, 4, WIDTH, dtype=jnp.float32, param_dtype=jnp.float32, rng=rng)
    features = rng.normal(size=(5, 3, 4, CHANNELS)).astype(np.float32)
    maps = jax.jit(lambda features: head(features))
    np.testing.assert_array_equal(maps(features[2:3])[0], maps(features)[2])


def reference_features(weights: dict[str, np.ndarray], frames: np.ndarray, bottleneck: bool) -> list[np.ndarray]:
    """Returns the features (b, h, w, c) of torch's layers at strides 16, 8 and 4, the last stage dilated as in timm."""

    def conv(x: torch.Tensor, name: str, stride: int = 1, dilation: int = 1) -> torch.Tensor:
        kernel = torch.tensor(weights[f"{name}.weight"])
        padding = dilation * (kernel.shape[-1] // 2)
        x = functional.conv2d(x, kernel, stride=stride, padding=padding, dilation=dilation)
        norm = name.replace("conv", "bn").replace("downsample.0", "downsample.1")
        return functional.batch_norm(
            x, *(torch.tensor(weights[f"{norm}.{leaf}"]) for leaf in ("running_mean", "running_var", "weight", "bias")),
            eps=EPSILON,
        )  # fmt: skip

    x = functional.relu(conv(torch.tensor(frames.transpose(0, 3, 1, 2)), "conv1", 2))
    x, found = functional.max_pool2d(x, 3, 2, 1), []
    for stage in range(1, 5):
        blocks = len({name.split(".")[1] for name in weights if name.startswith(f"layer{stage}.")})
        for number in range(blocks):
            name, stride = f"layer{stage}.{number}", 2 if stage in (2, 3) and number == 0 else 1
            first, second = ((2 if number else 1), 2) if stage == 4 else (1, 1)
            shortcut = conv(x, f"{name}.downsample.0", stride) if f"{name}.downsample.0.weight" in weights else x
            if bottleneck:
                x = functional.relu(conv(x, f"{name}.conv1"))
                x = functional.relu(conv(x, f"{name}.conv2", stride, first))
                x = conv(x, f"{name}.conv3")
            else:
                x = functional.relu(conv(x, f"{name}.conv1", stride, first))
                x = conv(x, f"{name}.conv2", 1, second)
            x = functional.relu(x + shortcut)
        found.append(x.numpy().transpose(0, 2, 3, 1))
    return [found[3], found[1], found[0]]


@pytest.mark.parametrize(("name", "size"), [("resnet18", (64, 96)), ("resnet50", (67, 81))])
def test_the_dilated_last_stage_is_that_of_torch(name: str, size: tuple[int, int]) -> None:
    """At any size: 67 x 81 px leave the last stage an odd number of cells."""
    rng = np.random.default_rng(0)
    frames = rng.normal(size=(2, *size, 3))
    with jax.enable_x64(True):
        network = ResNet(name, 4, "shard", stride=16, dtype=jnp.float64, param_dtype=jnp.float64, rng=rng)
        assert network.level_channels == ((32, 8, 4) if name == "resnet18" else (128, 32, 16))
        graphdef, *state = nnx.split(network, nnx.Param, nnx.BatchStat)
        trees = [nnx.to_pure_dict(part) for part in state]
        trees = jax.tree.map(lambda leaf: np.asarray(leaf) + 0.2 * rng.uniform(0.5, 1, leaf.shape), trees)

        @jax.jit
        def features(params: dict, statistics: dict, frames: jax.Array) -> list[jax.Array]:
            return nnx.merge(graphdef, params, statistics)(frames, jnp.ones(2, bool), jnp.float64(2), False)

        found = [np.asarray(level) for level in features(*trees, jnp.asarray(frames))]
    weights = flat(trees[0]) | flat(trees[1])
    for level, expected in zip(found, reference_features(weights, frames, name == "resnet50"), strict=True):
        np.testing.assert_allclose(level, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def test_every_parameter_has_a_gradient() -> None:
    model = ModelConfig(
        backbone="resnet10", width=8, head="deconv", head_width=WIDTH, heatmap_stride=4, output_stride=16
    )
    graphdef, params, statistics = make_network(model, KEYPOINTS, "f32", seed=0)
    pictures = jnp.asarray(np.random.default_rng(0).uniform(0, 255, (2, 1, 48, 64, 3)), jnp.float32)

    def loss(params: dict) -> tuple[jax.Array, jax.Array]:
        counted, count = [jnp.ones((2, 1), bool)], jnp.float32(2)
        outputs, _ = apply_network(graphdef, params, statistics, [pictures], counted, count, True)
        maps = jax.nn.softmax(outputs[0], axis=(-2, -1))
        # Not symmetric, as a softmax's gradient by a mean would be 0.
        return jnp.sum(maps * jnp.arange(16.0)[None, None, None, None, None]), maps

    gradients, maps = jax.jit(jax.grad(loss, has_aux=True))(params)
    assert maps.shape == (2, 1, 1, KEYPOINTS, 12, 16) and maps.max() * 12 * 16 < 2
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.abs(np.asarray(leaf)).max() > 0, path
