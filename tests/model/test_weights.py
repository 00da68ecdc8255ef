"""Published weights of residual networks: features of transformers and torchvision, and every tensor accounted for."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import torch
from flax import nnx

from jaxpose.errors import UserError
from jaxpose.model.resnet import fill_resnet
from tests.published_resnets import backbone, torch_shapes

DEPTHS = {"resnet18": [2, 2, 2, 2], "resnet50": [3, 4, 6, 3]}


def features(graphdef: nnx.GraphDef, params: dict, statistics: dict, x: np.ndarray) -> np.ndarray:
    """Our last features (b, c, h, w) of normalised frames (b, 3, h, w), outside training."""

    def apply(params: dict, statistics: dict, x: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, params, statistics)(x, jnp.ones(len(x), bool), jnp.float32(len(x)), False)[0]

    with jax.default_matmul_precision("highest"):
        return np.asarray(jax.jit(apply)(params, statistics, x.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)


def randomise(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Gives a torch network random norms and statistics, and returns all its tensors."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for tensor, low, high in (
                (module.weight, 0.5, 1.5), (module.bias, -0.5, 0.5), (module.running_mean, -0.5, 0.5),
                (module.running_var, 0.5, 2.0),
            ):  # fmt: skip
                assert tensor is not None
                tensor.data.uniform_(low, high, generator=generator)
    return {name: tensor.detach().numpy() for name, tensor in model.eval().state_dict().items()}


def frames(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, 3, 64, 96)).astype(np.float32)


def assert_features_equal(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape and np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(("name", "layer"), [("resnet18", "basic"), ("resnet50", "bottleneck")])
@pytest.mark.parametrize("with_classifier", [False, True])
def test_features_are_those_of_transformers(name: str, layer: str, with_classifier: bool, tmp_path: Path) -> None:
    growth = 4 if layer == "bottleneck" else 1
    # Not above: it takes seconds, in each worker of the tests.
    from transformers import ResNetConfig, ResNetForImageClassification, ResNetModel

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8 * growth << stage for stage in range(4)],
                          depths=DEPTHS[name], layer_type=layer)  # fmt: skip
    torch.manual_seed(0)
    model: Any = (ResNetForImageClassification if with_classifier else ResNetModel)(config)
    randomise(model)
    model.save_pretrained(tmp_path)
    tensors = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    assert any(name.startswith("resnet.") for name in tensors) == with_classifier
    graphdef, params, statistics = backbone(name, 8)
    params, statistics = fill_resnet(tensors, params, statistics, "file")
    if with_classifier:  # the names differ, not the network
        np.testing.assert_array_equal(
            params["layer4"][0]["downsample"][0]["kernel"][0, 0].T,
            model.resnet.encoder.stages[3].layers[0].shortcut.convolution.weight.detach().numpy()[:, :, 0, 0],
        )
        return
    with torch.no_grad():
        expected = model(torch.from_numpy(frames())).last_hidden_state.numpy()
    assert_features_equal(features(graphdef, params, statistics, frames()), expected)


def torch_features(
    tensors: dict[str, torch.Tensor], x: torch.Tensor, depths: list[int], convs: int, groups: int
) -> torch.Tensor:
    """The features of a ResNet of version 1.5, with torch's functions, from tensors by torchvision's names."""

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        if groups:
            return torch.nn.functional.group_norm(x, groups, tensors[f"{name}.weight"], tensors[f"{name}.bias"])
        leaves = ("running_mean", "running_var", "weight", "bias")
        return torch.nn.functional.batch_norm(x, *[tensors[f"{name}.{leaf}"] for leaf in leaves])

    def conv(x: torch.Tensor, name: str, stride: int) -> torch.Tensor:
        kernel = tensors[f"{name}.weight"]
        return torch.nn.functional.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)

    x = torch.nn.functional.max_pool2d(normed(conv(x, "conv1", 2), "bn1").relu(), 3, 2, 1)
    for stage, depth in enumerate(depths, 1):
        for block in range(depth):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            shortcut = x
            if f"{name}.downsample.0.weight" in tensors:
                shortcut = normed(conv(x, f"{name}.downsample.0", stride), f"{name}.downsample.1")
            for i in range(1, convs + 1):
                x = conv(x, f"{name}.conv{i}", stride if i == convs - 1 else 1)
                x = normed(x, f"{name}.bn{i}")
                x = x.relu() if i < convs else (x + shortcut).relu()
    return x


@pytest.mark.parametrize(("name", "convs", "groups"), [("resnet18", 2, 0), ("resnet50", 3, 0), ("resnet50", 3, 4)])
def test_features_are_those_of_torch_by_torchvisions_names(name: str, convs: int, groups: int) -> None:
    graphdef, params, statistics = backbone(name, 8, "group" if groups else "sync", groups)
    rng, shapes = np.random.default_rng(3), torch_shapes(params, statistics)
    tensors = {}
    for key, shape in shapes.items():
        fan_in = math.prod(shape[1:])
        tensors[key] = rng.normal(0, (2 / fan_in) ** 0.5, shape) if len(shape) == 4 else rng.uniform(0.5, 1.5, shape)
    tensors = {key: value.astype(np.float32) for key, value in tensors.items()}
    found = features(graphdef, *fill_resnet(tensors, params, statistics, "file"), frames())
    of_torch = {key: torch.from_numpy(value) for key, value in tensors.items()}
    expected = torch_features(of_torch, torch.from_numpy(frames()), DEPTHS[name], convs, groups).numpy()
    assert_features_equal(found, expected)


def small_tensors() -> dict[str, np.ndarray]:
    """Random tensors of a resnet18 of width 4 by torchvision's names."""
    rng = np.random.default_rng(0)
    shapes = torch_shapes(*backbone("resnet18", 4)[1:])
    return {name: rng.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}


def without(tensors: dict[str, np.ndarray], ending: str) -> None:
    for name in [name for name in tensors if name.endswith(ending)]:
        del tensors[name]


def change(name: str, value: Any) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors.update({name: np.asarray(value)})


def rename(tensors: dict[str, np.ndarray]) -> None:
    tensors["layer1.0.conv9.weight"] = tensors.pop("layer1.0.conv1.weight")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda tensors: tensors.pop("bn1.bias"), "absent: bn1.bias$"),
        (rename, "absent: layer1.0.conv1.weight; unknown: layer1.0.conv9.weight$"),
        (change("head.weight", np.ones(3)), "unknown: head.weight$"),
        (change("conv1.num_batches_tracked", 3), "unknown: conv1.num_batches_tracked$"),
        (change("conv1.weight", np.ones((8, 3, 7, 7))), r"conv1.weight \(8, 3, 7, 7\) instead of \(4, 3, 7, 7\)$"),
        (change("bn1.running_var", np.array([1, 1, 1, np.nan])), "not finite: bn1.running_var$"),
        (change("bn1.weight", np.ones(4, np.int8)), "not of floats: bn1.weight$"),
        (change("bn1.weight", np.ones(4, np.complex64)), "not of floats: bn1.weight$"),
        (change("bn1.running_var", np.array([1, 0, 1, -1e-6])), "negative: bn1.running_var$"),
        (lambda tensors: without(tensors, ".bias"), r"absent: .+, .+, .+ and \d+ more"),
        (lambda tensors: [without(tensors, f".running_{name}") for name in ("mean", "var")], "no batch statistics"),
    ],
)  # fmt: skip
def test_a_tensor_without_its_place_is_named(damage: Callable[[dict[str, np.ndarray]], Any], message: str) -> None:
    _, params, statistics = backbone("resnet18", 4)
    tensors = small_tensors()
    fill_resnet(
        tensors | {"fc.weight": np.ones((3, 32)), "bn1.num_batches_tracked": np.array(7)}, params, statistics, ""
    )
    damage(tensors)
    with pytest.raises(UserError, match=message) as refused:
        fill_resnet(tensors, params, statistics, "FILE")
    assert str(refused.value).startswith("FILE ")


def test_batch_statistics_are_not_lost_on_a_network_of_group_norms() -> None:
    _, params, statistics = backbone("resnet18", 4, "group")
    with pytest.raises(UserError, match="model.norm is group"):
        fill_resnet(small_tensors(), params, statistics, "FILE")


def test_half_precision_becomes_the_type_of_the_network() -> None:
    _, params, statistics = backbone("resnet18", 4)
    halves = {name: value.astype(np.float16) for name, value in small_tensors().items()}
    filled, _ = fill_resnet(halves, params, statistics, "FILE")
    assert filled["conv1"]["kernel"].dtype == np.float32
    np.testing.assert_array_equal(filled["conv1"]["kernel"][..., 0].transpose(2, 0, 1), halves["conv1.weight"][0])
