"""Vision transformers (Dosovitskiy et al. 2021) in the forms of DINO and MAE, DINOv2, and DINOv3."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxpose.config import ModelConfig
from jaxpose.model.vit_weights import (
    FORMS,
    VitForm,
    find_vit_prefix,
    resize_positions,
    rotary,
    rotate,
    settings_of,
    vit_parameters,
)

# Layers of a vision transformer that map each token separately.

# Standard deviation of the initial weights, which are cut off at two deviations, as in DINO, DINOv2 and DINOv3.
_DEVIATION = 0.02


class Linear(nnx.Module):
    """A linear map of the last axis.

    Args:
      in_channels: channels of the input.
      out_channels: channels of the output.
      has_bias: whether the output has a bias.
      dtype: type of the arithmetic.
      param_dtype: type of the parameters.
      rng: source of the initial weights.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        has_bias: bool = True,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        self.dtype = dtype
        self.kernel = nnx.Param(draw_normal(rng, (in_channels, out_channels), param_dtype))
        self.bias = nnx.Param(jax.device_put(np.zeros(out_channels, param_dtype))) if has_bias else None

    def __call__(self, x: Float[Array, "b n c"]) -> Float[Array, "b n d"]:
        """Returns the mapped tokens."""
        x = x @ self.kernel[...].astype(self.dtype)
        return x if self.bias is None else x + self.bias[...].astype(self.dtype)[None, None]


class LayerNorm(nnx.Module):
    """Normalises each token over its channels (Ba et al. 2016), with a scale and a bias per channel.

    Args:
      channels: channels of the tokens.
      epsilon: added to the variance.
      dtype: type of the result; the statistics are in `param_dtype`.
      param_dtype: type of the parameters.
    """

    def __init__(
        self, channels: int, epsilon: float, *, dtype: jax.typing.DTypeLike, param_dtype: jax.typing.DTypeLike
    ):
        self.epsilon = epsilon
        self.dtype = dtype
        self.scale = nnx.Param(jax.device_put(np.ones(channels, param_dtype)))
        self.bias = nnx.Param(jax.device_put(np.zeros(channels, param_dtype)))

    def __call__(self, x: Float[Array, "b n c"]) -> Float[Array, "b n c"]:
        """Returns the normalised tokens."""
        scale, bias = self.scale[...], self.bias[...]
        x = x.astype(scale.dtype)
        x = x - x.mean(-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + self.epsilon)
        return (x * scale[None, None] + bias[None, None]).astype(self.dtype)


def draw_normal(rng: np.random.Generator, shape: tuple[int, ...], param_dtype: jax.typing.DTypeLike) -> jax.Array:
    """Returns initial weights of a normal distribution; values beyond two deviations are drawn again."""
    values = rng.standard_normal(shape)
    flat = values.reshape(-1)
    beyond = np.flatnonzero(np.abs(flat) > 2)
    while beyond.size:
        flat[beyond] = rng.standard_normal(beyond.size)
        beyond = beyond[np.abs(flat[beyond]) > 2]
    return jax.device_put((_DEVIATION * values).astype(param_dtype))


class Attention(nnx.Module):
    """Attention of every token to all tokens of its frame.

    Args:
      form: channels, heads and whether keys have a bias.
      dtype: type of the arithmetic; weights of the sums are computed in `param_dtype`.
      param_dtype: type of the parameters.
      rng: source of the initial weights.
    """

    def __init__(
        self,
        form: VitForm,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        def linear(has_bias: bool) -> Linear:
            return Linear(form.channels, form.channels, has_bias, dtype=dtype, param_dtype=param_dtype, rng=rng)

        self.heads = form.heads
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.query, self.key = linear(True), linear(form.has_key_bias)
        self.value, self.out = linear(True), linear(True)

    def __call__(
        self,
        x: Float[Array, "b n c"],
        turns: tuple[Float[Array, "n d"], Float[Array, "n d"]] | None,
        exists: Bool[Array, "b n"] | None = None,
    ) -> Float[Array, "b n c"]:
        """Returns the tokens after the attention.

        Args:
          x: the tokens.
          turns: cosines and sines that rotate queries and keys, or None (see `rotary`).
          exists: the tokens that others see; None = all.
        """
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        if turns is not None:
            query, key = rotate(query, *turns), rotate(key, *turns)
        likeness = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=self.param_dtype)
        if exists is not None:
            # Finite, because in an empty slot no token exists.
            likeness = jnp.where(exists[:, None, None], likeness, jnp.finfo(likeness.dtype).min)
        weights = jax.nn.softmax(likeness * query.shape[-1] ** -0.5, axis=-1).astype(self.dtype)
        return self.out(jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape))

    def _split(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:2], self.heads, -1)


class Block(nnx.Module):
    """An attention and two linear maps of each token, each added to the input of its branch.

    Args:
      form: see `VitForm`.
      dtype: type of the arithmetic.
      param_dtype: type of the parameters.
      rng: source of the initial weights.
    """

    def __init__(
        self,
        form: VitForm,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        channels = form.channels
        dtypes: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype}
        self.norm1 = LayerNorm(channels, form.epsilon, **dtypes)
        self.attention = Attention(form, rng=rng, **dtypes)
        self.norm2 = LayerNorm(channels, form.epsilon, **dtypes)
        self.fc1 = Linear(channels, 4 * channels, rng=rng, **dtypes)
        self.fc2 = Linear(4 * channels, channels, rng=rng, **dtypes)
        self.scale1, self.scale2 = (
            nnx.Param(jax.device_put(np.ones(channels, param_dtype))) if form.has_scales else None for _ in range(2)
        )

    def __call__(
        self,
        x: Float[Array, "b n c"],
        turns: tuple[Float[Array, "n d"], Float[Array, "n d"]] | None,
        exists: Bool[Array, "b n"] | None = None,
    ) -> Float[Array, "b n c"]:
        """Returns the tokens after the block; see `Attention` for the other arguments."""
        x = x + _scaled(self.attention(self.norm1(x), turns, exists), self.scale1)
        return x + _scaled(self.fc2(jax.nn.gelu(self.fc1(self.norm2(x)), approximate=False)), self.scale2)


class Vit(nnx.Module):
    """A vision transformer without its classifier: from frames to the normalised tokens of the last block's patches.

    Nothing is random in training, and no frame depends on another, except the views of one moment: each view has a
    vector that is added to its tokens, and in the last layers a token sees those of all views. A class token and
    register tokens take part in the attention, and are left out of the features.

    Args:
      form: see `VitForm`; `FORMS` has the published ones.
      dtype: type of the arithmetic.
      param_dtype: type of the parameters.
      rng: source of the initial weights.
      views: cameras that it sees together.
      joint_layers: the last layers in which it does, 0 = all.
      has_class_token: whether class tokens take part.
    """

    def __init__(
        self,
        form: VitForm,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
        views: int = 1,
        joint_layers: int = 0,
        has_class_token: bool = True,
    ):
        channels, side = form.channels, form.patch_px
        dtypes: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype}
        self.form = form
        self.dtype = dtype
        self.patch = Linear(side * side * 3, channels, rng=rng, **dtypes)
        self.class_token = nnx.Param(draw_normal(rng, (1, channels), param_dtype))
        self.positions = nnx.Param(draw_normal(rng, (1 + form.grid**2, channels), param_dtype)) if form.grid else None
        self.registers = (
            nnx.Param(draw_normal(rng, (form.registers, channels), param_dtype)) if form.registers else None
        )
        self.blocks = nnx.List([Block(form, rng=rng, **dtypes) for _ in range(form.depth)])
        self.norm = LayerNorm(channels, form.epsilon, **dtypes)
        self.level_channels = (channels,)
        self.views = nnx.Param(draw_normal(rng, (views, channels), param_dtype)) if views > 1 else None
        self.has_class_token = has_class_token
        self.first_joint = form.depth - joint_layers if joint_layers else 0

    def __call__(
        self, x: Float[Array, "b h w 3"], exists: Bool[Array, " b"] | None = None
    ) -> Float[Array, "b h2 w2 c"]:
        """Returns features (b, h / patch_px, w / patch_px, channels) of normalised frames.

        Args:
          x: the frames; the views of a moment are neighbours.
          exists: the views that the others see.
        """
        side, (b, height, width, _) = self.form.patch_px, x.shape
        sides = height // side, width // side
        patches = x.reshape(b, sides[0], side, sides[1], side, 3).transpose(0, 1, 3, 2, 4, 5)
        # A matrix product, not a convolution, which is slow where the stride is as large as the kernel.
        tokens = self.patch(patches.reshape(b, sides[0] * sides[1], -1))
        first = self.class_token[...]
        if self.positions is not None:
            positions = self.positions[...]
            first = first + positions[:1]
            tokens = tokens + resize_positions(positions[1:], sides).astype(self.dtype)[None]
        if not self.has_class_token:
            first = first[:0]
        if self.registers is not None:
            first = jnp.concatenate([first, self.registers[...]])
        first = jnp.broadcast_to(first.astype(self.dtype)[None], (b, *first.shape))
        x, turns = jnp.concatenate([first, tokens], axis=1), None
        if self.positions is None:
            turns = rotary(sides, first.shape[1], self.form.channels // self.form.heads, self.dtype)
        x = self._joined(x, turns, exists) if self.views is not None else self._alone(x, turns, len(self.blocks))
        return self.norm(x)[:, first.shape[1] :].reshape(b, *sides, -1)

    def _alone(self, x: jax.Array, turns: tuple[jax.Array, jax.Array] | None, layers: int) -> jax.Array:
        """Returns the tokens (b, n, c) after the first layers, in which each frame is on its own."""
        for block in self.blocks[:layers]:
            x = block(x, turns)
        return x

    def _joined(self, x: jax.Array, turns: tuple[jax.Array, jax.Array] | None, exists: jax.Array | None) -> jax.Array:
        """Returns the tokens (b, n, c) after all layers, the last of which see the views of a moment together."""
        assert self.views is not None
        vectors = self.views[...].astype(self.dtype)
        (b, n, channels), views = x.shape, len(vectors)
        x = (x.reshape(-1, views, n, channels) + vectors[None, :, None]).reshape(b, n, channels)
        x = self._alone(x, turns, self.first_joint).reshape(-1, views * n, channels)
        if turns is not None:
            turns = jnp.tile(turns[0], (views, 1)), jnp.tile(turns[1], (views, 1))
        if exists is not None:
            exists = jnp.repeat(exists.reshape(-1, views), n, axis=1)
        for block in self.blocks[self.first_joint :]:
            x = block(x, turns, exists)
        return x.reshape(b, n, channels)


def _scaled(x: jax.Array, scale: nnx.Param | None) -> jax.Array:
    return x if scale is None else x * scale[...].astype(x.dtype)[None, None]


def make_backbone(model: ModelConfig, dtypes: dict[str, Any]) -> Vit:
    """Returns a backbone of this family; see `jaxpose.model.resnet.make_backbone`."""
    joint: dict[str, Any] = {}
    if "views" in dtypes:
        joint = {"joint_layers": model.joint_layers, "has_class_token": model.class_token}
    return Vit(FORMS[model.backbone], **dtypes, **joint)


def features(
    backbone: Vit, frames: Float[Array, "b h w 3"], counted: Bool[Array, " b"], count: Float[Array, ""], train: bool
) -> list[Float[Array, "b _ _ _"]]:
    """Returns the features at its only level; see `jaxpose.model.resnet.features`."""
    del count, train  # Nothing but the views of a moment depends on other frames.
    return [backbone(frames, counted)]


def fill_backbone(
    model: ModelConfig, tensors: Mapping[str, np.ndarray], params: dict, statistics: dict, source: str
) -> tuple[dict, dict]:
    """Returns (parameters, {}) of published tensors; see `jaxpose.model.pose_net.fill_backbone`."""
    del statistics  # It has none.
    filled = vit_parameters(tensors, model.backbone, source)
    # Published networks see one view.
    filled |= {name: params[name] for name in ("views",) if name in params}
    return jax.tree.map(lambda leaf, like: np.asarray(leaf, like.dtype), filled, params), {}


# The kinds in the config.json of transformers, its facts about each backbone, and the prefixes of its tensors.
MODEL_TYPES = ("vit", "vit_mae", "dinov2", "dinov3_vit")
published_settings = settings_of
find_prefix = find_vit_prefix


def timm_names(name: str) -> str:
    """Returns the pattern of timm's names of a backbone."""
    kind, _, size = name.partition("_")
    of_vit = rf"(vit|deit)_{size}_patch16_224(_dino|_mae)?"
    return {"vit": of_vit, "dinov2": rf"vit_{size}_patch14_dinov2", "dinov3": rf"vit_{size}_patch16_dinov3\w*"}[kind]
