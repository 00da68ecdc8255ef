"""Weights that nobody trained, with heads whose maps differ much from frame to frame."""

from typing import Any

import jax


def lively(params: dict[Any, Any], factor: float = 20.0) -> dict[Any, Any]:
    """Returns a network's parameters with larger last layers of its heads, which begin with nearly uniform maps.

    Args:
      params: of a network with the head `pyramid`, or of kind `regression`, as `make_network` gives them.
      factor: of the last layers.
    """
    head = params["head"]
    if "layers" not in head:
        # A regression head is one layer.
        return params | {"head": _times(head, factor)}
    layers = head["layers"]
    found = params | {"head": head | {"layers": layers | {max(layers): _times(layers[max(layers)], factor)}}}
    if "context" in params:
        found["context"] = params["context"] | {"last": _times(params["context"]["last"], factor)}
    return found


def _times(layer: dict[str, Any], factor: float) -> dict[str, Any]:
    return jax.tree.map(lambda leaf: leaf * factor, layer)
