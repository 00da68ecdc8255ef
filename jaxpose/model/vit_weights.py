"""The forms of vision transformers, and the conversion of their published weights to parameters of `Vit`."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxpose.errors import UserError
from jaxpose.model.torch_weights import only_prefix
from jaxpose.terminal import listed

# Positions of a vision transformer's patches: learned ones, resized to the input, and rotary ones.

# The slope of the bicubic kernel: in OpenCV's and torch's plain resize, and in Pillow's and torch's antialiased one.
_SLOPE = -0.75
_SLOPE_ANTIALIASED = -0.5
# The base of the wave lengths of DINOv3's rotary positions.
ROTARY_BASE = 100.0


def resize_positions(positions: Float[Array, "n c"], sides: tuple[int, int]) -> Float[Array, "m c"]:
    """Returns learned positions of a square grid, row by row, resized to a grid of `sides` = (rows, columns).

    As `interpolate_pos_encoding` of ViTModel, ViTMAEModel and Dinov2Model in transformers does it: bicubic, by torch's
    `interpolate` with align_corners=False and without antialiasing. The same grid changes nothing.
    """
    side = round(positions.shape[0] ** 0.5)
    grid = positions.reshape(side, side, -1)
    rows, columns = (jnp.asarray(bicubic_matrix(count, side), positions.dtype) for count in sides)
    # Not rounded to fewer bits on a GPU, as products of tokens may be.
    resized = jnp.einsum("hi,wj,ijc->hwc", rows, columns, grid, precision="highest")
    return resized.reshape(sides[0] * sides[1], -1)


def rotary(
    sides: tuple[int, int], others: int, channels: int, dtype: jax.typing.DTypeLike
) -> tuple[Float[Array, "n d"], Float[Array, "n d"]]:
    """Returns the cosines and sines that `rotate` takes, for all tokens; the first `others` are not rotated.

    As DINOv3ViTModel in transformers does it: the centre of a patch has coordinates (y, x) from -1 to 1 over the input,
    whatever its size. A quarter of a head's channels is rotated by y, a quarter by x, each together with its partner
    half of the channels further on.

    Args:
      sides: rows and columns of patches.
      others: tokens before those of the patches.
      channels: per head, a multiple of 4.
      dtype: type of the result.
    """
    y, x = ((2 * np.arange(count) + 1) / count - 1 for count in sides)
    places = np.stack(np.meshgrid(y, x, indexing="ij"), axis=-1).reshape(-1, 2, 1)
    frequencies = 2 * np.pi * ROTARY_BASE ** (-np.arange(channels // 4) * 4 / channels)
    angles = np.tile((places * frequencies).reshape(len(places), -1), 2)
    angles = np.concatenate([np.zeros((others, channels)), angles])
    return jnp.asarray(np.cos(angles), dtype), jnp.asarray(np.sin(angles), dtype)


def rotate(
    x: Float[Array, "b n heads d"], cosines: Float[Array, "n d"], sines: Float[Array, "n d"]
) -> Float[Array, "b n heads d"]:
    """Returns queries or keys with the pairs of channels (i, i + d / 2) rotated (Su et al. 2021)."""
    low, high = jnp.split(x, 2, axis=-1)
    return x * cosines[None, :, None] + jnp.concatenate([-high, low], axis=-1) * sines[None, :, None]


def bicubic_matrix(count: int, given: int) -> np.ndarray:
    """Returns the matrix (count, given) that resizes a row of values, as torch's plain bicubic `interpolate` does.

    Values beyond the ends equal those at the ends, and pixels are aligned by their edges (align_corners=False).
    """
    centres = (np.arange(count) + 0.5) * given / count - 0.5
    matrix = np.zeros((count, given))
    for row, centre in enumerate(centres):
        for tap in int(np.floor(centre)) + np.arange(-1, 3):
            matrix[row, np.clip(tap, 0, given - 1)] += _cubic(centre - tap, _SLOPE)
    return matrix


def antialiased_matrix(count: int, given: int) -> np.ndarray:
    """Returns the matrix (count, given) of torch's `interpolate` with bicubic, align_corners=True and antialias=True.

    It is only for count >= given > 1, where the antialiasing widens nothing. Taps beyond the ends are left out, and the
    rest are scaled to a sum of 1.
    """
    taps = np.arange(given)
    centres = (np.arange(count) + 0.5) * (given - 1) / (count - 1)
    matrix = np.array([[_cubic(tap + 0.5 - centre, _SLOPE_ANTIALIASED) for tap in taps] for centre in centres])
    return matrix / matrix.sum(axis=1, keepdims=True)


def _cubic(distance: float, slope: float) -> float:
    """Returns the weight of a tap at a distance in pixels (Keys 1981)."""
    d = abs(distance)
    if d <= 1:
        return (slope + 2) * d**3 - (slope + 3) * d**2 + 1
    return slope * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


@dataclasses.dataclass(frozen=True)
class VitForm:
    """The form of a vision transformer.

    Attributes:
      channels: per token.
      heads: per attention.
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


# Forms from the configs of the published weights; the grids are those of 224 px / 16 and 518 px / 14.
FORMS = {
    "vit_small": VitForm(384, 6, 1e-12, grid=14),
    "vit_base": VitForm(768, 12, 1e-12, grid=14),
    "dinov2_small": VitForm(384, 6, 1e-6, grid=37, has_scales=True, published_patch_px=14),
    "dinov2_base": VitForm(768, 12, 1e-6, grid=37, has_scales=True, published_patch_px=14),
    "dinov3_small": VitForm(384, 6, 1e-5, registers=4, has_scales=True, has_key_bias=False),
    "dinov3_base": VitForm(768, 12, 1e-5, registers=4, has_scales=True, has_key_bias=False),
}


# Rewrites the names of transformers and of timm to those of DINO's code, one rule after the other. The first part of a
# name is the network inside a network with a classifier or a decoder.
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
# Tensors that features do not need: those of the training with masked patches, of a decoder, a classifier and a pooler,
# and constants that `rotary` computes.
_DROPPED = (
    r"mask_token|decoder[._].+|(head|classifier)\..+|pooler\.dense\.(weight|bias)|rope_embed\.periods|"
    r"blocks\.\d+\.attn\.qkv\.bias_mask"
)
_PARTS = ("query", "key", "value")
_SHOWN = 3


def vit_parameters(tensors: Mapping[str, np.ndarray], name: str, source: str) -> dict[str, Any]:
    """Returns the parameters of a backbone, float32, as `make_network` has them under "backbone".

    Tensors may have the names that transformers gives to a ViTModel, ViTMAEModel, Dinov2Model or DINOv3ViTModel, alone
    or inside a model for a task, in version 5 or earlier, or the names of the original code of DINO, MAE, DINOv2 and
    DINOv3, some of which timm uses. Leaves out, by name, a mask token, a decoder, a classifier and a pooler.

    Args:
      tensors: published tensors by their names, without any other prefix (see `find_vit_prefix`).
      name: the backbone's, a key of `FORMS`.
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
      form: the network's.
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


def lightning_pose_parameters(tensors: Mapping[str, np.ndarray], name: str, source: str) -> dict[str, Any]:
    """Returns the same as `vit_parameters` from a checkpoint of Lightning Pose, which has resized the patches.

    Args:
      tensors, name, source: as in `vit_parameters`.

    Raises:
      UserError: as `vit_parameters`.
    """
    form = dataclasses.replace(FORMS[name], published_patch_px=FORMS[name].patch_px)
    return convert(tensors, form, f"{source} does not fit model.backbone = {name}")


def find_vit_prefix(tensors: Mapping[str, np.ndarray], source: str) -> str:
    """Returns the prefix of a vision transformer's tensor names: "backbone." in a checkpoint, often "".

    Raises:
      UserError: there is no vision transformer, or there are several.
    """
    matches = (re.fullmatch(r"(.*?\.)??(embeddings\.)?cls_token", name) for name in tensors)
    found = {match[1] or "" for match in matches if match}
    return only_prefix(found, ("cls_token", "embeddings.cls_token"), tensors, source, "vision transformer")


def settings_of(name: str) -> dict[str, Any]:
    """Returns the settings in a config.json of transformers that the tensors of the backbone do not reveal.

    Args:
      name: the backbone's, a key of `FORMS`.
    """
    settings = {"num_attention_heads": FORMS[name].heads, "hidden_act": "gelu"}
    return settings if FORMS[name].grid else settings | {"rope_theta": ROTARY_BASE}


def resize_patch(kernel: np.ndarray, side: int) -> np.ndarray:
    """Returns a kernel (c, 3, n, n) for patches of the same or a larger side.

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
    """Published tensors by the names of DINO's code, each taken once, and their faults."""

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
        """Returns a tensor as float32, or zeros if it has a fault, which `refuse_misfit` reports.

        Args:
          known: its name in DINO's code.
          shape: the required one.
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
        """Refuses tensors that are left over, and those with faults.

        Raises:
          UserError: there are some; it names some of each kind.
        """
        for published, _ in self._left.values():
            self._report("unknown", published)
        if self._problems:
            clauses = "; ".join(f"{what}: {listed(names, _SHOWN)}" for what, names in self._problems.items())
            raise UserError(f"{misfit}. Tensors {clauses}")

    def _report(self, problem: str, name: str) -> None:
        self._problems.setdefault(problem, []).append(name)
