"""The heads of a network: from the features of a backbone to heatmaps or points."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxpose.model.layers import Conv, convolve

# The heatmap head: from features to one map per keypoint, by pixel shuffles and sub-pixel convolutions.
#
# On a CPU, the weight gradient of a transposed convolution would be 49 to 56 times slower. A 2x2 convolution to four
# times the channels and a pixel shuffle compute the same (a 3x3 transposed convolution of stride 2 is a special case).

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
    """Returns whether a head begins with a pixel shuffle, and the input channels of each of its layers.

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


# The regression head: from features to one point per keypoint, without maps.

# Small, so that training starts with every point near the centre of the input.


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
          features: the frames'.
          size_px: (height, width) of the input.
        """
        kernel, bias = self.kernel[...], self.bias[...]
        # Not in `dtype`: in an image of 256 px, bfloat16 resolves only half a pixel.
        pooled = features.astype(self.dtype).mean((1, 2)).astype(kernel.dtype)
        shares = jnp.einsum("qc,cdk->qkd", pooled, kernel, precision="highest") + bias.T[None]
        sides = jnp.array(size_px[::-1], kernel.dtype)[None, None]
        return (sides - 1) / 2 + sides * shares


# Lightning Pose's recurrent head: from the features of neighbouring frames to one map per keypoint.

# Number of frames that one map depends on: the frame itself and two on either side.
WINDOW = 5

# Channels between the two convolutions of a recurrence step.
_INNER = 16


class ContextHead(nnx.Module):
    """Maps features of sequences at stride 32 or 16 to the logits of every window of 5 frames, at stride 2, 4 or 8.

    This is Lightning Pose's `UpsamplingCRNN`. Its tensors (features at stride 32, maps at stride 4, width = keypoints)
    convert as follows; from features at stride 16, neither W_pre nor layers.0 exists:

      layers.0          W_pre.weight (c, k, 3, 3) as `SubPixelConv` below; W_pre.bias as it is
      forward_input     W_f.weight and W_f.bias, in the same way
      backward_input    W_b.weight and W_b.bias
      forward_step      H_f.0 and H_f.1, see `CellStep`
      backward_step     H_b.0 and H_b.1

    A transposed convolution of 3x3, stride 2, padding 1 and output padding 1 is the `SubPixelConv` whose kernel
    (2, 2, c, 4 k), seen as (row, column, c, phase row, phase column, k) of sides 2, 2, c, 2, 2, k, holds in phase 0 the
    tap 1 at place 0, in phase 1 the tap 2 at place 0 and the tap 0 at place 1, along rows as along columns, and 0
    elsewhere. Its first weights are as small as the other head's: with weights of Lightning Pose's size, training from
    random weights with few labels ended in larger errors on average (benchmarks/semi_supervised.md).

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
          features: from s consecutive frames of each sequence.

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
    """Returns the number of windows in a sequence of frames.

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


# The pyramid head: from features at several strides to one map per keypoint; finer features refine the coarse maps.
#
# This is a feature pyramid (Lin et al., CVPR 2017) that is only as fine as the maps. A head that sees only the last
# features must learn each place within a cell of 32 px separately; here, the features at the maps' own stride locate
# the keypoint within the cell, in the same way everywhere in the frame.

# Small, so that training starts from nearly uniform maps.
_LAST_DEVIATION = 0.01


class PyramidLevel(nnx.Module):
    """Adds features of one stride to the previous, twice as coarse maps, and convolves the sum (3x3, bias, ReLU).

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
          coarse: maps of the previous level; None at the first level.
          features: at this stride; None if the backbone has none.
        """
        parts = [] if coarse is None else [doubled(coarse)]
        if self.lateral is not None and features is not None:
            parts.append(self.lateral(features))
        return jax.nn.relu(self.conv(sum(parts[1:], parts[0])) + self.bias[...].astype(self.dtype)[None, None, None])


class PyramidHead(nnx.Module):
    """Maps features at one stride or more to logits at stride 2, 4 or 8.

    Args:
      level_channels: channels of the features at each stride, the coarsest first, each stride half the one before.
      keypoints: number of maps.
      stride: input pixels per map cell.
      width: channels of the maps in between.
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


# The probability of a centre that a finder starts from, so that the many cells without one do not dominate.
_FIRST_PROBABILITY = 0.01


class FinderHead(PyramidHead):
    """A `PyramidHead` whose maps are a finder's: the logits of centres, then the offsets to the keypoints (x, y, ...).

    Args:
      level_channels: channels of the features at each stride, the coarsest first, each stride half the one before.
      keypoints: number of keypoints.
      stride: input pixels per map cell.
      width: channels of the maps in between.
      feature_stride: input pixels per cell of the coarsest features.
      dtypes: dtype, param_dtype and rng, as of a `PyramidHead`.
    """

    def __init__(
        self,
        level_channels: Sequence[int],
        keypoints: int,
        stride: int,
        width: int,
        *,
        feature_stride: int,
        **dtypes: Any,
    ):
        maps = 1 + 2 * keypoints
        super().__init__(level_channels, maps, stride, width, feature_stride=feature_stride, **dtypes)
        first = np.zeros(maps, dtypes["param_dtype"])
        first[0] = np.log(_FIRST_PROBABILITY / (1 - _FIRST_PROBABILITY))
        self.bias = nnx.Param(jax.device_put(first))

    def __call__(self, maps: Float[Array, "b h w c"]) -> Float[Array, "b k h w"]:
        """Returns the 1 + 2 k maps in float32 (or the parameters' wider type)."""
        return super().__call__(maps) + self.bias[...][None, :, None, None]


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
          maps: from s consecutive frames of each sequence.

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
    """Returns the layer from maps to logits. A bias would have no effect before a softmax over the map."""
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
