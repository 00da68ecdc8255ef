"""Whether all devices hold the same state: each has its own copy, and only equal gradients keep them so."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxpose.config.mesh import AXIS

_BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


class Replicas:
    """The copies of a state on the devices of a mesh.

    Args:
      mesh: the devices.
    """

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        self._checksums = jax.jit(jax.shard_map(self._of_each, mesh=mesh, in_specs=P(), out_specs=P()))

    def differing(self, state: Any) -> list[str]:
        """Returns the names of devices whose copy is not the one that most of them hold; to be called by every process.

        Where none is held by most of them, all devices.
        """
        if self._mesh.size == 1:
            return []
        sums = np.asarray(self._checksums(jax.tree.leaves(state)))
        values, counts = np.unique(sums, return_counts=True)
        # None is, if there are as many of another one.
        usual = values[np.argmax(counts)] if 2 * counts.max() > len(sums) else -1
        devices = list(self._mesh.devices.flat)
        return [
            f"{device.platform}:{device.local_hardware_id or 0} of process {device.process_index}"
            for device, value in zip(devices, sums, strict=True)
            if value != usual
        ]

    def _of_each(self, leaves: list[jax.Array]) -> jax.Array:
        """Returns a number for each device's bits, uint32 (devices,): a bit that flips anywhere changes it."""
        total = jnp.uint32(0)
        for leaf in leaves:
            bits = lax.bitcast_convert_type(leaf, _BITS[leaf.dtype.itemsize]).reshape(-1)
            words = bits.astype(jnp.uint32)
            if bits.dtype == jnp.uint64:
                words = words ^ (bits >> jnp.uint64(32)).astype(jnp.uint32)
            # Odd, so that no bit is lost, and different from place to place, so that an exchange is seen.
            place = 2 * lax.iota(jnp.uint32, words.size) + 1
            total = total * jnp.uint32(31) + jnp.sum(words * place, dtype=jnp.uint32)
        mine = lax.axis_index(AXIS) == lax.iota(jnp.int32, self._mesh.size)
        return lax.psum(jnp.where(mine, total, jnp.uint32(0)), AXIS)
