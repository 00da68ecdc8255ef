"""The forms of vision transformers, and their published weights as parameters of `Vit`, by the tensors' names."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxpose.errors import UserError
from jaxpose.model.positions import ROTARY_BASE, antialiased_matrix
from jaxpose.quantities import listed


@dataclasses.dataclass(frozen=True)
class VitForm:
    """The form of a vision transformer.

    Attributes:
      channels: of a token.
      heads: of an attention.
      epsilon: added to the variance in each norm.
      grid: cells along a side of the learned positions; 0 = rotary positions.
      registers: number of register tokens, which belong to no place.
      has_scales: whether each branch of a block is scaled per channel.
      has_key_bias: whether the keys have a bias.
      depth: number of blocks.
      patch_px: side of a patch.
      published_patch_px: side of a patch of the published weights, which are resized to `patch_px`.
    """

    channels: int
    heads: int
    epsilon: float
    grid: int = 0
    registers: int = 0
    has_scales: bool = False
    has_key_bias: bool = True
    depth: int = 12
    patch_px: int = 16
    published_patch_px: int = 16


# Forms as the configs of the published weights have them; the grids are those of 224 px / 16 and 518 px / 14.
FORMS = {
    "vit_small": VitForm(384, 6, 1e-12, grid=14),
    "vit_base": VitForm(768, 12, 1e-12, grid=14),
    "dinov2_small": VitForm(384, 6, 1e-6, grid=37, has_scales=True, published_patch_px=14),
    "dinov2_base": VitForm(768, 12, 1e-6, grid=37, has_scales=True, published_patch_px=14),
    "dinov3_small": VitForm(384, 6, 1e-5, registers=4, has_scales=True, has_key_bias=False),
    "dinov3_base": VitForm(768, 12, 1e-5, registers=4, has_scales=True, has_key_bias=False),
}


# Rewrites the names of transformers and of timm into those of DINO's code, one after the other. The first part of a
# name is that of the network inside a network with a classifier or a decoder.
_RENAMED = (
    (r"^(vit|dinov2|dinov3_vit)\.", ""),
    (r"^embeddings\.", ""),
    (r"^position_embeddings$", "pos_embed"),
    (r"^(storage_tokens|reg_token)$", "register_tokens"),
    (r"^patch_embeddings\.(projection\.)?", "patch_embed.proj."),
    (r"^(encoder\.layer|model\.layer|layers|layer)\.", "blocks."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"^layernorm\.", "norm."),
    (r"\.attention\.attention\.(query|key|value)\.", r".attn.\1."),
    (r"\.attention\.(output\.dense|o_proj)\.", ".attn.proj."),
    (r"\.attention\.q_proj\.", ".attn.query."),
    (r"\.attention\.k_proj\.", ".attn.key."),
    (r"\.attention\.v_proj\.", ".attn.value."),
    (r"\.(intermediate\.dense|mlp\.up_proj)\.", ".mlp.fc1."),
    (r"\.(output\.dense|mlp\.down_proj)\.", ".mlp.fc2."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
)
# Tensors that features do not need: of the training by masked patches, of a decoder, a classifier and a pooler, and
# constants that `rotary` computes.
_DROPPED = (
    r"mask_token|decoder[._].+|(head|classifier)\..+|pooler\.dense\.(weight|bias)|rope_embed\.periods|"
    r"blocks\.\d+\.attn\.qkv\.bias_mask"
)
_PARTS = ("query", "key", "value")
_SHOWN = 3


def vit_parameters(tensors: Mapping[str, np.ndarray], name: str, source: str) -> dict[str, Any]:
    """Returns the parameters of a backbone, float32, as `make_network` has them under "backbone".

    Tensors may have the names that transformers gives to a ViTModel, ViTMAEModel, Dinov2Model or DINOv3ViTModel, alone
    or inside a model for a task, by its version 5 or before, or the names of the original code of DINO, MAE, DINOv2 and
    DINOv3, some of which timm has too. Left out by name are a mask token, a decoder, a classifier and a pooler.

    Args:
      tensors: published tensors by their names, without any other prefix (see `find_vit_prefix`).
      name: of the backbone, a key of `FORMS`.
      source: name of the file, for messages.

    Raises:
      UserError: tensors are absent, unknown, given twice, of another shape, not of floats or not finite; the message
        names them.
    """
    return convert(tensors, FORMS[name], f"{source} does not fit model.backbone = {name}")


def convert(tensors: Mapping[str, np.ndarray], form: VitForm, misfit: str) -> dict[str, Any]:
    """Returns the parameters of a network of any form; see `vit_parameters`.

    Args:
      tensors: published tensors by their names.
      form: of the network.
      misfit: how a message about the tensors begins.

    Raises:
      UserError: see `vit_parameters`.
    """
    given = _Tensors(tensors)
    c, side = form.channels, form.published_patch_px
    patch = given.take("patch_embed.proj.weight", (c, 3, side, side))
    params: dict[str, Any] = {
        "patch": {
            "kernel": resize_patch(patch, form.patch_px).transpose(2, 3, 1, 0).reshape(-1, c),
            "bias": given.take("patch_embed.proj.bias", (c,)),
        },
        "class_token": given.take("cls_token", (1, 1, c))[0],
        "blocks": {number: _block(given, f"blocks.{number}", form) for number in range(form.depth)},
        "norm": _norm(given, "norm", c),
    }
    if form.grid:
        params["positions"] = given.take("pos_embed", (1, 1 + form.grid**2, c))[0]
    if form.registers:
        params["registers"] = given.take("register_tokens", (1, form.registers, c))[0]
    given.refuse_misfit(misfit)
    return params


def find_vit_prefix(tensors: Mapping[str, np.ndarray], source: str) -> str:
    """Returns what the names of a vision transformer's tensors begin with: "backbone." in a checkpoint, often "".

    Raises:
      UserError: there is no vision transformer, or there are several.
    """
    matches = (re.fullmatch(r"(.*?\.)??(embeddings\.)?cls_token", name) for name in tensors)
    found = sorted({match[1] or "" for match in matches if match})
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{source} holds several networks: tensors under {', '.join(map(repr, found))}; give one")
    raise UserError(
        f"{source} holds no vision transformer: none of its {len(tensors)} tensors is called cls_token or "
        f"embeddings.cls_token; it has {listed(list(tensors), _SHOWN)}"
    )


def settings_of(name: str) -> dict[str, Any]:
    """Returns what a config.json of transformers says of the backbone, where the tensors would not show another value.

    Args:
      name: of the backbone, a key of `FORMS`.
    """
    settings = {"num_attention_heads": FORMS[name].heads, "hidden_act": "gelu"}
    return settings if FORMS[name].grid else settings | {"rope_theta": ROTARY_BASE}


def resize_patch(kernel: np.ndarray, side: int) -> np.ndarray:
    """Returns a kernel (c, 3, n, n) for patches of a larger or the same side.

    As Lightning Pose does it (lightning_pose/models/backbones/vit_dino.py, `_resize_patch_embedding_weights`): torch's
    `interpolate` with mode="bicubic", align_corners=True and antialias=True; the values are not scaled.
    """
    if kernel.shape[-1] == side:
        return kernel
    matrix = antialiased_matrix(side, kernel.shape[-1])
    return np.einsum("hi,wj,ocij->ochw", matrix, matrix, kernel).astype(kernel.dtype)


def _block(given: "_Tensors", block: str, form: VitForm) -> dict[str, Any]:
    c = form.channels
    params = {
        "norm1": _norm(given, f"{block}.norm1", c),
        "attention": _attention(given, f"{block}.attn", form),
        "norm2": _norm(given, f"{block}.norm2", c),
        "fc1": _linear(given, f"{block}.mlp.fc1", c, 4 * c),
        "fc2": _linear(given, f"{block}.mlp.fc2", 4 * c, c),
    }
    if form.has_scales:
        params |= {f"scale{number}": given.take(f"{block}.ls{number}.gamma", (c,)) for number in (1, 2)}
    return params


def _attention(given: "_Tensors", attention: str, form: VitForm) -> dict[str, Any]:
    """Returns query, key, value and out; the first three may be one tensor."""
    c, params = form.channels, {}
    if given.has(f"{attention}.qkv.weight"):
        kernels = np.split(given.take(f"{attention}.qkv.weight", (3 * c, c)), 3)
        # The original DINOv3 has a key bias, of any value, and a mask that makes it 0.
        unused = None if form.has_key_bias else slice(c, 2 * c)
        biases = np.split(given.take(f"{attention}.qkv.bias", (3 * c,), unused), 3)
        for part, kernel, bias in zip(_PARTS, kernels, biases, strict=True):
            params[part] = {"kernel": kernel.T, "bias": bias}
        if not form.has_key_bias:
            del params["key"]["bias"]
    else:
        for part in _PARTS:
            has_bias = part != "key" or form.has_key_bias
            params[part] = _linear(given, f"{attention}.{part}", c, c, has_bias)
    return params | {"out": _linear(given, f"{attention}.proj", c, c)}


def _linear(
    given: "_Tensors", layer: str, in_channels: int, out_channels: int, has_bias: bool = True
) -> dict[str, np.ndarray]:
    params = {"kernel": given.take(f"{layer}.weight", (out_channels, in_channels)).T}
    return params | ({"bias": given.take(f"{layer}.bias", (out_channels,))} if has_bias else {})


def _norm(given: "_Tensors", norm: str, channels: int) -> dict[str, np.ndarray]:
    return {"scale": given.take(f"{norm}.weight", (channels,)), "bias": given.take(f"{norm}.bias", (channels,))}


class _Tensors:
    """Published tensors by the names of DINO's code, each of which is taken once, and what is wrong with them."""

    def __init__(self, tensors: Mapping[str, np.ndarray]):
        self._left: dict[str, tuple[str, np.ndarray]] = {}
        self._problems: dict[str, list[str]] = {}
        for published, tensor in tensors.items():
            known = published
            for pattern, replacement in _RENAMED:
                known = re.sub(pattern, replacement, known)
            if re.fullmatch(_DROPPED, known):
                continue
            if known in self._left:
                self._report("given twice", f"{self._left[known][0]} and {published}")
            self._left[known] = published, tensor

    def has(self, known: str) -> bool:
        """Returns whether a tensor was given and not taken yet."""
        return known in self._left

    def take(self, known: str, shape: tuple[int, ...], unused: slice | None = None) -> np.ndarray:
        """Returns a tensor as float32, or zeros if something is wrong with it, which `refuse_misfit` reports.

        Args:
          known: its name in DINO's code.
          shape: that it must have.
          unused: a part of it that may hold anything and becomes 0.
        """
        published, tensor = self._left.pop(known, (known, None))
        if tensor is None:
            self._report("absent", published)
        elif tuple(tensor.shape) != shape:
            self._report("of another shape", f"{published} {tuple(tensor.shape)} instead of {shape}")
        elif tensor.dtype.kind in "biuc":
            self._report("not of floats", published)
        else:
            values = np.asarray(tensor).astype(np.float32)
            if unused is not None:
                values[unused] = 0
            if not np.isfinite(values).all():
                self._report("not finite", published)
            return values
        return np.zeros(shape, np.float32)

    def refuse_misfit(self, misfit: str) -> None:
        """Refuses tensors that are left, and those with which something is wrong.

        Raises:
          UserError: it names some of each kind.
        """
        for published, _ in self._left.values():
            self._report("unknown", published)
        if self._problems:
            clauses = "; ".join(f"{what}: {listed(names, _SHOWN)}" for what, names in self._problems.items())
            raise UserError(f"{misfit}. Tensors {clauses}")

    def _report(self, problem: str, name: str) -> None:
        self._problems.setdefault(problem, []).append(name)
