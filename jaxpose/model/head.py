"""The head: from features to one map per keypoint, by pixel shuffles and sub-pixel convolutions.

A transposed convolution would have a weight gradient that is 49 to 56 times slower on CPU. A 2x2 convolution to four
times the channels and a pixel shuffle compute the same (a 3x3 transposed convolution of stride 2 is a special case).
"""

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxpose.model.layers import convolve

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
        self.kernel = nnx.Param(jax.device_put(rng.uniform(-bound, bound, shape).astype(param_dtype)))
        self.bias = nnx.Param(jax.device_put(np.zeros(out_channels, param_dtype))) if bias else None

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
        """Returns maps of twice the height and width."""
        x = convolve(x, self.kernel[...].astype(self.dtype), 1, (0, 1))
        b, h, w, c = x.shape
        phases = x.reshape(b, h, w, 2, 2, c // 4).transpose(0, 1, 3, 2, 4, 5)
        maps = phases.reshape(b, 2 * h, 2 * w, c // 4)
        return maps if self.bias is None else maps + self.bias[...].astype(self.dtype)[None, None, None]


class HeatmapHead(nnx.Module):
    """Maps features at stride 32 or 16 to logits at stride 2, 4 or 8.

    Args:
      in_channels: channels of the features, a multiple of 4.
      keypoints: number of maps.
      stride: input pixels per map cell.
      width: channels between the sub-pixel convolutions.
      feature_stride: input pixels per cell of the features.
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
        feature_stride: int = 32,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        self.begins_with_shuffle, given = given_widths(in_channels, feature_stride, stride, width)
        self.layers = nnx.List(
            [
                SubPixelConv(a, b, i + 1 < len(given), dtype=dtype, param_dtype=param_dtype, rng=rng)
                for i, (a, b) in enumerate(zip(given, [*given[1:], keypoints], strict=True))
            ]
        )

    def __call__(self, features: Float[Array, "b h w c"]) -> Float[Array, "b k h2 w2"]:
        """Returns the maps' logits in float32 (or the parameters' wider type)."""
        x = pixel_shuffle(features) if self.begins_with_shuffle else features
        for layer in self.layers:
            x = layer(x)
        return x.astype(self.layers[-1].kernel.dtype).transpose(0, 3, 1, 2)


def given_widths(in_channels: int, feature_stride: int, stride: int, width: int) -> tuple[bool, list[int]]:
    """Returns whether a head begins with a pixel shuffle, and the channels that each of its layers is given.

    The shuffle doubles the sides, and so does each layer. Where the sides double only once (features at stride 16, maps
    at stride 8), one layer does it: a shuffle alone would have no weights.

    Args:
      in_channels: channels of the features.
      feature_stride: input pixels per cell of the features.
      stride: input pixels per map cell.
      width: channels between the layers.
    """
    doublings = (feature_stride // stride).bit_length() - 1
    if doublings == 1:
        return False, [in_channels]
    return True, [in_channels // 4, *[width] * (doublings - 2)]


def pixel_shuffle(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
    """Doubles the sides by moving groups of 4 channels into 2x2 cells, in torch's channel order."""
    b, h, w, c = x.shape
    return x.reshape(b, h, w, c // 4, 2, 2).transpose(0, 1, 4, 2, 5, 3).reshape(b, 2 * h, 2 * w, c // 4)
