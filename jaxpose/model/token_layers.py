"""Layers of a vision transformer that map each token by itself."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

# Standard deviation of the initial weights, which are cut off at two of them, as DINO, DINOv2 and DINOv3 draw them.
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
