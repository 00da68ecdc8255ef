"""Random weights of Lightning Pose's heads, computed by torch's own layers, against their conversions."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxpose.errors import UserError
from jaxpose.model.heads import ContextHead, HeatmapHead
from jaxpose.model.lightning_pose import head_options, head_parameters, sort_tensors

CHANNELS, KEYPOINTS = 32, 3
MAKE = {"dtype": jnp.float64, "param_dtype": jnp.float64, "rng": np.random.default_rng(0)}


def double(channels: int, out_channels: int) -> torch.nn.Module:
    """The layer that doubles the sides."""
    return torch.nn.ConvTranspose2d(channels, out_channels, 3, stride=2, padding=1, output_padding=1)


class SingleHead(torch.nn.Module):
    """The published head: a pixel shuffle, then transposed convolutions without anything between them."""

    def __init__(self, layers: int, width: int):
        super().__init__()
        widths = [CHANNELS // 4, *[width] * (layers - 1), KEYPOINTS]
        doubling = [double(a, b) for a, b in zip(widths[:-1], widths[1:], strict=True)]
        self.upsampling_layers = torch.nn.Sequential(torch.nn.PixelShuffle(2), *doubling)


class RecurrentHead(torch.nn.Module):
    """The published recurrent head, with its list of the same layers."""

    def __init__(self) -> None:
        super().__init__()
        self.W_pre = double(CHANNELS // 4, KEYPOINTS)
        self.W_f, self.W_b = double(KEYPOINTS, KEYPOINTS), double(KEYPOINTS, KEYPOINTS)
        self.H_f, self.H_b = self.step(), self.step()
        self.layers = torch.nn.ModuleList([self.W_pre, self.W_f, self.H_f, self.W_b, self.H_b])

    @staticmethod
    def step() -> torch.nn.Sequential:
        inner = 16 * KEYPOINTS
        return torch.nn.Sequential(
            torch.nn.Conv2d(KEYPOINTS, inner, 2, stride=2, groups=KEYPOINTS),
            torch.nn.ConvTranspose2d(inner, KEYPOINTS, 2, stride=2, groups=KEYPOINTS),
        )

    def forward(self, window: torch.Tensor) -> torch.Tensor:
        """Returns maps (b, k, h, w) of a window (5, b, c, h, w)."""
        x = [self.W_pre(torch.nn.functional.pixel_shuffle(frame, 2)) for frame in window]
        ahead, back = self.W_f(x[0]), self.W_b(x[-1])
        for frame in x[1:]:
            ahead = self.W_f(frame) + self.H_f(ahead)
        for frame in x[-2::-1]:
            back = self.W_b(frame) + self.H_b(back)
        return (ahead + back) / 2


def lively(module: torch.nn.Module, seed: int = 0) -> dict[str, np.ndarray]:
    """Gives every tensor of a module random values in float64, and returns them by name."""
    module.double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def filled(head: nnx.Module, params: dict) -> Callable:
    graphdef, own = nnx.split(head)
    shapes, found = (jax.tree.map(np.shape, tree) for tree in (nnx.to_pure_dict(own), params))
    assert shapes == found
    return nnx.merge(graphdef, jax.tree.map(jnp.asarray, params))


def features(frames: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(frames, CHANNELS, 3, 4))


def softmax(maps: np.ndarray) -> np.ndarray:
    return np.asarray(torch.softmax(torch.tensor(np.array(maps)).flatten(-2), -1))


@pytest.mark.parametrize("width", [KEYPOINTS, 5])
@pytest.mark.parametrize(("layers", "stride"), [(1, 8), (2, 4), (3, 2)])
def test_transposed_convolutions_are_sub_pixel_ones(layers: int, stride: int, width: int) -> None:
    published = SingleHead(layers, width)
    tensors = sort_tensors({f"head.{name}": value for name, value in lively(published).items()})
    kind, found_stride, found_width, keypoints = head_options(tensors)
    assert (kind, found_stride, keypoints) == ("heatmap", stride, KEYPOINTS)
    assert found_width == (width if layers > 1 else KEYPOINTS)
    x = features(2)
    with jax.enable_x64(True):
        head = filled(HeatmapHead(CHANNELS, KEYPOINTS, stride, width, **MAKE), head_parameters(tensors)["head"])
        maps = np.asarray(jax.jit(lambda x: head(x))(x.transpose(0, 2, 3, 1)))
    with torch.no_grad():
        expected = published.upsampling_layers(torch.tensor(x)).numpy()
    # The bias of the last layer moves all of a map, which the softmax does not see.
    np.testing.assert_allclose(maps - maps.mean((-2, -1), keepdims=True),
                               expected - expected.mean((-2, -1), keepdims=True), rtol=1e-10, atol=1e-10)  # fmt: skip
    np.testing.assert_allclose(softmax(maps), softmax(expected), rtol=1e-9, atol=1e-14)


# The names of version 2.4, and those before the heads were modules of their own.
NAMES = {
    "today": {"single": ("head.head_sf.upsampling_layers",), "recurrent": "head.head_mf.", "list": ()},
    "before": {
        "single": ("upsampling_layers", "upsampling_layers_sf"),
        "recurrent": "crnn.",
        "list": ("upsampling_layers_rnn",),
    },
}


def context_tensors(names: dict, single: dict[str, np.ndarray], recurrent: dict[str, np.ndarray]) -> dict:
    found = {f"{names['recurrent']}{name}": value for name, value in recurrent.items()}
    for prefix in names["single"]:
        found |= {name.replace("upsampling_layers", prefix): value for name, value in single.items()}
    for prefix in names["list"]:
        found |= {n.replace("layers", prefix): value for n, value in recurrent.items() if n.startswith("layers")}
    return found


@pytest.mark.parametrize("version", NAMES)
def test_the_recurrent_head_is_that_of_the_published_module(version: str) -> None:
    single, recurrent = SingleHead(2, KEYPOINTS), RecurrentHead()
    given = context_tensors(NAMES[version], lively(single), lively(recurrent, 1))
    tensors = sort_tensors(given)
    assert head_options(tensors) == ("heatmap_context", 4, KEYPOINTS, KEYPOINTS)
    x = features(7)
    with jax.enable_x64(True):
        params = head_parameters(tensors)
        head = filled(ContextHead(CHANNELS, KEYPOINTS, 4, KEYPOINTS, **MAKE), params["context"])
        maps = np.asarray(jax.jit(lambda x: head(x))(x.transpose(0, 2, 3, 1)[None]))[0]
    with torch.no_grad():
        windows = torch.stack([torch.tensor(x[i : i + 3]) for i in range(5)])
        expected = recurrent(windows).numpy()
    np.testing.assert_allclose(maps, expected, rtol=1e-10, atol=1e-9 * np.abs(expected).max())


def test_every_tensor_has_a_place_and_every_place_a_tensor() -> None:
    single, recurrent = lively(SingleHead(2, KEYPOINTS)), lively(RecurrentHead())
    whole = context_tensors(NAMES["today"], single, recurrent)
    sort_tensors(whole)
    with pytest.raises(UserError, match="does not know: view_embedding, backbone.encoder.layer.0; it converts"):
        sort_tensors(whole | {"view_embedding": np.zeros(3), "backbone.encoder.layer.0": np.zeros(3)})
    with pytest.raises(UserError, match="two different tensors for W_f.bias"):
        sort_tensors(whole | {"head.head_mf.layers.1.bias": np.zeros(KEYPOINTS)})
    once = {name: value for name, value in whole.items() if ".layers." not in name}
    for part, name in (("head_sf.upsampling_layers", "2.bias"), ("head_sf.upsampling_layers", "1.weight"),
                       ("head_mf", "W_pre.weight"), ("head_mf", "H_b.1.weight")):  # fmt: skip
        with pytest.raises(UserError, match=f"has no tensor {name}$"):
            head_parameters(sort_tensors({n: value for n, value in once.items() if n != f"head.{part}.{name}"}))
    with pytest.raises(UserError, match="has no upsampling_layers"):
        head_options(sort_tensors({"backbone.0.weight": np.zeros((4, 3, 7, 7))}))
    narrow = single | {"upsampling_layers.1.weight": np.zeros((CHANNELS // 4, KEYPOINTS, 5, 5))}
    with pytest.raises(UserError, match=r"has 1.weight of shape \(8, 3, 5, 5\); it must be \(8, 3, 3, 3\)"):
        head_parameters(sort_tensors(narrow))


def test_the_backbone_has_the_names_of_torchvision() -> None:
    names = ("0.weight", "1.running_mean", "4.0.conv1.weight", "7.1.downsample.1.bias")
    tensors = sort_tensors({f"backbone.{name}": np.zeros(1) for name in names})
    assert list(tensors.backbone) == ["conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight",
                                      "layer4.1.downsample.1.bias"]  # fmt: skip
