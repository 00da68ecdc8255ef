"""The regression head: from features to one point per keypoint, without maps."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

# Small, so that training starts with every point near the centre of the input.
_GAIN = 0.01


class RegressionHead(nnx.Module):
    """Averages the features over the image and applies one linear layer; 0 is the input's centre, and 1 is its side.

    Lightning Pose's `LinearRegressionHead` gives pixels. Its linear_layer.weight (2 k, c) and bias (2 k), seen
    as (k, 2, c) and (k, 2) = (keypoint, x or y), become, for an input of `side` = (width, height):

      kernel (c, 2, k)  weight with its axes turned to (2, 1, 0), divided by side
      bias (2, k)       (bias - (side - 1) / 2) / side, transposed

    Args:
      in_channels: channels of the features.
      keypoints: number of points.
      dtype: type of the arithmetic.
      param_dtype: type of the parameters.
      rng: source of the initial weights.
    """

    def __init__(
        self,
        in_channels: int,
        keypoints: int,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        self.dtype = dtype
        bound = _GAIN * (6 / (in_channels + 2 * keypoints)) ** 0.5
        first = rng.uniform(-bound, bound, (in_channels, 2, keypoints)).astype(param_dtype)
        self.kernel = nnx.Param(jax.device_put(first))
        self.bias = nnx.Param(jax.device_put(np.zeros((2, keypoints), param_dtype)))

    def __call__(self, features: Float[Array, "q h w c"], size_px: tuple[int, int]) -> Float[Array, "q k 2"]:
        """Returns points (x, y) in input pixels, in float32 (or the parameters' wider type).

        Args:
          features: of the frames.
          size_px: (height, width) of the input.
        """
        kernel, bias = self.kernel[...], self.bias[...]
        # Not in `dtype`: in an image of 256 px, bfloat16 resolves only half a pixel.
        pooled = features.astype(self.dtype).mean((1, 2)).astype(kernel.dtype)
        shares = jnp.einsum("qc,cdk->qkd", pooled, kernel, precision="highest") + bias.T[None]
        sides = jnp.array(size_px[::-1], kernel.dtype)[None, None]
        return (sides - 1) / 2 + sides * shares
