"""Convolution on NHWC arrays, in the form that XLA runs fastest on both CPU and GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

_AXES = ("NHWC", "HWIO", "NHWC")
# Numbers of a gradient that stay in the cache of one core (512 KiB in float32).
_CACHED_NUMBERS = 1 << 17


class Conv(nnx.Module):
    """A square convolution with padding of half the kernel, as torchvision's networks use it.

    Args:
      in_channels: channels of the input.
      out_channels: channels of the output.
      kernel_size: side of the kernel.
      stride: step of the kernel.
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
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        self.stride = stride
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
        return convolve(x, kernel, self.stride, (size // 2, size // 2))


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
    return lax.conv_general_dilated(x, kernel, (stride, stride), (padding, padding), dimension_numbers=_AXES)


def _convolve_forward(x: jax.Array, kernel: jax.Array, stride: int, padding: tuple[int, int]) -> tuple:
    return _convolve(x, kernel, stride, padding), (x, kernel)


def _convolve_backward(stride: int, padding: tuple[int, int], saved: tuple, given: jax.Array) -> tuple:
    def plain(x: jax.Array, kernel: jax.Array, given: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vjp(lambda x, kernel: _convolve(x, kernel, stride, padding), x, kernel)[1](given)

    def ordered(x: jax.Array, kernel: jax.Array, given: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _input_gradient(x, kernel, given, stride, padding), _kernel_gradient(x, kernel, given, stride, padding)

    def walled(x: jax.Array, kernel: jax.Array, given: jax.Array) -> tuple[jax.Array, jax.Array]:
        # A condition that XLA cannot know: it must have all three arrays in memory first. Otherwise it computes the
        # layers before x again for each number that a transposition moves, which took an eighth of the step.
        first = kernel.reshape(-1)[0]
        return lax.cond(first == first, ordered, _not_numbers, x, kernel, given)

    return lax.platform_dependent(*saved, given, cpu=walled, default=plain)


def _not_numbers(x: jax.Array, kernel: jax.Array, given: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.full_like(x, jnp.nan), jnp.full_like(kernel, jnp.nan)


def _input_gradient(
    x: jax.Array, kernel: jax.Array, given: jax.Array, stride: int, padding: tuple[int, int]
) -> jax.Array:
    """Spreads the gradient to the input's grid and convolves it with the rotated kernel."""
    size = kernel.shape[0]
    before = size - 1 - padding[0]
    pads = [(before, side + size - 1 - before - (stride * (cells - 1) + 1)) for side, cells in _sides(x, given)]
    turned = jnp.flip(kernel, (0, 1)).swapaxes(2, 3)
    return lax.conv_general_dilated(given, turned, (1, 1), pads, lhs_dilation=(stride, stride), dimension_numbers=_AXES)


def _kernel_gradient(
    x: jax.Array, kernel: jax.Array, given: jax.Array, stride: int, padding: tuple[int, int]
) -> jax.Array:
    """Convolves the input with the gradient as the kernel; channels take the place of the batch.

    It does so for some rows of the gradient at a time, because XLA reads the gradient once for a few numbers of the
    result: from the processor's cache, this is up to twice as fast.
    """
    size = kernel.shape[0]
    (height, rows), (width, columns) = _sides(x, given)
    images, gradients = x.transpose(3, 1, 2, 0), given.transpose(1, 2, 0, 3)
    pads = padding[0], size + stride * (columns - 1) - width - padding[0]
    count = min(max(_CACHED_NUMBERS * rows // given.size, 1), rows)
    total = jnp.zeros((), x.dtype)
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
            dimension_numbers=_AXES,
        )
    return total.transpose(1, 2, 0, 3)


def _sides(x: jax.Array, given: jax.Array) -> zip:
    return zip(x.shape[1:3], given.shape[1:3], strict=True)


convolve.defvjp(_convolve_forward, _convolve_backward)


def max_pool(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """Returns the maximum over 3x3 windows at stride 2 with padding 1, as torchvision's stem does.

    It is a maximum of nine shifted slices, because the gradient of XLA's windowed maximum is a serial scatter on CPU.
    """
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
    """Returns the same as `max_pool`, faster forward; not for training, see there."""
    pads = ((0, 0), (1, 1), (1, 1), (0, 0))
    return lax.reduce_window(x, jnp.array(-jnp.inf, x.dtype), lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pads)
