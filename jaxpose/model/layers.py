"""Layers on NHWC arrays: convolutions and maxima in the forms that XLA runs fastest, and norms over any sharding."""

import functools
import math
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxpose.config.train import AXIS
from jaxpose.threads import arithmetic_threads

AXES = ("NHWC", "HWIO", "NHWC")
# Numbers of a gradient that fit in the cache of one core (512 KiB in float32).
_CACHED_NUMBERS = 1 << 17
# XLA divides a kernel of at least this many bytes among cores; maps of this size are worth the same effort here.
_DIVIDED_BYTES, _WORTHWHILE_BYTES = 1 << 19, 1 << 20
# Channels of an image; for so few, cuDNN's kernels leave most of a GPU's matrix units idle.
_FEW_CHANNELS = 4

# Constants of a norm: the momentum of the batch statistics, the smallest variance, and the channels of a group.
DECAY = 0.9
EPSILON = 1e-5
CHANNELS_PER_GROUP = 16


class Conv(nnx.Module):
    """A square convolution with padding of half the kernel, as torchvision's networks use it.

    Args:
      in_channels: channels of the input.
      out_channels: channels of the output.
      kernel_size: side of the kernel.
      stride: step of the kernel.
      dilation: step between the taps of the kernel; above 1 only at stride 1.
      dtype: type of the arithmetic; parameters stay in `param_dtype`.
      param_dtype: type of the parameters.
      rng: source of the initial weights (normal, variance 2 / (kernel_size^2 out_channels): He et al. 2015, fan out).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        dilation: int = 1,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        self.stride, self.dilation = stride, dilation
        self.dtype = dtype
        shape = (kernel_size, kernel_size, in_channels, out_channels)
        scale = (2.0 / (kernel_size * kernel_size * out_channels)) ** 0.5
        self.kernel = nnx.Param(jax.device_put(rng.normal(0, scale, shape).astype(param_dtype)))

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
        """Returns the convolved maps, of `ceil(side / stride)` cells."""
        kernel = self.kernel[...].astype(self.dtype)
        size = kernel.shape[0]
        if size == 1:
            # A matrix product makes the whole ResNet-50 step 2.3 times as fast on CPU.
            return x[:, :: self.stride, :: self.stride] @ kernel[0, 0]
        if self.dilation > 1:
            return _convolve_dilated(x, kernel, self.dilation)
        return convolve(x, kernel, self.stride, (size // 2, size // 2))


def _convolve_dilated(x: Float[Array, "b h w c"], kernel: Float[Array, "n n c d"], dilation: int) -> jax.Array:
    """Returns maps of the same size, convolved with a kernel whose taps are `dilation` cells apart, zeros outside.

    The cells of each phase are maps of their own and see only each other: this is an ordinary convolution of more,
    smaller maps, with the gradient of `convolve`.
    """
    batch, height, width, channels = x.shape
    rows, columns = -(-height // dilation), -(-width // dilation)
    x = jnp.pad(x, ((0, 0), (0, rows * dilation - height), (0, columns * dilation - width), (0, 0)))
    phases = x.reshape(batch, rows, dilation, columns, dilation, channels).transpose(0, 2, 4, 1, 3, 5)
    half = kernel.shape[0] // 2
    found: jax.Array = convolve(phases.reshape(-1, rows, columns, channels), kernel, 1, (half, half))
    found = found.reshape(batch, dilation, dilation, rows, columns, -1).transpose(0, 3, 1, 4, 2, 5)
    return found.reshape(batch, rows * dilation, columns * dilation, -1)[:, :height, :width]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def convolve(
    x: Float[Array, "b h w c"], kernel: Float[Array, "n n c d"], stride: int, padding: tuple[int, int]
) -> Float[Array, "b h2 w2 d"]:
    """Returns the maps convolved with a kernel, with the same padding (before, after) in both directions.

    It has a gradient of its own on the CPU. XLA's code for convolutions is fast in one order of axes only, and XLA
    reorders axes outside loops, but not inside: a weight gradient in the loop over microbatches was 40 times slower.
    """
    return _convolve(x, kernel, stride, padding)


def _convolve(x: jax.Array, kernel: jax.Array, stride: int, padding: tuple[int, int]) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), (padding, padding), dimension_numbers=AXES)


def _convolve_on_gpu(x: jax.Array, kernel: jax.Array, stride: int, padding: tuple[int, int]) -> jax.Array:
    """Returns the same as `_convolve` up to rounding, with few channels in a form that cuDNN has fast kernels for.

    The 2x2 cells of a block become channels, and a few channels of zeros fill them up to a multiple of 8, so that a
    7x7 convolution of 3 channels at stride 2 becomes a 4x4 convolution of 16 channels at stride 1.
    """
    (batch, height, width, channels), (size, _, _, maps) = x.shape, kernel.shape
    is_stem = stride == 2 and size % 2 == 1 and padding == (size // 2, size // 2) and channels <= _FEW_CHANNELS
    if not is_stem or height % 2 or width % 2:
        return _convolve(x, kernel, stride, padding)
    before, after = padding[0] % 2, (size + padding[0]) % 2
    taps, fill = (size + before + after) // 2, -4 * channels % 8
    kernel = jnp.pad(kernel, ((before, after), (before, after), (0, 0), (0, 0)))
    kernel = kernel.reshape(taps, 2, taps, 2, channels, maps).transpose(0, 2, 1, 3, 4, 5).reshape(taps, taps, -1, maps)
    x = x.reshape(batch, height // 2, 2, width // 2, 2, channels).transpose(0, 1, 3, 2, 4, 5)
    x = jnp.pad(x.reshape(batch, height // 2, width // 2, -1), ((0, 0), (0, 0), (0, 0), (0, fill)))
    kernel = jnp.pad(kernel, ((0, 0), (0, 0), (0, fill), (0, 0)))
    first = (padding[0] + before) // 2
    return _convolve(x, kernel, 1, (first, taps - 1 - first))


def _convolve_on_cores(x: jax.Array, kernel: jax.Array, stride: int, padding: tuple[int, int]) -> jax.Array:
    """Returns the same as `_convolve`, bit for bit, with all cores of a CPU.

    XLA's code divides the columns of the maps and the kernels among cores, but only if there are enough of them. So
    samples with small kernels lie side by side, with zeros between.
    """
    if arithmetic_threads() == 1 or kernel.nbytes >= _DIVIDED_BYTES or x.nbytes < _WORTHWHILE_BYTES:
        return _convolve(x, kernel, stride, padding)
    batch, height, width, channels = x.shape
    gap = max(padding)
    gap += -(width + gap) % stride
    rows = jnp.pad(x, ((0, 0), (0, 0), (0, gap), (0, 0))).transpose(1, 0, 2, 3)
    found = _convolve(rows.reshape(1, height, batch * (width + gap), channels), kernel, stride, padding)
    columns = (width + sum(padding) - kernel.shape[0]) // stride + 1
    found = found[0, :, : batch * (width + gap) // stride]
    return found.reshape(found.shape[0], batch, -1, found.shape[-1])[:, :, :columns].transpose(1, 0, 2, 3)


def _convolve_forward(x: jax.Array, kernel: jax.Array, stride: int, padding: tuple[int, int]) -> tuple:
    def plain(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return _convolve_on_gpu(x, kernel, stride, padding)

    def shared(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return _convolve_on_cores(x, kernel, stride, padding)

    return lax.platform_dependent(x, kernel, cpu=shared, default=plain), (x, kernel)


def _convolve_backward(stride: int, padding: tuple[int, int], saved: tuple, given: jax.Array) -> tuple:
    def plain(x: jax.Array, kernel: jax.Array, given: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vjp(lambda x, kernel: _convolve_on_gpu(x, kernel, stride, padding), x, kernel)[1](given)

    def ordered(x: jax.Array, kernel: jax.Array, given: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Conditions that XLA cannot know: it must have their arrays in memory first. Otherwise it computes the layers
        # before x again for each number that a transposition moves, and moves numbers in slow loops, together with a
        # slice.
        return _walled(transposed, kernel.reshape(-1)[0], x, kernel, given)

    def transposed(first: jax.Array, x: jax.Array, kernel: jax.Array, given: jax.Array) -> tuple:
        images, gradients = x.transpose(3, 1, 2, 0), given.transpose(1, 2, 0, 3)
        of_x, of_kernel = _walled(convolved, first, given, kernel.swapaxes(2, 3), images, gradients)
        return of_x, of_kernel.transpose(1, 2, 0, 3)

    def convolved(_: jax.Array, given: jax.Array, swapped: jax.Array, images: jax.Array, gradients: jax.Array) -> tuple:
        size, sides = swapped.shape[0], images.shape[1:3]
        of_x = _input_gradient(given, jnp.flip(swapped, (0, 1)), sides, stride, padding)
        return of_x, _kernel_gradient(images, gradients, size, stride, padding)

    return lax.platform_dependent(*saved, given, cpu=ordered, default=plain)


def _walled(function: Callable[..., tuple], first: jax.Array, *arrays: jax.Array) -> tuple:
    """Returns function(first, *arrays), not fused by XLA with the arrays' producers; NaN if `first` is NaN."""

    def not_numbers(*arrays: jax.Array) -> tuple:
        return jax.tree.map(lambda like: jnp.broadcast_to(arrays[0], like.shape), jax.eval_shape(function, *arrays))

    return lax.cond(first == first, function, not_numbers, first, *arrays)


def _input_gradient(
    given: jax.Array, turned: jax.Array, sides: tuple[int, ...], stride: int, padding: tuple[int, int]
) -> jax.Array:
    """Spreads the gradient to the grid of an input with these sides, and convolves it with the rotated kernel."""
    size = turned.shape[0]
    before = size - 1 - padding[0]
    if stride == 1:
        return _convolve_on_cores(given, turned, 1, (before, size - 1 - before))
    pads = [
        (before, side + size - 1 - before - (stride * (cells - 1) + 1))
        for side, cells in zip(sides, given.shape[1:3], strict=True)
    ]
    return lax.conv_general_dilated(given, turned, (1, 1), pads, lhs_dilation=(stride, stride), dimension_numbers=AXES)


def _kernel_gradient(
    images: jax.Array, gradients: jax.Array, size: int, stride: int, padding: tuple[int, int]
) -> jax.Array:
    """Convolves the input (c, h, w, b) with the gradient (h2, w2, b, d) as the kernel, and returns (c, n, n, d).

    It takes some rows of the gradient at a time. XLA reads these once for every few numbers of the result: from the
    processor's cache, this is up to twice as fast.
    """
    (height, width), (rows, columns) = images.shape[1:3], gradients.shape[:2]
    pads = padding[0], size + stride * (columns - 1) - width - padding[0]
    count = min(max(_CACHED_NUMBERS * rows // gradients.size, 1), rows)
    total = jnp.zeros((), images.dtype)
    for start in range(0, rows, count):
        part = gradients[start : start + count]
        first = start * stride - padding[0]
        last = first + stride * (part.shape[0] - 1) + size
        total = total + lax.conv_general_dilated(
            images[:, max(first, 0) : min(last, height)],
            part,
            (1, 1),
            ((max(-first, 0), max(last - height, 0)), pads),
            rhs_dilation=(stride, stride),
            dimension_numbers=AXES,
        )
    return total


convolve.defvjp(_convolve_forward, _convolve_backward)


@jax.custom_vjp
def max_pool(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """Returns the maximum over 3x3 windows at stride 2 with padding 1, as torchvision's stem does.

    It has a gradient of its own on GPUs: XLA's gradient of shifted slices took 5 % of a training step there. There, the
    first of equal numbers in a window gets the gradient, as in torch; on a CPU they share it.
    """
    return _max_pool_forward(x)[0]


def _max_pool_forward(x: jax.Array) -> tuple:
    def on_cpu(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = _max_of_slices(x)
        # No places; they vary over the devices as the maxima do.
        return found, (found < found).astype(jnp.uint8)

    found, places = lax.platform_dependent(x, cpu=on_cpu, default=_max_and_places)
    return found, (x, places)


def _max_pool_backward(saved: tuple, given: jax.Array) -> tuple[jax.Array]:
    def on_cpu(x: jax.Array, _: jax.Array, given: jax.Array) -> jax.Array:
        return jax.vjp(_max_of_slices, x)[1](given)[0]

    def by_places(x: jax.Array, places: jax.Array, given: jax.Array) -> jax.Array:
        return _give_to_places(places, given, x.shape)

    return (lax.platform_dependent(*saved, given, cpu=on_cpu, default=by_places),)


max_pool.defvjp(_max_pool_forward, _max_pool_backward)


def _max_and_places(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the maximum of each window (b, h2, w2, c), and the place of the first such number in it, 0 to 8."""
    height, width = (x.shape[1] + 1) // 2, (x.shape[2] + 1) // 2
    padded = jnp.pad(x, ((0, 0), (1, 2), (1, 2), (0, 0)), constant_values=-jnp.inf)
    found = padded[:, : 2 * height : 2, : 2 * width : 2]
    places = jnp.zeros(found.shape, jnp.uint8)
    for place in range(1, 9):
        row, column = divmod(place, 3)
        other = padded[:, row : row + 2 * height : 2, column : column + 2 * width : 2]
        places = jnp.where(other > found, jnp.uint8(place), places)
        found = jnp.maximum(found, other)
    return found, places


def _give_to_places(places: jax.Array, given: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns the gradient (b, h, w, c) of the maxima: each cell sums those of the up to four windows that chose it."""
    wide = wide_type(given.dtype)
    # After the last window, there is one that chose no place.
    places = jnp.pad(places, ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=9)
    sides = given.shape[1:3]
    given = jnp.pad(given, ((0, 0), (0, 1), (0, 1), (0, 0)))

    def chosen(row: int, column: int, here: tuple[slice, ...]) -> jax.Array:
        return jnp.where(places[here] == 3 * row + column, given[here], 0).astype(wide)

    return sum_windows(chosen, sides, shape).astype(given.dtype)


def wide_type(dtype: np.dtype) -> jax.typing.DTypeLike:
    """Returns the type for sums of numbers of a type."""
    return jnp.float32 if dtype.itemsize < 4 else dtype


def sum_windows(
    part: Callable[[int, int, tuple[slice, ...]], jax.Array], sides: tuple[int, ...], shape: tuple[int, ...]
) -> jax.Array:
    """Returns maps (b, h, w, c), each cell the sum over the up to four 3x3 windows at stride 2 that see it.

    Args:
      part: from the cell's row and column in a window, and a slice of the windows with one more at the end, to the
        window's part of the sum.
      sides: number of windows, down and across.
      shape: of the maps.
    """

    def at(row: int, column: int, down: int, right: int) -> jax.Array:
        return part(row, column, np.s_[:, down : down + sides[0], right : right + sides[1]])

    # Even cells are the middle of a window; odd ones are the end of it and the start of the next.
    ways = ([(1, 0)], [(2, 0), (0, 1)])
    cells = [
        [sum(at(row, column, down, right) for row, down in rows for column, right in columns) for columns in ways]
        for rows in ways
    ]
    sums = jnp.stack([jnp.stack(row, 3) for row in cells], 2)
    whole = sums.reshape(shape[0], 2 * sums.shape[1], 2 * sums.shape[3], shape[3])
    return whole[:, : shape[1], : shape[2]]


def _max_of_slices(x: jax.Array) -> jax.Array:
    """The maximum of nine shifted slices: the gradient of XLA's windowed maximum is a serial scatter on a CPU."""
    height, width = (x.shape[1] + 1) // 2, (x.shape[2] + 1) // 2
    padded = jnp.pad(x, ((0, 0), (1, 2), (1, 2), (0, 0)), constant_values=-jnp.inf)
    rows = padded[:, : 2 * height : 2]
    for offset in (1, 2):
        rows = jnp.maximum(rows, padded[:, offset : offset + 2 * height : 2])
    columns = rows[:, :, : 2 * width : 2]
    for offset in (1, 2):
        columns = jnp.maximum(columns, rows[:, :, offset : offset + 2 * width : 2])
    return columns


def windowed_max_pool(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """Returns the same as `max_pool`, faster forward; not for training: see there."""
    pads = ((0, 0), (1, 1), (1, 1), (0, 0))
    return lax.reduce_window(x, jnp.array(-jnp.inf, x.dtype), lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pads)


class Norm(nnx.Module):
    """Batch or group normalisation of NHWC maps, with a scale and a bias per channel.

    In training, `sync` takes its statistics over the valid samples of all devices (Ioffe and Szegedy 2015 over the
    global microbatch), `shard` over those of this shard (`train.shards`; ghost batch norm, Hoffer et al. 2017), `group`
    over the channel groups of one sample (Wu and He 2018), and `frozen` uses the stored ones. Outside training, all
    except `group` use the stored ones.

    Args:
      channels: channels of the maps.
      kind: sync, shard, group or frozen.
      groups: channel groups, for the kind group; 0 means one per 16 channels.
      dtype: type of the result; statistics are in `param_dtype`.
      param_dtype: type of the parameters and statistics.
      axis: name of the mesh axis that `sync` sums over.

    Attributes:
      is_folded: whether the norm only adds its bias, because the weights are those of `fold_norms`.
    """

    def __init__(
        self,
        channels: int,
        kind: str,
        groups: int = 0,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        axis: str = AXIS,
    ):
        self.kind = kind
        self.axis = axis
        self.dtype = dtype
        self.is_folded = False
        self.scale = nnx.Param(jax.device_put(np.ones(channels, param_dtype)))
        self.bias = nnx.Param(jax.device_put(np.zeros(channels, param_dtype)))
        if kind == "group":
            self.groups = groups or math.gcd(channels, max(1, channels // CHANNELS_PER_GROUP))
        else:
            self.mean = nnx.BatchStat(jax.device_put(np.zeros(channels, param_dtype)))
            self.var = nnx.BatchStat(jax.device_put(np.ones(channels, param_dtype)))

    def __call__(
        self, x: Float[Array, "b h w c"], counted: Bool[Array, " b"], count: Float[Array, ""], train: bool
    ) -> Float[Array, "b h w c"]:
        """Returns the normalised maps; in training, `sync` and `shard` update the stored statistics.

        Args:
          x: the maps; finite, even in empty slots.
          counted: which samples enter the statistics: not empty slots, and only one of a frame's copies on several
            devices. Other copies are normalised by the same statistics, and their gradients flow back through these.
          count: number of counted samples in the microbatch, over all devices.
          train: whether this is a training pass.
        """
        scale, bias = self.scale[...], self.bias[...]
        x = x.astype(scale.dtype)
        if self.kind == "group":
            mean, var = self._group_moments(x)
            factor = _spread(lax.rsqrt(var + EPSILON)) * _spread(scale)
            return ((x - _spread(mean)) * factor + _spread(bias)).astype(self.dtype)
        if self.is_folded:
            return (x + _spread(bias)).astype(self.dtype)
        # Relative to the stored mean, so that a large mean costs no digits of the variance. It gets no gradient.
        x = x - _spread(self.mean[...])
        if self.kind == "frozen" or not train:
            factor = _spread(lax.rsqrt(self.var[...] + EPSILON) * scale)
            return (x * factor + _spread(bias)).astype(self.dtype)
        axis = self.axis if self.kind == "sync" else None
        if axis is None:
            count = jnp.sum(counted, dtype=x.dtype)
        cells = jnp.maximum(count, 1) * (x.shape[1] * x.shape[2])
        # pyright does not know the type behind custom_vjp.
        y, mean, var = cast(tuple[jax.Array, jax.Array, jax.Array], _batch_norm(x, scale, bias, counted, cells, axis))
        self._move_statistics(lax.stop_gradient(mean), lax.stop_gradient(var), cells, count)
        return y.astype(self.dtype)

    def _move_statistics(self, mean: jax.Array, var: jax.Array, cells: jax.Array, count: jax.Array) -> None:
        # The unbiased variance is stored, as torch does.
        var = var * (cells / jnp.maximum(cells - 1, 1))
        rate = jnp.where(count > 0, 1 - DECAY, 0.0).astype(mean.dtype)
        # Not `self.mean[...] = `: flax would ask for the sharding of a tracer, and JAX would write an error message.
        self.mean.set_value(self.mean[...] + rate * mean)
        self.var.set_value(self.var[...] + rate * (var - self.var[...]))

    def _group_moments(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        b, h, w, c = x.shape
        grouped = x.reshape(b, h * w, self.groups, c // self.groups)
        mean = jnp.mean(grouped, (1, 3), keepdims=True)
        var = jnp.mean(jnp.square(grouped - mean), (1, 3), keepdims=True)
        repeat = jnp.ones((1, 1, 1, c // self.groups), x.dtype)
        return (mean * repeat).reshape(b, c), (var * repeat).reshape(b, c)


def _spread(values: jax.Array) -> jax.Array:
    """Returns per-channel values (c) or (b, c) in a shape that broadcasts over (b, h, w, c)."""
    return values.reshape((-1, 1, 1, values.shape[-1]))


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _batch_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, counted: jax.Array, cells: jax.Array, axis: str | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns (normalised maps, mean, variance) over the counted samples of all devices along `axis`.

    It has a gradient of its own, with one reduction forward and one backward, which takes differences before it
    multiplies. With automatic differentiation, terms would cancel only after a multiplication by 1 / deviation, which
    costs three digits in a batch of one cell.
    """
    return _batch_norm_forward(x, scale, bias, counted, cells, axis)[0]


def _batch_norm_forward(
    x: jax.Array, scale: jax.Array, bias: jax.Array, counted: jax.Array, cells: jax.Array, axis: str | None
) -> tuple:
    # Select instead of multiplying: large values of an empty slot would leave rounding errors in the sums.
    real = jnp.where(counted[:, None, None, None], x, 0)
    sums = _sum_over(jnp.stack([jnp.sum(real, (0, 1, 2)), jnp.sum(jnp.square(real), (0, 1, 2))]), axis)
    mean = sums[0] / cells
    var = jnp.maximum(sums[1] / cells - jnp.square(mean), 0)
    inverse = lax.rsqrt(var + EPSILON)
    normalised = (x - _spread(mean)) * _spread(inverse)
    return (normalised * _spread(scale) + _spread(bias), mean, var), (x, scale, counted, cells, mean, inverse)


def _batch_norm_backward(axis: str | None, saved: tuple, cotangents: tuple) -> tuple:
    """The gradient of Ioffe and Szegedy 2015, section 3, with its two sums over all samples in one reduction.

    The gradient of the statistics comes from every sample, including copies, and goes only to the counted samples.
    """
    x, scale, counted, cells, mean, inverse = saved
    given = cotangents[0]
    normalised = (x - _spread(mean)) * _spread(inverse)
    local = jnp.stack([jnp.sum(given, (0, 1, 2)), jnp.sum(given * normalised, (0, 1, 2))])
    means = _sum_over(local, axis) / cells
    through = jnp.where(counted[:, None, None, None], _spread(means[0]) + normalised * _spread(means[1]), 0)
    return (given - through) * _spread(inverse * scale), local[1], local[0], None, None


_batch_norm.defvjp(_batch_norm_forward, _batch_norm_backward)


def _sum_over(sums: jax.Array, axis: str | None) -> jax.Array:
    return sums if axis is None else lax.psum(sums, axis)


# For prediction: folds batch normalisation with stored statistics into the convolutions before it.


def fold_norms(params: dict[Any, Any], statistics: dict[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Returns weights for the same outputs outside training, with norms that only add a bias.

    Kernels take over the scale of the norm after them. All norms get scale 1, mean 0 and variance 1 - EPSILON, so the
    weights still fit the same network; `apply_network` with `is_folded` leaves these out. Networks without stored
    statistics (group normalisation, transformers) are returned as they are.

    Args:
      params: parameters of a network or a part of it, arrays on this host; they are not changed.
      statistics: its batch statistics, likewise.
    """
    params, statistics = dict(params), dict(statistics)
    for name, below in statistics.items():
        if "mean" not in below:
            params[name], statistics[name] = fold_norms(params[name], below)
            continue
        # bn1 comes after conv1; in a list of layers, 1 comes after 0.
        conv = name - 1 if isinstance(name, int) else name.replace("bn", "conv")
        kernel, norm = params[conv]["kernel"], params[name]
        # In float64, so that only the results are rounded.
        factor = np.asarray(norm["scale"], np.float64) / np.sqrt(np.asarray(below["var"], np.float64) + EPSILON)
        bias = np.asarray(norm["bias"], np.float64) - np.asarray(below["mean"], np.float64) * factor
        params[conv] = params[conv] | {"kernel": (kernel * factor).astype(kernel.dtype)}
        params[name] = {"scale": np.ones_like(norm["scale"]), "bias": bias.astype(kernel.dtype)}
        statistics[name] = {"mean": np.zeros_like(below["mean"]), "var": np.full_like(below["var"], 1 - EPSILON)}
    return params, statistics
