"""Losses on heatmaps and their targets: a sum and a count per sample, never a mean.

The caller adds sums and counts over the global batch and divides once; without a used map, both are 0. The three
formulas and their weight are those of Lightning Pose 2.4 (losses/losses.py there).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

# Lightning Pose's factor of each of these losses: 1 / (2 exp(log_weight)) with log_weight 0.
HEATMAP_WEIGHT = 0.5

# Keeps the logarithms finite where a map is 0.
_TINY = 1e-10


def heatmap_mse(
    logits: Float[Array, "b k h w"], targets: Float[Array, "b k h w"], used: Bool[Array, "b k"]
) -> tuple[Float[Array, "b"], Float[Array, "b"]]:
    """Returns, per sample, the sum over used maps of the summed squared difference, and how many maps are used.

    Lightning Pose writes it as the mean over pixels of (target - map)^2 x height x width, which is this sum.

    Args:
      logits: maps before the spatial softmax; any value, even NaN, where not used.
      targets: maps that sum to 1; any value where not used.
      used: whether a map counts.
    """
    maps, targets = _probabilities(logits, targets, used)
    return _sum_and_count(jnp.square(targets - maps), used)


def heatmap_kl(
    logits: Float[Array, "b k h w"], targets: Float[Array, "b k h w"], used: Bool[Array, "b k"]
) -> tuple[Float[Array, "b"], Float[Array, "b"]]:
    """Returns, per sample, the sum of KL(target || map) over used maps, with 1e-10 added to both, and their number.

    Args: as in `heatmap_mse`.
    """
    maps, targets = _probabilities(logits, targets, used)
    return _sum_and_count(_divergence(targets + _TINY, maps + _TINY), used)


def heatmap_js(
    logits: Float[Array, "b k h w"], targets: Float[Array, "b k h w"], used: Bool[Array, "b k"]
) -> tuple[Float[Array, "b"], Float[Array, "b"]]:
    """Returns, per sample, the sum over used maps of the Jensen-Shannon divergence, and their number.

    That is 0.5 KL(target || middle) + 0.5 KL(map || middle), middle = (target + map) / 2, 1e-10 added to both.

    Args: as `heatmap_mse`.
    """
    maps, targets = _probabilities(logits, targets, used)
    maps, targets = maps + _TINY, targets + _TINY
    middle = 0.5 * (maps + targets)
    return _sum_and_count(0.5 * (_divergence(targets, middle) + _divergence(maps, middle)), used)


def heatmap_loss(kind: str) -> Callable[..., tuple[Array, Array]]:
    """Returns the loss that `model.loss` names: mse, kl or js.

    Raises:
      ValueError: there is no such loss.
    """
    losses = {"mse": heatmap_mse, "kl": heatmap_kl, "js": heatmap_js}
    if kind not in losses:
        raise ValueError(f"model.loss is {kind!r}; it must be one of {', '.join(losses)}")
    return losses[kind]


def _probabilities(logits: Array, targets: Array, used: Array) -> tuple[Array, Array]:
    # Select before any arithmetic: NaN in an unused map, times 0, would still be NaN, also in the gradient.
    used = used[..., None, None]
    return jax.nn.softmax(jnp.where(used, logits, 0), axis=(-2, -1)), jnp.where(used, targets, 0)


def _divergence(p: Array, q: Array) -> Array:
    return p * (jnp.log(p) - jnp.log(q))


def _sum_and_count(per_cell: Array, used: Array) -> tuple[Array, Array]:
    per_map = jnp.where(used, per_cell.sum((-2, -1)), 0)
    return per_map.sum(-1), used.sum(-1, dtype=per_map.dtype)
