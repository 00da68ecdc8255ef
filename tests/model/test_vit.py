"""Vision transformers against transformers' models with random weights, and their parts against torch."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxpose.config import ModelConfig
from jaxpose.model import vit
from jaxpose.model.pose_net import apply_network, make_network
from jaxpose.model.vit import FORMS, Vit, VitForm
from jaxpose.model.vit_weights import antialiased_matrix, bicubic_matrix, convert, resize_patch
from tests.published_vits import full_size, published

TINY = VitForm(channels=24, heads=3, epsilon=1e-6, grid=3, depth=2)


def features_of(form: VitForm, params: dict, pixels: np.ndarray) -> np.ndarray:
    network = Vit(form, dtype=jnp.float32, param_dtype=jnp.float32, rng=np.random.default_rng(0))
    graphdef, state = nnx.split(network, nnx.Param)
    expected = jax.tree.map(jnp.shape, nnx.to_pure_dict(state))
    assert jax.tree.map(np.shape, params) == expected
    return np.asarray(jax.jit(lambda params, x: nnx.merge(graphdef, params)(x))(params, pixels))


@pytest.mark.parametrize("kind", ["vit", "mae", "dinov2", "dinov3"])
def test_features_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    """At the size of the weights, and at another one that is not square, where positions are resized or rotate less."""
    theirs = published(kind)
    params = convert(theirs.tensors(tmp_path), theirs.form, theirs.name)
    for cells in ((4, 4), (3, 7)):
        shape = (2, cells[0] * theirs.side_px, cells[1] * theirs.side_px, 3)
        pixels = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        got, expected = features_of(theirs.form, params, pixels), theirs.features(pixels)
        assert got.shape == (2, *cells, 24) and expected.std() > 0.1
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


def test_patches_of_14_px_become_16_as_in_lightning_pose(tmp_path: Path) -> None:
    """Its operator is torch's; then the network is the one whose patches transformers would have resized."""
    kernel = np.random.default_rng(0).normal(size=(24, 3, 14, 14)).astype(np.float32)
    like_theirs = {"size": (16, 16), "mode": "bicubic", "align_corners": True, "antialias": True}
    expected = torch.nn.functional.interpolate(torch.from_numpy(kernel), **like_theirs).numpy()
    np.testing.assert_allclose(resize_patch(kernel, 16), expected, rtol=0, atol=1e-5)
    assert resize_patch(kernel, 14) is kernel

    theirs = published("dinov2")
    form = dataclasses.replace(theirs.form, patch_px=16)
    params = convert(theirs.tensors(tmp_path), form, theirs.name)
    patch = theirs.model.embeddings.patch_embeddings
    resized = torch.nn.functional.interpolate(patch.projection.weight, **like_theirs)
    patch.projection.weight, patch.projection.stride = torch.nn.Parameter(resized), (16, 16)
    patch.patch_size = (16, 16)
    pixels = np.random.default_rng(0).normal(size=(2, 48, 96, 3)).astype(np.float32)
    got = features_of(form, params, pixels)
    expected = dataclasses.replace(theirs, side_px=16).features(pixels)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("given", "count"), [(37, 16), (14, 24), (14, 14), (3, 5), (2, 1)])
def test_resizing_is_torchs(given: int, count: int) -> None:
    row = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 1, given, given)))
    plain = torch.nn.functional.interpolate(row, size=(count, given), mode="bicubic", align_corners=False)
    np.testing.assert_allclose(bicubic_matrix(count, given) @ row[0, 0].numpy(), plain[0, 0].numpy(), atol=1e-12)
    if count >= given:
        smooth = torch.nn.functional.interpolate(
            row, size=(count, given), mode="bicubic", align_corners=True, antialias=True
        )
        expected = smooth[0, 0].numpy() @ np.linalg.inv(antialiased_matrix(given, given)).T
        np.testing.assert_allclose(antialiased_matrix(count, given) @ row[0, 0].numpy(), expected, atol=1e-12)


class Zeros(np.random.Generator):
    """Draws nothing, which takes no time."""

    def standard_normal(self, size: Any) -> np.ndarray:
        return np.zeros(size)


@pytest.mark.parametrize("name", list(FORMS))
def test_sizes_are_those_of_the_published_configs(name: str) -> None:
    """Shapes as transformers has them for the published numbers of channels, heads, blocks, positions and registers."""
    kind, base = name.split("_")[0], name.endswith("base")
    theirs = full_size(kind, 768 if base else 384, 12 if base else 6)
    params = Vit(FORMS[name], dtype=jnp.float32, param_dtype=jnp.float32, rng=Zeros(np.random.Philox(0)))
    shapes = [leaf.shape for leaf in jax.tree.leaves(nnx.to_pure_dict(nnx.state(params, nnx.Param)))]
    assert sum(map(math.prod, shapes)) == sum(math.prod(shape) for shape in theirs.values())
    assert FORMS[name].heads == (12 if base else 6)


def test_initial_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Normal, cut off at two deviations; norms and scales 1, biases 0; the seed decides them."""
    monkeypatch.setitem(vit.FORMS, "dinov2_small", dataclasses.replace(FORMS["dinov2_small"], channels=192, depth=2))

    def weights(seed: int) -> dict:
        return make_network(ModelConfig(backbone="dinov2_small"), 2, "f32", seed)[1]["backbone"]

    params = weights(0)
    block = params["blocks"][1]
    for drawn in (params["patch"]["kernel"], params["positions"], block["attention"]["key"]["kernel"]):
        assert 0.039 < np.abs(drawn).max() <= 0.04
        # The deviation of a standard normal that is cut off at 2 is 0.8796.
        assert abs(np.std(drawn) / (0.02 * 0.8796) - 1) < 0.01 and abs(np.mean(drawn)) < 1e-3
    for name in ("scale1", "scale2"):
        assert (np.asarray(block[name]) == 1).all()
    assert (np.asarray(block["norm1"]["scale"]) == 1).all() and not np.any(block["fc1"]["bias"])
    assert jax.tree.all(jax.tree.map(np.array_equal, params, weights(0)))
    assert not np.array_equal(params["class_token"], weights(1)["class_token"])


@pytest.mark.parametrize("kind", ["heatmap", "heatmap_context", "regression"])
@pytest.mark.parametrize(
    ("backbone", "stride", "precision"),
    [("vit_small", 2, "f32"), ("dinov3_small", 4, "bf16"), ("dinov2_small", 8, "f64"), ("dinov2_small", 4, "bf16")],
)
def test_heads_on_features_at_stride_16(
    kind: str, backbone: str, stride: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = dataclasses.replace(FORMS[backbone], channels=24, heads=3, depth=2, grid=min(FORMS[backbone].grid, 3))
    monkeypatch.setitem(vit.FORMS, backbone, small)
    with jax.enable_x64(precision == "f64"):
        wide = jnp.float64 if precision == "f64" else jnp.float32
        model = ModelConfig(kind=kind, backbone=backbone, heatmap_stride=stride, head_width=5)
        graphdef, params, statistics = make_network(model, 4, precision, seed=0)
        assert not statistics
        assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(wide)}
        frames = 6 if kind == "heatmap_context" else 1
        # A multiple of 16, not of 32.
        shape = (2, frames, 48, 80, 3)
        outputs, _ = jax.eval_shape(
            lambda x: apply_network(graphdef, params, {}, [x], [jnp.ones((2, frames), bool)], wide(2), True),
            jax.ShapeDtypeStruct(shape, wide),
        )
    windows, heads = (2, 2) if kind == "heatmap_context" else (1, 1)
    last = (2,) if kind == "regression" else (48 // stride, 80 // stride)
    assert outputs[0].shape == (2, windows, heads, 4, *last) and outputs[0].dtype == wide


def test_a_frame_does_not_depend_on_the_others_and_training_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vit.FORMS, "dinov3_small", dataclasses.replace(TINY, grid=0, registers=2, has_scales=True))
    graphdef, params, _ = make_network(ModelConfig(backbone="dinov3_small", head_width=4), 2, "f32", seed=0)
    frames = np.random.default_rng(0).uniform(0, 255, (3, 1, 32, 48, 3)).astype(np.float32)

    @jax.jit
    def logits_of(frames: jax.Array) -> list[jax.Array]:
        counted = [jnp.ones((3, 1), bool)]
        return [
            apply_network(graphdef, params, {}, [frames], counted, jnp.float32(3), train)[0][0]
            for train in (True, False)
        ]

    trained, predicted = logits_of(jnp.asarray(frames))
    np.testing.assert_array_equal(trained, predicted)
    frames[1:] = 255 - frames[1:]
    others, _ = logits_of(jnp.asarray(frames))
    np.testing.assert_array_equal(others[0], trained[0])
    assert (np.asarray(others[1]) != np.asarray(trained[1])).any()
