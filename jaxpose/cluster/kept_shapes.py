"""Writes the shapes of a program's results as JSON, and reads them: a kept program is called without being traced.

A registered class, such as the state of a training, is written only as the argument that has the same shapes.
"""

import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def write_shapes(results: Any, arguments: Sequence[Any]) -> str | None:
    """Returns the shapes and types of results as text; None if one cannot be written.

    Args:
      results: dicts and tuples of ShapeDtypeStruct, or trees like an argument.
      arguments: those of the program.
    """
    try:
        return json.dumps(_written(results, arguments))
    except TypeError:
        return None


def read_shapes(text: str, arguments: Sequence[Any]) -> Any:
    """Returns the results of `write_shapes` as ShapeDtypeStruct; the arguments must be of the same program."""
    return _read(json.loads(text), arguments)


def _written(value: Any, arguments: Sequence[Any]) -> list[Any]:
    if isinstance(value, jax.ShapeDtypeStruct):
        return ["array", list(value.shape), np.dtype(value.dtype).name]
    if type(value) is dict:
        # Pairs, because a name may be a number.
        return ["dict", [[name, _written(part, arguments)] for name, part in value.items()]]
    if type(value) is tuple:
        return ["tuple", [_written(part, arguments) for part in value]]
    for number, argument in enumerate(arguments):
        if _kinds(argument) == _kinds(value):
            return ["argument", number]
    raise TypeError(f"no argument has the shapes of a {type(value).__name__}")


def _read(written: list[Any], arguments: Sequence[Any]) -> Any:
    kind, *parts = written
    if kind == "array":
        return jax.ShapeDtypeStruct(tuple(parts[0]), np.dtype(parts[1]))
    if kind == "dict":
        return {name: _read(part, arguments) for name, part in parts[0]}
    if kind == "tuple":
        return tuple(_read(part, arguments) for part in parts[0])
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arguments[parts[0]])


def _kinds(tree: Any) -> tuple[Any, Any]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves]
