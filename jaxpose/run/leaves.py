"""The arrays of a state by name, as a checkpoint stores them."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpose.errors import UserError


def named_leaves(tree: Any) -> dict[str, Any]:
    """Returns {name: array or ShapeDtypeStruct} of a tree: a flat dict, which can be read without the tree's classes.

    Raises:
      ValueError: two leaves have one name, or a leaf is empty.
    """
    leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name in leaves:
            raise ValueError(f"two leaves of the state are named {name!r}; keys must not contain a dot")
        if 0 in np.shape(leaf):
            raise ValueError(f"{name} is an empty array, which orbax cannot store")
        leaves[name] = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return leaves


def kinds(leaves: dict[str, Any]) -> dict[str, str]:
    """Returns {name: type and shape} of leaves, for a manifest and for messages."""
    return {name: f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}" for name, leaf in leaves.items()}


def one_copy(leaf: Any) -> Any:
    """Returns a leaf as it is stored: of an array that lies on several devices of this process, the first copy.

    For the others, orbax has each device write a slice, and compiles a program for each shape to cut it.
    """
    if isinstance(leaf, jax.Array) and len(leaf.devices()) > 1 and leaf.is_fully_addressable:
        return leaf.addressable_data(0) if leaf.is_fully_replicated else leaf
    return leaf


def restore_target(leaf: Any) -> Any:
    """Returns orbax's target for a leaf: an array with its sharding, or a numpy array."""
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return np.empty(leaf.shape, leaf.dtype)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def refuse_misfit(folder: Path, stored: dict[str, str], wanted: dict[str, str], shown: int = 5) -> None:
    """Refuses a checkpoint whose leaves (`kinds`) are not those of the state.

    Raises:
      UserError: they differ; the message has the first `shown` differences.
    """
    problems = [
        f"{name} is {stored.get(name, 'absent')} there and {wanted.get(name, 'absent')} here"
        for name in dict.fromkeys([*wanted, *stored])
        if stored.get(name) != wanted.get(name)
    ]
    if problems:
        more = f"; and {len(problems) - shown} more" if len(problems) > shown else ""
        raise UserError(
            f"checkpoint {folder} does not fit: {'; '.join(problems[:shown])}{more}. "
            "It was saved with another model or another optimizer"
        )
