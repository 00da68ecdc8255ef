"""The deconvolution head: from the last features to one map per keypoint, as in DeepLabCut."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxpose.model.layers import convolve

# Of the last layer's weights; DeepLabCut's.
_DECONV_DEVIATION = 0.001


class Deconv(nnx.Module):
    """A transposed convolution (3x3, stride 2, no padding): from maps of n cells a side to maps of 2 n + 1.

    It equals torch's `ConvTranspose2d`, whose weight (in, out, 3, 3) with its axes turned to (2, 3, 0, 1) is `kernel`.

    Args:
      in_channels: channels of the input.
      out_channels: channels of the output.
      deviation: standard deviation of the initial weights.
      bias: whether each channel has a bias.
      dtype: type of the arithmetic.
      param_dtype: type of the parameters.
      rng: source of the initial weights.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        deviation: float,
        bias: bool,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        self.dtype = dtype
        first = rng.normal(0, deviation, (3, 3, in_channels, out_channels))
        self.kernel = nnx.Param(jax.device_put(first.astype(param_dtype)))
        self.bias = nnx.Param(jax.device_put(np.zeros(out_channels, param_dtype))) if bias else None

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
        """Returns maps of twice the height and width and one cell more."""
        b, h, w, c = x.shape
        # One more cell at the end, whose second phase is cut off again.
        x = convolve(jnp.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0))), self._phases(), 1, (1, 0))
        phases = x.reshape(b, h + 1, w + 1, 2, 2, -1).transpose(0, 1, 3, 2, 4, 5)
        maps = phases.reshape(b, 2 * (h + 1), 2 * (w + 1), -1)[:, :-1, :-1]
        return maps if self.bias is None else maps + self.bias[...].astype(self.dtype)[None, None, None]

    def _phases(self) -> Float[Array, "2 2 c d"]:
        """Returns the kernel of the convolution to four phases.

        Along each axis, even cells see the previous cell by tap 2 and their own by tap 0, and odd cells only their own,
        by tap 1.
        """
        kernel = self.kernel[...].astype(self.dtype)
        for axis in (0, 1):
            taps = [jax.lax.index_in_dim(kernel, tap, axis) for tap in range(3)]
            kernel = jnp.concatenate([taps[2], jnp.zeros_like(taps[0]), taps[0], taps[1]], axis)
        c, d = kernel.shape[2:]
        return kernel.reshape(2, 2, 2, 2, c, d).transpose(0, 2, 4, 1, 3, 5).reshape(2, 2, c, 4 * d)


class DeconvHead(nnx.Module):
    """Maps features at stride 32 or 16 to maps at stride 2, 4 or 8: transposed convolutions with ReLUs in between.

    Args:
      in_channels: channels of the features.
      keypoints: number of maps.
      offsets: whether each keypoint also has two maps of offsets, from layers of their own (location refinement).
      stride: input pixels per map cell.
      width: channels between the layers.
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
        offsets: bool = False,
        feature_stride: int = 32,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        dtypes = {"dtype": dtype, "param_dtype": param_dtype, "rng": rng}
        self.doublings = (feature_stride // stride).bit_length() - 1
        self.has_offsets = offsets

        def layers(out_channels: int) -> Sequence[Deconv]:
            widths = [in_channels, *[width] * (self.doublings - 1)]
            # Each output cell sums 9 / 4 taps on average; the variance is that of He et al. 2015 before a ReLU.
            hidden = [
                Deconv(a, b, (8 / (9 * a)) ** 0.5, True, **dtypes) for a, b in zip(widths[:-1], widths[1:], strict=True)
            ]
            # Before a softmax over the map, a bias has no effect and would drift.
            return nnx.List([*hidden, Deconv(widths[-1], out_channels, _DECONV_DEVIATION, offsets, **dtypes)])

        self.layers = layers(keypoints)
        if offsets:
            # The channels are (x or y, keypoint).
            self.offsets = layers(2 * keypoints)

    def __call__(self, features: Float[Array, "b h w c"]) -> Float[Array, "b k ..."]:
        """Returns the maps in float32 (or the parameters' wider type).

        Without offsets, they are logits (b, k, 2^n h, 2^n w) of n layers: cells past the input are cut off. With
        offsets, they are (b, k, 3, h2, w2), the map and its offsets along x and y, with all cells, as in DeepLabCut.
        """
        maps = _maps(self.layers, features)
        if not self.has_offsets:
            height, width = (side << self.doublings for side in features.shape[1:3])
            return maps[:, :, :height, :width]
        b, k, height, width = maps.shape
        offsets = _maps(self.offsets, features).reshape(b, 2, k, height, width)
        return jnp.concatenate([maps[:, None], offsets], axis=1).transpose(0, 2, 1, 3, 4)


def _maps(layers: Sequence[Deconv], x: Float[Array, "b h w c"]) -> Float[Array, "b k h2 w2"]:
    *hidden, last = layers
    for layer in hidden:
        x = jax.nn.relu(layer(x))
    return last(x).astype(last.kernel.dtype).transpose(0, 3, 1, 2)
