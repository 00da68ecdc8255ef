"""The mean over all devices, in few calls that may begin before the last gradient is known."""

from typing import Any

import jax
from jax import lax
from jax.flatten_util import ravel_pytree

from jaxpose.config.mesh import AXIS

# A call has a latency, so few are made. XLA joins calls of less than 30 MB in all on GPU; two of these are more.
_BUCKETS, _LEAST_BYTES = 4, 20_000_000


def mean_over_devices(tree: Any) -> Any:
    """Returns the mean of a tree of arrays over the devices of AXIS, equal on all of them.

    The arrays are joined in buckets, the last ones first, because the backward pass makes them in this order: while one
    bucket is sent, the next is computed. Single arrays would be merged with the reductions of norm layers by XLA.
    """
    if lax.axis_size(AXIS) == 1:
        # Nothing is sent, so copies into buckets would only take time.
        return lax.pmean(tree, AXIS)
    leaves, structure = jax.tree.flatten(tree)
    means: list[jax.Array] = []
    for bucket in _buckets(leaves[::-1]):
        vector, restore = ravel_pytree(bucket)
        means += restore(lax.pmean(vector, AXIS))
    return jax.tree.unflatten(structure, means[::-1])


def _buckets(leaves: list[jax.Array]) -> list[list[jax.Array]]:
    """Returns the arrays, in order, in lists of about the same number of bytes."""
    all_bytes = sum(leaf.nbytes for leaf in leaves)
    count = max(1, min(_BUCKETS, all_bytes // _LEAST_BYTES))
    buckets: list[list[jax.Array]] = [[] for _ in range(count)]
    before = 0
    for leaf in leaves:
        # By the middle of the array, so that no bucket exceeds its share by more than half an array.
        buckets[int((before + leaf.nbytes / 2) * count / max(all_bytes, 1))].append(leaf)
        before += leaf.nbytes
    return [bucket for bucket in buckets if bucket]
