"""Normalisation that gives the same result however the batch lies on the devices."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxpose.shapes import Array, Bool, Float

DECAY = 0.9
EPSILON = 1e-5
CHANNELS_PER_GROUP = 16


class Norm(nnx.Module):
    """Batch or group normalisation of NHWC maps, with a scale and a bias per channel.

    In training, `sync` takes its statistics over the valid samples of all devices (Ioffe and Szegedy 2015 over the
    global micro-batch), `local` over this device's, `group` over the channel groups of one sample (Wu and He 2018), and
    `frozen` uses the stored ones. Outside training all but `group` use the stored ones. Sums are taken about the stored
    mean, so that a large mean does not eat the variance's digits.

    Args:
      channels: channels of the maps.
      kind: sync, local, group or frozen.
      dtype: type of the result; statistics are in `param_dtype`.
      param_dtype: type of the parameters and statistics.
      axis: name of the mesh axis that `sync` sums over.
    """

    def __init__(self, channels: int, kind: str, *, dtype: jnp.dtype, param_dtype: jnp.dtype, axis: str = "data"):
        self.kind = kind
        self.axis = axis
        self.dtype = dtype
        self.scale = nnx.Param(jnp.ones(channels, param_dtype))
        self.bias = nnx.Param(jnp.zeros(channels, param_dtype))
        if kind == "group":
            self.groups = math.gcd(channels, max(1, channels // CHANNELS_PER_GROUP))
        else:
            self.mean = nnx.BatchStat(jnp.zeros(channels, param_dtype))
            self.var = nnx.BatchStat(jnp.ones(channels, param_dtype))

    def __call__(
        self, x: Float[Array, "b h w c"], valid: Bool[Array, " b"], count: Float[Array, ""], train: bool
    ) -> Float[Array, "b h w c"]:
        """Returns the normalised maps; in training, `sync` and `local` move the stored statistics.

        Args:
          x: the maps.
          valid: which samples are real; the others reach no statistic.
          count: number of valid samples in the micro-batch, over all devices.
          train: whether this is a training pass.
        """
        scale, bias = self.scale[...], self.bias[...]
        if self.kind == "group":
            mean, var = self._group_moments(x.astype(scale.dtype))
        elif self.kind == "frozen" or not train:
            mean, var = self.mean[...], self.var[...]
        else:
            mean, var = self._batch_moments(x.astype(scale.dtype), valid, count)
        factor = lax.rsqrt(var + EPSILON) * scale
        shift = bias - mean * factor
        # In two roundings where the type is narrow: the product alone would lose the small differences.
        return (x.astype(scale.dtype) * _spread(factor) + _spread(shift)).astype(self.dtype)

    def _batch_moments(self, x: jax.Array, valid: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
        stored = self.mean[...]
        if self.kind == "local":
            count = jnp.sum(valid, dtype=x.dtype)
        cells = jnp.maximum(count, 1) * (x.shape[1] * x.shape[2])
        centred = jnp.where(valid[:, None, None, None], x - lax.stop_gradient(stored), 0)
        sums = jnp.stack([jnp.sum(centred, (0, 1, 2)), jnp.sum(jnp.square(centred), (0, 1, 2))])
        if self.kind == "sync":
            sums = lax.psum(sums, self.axis)
            self._move_statistics(lax.stop_gradient(sums), cells, count)
            # Varying again as one array, so that the backward pass needs one reduction, not two.
            sums = lax.pcast(sums, self.axis, to="varying")
        else:
            self._move_statistics(lax.stop_gradient(sums), cells, count)
        mean, square = sums[0] / cells, sums[1] / cells
        return stored + mean, jnp.maximum(square - jnp.square(mean), 0)

    def _move_statistics(self, sums: jax.Array, cells: jax.Array, count: jax.Array) -> None:
        mean = sums[0] / cells
        # The unbiased variance is stored, as torch does.
        var = jnp.maximum(sums[1] / cells - jnp.square(mean), 0) * (cells / jnp.maximum(cells - 1, 1))
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
