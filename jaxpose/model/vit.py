"""Vision transformers (Dosovitskiy et al. 2021) in the forms of DINO and MAE, DINOv2, and DINOv3."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxpose.model.positions import resize_positions, rotary, rotate
from jaxpose.model.token_layers import LayerNorm, Linear, draw_normal


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
        self, x: Float[Array, "b n c"], turns: tuple[Float[Array, "n d"], Float[Array, "n d"]] | None
    ) -> Float[Array, "b n c"]:
        """Returns the tokens after the attention.

        Args:
          x: the tokens.
          turns: cosines and sines that rotate queries and keys, or None (see `rotary`).
        """
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        if turns is not None:
            query, key = rotate(query, *turns), rotate(key, *turns)
        likeness = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=self.param_dtype)
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
        self, x: Float[Array, "b n c"], turns: tuple[Float[Array, "n d"], Float[Array, "n d"]] | None
    ) -> Float[Array, "b n c"]:
        """Returns the tokens after the block; see `Attention` for the turns."""
        x = x + _scaled(self.attention(self.norm1(x), turns), self.scale1)
        return x + _scaled(self.fc2(jax.nn.gelu(self.fc1(self.norm2(x)), approximate=False)), self.scale2)


class Vit(nnx.Module):
    """A vision transformer without its classifier: from frames to the normalised tokens of the last block's patches.

    Nothing is random in training, and no frame depends on another. A class token and register tokens take part in the
    attention, and are left out of the features.

    Args:
      form: see `VitForm`; `FORMS` has the published ones.
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
        self.out_channels = channels

    def __call__(self, x: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 c"]:
        """Returns features (b, h / patch_px, w / patch_px, channels) of normalised frames."""
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
        if self.registers is not None:
            first = jnp.concatenate([first, self.registers[...]])
        first = jnp.broadcast_to(first.astype(self.dtype)[None], (b, *first.shape))
        x, turns = jnp.concatenate([first, tokens], axis=1), None
        if self.positions is None:
            turns = rotary(sides, first.shape[1], self.form.channels // self.form.heads, self.dtype)
        for block in self.blocks:
            x = block(x, turns)
        return self.norm(x)[:, first.shape[1] :].reshape(b, *sides, -1)


def _scaled(x: jax.Array, scale: nnx.Param | None) -> jax.Array:
    return x if scale is None else x * scale[...].astype(x.dtype)[None, None]
