"""Checks that all devices hold the same state: each has a copy, and only equal gradients keep the copies equal."""

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
        """Returns the names of the devices whose copy differs from that of the majority; every process must call this.

        If no copy has a majority, all devices are returned.
        """
        if self._mesh.size == 1:
            return []
        sums = np.asarray(self._checksums(jax.tree.leaves(state)))
        values, counts = np.unique(sums, return_counts=True)
        # -1 if no value has a majority.
        usual = values[np.argmax(counts)] if 2 * counts.max() > len(sums) else -1
        devices = list(self._mesh.devices.flat)
        return [
            f"{device.platform}:{device.local_hardware_id or 0} of process {device.process_index}"
            for device, value in zip(devices, sums, strict=True)
            if value != usual
        ]

    def _of_each(self, leaves: list[jax.Array]) -> jax.Array:
        """Returns a checksum of each device's copy, uint32 (devices,). Any flipped bit changes it."""
        total = jnp.uint32(0)
        for leaf in leaves:
            bits = lax.bitcast_convert_type(leaf, _BITS[leaf.dtype.itemsize]).reshape(-1)
            words = bits.astype(jnp.uint32)
            if bits.dtype == jnp.uint64:
                words = words ^ (bits >> jnp.uint64(32)).astype(jnp.uint32)
            # Odd factors lose no bit; different factors detect exchanged values.
            place = 2 * lax.iota(jnp.uint32, words.size) + 1
            total = total * jnp.uint32(31) + jnp.sum(words * place, dtype=jnp.uint32)
        mine = lax.axis_index(AXIS) == lax.iota(jnp.int32, self._mesh.size)
        return lax.psum(jnp.where(mine, total, jnp.uint32(0)), AXIS)
