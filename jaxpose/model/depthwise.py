"""Depthwise 3x3 convolutions of NHWC arrays, in the form that XLA runs fastest on each platform."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from jaxpose.model.layers import AXES, sum_windows, wide_type


class DepthwiseConv(nnx.Module):
    """A 3x3 convolution with padding 1 of each channel by itself.

    Args:
      channels: channels of the input and the output.
      stride: step of the kernel, 1 or 2.
      dtype: type of the arithmetic; parameters stay in `param_dtype`.
      param_dtype: type of the parameters.
      rng: source of the initial weights (normal, variance 2 / 9: He et al. 2015, fan out of one channel).
    """

    def __init__(
        self,
        channels: int,
        stride: int,
        *,
        dtype: jax.typing.DTypeLike,
        param_dtype: jax.typing.DTypeLike,
        rng: np.random.Generator,
    ):
        self.stride = stride
        self.dtype = dtype
        kernel = rng.normal(0, (2 / 9) ** 0.5, (3, 3, 1, channels))
        self.kernel = nnx.Param(jax.device_put(kernel.astype(param_dtype)))

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
        """Returns the convolved maps, of `ceil(side / stride)` cells."""
        return depthwise(x, self.kernel[...].astype(self.dtype), self.stride)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def depthwise(x: Float[Array, "b h w c"], kernel: Float[Array, "3 3 1 c"], stride: int) -> Float[Array, "b h2 w2 c"]:
    """Returns each channel convolved with its own kernel, with padding 1, at stride 1 or 2.

    On a CPU, XLA's code for grouped convolutions and their gradients is many times slower than sums of shifted
    products.
    """
    return _depthwise_forward(x, kernel, stride)[0]


def _depthwise_forward(x: jax.Array, kernel: jax.Array, stride: int) -> tuple:
    def grouped(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return _grouped(x, kernel, stride)

    def shifted(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return _sum_of_taps(x, kernel, stride)

    return lax.platform_dependent(x, kernel, cpu=shifted, default=grouped), (x, kernel)


def _depthwise_backward(stride: int, saved: tuple, given: jax.Array) -> tuple:
    def grouped(x: jax.Array, kernel: jax.Array, given: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vjp(lambda x, kernel: _grouped(x, kernel, stride), x, kernel)[1](given)

    def shifted(x: jax.Array, kernel: jax.Array, given: jax.Array) -> tuple[jax.Array, jax.Array]:
        if stride == 1:
            of_x = _sum_of_taps(given, jnp.flip(kernel, (0, 1)), 1)
        else:
            of_x = _spread_taps(given, kernel, x.shape)
        return of_x, _tap_gradients(x, given, stride)

    return lax.platform_dependent(*saved, given, cpu=shifted, default=grouped)


depthwise.defvjp(_depthwise_forward, _depthwise_backward)


def _grouped(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), [(1, 1)] * 2, dimension_numbers=AXES, feature_group_count=x.shape[-1]
    )


def _sum_of_taps(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Returns the same as `_grouped`: the sum of nine shifted maps, each times its tap of the kernel."""
    wide = wide_type(x.dtype)
    height, width = (stride * ((side - 1) // stride) + 1 for side in x.shape[1:3])
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    total = jnp.zeros((), wide)
    for i, j in np.ndindex(3, 3):
        shifted = padded[:, i : i + height : stride, j : j + width : stride].astype(wide)
        total = total + shifted * kernel[i, j][None, None].astype(wide)
    return total.astype(x.dtype)


def _spread_taps(given: jax.Array, kernel: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns the gradient of an input (b, h, w, c) at stride 2."""
    wide = wide_type(given.dtype)
    padded = jnp.pad(given, ((0, 0), (0, 1), (0, 1), (0, 0)))

    def part(row: int, column: int, here: tuple[slice, ...]) -> jax.Array:
        return padded[here].astype(wide) * kernel[row, column][None, None].astype(wide)

    return sum_windows(part, given.shape[1:3], shape).astype(given.dtype)


def _tap_gradients(x: jax.Array, given: jax.Array, stride: int) -> jax.Array:
    """Returns the gradient of a kernel: a loop over rows adds up their products with three rows of the input.

    As nine sums over whole maps, XLA computes it several times slower.
    """
    wide = wide_type(x.dtype)
    batch, rows, columns, channels = given.shape
    width = stride * (columns - 1) + 1
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))

    def add(number: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        sample, row, zero = number // rows, number % rows, jnp.zeros_like(number)
        own = lax.dynamic_slice(given, (sample, row, zero, zero), (1, 1, columns, channels))[0].astype(wide)
        seen = lax.dynamic_slice(padded, (sample, row * stride, zero, zero), (1, 3, padded.shape[2], channels))[0]
        return tuple(total + seen[:, j : j + width : stride].astype(wide) * own for j, total in enumerate(sums))

    # Of each column of the kernel; they vary over the devices as the maps do.
    sums = (jnp.zeros_like(given, wide, shape=(3, columns, channels)),) * 3
    sums = lax.fori_loop(0, batch * rows, add, sums)
    return jnp.stack([jnp.sum(total, 1) for total in sums], 1)[:, :, None].astype(x.dtype)
