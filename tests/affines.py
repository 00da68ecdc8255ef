"""Affine maps, composed."""

from typing import Any

Array = Any


def compose(outer: Array, inner: Array) -> Array:
    """Returns the affine (..., 2, 3) that applies `inner` first and `outer` to its result."""
    columns = outer[..., :, :1] * inner[..., :1, :] + outer[..., :, 1:2] * inner[..., 1:, :]
    xp = columns.__array_namespace__()
    return xp.concatenate([columns[..., :2], columns[..., 2:] + outer[..., 2:]], axis=-1)
