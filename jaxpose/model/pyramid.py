"""The pyramid head: from features at several strides to one map per keypoint, the coarse ones refined by finer ones.

A feature pyramid (Lin et al., CVPR 2017) that is only as fine as the maps. A head that sees the last features alone
learns each place within a cell of 32 px anew; here, the features at the maps' own stride say where within the cell a
keypoint is, the same everywhere in the frame.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxpose.model.context import WINDOW, window_count
from jaxpose.model.layers import Conv

# Small, so that training starts from nearly uniform maps.
_LAST_DEVIATION = 0.01


class PyramidLevel(nnx.Module):
    """Adds features of one stride to the twice as coarse maps before, and convolves the sum (3x3, bias, ReLU).

    Args:
      in_channels: channels of the features; 0 if the backbone has none at this stride.
      width: channels of the maps.
      dtype: type of the arithmetic.
      param_dtype: type of the parameters.
      rng: source of the initial weights.
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        self.dtype = dtype

        def conv(channels: int, size: int) -> Conv:
            return Conv(channels, width, size, dtype=dtype, param_dtype=param_dtype, rng=rng)

        self.lateral = conv(in_channels, 1) if in_channels else None
        self.conv = conv(width, 3)
        self.bias = nnx.Param(jax.device_put(np.zeros(width, param_dtype)))

    def __call__(
        self, coarse: Float[Array, "b h w c"] | None, features: Float[Array, "b h2 w2 d"] | None
    ) -> Float[Array, "b h2 w2 c"]:
        """Returns the maps of this level.

        Args:
          coarse: maps of the level before; None at the first level.
          features: of this stride; None if the backbone has none.
        """
        parts = [] if coarse is None else [doubled(coarse)]
        if self.lateral is not None and features is not None:
            parts.append(self.lateral(features))
        return jax.nn.relu(self.conv(sum(parts[1:], parts[0])) + self.bias[...].astype(self.dtype)[None, None, None])


class PyramidHead(nnx.Module):
    """Maps features at one stride or more to logits at stride 2, 4 or 8.

    Args:
      level_channels: channels of the features at each stride, the coarsest first, each stride half of the one before.
      keypoints: number of maps.
      stride: input pixels per map cell.
      width: channels of the maps between.
      feature_stride: input pixels per cell of the coarsest features.
      dtype: type of the arithmetic.
      param_dtype: type of the parameters.
      rng: source of the initial weights.
    """

    def __init__(
        self,
        level_channels: Sequence[int],
        keypoints: int,
        stride: int,
        width: int,
        *,
        feature_stride: int = 32,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        dtypes = {"dtype": dtype, "param_dtype": param_dtype, "rng": rng}
        count = (feature_stride // stride).bit_length()
        channels = [*level_channels, *[0] * count][:count]
        levels = [PyramidLevel(of_level, width, **dtypes) for of_level in channels]
        # Levels, and the last layer; pyright has no type for a list of both.
        self.layers: nnx.List[Any] = nnx.List([*levels, last_layer(width, keypoints, **dtypes)])

    def maps(self, levels: Sequence[Float[Array, "b _ _ _"]]) -> Float[Array, "b h2 w2 c"]:
        """Returns the finest maps, before the last layer.

        Args:
          levels: features at each stride, the coarsest first; those finer than the maps are left out.
        """
        coarsest, *finer, _ = self.layers
        x = coarsest(None, levels[0])
        for number, layer in enumerate(finer, 1):
            x = layer(x, levels[number] if number < len(levels) else None)
        return x

    def __call__(self, maps: Float[Array, "b h w c"]) -> Float[Array, "b k h w"]:
        """Returns the logits of `maps` in float32 (or the parameters' wider type)."""
        return logits_of(self.layers[-1], maps)


class PyramidContext(nnx.Module):
    """Maps the finest maps of five neighbouring frames to logits: one more level, which sees all of them at once.

    Args:
      keypoints: number of maps.
      width: channels of the maps of a frame.
      dtype: type of the arithmetic.
      param_dtype: type of the parameters.
      rng: source of the initial weights.
    """

    def __init__(
        self,
        keypoints: int,
        width: int,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        dtypes = {"dtype": dtype, "param_dtype": param_dtype, "rng": rng}
        self.window = PyramidLevel(WINDOW * width, width, **dtypes)
        self.last = last_layer(width, keypoints, **dtypes)

    def __call__(self, maps: Float[Array, "q s h w c"]) -> Float[Array, "q s2 k h w"]:
        """Returns the logits of the s - 4 windows' centre frames.

        Args:
          maps: of s consecutive frames of each sequence.

        Raises:
          ValueError: if there are fewer than 5 frames.
        """
        q, frames, h, w, _ = maps.shape
        windows = window_count(frames)
        side_by_side = jnp.concatenate([maps[:, i : i + windows] for i in range(WINDOW)], axis=-1)
        logits = logits_of(self.last, self.window(None, side_by_side.reshape(q * windows, h, w, -1)))
        return logits.reshape(q, windows, *logits.shape[1:])


def last_layer(
    width: int,
    keypoints: int,
    *,
    dtype: jax.typing.DTypeLike,
    param_dtype: jax.typing.DTypeLike,
    rng: np.random.Generator,
) -> Conv:
    """Returns the layer from maps to logits. A bias, before a softmax over the map, would have no effect."""
    layer = Conv(width, keypoints, 1, dtype=dtype, param_dtype=param_dtype, rng=rng)
    first = rng.normal(0, _LAST_DEVIATION, (1, 1, width, keypoints)).astype(param_dtype)
    layer.kernel[...] = jax.device_put(first)
    return layer


def logits_of(layer: Conv, maps: Float[Array, "b h w c"]) -> Float[Array, "b k h w"]:
    """Returns the logits in float32 (or the parameters' wider type)."""
    return layer(maps).astype(layer.kernel.dtype).transpose(0, 3, 1, 2)


def doubled(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """Returns maps of twice the sides, each cell four times."""
    b, h, w, c = x.shape
    return jnp.broadcast_to(x[:, :, None, :, None], (b, h, 2, w, 2, c)).reshape(b, 2 * h, 2 * w, c)
