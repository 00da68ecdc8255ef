"""Normalisation whose result does not depend on how the batch is sharded."""

import functools
import math
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxpose.config.mesh import AXIS

DECAY = 0.9
EPSILON = 1e-5
CHANNELS_PER_GROUP = 16


class Norm(nnx.Module):
    """Batch or group normalisation of NHWC maps, with a scale and a bias per channel.

    In training, `sync` takes its statistics over the valid samples of all devices (Ioffe and Szegedy 2015 over the
    global microbatch), `shard` over those of this shard (`train.shards`; ghost batch norm, Hoffer et al. 2017), `group`
    over the channel groups of one sample (Wu and He 2018), and `frozen` uses the stored ones. Outside training, all but
    `group` use the stored ones.

    Args:
      channels: channels of the maps.
      kind: sync, shard, group or frozen.
      groups: of channels, for the kind group; 0 stands for one in 16 channels.
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
          counted: which samples enter the statistics: no empty slots, and only one copy of a frame that several devices
            have. Other copies are normalised by the same statistics, and their gradients flow back through these.
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
        self.mean[...] = self.mean[...] + rate * mean
        self.var[...] = self.var[...] + rate * (var - self.var[...])

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
