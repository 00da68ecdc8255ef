"""Lightning Pose's recurrent head: from the features of neighbouring frames to one map per keypoint."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxpose.model.head import SubPixelConv, given_widths, pixel_shuffle

# Frames that one map sees: the frame itself and two on either side.
WINDOW = 5

# Channels between the two convolutions of a recurrence step.
_INNER = 16


class ContextHead(nnx.Module):
    """Maps features of sequences at stride 32 or 16 to the logits of every window of 5 frames, at stride 2, 4 or 8.

    This is Lightning Pose's `UpsamplingCRNN`. Its tensors (features at stride 32, maps at stride 4, width = keypoints)
    convert as follows; from features at stride 16, it has no W_pre and this no layers.0:

      layers.0          W_pre.weight (c, k, 3, 3) as `SubPixelConv` below; W_pre.bias as it is
      forward_input     W_f.weight and W_f.bias, in the same way
      backward_input    W_b.weight and W_b.bias
      forward_step      H_f.0 and H_f.1, see `CellStep`
      backward_step     H_b.0 and H_b.1

    A transposed convolution of 3x3, stride 2, padding 1 and output padding 1 is the `SubPixelConv` whose kernel
    (2, 2, c, 4 k), seen as (row, column, c, phase row, phase column, k) of sides 2, 2, c, 2, 2, k, holds in phase 0 the
    tap 1 at place 0, in phase 1 the tap 2 at place 0 and the tap 0 at place 1, along rows as along columns, and 0
    elsewhere. Its first weights are as small as the other head's: at the size that Lightning Pose starts from, training
    from random weights with few labels ended in larger errors on average (benchmarks/semi_supervised.md).

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
        self.begins_with_shuffle, widths = given_widths(in_channels, feature_stride, stride, width)

        def double(channels: int, out_channels: int) -> SubPixelConv:
            return SubPixelConv(channels, out_channels, True, dtype=dtype, param_dtype=param_dtype, rng=rng)

        def step() -> CellStep:
            return CellStep(keypoints, dtype=dtype, param_dtype=param_dtype, rng=rng)

        self.layers = nnx.List([double(a, b) for a, b in zip(widths[:-1], widths[1:], strict=True)])
        self.forward_input, self.backward_input = double(widths[-1], keypoints), double(widths[-1], keypoints)
        self.forward_step, self.backward_step = step(), step()

    def __call__(self, features: Float[Array, "q s h w c"]) -> Float[Array, "q s2 k h2 w2"]:
        """Returns the logits of the s - 4 windows' centre frames in float32 (or the parameters' wider type).

        Args:
          features: of s consecutive frames of each sequence.

        Raises:
          ValueError: if there are fewer than 5 frames.
        """
        frames = features.shape[1]
        windows = window_count(frames)
        flat = features.reshape(-1, *features.shape[2:])
        x = pixel_shuffle(flat) if self.begins_with_shuffle else flat
        for layer in self.layers:
            x = layer(x)
        ahead, back = (_cells(layer(x), frames) for layer in (self.forward_input, self.backward_input))

        # For all windows at once, from their first frame to their last, and in reverse.
        last, first = ahead[:, :, :, :windows], back[:, :, :, WINDOW - 1 :]
        for i in range(1, WINDOW):
            last = ahead[:, :, :, i : i + windows] + self.forward_step(last)
            first = back[:, :, :, WINDOW - 1 - i : frames - i] + self.backward_step(first)
        return _maps((last + first) / 2).astype(self.forward_input.kernel.dtype)


def window_count(frames: int) -> int:
    """Returns the number of windows in a sequence of so many frames.

    Raises:
      ValueError: if there are fewer than 5 frames.
    """
    if frames < WINDOW:
        raise ValueError(f"{frames} frames hold no window of {WINDOW}: give {WINDOW} or more, or repeat the edges")
    return frames - WINDOW + 1


class CellStep(nnx.Module):
    """One step of the recurrence: each keypoint's 2x2 cells to 16 numbers and back, without activation.

    Lightning Pose's H = a convolution (2x2, stride 2, one group a keypoint) and a transposed one (the same). Both
    are linear, so their product is computed first. Parameters, from torch's tensors of k keypoints:

      into (4, 16, k)   H.0.weight (16 k, 1, 2, 2) seen as (k, 16, 4), axes turned to (2, 1, 0)
      into_bias (16, k) H.0.bias (16 k) seen as (k, 16), transposed
      out (16, 4, k)    H.1.weight (16 k, 1, 2, 2) seen as (k, 16, 4), axes turned to (1, 2, 0)
      out_bias (k)      H.1.bias as it is

    Args:
      keypoints: number of maps.
      dtype: type of the arithmetic.
      param_dtype: type of the parameters.
      rng: source of the initial weights.
    """

    def __init__(
        self,
        keypoints: int,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        self.dtype = dtype
        # Xavier's bound as torch computes it, which ignores the groups.
        bound = (6 / (4 * (1 + _INNER * keypoints))) ** 0.5
        self.into = nnx.Param(jax.device_put(rng.uniform(-bound, bound, (4, _INNER, keypoints)).astype(param_dtype)))
        self.into_bias = nnx.Param(jax.device_put(np.zeros((_INNER, keypoints), param_dtype)))
        self.out = nnx.Param(jax.device_put(rng.uniform(-bound, bound, (_INNER, 4, keypoints)).astype(param_dtype)))
        self.out_bias = nnx.Param(jax.device_put(np.zeros(keypoints, param_dtype)))

    def __call__(self, cells: Float[Array, "k 4 q n h w"]) -> Float[Array, "k 4 q n h w"]:
        """Returns the next state of 2x2 cells; the second axis is the cell (top left, top right, bottom left, ...)."""
        into, out = self.into[...], self.out[...]
        matrix = jnp.einsum("pik,irk->krp", into, out).astype(self.dtype)
        bias = (jnp.einsum("ik,irk->kr", self.into_bias[...], out) + self.out_bias[...][:, None]).astype(self.dtype)
        # One matrix product per keypoint over all cells: 2 to 8 times as fast as 16 weighted sums with gradients.
        moved = matrix @ cells.reshape(*cells.shape[:2], -1)
        return (moved + bias[..., None]).reshape(cells.shape)


def _cells(maps: Float[Array, "b h w k"], frames: int) -> Float[Array, "k 4 q s h2 w2"]:
    """Returns maps cut into 2x2 cells, with keypoints first, so that each keypoint has one matrix."""
    _, h, w, k = maps.shape
    cells = maps.reshape(-1, frames, h // 2, 2, w // 2, 2, k).transpose(6, 3, 5, 0, 1, 2, 4)
    return cells.reshape(k, 4, *cells.shape[3:])


def _maps(cells: Float[Array, "k 4 q n h w"]) -> Float[Array, "q n k h2 w2"]:
    """Reverses `_cells`."""
    k, _, q, n, h, w = cells.shape
    return cells.reshape(k, 2, 2, q, n, h, w).transpose(3, 4, 0, 5, 1, 6, 2).reshape(q, n, k, 2 * h, 2 * w)
