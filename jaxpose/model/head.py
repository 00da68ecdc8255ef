"""The head: from features to one map per keypoint, by pixel shuffles and sub-pixel convolutions.

A transposed convolution would have a weight gradient that is 49 to 56 times slower on CPU. A 2x2 convolution to four
times the channels and a pixel shuffle compute the same (a 3x3 transposed convolution of stride 2 is a special case).
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxpose.model.conv import convolve

# Small, so that training starts from nearly uniform maps, as in Lightning Pose.
_GAIN = 0.01


class SubPixelConv(nnx.Module):
    """Doubles the sides of NHWC maps: a 2x2 convolution to four phases, interleaved.

    Args:
      in_channels: channels of the input.
      out_channels: channels of the output.
      bias: whether each channel has a bias; before a softmax over the map, a bias has no effect and would drift.
      dtype: type of the arithmetic.
      param_dtype: type of the parameters.
      rng: source of the initial weights.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        bias: bool,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        self.dtype = dtype
        # Xavier's bound (Glorot and Bengio 2010) for the 3x3 transposed convolution that this replaces.
        bound = _GAIN * (6 / (9 * (in_channels + out_channels))) ** 0.5
        shape = (2, 2, in_channels, 4 * out_channels)
        self.kernel = nnx.Param(jnp.asarray(rng.uniform(-bound, bound, shape), param_dtype))
        self.bias = nnx.Param(jnp.zeros(out_channels, param_dtype)) if bias else None

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
        """Returns maps of twice the height and width."""
        x = convolve(x, self.kernel[...].astype(self.dtype), 1, (0, 1))
        b, h, w, c = x.shape
        phases = x.reshape(b, h, w, 2, 2, c // 4).transpose(0, 1, 3, 2, 4, 5)
        maps = phases.reshape(b, 2 * h, 2 * w, c // 4)
        return maps if self.bias is None else maps + self.bias[...].astype(self.dtype)[None, None, None]


class HeatmapHead(nnx.Module):
    """Maps features at stride 32 to logits at stride 2, 4 or 8.

    Args:
      in_channels: channels of the features, a multiple of 4.
      keypoints: number of maps.
      stride: input pixels per map cell.
      width: channels between the sub-pixel convolutions.
      dtype: type of the arithmetic.
      param_dtype: type of the parameters.
      rng: source of the initial weights.
    """

    def __init__(
        self,
        in_channels: int,
        keypoints: int,
        stride: int,
        width: int,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        doublings = {8: 1, 4: 2, 2: 3}[stride]
        widths = [in_channels // 4, *[width] * (doublings - 1), keypoints]
        self.layers = nnx.List(
            [
                SubPixelConv(a, b, i + 1 < doublings, dtype=dtype, param_dtype=param_dtype, rng=rng)
                for i, (a, b) in enumerate(zip(widths[:-1], widths[1:], strict=True))
            ]
        )

    def __call__(self, features: Float[Array, "b h w c"]) -> Float[Array, "b k h2 w2"]:
        """Returns the maps' logits in float32 (or the parameters' wider type)."""
        x = pixel_shuffle(features)
        for layer in self.layers:
            x = layer(x)
        return x.astype(self.layers[-1].kernel.dtype).transpose(0, 3, 1, 2)


def pixel_shuffle(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
    """Doubles the sides by moving groups of 4 channels into 2x2 cells, in torch's channel order."""
    b, h, w, c = x.shape
    return x.reshape(b, h, w, c // 4, 2, 2).transpose(0, 1, 4, 2, 5, 3).reshape(b, 2 * h, 2 * w, c // 4)
