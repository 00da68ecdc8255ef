"""Batch normalisation by stored statistics, folded into the convolutions before it: for prediction."""

from typing import Any

import numpy as np

from jaxpose.model.layers import EPSILON


def fold_norms(params: dict[Any, Any], statistics: dict[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Returns weights with which a network computes the same outside of training, and whose norms only add a bias.

    Kernels take over the scale of the norm after them. All norms get scale 1, mean 0 and variance 1 - EPSILON, so the
    weights are still ones of the same network; `apply_network` with `is_folded` leaves these out. Networks without
    stored statistics (group normalisation, transformers) are returned as they are.

    Args:
      params: parameters of a network or a part of it, arrays on this host; they are not changed.
      statistics: its batch statistics, likewise.
    """
    params, statistics = dict(params), dict(statistics)
    for name, below in statistics.items():
        if "mean" not in below:
            params[name], statistics[name] = fold_norms(params[name], below)
            continue
        # bn1 comes after conv1; of a shortcut (downsample), 1 comes after 0.
        conv = 0 if name == 1 else name.replace("bn", "conv")
        kernel, norm = params[conv]["kernel"], params[name]
        # In float64, so that only the results are rounded.
        factor = np.asarray(norm["scale"], np.float64) / np.sqrt(np.asarray(below["var"], np.float64) + EPSILON)
        bias = np.asarray(norm["bias"], np.float64) - np.asarray(below["mean"], np.float64) * factor
        params[conv] = params[conv] | {"kernel": (kernel * factor).astype(kernel.dtype)}
        params[name] = {"scale": np.ones_like(norm["scale"]), "bias": bias.astype(kernel.dtype)}
        statistics[name] = {"mean": np.zeros_like(below["mean"]), "var": np.full_like(below["var"], 1 - EPSILON)}
    return params, statistics
